-module(erlmcp_event).
-moduledoc """
Events of a server that its operator may want to know of at once. The server's option `on_event` is
a fun that is called with each event, in one process per server. The process that emits an event
never waits. At most 1,000 events wait for the fun; further ones are dropped, and the next event has
their number.

One table of the node has these processes, by the keys of their servers. `table/0` lists all events.

Internal.
""".

-behaviour(gen_server).

-export([open/0, start_link/3, emit/3, broadcast/2, table/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-export_type([handler/0, name/0]).

-type handler() :: fun((erlmcp:event()) -> term()).
-type name() :: atom().

-record(state, {
    key :: reference(),
    server :: term(),
    handler :: handler(),
    %% Counts the events that wait for the fun.
    backlog :: erlmcp_drop_counter:backlog()
}).

-doc """
Returns all events: the name of each, the fields that it has in addition to the common ones, and a
sentence that says when it is emitted.
""".
-spec table() -> [{name(), [atom()], When :: binary()}].
table() ->
    [{error_budget_changed, [window, from, to, requests, faults],
      ~"the error budget of a window, `window` seconds long, is in another zone"},
     {memory_full, [source, used, limit],
      ~"the memory passed its bound: new work is refused with 1089"},
     {memory_ok, [source, used, limit], ~"the memory is far enough under its bound again"},
     {processors_busy, [waited, limit],
      ~"a new process waits too long for a scheduler: new work is refused with 1078"},
     {processors_ok, [waited, limit], ~"a new process waits for less than half of the bound again"},
     {incident, [incident, what, method, target],
      <<"a handler crashed, was killed, was late or returned too much; the log has the rest "
        "under the id">>},
     {not_quick, [method, target, why, limit],
      ~"a handler with `quick => true` used more than `limit` `reductions`, or milliseconds"},
     {slow_consumer, [limit],
      <<"the stream or connection of a client that does not read was closed; `limit` is the "
        "bound that it passed">>},
     {breaker_opened, [target, opens_in_ms],
      ~"too many calls failed in a row, the last of `target`: no call goes there for a while"},
     {breaker_closed, [target], ~"a call of `target` was served: all calls go there again"},
     {spans_dropped, [collector, dropped, why],
      ~"spans of traces were dropped: a buffer is full, or the collector cannot be reached"},
     {draining, [milliseconds], ~"the server is being drained: new requests are refused with 1077"},
     {drained, [calls, tasks],
      ~"the server was drained: `calls` were ended before they had answered, `tasks` still run"}].

-doc """
Creates the table of the processes that call the `on_event` funs of servers. The calling process
owns the table.
""".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {read_concurrency, true}]),
    ok.

-doc """
Starts the process that calls `on_event` for the server with the key `Key`. `Server` is the value of
`server` in its events.
""".
-spec start_link(Key :: reference(), Server :: term(), handler()) -> gen_server:start_ret().
start_link(Key, Server, Handler) ->
    gen_server:start_link(?MODULE, {Key, Server, Handler}, []).

-doc """
Emits the event `Name` of the server with the key `Key`, without waiting. The event is dropped if
1,000 wait already. Does nothing if the server has no `on_event`.
""".
-spec emit(Key :: reference(), Name :: name(), Fields :: #{atom() => term()}) -> ok.
emit(Key, Name, Fields) ->
    try ets:lookup(?MODULE, Key) of
        [{_, Pid, Backlog}] -> send(Pid, Backlog, event(Name, Fields));
        [] -> ok
    catch
        %% The application has stopped before the server.
        error:badarg -> ok
    end.

-doc """
Emits an event that concerns the whole node, without waiting, to all of its servers with `on_event`.
The table (`open/0`) must be there.
""".
-spec broadcast(name(), #{atom() => term()}) -> ok.
broadcast(Name, Fields) ->
    Event = event(Name, Fields),
    lists:foreach(
        fun({_, Pid, Backlog} = Row) ->
            case is_process_alive(Pid) of
                true -> send(Pid, Backlog, Event);
                %% The process was killed, and could not delete its row.
                false -> ets:delete_object(?MODULE, Row)
            end
        end, ets:tab2list(?MODULE)).

event(Name, Fields) ->
    Fields#{event => Name, at => erlang:system_time(millisecond)}.

send(Pid, Backlog, Event) ->
    _ = erlmcp_drop_counter:enter(Backlog) andalso (Pid ! {?MODULE, Event}),
    ok.

-doc false.
init({Key, Server, Handler}) ->
    process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE], Key),
    %% A new counter, since messages to an earlier process were lost with that process.
    Backlog = erlmcp_drop_counter:new(),
    true = ets:insert(?MODULE, {Key, self(), Backlog}),
    {ok, #state{key = Key, server = Server, handler = Handler, backlog = Backlog}}.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info({?MODULE, Event}, State) ->
    ok = handle_event(Event, State),
    {noreply, State};
handle_info(_, State) ->
    {noreply, State}.

handle_event(Event, #state{server = Server, handler = Handler, backlog = Backlog}) ->
    ok = erlmcp_drop_counter:leave(Backlog),
    Whole = erlmcp_drop_counter:with_dropped(Event#{server => Server}, Backlog),
    try
        _ = Handler(Whole),
        ok
    catch
        Class:Reason:Stack ->
            erlmcp_log:report(error, #{what => event_handler_failed, server => Server,
                                       event => map_get(event, Event), class => Class,
                                       reason => Reason, stacktrace => Stack})
    end.

%% Events that were emitted before the server ends still reach the fun.
-doc false.
terminate(_, #state{key = Key} = State) ->
    true = ets:delete(?MODULE, Key),
    rest(State).

rest(State) ->
    receive
        {?MODULE, Event} ->
            ok = handle_event(Event, State),
            rest(State)
    after 0 ->
        ok
    end.
