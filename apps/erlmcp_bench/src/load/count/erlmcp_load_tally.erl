-module(erlmcp_load_tally).
-moduledoc """
Counts the outcomes and times of the requests of a group. Most figures go into counters that all
groups share. The course of the errors and of the backlog is kept here until the end.
""".

-export([new/1, begins/3, sent/3, judged/5, concluded/4, unsent/3, course/1]).

-export_type([tally/0]).

-record(tally, {
    counts :: erlmcp_load_counts:counts(),
    latency :: erlmcp_bench_histogram:histogram(),
    refusal_latency :: erlmcp_bench_histogram:histogram(),
    %% The histogram of lateness, in an open loop only.
    lateness :: none | erlmcp_bench_histogram:histogram(),
    observer :: none | pid(),
    expected :: [erlmcp_load_reply:expectation(), ...],
    %% Requests that are due earlier are not measured.
    from = infinity :: infinity | integer(),
    %% Patterns of right replies: those of this group, and the table that all groups share.
    patterns = #{} :: #{Kind :: pos_integer() => [erlmcp_load_reply:pattern()]},
    shared :: ets:table(),
    course = erlmcp_load_course:new(0) :: erlmcp_load_course:course()
}).

-opaque tally() :: #tally{}.

%% The most patterns of one kind of request. Replies that are all different are each decoded.
-define(PATTERNS, 8).

-doc "Returns an empty tally, which measures nothing before `begins/3`.".
-spec new(erlmcp_load_plan:settings()) -> tally().
new(#{counts := Counts, latency := Latency, refusal_latency := RefusalLatency, loop := Loop,
      lateness := Lateness, observer := Observer, expected := Expected, patterns := Shared}) ->
    #tally{counts = Counts, latency = Latency, refusal_latency = RefusalLatency,
           lateness = case Loop of {open, _} -> Lateness; _ -> none end,
           observer = Observer, expected = Expected, shared = Shared}.

-doc """
Begins to measure the requests that are due at `Us` or later, and no others. The course of the tally
begins at `SinceUs`. Both times are in monotonic microseconds.
""".
-spec begins(Us :: integer(), SinceUs :: integer(), tally()) -> tally().
begins(Us, SinceUs, Tally) ->
    Tally#tally{from = Us, course = erlmcp_load_course:new(SinceUs)}.

-doc """
Counts a request that was due at `Due` and is sent at `Now`, in monotonic microseconds. In an open
loop, also counts the time between these two (lateness). Does nothing if the request is not
measured.
""".
-spec sent(Due :: integer(), Now :: integer(), tally()) -> ok.
sent(Due, Now, #tally{from = From, counts = Counts, lateness = Lateness}) when Due >= From ->
    ok = erlmcp_load_counts:add(Counts, sent, 1),
    case Lateness of
        none -> ok;
        _ -> erlmcp_bench_histogram:record(Lateness, Now - Due)
    end;
sent(_, _, _) ->
    ok.

-doc """
Counts a request that was due at `Due` and is given up unsent at `Now`, in monotonic microseconds.
The load's observer gets no message. Does nothing if the request is not measured.
""".
-spec unsent(Due :: integer(), Now :: integer(), tally()) -> tally().
unsent(Due, Now, #tally{from = From, counts = Counts} = Tally) when Due >= From ->
    ok = erlmcp_load_counts:add(Counts, unsent, 1),
    passed(unsent, Due, Now, Tally);
unsent(_, _, Tally) ->
    Tally.

-doc """
Judges the reply to a request of the kind `Kind`, as `erlmcp_load_reply:check/5` does. May keep the
reply's pattern for later replies to requests of that kind, in all groups.
""".
-spec judged(Kind :: pos_integer(), erlmcp_load_wire:tag(),
             Status :: erlmcp_load_wire:event_status(), Body :: binary(), tally()) ->
    {erlmcp_load_reply:verdict(), tally()}.
judged(Kind, Tag, Status, Body, #tally{patterns = Patterns, expected = Expectations} = Tally) ->
    Id = erlmcp_load_wire:id(Tag),
    Expected = lists:nth(Kind, Expectations),
    Own = maps:get(Kind, Patterns, []),
    case erlmcp_load_reply:check(Body, Status, Id, Expected, Own) of
        {known, Verdict} -> {Verdict, Tally};
        {read, Verdict} -> {Verdict, learned(Kind, {Body, Status}, Id, Verdict, Own, Tally)}
    end.

%% Another group may have decoded such a reply before: then its pattern is used, and its bytes are
%% shared.
learned(Kind, Reply, Id, Verdict, Own, #tally{patterns = Patterns, shared = Shared} = Tally)
  when length(Own) < ?PATTERNS ->
    All = case ets:lookup(Shared, Kind) of
        [{_, Learned}] -> Learned;
        [] -> []
    end,
    {Body, Status} = Reply,
    case erlmcp_load_reply:check(Body, Status, Id, any, All) of
        {known, _} ->
            Tally#tally{patterns = Patterns#{Kind => All}};
        {read, _} ->
            case erlmcp_load_reply:pattern(Reply, Id, Verdict) of
                {ok, Pattern} when length(All) < ?PATTERNS ->
                    true = ets:insert(Shared, {Kind, [Pattern | All]}),
                    Tally#tally{patterns = Patterns#{Kind => [Pattern | All]}};
                _ ->
                    Tally#tally{patterns = Patterns#{Kind => All}}
            end
    end;
learned(_, _, _, _, _, Tally) ->
    Tally.

-doc """
Counts the outcome and the time of a request, and sends them to the load's observer. The request was
due at `Due` and ended at `Now`, in monotonic microseconds. If the request is not measured, the
observer gets nothing. Then an answer counts as `warm`, and any other outcome is not counted.
""".
-spec concluded(erlmcp_load_reply:outcome(), Due :: integer(), Now :: integer(), tally()) ->
    tally().
concluded(Outcome, Due, Now, #tally{from = From, counts = Counts, observer = Observer} = Tally)
  when Due >= From ->
    _ = case Observer of
        none -> ok;
        _ -> Observer ! {erlmcp_load, Outcome, Due, Now}
    end,
    case Outcome of
        answered ->
            ok = erlmcp_load_counts:add(Counts, answered, 1),
            ok = erlmcp_bench_histogram:record(Tally#tally.latency, Now - Due),
            passed(answered, Due, Now, Tally);
        {refused, Code, _} ->
            ok = erlmcp_load_counts:add(Counts, refused, 1),
            ok = erlmcp_bench_histogram:record(Tally#tally.refusal_latency, Now - Due),
            passed({refused, Code}, Due, Now, Tally);
        {Kind, _} = Error ->
            ok = erlmcp_load_counts:add(Counts, Kind, 1),
            passed(Error, Due, Now, Tally)
    end;
concluded(answered, _, _, #tally{counts = Counts} = Tally) ->
    ok = erlmcp_load_counts:add(Counts, warm, 1),
    Tally;
concluded(_, _, _, Tally) ->
    Tally.

passed(Outcome, Due, Now, #tally{course = Course} = Tally) ->
    Tally#tally{course = erlmcp_load_course:ended(Outcome, Due, Now, Course)}.

-doc "Returns the course of all measured requests.".
-spec course(tally()) -> erlmcp_load_course:course().
course(#tally{course = Course}) -> Course.
