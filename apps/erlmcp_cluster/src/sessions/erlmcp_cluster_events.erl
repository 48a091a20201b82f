-module(erlmcp_cluster_events).
-moduledoc """
Copies the kept events of calls' streams to one other node, the one that will be the session's home
if this node dies now. There a client that resumes gets them (`stream/3`).

Events leave after 5 ms, or when there are 64 KiB of them. Events that a connection had no room for,
or that may have been lost with it, are sent again. When a session's next home changes, the new one
is sent all events of the session. The events and copies on a node have 64 MiB together; over that
the oldest are deleted. While 16 MiB of events wait for this process, only the beginnings and the
ends of streams are copied, without bytes.

A message is `{erlmcp_cluster_events, 1, Incarnation, Events}`. A node asks for all its copies again
with `{erlmcp_cluster_events, 1, {again, Incarnation}}`. A message of another version is ignored.

Internal.
""".

-behaviour(gen_server).

-export([start_link/0, keep/3, stream/3, members_changed/0, flush/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2, format_status/1]).

-define(VERSION, 1).
-define(COLLECT_MS, 5).
-define(COLLECT_BYTES, 65_536).
-define(AGAIN_MS, 100).
-define(SWEEP_MS, 10_000).
-define(MOST, (64 * 1_048_576)).
-define(MOST_GIVEN, (16 * 1_048_576)).
%% The time in which the last events leave before a node gives its sessions up.
-define(FLUSH_MS, 1_000).

-record(state, {
    copies :: erlmcp_cluster_event_copies:copies(),
    %% bytes that wait for this process
    given :: atomics:atomics_ref(),
    %% bytes since events were sent last
    collected = 0 :: non_neg_integer(),
    timer = none :: none | reference(),
    %% for the next sweep
    sweep :: reference(),
    %% whether a connection had no room, or was lost
    again = false :: boolean()
}).

-doc "Starts the process that copies events to other nodes.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc """
Copies an event to the session's next home, as `c:erlmcp_server_cluster:keep_event/3` describes it.
""".
-spec keep(Id :: binary(), erlmcp_server_cluster:kept_event(), erlmcp_cluster:server()) -> ok.
keep(Id, #{bytes := Bytes} = Event, Of) ->
    case persistent_term:get(?MODULE, none) of
        none ->
            ok;
        {_, Given} ->
            Size = size_of(Bytes),
            case atomics:add_get(Given, 1, Size) > ?MOST_GIVEN of
                true ->
                    ok = atomics:sub(Given, 1, Size),
                    keep_place(Id, Event, Of);
                false ->
                    give(Id, Event, Of)
            end
    end.

%% The beginnings and the ends of streams are as few as calls.
keep_place(Id, #{bytes := Bytes, ended := Ended} = Event, Of) when Ended; Bytes =:= none ->
    give(Id, Event#{bytes := none}, Of);
keep_place(_, _, _) ->
    ok.

give(Id, Event, Of) ->
    gen_server:cast(?MODULE, {keep, key(Id, Of), map_get(stored, Of), Event}).

size_of(none) -> 0;
size_of(Bytes) -> byte_size(Bytes).

key(Id, #{server := Server}) ->
    {Server, erlmcp_cluster_session_id:name(Id)}.

-doc """
Returns this node's copies of a stream, as `c:erlmcp_server_cluster:kept_stream/3` describes it.
""".
-spec stream(Id :: binary(), {non_neg_integer(), integer()}, erlmcp_cluster:server()) ->
    {ok, erlmcp_server_cluster:kept_stream()} | none.
stream(Id, {Incarnation, _} = Stream, Of) ->
    maybe
        {Copies, _} ?= persistent_term:get(?MODULE, none),
        {ok, Requests, Events, Last, Ended} ?= stored(key(Id, Of), Stream, Copies),
        State = case Ended of
            true -> ended;
            lost -> lost;
            false ->
                case erlmcp_cluster_members:is_over(Incarnation) of
                    true -> lost;
                    false -> running
                end
        end,
        {ok, #{requests => Requests, events => Events, last => Last, state => State}}
    end.

stored(Key, Stream, Copies) ->
    try
        erlmcp_cluster_event_copies:stream(Key, Stream, Copies)
    catch
        %% The process has just ended, and its tables with it.
        error:badarg -> none
    end.

-doc """
Tells the process that an incarnation has begun, has given its sessions up, or has ended. The
process then sends each session's events to its present next home.
""".
-spec members_changed() -> ok.
members_changed() ->
    gen_server:cast(?MODULE, members_changed).

-doc """
Sends all events that have not been sent. Returns when they have left, or after a second. Returns at
once if the process does not run.
""".
-spec flush() -> ok.
flush() ->
    %% A drain goes on without the process, whatever its state.
    flush(erlmcp_clock:now_ms() + ?FLUSH_MS).

flush(Until) ->
    try gen_server:call(?MODULE, flush, max(1, Until - erlmcp_clock:now_ms())) of
        waits ->
            case erlmcp_clock:now_ms() < Until of
                true -> receive after 50 -> flush(Until) end;
                false -> ok
            end;
        sent ->
            ok
    catch
        %% The process is busy, or it has ended, and its events with it.
        exit:_ -> ok
    end.

-doc false.
init([]) ->
    _ = process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE]),
    ok = net_kernel:monitor_nodes(true),
    Copies = erlmcp_cluster_event_copies:new(?MOST),
    Given = atomics:new(1, []),
    ok = persistent_term:put(?MODULE, {Copies, Given}),
    self() ! {ask, erlmcp_cluster_store:members() -- [node()]},
    {ok, #state{copies = Copies, given = Given, sweep = sweep_later()}}.

sweep_later() ->
    erlang:send_after(?SWEEP_MS, self(), sweep).

-doc false.
handle_call(flush, _, State) ->
    #state{copies = Copies} = Sent = send(aimed(State)),
    {reply, case erlmcp_cluster_event_copies:targets(Copies) of
                [] -> sent;
                _ -> waits
            end, Sent}.

-doc false.
handle_cast({keep, Key, Stored, #{bytes := Bytes} = Event}, State) ->
    #state{copies = Copies, given = Given, collected = Collected} = State,
    Size = size_of(Bytes),
    ok = atomics:sub(Given, 1, Size),
    case erlmcp_cluster_event_copies:session(Key, Copies) of
        {true, _} ->
            ok;
        _ ->
            ok = erlmcp_cluster_event_copies:own(Key, Stored, Copies),
            aim(Key, view(), Copies)
    end,
    ok = erlmcp_cluster_event_copies:add(Key, Stored, Event, erlmcp_clock:now_ms(), Copies),
    Next = State#state{collected = Collected + Size},
    case Next of
        #state{collected = Enough} when Enough >= ?COLLECT_BYTES -> {noreply, send(Next)};
        #state{timer = none} ->
            {noreply, Next#state{timer = erlang:start_timer(?COLLECT_MS, self(), send)}};
        #state{} -> {noreply, Next}
    end;
handle_cast(members_changed, State) ->
    {noreply, send(aimed(State))}.

-doc false.
handle_info({timeout, Timer, send}, #state{timer = Timer} = State) ->
    {noreply, send(State)};
handle_info(again, State) ->
    {noreply, send(State#state{again = false})};
handle_info({?MODULE, ?VERSION, Incarnation, Events}, #state{copies = Copies} = State) ->
    Now = erlmcp_clock:now_ms(),
    _ = is_dead(Incarnation) orelse
        [ok = erlmcp_cluster_event_copies:add(Key, Stored, Event, Now, Copies)
         || {Key, Stored, Event} <- Events],
    {noreply, State};
handle_info({?MODULE, ?VERSION, {again, Incarnation}}, State) when is_integer(Incarnation) ->
    ok = again(fun(Target) -> Target =:= Incarnation end, State),
    {noreply, send(State)};
%% A node that is not connected is sent all when it is.
handle_info({ask, Nodes}, State) ->
    Ask = {?MODULE, ?VERSION, {again, own()}},
    _ = case [Node || Node <- Nodes, to(Node, Ask) =:= nosuspend] of
        [] -> ok;
        Full -> erlang:send_after(?AGAIN_MS, self(), {ask, Full})
    end,
    {noreply, State};
%% What was on its way there may be lost.
handle_info({nodedown, Node}, State) ->
    ok = again(fun(Target) -> node_of(Target) =:= Node end, State),
    {noreply, send(State)};
handle_info(sweep, #state{copies = Copies, sweep = Timer} = State) ->
    %% The message may have come from outside.
    _ = erlang:cancel_timer(Timer),
    ok = erlmcp_cluster_event_copies:expire(erlmcp_clock:now_ms(), is_over(), Copies),
    {noreply, State#state{sweep = sweep_later()}};
handle_info(_, State) ->
    {noreply, State}.

%% The events of sessions with such a target are to be sent there once more.
again(IsSuch, #state{copies = Copies}) ->
    _ = [erlmcp_cluster_event_copies:aim(Key, Target, Copies)
         || {Key, _, Target} <- erlmcp_cluster_event_copies:sessions(Copies),
            is_integer(Target), IsSuch(Target)],
    ok.

%% Whether an incarnation is over, as far as this node has heard.
is_dead(Incarnation) ->
    not is_map_key(Incarnation, erlmcp_cluster_members:incarnations())
        andalso erlmcp_cluster_deaths:is_dead(Incarnation, erlmcp_cluster_members:deaths()).

%% Whether this node will hear no more of a stream: its incarnation is over, or the session is
%% neither this node's nor copied to it any more.
is_over() ->
    Own = own(),
    Deaths = erlmcp_cluster_members:deaths(),
    Living = maps:keys(erlmcp_cluster_members:incarnations()),
    %% The deaths as they would be if the home died now.
    Without = #{Home => erlmcp_cluster_deaths:declare(Home, Living, 0, Deaths) || Home <- Living},
    fun({_, {Incarnation, _}}) when Incarnation =:= Own ->
            false;
       ({Key, {Incarnation, _}}) ->
            is_dead(Incarnation) orelse case home(Key, Deaths) of
                Own -> false;
                Home when is_map_key(Home, Without) -> home(Key, map_get(Home, Without)) =/= Own;
                _ -> false
            end
    end.

%% Gives each session the target that it must have now, if it is this node's.
aimed(#state{copies = Copies} = State) ->
    {Own, Deaths, _} = View = view(),
    _ = [aim(Key, View, Copies) || {Key, IsOwn, _} <- erlmcp_cluster_event_copies:sessions(Copies),
                                   IsOwn orelse home(Key, Deaths) =:= Own],
    _ = [erlmcp_cluster_event_copies:give_up(Target, Copies)
         || Target <- erlmcp_cluster_event_copies:targets(Copies), node_of(Target) =:= none],
    State.

%% This incarnation, the deaths, and what they would be if it died now. There may be many sessions,
%% so this is computed once for all of them.
view() ->
    Own = own(),
    Deaths = erlmcp_cluster_members:deaths(),
    {Own, Deaths, without(Own, Deaths)}.

without(none, Deaths) ->
    Deaths;
without(Own, Deaths) ->
    Living = maps:keys(erlmcp_cluster_members:incarnations()),
    erlmcp_cluster_deaths:declare(Own, Living, 0, Deaths).

home({_, <<First:32, _/binary>> = Name}, Deaths) ->
    case erlmcp_cluster_deaths:home(Name, First, Deaths) of
        {ok, Home} -> Home;
        none -> nowhere
    end.

aim(Key, View, Copies) ->
    Next = next_home(Key, View),
    case erlmcp_cluster_event_copies:session(Key, Copies) of
        {_, Next} -> ok;
        _ -> erlmcp_cluster_event_copies:aim(Key, Next, Copies)
    end.

own() ->
    case erlmcp_cluster_lease:current() of
        #{number := Number} -> Number;
        none -> none
    end.

%% The home of a session if this incarnation died now, or its home if this one has given it up.
next_home(_, {none, _, _}) ->
    none;
next_home(Key, {_, _, Without}) ->
    case home(Key, Without) of
        nowhere -> none;
        Home -> Home
    end.

node_of(Incarnation) ->
    maps:get(Incarnation, erlmcp_cluster_members:incarnations(), none).

%% Sends what has not been sent.
send(#state{copies = Copies, timer = Timer, again = Again} = State) ->
    _ = Timer =:= none orelse erlang:cancel_timer(Timer),
    Results = [send_to(Target, Copies) || Target <- erlmcp_cluster_event_copies:targets(Copies)],
    WaitsMore = lists:member(waits, Results),
    _ = WaitsMore andalso not Again andalso erlang:send_after(?AGAIN_MS, self(), again),
    State#state{timer = none, collected = 0, again = Again orelse WaitsMore}.

send_to(Target, Copies) ->
    case erlmcp_cluster_event_copies:unsent(Target, ?COLLECT_BYTES, Copies) of
        {[], []} ->
            sent;
        {Numbers, Events} ->
            case to(node_of(Target), {?MODULE, ?VERSION, own(), Events}) of
                ok ->
                    ok = erlmcp_cluster_event_copies:sent(Target, Numbers, Copies),
                    send_to(Target, Copies);
                _ ->
                    waits
            end
    end.

to(none, _) -> noconnect;
to(Node, Message) -> erlang:send({?MODULE, Node}, Message, [nosuspend, noconnect]).

-doc false.
format_status(Status) ->
    erlmcp_log:without_state(Status).

-doc false.
terminate(_, State) ->
    _ = send(State),
    persistent_term:erase(?MODULE).
