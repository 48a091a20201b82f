-module(erlmcp_chaos_program).
-moduledoc "Runs a program of the machine to its end: `ip`, `mount`.".

-export([run/2, reason/1]).

-export_type([reason/0]).

-type reason() ::
    {no_program, Name :: string()}
    | {failed, Name :: string(), Status :: integer() | timeout, Said :: binary()}.

-define(RUN_MS, 10_000).
%% Bytes of what it says.
-define(SAID, 1_000_000).

-doc "Runs a program that stands on the path, for ten seconds at most; what it said.".
-spec run(Name :: string(), [string()]) -> {ok, binary()} | {error, reason()}.
run(Name, Words) ->
    case os:find_executable(Name) of
        false ->
            {error, {no_program, Name}};
        Program ->
            Port = open_port({spawn_executable, Program},
                             [{args, Words}, binary, exit_status, stderr_to_stdout]),
            said(Port, Name, ~"", erlang:monotonic_time(millisecond) + ?RUN_MS)
    end.

said(Port, Name, Said, Deadline) ->
    receive
        {Port, {data, Bytes}} when byte_size(Said) < ?SAID ->
            said(Port, Name, <<Said/binary, Bytes/binary>>, Deadline);
        {Port, {data, _}} ->
            said(Port, Name, Said, Deadline);
        {Port, {exit_status, 0}} ->
            {ok, Said};
        {Port, {exit_status, Status}} ->
            {error, {failed, Name, Status, Said}}
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        true = port_close(Port),
        {error, {failed, Name, timeout, Said}}
    end.

-doc "A reason why something of the machine is not to be had, as a sentence.".
-spec reason(reason() | erlmcp_chaos_keeper:reason() | term()) -> binary().
reason(Reason) ->
    <<Text/binary>> = unicode:characters_to_binary(sentence(Reason)),
    Text.

sentence({no_program, Name}) ->
    ["there is no program ", Name];
sentence({failed, Name, Status, Said}) ->
    io_lib:format("~ts ended with ~p: ~ts", [Name, Status, string:trim(Said)]);
sentence({keeper, _, Said}) when Said =/= ~"" ->
    string:trim(Said);
sentence(Other) ->
    io_lib:format("~tp", [Other]).
