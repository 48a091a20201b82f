-module(dependencies_SUITE).
-moduledoc "`docs/dependencies.md`: bulkheads, breakers and workers of definitions, in both eras.".

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([failures_open_the_breaker/1, a_trial_closes_it/1, a_failed_trial_opens_it_again/1,
         one_call_at_a_time_tries/1, one_of_those_that_wait_for_a_worker_tries/1,
         earlier_calls_change_no_open_breaker/1, earlier_calls_let_none_try/1,
         an_earlier_call_opens_no_breaker/1, an_overdue_trial_lets_none_try/1,
         a_failed_trial_opens_it_whatever_the_count/1, two_never_try_at_once/1,
         deadlines_are_failures/1, cancelled_calls_are_none/1,
         errors_of_the_caller_are_none/1, a_breaker_can_be_shared/1, resources_have_breakers/1,
         handlers_may_refuse/1]).
-export([calls_at_once_are_bounded/1, killed_calls_give_their_place_back/1,
         calls_in_a_time_are_bounded/1, definitions_of_one_name_have_their_own_bounds/1]).
-export([each_call_has_a_worker/1, calls_wait_for_a_worker/1, the_queue_is_bounded/1,
         a_wait_that_is_too_long_is_refused/1, a_worker_that_ends_is_replaced/1,
         a_worker_of_a_dead_call_is_replaced/1, without_workers_calls_are_refused/1,
         workers_end_with_their_server/1]).
-export([wrong_options_are_refused/1, wrong_fields_are_refused/1,
         mounted_definitions_keep_their_guards/1, states_are_told/1]).

-import(erlmcp_test_line, [serve/1]).
-import(erlmcp_test_two_eras, [eras/0, open/2, call/3, read/2, text/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [failures_open_the_breaker, a_trial_closes_it, a_failed_trial_opens_it_again,
     one_call_at_a_time_tries, one_of_those_that_wait_for_a_worker_tries,
     earlier_calls_change_no_open_breaker, earlier_calls_let_none_try,
     an_earlier_call_opens_no_breaker, an_overdue_trial_lets_none_try,
     a_failed_trial_opens_it_whatever_the_count, two_never_try_at_once,
     deadlines_are_failures, cancelled_calls_are_none, errors_of_the_caller_are_none,
     a_breaker_can_be_shared, resources_have_breakers, handlers_may_refuse,
     calls_at_once_are_bounded, killed_calls_give_their_place_back, calls_in_a_time_are_bounded,
     definitions_of_one_name_have_their_own_bounds,
     each_call_has_a_worker, calls_wait_for_a_worker, the_queue_is_bounded,
     a_wait_that_is_too_long_is_refused, a_worker_that_ends_is_replaced,
     a_worker_of_a_dead_call_is_replaced, without_workers_calls_are_refused,
     workers_end_with_their_server,
     wrong_options_are_refused, wrong_fields_are_refused, mounted_definitions_keep_their_guards,
     states_are_told].

init_per_testcase(_, Config) ->
    %% Handlers that crash say so to the log at length.
    #{level := Level} = logger:get_primary_config(),
    ok = logger:set_primary_config(level, none),
    [{log_level, Level} | Config].

end_per_testcase(_, Config) ->
    ok = logger:set_primary_config(level, proplists:get_value(log_level, Config)).

%% What the client of a refused call is told.
refusal(#{~"error" := #{~"code" := Code, ~"data" := Data}}) -> {Code, Data}.

is_open(Answer) ->
    {1086, #{~"name" := ~"circuit_breaker_open", ~"retryAfterMs" := Milliseconds}} =
        refusal(Answer),
    Milliseconds.

%% A tool that does as its argument says.
fickle(Breaker) ->
    #{name => ~"fickle", breaker => Breaker,
      handler => fun(#{~"do" := What}, _) -> act(What) end}.

act(~"work") -> ~"done";
act(~"crash") -> error(failed);
act(~"say no") -> {error, ~"no"};
act(~"hang") -> receive never -> ok end;
act(~"refuse") ->
    {refuse, erlmcp_refusal:new(dependency_unavailable, ~"the printer is off",
                                #{retry_after_ms => 1500})};
act(~"find fault") -> {refuse, erlmcp_refusal:new(invalid_params, ~"wrong")}.

do(Client, What) ->
    call(Client, ~"fickle", #{~"do" => What}).

crash(Client) ->
    {-32603, #{~"name" := ~"internal_error"}} = refusal(do(Client, ~"crash")).

failures_open_the_breaker(_) ->
    [begin
         Server = serve(#{tools => [fickle(#{failures => 3, open_ms => 60_000})]}),
         Client = open(Era, Server),
         [crash(Client) || _ <- [1, 2]],
         %% In a row: what works begins the count anew.
         ~"done" = text(do(Client, ~"work")),
         [crash(Client) || _ <- [1, 2, 3]],
         [true = is_open(do(Client, ~"work")) > 30_000 || _ <- [1, 2]],
         is_open(do(open(Era, Server), ~"work"))
     end || Era <- eras()].

a_trial_closes_it(_) ->
    Server = serve(#{tools => [fickle(#{failures => 1, open_ms => 1})]}),
    Client = open(~"2026-07-28", Server),
    crash(Client),
    ~"done" = until_tried(Client, ~"work"),
    ~"done" = text(do(Client, ~"work")).

%% The answer of the first call that is let in.
until_tried(Client, What) ->
    case do(Client, What) of
        #{~"error" := #{~"code" := 1086}} -> until_tried(Client, What);
        #{~"error" := #{~"code" := Code}} -> Code;
        Answer -> text(Answer)
    end.

a_failed_trial_opens_it_again(_) ->
    Server = serve(#{tools => [fickle(#{failures => 1, open_ms => 2000,
                                        longest_open_ms => 100_000})]}),
    Client = open(~"2026-07-28", Server),
    crash(Client),
    true = is_open(do(Client, ~"work")) =< 2200,
    -32603 = until_tried(Client, ~"crash"),
    %% Twice as long.
    true = is_open(do(Client, ~"work")) > 2200.

one_call_at_a_time_tries(_) ->
    Self = self(),
    Tool = #{name => ~"slow", breaker => #{failures => 1, open_ms => 1},
             handler => fun(#{~"crash" := true}, _) -> error(failed);
                           (_, _) -> Self ! {tries, self()}, receive go -> ~"done" end
                        end},
    Server = serve(#{tools => [Tool]}),
    [One, Other] = [open(Era, Server) || Era <- eras()],
    _ = call(One, ~"slow", #{~"crash" => true}),
    Trying = spawn_monitor(fun() -> exit({tried, until_slow(open(~"2026-07-28", Server))}) end),
    Call = receive {tries, Pid} -> Pid end,
    is_open(call(Other, ~"slow", #{})),
    Call ! go,
    {_, Monitor} = Trying,
    receive {'DOWN', Monitor, _, _, {tried, ~"done"}} -> ok end.

%% Each finds the breaker half-open when it comes, and both get a worker after that.
one_of_those_that_wait_for_a_worker_tries(_) ->
    Self = self(),
    Slow = #{name => ~"slow", breaker => #{failures => 1, open_ms => 1}, workers => db,
             handler => fun(#{~"crash" := true}, _) -> error(failed);
                           (_, _) -> Self ! {tries, self()}, receive go -> ~"done" end
                        end},
    Server = serve(#{tools => [using(), Slow],
                     workers => #{db => #{size => 2, start => fun worker/0}}}),
    Client = open(~"2026-07-28", Server),
    _ = call(Client, ~"slow", #{~"crash" => true}),
    Kept = [keep(~"2026-07-28", Server) || _ <- [1, 2]],
    %% The breaker is open for two milliseconds at most.
    ok = timer:sleep(5),
    Callers = [spawn_monitor(fun() -> exit({answer, call(open(Era, Server), ~"slow", #{})}) end)
               || Era <- eras()],
    wait_for(fun() -> calls_that_wait(db, Server) =:= 2 end),
    _ = [Call ! go || {Call, _, _} <- Kept],
    _ = [answer(Asking) || {_, _, Asking} <- Kept],
    Trying = receive {tries, Pid} -> Pid end,
    receive
        {tries, _} -> error(both_try);
        {'DOWN', _, _, _, {answer, Refused}} -> is_open(Refused)
    end,
    Trying ! go,
    ~"done" = text(answer_of(Callers)).

calls_that_wait(Pool, Server) ->
    {ok, _, Instance} = erlmcp_registry:whereis(Server),
    {ok, {Process, _}} = erlmcp_workers:pool(Pool, Instance),
    #{length := Length} = sys:get_state(Process),
    Length.

%% A call is served, and another one is cancelled, after the breaker has opened.
earlier_calls_change_no_open_breaker(_) ->
    Server = serve(#{tools => [keeping(#{failures => 1, open_ms => 60_000})]}),
    [Client, Other] = [open(Era, Server) || Era <- eras()],
    Early = spawn_monitor(fun() -> exit({answer, call(Other, ~"slow", #{~"do" => ~"wait"})}) end),
    Call = receive {runs, Pid} -> Pid end,
    _ = call(Client, ~"slow", #{~"do" => ~"crash"}),
    Call ! go,
    ~"done" = text(answer_of([Early])),
    is_open(call(Client, ~"slow", #{~"do" => ~"work"})).

%% Nor does one that began before the breaker opened, and ends after it has closed.
an_earlier_call_opens_no_breaker(_) ->
    Breaker = erlmcp_breaker:new(#{failures => 1, open_ms => 1}),
    [{ok, Earlier}, {ok, Failing}] = [erlmcp_breaker:enter(Breaker) || _ <- [1, 2]],
    opened = erlmcp_breaker:leave(Breaker, Failing, failed),
    closed = erlmcp_breaker:leave(Breaker, tried(Breaker), served),
    ok = erlmcp_breaker:leave(Breaker, Earlier, failed),
    {closed, 0} = {erlmcp_breaker:state(Breaker), erlmcp_breaker:failed(Breaker)}.

%% Nor does a trial that took so long that another one was let in.
an_overdue_trial_lets_none_try(_) ->
    Breaker = erlmcp_breaker:new(#{failures => 1, open_ms => 1, longest_open_ms => 20}),
    {ok, 0} = erlmcp_breaker:enter(Breaker),
    opened = erlmcp_breaker:leave(Breaker, 0, failed),
    Overdue = tried(Breaker),
    Failed = tried(Breaker),
    opened = erlmcp_breaker:leave(Breaker, Failed, failed),
    _ = tried(Breaker),
    ok = erlmcp_breaker:spare(Breaker, Overdue),
    {open, _} = erlmcp_breaker:enter(Breaker).

%% A call that was served while the breaker opened has set the count to 0.
a_failed_trial_opens_it_whatever_the_count(_) ->
    Breakers = [opened_while_one_is_served() || _ <- lists:seq(1, 500)],
    [opened = erlmcp_breaker:leave(Breaker, tried(Breaker), failed)
     || Breaker <- Breakers, erlmcp_breaker:state(Breaker) =/= closed].

opened_while_one_is_served() ->
    Breaker = erlmcp_breaker:new(#{failures => 2, open_ms => 1}),
    [{ok, First}, {ok, Fails}, {ok, Works}] = [erlmcp_breaker:enter(Breaker) || _ <- [1, 2, 3]],
    ok = erlmcp_breaker:leave(Breaker, First, failed),
    _ = at_once([fun() -> erlmcp_breaker:leave(Breaker, Fails, failed) end,
                 fun() -> erlmcp_breaker:leave(Breaker, Works, served) end]),
    Breaker.

%% Two calls find a breaker half-open. One tries, and the other one may be slow to look further.
two_never_try_at_once(_) ->
    Breakers = [opened() || _ <- lists:seq(1, 2_000)],
    true = wait_for(fun() -> erlmcp_breaker:works(lists:last(Breakers)) end),
    [begin
         Later = fun() -> _ = lists:seq(1, Nth rem 100), served(Breaker) end,
         [Entry, Other] = at_once([fun() -> served(Breaker) end, Later]),
         true = Entry =/= Other
     end || {Nth, Breaker} <- lists:enumerate(Breakers)].

opened() ->
    Breaker = erlmcp_breaker:new(#{failures => 1, open_ms => 1}),
    {ok, Entry} = erlmcp_breaker:enter(Breaker),
    opened = erlmcp_breaker:leave(Breaker, Entry, failed),
    Breaker.

served(Breaker) ->
    case erlmcp_breaker:enter(Breaker) of
        {ok, Entry} ->
            _ = erlmcp_breaker:leave(Breaker, Entry, served),
            Entry;
        {open, _} ->
            refused
    end.

%% Returns what funs return that begin at the same moment, each in a process.
at_once(Funs) ->
    Begun = atomics:new(1, []),
    Processes = [spawn_monitor(fun() ->
                     ok = atomics:add(Begun, 1, 1),
                     ok = all_begun(Begun, length(Funs)),
                     exit({returned, Fun()})
                 end) || Fun <- Funs],
    [receive {'DOWN', Monitor, process, Pid, {returned, Value}} -> Value end
     || {Pid, Monitor} <- Processes].

all_begun(Begun, All) ->
    case atomics:get(Begun, 1) of
        All -> ok;
        _ -> all_begun(Begun, All)
    end.

tried(Breaker) ->
    case erlmcp_breaker:enter(Breaker) of
        {ok, Entry} -> Entry;
        {open, _} -> receive after 1 -> tried(Breaker) end
    end.

earlier_calls_let_none_try(_) ->
    Server = serve(#{tools => [keeping(#{failures => 1, open_ms => 1})]}),
    {_, Socket} = open(~"2026-07-28", Server),
    erlmcp_test_line:send(Socket, erlmcp_test_line:stateless(
        7, ~"tools/call", #{~"name" => ~"slow", ~"arguments" => #{~"do" => ~"wait"}})),
    Call = receive {runs, First} -> First end,
    _ = call(open(~"2026-07-28", Server), ~"slow", #{~"do" => ~"crash"}),
    Trying = spawn_monitor(fun() ->
        exit({answer, until_slow(open(~"2026-07-28", Server), #{~"do" => ~"wait"})})
    end),
    Trial = receive {runs, Second} -> Second end,
    Monitor = monitor(process, Call),
    erlmcp_test_line:send(Socket, erlmcp_test_line:notification(~"notifications/cancelled",
                                                                #{requestId => 7})),
    receive {'DOWN', Monitor, _, _, _} -> ok end,
    %% The process that watches the calls has seen that.
    {ok, _, #{key := Key}} = erlmcp_registry:whereis(Server),
    #{process := Guard} = persistent_term:get({erlmcp_definition_guard, Key}),
    _ = sys:get_state(Guard),
    is_open(call(open(~"2026-07-28", Server), ~"slow", #{~"do" => ~"work"})),
    Trial ! go,
    ~"done" = answer_of([Trying]).

keeping(Breaker) ->
    Self = self(),
    #{name => ~"slow", breaker => Breaker, handler => fun
          (#{~"do" := ~"wait"}, _) -> Self ! {runs, self()}, receive go -> ~"done" end;
          (#{~"do" := What}, _) -> act(What)
      end}.

until_slow(Client) ->
    until_slow(Client, #{}).

until_slow(Client, Arguments) ->
    case call(Client, ~"slow", Arguments) of
        #{~"error" := #{~"code" := 1086}} -> until_slow(Client, Arguments);
        Answer -> text(Answer)
    end.

deadlines_are_failures(_) ->
    Self = self(),
    [begin
         Tool = fickle(#{failures => 2, open_ms => 60_000}),
         Server = serve(#{tools => [Tool#{timeout_ms => 100}],
                          on_event => fun(Event) -> Self ! {Era, Event} end}),
         Client = open(Era, Server),
         [{1069, _} = refusal(do(Client, ~"hang")) || _ <- [1, 2]],
         %% The breaker is told by another process than the client: what works before that would
         %% begin the count anew.
         receive {Era, #{event := breaker_opened, target := ~"fickle"}} -> ok end,
         is_open(do(Client, ~"work"))
     end || Era <- eras()].

is_refused(#{~"error" := #{~"code" := Code}}, Code) -> true;
is_refused(_, _) -> false.

wait_for(Holds) ->
    Holds() orelse begin timer:sleep(5), wait_for(Holds) end.

cancelled_calls_are_none(_) ->
    Self = self(),
    Tool = #{name => ~"slow", breaker => #{failures => 1, open_ms => 60_000},
             handler => fun(#{~"wait" := true}, _) ->
                                Self ! {runs, self()},
                                receive never -> ok end;
                           (_, _) ->
                                ~"done"
                        end},
    Server = serve(#{tools => [Tool]}),
    {_, Socket} = Client = open(~"2026-07-28", Server),
    erlmcp_test_line:send(Socket, erlmcp_test_line:stateless(
        7, ~"tools/call", #{~"name" => ~"slow", ~"arguments" => #{~"wait" => true}})),
    Call = receive {runs, Pid} -> Pid end,
    Monitor = monitor(process, Call),
    erlmcp_test_line:send(Socket, erlmcp_test_line:notification(~"notifications/cancelled",
                                                                #{requestId => 7})),
    receive {'DOWN', Monitor, _, _, _} -> ok end,
    [~"done" = text(call(Client, ~"slow", #{})) || _ <- [1, 2, 3]].

errors_of_the_caller_are_none(_) ->
    Server = serve(#{tools => [fickle(#{failures => 1, open_ms => 60_000})]}),
    [begin
         Client = open(Era, Server),
         {error, ~"no"} = text(do(Client, ~"say no")),
         {1021, _} = refusal(do(Client, ~"find fault")),
         ~"done" = text(do(Client, ~"work"))
     end || Era <- eras()].

a_breaker_can_be_shared(_) ->
    Other = #{name => ~"other", breaker => db, handler => fun(_, _) -> ~"other" end},
    Own = #{name => ~"own", breaker => #{}, handler => fun(_, _) -> ~"own" end},
    Server = serve(#{breakers => #{db => #{failures => 1, open_ms => 60_000}, unused => #{}},
                     tools => [fickle(db), Other, Own]}),
    [Client | _] = Clients = [open(Era, Server) || Era <- eras()],
    [~"other" = text(call(One, ~"other", #{})) || One <- Clients],
    crash(Client),
    [is_open(call(One, ~"other", #{})) || One <- Clients],
    [~"own" = text(call(One, ~"own", #{})) || One <- Clients].

resources_have_breakers(_) ->
    Broken = fun(_, _) -> error(failed) end,
    Breaker = #{failures => 1, open_ms => 60_000},
    Server = serve(#{resources => [#{uri => ~"r://x", name => ~"x", handler => Broken,
                                     breaker => Breaker}],
                     resource_templates => [#{uri_template => ~"t://{id}", name => ~"t",
                                              handler => Broken, breaker => Breaker}],
                     prompts => [#{name => ~"p", handler => Broken, breaker => Breaker}]}),
    Client = open(~"2026-07-28", Server),
    [begin
         {-32603, _} = refusal(Ask()),
         is_open(Ask())
     end || Ask <- [fun() -> read(Client, ~"r://x") end, fun() -> read(Client, ~"t://1") end,
                    fun() ->
                        erlmcp_test_two_eras:ask(Client, ~"prompts/get", #{~"name" => ~"p"})
                    end]].

%% With the code that says what is wrong, and when to come back.
handlers_may_refuse(_) ->
    Server = erlmcp_test_http:start(#{tools => [fickle(#{})]}),
    #{status := 503, headers := #{~"retry-after" := ~"2"}, messages := [Answer]} =
        erlmcp_test_http:call(Server, ~"tools/call",
                              #{name => ~"fickle", arguments => #{do => ~"refuse"}}),
    {1080, #{~"retryAfterMs" := 1500}} = refusal(Answer),
    erlmcp_test_http:stop(Server).

%% A tool whose calls tell that they run, and wait until they may go on.
waiting(Name, Fields) ->
    Self = self(),
    maps:merge(#{name => Name, handler => fun(_, _) ->
                     Self ! {runs, self()},
                     receive go -> ~"done" end
                 end}, Fields).

calls_at_once_are_bounded(_) ->
    [begin
         Server = serve(#{tools => [waiting(~"slow", #{max_calls => 2}),
                                    #{name => ~"other", handler => fun(_, _) -> ~"other" end}]}),
         Asking = [asking(Era, Server) || _ <- [1, 2]],
         Client = open(Era, Server),
         {1060, #{~"limit" := 2, ~"observed" := 3}} = refusal(call(Client, ~"slow", #{})),
         ~"other" = text(call(Client, ~"other", #{})),
         [Call ! go || {Call, _} <- Asking],
         [~"done" = text(answer(One)) || {_, One} <- Asking],
         {Call, Again} = asking(Era, Server),
         Call ! go,
         ~"done" = text(answer(Again))
     end || Era <- eras()].

asking(Era, Server) ->
    Asking = spawn_monitor(fun() -> exit({answer, call(open(Era, Server), ~"slow", #{})}) end),
    receive {runs, Call} -> {Call, Asking} end.

killed_calls_give_their_place_back(_) ->
    Server = serve(#{tools => [waiting(~"slow", #{max_calls => 1})]}),
    {Call, Asking} = asking(~"2026-07-28", Server),
    exit(Call, kill),
    {1089, _} = refusal(answer(Asking)),
    %% The keeper of the gate looks for those who died.
    Client = open(~"2025-11-25", Server),
    Waiting = spawn_monitor(fun() -> exit({answer, until_let_in(open(~"2025-11-25", Server))}) end),
    Second = receive {runs, Running} -> Running end,
    {1060, _} = refusal(call(Client, ~"slow", #{})),
    Second ! go,
    ~"done" = text(answer(Waiting)).

until_let_in(Client) ->
    case call(Client, ~"slow", #{}) of
        #{~"error" := #{~"code" := 1060}} -> timer:sleep(20), until_let_in(Client);
        Answer -> Answer
    end.

%% The rates of a definition count the calls of all clients.
calls_in_a_time_are_bounded(_) ->
    [begin
         Tool = #{name => ~"slow", rates => #{Period => 2}, handler => fun(_, _) -> ~"done" end},
         Server = serve(#{tools => [Tool]}),
         [~"done" = text(call(open(Era, Server), ~"slow", #{})) || Era <- eras()],
         {Code, #{~"limit" := 2, ~"retryAfterMs" := Milliseconds}} =
             refusal(call(open(~"2026-07-28", Server), ~"slow", #{})),
         true = Milliseconds > 0
     end || {Period, Code} <- [{minute, 1058}, {day, 1059}]].

%% A tool and a prompt may have the same name.
definitions_of_one_name_have_their_own_bounds(_) ->
    Said = fun(_, _) -> ~"said" end,
    [begin
         Server = serve(#{tools => [waiting(~"slow", #{max_calls => 1})],
                          prompts => [#{name => ~"slow", max_calls => 1, handler => Said}]}),
         {Call, Asking} = asking(Era, Server),
         Client = open(Era, Server),
         ~"said" = text(erlmcp_test_two_eras:ask(Client, ~"prompts/get", #{~"name" => ~"slow"})),
         {1060, _} = refusal(call(Client, ~"slow", #{})),
         Call ! go,
         ~"done" = text(answer(Asking))
     end || Era <- eras()].

%% Workers: processes that count how often they were used.

worker() ->
    Loop = fun Loop(N) -> receive {use, From} -> From ! {self(), N}, Loop(N + 1) end end,
    {ok, spawn_link(fun() -> Loop(1) end)}.

%% A tool that says who its worker is, and keeps it until it is told.
using() ->
    Self = self(),
    #{name => ~"use", workers => db,
      handler => fun(#{~"keep" := true}, #{worker := Worker}) ->
                        Self ! {uses, self(), Worker},
                        receive go -> name(Worker) end;
                    (_, #{worker := Worker}) ->
                        name(Worker)
                 end}.

name(Worker) -> list_to_binary(pid_to_list(Worker)).

pooled(Options) ->
    serve(#{tools => [using()],
            workers => #{db => maps:merge(#{size => 2, start => fun worker/0}, Options)}}).

%% A call that keeps its worker, and its client's answer when it is told to go on.
keep(Era, Server) ->
    Asking = spawn_monitor(fun() ->
        exit({answer, call(open(Era, Server), ~"use", #{~"keep" => true})})
    end),
    receive {uses, Call, Worker} -> {Call, Worker, Asking} end.

answer({_, Monitor}) ->
    receive {'DOWN', Monitor, _, _, {answer, Answer}} -> Answer end.

each_call_has_a_worker(_) ->
    [begin
         Server = pooled(#{}),
         {One, First, A} = keep(Era, Server),
         {Other, Second, B} = keep(Era, Server),
         true = First =/= Second,
         One ! go,
         Other ! go,
         true = {name(First), name(Second)} =:= {text(answer(A)), text(answer(B))},
         Again = [text(call(open(Era, Server), ~"use", #{})) || _ <- [1, 2, 3, 4]],
         [] = Again -- [name(Worker) || Worker <- [First, First, First, First,
                                                   Second, Second, Second, Second]]
     end || Era <- eras()].

calls_wait_for_a_worker(_) ->
    Server = pooled(#{size => 1}),
    {Call, Worker, Asking} = keep(~"2026-07-28", Server),
    Waiting = [spawn_monitor(fun() ->
        exit({answer, call(open(Era, Server), ~"use", #{})})
    end) || Era <- eras()],
    Call ! go,
    [true = text(answer(One)) =:= name(Worker) || One <- [Asking | Waiting]].

the_queue_is_bounded(_) ->
    Server = pooled(#{size => 1, queue => 1}),
    {Call, _, Asking} = keep(~"2026-07-28", Server),
    %% One of them waits, and the others need not.
    Waiting = [spawn_monitor(fun() ->
        exit({answer, call(open(Era, Server), ~"use", #{})})
    end) || Era <- eras() ++ eras()],
    Refused = [answer_of(Waiting) || _ <- [1, 2, 3]],
    [{1001, #{~"limit" := 1, ~"observed" := 2, ~"retryAfterMs" := _}} = refusal(Answer)
     || Answer <- Refused],
    Call ! go,
    <<"<", _/binary>> = text(answer(Asking)),
    <<"<", _/binary>> = text(answer_of(Waiting)).

answer_of(Asking) ->
    Monitors = [Monitor || {_, Monitor} <- Asking],
    receive
        {'DOWN', Monitor, _, _, {answer, Answer}} ->
            true = lists:member(Monitor, Monitors),
            Answer
    end.

%% The pool has seen that a worker is used longer than the next call has.
a_wait_that_is_too_long_is_refused(_) ->
    Tool = (using())#{timeout_ms => 60_000},
    Short = Tool#{name => ~"short", timeout_ms => 20},
    Server = serve(#{tools => [Tool, Short],
                     workers => #{db => #{size => 1, start => fun worker/0}}}),
    {One, _, A} = keep(~"2026-07-28", Server),
    timer:sleep(200),
    One ! go,
    _ = answer(A),
    {Other, _, B} = keep(~"2026-07-28", Server),
    #{~"name" := ~"backpressure_active", ~"retryAfterMs" := _} = refused_at_once(Server, 20),
    Other ! go,
    _ = answer(B).

%% The time of a call may be over before it asks for a worker.
refused_at_once(Server, Tries) when Tries > 0 ->
    case refusal(call(open(~"2026-07-28", Server), ~"short", #{})) of
        {1005, Data} -> Data;
        {1069, _} -> refused_at_once(Server, Tries - 1)
    end.

a_worker_that_ends_is_replaced(_) ->
    Server = pooled(#{size => 1}),
    Client = open(~"2026-07-28", Server),
    First = text(call(Client, ~"use", #{})),
    exit(list_to_pid(binary_to_list(First)), kill),
    wait_for(fun() ->
        case text(call(Client, ~"use", #{})) of
            {error, _} -> false;
            First -> false;
            _ -> true
        end
    end).

%% Nobody knows what state it is in.
a_worker_of_a_dead_call_is_replaced(_) ->
    Server = pooled(#{size => 1}),
    {Call, Worker, Asking} = keep(~"2026-07-28", Server),
    Monitor = monitor(process, Worker),
    exit(Call, kill),
    receive {'DOWN', Monitor, _, _, _} -> ok end,
    _ = answer(Asking),
    New = text(call(open(~"2025-11-25", Server), ~"use", #{})),
    true = New =/= name(Worker).

without_workers_calls_are_refused(_) ->
    Working = counters:new(1, []),
    Start = fun() ->
        case counters:get(Working, 1) of
            0 -> {error, no_database};
            1 -> worker()
        end
    end,
    Server = pooled(#{start => Start}),
    Client = open(~"2026-07-28", Server),
    wait_for(fun() -> is_refused(call(Client, ~"use", #{}), 1080) end),
    ok = counters:add(Working, 1, 1),
    wait_for(fun() -> not is_refused(call(Client, ~"use", #{}), 1080) end).

workers_end_with_their_server(_) ->
    Self = self(),
    {ok, Server} = erlmcp:start_server(#{
        name => ~"s", version => ~"1",
        workers => #{plain => #{size => 2, start => fun() -> Self ! started, {ok, ticket} end,
                                stop => fun(ticket) -> Self ! stopped end},
                     db => #{size => 1, start => fun() ->
                                 {ok, Worker} = worker(),
                                 Self ! {worker, Worker},
                                 {ok, Worker}
                             end}}}),
    [receive started -> ok end || _ <- [1, 2]],
    Monitor = receive {worker, Worker} -> monitor(process, Worker) end,
    ok = erlmcp:stop_server(Server),
    [receive stopped -> ok end || _ <- [1, 2]],
    receive {'DOWN', Monitor, _, _, _} -> ok end.

wrong_options_are_refused(_) ->
    Start = fun(Options) ->
        erlmcp:start_server(Options#{name => ~"s", version => ~"1"})
    end,
    [{error, {bad_option, Key, _}} = Start(#{Key => Value})
     || {Key, Value} <- [{breakers, []}, {breakers, #{db => #{failures => 0}}},
                         {breakers, #{db => #{fails => 1}}}, {breakers, #{~"db" => #{}}},
                         {workers, []}, {workers, #{db => #{size => 1}}},
                         {workers, #{db => #{size => 0, start => fun worker/0}}},
                         {workers, #{db => #{size => 1, start => worker}}},
                         {workers, #{db => #{size => 1, start => fun worker/0, queue => -1}}},
                         {workers, #{~"db" => #{size => 1, start => fun worker/0}}}]].

wrong_fields_are_refused(_) ->
    Tool = #{name => ~"t", handler => fun(_, _) -> ~"" end},
    [begin
         {error, {bad_definition, tool, ~"t", Field, _}} =
             erlmcp:start_server(#{name => ~"s", version => ~"1", tools => [Tool#{Field => Value}]})
     end || {Field, Value} <- [{breaker, db}, {breaker, ~"db"}, {breaker, #{failures => -1}},
                               {workers, db}, {workers, ~"db"}, {workers, #{}},
                               {max_calls, 0}, {rates, #{hour => 1}}]],
    {ok, Server} = erlmcp:start_server(#{name => ~"s", version => ~"1"}),
    {error, {bad_definition, tool, ~"t", breaker, _}} =
        erlmcp:add(Server, tool, Tool#{breaker => db}),
    ok = erlmcp:stop_server(Server).

mounted_definitions_keep_their_guards(_) ->
    Inner = #{name => ~"inner", version => ~"1", tools => [fickle(db), using()],
              breakers => #{db => #{failures => 1, open_ms => 60_000}},
              workers => #{db => #{size => 1, start => fun worker/0}}},
    Server = serve(#{mounts => [{~"in", Inner}]}),
    [Client | _] = Clients = [open(Era, Server) || Era <- eras()],
    [<<"<", _/binary>> = text(call(One, ~"in_use", #{})) || One <- Clients],
    _ = call(Client, ~"in_fickle", #{~"do" => ~"crash"}),
    [is_open(call(One, ~"in_fickle", #{~"do" => ~"work"})) || One <- Clients].

%% In `erlmcp:info/1` of the server itself, not of one that mounts it.
states_are_told(_) ->
    Own = (fickle(#{failures => 1, open_ms => 1}))#{name => ~"own"},
    Options = #{name => ~"inner", version => ~"1",
                tools => [fickle(db), Own, using(),
                          #{name => ~"calm", handler => fun(_, _) -> ~"calm" end}],
                resources => [#{uri => ~"r://x", name => ~"x", handler => fun(_, _) -> ~"x" end,
                                breaker => db}],
                breakers => #{db => #{failures => 2, open_ms => 60_000}, unused => #{}},
                workers => #{db => #{size => 2, start => fun worker/0}}},
    Server = serve(Options),
    Outer = serve(#{mounts => [{~"in", Server}]}),
    Client = open(~"2026-07-28", Server),
    [#{name := db, state := closed, failed := 0, targets := [~"fickle", ~"r://x"]},
     #{name := ~"own", state := closed, targets := [~"own"]}] = breakers(Server),
    crash(Client),
    [#{name := db, state := closed, failed := 1}, _] = breakers(Server),
    crash(Client),
    _ = call(Client, ~"own", #{~"do" => ~"crash"}),
    [#{name := db, state := open, failed := 2}, _] = breakers(Server),
    %% Its millisecond passes by itself.
    ok = until(fun() ->
        [half_open] =:= [State || #{name := ~"own", state := State} <- breakers(Server)]
    end),
    %% The workers start beside their server.
    ok = until(fun() ->
        #{workers := [#{name := db, size := 2, taken := 0, waiting := 0, ready := Ready}]} =
            erlmcp:info(Server),
        Ready =:= 2
    end),
    #{breakers := [], workers := []} = erlmcp:info(Outer),
    Kept = [keep(~"2026-07-28", Server) || _ <- [1, 2]],
    Third = spawn_monitor(fun() ->
        exit({answer, call(open(~"2026-07-28", Server), ~"use", #{})})
    end),
    ok = until(fun() ->
        #{workers := [#{taken := Taken, waiting := Waiting}]} = erlmcp:info(Server),
        {2, 1} =:= {Taken, Waiting}
    end),
    [Call ! go || {Call, _, _} <- Kept],
    [<<"<", _/binary>> = text(answer(Asking)) || {_, _, Asking} <- Kept],
    <<"<", _/binary>> = text(answer(Third)),
    ok = erlmcp:stop_server(Outer),
    ok = erlmcp:stop_server(Server).

breakers(Server) ->
    #{breakers := Breakers} = erlmcp:info(Server),
    Breakers.

until(Holds) ->
    case Holds() of
        true -> ok;
        false -> receive after 10 -> until(Holds) end
    end.
