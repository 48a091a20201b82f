-module(erlmcp_prometheus).
-moduledoc """
The figures of all servers and clients of this node for Prometheus. The module is a collector of the
library `prometheus`, and reads the meters at each scrape. The module is also the page that shows
the library's default registry.

The option `metrics => true` of a listener adds the page at `/metrics`. A project that uses it adds
the library to its dependencies:

```erlang
{deps, [{erlmcp, "0.1.0"}, {prometheus, "6.1.1"}]}.
```

A program with an exposition of its own registers the collector there:
`prometheus_registry:register_collector(erlmcp_prometheus)`.
""".

-behaviour(prometheus_collector).
-behaviour(erlmcp_page).

-export([families/0]).
-export([deregister_cleanup/1, collect_mf/2]).
-export([handle/2]).

-export_type([family/0]).

-doc "A family of metrics: its name, its type, its labels, and its description.".
-type family() :: {Name :: atom(), counter | gauge | histogram, Labels :: [atom()],
                   Help :: binary()}.

%% The attributes of requests, as OpenTelemetry names them.
-define(TARGET, [gen_ai_operation_name, gen_ai_tool_name, gen_ai_prompt_name]).
-define(ERROR, [error_type, rpc_response_status_code]).
-define(UPSTREAM, [server_address, server_port, network_transport, mcp_protocol_version]).

-doc """
Returns the families of metrics about servers, about clients and about the node. A histogram whose
name ends with `_ms` has seven buckets for each power of ten. The other histograms have the buckets
of OpenTelemetry.
""".
-spec families() -> [family()].
families() ->
    server_families() ++ client_families() ++ node_families().

server_families() ->
    [{mcp_server_requests_total, counter, [server, mcp_method_name, outcome],
      ~"Requests that have ended, by method and outcome."},
     {mcp_server_faults_total, counter, [server],
      ~"Requests that were refused by the server's own fault."},
     {mcp_server_refusals_total, counter, [server, code, name], ~"Requests by their refusals."},
     {mcp_server_request_bytes_total, counter, [server, mcp_method_name],
      ~"Bytes of messages with requests."},
     {mcp_server_response_bytes_total, counter, [server, mcp_method_name], ~"Bytes of answers."},
     {mcp_server_processing_duration_ms, histogram, [server, mcp_method_name],
      ~"Milliseconds from the arrival of a request to its result, in fine buckets."},
     {mcp_server_operation_duration_seconds, histogram,
      [server, mcp_method_name] ++ ?TARGET ++ ?ERROR,
      ~"Seconds from the arrival of a request to its answer."},
     {mcp_server_session_duration_seconds, histogram,
      [server, mcp_protocol_version, network_transport], ~"Seconds of sessions that have ended."},
     {mcp_server_sessions_opened_total, counter, [server], ~"Sessions that were opened."},
     {mcp_server_connections_refused_total, counter, [server, listener, code, name],
      ~"Connections that were refused when they opened."},
     {mcp_server_connection_active, gauge, [server], ~"Open connections."},
     {mcp_server_message_queue_length, gauge, [server], ~"Requests that wait for their turn."},
     {mcp_server_requests_active, gauge, [server], ~"Requests that run."},
     {mcp_server_sessions_active, gauge, [server], ~"Open sessions of HTTP."},
     {mcp_server_streams_active, gauge, [server], ~"Open streams of HTTP responses."},
     {mcp_server_tasks_active, gauge, [server], ~"Tasks that run."},
     {mcp_cluster_lease_seconds, gauge, [server],
      ~"Seconds for which the node's place in the cluster is certain; 0 if it is not."},
     {mcp_cluster_nodes, gauge, [server, state], ~"Nodes of the cluster, by their state."},
     {mcp_cluster_majority, gauge, [server], ~"Nodes that make a majority."},
     {mcp_cluster_requests_forwarded_total, counter, [server],
      ~"Requests that were passed on to the homes of their sessions."},
     {mcp_cluster_sessions_inherited_total, counter, [server],
      ~"Sessions that had another home before."},
     {mcp_server_bound_used, gauge, [server, bound], ~"What is used of a bound."},
     {mcp_server_bound_limit, gauge, [server, bound], ~"The limit of a bound."},
     {mcp_server_bound_forecast_seconds, gauge, [server, bound],
      ~"Seconds until a bound is met, if the trend of the last hour goes on."}].

client_families() ->
    [{mcp_client_requests_total, counter, ?UPSTREAM ++ [mcp_method_name, outcome],
      ~"Requests of clients that have ended, by method and outcome."},
     {mcp_client_request_bytes_total, counter, ?UPSTREAM ++ [mcp_method_name],
      ~"Bytes of messages with requests of clients."},
     {mcp_client_response_bytes_total, counter, ?UPSTREAM ++ [mcp_method_name],
      ~"Bytes of messages that have come for requests of clients."},
     {mcp_client_processing_duration_ms, histogram, ?UPSTREAM ++ [mcp_method_name],
      ~"Milliseconds from the sending of a request to its result, in fine buckets."},
     {mcp_client_operation_duration_seconds, histogram,
      ?UPSTREAM ++ [mcp_method_name] ++ ?TARGET ++ ?ERROR,
      ~"Seconds from the sending of a request to its end."},
     {mcp_client_session_duration_seconds, histogram, ?UPSTREAM,
      ~"Seconds of clients' sessions that have ended."},
     {mcp_client_sessions_opened_total, counter, ?UPSTREAM,
      ~"Sessions that clients have opened."},
     {mcp_client_sessions_active, gauge, ?UPSTREAM, ~"Open sessions of clients."},
     {mcp_client_clients_active, gauge, ?UPSTREAM, ~"Clients that run."},
     {mcp_client_requests_active, gauge, ?UPSTREAM, ~"Calls of clients that run."},
     {mcp_client_connection_active, gauge, ?UPSTREAM, ~"Open connections of clients."},
     {mcp_client_message_queue_length, gauge, ?UPSTREAM,
      ~"Requests of clients that wait for a connection."}].

node_families() ->
    [{mcp_node_memory_used_bytes, gauge, [], ~"Bytes that count for the bound of the memory."},
     {mcp_node_memory_limit_bytes, gauge, [], ~"Bytes from which on requests are refused."},
     {mcp_node_bound_forecast_seconds, gauge, [bound],
      ~"Seconds until a bound of the node is met, if the trend of the last hour goes on."}].

-doc false.
deregister_cleanup(_) ->
    ok.

-doc false.
collect_mf(_, Callback) ->
    Running = [Metrics || {_, Pid, Instance} <- erlmcp_registry:servers(),
                          Metrics <- erlmcp_metrics:of_running(Pid, Instance)],
    Servers = [{[{server, Server}], Metrics} || {Server, Metrics} <- labelled(Running)],
    Clients = [{upstream(Metrics), Metrics} || Metrics <- erlmcp_client:metrics()],
    Node = [{[], erlmcp_forecaster:add_forecasts(node, erlmcp_bounds:of_node())}],
    lists:foreach(fun({Families, Read, Sources}) ->
        [collect(Family, Read, Sources, Callback) || Family <- Families]
    end, [{server_families(), fun server/2, Servers}, {client_families(), fun client/2, Clients},
          {node_families(), fun of_node/2, Node}]).

collect({Name, Type, _, Help}, Read, Sources, Callback) ->
    case [metric(Type, Common ++ Labels, Value)
          || {Common, Figures} <- Sources, {Labels, Value} <- Read(Name, Figures)] of
        [] -> ok;
        Metrics -> Callback(prometheus_model_helpers:create_mf(Name, Help, Type, Metrics))
    end.

-doc false.
handle(#{method := ~"POST"}, _) ->
    {405, #{~"allow" => ~"GET, HEAD"}, ~""};
handle(#{below := ~""}, _) ->
    ok = prometheus_registry:register_collector(?MODULE),
    {200, #{~"content-type" => prometheus_text_format:content_type()},
     prometheus_text_format:format()};
handle(_, _) ->
    {404, #{}, ~""}.

%% Each server has a label of its own, so that no series is there twice.
labelled(All) ->
    Sorted = lists:sort(fun(#{started_ms := One}, #{started_ms := Other}) -> One =< Other end, All),
    {Labelled, _} = lists:mapfoldl(fun(#{server := Id, name := Name} = Metrics, Known) ->
        Text = case Id of
            _ when is_reference(Id) -> Name;
            _ when is_binary(Id) -> printable(Id);
            _ -> printable(unicode:characters_to_binary(io_lib:format("~0tp", [Id])))
        end,
        {Label, Count} = free(Text, maps:get(Text, Known, 0) + 1, Known),
        {{Label, Metrics}, maps:merge(Known, #{Label => 1, Text => Count})}
    end, #{}, Sorted),
    Labelled.

%% A server may have the name that another one would get.
free(Text, Count, Known) ->
    Label = case Count of
        1 -> Text;
        _ -> <<Text/binary, "-", (integer_to_binary(Count))/binary>>
    end,
    case Known of
        #{Label := _} -> free(Text, Count + 1, Known);
        #{} -> {Label, Count}
    end.

printable(Text) ->
    case unicode:characters_to_binary(Text) of
        Same when is_binary(Same) -> string:slice(Same, 0, 100);
        _ -> ~"server"
    end.

metric(counter, Labels, Value) -> prometheus_model_helpers:counter_metric(Labels, Value);
metric(gauge, Labels, Value) -> prometheus_model_helpers:gauge_metric(Labels, Value);
metric(histogram, Labels, {Buckets, Count, Sum}) ->
    prometheus_model_helpers:histogram_metric(Labels, Buckets, Count, Sum).

%% The labels that all figures of a server's clients have.
upstream(#{server := Server, port := Port, network := Network, revision := Revision}) ->
    [{server_address, name(Server)}]
        ++ [{Label, Value} || {Label, Value} <- [{server_port, Port}, {network_transport, Network},
                                                 {mcp_protocol_version, Revision}],
                              Value =/= none].

server(mcp_server_requests_total, Metrics) ->
    requests(refused, Metrics);
server(mcp_server_faults_total, #{faults := Faults}) ->
    [{[], Faults}];
server(mcp_server_refusals_total, #{refusals := Refusals}) ->
    [{[{code, Code}, {name, Name}], Count}
     || #{number := Code, name := Name} <- erlmcp_refusal:table(), #{Code := Count} <- [Refusals]];
server(mcp_server_request_bytes_total, Metrics) ->
    bytes(bytes_in, Metrics);
server(mcp_server_response_bytes_total, Metrics) ->
    bytes(bytes_out, Metrics);
server(mcp_server_processing_duration_ms, Metrics) ->
    processing(Metrics);
server(mcp_server_operation_duration_seconds, Metrics) ->
    operations(fun(#{error := Error}) -> Error end, Metrics);
server(mcp_server_session_duration_seconds, #{sessions := #{durations := Durations}}) ->
    [{[{mcp_protocol_version, Revision}, {network_transport, Network}], seconds(Duration)}
     || #{revision := Revision, network := Network, duration := Duration} <- Durations];
server(mcp_server_sessions_opened_total, #{sessions := #{opened := Opened}}) -> [{[], Opened}];
server(mcp_server_connections_refused_total, #{refused_connections := Refused}) ->
    [{[{listener, Listener}, {code, Code}, {name, Name}], Count}
     || #{listener := Listener, number := Code, refusal := Name, count := Count} <- Refused];
server(mcp_server_connection_active, #{connections := Count}) -> [{[], Count}];
server(mcp_server_message_queue_length, #{waiting := Count}) -> [{[], Count}];
server(mcp_server_requests_active, #{in_flight := Count}) -> [{[], Count}];
server(mcp_server_sessions_active, #{sessions := #{open := Count}}) -> [{[], Count}];
server(mcp_server_streams_active, #{streams := #{open := Count}}) -> [{[], Count}];
server(mcp_server_tasks_active, #{tasks := #{running := Count}}) -> [{[], Count}];
server(mcp_cluster_lease_seconds, #{cluster := #{lease_ms := Left}}) -> [{[], Left / 1000}];
server(mcp_cluster_nodes, #{cluster := #{nodes := Nodes}}) ->
    [{[{state, State}], length([Node || #{state := Is} = Node <- Nodes, Is =:= State])}
     || State <- [alive, leaving, dead]];
server(mcp_cluster_majority, #{cluster := #{majority := Count}}) -> [{[], Count}];
server(mcp_cluster_requests_forwarded_total, #{cluster := #{forwarded := Count}}) ->
    [{[], Count}];
server(mcp_cluster_sessions_inherited_total, #{cluster := #{inherited := Count}}) ->
    [{[], Count}];
%% A server without a cluster.
server(Name, _) when
    Name =:= mcp_cluster_lease_seconds; Name =:= mcp_cluster_nodes; Name =:= mcp_cluster_majority;
    Name =:= mcp_cluster_requests_forwarded_total; Name =:= mcp_cluster_sessions_inherited_total
->
    [];
server(mcp_server_bound_used, #{bounds := Bounds}) ->
    [{[{bound, Bound}], Used} || Bound := #{used := Used} <- Bounds];
server(mcp_server_bound_limit, #{bounds := Bounds}) ->
    [{[{bound, Bound}], Limit} || Bound := #{limit := Limit} <- Bounds, Limit =/= infinity];
server(mcp_server_bound_forecast_seconds, #{bounds := Bounds}) ->
    forecasts(Bounds).

client(mcp_client_requests_total, Metrics) ->
    requests(failed, Metrics);
client(mcp_client_request_bytes_total, Metrics) ->
    bytes(bytes_out, Metrics);
client(mcp_client_response_bytes_total, Metrics) ->
    bytes(bytes_in, Metrics);
client(mcp_client_processing_duration_ms, Metrics) ->
    processing(Metrics);
client(mcp_client_operation_duration_seconds, Metrics) ->
    %% "SHOULD be set to the string representation of the JSON-RPC error code."
    operations(fun(#{error := rpc, code := Code}) -> code(Code); (#{error := Error}) -> Error end,
               Metrics);
client(mcp_client_session_duration_seconds, #{sessions := #{ended := 0}}) -> [];
client(mcp_client_session_duration_seconds, #{sessions := #{duration := Duration}}) ->
    [{[], seconds(Duration)}];
client(mcp_client_sessions_opened_total, #{sessions := #{opened := Opened}}) -> [{[], Opened}];
client(mcp_client_sessions_active, #{sessions := #{open := Count}}) -> [{[], Count}];
client(mcp_client_clients_active, #{clients := Count}) -> [{[], Count}];
client(mcp_client_requests_active, #{calls := Count}) -> [{[], Count}];
client(mcp_client_connection_active, #{connections := Count}) -> [{[], Count}];
client(mcp_client_message_queue_length, #{waiting := Count}) -> [{[], Count}].

%% The guard of the memory has no figures before it has looked.
of_node(mcp_node_memory_used_bytes, #{memory := #{used := Used}}) -> [{[], Used}];
of_node(mcp_node_memory_limit_bytes, #{memory := #{limit := Limit}}) -> [{[], Limit}];
of_node(mcp_node_bound_forecast_seconds, Bounds) -> forecasts(Bounds);
of_node(_, _) -> [].

forecasts(Bounds) ->
    Now = erlang:system_time(millisecond),
    [{[{bound, Bound}], max(0, At - Now) / 1000} || Bound := #{forecast := #{at := At}} <- Bounds].

requests(Refused, #{methods := Methods}) ->
    [{[{mcp_method_name, Method}, {outcome, Outcome}], Count}
     || Method := #{errors := Errors, refusals := Refusals, cancelled := Cancelled,
                    latency := #{count := Answered}} <- Methods,
        {Outcome, Count} <- [{ok, Answered}, {tool_error, Errors}, {Refused, Refusals},
                             {cancelled, Cancelled}],
        Outcome =:= ok orelse Count > 0].

bytes(Direction, #{methods := Methods}) ->
    [{[{mcp_method_name, Method}], map_get(Direction, Row)} || Method := Row <- Methods].

processing(#{methods := Methods}) ->
    Bounds = erlmcp_histogram:middle_bounds(),
    [{[{mcp_method_name, Method}], histogram(Latency, Bounds, 1_000_000)}
     || Method := #{latency := #{count := Count} = Latency} <- Methods, Count > 0].

%% `Type` returns the type of a failure's error.
operations(Type, #{methods := Methods, tools := Tools, prompts := Prompts} = Metrics) ->
    Removed = maps:get(removed, Metrics, #{}),
    Rows = [{[{mcp_method_name, Method}], Row}
            || Method := Row <- maps:without([~"tools/call", ~"prompts/get"], Methods)]
        ++ targets(~"tools/call", [{gen_ai_operation_name, execute_tool}], gen_ai_tool_name, Tools,
                   Methods, [Row || tools := Row <- Removed])
        ++ targets(~"prompts/get", [], gen_ai_prompt_name, Prompts, Methods,
                   [Row || prompts := Row <- Removed]),
    [{Labels, seconds(Latency)}
     || {Common, #{latency := Answered, failures := Failures}} <- Rows,
        {Labels, #{count := Count} = Latency}
            <- [{Common, Answered}
                | [{Common ++ [{error_type, Type(Failure)}] ++ status(Failure), Failed}
                   || #{latency := Failed} = Failure <- Failures]],
        Count > 0].

status(#{code := none}) -> [];
status(#{code := Code}) -> [{rpc_response_status_code, code(Code)}].

code(Code) when is_integer(Code) -> Code;
code(_) -> ~"_OTHER".

%% The requests of a method by their targets, and those without one. The series of a removed target
%% has ended.
targets(Method, Common, Label, Targets, Methods, Removed) ->
    Labels = [{mcp_method_name, Method} | Common],
    [{Labels ++ [{Label, name(Name)}], Row} || #{name := Name} = Row <- Targets]
        ++ [{Labels, untargeted(Row, Removed ++ Targets)} || #{Method := Row} <- [Methods]].

name(other) -> ~"_OTHER";
name(Name) -> Name.

%% A request without a target is always refused.
untargeted(#{failures := Failures, latency := Latency}, Targets) ->
    Of = fun(Error, Code) ->
        [Failed || #{failures := Known} <- Targets,
                   #{error := IsError, code := IsCode, latency := Failed} <- Known,
                   IsError =:= Error, IsCode =:= Code]
    end,
    #{latency => Latency#{count := 0},
      failures => [Failure#{latency := lists:foldl(fun minus/2, Failed, Of(Error, Code))}
                   || #{error := Error, code := Code, latency := Failed} = Failure <- Failures]}.

minus(#{count := Count, sum_us := Sum, histogram := Known},
      #{count := All, sum_us := Whole, histogram := Buckets} = Latency) ->
    Latency#{count := All - Count, sum_us := Whole - Sum,
             histogram := [{Bound, Number - proplists:get_value(Bound, Known, 0)}
                           || {Bound, Number} <- Buckets]}.

seconds(Latency) ->
    histogram(Latency, erlmcp_histogram:coarse_bounds(), 1_000_000_000).

%% The counts up to each bound. A bound and the sum are in units of `Unit` nanoseconds.
histogram(#{count := Count, sum_us := Sum, histogram := Buckets}, Bounds, Unit) ->
    {cumulative(Buckets, Bounds, Unit, 0) ++ [{infinity, Count}], Count, 1000 * Sum / Unit}.

cumulative(_, [], _, _) ->
    [];
cumulative(Buckets, [Bound | Bounds], Unit, Before) ->
    {Below, Above} = lists:splitwith(fun({End, _}) -> End =< Bound / 1000 end, Buckets),
    Count = lists:foldl(fun({_, Number}, Sum) -> Sum + Number end, Before, Below),
    [{short(Bound, Unit), Count} | cumulative(Above, Bounds, Unit, Count)].

%% A bound without a fraction is an integer, which is shorter to write.
short(Bound, Unit) when Bound rem Unit =:= 0 -> Bound div Unit;
short(Bound, Unit) -> Bound / Unit.
