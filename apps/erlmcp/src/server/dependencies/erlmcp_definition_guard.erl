-module(erlmcp_definition_guard).
-moduledoc """
Keeps problems of one definition away from the others of a server. Middleware around the handler
bounds the calls of the definition, and runs them with its circuit breaker and its worker. The
process of this module counts a call that is killed at its deadline as a failure.

Internal.
""".

-behaviour(gen_server).

-export([start_link/1, around/2, breakers/1, breaker_states/1]).
-export([init/1, handle_cast/2, handle_call/3, handle_info/2, terminate/2]).

-export_type([breakers/0]).

-doc "The breakers that definitions may share, by name.".
-type breakers() :: #{atom() => erlmcp_breaker:breaker()}.

-doc "Creates a breaker for each name in `Options`, with the options under that name.".
-spec breakers(Options :: #{atom() => erlmcp:breaker()}) -> breakers().
breakers(Options) ->
    #{Name => erlmcp_breaker:new(Given) || Name := Given <- Options}.

-doc """
Returns the state of each breaker that definitions of a server use, with the keys of these
definitions. The list is empty if the server has ended.
""".
-spec breaker_states(erlmcp_instance:instance()) -> [erlmcp:breaker_info()].
breaker_states(#{key := Key}) ->
    case erlmcp_published_catalog:find(Key) of
        {ok, Catalog} ->
            Targets = maps:groups_from_list(fun({_, Breaker}) -> Breaker end,
                                            fun({Target, _}) -> Target end,
                                            erlmcp_catalog:values(breaker, Catalog)),
            [#{name => Name, targets => lists:sort(Of), state => erlmcp_breaker:state(Breaker),
               failed => erlmcp_breaker:failed(Breaker)}
             || {{Name, Breaker}, Of} <- lists:keysort(1, maps:to_list(Targets))];
        %% A server that has just ended has no catalog.
        error ->
            []
    end.

-doc "Starts the process that guards the definitions of an instance.".
-spec start_link(erlmcp_instance:instance()) -> gen_server:start_ret().
start_link(Instance) ->
    gen_server:start_link(?MODULE, Instance, [{hibernate_after, 1000}]).

-doc """
Returns a fun that the catalog of the server with the key `Server` calls for each of its
definitions. `breakers` are the server's breakers, and `workers` the names of its pools of workers.

The fun returns the middleware that guards a definition, in a list, and the definition. The list is
empty for a definition without `max_calls`, `rates`, `breaker` and `workers`. In the returned
definition a field `breaker` is `{Name, Breaker}`. `Name` is the name of a shared breaker, or the
definition's key for a breaker of its own. The error names a wrong field, and what was expected
there.
""".
-spec around(Server :: reference(), #{breakers := breakers(), workers := [atom()]}) ->
    fun((erlmcp_definition:kind(), erlmcp_definition:definition()) ->
            {ok, [erlmcp:middleware()], erlmcp_definition:definition()}
            | {error, Field :: atom(), Expected :: binary()}).
around(Server, #{breakers := Breakers, workers := Workers}) ->
    fun(Kind, Definition) ->
        maybe
            {ok, Breaker} ?= shared(Definition, Breakers),
            {ok, Pool} ?= pool(Definition, Workers),
            Guards = guards(Server, bounds(Kind, Definition), Breaker, Pool),
            {ok, Guards, named(Breaker, Definition)}
        end
    end.

guards(_, [], none, none) -> [];
guards(Server, Bounds, Breaker, Pool) -> [middleware(Server, Bounds, Breaker, Pool)].

named(none, Definition) -> Definition;
named(Breaker, #{breaker := Options, key := Key} = Definition) when is_map(Options) ->
    Definition#{breaker := {Key, Breaker}};
named(Breaker, #{breaker := Name} = Definition) ->
    Definition#{breaker := {Name, Breaker}}.

shared(#{breaker := Options}, _) when is_map(Options) ->
    case erlmcp_breaker:is_options(Options) of
        true -> {ok, erlmcp_breaker:new(Options)};
        false -> {error, breaker, ~"failures, open_ms and longest_open_ms, each 1 or more"}
    end;
shared(#{breaker := Name}, Breakers) ->
    case Breakers of
        #{Name := Breaker} -> {ok, Breaker};
        #{} -> {error, breaker, ~"the name of one of the server's breakers"}
    end;
shared(_, _) ->
    {ok, none}.

pool(#{workers := Name}, Workers) ->
    case lists:member(Name, Workers) of
        true -> {ok, Name};
        false -> {error, workers, ~"the name of one of the server's pools of workers"}
    end;
pool(_, _) ->
    {ok, none}.

bounds(Kind, #{key := Key} = Definition) ->
    Name = {definition, {Kind, Key}},
    [{Name, {at_once, Most}} || #{max_calls := Most} <- [Definition]]
        ++ [{Name, {Period, Most}} || #{rates := Rates} <- [Definition], Period := Most <- Rates].

middleware(Server, Bounds, Breaker, Pool) ->
    fun(Arguments, Context, Next) ->
        maybe
            #{instance := #{gate := Gate}} = Guard ?=
                persistent_term:get({?MODULE, Server}, unknown),
            {ok, Permit} ?= erlmcp_gate:enter_definition(Gate, Bounds),
            try
                permitted(Arguments, Context, Next, Breaker, Pool, Guard)
            after
                erlmcp_gate:leave(Permit)
            end
        else
            {refuse, _} = Refused -> Refused;
            %% The process restarts.
            unknown -> {refuse, not_yet()}
        end
    end.

permitted(Arguments, Context, Next, Breaker, Pool, Guard) ->
    maybe
        ok ?= closed(Breaker),
        {ok, Loan, Given} ?= borrow(Pool, Context, Guard),
        {ok, Entered} ?= enter(Breaker, Loan),
        watched(Arguments, Given, Next, Entered, Loan, Guard)
    else
        {error, Refusal} -> {refuse, Refusal}
    end.

not_yet() ->
    erlmcp_refusal:new(service_unavailable, ~"a part of the server is restarting",
                       #{retry_after_ms => 1000}).

%% Checks the breaker before the call waits for a worker.
closed(none) ->
    ok;
closed(Breaker) ->
    case erlmcp_breaker:works(Breaker) of
        true -> ok;
        false -> {error, is_open(erlmcp_breaker:opens_in(Breaker))}
    end.

is_open(Milliseconds) ->
    erlmcp_refusal:new(circuit_breaker_open, ~"a dependency of this call has failed recently",
                       #{retry_after_ms => Milliseconds}).

borrow(none, Context, _) ->
    {ok, none, Context};
borrow(Pool, #{deadline := Deadline} = Context, #{instance := Instance}) ->
    maybe
        {ok, Loan, Worker} ?= erlmcp_workers:borrow(Pool, Deadline, Instance),
        {ok, Loan, Context#{worker => Worker}}
    end.

enter(none, _) ->
    {ok, none};
enter(Breaker, Loan) ->
    case erlmcp_breaker:enter(Breaker) of
        {ok, Entry} ->
            {ok, {Breaker, Entry}};
        {open, Milliseconds} ->
            ok = give_back(Loan, good),
            {error, is_open(Milliseconds)}
    end.

watched(Arguments, #{deadline := Deadline} = Context, Next, Entered, Loan, Guard) ->
    #{process := Process, instance := #{key := Server}} = Guard,
    Guarded = {Server, maps:get(name, Context, maps:get(uri, Context, undefined)), Entered},
    ok = watch(Process, Guarded, Deadline),
    try Next(Arguments, Context) of
        Return ->
            ok = leave(Process, Guarded, outcome(Return)),
            ok = give_back(Loan, good),
            Return
    catch
        Class:Reason:Stack ->
            ok = leave(Process, Guarded, failed),
            ok = give_back(Loan, doubtful),
            erlang:raise(Class, Reason, Stack)
    end.

%% A refusal for an error of the caller is not a failure of the definition.
outcome({refuse, Refusal}) ->
    case erlmcp_refusal:status(Refusal) of
        Status when Status >= 500 -> failed;
        _ -> served
    end;
outcome(_) ->
    served.

give_back(none, _) -> ok;
give_back(Loan, State) -> erlmcp_workers:give_back(Loan, State).

watch(_, {_, _, none}, _) -> ok;
watch(Process, Guarded, Deadline) -> gen_server:cast(Process, {watch, self(), Guarded, Deadline}).

leave(_, {_, _, none}, _) ->
    ok;
leave(Process, Guarded, Outcome) ->
    ok = gen_server:cast(Process, {unwatch, self()}),
    leave_breaker(Guarded, Outcome).

leave_breaker({Server, Target, {Breaker, Entry}}, Outcome) ->
    case erlmcp_breaker:leave(Breaker, Entry, Outcome) of
        opened ->
            erlmcp_event_handler:emit(Server, breaker_opened,
                                      #{target => Target,
                                        opens_in_ms => erlmcp_breaker:opens_in(Breaker)});
        closed ->
            erlmcp_event_handler:emit(Server, breaker_closed, #{target => Target});
        ok ->
            ok
    end.

-doc false.
init(#{key := Server} = Instance) ->
    process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE], Server),
    persistent_term:put({?MODULE, Server}, #{process => self(), instance => Instance}),
    {ok, #{server => Server, watched => #{}}}.

-doc false.
handle_call(_, _, State) ->
    {reply, {error, unknown}, State}.

-doc false.
handle_cast({watch, Call, Guarded, Deadline}, #{watched := Watched} = State) ->
    {noreply, State#{watched := Watched#{Call => {monitor(process, Call), Guarded, Deadline}}}};
handle_cast({unwatch, Call}, #{watched := Watched} = State) ->
    case maps:take(Call, Watched) of
        {{Monitor, _, _}, Rest} ->
            true = demonitor(Monitor, [flush]),
            {noreply, State#{watched := Rest}};
        error ->
            {noreply, State}
    end.

-doc false.
handle_info({'DOWN', _, process, Call, _}, #{watched := Watched} = State) when
    is_map_key(Call, Watched)
->
    {{_, {_, _, {Breaker, Entry}} = Guarded, Deadline}, Rest} = maps:take(Call, Watched),
    %% Before its deadline, a call is killed mostly because its client cancelled it or went away.
    %% Such an end is neither a success nor a failure.
    case erlmcp_clock:now_ms() >= Deadline of
        true -> ok = leave_breaker(Guarded, failed);
        false -> ok = erlmcp_breaker:spare(Breaker, Entry)
    end,
    {noreply, State#{watched := Rest}};
handle_info(_, State) ->
    {noreply, State}.

-doc false.
terminate(_, #{server := Server}) ->
    _ = persistent_term:erase({?MODULE, Server}),
    ok.
