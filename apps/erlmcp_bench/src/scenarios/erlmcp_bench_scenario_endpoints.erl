-module(erlmcp_bench_scenario_endpoints).
-moduledoc """
The endpoints that the clients of a scenario connect to. They are servers in nodes of their own, or
URLs of other servers. If the scenario's faults need it, half of the clients connect through a
proxy. A single process calls these functions, and the nodes and the proxy end with it.
""".

-export([open/2, close/1, clients/1, crowd/1, nodes/1, metrics/1, os_pids/1]).
-export([add_latency/2, remove_latency/1, drop/2, kill/1]).

-export_type([endpoints/0, endpoint/0]).

-doc "The members of an `m:erlmcp_load` plan that select a server.".
-type endpoint() :: #{target := term(), protocol => http1 | http2}.
-opaque endpoints() :: #{
    nodes := [pid()], clients := [endpoint()], crowd := [endpoint()],
    proxy := none | {not_run, Reason :: term()}
             | {erlmcp_chaos_toxiproxy:toxiproxy(), [erlmcp_chaos_toxiproxy:proxy()]}
}.

-doc """
Opens the endpoints of a scenario. `Options` has a `transport`, and `urls` or `nodes`, see
`t:erlmcp_bench_scenario:options/0`. The error `{node, Reason}` is that of a node that could not
start.
""".
-spec open(erlmcp_bench_scenarios:scenario(), Options :: map()) ->
    {ok, endpoints()} | {error, term()}.
open(_, #{urls := Urls, transport := Transport}) ->
    {ok, #{nodes => [], crowd => [], proxy => none,
           clients => [#{target => {http, Url}, protocol => Transport} || Url <- Urls]}};
open(Scenario, #{nodes := Count} = Options) ->
    maybe
        {ok, Nodes} ?= started(lists:seq(1, Count), Options, []),
        Facts = [erlmcp_bench_scenario_node:facts(Node) || Node <- Nodes],
        Direct = [endpoint(Address, Options) || #{clients := Address} <- Facts],
        {Proxy, Proxied} = proxied(Scenario, Facts, Options),
        {ok, #{nodes => Nodes, proxy => Proxy, clients => Direct ++ Proxied,
               crowd => [endpoint(Address, Options) || #{crowd := Address} <- Facts]}}
    end.

started([], _, Nodes) ->
    {ok, lists:reverse(Nodes)};
started([Number | Numbers], #{transport := Transport} = Options, Nodes) ->
    case erlmcp_bench_scenario_node:start_link(
             maps:merge(#{transport => Transport}, metrics_port(Number, Options))) of
        {ok, Node} ->
            started(Numbers, Options, [Node | Nodes]);
        {error, Reason} ->
            lists:foreach(fun erlmcp_bench_scenario_node:stop/1, Nodes),
            {error, {node, Reason}}
    end.

metrics_port(_, #{metrics := 0}) -> #{metrics => 0};
metrics_port(Number, #{metrics := Port}) -> #{metrics => Port + Number};
metrics_port(_, _) -> #{}.

endpoint(#{ip := Ip, port := Port}, #{transport := tcp}) ->
    #{target => {tcp, Ip, Port}};
endpoint(#{ip := Ip, port := Port, url := Url}, #{transport := Transport}) ->
    There = (uri_string:parse(Url))#{host := list_to_binary(inet:ntoa(Ip)), port := Port},
    #{target => {http, uri_string:recompose(There)}, protocol => Transport}.

%% Without the program of the proxy, only the fault that needs it is not injected.
proxied(#{faults := Faults}, Facts, Options) ->
    case lists:keymember(add_latency, 1, Faults) of
        true ->
            case erlmcp_chaos_toxiproxy:start() of
                {ok, Toxiproxy} ->
                    {Names, Endpoints} = lists:unzip([proxy(Toxiproxy, Address, Options)
                                                   || #{clients := Address} <- Facts]),
                    {{Toxiproxy, Names}, Endpoints};
                {error, Reason} ->
                    {{not_run, Reason}, []}
            end;
        false ->
            {none, []}
    end.

proxy(Toxiproxy, #{ip := Ip, port := Port} = Address, Options) ->
    {ok, Name, {ProxyIp, ProxyPort}} = erlmcp_chaos_toxiproxy:proxy(Toxiproxy, {Ip, Port}),
    {Name, endpoint(Address#{ip := ProxyIp, port := ProxyPort}, Options)}.

-doc "Closes all endpoints.".
-spec close(endpoints()) -> ok.
close(#{nodes := Nodes, proxy := Proxy}) ->
    _ = [erlmcp_chaos_toxiproxy:stop(Toxiproxy) || {Toxiproxy, [_ | _]} <- [Proxy]],
    lists:foreach(fun erlmcp_bench_scenario_node:stop/1, Nodes).

-doc "Returns the endpoints for the scenario's own clients.".
-spec clients(endpoints()) -> [endpoint()].
clients(#{clients := Clients}) -> Clients.

-doc "Returns the endpoints for the crowd, the additional clients of a scenario. URLs have none.".
-spec crowd(endpoints()) -> [endpoint()].
crowd(#{crowd := Crowd}) -> Crowd.

-doc "Returns the number of nodes that were started.".
-spec nodes(endpoints()) -> non_neg_integer().
nodes(#{nodes := Nodes}) -> length(Nodes).

-doc "Returns the URLs of the nodes' metrics.".
-spec metrics(endpoints()) -> [binary()].
metrics(Endpoints) -> [Url || #{metrics := Url} <- facts(Endpoints)].

-doc "Returns the numbers of the nodes' processes in the operating system.".
-spec os_pids(endpoints()) -> [pos_integer()].
os_pids(Endpoints) -> [OsPid || #{os_pid := OsPid} <- facts(Endpoints)].

facts(#{nodes := Nodes}) -> [erlmcp_bench_scenario_node:facts(Node) || Node <- Nodes].

-doc """
Adds latency, in milliseconds, for the clients that connect through the proxy. The scenario must
have such a fault. `{not_run, Reason}` means that the proxy could not be started.
""".
-spec add_latency(endpoints(), Milliseconds :: pos_integer()) -> ok | {not_run, term()}.
add_latency(#{proxy := {not_run, Reason}}, _) ->
    {not_run, Reason};
add_latency(#{proxy := {Toxiproxy, Names}}, Milliseconds) ->
    lists:foreach(fun(Name) ->
        ok = erlmcp_chaos_toxiproxy:add(Toxiproxy, Name, {latency, Milliseconds})
    end, Names).

-doc "Removes the latency that `add_latency/2` added.".
-spec remove_latency(endpoints()) -> ok.
remove_latency(#{proxy := {not_run, _}}) ->
    ok;
remove_latency(#{proxy := {Toxiproxy, Names}}) ->
    lists:foreach(fun(Name) -> ok = erlmcp_chaos_toxiproxy:remove(Toxiproxy, Name) end, Names).

-doc """
Closes `Count` connections of the crowd, evenly over the nodes. Returns how many have ended by that.
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
