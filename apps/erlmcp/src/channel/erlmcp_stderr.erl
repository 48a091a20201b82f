-module(erlmcp_stderr).
-moduledoc """
What a child writes on standard error, for the log: each line is a notice with the domain
`[erlmcp, client, stderr]`, up to a length and a number a second. A value of the process that reads.
It says nothing of how the child does: programs write there whatever they like.
""".

-export([new/1, push/2]).

-export_type([lines/0]).

%% Bytes of a line, and lines of a second.
-define(LINE_BYTES, 8192).
-define(LINES_A_SECOND, 200).

-record(lines, {
    command :: term(),
    framing = erlmcp_line:new(?LINE_BYTES) :: erlmcp_line:state(),
    second = 0 :: integer(),
    count = 0 :: non_neg_integer()
}).

-opaque lines() :: #lines{}.

-doc "No lines yet, of this program.".
-spec new(Command :: term()) -> lines().
new(Command) ->
    #lines{command = Command}.

-doc "What it wrote; whole lines are logged.".
-spec push(binary(), lines()) -> lines().
push(Bytes, #lines{framing = Framing} = Lines) ->
    {Whole, Rest} = erlmcp_line:push(Bytes, Framing),
    lists:foldl(fun log/2, Lines#lines{framing = Rest}, Whole).

log(Line, #lines{second = Second, count = Count, command = Command} = Lines) ->
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
            log(Line, Lines#lines{second = Next, count = 0})
    end.

shown({too_large, _}) ->
    <<"(a line of more than ", (integer_to_binary(?LINE_BYTES))/binary, " bytes)">>;
shown(Line) ->
    Line.

notice(Report) ->
    logger:notice(Report, #{domain => [erlmcp, client, stderr]}).
