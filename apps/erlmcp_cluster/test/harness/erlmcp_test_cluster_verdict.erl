-module(erlmcp_test_cluster_verdict).
-moduledoc """
Judges what clients have seen of a fault. Pure.

A verdict has a figure, and the most or the least that it may be. Times are in microseconds.
""".

-compile(nowarn_missing_spec_documented).

-export([at_most/4, at_least/4, worst/1]).
-export([is_slow/2, trouble/1, excused/2, within/3, errors/3, of_a_minute/3, after_the_fault/2,
         full_service_ms/3, longest_pause_ms/3, is_disturbed/3]).
-export([histories/1, impossible/1, not_once/2]).

-export_type([verdict/0]).

-type verdict() :: #{scenario := binary(), figure := binary(), measured := number(),
                     at_most | at_least => number(), passed := boolean(),
                     times => pos_integer()}.

%% An answer that takes longer is no full service.
-define(SLOW_US, 500_000).
%% A pause that may cost leases, which are renewed each 250 ms. They are back a second later. A
%% request waits two seconds for the cluster, and has a little more for its answer.
-define(LONG_PAUSE_US, 250_000).
-define(BACK_US, 1_000_000).
-define(WAITS_US, 2_500_000).

-spec at_most(Scenario :: iodata(), Figure :: binary(), Measured :: number(), Most :: number()) ->
    verdict().
at_most(Scenario, Figure, Measured, Most) ->
    #{scenario => iolist_to_binary(Scenario), figure => Figure, measured => Measured,
      at_most => Most, passed => Measured =< Most}.

at_least(Scenario, Figure, Measured, Least) ->
    #{scenario => iolist_to_binary(Scenario), figure => Figure, measured => Measured,
      at_least => Least, passed => Measured >= Least}.

%% One verdict for each figure of a scenario that came several times: the largest one of those that
%% have failed, or of all. Their bounds may differ.
worst(Verdicts) ->
    Name = fun(#{scenario := Scenario, figure := Figure}) -> {Scenario, Figure} end,
    Groups = maps:groups_from_list(Name, Verdicts),
    [begin
         Same = map_get(Each, Groups),
         Rank = fun(#{passed := Passed, measured := Measured}) -> {not Passed, Measured} end,
         Worse = fun(One, Other) -> Rank(One) >= Rank(Other) end,
         (hd(lists:sort(Worse, Same)))#{times => length(Same)}
     end || Each <- lists:uniq(lists:map(Name, Verdicts))].

%% What the clients' operations have in common with the requests of a load, where they had no good
%% answer or a slow one.
trouble(Operations) ->
    [maps:merge(#{why => slow}, maps:with([began, seen, why, do, server], Operation))
     || #{began := Began, seen := Seen} = Operation <- Operations,
        is_map_key(why, Operation) orelse is_slow(Began, Seen)].

is_slow(Began, Seen) ->
    Seen - Began > ?SLOW_US.

%% Parts trouble into what a pause of the whole machine explains, and all other. An answer is slow
%% by itself if it is slow without the pauses in its time. A long pause may end leases. It explains
%% what was under way, and what began until they were back, unless that took longer than a request
%% waits.
-spec excused([Trouble], [erlmcp_test_pauses:pause()]) -> {Excused :: [Trouble], [Trouble]} when
    Trouble :: erlmcp_test_cluster_load:trouble().
excused(Trouble, Pauses) ->
    Long = [Pause || {From, To} = Pause <- Pauses, To - From >= ?LONG_PAUSE_US],
    Joined = erlmcp_test_pauses:joined(Pauses),
    lists:partition(
        fun(#{began := Began, seen := Seen, why := Why}) ->
            Took = Seen - Began - paused_us(Began, Seen, Joined),
            (Why =:= slow andalso Took =< ?SLOW_US)
                orelse (Took =< ?WAITS_US
                        andalso lists:any(fun({From, To}) ->
                                              Seen >= From andalso Began =< To + ?BACK_US
                                          end, Long))
        end, Trouble).

paused_us(Began, Seen, Pauses) ->
    lists:sum([max(0, min(Seen, To) - max(Began, From)) || {From, To} <- Pauses]).

%% The longest pause that was in this time, or in a part of it.
longest_pause_ms(From, Until, Pauses) ->
    lists:max([0 | [(End - Began) / 1_000 || {Began, End} <- Pauses, End >= From, Began =< Until]]).

%% Whether a pause in this time may excuse whatever the cluster did.
is_disturbed(From, Until, Pauses) ->
    longest_pause_ms(From, Until, Pauses) * 1_000 >= ?LONG_PAUSE_US.

%% Of the requests that were waiting or began in this time.
within(From, Until, Trouble) ->
    [Each || #{began := Began, seen := Seen} = Each <- Trouble, Seen >= From, Began =< Until].

%% The requests without a good answer, of those that were waiting or began in this time.
errors(From, Until, Trouble) ->
    [Each || #{why := Why} = Each <- within(From, Until, Trouble), Why =/= slow].

%% The errors in percent of a minute's requests.
of_a_minute(Errors, Requests, Microseconds) ->
    100 * length(Errors) / max(1, Requests * 60_000_000 / Microseconds).

%% Errors of requests that began after the fault were not in flight on its node.
after_the_fault(At, Errors) ->
    [Each || #{began := Began} = Each <- Errors, Began > At].

%% How long after the fault the last request ended that failed or was slow.
full_service_ms(At, Until, Trouble) ->
    lists:max([0 | [(Seen - At) / 1_000 || #{seen := Seen} <- within(At, Until, Trouble)]]).

%% The history of each session and task whose key is known.
histories(Operations) ->
    Keys = maps:groups_from_list(
        fun(#{model := Model, key := Key}) -> {Model, Key} end,
        [Operation || #{key := Key} = Operation <- Operations, Key =/= none,
                      not never_sent(Operation)]),
    [{Model, History} || {Model, _} := History <- Keys].

never_sent(#{why := {not_connected, _}}) -> true;
never_sent(_) -> false.

%% The histories that no single machine could have shown.
impossible(Operations) ->
    [{Model, Key, Of} || {Model, History} <- histories(Operations),
                         {error, [{Key, Of}]} <- [erlmcp_test_history:check(Model, History)]].

%% The lines that were written more than once, and those that were never written although their
%% callers had a good answer.
not_once(Lines, Operations) ->
    Times = maps:groups_from_list(fun(Line) -> Line end, Lines),
    [Line || Line := [_, _ | _] <- Times]
        ++ [Line || #{line := Line, result := ok} <- Operations, not is_map_key(Line, Times)].
