-module(erlmcp_metrics).
-moduledoc """
The figures of a running server, read from its meter, its gate and its tables without asking a
process. Everything that shows figures is computed from this one map.

Internal.
""".

-export([of_running/2, report/1, in_cluster/1, tools/1, name/1]).

-doc """
Returns the figures of a server in a list, which is empty if the server with this supervisor has
ended meanwhile: its tables have no figures any more.
""".
-spec of_running(Supervisor :: pid(), erlmcp_instance:instance()) -> [erlmcp:metrics()].
of_running(Supervisor, Instance) ->
    [Report || Report <- [report(Instance)], is_process_alive(Supervisor)].

-doc "Returns the figures of a server.".
-spec report(erlmcp_instance:instance()) -> erlmcp:metrics().
report(#{key := Key, gate := Gate, meter := Meter, started_ms := Started} = Instance) ->
    {Requests, Faults} = erlmcp_meter:totals(Meter),
    Lasting = erlmcp_meter:lasting(Meter),
    Failures = failures(Meter),
    Rows = [{Family, Row, counts(Row, Failures, Meter)}
            || {Family, Row} <- erlmcp_meter:used_rows(Meter)],
    Names = names(Instance),
    (cluster(Instance))#{
      server => erlmcp_log:server(Key), name => name(Key), state => state(Gate),
      at_ms => erlang:system_time(millisecond), started_ms => Started,
      requests => Requests, faults => Faults, refusals => refusals(Failures),
      methods => methods(Rows, Failures, Meter),
      tools => definitions(tool, Rows, Names), prompts => definitions(prompt, Rows, Names),
      resources => definitions(resource, Rows, Names),
      sessions => sessions(Lasting, Instance), streams => streams(Lasting),
      connections => erlmcp_gate:held(Gate, connections),
      refused_connections => refused_connections(Meter),
      in_flight => erlmcp_gate:held(Gate, in_flight),
      waiting => erlmcp_gate:held(Gate, waiting),
      tasks => #{running => erlmcp_tasks:running(Instance)},
      cache => erlmcp_result_cache:info(Instance),
      bounds => erlmcp_forecaster:add_forecasts(Key, erlmcp_bounds:of_server(Instance))}.

cluster(#{cluster := none}) ->
    #{};
cluster(#{cluster := {Module, State}} = Instance) ->
    Own = maps:remove(sessions, in_cluster(Instance)),
    #{cluster => maps:merge(Own, Module:overview(State))}.

-doc "Returns the figures of a server that other nodes of its cluster show.".
-spec in_cluster(erlmcp_instance:instance()) ->
    #{sessions | forwarded | inherited => non_neg_integer()}.
in_cluster(#{meter := Meter} = Instance) ->
    (erlmcp_meter:in_cluster(Meter))#{sessions => erlmcp_session_table:count(Instance)}.

-doc "Returns the name of the server with the key `Key`. A server that has ended has an empty one.".
-spec name(Key :: reference()) -> binary().
name(Key) ->
    case erlmcp_published_catalog:find(Key) of
        {ok, Catalog} -> erlmcp_catalog:name(Catalog);
        error -> ~""
    end.

state(Gate) ->
    case erlmcp_gate:state(Gate) of
        open -> open;
        {refuse, Refusal} -> erlmcp_refusal:name(Refusal)
    end.

-doc "Returns the figures of each tool, for `erlmcp:info/1`.".
-spec tools(erlmcp_instance:instance()) -> #{binary() | other => erlmcp:tool_info()}.
tools(#{meter := Meter} = Instance) ->
    Failures = failures(Meter),
    Rows = [{tool, Row, counts(Row, Failures, Meter)}
            || {tool, Row} <- erlmcp_meter:used_rows(Meter)],
    #{Name => #{count => Count, errors => Errors, refusals => Refusals,
                p50_us => P50, p95_us => P95, p99_us => P99}
      || #{name := Name, count := Count, errors := Errors, refusals := Refusals,
           latency := #{p50_us := P50, p95_us := P95, p99_us := P99}}
             <- definitions(tool, Rows, names(Instance))}.

%% The failures of each row by their errors and codes.
failures(Meter) ->
    lists:foldl(fun({Row, Error, Code, Times}, Known) ->
        Known#{Row => (maps:get(Row, Known, #{}))#{{Error, Code} => Times}}
    end, #{}, erlmcp_meter:failures(Meter)).

counts(Row, Failures, Meter) ->
    {erlmcp_meter:read(Row, Meter), maps:get(Row, Failures, #{})}.

refusals(Failures) ->
    Numbers = #{Name => Number || #{name := Name, number := Number} <- erlmcp_refusal:table()},
    maps:fold(fun(_, Failed, Known) ->
        maps:fold(fun({Error, _}, {_, Counts}, Codes) ->
            case Numbers of
                #{Error := Number} ->
                    Codes#{Number => lists:sum(Counts) + maps:get(Number, Codes, 0)};
                #{} ->
                    Codes
            end
        end, Known, Failed)
    end, #{}, Failures).

methods(Rows, Failures, Meter) ->
    All = [{Method, figures([counts(Row, Failures, Meter) | of_method(Method, Rows)])}
           || {Method, Row} <- erlmcp_meter:methods()],
    #{Method => Row || {Method, #{count := Count} = Row} <- All, Count > 0}.

figures(Counted) ->
    erlmcp_request_figures:row(erlmcp_request_figures:sum(Counted)).

of_method(~"tools/call", Rows) -> of_family(tool, Rows);
of_method(~"prompts/get", Rows) -> of_family(prompt, Rows);
of_method(~"resources/read", Rows) -> of_family(resource, Rows);
of_method(_, _) -> [].

of_family(Family, Rows) ->
    [Counts || {Of, _, Counts} <- Rows, Of =:= Family].

%% The published definitions with rows of their own. The others of a family, and those that were
%% removed, are counted together.
definitions(Family, Rows, Names) ->
    {Named, Others} = lists:partition(fun({_, Row, _}) -> is_map_key(Row, Names) end,
                                      [Row || {Of, _, _} = Row <- Rows, Of =:= Family]),
    Other = figures([Counts || {_, _, Counts} <- Others]),
    [(figures([Counts]))#{name => map_get(Row, Names)} || {_, Row, Counts} <- Named]
        ++ [Other#{name => other} || map_get(count, Other) > 0].

names(#{meter := Meter, key := Key}) ->
    Shared = lists:sublist(erlmcp_meter:used_rows(Meter), 3),
    case erlmcp_published_catalog:find(Key) of
        {ok, Catalog} ->
            #{Row => Name || {Name, Row} <- erlmcp_catalog:values(row, Catalog),
                             not lists:keymember(Row, 2, Shared)};
        error ->
            #{}
    end.

sessions(#{sessions_opened := Opened, sessions_ended := Ended, durations := Durations},
         Instance) ->
    #{open => erlmcp_session_table:count(Instance), opened => Opened, ended => Ended,
      durations => [#{network => Network, revision => Revision,
                      duration => erlmcp_histogram:coarse(Sum, Counts)}
                    || {Network, Revision, {Sum, Counts}} <- Durations, lists:sum(Counts) > 0]}.

refused_connections(Meter) ->
    [#{listener => Listener, refusal => Name, number => Number, count => Count}
     || {Listener, #{name := Name, number := Number}, Count}
            <- erlmcp_meter:refused_connections(Meter)].

streams(#{streams_opened := Opened, streams_ended := Ended}) ->
    #{open => Opened - Ended, opened => Opened}.
