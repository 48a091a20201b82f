-module(health_SUITE).
-moduledoc """
The health of a server: `erlmcp:health/1`, and the pages that orchestrators and balancers look at.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_server_is_live_and_ready/1, a_drained_server_is_not_ready/1,
         a_node_past_a_bound_is_not_ready/1, a_full_server_is_not_ready/1,
         a_server_is_not_ready_without_a_listener/1, a_server_that_ended_has_none/1]).

-import(erlmcp_test_http, [start/1, stop/1, connect/1, close/1, write/2]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

a_server_is_live_and_ready(_) ->
    #{pid := Pid} = Server = serve(#{}),
    {200, #{~"status" := ~"pass"}} = ask(~"/health/live", Server),
    {200, #{~"status" := ~"pass", ~"failed" := []}} = ask(~"/health/ready", Server),
    %% The connections that asked give their permits back as they end.
    ok = until_open(0, Pid),
    {200, #{~"status" := ~"pass", ~"checks" := Checks}} = ask(~"/health", Server),
    #{ready := true, checks := Same} = erlmcp:health(Pid),
    true = lists:sort(maps:keys(Checks))
        =:= lists:sort([atom_to_binary(Name) || Name <- maps:keys(Same)]),
    [#{~"status" := ~"pass"} = Check || Check <- maps:values(Checks)],
    #{~"memory" := #{~"observed" := Used, ~"limit" := Bytes},
      ~"listeners" := #{~"observed" := 1, ~"limit" := 1},
      ~"connections" := #{~"observed" := 1, ~"limit" := _}} = Checks,
    true = Used < Bytes,
    [404 = status(Path, Server) || Path <- [~"/health/", ~"/health/other", ~"/healthy"]],
    ok = stop(Server).

%% The listener with the endpoint closes, and that of the pages stays.
a_drained_server_is_not_ready(_) ->
    #{pid := Pid} = Server = serve(#{}, [{http, #{path => none, health => true}}, {http, #{}}]),
    {200, _} = ask(~"/health/ready", Server),
    {ok, _} = erlmcp:drain(Pid, 0),
    {200, _} = ask(~"/health/live", Server),
    {503, #{~"status" := ~"fail", ~"failed" := [~"drain", ~"listeners"]}} =
        ask(~"/health/ready", Server),
    {503, #{~"status" := ~"fail",
            ~"checks" := #{~"drain" := #{~"status" := ~"fail"},
                           ~"listeners" := #{~"status" := ~"fail", ~"observed" := 1,
                                             ~"limit" := 2},
                           ~"memory" := #{~"status" := ~"pass"}}}} = ask(~"/health", Server),
    ok = stop(Server).

a_node_past_a_bound_is_not_ready(_) ->
    Server = serve(#{}),
    ok = application:set_env(erlmcp, memory_bytes, 1),
    ok = await({503, [~"memory"]}, Server),
    {200, _} = ask(~"/health/live", Server),
    ok = application:unset_env(erlmcp, memory_bytes),
    ok = await({200, []}, Server),
    ok = stop(Server).

await(Expected, Server) ->
    case ask(~"/health/ready", Server) of
        {Status, #{~"failed" := Failed}} when {Status, Failed} =:= Expected -> ok;
        _ -> await(Expected, Server)
    end.

%% The check has no permit either, and is answered.
a_full_server_is_not_ready(_) ->
    #{pid := Pid} = Server = serve(#{connections => 2}),
    First = connect(Server),
    %% Until it has been accepted before the one that asks.
    ok = await({503, [~"connections"]}, Server),
    %% The connection that asked is about to end, and gives its permit back then.
    ok = until_open(1, Pid),
    Second = connect(Server),
    ok = until_open(2, Pid),
    {503, #{~"checks" := #{~"connections" := #{~"limit" := 2, ~"observed" := 2}}}} =
        ask(~"/health", Server),
    {200, _} = ask(~"/health/live", Server),
    #{ready := false} = erlmcp:health(Pid),
    [ok = close(Socket) || Socket <- [First, Second]],
    ok = until(fun() -> maps:get(ready, erlmcp:health(Pid)) end),
    ok = stop(Server).

until_open(Count, Pid) ->
    until(fun() -> map_get(connections, erlmcp:info(Pid)) =:= Count end).

until(Holds) ->
    case Holds() of
        true -> ok;
        false -> erlang:yield(), until(Holds)
    end.

%% A listener has no port before it is open, as one that is suspended has none.
a_server_is_not_ready_without_a_listener(_) ->
    #{pid := Pid} = Server = serve(#{}, [{http, #{path => none, health => true}}, {http, #{}}]),
    [_, Second] = lists:sort([Id || {{listener, Id}, _, _, _} <- supervisor:which_children(Pid)]),
    ok = ranch:suspend_listener(Second),
    {503, #{~"failed" := [~"listeners"]}} = ask(~"/health/ready", Server),
    {503, #{~"checks" := #{~"listeners" := #{~"status" := ~"fail", ~"observed" := 1,
                                             ~"limit" := 2}}}} = ask(~"/health", Server),
    {200, _} = ask(~"/health/live", Server),
    ok = ranch:resume_listener(Second),
    {200, _} = ask(~"/health/ready", Server),
    ok = stop(Server).

a_server_that_ended_has_none(_) ->
    #{pid := Pid} = Server = serve(#{}),
    ok = stop(Server),
    {error, not_found} = erlmcp:health(Pid).

serve(Limits) ->
    serve(Limits, [{http, #{health => true}}]).

serve(Limits, Listen) ->
    start(#{limits => Limits, listen => Listen}).

status(Path, Server) ->
    {Status, _} = whole(Path, Server),
    Status.

ask(Path, Server) ->
    {Status, Body} = whole(Path, Server),
    {Status, json:decode(Body)}.

%% As an orchestrator does: a connection for each check.
whole(Path, #{port := Port}) ->
    Socket = connect(#{port => Port}),
    ok = write(Socket, [~"GET ", Path, ~" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"]),
    {Status, Headers} = erlmcp_test_http:head(Socket),
    Body = erlmcp_test_http:body(Socket, Headers),
    ok = close(Socket),
    {Status, Body}.
