-module(erlmcp_load_course).
-moduledoc """
Counts the outcomes of requests in the course of time. A course has each kind of error in windows of
ten seconds, and the backlog in tenths of a second. Pure.

A request belongs to the window, or the tenth, in which it was due. It is a part of the backlog from
when it was due until it has ended, whether it was sent or not. A request that was due before the
course began is in no window.
""".

-export([new/1, ended/4, merge/1, reasons/2, unsent/1]).
-export([windows/2, backlog/2, slowest_us/2, latest_us/2, latest_trouble_us/3]).

-export_type([course/0, kind/0, window/0]).

-doc """
A kind of error. `unsent` requests were due, but no connection was free before their timeout or the
end of the load.
""".
-type kind() :: {refused, Code :: integer() | tool_error} | {failed, Reason :: atom()}
              | {wrong, What :: atom()} | unsent.

-doc """
A window of a course. A window lasts ten seconds, except the last one, which may be shorter.

- `at_s` is the end of the window, in seconds since the course began.
- `duration_s` is how long the window lasts.
- `backlog_requests` is how many requests were due and had not ended, at the end of the window.
- `errors` has the number of errors of each kind.
""".
-type window() :: #{at_s := float(), duration_s := float(), backlog_requests := non_neg_integer(),
                    errors := #{kind() => pos_integer()}}.

%% Of the requests that were due in a tenth of a second: the slowest one, and when the last one and
%% the last error ended. The backlog at the end of a tenth is the sum of all changes so far.
-record(tenth, {
    change = 0 :: integer(),
    slowest_us = 0 :: non_neg_integer(),
    latest_us = 0 :: integer(),
    latest_error_us = 0 :: integer()
}).

%% Times inside are microseconds since the beginning. Windows and tenths before it have negative
%% numbers.
-record(course, {
    since_us :: integer(),
    errors = #{} :: #{Window :: integer() => #{kind() => pos_integer()}},
    tenths = #{} :: #{Tenth :: integer() => #tenth{}}
}).

-opaque course() :: #course{}.

-define(WINDOW_US, 10_000_000).
-define(TENTH_US, 100_000).

-doc "Returns an empty course that begins at `SinceUs`, in monotonic microseconds.".
-spec new(SinceUs :: integer()) -> course().
new(SinceUs) ->
    #course{since_us = SinceUs}.

-doc """
Counts a request that was due at `DueUs` and ended at `EndUs`, in monotonic microseconds. The first
argument is the outcome of the request: `answered`, or the kind of its error.
""".
-spec ended(answered | kind(), DueUs :: integer(), EndUs :: integer(), course()) -> course().
ended(Outcome, DueUs, EndUs, #course{since_us = Since} = Course) ->
    Due = DueUs - Since,
    End = max(Due, EndUs - Since),
    case Outcome of
        %% Such a request is in no backlog, and is not slow.
        answered when floor(Due / ?TENTH_US) =:= floor(End / ?TENTH_US) -> Course;
        answered -> passed(Due, End, 0, Course);
        Kind -> failed(floor(Due / ?WINDOW_US), Kind, passed(Due, End, End, Course))
    end.

failed(Window, Kind, #course{errors = Errors} = Course) ->
    Kinds = maps:get(Window, Errors, #{}),
    Course#course{errors = Errors#{Window => Kinds#{Kind => maps:get(Kind, Kinds, 0) + 1}}}.

passed(Due, End, Error, #course{tenths = Tenths} = Course) ->
    Own = #tenth{change = 1, slowest_us = End - Due, latest_us = End, latest_error_us = Error},
    Begun = added(floor(Due / ?TENTH_US), Own, Tenths),
    Course#course{tenths = added(floor(End / ?TENTH_US), #tenth{change = -1}, Begun)}.

added(Tenth, More, Tenths) ->
    case Tenths of
        #{Tenth := Former} -> Tenths#{Tenth := both(More, Former)};
        #{} -> Tenths#{Tenth => More}
    end.

both(#tenth{change = Change, slowest_us = Slowest, latest_us = Latest, latest_error_us = Error},
     #tenth{} = Other) ->
    #tenth{change = Change + Other#tenth.change, slowest_us = max(Slowest, Other#tenth.slowest_us),
           latest_us = max(Latest, Other#tenth.latest_us),
           latest_error_us = max(Error, Other#tenth.latest_error_us)}.

-doc """
Adds up courses that began at the same time. An empty course may have begun at any time.
""".
-spec merge([course(), ...]) -> course().
merge([First | Others]) ->
    lists:foldl(fun merged/2, First, Others).

merged(#course{errors = None, tenths = None}, All) when map_size(None) =:= 0 ->
    All;
merged(Course, #course{errors = None, tenths = None}) when map_size(None) =:= 0 ->
    Course;
merged(#course{since_us = Since, errors = Errors, tenths = Tenths},
       #course{since_us = Since, errors = AllErrors, tenths = AllTenths} = All) ->
    All#course{errors = maps:merge_with(fun(_, One, Other) -> sum(One, Other) end,
                                        Errors, AllErrors),
               tenths = maps:merge_with(fun(_, One, Other) -> both(One, Other) end,
                                        Tenths, AllTenths)}.

sum(One, Other) ->
    maps:merge_with(fun(_, Number, More) -> Number + More end, One, Other).

-doc """
Returns how many requests have an outcome of the given sort (`refused`, `failed` or `wrong`), by the
code or the reason of the outcome.
""".
-spec reasons(refused | failed | wrong, course()) -> #{integer() | atom() => pos_integer()}.
reasons(Of, #course{errors = Errors}) ->
    #{Reason => Count || {Kind, Reason} := Count <- all(Errors), Kind =:= Of}.

-doc "Returns the number of requests that were never sent.".
-spec unsent(course()) -> non_neg_integer().
unsent(#course{errors = Errors}) ->
    maps:get(unsent, all(Errors), 0).

all(Errors) -> lists:foldl(fun sum/2, #{}, maps:values(Errors)).

-doc """
Returns all windows until `UntilUs`, in monotonic microseconds. The last window ends at `UntilUs`,
and also has the errors of all requests that were due later. The list is empty if the course begins
at `UntilUs` or later.
""".
-spec windows(UntilUs :: integer(), course()) -> [window()].
windows(UntilUs, #course{since_us = Since, errors = Errors} = Course) when UntilUs > Since ->
    Until = UntilUs - Since,
    Last = (Until - 1) div ?WINDOW_US,
    Backlog = #{AtUs - Since => Requests || {AtUs, Requests} <- backlog(UntilUs, Course)},
    Later = all(maps:filter(fun(Window, _) -> Window >= Last end, Errors)),
    [begin
         End = min(Until, (Window + 1) * ?WINDOW_US),
         #{at_s => End / 1_000_000, duration_s => (End - Window * ?WINDOW_US) / 1_000_000,
           backlog_requests => maps:get(End, Backlog),
           errors => case Window of
                         Last -> Later;
                         _ -> maps:get(Window, Errors, #{})
                     end}
     end || Window <- lists:seq(0, Last)];
windows(_, _) ->
    [].

-doc """
Returns the backlog at the end of each tenth of a second until `UntilUs`, and at `UntilUs` itself.
If `UntilUs` is not the end of a tenth, its backlog is that of the last whole tenth, or 0 if there
is none. Times are in monotonic microseconds.
""".
-spec backlog(UntilUs :: integer(), course()) -> [{AtUs :: integer(), Requests :: integer()}].
backlog(UntilUs, #course{since_us = Since, tenths = Tenths}) ->
    Earlier = lists:sum([Change || Tenth := #tenth{change = Change} <- Tenths, Tenth < 0]),
    {Rows, _} = lists:mapfoldl(
        fun(Tenth, Before) ->
            Requests = case Tenths of
                #{Tenth := #tenth{change = Change}} -> Before + Change;
                #{} -> Before
            end,
            {{Since + (Tenth + 1) * ?TENTH_US, Requests}, Requests}
        end, Earlier, lists:seq(0, (UntilUs - Since) div ?TENTH_US - 1)),
    Rows ++ [{UntilUs, case Rows of [] -> 0; _ -> element(2, lists:last(Rows)) end}
             || (UntilUs - Since) rem ?TENTH_US =/= 0].

-doc """
Returns how many microseconds the slowest request took, among the requests that were due before
`UntilUs`. Returns 0 if there was none. `UntilUs` is in monotonic microseconds, and is rounded up to
a tenth of a second. A request that took less than a tenth may count as 0.
""".
-spec slowest_us(UntilUs :: integer(), course()) -> non_neg_integer().
slowest_us(UntilUs, Course) ->
    lists:max([0 | [Slowest || #tenth{slowest_us = Slowest} <- due_before(UntilUs, Course)]]).

-doc """
Returns the time at which the last of the requests that were due before `UntilUs` ended. Returns
`UntilUs` if all of them ended earlier. Both times are in monotonic microseconds. For the choice of
the requests, `UntilUs` is rounded up to a tenth of a second. A request that was answered within the
tenth in which it was due does not count.
""".
-spec latest_us(UntilUs :: integer(), course()) -> integer().
latest_us(UntilUs, #course{since_us = Since} = Course) ->
    lists:max([UntilUs | [Since + Latest
                          || #tenth{latest_us = Latest} <- due_before(UntilUs, Course)]]).

due_before(UntilUs, #course{since_us = Since, tenths = Tenths}) ->
    [Tenth || At := Tenth <- Tenths, Since + At * ?TENTH_US < UntilUs].

-doc """
Returns the time of the last trouble, in monotonic microseconds. Trouble means an error, or an
answer that took more than `SlowUs` microseconds. Returns `FromUs` if there was no trouble after
`FromUs`. The time of an answer is exact to a tenth of a second, and `SlowUs` must be at least a
tenth.
""".
-spec latest_trouble_us(FromUs :: integer(), SlowUs :: pos_integer(), course()) -> integer().
latest_trouble_us(FromUs, SlowUs, #course{since_us = Since, tenths = Tenths}) ->
    Troubles = [case Slowest > SlowUs of
                    true -> Latest;
                    false -> Error
                end || _ := #tenth{slowest_us = Slowest, latest_us = Latest,
                                   latest_error_us = Error} <- Tenths],
    lists:max([FromUs | [Since + At || At <- Troubles]]).
