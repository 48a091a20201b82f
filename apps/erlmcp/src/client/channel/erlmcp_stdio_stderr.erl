-module(erlmcp_stdio_stderr).
-moduledoc """
Logs the standard error of a child process, as a value of the process that reads it. Each line that
is not blank becomes a notice with the domain `[erlmcp, client, stderr]`. A line of more than 8192
bytes is replaced by a short text. At most 200 lines a second are logged; the number of the others
comes with a later line.

Internal.
""".

-export([new/2, push/2]).

-export_type([lines/0]).

%% The most bytes of a line, and the most lines in a second.
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
Returns the state for a process of the program `Command` that has written nothing yet. Lines of the
script `Starter` itself say that the program could not be started. They are not logged, since the
exit status says the same.
""".
-spec new(Command :: term(), Starter :: file:filename()) -> lines().
new(Command, Starter) ->
    #lines{command = Command, starter = unicode:characters_to_binary([Starter, ": "])}.

-doc "Takes bytes that the program wrote, and logs the lines that are complete.".
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
