-module(erlmcp_health).
-moduledoc """
The health of a server, and its page: all checks at the path of the page, and `/live` and `/ready`
below it. A server is ready if each new client would be served.

Internal.
""".

-behaviour(erlmcp_page).

-export([report/1]).
-export([handle/2]).

-doc "Returns whether a server is ready, and the result of each check.".
-spec report(erlmcp_instance:instance()) -> erlmcp:health().
report(Instance) ->
    Checks = #{Name => check(Name, Instance)
               || Name <- [listeners, drain, memory, processors, descriptors, connections]
                              ++ of_cluster(Instance)},
    #{ready => lists:all(fun(#{passes := Passes}) -> Passes end, maps:values(Checks)),
      checks => Checks}.

of_cluster(#{cluster := none}) -> [];
of_cluster(_) -> [cluster, cluster_clock, cluster_disk].

check(listeners, #{listeners := Listeners}) ->
    OfRanch = [Listener || {_, Transport, _} = Listener <- Listeners, Transport =/= stdio],
    Open = [Listener || Listener <- OfRanch, is_open(Listener)],
    #{passes => length(Open) =:= length(OfRanch), observed => length(Open),
      limit => length(OfRanch)};
check(drain, #{gate := Gate}) ->
    #{passes => not (erlmcp_gate:is_lame(Gate) orelse erlmcp_gate:is_draining(Gate))};
check(memory, _) ->
    (erlmcp_overload_guard:figures(erlmcp_memory_guard))#{
        passes => erlmcp_memory_guard:state() =:= ok};
check(processors, _) ->
    (erlmcp_overload_guard:figures(erlmcp_processor_guard))#{
        passes => erlmcp_processor_guard:state() =:= ok};
check(descriptors, _) ->
    (erlmcp_descriptors:figures())#{passes => erlmcp_descriptors:state() =:= ok};
check(connections, #{gate := Gate, limits := #{connections := Limit}}) ->
    Held = erlmcp_gate:held(Gate, connections),
    Bound = #{limit => Limit || Limit =/= infinity},
    Bound#{passes => Held < Limit, observed => Held};
check(cluster, #{cluster := {Module, State}}) ->
    #{lease_ms := Left} = Module:overview(State),
    %% A node that has a lease may have given its sessions up nevertheless.
    #{passes => Left > 0 andalso is_integer(Module:incarnation(sessions, State)),
      observed => Left};
check(cluster_clock, #{cluster := {Module, State}}) ->
    #{clock := #{state := Clock, ahead_s := Ahead}} = Module:overview(State),
    #{passes => Clock =/= apart, observed => abs(Ahead)};
check(cluster_disk, #{cluster := {Module, State}}) ->
    #{disk := Disk} = Module:overview(State),
    #{passes => Disk =:= ok}.

%% A listener has an address from the time on at which its port is open, and none while it is
%% suspended.
is_open(Listener) ->
    try ranch:get_addr(Listener) of
        {undefined, undefined} -> false;
        _ -> true
    catch
        error:badarg -> false
    end.

-doc false.
handle(#{below := Below}, _) when Below =:= ~"/live" ->
    answer(200, #{~"status" => ~"pass"});
handle(#{below := Below, server := Server}, _) when Below =:= <<>>; Below =:= ~"/ready" ->
    case erlmcp_registry:whereis(Server) of
        {ok, Pid, Instance} -> shown(Below, report(Instance), Pid);
        %% The server starts, or has just ended.
        error -> answer(503, #{~"status" => ~"fail"})
    end;
handle(_, _) ->
    {404, #{}, <<>>}.

shown(Below, #{ready := Ready, checks := Checks}, Server) ->
    Status = case Ready of
        true -> 200;
        false -> 503
    end,
    answer(Status, case Below of
        <<>> -> (well(erlmcp_verdicts:find(Server)))#{
                    ~"status" => text(Ready),
                    ~"checks" => #{Name => encoded(Check) || Name := Check <- Checks}};
        _ -> #{~"status" => text(Ready),
               ~"failed" => lists:sort([Name || Name := #{passes := false} <- Checks])}
    end).

%% The causes are for the operator alone.
well(#{well := Well}) -> #{~"well" => Well};
well(none) -> #{}.

encoded(#{passes := Passes} = Check) ->
    (maps:remove(passes, Check))#{status => text(Passes)}.

text(true) -> ~"pass";
text(false) -> ~"fail".

answer(Status, Json) ->
    {Status, #{~"content-type" => ~"application/json"}, json:encode(Json)}.
