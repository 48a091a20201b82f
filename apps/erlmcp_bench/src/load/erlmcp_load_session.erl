-module(erlmcp_load_session).
-moduledoc """
The sessions of a connection: opened before its load begins, closed after it. A stateless connection
has one that needs neither. The process of the connection waits meanwhile.
""".

-export([connect/3, close/5]).

-export_type([sessions/0]).

-doc "Of each session its id, if it has one, and a template for each kind of request.".
-type sessions() :: {ids(), templates()}.
-type ids() :: [binary()].
-type templates() :: tuple().

%% Until when it may take, and where.
-type place() :: {Deadline :: integer(), erlmcp_load_socket:socket(), erlmcp_load_plan:settings()}.
-type asked() :: {erlmcp_load_wire:state(), erlmcp_load_wire:tag()}.

%% Milliseconds for a connection.
-define(CONNECT_MS, 10_000).

-doc "Connects, and opens what the era asks for; the requests of that are counted on from a tag.".
-spec connect(erlmcp_load_socket:endpoint(), erlmcp_load_plan:settings(),
              erlmcp_load_wire:tag()) ->
    {ok, erlmcp_load_socket:socket(), sessions(), erlmcp_load_wire:state(),
     erlmcp_load_wire:tag()}
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

sessions(Socket, #{era := stateless, templates := Templates} = Settings, Asked) ->
    maybe
        {ok, {State, Tag}} ?= started(Socket, Settings, Asked),
        {ok, {[], {Templates}}, State, Tag}
    end;
sessions(Socket, #{sessions := Number} = Settings, Asked) ->
    sessions(Number, {deadline(Settings), Socket, Settings}, Asked, [], []).

sessions(0, _, {State, Tag}, Ids, Templates) ->
    {ok, {[Id || Id <- Ids, Id =/= none], list_to_tuple(Templates)}, State, Tag};
sessions(Left, Place, {_, Tag} = Asked, Ids, Templates) ->
    {_, _, #{era := {session, Revision}} = Settings} = Place,
    {Initialize, Expected} = erlmcp_load_request:initialize(Revision),
    Asks = erlmcp_load_wire:id(Tag),
    maybe
        {ok, Status, Body, Id, Answered} ?= ask(Initialize, Place, Asked),
        {_, answered} ?= erlmcp_load_reply:check(Body, Status, Asks, Expected, []),
        Initialized = erlmcp_load_request:in_session(Id, erlmcp_load_request:initialized(Revision)),
        {ok, Told} ?= tell(Initialized, Place, Answered),
        sessions(Left - 1, Place, Told, [Id | Ids], [prepared(Id, Settings) | Templates])
    else
        {_, {refused, Code, _}} -> {error, {refused, Code}};
        {_, {wrong, What}} -> {error, {wrong, What}};
        {error, _} = Error -> Error
    end.

%% A program is there when it says something: the time it takes to start is no request's.
started(Socket, #{way := #{connect := {stdio, _, _}}} = Settings, Asked) ->
    {Discover, _} = erlmcp_load_request:new({~"server/discover", #{}}, stateless),
    maybe
        {ok, _, _, _, Answered} ?= ask(Discover, {deadline(Settings), Socket, Settings}, Asked),
        {ok, Answered}
    end;
started(_, _, Asked) ->
    {ok, Asked}.

prepared(Id, #{wire := Wire, wire_options := Options, messages := Messages}) ->
    list_to_tuple([Wire:template(erlmcp_load_request:in_session(Id, Message), Options)
                   || Message <- Messages]).

-doc "Ends the sessions that have an id, as far as there is time for that.".
-spec close(DeadlineMs :: integer(), sessions(), erlmcp_load_socket:socket(),
            erlmcp_load_plan:settings(), asked()) -> ok.
close(Deadline, {Ids, _}, Socket, Settings, Asked) ->
    close(Ids, {Deadline, Socket, Settings}, Asked).

close([], _, _) ->
    ok;
close([Id | Ids], {_, _, #{era := {session, Revision}}} = Place, Asked) ->
    case ask(erlmcp_load_request:goodbye(Revision, Id), Place, Asked) of
        {ok, _, _, _, Answered} -> close(Ids, Place, Answered);
        {error, _} -> ok
    end.

deadline(#{timeout_us := Timeout}) ->
    erlang:monotonic_time(millisecond) + Timeout div 1000.

%% A notification is over when it is written, or where that is so, when it is replied to.
tell(Message, {_, Socket, #{wire := Wire, wire_options := Options}} = Place,
     {State, Tag} = Asked) ->
    case Wire:traits() of
        #{answers_notifications := true} ->
            maybe
                {ok, _, _, _, Answered} ?= ask(Message, Place, Asked),
                {ok, Answered}
            end;
        #{answers_notifications := false} ->
            {Bytes, Next} = Wire:request(Tag, Wire:template(Message, Options), State),
            maybe
                ok ?= erlmcp_load_socket:send(Socket, Bytes),
                {ok, {Next, Tag + 1}}
            end
    end.

-spec ask(erlmcp_load_wire:message(), place(), asked()) ->
    {ok, erlmcp_load_wire:event_status(), Body :: binary(), Session :: binary() | none, asked()}
    | {error, term()}.
ask(Message, {_, Socket, #{wire := Wire, wire_options := Options}} = Place, {State, Tag}) ->
    {Bytes, Next} = Wire:request(Tag, Wire:template(Message, Options), State),
    maybe
        ok ?= erlmcp_load_socket:send(Socket, Bytes),
        await(none, Place, {Next, Tag})
    end.

await(Session, {Deadline, Socket, _} = Place, Asked) ->
    Left = max(0, Deadline - erlang:monotonic_time(millisecond)),
    case erlmcp_load_socket:next(Socket, Left) of
        {bytes, Bytes} ->
            received(Bytes, Session, Place, Asked);
        passive ->
            maybe
                ok ?= erlmcp_load_socket:activate(Socket),
                await(Session, Place, Asked)
            end;
        {closed, Reason} ->
            {error, Reason};
        timeout ->
            {error, timeout}
    end.

received(Bytes, Session, {_, Socket, #{wire := Wire}} = Place, {State, Tag}) ->
    maybe
        {ok, Events, ToSend, Next} ?= Wire:received(Bytes, State),
        ok ?= greet(Socket, iolist_to_binary(ToSend)),
        Given = case lists:keyfind(session, 1, Events) of
            {session, Tag, Id} -> binary:copy(Id);
            false -> Session
        end,
        case [Event || Event <- Events, is_tuple(Event), element(1, Event) =/= session,
                       element(2, Event) =:= Tag] of
            [{reply, Tag, Status, Body} | _] -> {ok, Status, Body, Given, {Next, Tag + 1}};
            [{failed, Tag, Reason} | _] -> {error, Reason};
            [] -> await(Given, Place, {Next, Tag})
        end
    end.
