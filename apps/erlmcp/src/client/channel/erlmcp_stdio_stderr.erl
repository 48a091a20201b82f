-module(erlmcp_stdio_stderr).
-moduledoc """
What a child writes on standard error, for the log: each line is a notice with the domain
`[erlmcp, client, stderr]`, up to a length and a number a second. A value of the process that reads.
It says nothing of how the child does: programs write there whatever they like.

Internal.
""".

-export([new/2, push/2]).

-export_type([lines/0]).

%% Bytes of a line, and lines of a second.
-define(LINE_BYTES, 8192).
-define(LINES_A_SECOND, 200).

-record(lines, {
    command :: term(),
    starter :: binary(),
    framing = erlmcp_line:new(?LINE_BYTES) :: erlmcp_line:state(),
    second = 0 :: integer(),
    count = 0 :: non_neg_integer()
}).

-opaque lines() :: #lines{}.

-doc """
No lines yet, of the program `Command`. What the script `Starter` itself complains of, that there is
no such program, is no line of the program: its status says it.
""".
-spec new(Command :: term(), Starter :: file:filename()) -> lines().
new(Command, Starter) ->
    #lines{command = Command, starter = unicode:characters_to_binary([Starter, ": "])}.

-doc "What it wrote; whole lines are logged.".
-spec push(binary(), lines()) -> lines().
push(Bytes, #lines{framing = Framing} = Lines) ->
    {Whole, Rest} = erlmcp_line:push(Bytes, Framing),
    lists:foldl(fun log/2, Lines#lines{framing = Rest}, Whole).

log(Line, #lines{starter = Starter} = Lines) ->
    Size = byte_size(Starter),
    case Line of
        <<Starter:Size/binary, _/binary>> -> Lines;
        _ -> counted(Line, Lines)
    end.

counted(Line, #lines{second = Second, count = Count, command = Command} = Lines) ->
    case erlang:monotonic_time(second) of
        Second when Count < ?LINES_A_SECOND ->
            ok = notice(#{what => server_stderr, command => Command, line => shown(Line)}),
            Lines#lines{count = Count + 1};
        Second ->
            Lines#lines{count = Count + 1};
        Next ->
            _ = Count > ?LINES_A_SECOND
                andalso notice(#{what => server_stderr, command => Command,
                                 omitted => Count - ?LINES_A_SECOND}),
            counted(Line, Lines#lines{second = Next, count = 0})
    end.

shown({too_large, _}) ->
    <<"(a line of more than ", (integer_to_binary(?LINE_BYTES))/binary, " bytes)">>;
shown(Line) ->
    Line.

notice(Report) ->
    logger:notice(Report, #{domain => [erlmcp, client, stderr]}).
