-module(erlmcp_console_facts).
-moduledoc """
Finds the facts about a server in its readings, for the causes of the verdict. The last five to ten
seconds tell what happens now, or the last minute if they have too few requests. Pure.
""".

-export([facts/4]).

-export_type([judged/0]).

-doc "Facts that the view has found already.".
-type judged() :: #{
    bounds := [erlmcp_console_causes:bound()],
    open_breakers := [{Name :: binary(), Targets :: [binary()]}],
    pools := [{Name :: binary(), Open :: pos_integer(), Members :: pos_integer()}],
    %% of the last minute
    upstreams := [erlmcp_console_window:row()],
    cluster := erlmcp_console_causes:cluster(),
    processors := float() | undefined, latency_ms := pos_integer()
}.

%% The shortest time in milliseconds of which requests are counted.
-define(RECENT_MS, 4_500).
%% The fewest requests, and the fewest calls of a tool, that tell how a time was. The usual times of
%% a tool need `?LEAST` calls with a time.
-define(LEAST, 20).
-define(LEAST_CALLS, 5).
%% In a flood, requests come at least this many times as often as before.
-define(FLOOD, 4).

-doc """
Returns the facts at a reading. `Earlier` are the readings of the last minute before it, the newest
first, and `Minute` has the figures of that minute.
""".
-spec facts(erlmcp_console_view:reading(), Earlier :: [erlmcp_console_view:reading(), ...],
            Minute :: erlmcp_console_window:window(), judged()) -> erlmcp_console_causes:facts().
facts(#{metrics := Metrics, info := Info, calls := Calls, node := Node} = Reading, Earlier, Minute,
      #{latency_ms := Latency, upstreams := Upstreams} = Judged) ->
    #{metrics := MetricsThen, node := NodeThen} = Then = recent(Reading, Earlier),
    Recent = erlmcp_console_window:between(MetricsThen, Metrics),
    Running = [#{target => Target, age_ms => Age}
               || #{method := ~"tools/call", target := Target, age_ms := Age} <- Calls,
                  is_binary(Target)],
    Tools = tools(Recent, Minute),
    Usual = usual(MetricsThen, [Name || #{name := Name, p95_us := P95} <- Tools,
                                        P95 >= 1000 * Latency]
                                   ++ [Target || #{target := Target} <- Running]),
    #{state := State, error_budget := #{windows := Windows}, mounts := Mounts} = Info,
    #{seconds := Seconds, requests := Requests, refusals := Refusals} =
        telling(requests, ?LEAST, Recent, Minute),
    #{timed := Timed, p95_us := P95OfAll} = latency(Recent, Minute),
    Names = names(),
    Judged#{state => State, windows => Windows,
            seconds => Seconds, requests => Requests, timed => Timed,
            p95_us => exceeded(P95OfAll),
            faults => {map_get(faults, Recent), map_get(faults, Minute)},
            refused => [{Code, maps:get(Code, Names, other), Count} || Code := Count <- Refusals],
            flood => flood(Recent, MetricsThen),
            tools => [Tool#{usual => maps:get(Name, Usual, none)}
                      || #{name := Name} = Tool <- Tools],
            running => Running,
            upstreams => silent(upstreams(NodeThen, Node), Upstreams, Recent, Minute),
            growth => erlmcp_console_growth:growth([Reading | Earlier]),
            troubles => troubles(Reading, Then, lists:last(Earlier), Recent),
            mounts_gone => [Prefix || #{prefix := Prefix, running := false} <- Mounts]}.

%% The newest of the readings that are old enough, or else the oldest.
recent(#{at := At}, Earlier) ->
    case [Then || #{at := AtThen} = Then <- Earlier, At - AtThen >= ?RECENT_MS] of
        [Then | _] -> Then;
        [] -> lists:last(Earlier)
    end.

telling(Count, Least, Recent, Minute) ->
    case Recent of
        #{Count := Enough} when Enough >= Least -> Recent;
        #{} -> Minute
    end.

%% Requests that were refused, or have failed, have no time.
latency(#{latency := Recent}, #{latency := Minute}) -> telling(timed, ?LEAST, Recent, Minute).

tools(#{tools := Recent, seconds := Seconds}, #{tools := Minute, seconds := OfMinute}) ->
    Now = #{Name => Row#{seconds => Seconds} || #{name := Name} = Row <- Recent},
    Faults = fault_names(),
    [begin
         #{Name := OfNow} = Now,
         Telling = fun(Count) ->
             telling(Count, ?LEAST_CALLS, OfNow, Row#{seconds => OfMinute})
         end,
         (tool(Telling(calls), Telling(timed), Row))#{
             faults => {failures(Faults, OfNow), failures(Faults, Row)}}
     end || #{name := Name} = Row <- Minute].

%% The refusals that count against the error budget.
fault_names() ->
    [Name || #{name := Name} <- erlmcp_refusal:table(),
             erlmcp_refusal:is_fault(erlmcp_refusal:new(Name, ~""))].

failures(Names, #{failed := Failed}) ->
    lists:sum(maps:values(maps:with(Names, Failed))).

upstreams(#{upstreams := Then}, #{upstreams := Now}) ->
    erlmcp_console_window:upstreams(Then, Now).

%% The requests to each upstream, and those that got no answer. An error that the upstream has
%% answered is one.
silent(Recent, Minute, #{seconds := Seconds}, #{seconds := OfMinute}) ->
    Now = #{Name => Row#{seconds => Seconds} || #{name := Name} = Row <- Recent},
    [#{name => Name, seconds => Of, calls => Calls, failed => lists:sum(maps:values(Silent)),
       reason => most(Silent)}
     || #{name := Name} = Row <- Minute,
        #{calls := Calls, failed := Failed, seconds := Of}
            <- [telling(calls, ?LEAST_CALLS, map_get(Name, Now), Row#{seconds => OfMinute})],
        Silent <- [maps:without([tool_error, cancelled, rpc], Failed)]].

most(Failed) when map_size(Failed) =:= 0 -> none;
most(Failed) -> element(2, lists:max([{Count, Error} || Error := Count <- Failed])).

%% Calls that were refused have no time, so the times may be of more seconds than the counts.
tool(Row, #{timed := Timed, seconds := Seconds, p50_us := P50, p95_us := P95},
     #{failed := Failed}) ->
    (maps:with([name, seconds, calls, errors, refusals], Row))#{
        timed => Timed, timed_seconds => Seconds,
        p50_us => exceeded(P50), p95_us => exceeded(P95),
        reason => reason(maps:without([circuit_breaker_open, cancelled], Failed))}.

%% A window has the ends of buckets. A time was longer than the start of its bucket.
exceeded(UpToUs) ->
    lists:max([0 | [Bound div 1000 || Bound <- erlmcp_histogram:fine_bounds(),
                                      Bound / 1000 < UpToUs]]).

reason(Failed) ->
    case most(Failed) of
        none -> none;
        tool_error -> tool_error;
        Name -> {maps:get(Name, #{Of => Code || Code := Of <- names()}), Name}
    end.

names() ->
    #{Number => Name || #{number := Number, name := Name} <- erlmcp_refusal:table()}.

%% The times of some tools from the start of the server to a reading.
usual(#{tools := Tools, started_ms := Started} = Metrics, Names) ->
    Wanted = [Row || #{name := Name} = Row <- Tools, lists:member(Name, Names)],
    Only = Metrics#{methods := #{}, tools := Wanted, resources := [], prompts := []},
    None = Only#{at_ms := Started, requests := 0, faults := 0, refusals := #{}, tools := []},
    #{tools := Rows} = erlmcp_console_window:between(None, Only),
    #{Name => #{p50_us => exceeded(P50), p95_us => exceeded(P95)}
      || #{name := Name, timed := Timed, p50_us := P50, p95_us := P95} <- Rows,
         Timed >= ?LEAST}.

flood(#{requests := Requests, seconds := Seconds},
      #{requests := Before, at_ms := At, started_ms := Started}) ->
    PerSecond = Requests / Seconds,
    Usual = Before / max(1, (At - Started) / 1000),
    case PerSecond / max(1.0, Usual) of
        Times when Times >= ?FLOOD, At - Started >= ?RECENT_MS ->
            #{per_second => PerSecond, times => Times};
        _ ->
            none
    end.

%% Errors of the machine that the log has had. An error is over as soon as its tool is served again,
%% and else after a minute.
troubles(#{troubles := Now, metrics := #{server := Server}}, #{troubles := Then},
         #{troubles := Before}, Recent) ->
    Found = [{Error, count(Row, Before), At, Place}
             || {{Of, Error, Place}, _, At} = Row <- Now, Of =:= none orelse Of =:= Server,
                count(Row, Then) > 0
                    orelse count(Row, Before) > 0 andalso not is_served(Place, Recent)],
    [#{error => Error, count => lists:sum([Count || {Of, Count, _, _} <- Found, Of =:= Error]),
       place => Place}
     || Error <- lists:usort([Error || {Error, _, _, _} <- Found]),
        {_, Place} <- [lists:max([{At, Place} || {Of, _, At, Place} <- Found, Of =:= Error])]].

count({Key, Count, _}, Before) ->
    case lists:keyfind(Key, 1, Before) of
        {_, Earlier, _} -> Count - Earlier;
        false -> Count
    end.

is_served({tool, Name}, #{tools := Tools}) ->
    [] =/= [Name || #{name := Of, calls := Calls, refusals := Refusals} <- Tools, Of =:= Name,
                    Calls > Refusals];
is_served(_, _) ->
    false.
