-module(erlmcp_event_handler).
-moduledoc """
Calls a handler of events: a fun that a server has by its option `on_event`, by
`erlmcp_event:attach/3`, or for the application telemetry. Each handler has a process of its own, so
a process that emits an event never waits. At most 1,000 events wait for a fun; further ones are
dropped. The next event that the fun gets has their number as `dropped`.

`m:erlmcp_event_table` lists all events.

Internal.
""".

-behaviour(gen_server).

-export([open/0, start_link/2, emit/3, broadcast/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-export_type([handler/0]).

-type handler() :: erlmcp_event:handler().

-record(state, {
    key :: reference(),
    server :: term(),
    handler :: handler(),
    %% Counts the events that wait for the fun.
    backlog :: erlmcp_drop_counter:backlog()
}).

-doc """
Creates the table of the processes that call the handlers of servers. The calling process owns the
table.
""".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [bag, named_table, public, {read_concurrency, true}]),
    ok.

-doc """
Starts the process that calls a handler with the events of the server with the key `Key`.
""".
-spec start_link(Key :: reference(), handler()) -> gen_server:start_ret().
start_link(Key, Handler) ->
    gen_server:start_link(?MODULE, {Key, Handler}, []).

-doc """
Emits the event `Name` of the server with the key `Key` to its handlers, without waiting. A handler
for which 1,000 events wait already does not get the event. Does nothing after the application has
stopped.
""".
-spec emit(Key :: reference(), erlmcp_event_table:name(), Fields :: #{atom() => term()}) -> ok.
emit(Key, Name, Fields) ->
    try ets:lookup(?MODULE, Key) of
        Rows -> send(Rows, Name, Fields)
    catch
        %% The application has stopped before the server.
        error:badarg -> ok
    end.

-doc """
Emits an event that concerns the whole node to the handlers of all of its servers, without waiting.
A handler for which 1,000 events wait already does not get the event. Raises `badarg` if the table
of `open/0` does not exist.
""".
-spec broadcast(erlmcp_event_table:name(), #{atom() => term()}) -> ok.
broadcast(Name, Fields) ->
    send(ets:tab2list(?MODULE), Name, Fields).

send(Rows, Name, Fields) ->
    Event = Fields#{event => Name, at => erlang:system_time(millisecond)},
    lists:foreach(
        fun({_, Pid, Backlog} = Row) ->
            case is_process_alive(Pid) of
                true -> erlmcp_drop_counter:enter(Backlog) andalso (Pid ! {?MODULE, Event});
                %% The process was killed, and could not delete its row.
                false -> ets:delete_object(?MODULE, Row)
            end
        end, Rows).

-doc false.
init({Key, Handler}) ->
    process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE], Key),
    %% A new counter, since messages to an earlier process were lost with that process.
    Backlog = erlmcp_drop_counter:new(),
    true = ets:insert(?MODULE, {Key, self(), Backlog}),
    {ok, #state{key = Key, server = erlmcp_log:server(Key), handler = Handler,
                backlog = Backlog}}.

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
            erlmcp_log:report(error, (erlmcp_incident:outline(Reason, Stack))#{
                                         what => event_handler_failed, server => Server,
                                         event => map_get(event, Event), class => Class})
    end.

%% Events that were emitted before the server ends still reach the fun.
-doc false.
terminate(_, #state{key = Key, backlog = Backlog} = State) ->
    true = ets:delete_object(?MODULE, {Key, self(), Backlog}),
    rest(State).

rest(State) ->
    receive
        {?MODULE, Event} ->
            ok = handle_event(Event, State),
            rest(State)
    after 0 ->
        ok
    end.
