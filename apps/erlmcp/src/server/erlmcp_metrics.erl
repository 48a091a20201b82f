-module(erlmcp_metrics).
-moduledoc """
The figures of a running server, read from its meter, its gate and its tables without asking a
process. Everything that shows figures is computed from this one map.

Internal.
""".

-export([report/1, tools/1, name/1]).

-doc "Returns the figures of a server.".
-spec report(erlmcp_instance:instance()) -> erlmcp:metrics().
report(#{key := Key, gate := Gate, meter := Meter, started_ms := Started} = Instance) ->
    {Requests, Faults} = erlmcp_meter:totals(Meter),
    Lasting = erlmcp_meter:lasting(Meter),
    Failures = failures(Meter),
    Rows = [{Family, Row, counts(Row, Failures, Meter)}
            || {Family, Row} <- erlmcp_meter:used_rows(Meter)],
    Names = names(Instance),
    #{server => erlmcp_log:server(Key), name => name(Key), state => state(Gate),
      at_ms => erlang:system_time(millisecond), started_ms => Started,
      requests => Requests, faults => Faults, refusals => refusals(Failures),
      methods => methods(Rows, Failures, Meter),
      tools => definitions(tool, Rows, Names), prompts => definitions(prompt, Rows, Names),
      resources => definitions(resource, Rows, Names),
      sessions => sessions(Lasting, Instance), streams => streams(Lasting),
      connections => erlmcp_gate:held(Gate, connections),
      in_flight => erlmcp_gate:held(Gate, in_flight),
      waiting => erlmcp_gate:held(Gate, waiting),
      tasks => #{running => erlmcp_tasks:running(Instance)},
      cache => erlmcp_result_cache:info(Instance), bounds => bounds(Instance)}.

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

%% The counts of a row: those with a result, and the failures by their errors.

failures(Meter) ->
    lists:foldl(fun({Row, Error, Sum, Counts}, Known) ->
        Known#{Row => (maps:get(Row, Known, #{}))#{Error => {Sum, Counts}}}
    end, #{}, erlmcp_meter:failures(Meter)).

counts(Row, Failures, Meter) ->
    {erlmcp_meter:read(Row, Meter), maps:get(Row, Failures, #{})}.

sum({One, Failed}, {Other, OtherFailed}) ->
    #{bytes_in := In, bytes_out := Out, sum := Sum, counts := Counts} = One,
    #{bytes_in := MoreIn, bytes_out := MoreOut, sum := MoreSum, counts := MoreCounts} = Other,
    {#{bytes_in => In + MoreIn, bytes_out => Out + MoreOut, sum => Sum + MoreSum,
       counts => erlmcp_histogram:sum(Counts, MoreCounts)},
     maps:merge_with(fun(_, {S, C}, {MoreS, MoreC}) ->
                         {S + MoreS, erlmcp_histogram:sum(C, MoreC)}
                     end, Failed, OtherFailed)}.

row({#{bytes_in := In, bytes_out := Out, sum := Sum, counts := Counts}, Failed}) ->
    #{count := Answered} = Latency = erlmcp_histogram:fine(Sum, Counts),
    Failures = [#{error => Error, latency => erlmcp_histogram:coarse(Time, Buckets)}
                || Error := {Time, Buckets} <- maps:iterator(Failed, ordered)],
    Of = fun(Wanted) ->
        lists:sum([Count || #{error := Error, latency := #{count := Count}} <- Failures,
                            Wanted(Error)])
    end,
    Errors = Of(fun(Error) -> Error =:= tool_error end),
    Cancelled = Of(fun(Error) -> Error =:= cancelled end),
    Refusals = Of(fun(Error) -> Error =/= tool_error andalso Error =/= cancelled end),
    #{count => Answered + Errors + Cancelled + Refusals, errors => Errors, refusals => Refusals,
      cancelled => Cancelled, bytes_in => In, bytes_out => Out, latency => Latency,
      failures => Failures}.

refusals(Failures) ->
    Numbers = #{Name => Number || #{name := Name, number := Number} <- erlmcp_refusal:table()},
    maps:fold(fun(_, Failed, Known) ->
        maps:fold(fun(Error, {_, Counts}, Codes) ->
            case Numbers of
                #{Error := Code} ->
                    Codes#{Code => lists:sum(Counts) + maps:get(Code, Codes, 0)};
                #{} ->
                    Codes
            end
        end, Known, Failed)
    end, #{}, Failures).

methods(Rows, Failures, Meter) ->
    All = [{Method, row(lists:foldl(fun sum/2, counts(Row, Failures, Meter),
                                    of_method(Method, Rows)))}
           || {Method, Row} <- erlmcp_meter:methods()],
    #{Method => Row || {Method, #{count := Count} = Row} <- All, Count > 0}.

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
    Other = row(lists:foldl(fun sum/2, element(3, hd(Others)),
                            [Counts || {_, _, Counts} <- tl(Others)])),
    [(row(Counts))#{name => map_get(Row, Names)} || {_, Row, Counts} <- Named]
        ++ [Other#{name => other} || map_get(count, Other) > 0].

names(#{meter := Meter, key := Key}) ->
    Shared = lists:sublist(erlmcp_meter:used_rows(Meter), 3),
    case erlmcp_published_catalog:find(Key) of
        {ok, Catalog} ->
            #{Row => Name || {Name, Row} <- erlmcp_catalog:rows(Catalog),
                             not lists:keymember(Row, 2, Shared)};
        error ->
            #{}
    end.

sessions(#{sessions_opened := Opened, sessions_ended := Ended, durations := Durations},
         Instance) ->
    #{open => erlmcp_session_table:count(Instance), opened => Opened, ended => Ended,
      durations => [#{network => Network, revision => Revision,
                      duration => erlmcp_histogram:coarse(Sum, Counts)}
                    || {Network, Revision, Sum, Counts} <- Durations, lists:sum(Counts) > 0]}.

streams(#{streams_opened := Opened, streams_ended := Ended}) ->
    #{open => Opened - Ended, opened => Opened}.

bounds(#{gate := Gate, limits := Limits} = Instance) ->
    #{connections := Connections, sessions := Sessions, queue := Queue, tasks := Tasks} = Limits,
    #{connections => #{used => erlmcp_gate:held(Gate, connections), limit => Connections},
      in_flight => #{used => erlmcp_gate:held(Gate, in_flight), limit => erlmcp_gate:limit(Gate)},
      waiting => #{used => erlmcp_gate:held(Gate, waiting), limit => Queue},
      sessions => #{used => erlmcp_session_table:count(Instance), limit => Sessions},
      tasks => #{used => erlmcp_tasks:running(Instance), limit => Tasks}}.
