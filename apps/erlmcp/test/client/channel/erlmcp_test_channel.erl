-module(erlmcp_test_channel).
-moduledoc """
A client that is only a channel: it sends messages, and returns the events of their exchanges.
""".

-export([open/2, open/3, up/1, down/1, owned/1]).
-export([send/3, send/4, request/4, notify/3, events/2, outcome/2, ask/4]).
-export([limits/0, patience/0]).

-define(PATIENCE, 30_000).

patience() -> ?PATIENCE.

limits() ->
    #{message_bytes => 1_000_000, depth => 64, members => 10_000}.

-doc """
Opens a channel of this module to a target. `Options` of `open/3` are those of the transport, other
limits, and the client's numbers of calls and subscriptions.
""".
open(Module, Target) ->
    open(Module, Target, #{}).

open(Module, Target, Options) ->
    {Limits, Rest} = case maps:take(limits, Options) of
        error -> {#{}, Options};
        Taken -> Taken
    end,
    Numbers = [calls, subscriptions],
    Settings = (maps:with(Numbers, Rest))#{limits => maps:merge(limits(), Limits),
                                           connect_timeout => ?PATIENCE,
                                           options => maps:without(Numbers, Rest)},
    {ok, Pid, Handle} = Module:open(Target, Settings),
    {Module, Pid, Handle}.

-doc """
Waits for the next connection, and returns its number. `down/1` and `owned/1` wait for what else the
owner hears.
""".
up({_, Pid, _}) ->
    receive
        {erlmcp_channel, Pid, {up, Generation}} -> Generation
    after ?PATIENCE ->
        error(not_up)
    end.

down({_, Pid, _}) ->
    receive
        {erlmcp_channel, Pid, {down, Why}} -> Why
    after ?PATIENCE ->
        error(not_down)
    end.

owned({_, Pid, _}) ->
    receive
        {erlmcp_channel, Pid, {message, Message}} -> Message
    after ?PATIENCE ->
        error(no_message)
    end.

-doc "Sends a map as a message. `More` of `send/4` are members of the outgoing message.".
send(Channel, Kind, Message) ->
    send(Channel, Kind, Message, #{}).

send({Module, _, Handle}, Kind, Message, More) ->
    Outgoing = #{kind => Kind, id => id(Kind, Message), message => json:encode(Message),
                 headers => [], session => none,
                 deadline => erlang:monotonic_time(millisecond) + ?PATIENCE},
    case Module:send(maps:merge(Outgoing, More), Handle) of
        {ok, Exchange} -> {Module, Exchange};
        {error, _} = Error -> Error
    end.

id(notification, _) -> none;
id(response, _) -> none;
id(_, #{~"id" := Id}) -> Id.

request(Channel, Id, Method, Params) ->
    send(Channel, request, erlmcp_test_line:request(Id, Method, Params)).

notify(Channel, Method, Params) ->
    send(Channel, notification, erlmcp_test_line:notification(Method, Params)).

-doc "Returns the next `Count` events of an exchange.".
events(_, 0) ->
    [];
events({Module, Exchange}, Count) ->
    {Event, Next} = next(Module, Exchange),
    [Event | events({Module, Next}, Count - 1)].

-doc "Returns the response or the event that ends an exchange, and the messages before it.".
outcome({Module, Exchange}, Seen) ->
    case next(Module, Exchange) of
        {{message, {response, _, Outcome}}, _} -> {Outcome, lists:reverse(Seen)};
        {{message, Message}, Next} -> outcome({Module, Next}, [Message | Seen]);
        {Event, _} -> {Event, lists:reverse(Seen)}
    end.

%% Channels that this process owns send it other messages, which stay.
next(Module, {_, Ref, _} = Exchange) ->
    Message = receive
        Received when element(1, Received) =:= Ref; element(2, Received) =:= Ref -> Received
    after ?PATIENCE ->
        error({nothing_came_of, Exchange})
    end,
    {[Event], Next} = Module:received(Message, Exchange),
    {Event, Next}.

-doc "Sends a request, and returns its outcome. No message may come before the outcome.".
ask(Channel, Id, Method, Params) ->
    {Outcome, []} = outcome(request(Channel, Id, Method, Params), []),
    Outcome.
