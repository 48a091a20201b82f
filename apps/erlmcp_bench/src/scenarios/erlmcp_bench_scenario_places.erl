-module(erlmcp_bench_scenario_places).
-moduledoc """
The places that the clients of a scenario connect to. They are servers in nodes of their own, or
URLs of other servers. Where a fault needs it, half of the clients connect through a proxy. A single
process calls these functions, and the nodes and the proxy end with it.
""".

-export([open/2, close/1, clients/1, crowd/1, nodes/1, metrics/1, os_pids/1]).
-export([add_latency/2, remove_latency/1, drop/2, kill/1]).

-export_type([places/0, place/0]).

-doc "The members of a plan of `m:erlmcp_load` for a target.".
-type place() :: #{target := term(), protocol => http1 | http2}.
-opaque places() :: #{
    nodes := [pid()], clients := [place()], crowd := [place()],
    proxy := none | {not_run, Reason :: term()}
             | {erlmcp_chaos_toxiproxy:toxiproxy(), [erlmcp_chaos_toxiproxy:proxy()]}
}.

-doc """
Opens the places of a scenario with the given options, see `t:erlmcp_bench_scenario:options/0`.
""".
-spec open(erlmcp_bench_scenarios:scenario(), map()) -> {ok, places()} | {error, term()}.
open(_, #{urls := Urls, transport := Transport}) ->
    {ok, #{nodes => [], crowd => [], proxy => none,
           clients => [#{target => {http, Url}, protocol => Transport} || Url <- Urls]}};
open(Scenario, #{nodes := Count} = Options) ->
    maybe
        {ok, Nodes} ?= started(lists:seq(1, Count), Options, []),
        Facts = [erlmcp_bench_scenario_node:facts(Node) || Node <- Nodes],
        Direct = [place(Address, Options) || #{clients := Address} <- Facts],
        {Proxy, Proxied} = proxied(Scenario, Facts, Options),
        {ok, #{nodes => Nodes, proxy => Proxy, clients => Direct ++ Proxied,
               crowd => [place(Address, Options) || #{crowd := Address} <- Facts]}}
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

place(#{ip := Ip, port := Port}, #{transport := tcp}) ->
    #{target => {tcp, Ip, Port}};
place(#{ip := Ip, port := Port, url := Url}, #{transport := Transport}) ->
    There = (uri_string:parse(Url))#{host := list_to_binary(inet:ntoa(Ip)), port := Port},
    #{target => {http, uri_string:recompose(There)}, protocol => Transport}.

%% Without the proxy's program only that fault is not injected.
proxied(#{faults := Faults}, Facts, Options) ->
    case lists:keymember(add_latency, 1, Faults) of
        true ->
            case erlmcp_chaos_toxiproxy:start() of
                {ok, Toxiproxy} ->
                    {Names, Places} = lists:unzip([proxy(Toxiproxy, Address, Options)
                                                   || #{clients := Address} <- Facts]),
                    {{Toxiproxy, Names}, Places};
                {error, Reason} ->
                    {{not_run, Reason}, []}
            end;
        false ->
            {none, []}
    end.

proxy(Toxiproxy, #{ip := Ip, port := Port} = Address, Options) ->
    {ok, Name, {ProxyIp, ProxyPort}} = erlmcp_chaos_toxiproxy:proxy(Toxiproxy, {Ip, Port}),
    {Name, place(Address#{ip := ProxyIp, port := ProxyPort}, Options)}.

-doc "Closes all places.".
-spec close(places()) -> ok.
close(#{nodes := Nodes, proxy := Proxy}) ->
    _ = [erlmcp_chaos_toxiproxy:stop(Toxiproxy) || {Toxiproxy, [_ | _]} <- [Proxy]],
    lists:foreach(fun erlmcp_bench_scenario_node:stop/1, Nodes).

-doc "Returns the places for clients.".
-spec clients(places()) -> [place()].
clients(#{clients := Clients}) -> Clients.

-doc "Returns the places for the crowd.".
-spec crowd(places()) -> [place()].
crowd(#{crowd := Crowd}) -> Crowd.

-doc "Returns the number of nodes that were started.".
-spec nodes(places()) -> non_neg_integer().
nodes(#{nodes := Nodes}) -> length(Nodes).

-doc "Returns the URLs of the nodes' metrics.".
-spec metrics(places()) -> [binary()].
metrics(Places) -> [Url || #{metrics := Url} <- facts(Places)].

-doc "Returns the process numbers of the nodes.".
-spec os_pids(places()) -> [pos_integer()].
os_pids(Places) -> [OsPid || #{os_pid := OsPid} <- facts(Places)].

facts(#{nodes := Nodes}) -> [erlmcp_bench_scenario_node:facts(Node) || Node <- Nodes].

-doc "Adds latency, in milliseconds, for the clients that connect through a proxy.".
-spec add_latency(places(), Milliseconds :: pos_integer()) -> ok | {not_run, term()}.
add_latency(#{proxy := {not_run, Reason}}, _) ->
    {not_run, Reason};
add_latency(#{proxy := {Toxiproxy, Names}}, Milliseconds) ->
    lists:foreach(fun(Name) ->
        ok = erlmcp_chaos_toxiproxy:add(Toxiproxy, Name, {latency, Milliseconds})
    end, Names).

-doc "Removes the latency.".
-spec remove_latency(places()) -> ok.
remove_latency(#{proxy := {not_run, _}}) ->
    ok;
remove_latency(#{proxy := {Toxiproxy, Names}}) ->
    lists:foreach(fun(Name) -> ok = erlmcp_chaos_toxiproxy:remove(Toxiproxy, Name) end, Names).

-doc """
Closes `Count` connections of the crowd, evenly over the nodes. Returns how many have ended.
""".
-spec drop(places(), pos_integer()) -> Dropped :: non_neg_integer().
drop(#{nodes := Nodes}, Count) ->
    round(lists:sum([erlmcp_bench_scenario_node:drop(Node, Part)
                     || {Node, Part} <- erlmcp_bench_scenario_plan:split(Count, Nodes)])).

-doc "Kills the last node, which is then started again. Returns `true` if its end was seen.".
-spec kill(places()) -> boolean().
kill(#{nodes := Nodes}) ->
    erlmcp_bench_scenario_node:kill(lists:last(Nodes)).
