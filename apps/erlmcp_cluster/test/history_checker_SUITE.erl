-module(history_checker_SUITE).
-moduledoc """
The checker of histories can be believed: it agrees with a search through every order, and catches
each fault that a cluster must not have.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([it_agrees_with_every_order/1, a_true_history_is_accepted/1, a_planted_fault_is_caught/1,
         an_unknown_result_may_be_either/1, keys_are_judged_alone/1,
         a_long_history_is_judged_soon/1]).
%% For another checker.
-export([examples/1]).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [it_agrees_with_every_order, a_true_history_is_accepted, a_planted_fault_is_caught,
     an_unknown_result_may_be_either, keys_are_judged_alone, a_long_history_is_judged_soon].

it_agrees_with_every_order(_) ->
    ok = erlmcp_test_property:holds(?FORALL({Model, History}, histories(), begin
        (erlmcp_test_history:check(Model, History) =:= ok) =:= has_an_order(Model, History)
    end), 3_000).

%% Each operation takes effect at a time between its beginning and its end, and some clients hear
%% nothing of it.
a_true_history_is_accepted(_) ->
    ok = erlmcp_test_property:holds(?FORALL({Model, Plan}, plans(), begin
        History = true_history(Model, Plan),
        ok =:= erlmcp_test_history:check(Model, History)
            andalso (Model =/= task
                     orelse ok =:= erlmcp_test_history:check(polled_task, polled(History)))
    end), 1_000).

a_planted_fault_is_caught(_) ->
    [begin
         {error, [{key, [_ | _]}]} =
             erlmcp_test_history:check(Model, [operation(Each) || Each <- History]),
         %% Without its last line, the history is true.
         ok = erlmcp_test_history:check(Model, [operation(Each)
                                                || Each <- lists:droplast(History)])
     end || {Model, History} <- planted()].

planted() ->
    Open = {open, ok, 0, 1},
    Created = {create, ok, 0, 1},
    [
        %% A home that ignores its lease: the other home has ended the session.
        {session, [Open, {delete, ok, 2, 3}, {call, ok, 4, 5}]},
        %% A DELETE that comes back, after one client has seen the session gone.
        {session, [Open, {delete, unknown, 2, infinity}, {call, not_found, 4, 5},
                   {call, ok, 6, 7}]},
        %% A session that is lost.
        {session, [Open, {call, ok, 2, 3}, {call, not_found, 4, 5}]},
        %% Two homes end it.
        {session, [Open, {delete, ok, 2, 5}, {delete, ok, 3, 6}]},
        %% A log level that is lost.
        {session, [Open, {{set, error}, ok, 2, 3}, {level, error, 4, 5}, {level, info, 6, 7}]},
        %% A store without compare-and-swap: two ends of one task.
        {task, [{create, ok, 0, 1}, {{finish, done}, ok, 2, 5}, {cancel, ok, 3, 6}]},
        {task, [{create, ok, 0, 1}, {cancel, ok, 2, 3}, {get, {ended, cancelled}, 4, 5},
                {get, {ended, done}, 6, 7}]},
        %% A node that stood still for 30 s, and then writes.
        {task, [{create, ok, 0, 1}, {{finish, lost}, ok, 10, 11}, {get, {ended, lost}, 12, 13},
                {{finish, done}, ok, 2, 32}]},
        {task, [{create, ok, 0, 1}, {{finish, done}, unknown, 2, infinity},
                {{finish, lost}, ok, 10, 11}, {get, {ended, done}, 33, 34}]},
        %% A task that is lost, and one that was never there.
        {task, [{create, ok, 0, 1}, {get, none, 2, 3}]},
        {task, [{get, running, 2, 3}]},
        %% The same as clients see it.
        {polled_task, [Created, {get, completed, 2, 3}, {get, failed, 4, 5}]},
        {polled_task, [Created, {get, failed, 2, 3}, {get, running, 4, 5}]},
        {polled_task, [Created, {get, completed, 2, 3}, {cancel, ok, 4, 5},
                       {get, cancelled, 6, 7}]},
        {polled_task, [Created, {cancel, too_late, 2, 3}, {get, running, 4, 5}]},
        {polled_task, [Created, {get, cancelled, 2, 3}]},
        {polled_task, [Created, {get, running, 2, 3}, {get, not_found, 4, 5}]},
        {polled_task, [{get, running, 2, 3}]}].

an_unknown_result_may_be_either(_) ->
    Check = fun(Model, History) ->
        erlmcp_test_history:check(Model, [operation(Each) || Each <- History])
    end,
    Deleted = [{open, ok, 0, 1}, {delete, unknown, 2, infinity}],
    ok = Check(session, Deleted ++ [{call, ok, 4, 5}]),
    ok = Check(session, Deleted ++ [{call, not_found, 4, 5}]),
    %% It may take effect between the two.
    ok = Check(session, Deleted ++ [{call, ok, 4, 5}, {call, not_found, 6, 7}]),
    %% Not before it began.
    {error, _} = Check(session, [{open, ok, 0, 1}, {call, not_found, 2, 3},
                                 {delete, unknown, 4, infinity}]),
    ok = Check(session, [{open, unknown, 0, infinity}, {call, ok, 4, 5}]),
    ok = Check(session, [{open, unknown, 0, infinity}, {call, not_found, 4, 5}]).

keys_are_judged_alone(_) ->
    Of = fun(Key, History) -> [(operation(Each))#{key := Key} || Each <- History] end,
    Good = [{open, ok, 0, 1}, {call, ok, 2, 3}],
    Bad = [{open, ok, 0, 1}, {call, not_found, 2, 3}],
    ok = erlmcp_test_history:check(session, Of(a, Good) ++ Of(b, Good)),
    {error, [{b, [_, _]}, {d, [_, _]}]} =
        erlmcp_test_history:check(session, Of(a, Good) ++ Of(b, Bad) ++ Of(c, Good) ++ Of(d, Bad)).

%% Ten calls at any time, some without an answer, for a session that is used a thousand times.
a_long_history_is_judged_soon(_) ->
    Calls = [{call, lists:nth(Number rem 10 + 1, [unknown | lists:duplicate(9, ok)]), Number,
              Number + 10} || Number <- lists:seq(2, 1_000)],
    Ended = [{Do, Result, Began, case Result of unknown -> infinity; _ -> End end}
             || {Do, Result, Began, End} <- Calls],
    History = [operation(Each) || Each <- [{open, ok, 0, 1} | Ended]],
    {Time, ok} = timer:tc(fun() -> erlmcp_test_history:check(session, History) end),
    Lost = [operation({call, not_found, 2_000, 2_001}) | History],
    {More, {error, _}} = timer:tc(fun() -> erlmcp_test_history:check(session, Lost) end),
    ct:pal("~b operations: ~b ms, ~b ms with a fault", [length(History), Time div 1_000,
                                                       More div 1_000]),
    true = Time + More < 30_000_000.

operation({Do, Result, Began, Ended}) ->
    #{key => key, do => Do, result => Result, began => Began, ended => Ended}.

%% Histories.

%% What is drawn more often stands here more often.
operations(session) ->
    [open, call, delete, level, {set, error}, {set, info}];
operations(task) ->
    [create, get, get, cancel, {finish, done}, {finish, lost}];
operations(polled_task) ->
    [create, get, get, cancel].

results(session, level) -> [info, error, not_found, unknown];
results(session, _) -> [ok, not_found, unknown];
results(task, get) -> [none, running, {ended, done}, {ended, cancelled}, unknown];
results(task, _) -> [ok, too_late, unknown];
results(polled_task, get) -> [not_found, running, completed, failed, cancelled, unknown];
results(polled_task, _) -> [ok, too_late, not_found, unknown].

%% Any few operations with any results.
histories() ->
    ?LET(Model, oneof([session, task, polled_task]),
         {Model, resize(most(Model), list(?LET(Do, oneof(operations(Model)),
                                               any_operation(Model, Do))))}).

%% Every order of them is tried.
most(polled_task) -> 5;
most(_) -> 6.

any_operation(Model, Do) ->
    ?LET({Result, Began, Takes}, {oneof(results(Model, Do)), range(0, 8), range(1, 5)},
         operation({Do, Result, Began, ended(Result, Began + Takes)})).

ended(unknown, _) -> infinity;
ended(_, Ended) -> Ended.

%% Histories for a comparison of checkers: `Number` of any operations, and those of planted faults.
examples(Number) ->
    [{Model, [operation(Each) || Each <- History]} || {Model, History} <- planted()]
        ++ [begin
                {ok, Example} = proper_gen:pick(histories()),
                Example
            end || _ <- lists:seq(1, Number)].

%% The judge of the judge: an order of some operations, with all that have a result, in which none
%% comes after one that began when it had ended. Clients do not see when a task is finished.
has_an_order(polled_task, History) ->
    lists:any(fun(How) ->
                  Finish = operation({{finish, How}, unknown, 0, infinity}),
                  is_ordered(polled_task, [Finish | History])
              end, [completed, failed]);
has_an_order(Model, History) ->
    is_ordered(Model, History).

is_ordered(Model, History) ->
    Unknown = [Operation || #{result := unknown} = Operation <- History],
    lists:any(fun(Left) ->
                  lists:any(fun(Order) -> is_in_time(Order) andalso is_possible(Model, Order) end,
                            permutations(History -- Left))
              end, sublists(Unknown)).

permutations([]) -> [[]];
permutations(List) -> [[One | Rest] || One <- lists:usort(List),
                                       Rest <- permutations(List -- [One])].

sublists([]) -> [[]];
sublists([One | Rest]) -> lists:append([[Sub, [One | Sub]] || Sub <- sublists(Rest)]).

is_in_time([]) ->
    true;
is_in_time([#{began := Began} | Rest]) ->
    lists:all(fun(#{ended := Ended}) -> Ended >= Began end, Rest) andalso is_in_time(Rest).

is_possible(Model, Order) ->
    possible(Model, Order, [none]).

possible(_, _, []) -> false;
possible(_, [], _) -> true;
possible(Model, [#{do := Do, result := Result} | Rest], States) ->
    possible(Model, Rest, lists:usort([Next || State <- States,
                                               {Given, Next} <- machine(Model, Do, State),
                                               Result =:= unknown orelse Result =:= Given])).

%% The single machine, as this suite understands it: what it may answer, and its next state.
machine(session, open, none) -> [{ok, info}];
machine(session, open, _) -> [];
machine(session, _, State) when State =:= none; State =:= deleted -> [{not_found, State}];
machine(session, call, Level) -> [{ok, Level}];
machine(session, level, Level) -> [{Level, Level}];
machine(session, {set, Level}, _) -> [{ok, Level}];
machine(session, delete, _) -> [{ok, deleted}];
machine(task, create, none) -> [{ok, running}];
machine(task, create, _) -> [];
machine(task, get, State) -> [{State, State}];
machine(task, cancel, running) -> [{ok, {ended, cancelled}}];
machine(task, {finish, How}, running) -> [{ok, {ended, How}}];
machine(task, _, State) -> [{too_late, State}];
machine(polled_task, get, none) -> [{not_found, none}];
machine(polled_task, cancel, none) -> [{not_found, none}];
machine(polled_task, get, {ended, How} = Ended) -> [{How, Ended}];
machine(polled_task, cancel, {ended, _} = Ended) -> [{ok, Ended}, {too_late, Ended}];
machine(polled_task, Do, State) -> machine(task, Do, State).

%% One that opens or creates, and then others, each with its time, how long it takes before and
%% after its effect, and whether its client hears of it.
plans() ->
    ?LET(Model, oneof([session, task]),
         {Model, list({oneof(tl(operations(Model))), range(1, 60), range(0, 20), range(0, 20),
                       frequency([{5, true}, {1, false}])})}).

true_history(Model, Plan) ->
    First = {hd(operations(Model)), 0, 0, 0, true},
    Effects = lists:keysort(2, [First | Plan]),
    {History, _} = lists:mapfoldl(
        fun({Do, Time, Before, After, Heard}, State) ->
            [{Given, Next}] = machine(Model, Do, State),
            Result = case Heard of
                true -> Given;
                false -> unknown
            end,
            {operation({Do, Result, Time - Before, ended(Result, Time + After)}), Next}
        end, none, Effects),
    History.

%% The history of a task as clients see it, who do not finish it.
polled(History) ->
    [Operation#{result := case Result of
         {ended, done} -> completed;
         {ended, lost} -> failed;
         {ended, cancelled} -> cancelled;
         _ -> Result
     end} || #{do := Do, result := Result} = Operation <- History, is_atom(Do)].
