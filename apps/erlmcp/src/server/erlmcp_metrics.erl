-module(erlmcp_metrics).
-moduledoc """
The figures of a running server, read from its meter, its gate and its tables. `erlmcp:metrics/1`,
`m:erlmcp_prometheus` and `m:erlmcp_operator` all use the map of `report/1`.

Internal.
""".

-export([of_running/2, report/1, in_cluster/1, tools/1, name/1]).

-doc """
Returns a list with the figures of a server. The list is empty if the supervisor has ended.
""".
-spec of_running(Supervisor :: pid(), erlmcp_instance:instance()) -> [erlmcp:metrics()].
of_running(Supervisor, Instance) ->
    [Report || Report <- [report(Instance)], is_process_alive(Supervisor)].

-doc """
Returns the figures of a running server. If the server has ended, the figures are not valid, so the
caller must check afterwards that the server still runs.
""".
-spec report(erlmcp_instance:instance()) -> erlmcp:metrics().
report(#{key := Key, gate := Gate, meter := Meter, started_ms := Started} = Instance) ->
    {Requests, Faults} = erlmcp_meter:totals(Meter),
    Lasting = erlmcp_meter:lasting(Meter),
    {Failures, Rows} = counted([tool, prompt, resource], Meter),
    Names = names(Instance),
    (cluster(Instance))#{
      server => erlmcp_log:server(Key), name => name(Key), state => state(Gate),
      at_ms => erlang:system_time(millisecond), started_ms => Started,
      requests => Requests, faults => Faults, refusals => refusals(Failures),
      methods => methods(Rows, Failures, Meter),
      tools => definitions(tool, Rows, Names), prompts => definitions(prompt, Rows, Names),
      resources => definitions(resource, Rows, Names),
      removed => #{tools => removed(tool, Rows, Names), prompts => removed(prompt, Rows, Names),
                   resources => removed(resource, Rows, Names)},
      sessions => sessions(Lasting, Instance), streams => streams(Lasting, Gate),
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

-doc """
Returns the figures of this node that all nodes of a server's cluster show: the numbers of open
`sessions`, of requests that were passed on (`forwarded`), and of `inherited` sessions.
""".
-spec in_cluster(erlmcp_instance:instance()) ->
    #{sessions | forwarded | inherited => non_neg_integer()}.
in_cluster(#{meter := Meter} = Instance) ->
    (erlmcp_meter:in_cluster(Meter))#{sessions => erlmcp_session_table:count(Instance)}.

-doc "Returns the name of the server with the key `Key`, or an empty one if the server has ended.".
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

-doc """
Returns the figures of each tool in the catalog for which the meter keeps separate figures. If
further tools were called, `other` has the figures of all of these together. Removed tools are left
out.
""".
-spec tools(erlmcp_instance:instance()) -> #{binary() | other => erlmcp:tool_info()}.
tools(#{meter := Meter} = Instance) ->
    {_, Rows} = counted([tool], Meter),
    #{Name => #{count => Count, errors => Errors, refusals => Refusals,
                p50_us => P50, p95_us => P95, p99_us => P99}
      || #{name := Name, count := Count, errors := Errors, refusals := Refusals,
           latency := #{p50_us := P50, p95_us := P95, p99_us := P99}}
             <- definitions(tool, Rows, names(Instance))}.

%% All failures, and the rows of some families with their counts.
counted(Families, Meter) ->
    erlmcp_meter:steady(Meter, fun() ->
        Failures = erlmcp_request_figures:failures(erlmcp_meter:failures(Meter)),
        {Failures, [{Family, Whose, Row, counts(Row, Failures, Meter)}
                    || {Family, Whose, Row} <- erlmcp_meter:used_rows(Meter),
                       lists:member(Family, Families)]}
    end).

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
    [Counts || {Of, _, _, Counts} <- Rows, Of =:= Family].

%% The published definitions with rows of their own, and all others of a family.
definitions(Family, Rows, Names) ->
    [(figures([Counts]))#{name => map_get(Row, Names)}
     || {Of, own, Row, Counts} <- Rows, Of =:= Family, maps:is_key(Row, Names)]
        ++ [Other#{name => other} || {Of, other, _, Counts} <- Rows, Of =:= Family,
                                     #{count := Count} = Other <- [figures([Counts])], Count > 0].

%% A removed definition may still have its row.
removed(Family, Rows, Names) ->
    figures([Counts || {Of, Whose, Row, Counts} <- Rows, Of =:= Family, Whose =/= other,
                       not maps:is_key(Row, Names)]).

names(#{key := Key}) ->
    case erlmcp_published_catalog:find(Key) of
        {ok, Catalog} ->
            #{Row => Name || {Name, Row} <- erlmcp_catalog:values(row, Catalog),
                             erlmcp_meter:has_own_row(Row)};
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

streams(#{streams_opened := Opened}, Gate) ->
    #{open => erlmcp_gate:held(Gate, streams), opened => Opened}.
