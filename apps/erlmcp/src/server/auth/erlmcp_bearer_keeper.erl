-module(erlmcp_bearer_keeper).
-moduledoc """
The process of a listener that asks other machines: an issuer for its keys, or an authorization
server about a token. Each question runs in a process of its own, once for all requests that wait
for its answer. At most sixteen questions about tokens run at a time. The process also removes old
entries from the listener's tables.

Sources: RFC 7517, section 5 (the keys of an issuer); RFC 9111, section 5.2 (how long they are
fresh); RFC 7662 (the introspection of a token).

Internal.
""".

-behaviour(gen_server).

-export([start_link/2, ask/5, refresh/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([waiter/0]).

-type waiter() :: {erlmcp_bearer:owner(), reference()}.

%% `flight` is the process that asks the other machine.
-record(question, {
    token :: fun(() -> binary()),
    deadline :: integer(),
    waiters :: [waiter()],
    flight = none :: none | {pid(), Timer :: reference()}
}).
-record(state, {
    settings :: erlmcp_bearer_options:settings(),
    tables :: erlmcp_bearer_tables:tables(),
    questions = #{} :: #{erlmcp_bearer_source:subject() => #question{}},
    flights = #{} :: #{pid() => erlmcp_bearer_source:subject()},
    turns = queue:new() :: queue:queue(erlmcp_bearer_source:subject()),
    %% When a failure of a source was last logged.
    logged = #{} :: #{pos_integer() => integer()}
}).

-define(ABOUT_TOKENS, 16).
%% Milliseconds between two questions for the same keys, and the deadline of a refresh.
-define(FETCH_MS, 10_000).
%% Milliseconds between two questions for the same keys if the first one had no answer.
-define(RETRY_MS, 2_000).
-define(SWEEP_MS, 5_000).
-define(LOG_MS, 60_000).
%% Bounds on an issuer's `max-age`, since withdrawn keys must go soon and the issuer must not be
%% asked all the time. The third value is for issuers without a `max-age`.
-define(LEAST_FRESH_S, 60).
-define(MOST_FRESH_S, 3600).
-define(FRESH_S, 600).
%% Words of memory of a flight. An answer has at most a megabyte.
-define(FLIGHT_HEAP, 4_000_000).

-doc """
Starts the process that asks other machines for one listener, which has these settings and tables.
""".
-spec start_link(erlmcp_bearer_options:settings(), erlmcp_bearer_tables:tables()) ->
    gen_server:start_ret().
start_link(Settings, Tables) ->
    gen_server:start_link(?MODULE, {Settings, Tables}, []).

-doc """
Asks another machine about `Subject`, and does not wait for the answer. `Token` returns the token,
for a subject that is a token. The waiter is sent the outcome, unless the process of this module
ends before. The outcome is `{error, unavailable}` if no valid answer comes by `Deadline`, in
monotonic milliseconds. If several waiters wait for the same answer, the `Deadline` of the first one
counts. An error of this function is a 503: the process of this module does not run, or too many
requests wait.
""".
-spec ask(erlmcp_bearer_source:subject(), Token :: fun(() -> binary()), waiter(),
          Deadline :: integer(), erlmcp_bearer_tables:tables()) ->
    ok | {error, erlmcp_bearer_failure:failure()}.
ask(Subject, Token, Waiter, Deadline, Tables) ->
    maybe
        {ok, Pid} ?= erlmcp_bearer_tables:keeper(Tables),
        ok ?= erlmcp_bearer_tables:enter(Tables),
        gen_server:cast(Pid, {ask, Subject, Token, Waiter, Deadline})
    else
        none -> {error, erlmcp_bearer_failure:unavailable(~"the token cannot be checked now")};
        {full, Limit} -> {error, erlmcp_bearer_failure:busy(Limit)}
    end.

-doc """
Fetches the keys of the source with the number `Index` again, in the background. Does nothing if the
keys are being fetched or may not be fetched yet. Also does nothing if the process of this module
does not run.
""".
-spec refresh(Index :: pos_integer(), erlmcp_bearer_tables:tables()) -> ok.
refresh(Index, Tables) ->
    case erlmcp_bearer_tables:keeper(Tables) of
        {ok, Pid} ->
            case erlmcp_bearer_tables:begin_refresh(Index, Tables) of
                true -> gen_server:cast(Pid, {refresh, Index});
                false -> ok
            end;
        none ->
            ok
    end.

-doc false.
init({Settings, Tables}) ->
    ok = erlmcp_label:set([?MODULE]),
    process_flag(trap_exit, true),
    ok = erlmcp_bearer_tables:set_keeper(self(), Tables),
    {ok, _} = timer:send_interval(?SWEEP_MS, sweep),
    {ok, #state{settings = Settings, tables = Tables}}.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast({ask, {keys, Index} = Subject, Token, Waiter, Deadline}, State) ->
    #state{tables = Tables} = State,
    case erlmcp_bearer_tables:may_fetch(Index, Tables) of
        true ->
            {noreply, add_question(Subject, Token, [Waiter], Deadline, State)};
        false ->
            %% The keys were fetched, or could not be, while this question was on its way.
            ok = tell_waiters(Subject, ok, [Waiter], Tables),
            {noreply, State}
    end;
handle_cast({ask, Subject, Token, Waiter, Deadline}, State) ->
    {noreply, add_question(Subject, Token, [Waiter], Deadline, State)};
handle_cast({refresh, Index}, State) ->
    Deadline = erlmcp_clock:now_ms() + ?FETCH_MS,
    {noreply, add_question({keys, Index}, fun() -> ~"" end, [], Deadline, State)}.

add_question(Subject, Token, Waiters, Deadline, #state{questions = Questions} = State) ->
    case Questions of
        #{Subject := #question{waiters = Others} = Question} ->
            Joined = Question#question{waiters = Waiters ++ Others},
            State#state{questions = Questions#{Subject := Joined}};
        #{} ->
            New = #question{token = Token, deadline = Deadline, waiters = Waiters},
            turn(Subject, State#state{questions = Questions#{Subject => New}})
    end.

turn({keys, _} = Subject, State) ->
    flown(Subject, State);
turn(Subject, #state{turns = Turns} = State) ->
    next(State#state{turns = queue:in(Subject, Turns)}).

next(#state{flights = Flights, turns = Turns} = State) ->
    About = length([Subject || _ := {token, _, _} = Subject <- Flights]),
    case About < ?ABOUT_TOKENS andalso queue:out(Turns) of
        {{value, Subject}, Rest} -> next(flown(Subject, State#state{turns = Rest}));
        _ -> State
    end.

flown(Subject, #state{settings = Settings, questions = Questions, flights = Flights} = State) ->
    #{Subject := #question{token = Token, deadline = Deadline} = Question} = Questions,
    Pid = start_flight(Subject, Token, Deadline, Settings),
    Timer = erlang:start_timer(Deadline, self(), {flight, Pid}, [{abs, true}]),
    State#state{questions = Questions#{Subject := Question#question{flight = {Pid, Timer}}},
                flights = Flights#{Pid => Subject}}.

start_flight(Subject, Token, Deadline, #{sources := Sources, tls := Tls}) ->
    Owner = self(),
    {_, Source} = lists:keyfind(element(2, Subject), 1, Sources),
    Fetch = #{deadline => Deadline, plain => [loopback], tls => Tls},
    spawn_link(fun() ->
        process_flag(sensitive, true),
        _ = process_flag(max_heap_size, #{size => ?FLIGHT_HEAP, kill => true,
                                          error_logger => false}),
        Owner ! {landed, self(), outlined(fun() -> answer(Subject, Token, Source, Fetch) end)}
    end).

%% The report of a process that crashes would have the values of the reason, such as a secret.
outlined(Ask) ->
    try
        Ask()
    catch
        _:Reason:Stack -> {error, erlmcp_incident:outline(Reason, Stack)}
    end.

answer({keys, _}, _, {jwt, #{keys := {uri, Uri}}}, Fetch) ->
    fetch_keys(Uri, Fetch);
answer({token, _, _}, Token, {introspection, Source}, Fetch) ->
    introspect(Token(), Source, Fetch).

%% The keys of an issuer that serve for signatures, with the milliseconds that they are fresh.
fetch_keys(Uri, Fetch) ->
    case erlmcp_fetch:get_json(Uri, Fetch) of
        {ok, #{status := 200, json := {ok, Document}, headers := Headers}} ->
            case erlmcp_jwk:set(Document) of
                [_ | _] = Keys -> {ok, Keys, 1000 * fresh_s(Headers)};
                [] -> {error, no_keys}
            end;
        {ok, #{status := 200}} -> {error, no_keys};
        {ok, #{status := Status}} -> {error, {status, Status}};
        {error, Reason} -> {error, Reason}
    end.

fresh_s(#{~"cache-control" := Field}) ->
    case re:run(Field, ~"(?i)(?:^|[,\\s])max-age\\s*=\\s*\"?([0-9]{1,9})",
                [{capture, all_but_first, binary}]) of
        {match, [Digits]} ->
            max(?LEAST_FRESH_S, min(?MOST_FRESH_S, binary_to_integer(Digits)));
        nomatch ->
            ?FRESH_S
    end;
fresh_s(_) ->
    ?FRESH_S.

%% The answer of an authorization server about a token.
introspect(Token, #{uri := Uri, client := #{client := Client, settings := Settings}}, Fetch) ->
    Form = [{~"token", Token}, {~"token_type_hint", ~"access_token"}],
    Context = #{fetch => Fetch, settings => Settings},
    case erlmcp_oauth_client_authentication:post(Uri, Form, Client, Context) of
        {ok, #{status := 200, json := {ok, #{~"active" := true} = Answer}}} ->
            {active, maps:remove(~"active", Answer)};
        {ok, #{status := 200, json := {ok, #{~"active" := false}}}} -> inactive;
        {ok, #{status := 200}} -> {error, no_answer};
        {ok, #{status := Status}} -> {error, {status, Status}};
        {error, Reason} -> {error, Reason}
    end.

-doc false.
handle_info({landed, Pid, Result}, #state{flights = Flights} = State) ->
    case Flights of
        #{Pid := Subject} -> {noreply, landed(Subject, Pid, Result, State)};
        #{} -> {noreply, State}
    end;
handle_info({timeout, _, {flight, Pid}}, #state{flights = Flights} = State) ->
    case Flights of
        #{Pid := Subject} ->
            exit(Pid, kill),
            {noreply, landed(Subject, Pid, {error, timeout}, State)};
        #{} ->
            {noreply, State}
    end;
handle_info({'EXIT', Pid, Reason}, #state{flights = Flights} = State) ->
    case Flights of
        #{Pid := Subject} -> {noreply, landed(Subject, Pid, {error, outline(Reason)}, State)};
        #{} -> {noreply, State}
    end;
handle_info(sweep, #state{tables = Tables} = State) ->
    _ = erlmcp_bearer_tables:sweep(erlang:system_time(second), Tables),
    {noreply, State};
handle_info(_, State) ->
    {noreply, State}.

%% A reason may contain data of the process, such as a token.
outline(killed) -> killed;
outline(_) -> crashed.

landed(Subject, Pid, Result, #state{tables = Tables} = State) ->
    #state{questions = Questions, flights = Flights} = State,
    {#question{waiters = Waiters, flight = {Pid, Timer}}, Others} = maps:take(Subject, Questions),
    _ = erlang:cancel_timer(Timer, [{async, true}, {info, false}]),
    ok = tell_waiters(Subject, outcome(Subject, Result, Tables), Waiters, Tables),
    next(logged(element(2, Subject), Result,
                State#state{questions = Others, flights = maps:remove(Pid, Flights)})).

outcome({keys, Index}, Result, Tables) ->
    Outcome = store_keys(Index, Result, Tables),
    ok = erlmcp_bearer_tables:end_refresh(Index, Tables),
    Outcome;
outcome(_, {error, _}, _) ->
    {error, unavailable};
outcome(_, Answer, _) ->
    Answer.

store_keys(Index, {ok, Keys, Milliseconds}, Tables) ->
    ok = erlmcp_bearer_tables:put_keys(Index, Keys, Milliseconds, Tables),
    erlmcp_bearer_tables:fetch_again(Index, ?FETCH_MS, Tables);
store_keys(Index, {error, _}, Tables) ->
    ok = erlmcp_bearer_tables:fetch_again(Index, ?RETRY_MS, Tables),
    {error, unavailable}.

%% Clients could cause this at any rate, so it is logged once a minute.
logged(Index, {error, Reason}, #state{settings = #{server := Key}, logged = Logged} = State) ->
    Now = erlmcp_clock:now_ms(),
    case Logged of
        #{Index := Last} when Now - Last < ?LOG_MS ->
            State;
        #{} ->
            ok = erlmcp_log:report(warning, #{what => authorization_server_unavailable,
                                              source => Index, reason => Reason}, Key),
            State#state{logged = Logged#{Index => Now}}
    end;
logged(_, _, State) ->
    State.

tell_waiters(Subject, Outcome, Waiters, Tables) ->
    ok = erlmcp_bearer_tables:leave(length(Waiters), Tables),
    lists:foreach(fun({{Pid, Tag}, Reference}) ->
                      Pid ! {Tag, {erlmcp_bearer, Reference, {Subject, Outcome}}}
                  end, Waiters).
