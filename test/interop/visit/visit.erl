-module(visit).
-moduledoc """
Visits a server as a user of erlmcp's client would, in each revision and over each transport of the
plan. Each check prints a line, `ok - VISIT: FEATURE` or `not ok - VISIT: FEATURE: why`. The last
line is `N passed, N failed`.

A plan (`test/interop/servers.eterm`) has these terms:

- `{visit, Server, Transport, Era, Revision, Checks}`: a visit with the client's option `era`, the
  revision that it negotiates, and its number of checks.
- `{fault, Server, Transports, Eras, Feature, Reason}`: a known fault of the server. Its check must
  fail. Its line is `fault - VISIT: FEATURE: reason`, which counts as passed.
""".

-export([main/1]).

-define(LIMIT_MS, 20_000).

-doc """
Makes the visits to a server. The arguments are `SERVER`, the plan's file, and the addresses:
`http=URL`, `sse=URL` and `stdio=COMMAND`, which `sh` runs. A transport without an address is left
out.
""".
-spec main([string()]) -> no_return().
main([Server, File | Targets]) ->
    ok = logger:set_primary_config(level, none),
    ok = io:setopts([{encoding, unicode}]),
    {ok, _} = application:ensure_all_started(erlmcp),
    {ok, Plan} = file:consult(File),
    Counts = [visit(Visit, target(Transport, Target), Plan)
              || {visit, Name, Transport, _, _, _} = Visit <- Plan,
                 atom_to_list(Name) =:= Server,
                 Target <- Targets, lists:prefix(atom_to_list(Transport) ++ "=", Target)],
    {Passed, Failed} = lists:unzip(Counts),
    io:format("~b passed, ~b failed~n", [lists:sum(Passed), lists:sum(Failed)]),
    halt(min(1, lists:sum(Failed))).

target(http, "http=" ++ Url) ->
    fun(Options) -> {http, list_to_binary(Url), Options} end;
%% The client itself finds out the transport.
target(sse, "sse=" ++ Url) ->
    target(http, "http=" ++ Url);
target(stdio, "stdio=" ++ Command) ->
    Line = unicode:characters_to_binary(["exec " | Command]),
    %% The servers find their catalogue in the environment.
    fun(Options) -> {stdio, [~"/bin/sh", ~"-c", Line], Options#{inherit => all}} end.

visit({visit, Server, Transport, Era, Revision, Checks}, Target, Plan) ->
    Faults = [{Feature, Reason}
              || {fault, Name, Transports, Eras, Feature, Reason} <- Plan, Name =:= Server,
                 lists:member(Transport, Transports), lists:member(Era, Eras)],
    Label = io_lib:format("~s ~s ~s", [Server, Transport, Era]),
    Visit = #{label => Label, shelf => visit_shelf:of_server(Server), transport => Transport,
              revision => Revision, declines => atomics:new(1, []), faults => Faults},
    Features = visit_features:of_visit(Visit),
    Outcomes = case started(Target, Era, Visit) of
        {ok, Client} ->
            Run = [check(Feature, Visit#{client => Client}) || Feature <- Features],
            ok = erlmcp_client:stop(Client),
            Run;
        {error, Reason} ->
            [failed(Visit, ~"connect", Reason)]
    end,
    Passed = length([ok || ok <- Outcomes]),
    case length(Outcomes) - Passed of
        0 when Passed =/= Checks ->
            io:format("not ok - ~ts: ~b checks, expected ~b~n", [Label, Passed, Checks]),
            {Passed, 1};
        Failed ->
            {Passed, Failed}
    end.

started(Target, Era, #{declines := Declines}) ->
    Options = #{name => ~"erlmcp-interop", version => ~"1.0.0", era => Era, log_level => info,
                inputs => visit_features:inputs(Declines)},
    case erlmcp_client:start_link(Target(Options)) of
        {ok, Client} ->
            case erlmcp_client:server(Client) of
                {ok, _} -> {ok, Client};
                {error, Reason} -> {error, Reason}
            end;
        {error, Reason} ->
            {error, Reason}
    end.

%% Each check runs in a process of its own, which owns its subscriptions and its mailbox.
check({Feature, Body}, #{label := Label, faults := Faults} = Visit) ->
    {Pid, Monitor} = spawn_monitor(fun() -> Body(Visit) end),
    Outcome = receive
        {'DOWN', Monitor, process, Pid, normal} -> ok;
        {'DOWN', Monitor, process, Pid, Broken} -> {failed, Broken}
    after ?LIMIT_MS ->
        exit(Pid, kill),
        {failed, {no_end_after_ms, ?LIMIT_MS}}
    end,
    case {Outcome, lists:keyfind(Feature, 1, Faults)} of
        {ok, false} ->
            io:format("ok - ~ts: ~ts~n", [Label, Feature]);
        {ok, {_, Reason}} ->
            failed(Visit, Feature, {passes_now, Reason});
        {{failed, _}, {_, Reason}} ->
            io:format("fault - ~ts: ~ts: ~ts~n", [Label, Feature, Reason]);
        {{failed, Why}, false} ->
            failed(Visit, Feature, Why)
    end.

failed(#{label := Label}, Feature, Why) ->
    io:format("not ok - ~ts: ~ts: ~0tp~n", [Label, Feature, Why]),
    failed.
