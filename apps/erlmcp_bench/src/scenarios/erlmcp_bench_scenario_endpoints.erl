-module(erlmcp_bench_scenario_endpoints).
-moduledoc """
The endpoints that the clients of a scenario connect to. They are servers in nodes of their own, or
URLs of other servers. If the scenario's faults need a proxy, and it can be started, half of the
clients connect through it. The nodes and the proxy end with the process that called `open/2`.
""".

-export([open/2, close/1, clients/1, crowd/1, nodes/1, metrics/1, processes/1]).
-export([families/1, pauses/1]).
-export([add_latency/2, remove_latency/1, drop/2, kill/1]).

-export_type([endpoints/0, endpoint/0]).

-doc """
An endpoint. `name` is the name of the server's node (`node_1`) or of its URL (`url_1`). `target`
and `protocol` are the members of an `m:erlmcp_load` plan that select the server.
""".
-type endpoint() :: #{name := binary(), target := term(), protocol => http1 | http2}.
-opaque endpoints() :: #{
    nodes := [pid()], os_pids := atomics:atomics_ref(), clients := [endpoint()],
    crowd := [endpoint()],
    proxy := none | {not_run, Reason :: term()}
             | {erlmcp_chaos_toxiproxy:toxiproxy(), [erlmcp_chaos_toxiproxy:proxy()]}
}.

-doc """
Opens the endpoints of a scenario. `Options` has a `transport`, and `urls` or `nodes`, and may have
`metrics`, see `t:erlmcp_bench_scenario:options/0`. The error is `{node, Reason}` if a node could
not start.
""".
-spec open(erlmcp_bench_scenarios:scenario(), Options :: map()) ->
    {ok, endpoints()} | {error, term()}.
open(_, #{urls := Urls, transport := Transport}) ->
    {ok, #{nodes => [], os_pids => atomics:new(length(Urls), []), crowd => [], proxy => none,
           clients => [#{name => name(~"url_", Number), target => {http, Url},
                         protocol => Transport} || {Number, Url} <- lists:enumerate(Urls)]}};
open(Scenario, #{nodes := Count} = Options) ->
    OsPids = atomics:new(Count, []),
    maybe
        {ok, Nodes} ?= started(lists:seq(1, Count), OsPids, Options, []),
        Facts = [{name(~"node_", Number), erlmcp_bench_scenario_node:facts(Node)}
                 || {Number, Node} <- lists:enumerate(Nodes)],
        Direct = [endpoint(Name, Address, Options) || {Name, #{clients := Address}} <- Facts],
        {Proxy, Proxied} = proxied(Scenario, Facts, Options),
        {ok, #{nodes => Nodes, os_pids => OsPids, proxy => Proxy, clients => Direct ++ Proxied,
               crowd => [endpoint(Name, Address, Options)
                         || {Name, #{crowd := Address}} <- Facts]}}
    end.

name(Kind, Number) -> <<Kind/binary, (integer_to_binary(Number))/binary>>.

started([], _, _, Nodes) ->
    {ok, lists:reverse(Nodes)};
started([Number | Numbers], OsPids, #{transport := Transport} = Options, Nodes) ->
    case erlmcp_bench_scenario_node:start_link(
             maps:merge(#{transport => Transport, os_pid => {OsPids, Number}},
                        metrics_port(Number, Options))) of
        {ok, Node} ->
            started(Numbers, OsPids, Options, [Node | Nodes]);
        {error, Reason} ->
            lists:foreach(fun erlmcp_bench_scenario_node:stop/1, Nodes),
            {error, {node, Reason}}
    end.

metrics_port(_, #{metrics := 0}) -> #{metrics => 0};
metrics_port(Number, #{metrics := Port}) -> #{metrics => Port + Number};
metrics_port(_, _) -> #{}.

endpoint(Name, #{ip := Ip, port := Port}, #{transport := tcp}) ->
    #{name => Name, target => {tcp, Ip, Port}};
endpoint(Name, #{ip := Ip, port := Port, url := Url}, #{transport := Transport}) ->
    There = (uri_string:parse(Url))#{host := list_to_binary(inet:ntoa(Ip)), port := Port},
    #{name => Name, target => {http, uri_string:recompose(There)}, protocol => Transport}.

%% Without the program of the proxy, only the fault that needs it is not injected.
proxied(#{faults := Faults}, Facts, Options) ->
    case lists:keymember(add_latency, 1, Faults) of
        true ->
            case erlmcp_chaos_toxiproxy:start() of
                {ok, Toxiproxy} ->
                    {Proxies, Endpoints} = lists:unzip([proxy(Toxiproxy, Name, Address, Options)
                                                        || {Name, #{clients := Address}} <- Facts]),
                    {{Toxiproxy, Proxies}, Endpoints};
                {error, Reason} ->
                    {{not_run, Reason}, []}
            end;
        false ->
            {none, []}
    end.

proxy(Toxiproxy, Name, #{ip := Ip, port := Port} = Address, Options) ->
    {ok, Proxy, {ProxyIp, ProxyPort}} = erlmcp_chaos_toxiproxy:proxy(Toxiproxy, {Ip, Port}),
    {Proxy, endpoint(Name, Address#{ip := ProxyIp, port := ProxyPort}, Options)}.

-doc "Ends the nodes and the proxy.".
-spec close(endpoints()) -> ok.
close(#{nodes := Nodes, proxy := Proxy}) ->
    _ = [erlmcp_chaos_toxiproxy:stop(Toxiproxy) || {Toxiproxy, [_ | _]} <- [Proxy]],
    lists:foreach(fun erlmcp_bench_scenario_node:stop/1, Nodes).

-doc "Returns the endpoints for the scenario's own clients.".
-spec clients(endpoints()) -> [endpoint()].
clients(#{clients := Clients}) -> Clients.

-doc """
Returns the endpoints for the crowd, the additional clients of a scenario. The list is empty if the
endpoints are URLs.
""".
-spec crowd(endpoints()) -> [endpoint()].
crowd(#{crowd := Crowd}) -> Crowd.

-doc "Returns the number of nodes that were started.".
-spec nodes(endpoints()) -> non_neg_integer().
nodes(#{nodes := Nodes}) -> length(Nodes).

-doc """
Returns the URLs of the nodes' metrics. The list is empty if `open/2` had no option `metrics`, or if
the endpoints are URLs. Waits while a node restarts, and fails after a minute.
""".
-spec metrics(endpoints()) -> [binary()].
metrics(Endpoints) -> [Url || #{metrics := Url} <- facts(Endpoints)].

-doc """
Returns the name of each node or URL, with its process id in the operating system. The id is `none`
for a URL, and for a node that does not run.
""".
-spec processes(endpoints()) -> [{Name :: binary(), pos_integer() | none}].
processes(#{nodes := [], clients := Clients}) ->
    [{Name, none} || #{name := Name} <- Clients];
processes(#{nodes := Nodes, os_pids := OsPids}) ->
    [{name(~"node_", Number), case atomics:get(OsPids, Number) of
                                  0 -> none;
                                  OsPid -> OsPid
                              end} || Number <- lists:seq(1, length(Nodes))].

-doc """
Returns the metrics of all nodes. Each series has the name of its node as the label `instance`.
Waits while a node restarts, and fails if a node does not answer within a minute. The list is empty
if the endpoints are URLs.
""".
-spec families(endpoints()) -> [erlmcp_bench_prometheus:family()].
families(#{nodes := Nodes}) ->
    erlmcp_bench_prometheus:joined(lists:append(
        [erlmcp_bench_prometheus:labelled({~"instance", name(~"node_", Number)},
                                          erlmcp_bench_scenario_node:families(Node))
         || {Number, Node} <- lists:enumerate(Nodes)])).

-doc """
Returns the sampled pauses of garbage collections in all nodes together, or `none` if the endpoints
are URLs. The pauses of a node are those since the last call of this function, or since the node
started. Waits and fails as `families/1` does.
""".
-spec pauses(endpoints()) -> erlmcp_bench_pauses:pauses() | none.
pauses(#{nodes := []}) ->
    none;
pauses(#{nodes := Nodes}) ->
    erlmcp_bench_pauses:merge([erlmcp_bench_scenario_node:pauses(Node) || Node <- Nodes]).

facts(#{nodes := Nodes}) -> [erlmcp_bench_scenario_node:facts(Node) || Node <- Nodes].

-doc """
Adds a latency of `Milliseconds` for the clients that connect through the proxy. The scenario must
have the fault `add_latency`. Returns `{not_run, Reason}` if the proxy could not be started.
""".
-spec add_latency(endpoints(), Milliseconds :: pos_integer()) -> ok | {not_run, term()}.
add_latency(#{proxy := {not_run, Reason}}, _) ->
    {not_run, Reason};
add_latency(#{proxy := {Toxiproxy, Proxies}}, Milliseconds) ->
    lists:foreach(fun(Proxy) ->
        ok = erlmcp_chaos_toxiproxy:add(Toxiproxy, Proxy, {latency, Milliseconds})
    end, Proxies).

-doc """
Removes the latency that `add_latency/2` added. Has no effect if the proxy could not be started.
""".
-spec remove_latency(endpoints()) -> ok.
remove_latency(#{proxy := {not_run, _}}) ->
    ok;
remove_latency(#{proxy := {Toxiproxy, Proxies}}) ->
    lists:foreach(fun(Proxy) -> ok = erlmcp_chaos_toxiproxy:remove(Toxiproxy, Proxy) end, Proxies).

-doc """
Closes `Count` connections of the crowd, evenly over the nodes. A node with fewer connections than
its part closes all. Returns how many connections were closed within five seconds.
""".
-spec drop(endpoints(), Count :: pos_integer()) -> Dropped :: non_neg_integer().
drop(#{nodes := Nodes}, Count) ->
    round(lists:sum([erlmcp_bench_scenario_node:drop(Node, Part)
                     || {Node, Part} <- erlmcp_bench_scenario_plan:split(Count, Nodes)])).

-doc """
Kills the last node, which is then started again. Returns `true` if the node ended within five
seconds.
""".
-spec kill(endpoints()) -> boolean().
kill(#{nodes := Nodes}) ->
    erlmcp_bench_scenario_node:kill(lists:last(Nodes)).
