-module(erlmcp_chaos_program).
-moduledoc """
Runs a program of the machine, such as `ip` or `mount`, and waits at most ten seconds for its end.
""".

-export([run/2, reason/1]).

-export_type([reason/0]).

-type reason() ::
    {no_program, Name :: string()}
    | {failed, Name :: string(), Status :: integer() | timeout, Output :: binary()}.

-define(RUN_MS, 10_000).
%% Bytes of output after which no more are kept.
-define(OUTPUT_BYTES, 1_000_000).

-doc """
Runs the program `Name`, which is found on the path, with the arguments `Words`. Returns the output
of the program if its exit status is 0, and an error otherwise. About the first megabyte of the
output is kept. A program that has not ended after ten seconds has the status `timeout`, and may
still run.
""".
-spec run(Name :: string(), Words :: [string()]) -> {ok, binary()} | {error, reason()}.
run(Name, Words) ->
    case os:find_executable(Name) of
        false ->
            {error, {no_program, Name}};
        Program ->
            Port = open_port({spawn_executable, Program},
                             [{args, Words}, binary, exit_status, stderr_to_stdout]),
            output(Port, Name, ~"", erlang:monotonic_time(millisecond) + ?RUN_MS)
    end.

output(Port, Name, Output, Deadline) ->
    receive
        {Port, {data, Bytes}} when byte_size(Output) < ?OUTPUT_BYTES ->
            output(Port, Name, <<Output/binary, Bytes/binary>>, Deadline);
        {Port, {data, _}} ->
            output(Port, Name, Output, Deadline);
        {Port, {exit_status, 0}} ->
            {ok, Output};
        {Port, {exit_status, Status}} ->
            {error, {failed, Name, Status, Output}}
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        true = port_close(Port),
        {error, {failed, Name, timeout, Output}}
    end.

-doc """
Returns a text for the reason of an error: a reason of this module, of `m:erlmcp_chaos_keeper`, or
any other term.
""".
-spec reason(reason() | erlmcp_chaos_keeper:reason() | term()) -> binary().
reason(Reason) ->
    <<Text/binary>> = unicode:characters_to_binary(sentence(Reason)),
    Text.

sentence({no_program, Name}) ->
    ["there is no program ", Name];
sentence({failed, Name, Status, Output}) ->
    io_lib:format("~ts ended with ~p: ~ts", [Name, Status, string:trim(Output)]);
sentence({keeper, _, Output}) when Output =/= ~"" ->
    string:trim(Output);
sentence(Other) ->
    io_lib:format("~tp", [Other]).
