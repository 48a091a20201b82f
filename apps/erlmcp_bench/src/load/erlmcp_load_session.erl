-module(erlmcp_load_session).
-moduledoc """
Opens a connection with its sessions, and ends the sessions. The calling process waits meanwhile. A
stateless connection counts as one session without an id.
""".

-export([connect/3, close/5]).

-export_type([sessions/0]).

-doc """
The ids of the sessions that have one, and for each session a tuple with a template for each kind of
request.
""".
-type sessions() :: {ids(), templates()}.
-type ids() :: [binary()].
-type templates() :: tuple().

%% The deadline, the socket and the settings of an exchange.
-type exchange() :: {Deadline :: integer(), erlmcp_load_socket:socket(),
                     erlmcp_load_plan:settings()}.
%% The state is `closing` if the peer takes no more requests.
-type position() :: {erlmcp_load_wire:state() | closing, erlmcp_load_wire:tag()}.

%% Milliseconds to connect.
-define(CONNECT_MS, 10_000).

-doc """
Connects to `Endpoint`, and opens the sessions of the era. In the stateless era there are no
sessions to open. Then a program must answer `server/discover`, which shows that it has started.

`Tag` is the number of the first request of the connection. Returns the socket, the sessions, the
state of the wire, and the number of the request that comes next.

Connecting may take the timeout of a request, but at most ten seconds, and the handshake of TLS as
long again. All sessions together, or the answer of a program, may take the timeout of a request.

The error is that of the socket or of the wire, `timeout`, `{refused, Code}` or `{wrong, What}`. It
is `closed` if the peer takes no more requests on the connection.
""".
-spec connect(erlmcp_load_socket:endpoint(), erlmcp_load_plan:settings(),
              Tag :: erlmcp_load_wire:tag()) ->
    {ok, erlmcp_load_socket:socket(), sessions(), erlmcp_load_wire:state(),
     Next :: erlmcp_load_wire:tag()}
    | {error, Reason :: term()}.
connect(Endpoint, #{timeout_us := Timeout} = Settings, Tag) ->
    maybe
        {ok, Socket} ?= erlmcp_load_socket:connect(Endpoint, min(Timeout div 1000, ?CONNECT_MS)),
        case open(Socket, Settings, Tag) of
            {ok, Sessions, State, Next} ->
                {ok, Socket, Sessions, State, Next};
            {error, _} = Error ->
                ok = erlmcp_load_socket:close(Socket),
                Error
        end
    end.

open(Socket, #{wire := Wire, wire_options := Options} = Settings, Tag) ->
    {First, State} = Wire:opened(Wire:new(Options)),
    maybe
        ok ?= greet(Socket, First),
        sessions(Socket, Settings, {State, Tag})
    end.

greet(_, ~"") -> ok;
greet(Socket, First) -> erlmcp_load_socket:send(Socket, First).

sessions(Socket, #{era := stateless, templates := Templates} = Settings, Position) ->
    maybe
        {ok, {State, Tag}} ?= started(Socket, Settings, Position),
        {ok, {[], {Templates}}, State, Tag}
    end;
sessions(Socket, #{sessions := Number} = Settings, Position) ->
    sessions(Number, {deadline(Settings), Socket, Settings}, Position, [], []).

sessions(0, _, {closing, _}, _, _) ->
    {error, closed};
sessions(0, _, {State, Tag}, Ids, Templates) ->
    {ok, {[Id || Id <- Ids, Id =/= none], list_to_tuple(Templates)}, State, Tag};
sessions(More, Exchange, {_, Tag} = Position, Ids, Templates) ->
    {_, _, #{era := {session, Revision}} = Settings} = Exchange,
    {Initialize, Expected} = erlmcp_load_request:initialize(Revision),
    Asks = erlmcp_load_wire:id(Tag),
    maybe
        {ok, Status, Body, Id, Answered} ?= ask(Initialize, Exchange, Position),
        {_, answered} ?= erlmcp_load_reply:check(Body, Status, Asks, Expected, []),
        Initialized = erlmcp_load_request:in_session(Id, erlmcp_load_request:initialized(Revision)),
        {ok, Ready} ?= tell(Initialized, Exchange, Answered),
        sessions(More - 1, Exchange, Ready, [Id | Ids], [prepared(Id, Settings) | Templates])
    else
        {_, {refused, Code, _}} -> {error, {refused, Code}};
        {_, {wrong, What}} -> {error, {wrong, What}};
        {error, _} = Error -> Error
    end.

%% A program is ready when it writes a first message: no request's latency includes its start.
started(Socket, #{way := #{connect := {stdio, _, _}}} = Settings, Position) ->
    {Discover, _} = erlmcp_load_request:new({~"server/discover", #{}}, stateless),
    maybe
        {ok, _, _, _, Answered} ?= ask(Discover, {deadline(Settings), Socket, Settings}, Position),
        {ok, Answered}
    end;
started(_, _, Position) ->
    {ok, Position}.

prepared(Id, #{wire := Wire, wire_options := Options, messages := Messages}) ->
    list_to_tuple([Wire:template(erlmcp_load_request:in_session(Id, Message), Options)
                   || Message <- Messages]).

-doc """
Ends the sessions that have an id, until `DeadlineMs` at the latest, in monotonic milliseconds.
Stops at the first one that cannot be ended. The socket stays open.
""".
-spec close(DeadlineMs :: integer(), sessions(), erlmcp_load_socket:socket(),
            erlmcp_load_plan:settings(), position()) -> ok.
close(Deadline, {Ids, _}, Socket, Settings, Position) ->
    close(Ids, {Deadline, Socket, Settings}, Position).

close([], _, _) ->
    ok;
close([Id | Ids], {_, _, #{era := {session, Revision}}} = Exchange, Position) ->
    case ask(erlmcp_load_request:goodbye(Revision, Id), Exchange, Position) of
        {ok, _, _, _, Answered} -> close(Ids, Exchange, Answered);
        {error, _} -> ok
    end.

deadline(#{timeout_us := Timeout}) ->
    erlang:monotonic_time(millisecond) + Timeout div 1000.

%% A notification ends when it is written, or, on wires that answer notifications, when it is
%% answered.
tell(Message, {_, Socket, #{wire := Wire, wire_options := Options}} = Exchange,
     {State, Tag} = Position) ->
    case Wire:traits() of
        #{answers_notifications := true} ->
            maybe
                {ok, _, _, _, Answered} ?= ask(Message, Exchange, Position),
                {ok, Answered}
            end;
        #{answers_notifications := false} ->
            {Bytes, Next} = Wire:request(Tag, Wire:template(Message, Options), State),
            maybe
                ok ?= erlmcp_load_socket:send(Socket, Bytes),
                {ok, {Next, Tag + 1}}
            end
    end.

-spec ask(erlmcp_load_wire:message(), exchange(), position()) ->
    {ok, erlmcp_load_wire:event_status(), Body :: binary(), Session :: binary() | none, position()}
    | {error, term()}.
ask(_, _, {closing, _}) ->
    {error, closed};
ask(Message, {_, Socket, #{wire := Wire, wire_options := Options}} = Exchange, {State, Tag}) ->
    {Bytes, Next} = Wire:request(Tag, Wire:template(Message, Options), State),
    maybe
        ok ?= erlmcp_load_socket:send(Socket, Bytes),
        await({none, false}, Exchange, {Next, Tag})
    end.

%% `Seen` is the session's id, or `none`, and whether the peer is closing.
await(Seen, {Deadline, Socket, _} = Exchange, Position) ->
    Remaining = max(0, Deadline - erlang:monotonic_time(millisecond)),
    case erlmcp_load_socket:next(Socket, Remaining) of
        {bytes, Bytes} ->
            received(Bytes, Seen, Exchange, Position);
        passive ->
            maybe
                ok ?= erlmcp_load_socket:activate(Socket),
                await(Seen, Exchange, Position)
            end;
        {closed, Reason} ->
            {error, Reason};
        timeout ->
            {error, timeout}
    end.

received(Bytes, {Session, Closes}, {_, Socket, #{wire := Wire}} = Exchange, {State, Tag}) ->
    maybe
        {ok, Events, ToSend, Next} ?= Wire:received(Bytes, State),
        ok ?= greet(Socket, iolist_to_binary(ToSend)),
        Given = case lists:keyfind(session, 1, Events) of
            {session, Tag, Id} -> binary:copy(Id);
            false -> Session
        end,
        Closing = Closes orelse lists:member(closing, Events),
        case [Event || Event <- Events, is_tuple(Event), element(1, Event) =/= session,
                       element(2, Event) =:= Tag] of
            [{reply, Tag, Status, Body} | _] when Closing ->
                {ok, Status, Body, Given, {closing, Tag + 1}};
            [{reply, Tag, Status, Body} | _] -> {ok, Status, Body, Given, {Next, Tag + 1}};
            [{failed, Tag, Reason} | _] -> {error, Reason};
            [] -> await({Given, Closing}, Exchange, {Next, Tag})
        end
    else
        {error, Unreadable, _} -> {error, Unreadable};
        {error, _} = Error -> Error
    end.
