-module(erlmcp_client_one_way).
-moduledoc """
Sends a client's messages that have no response: its notifications, and its answers to requests of
the server. The calling process waits until the transport has delivered the message, and drops all
other messages of its mailbox meanwhile.

Internal.
""".

-export([notify/4, answer/4]).

%% Milliseconds in which a message must be delivered.
-define(SEND, 5000).

-doc """
Sends a notification on a negotiated connection, and waits until the transport has delivered it, at
most five seconds. The error says why it was not delivered.
""".
-spec notify(Method :: binary(), Params :: map(), erlmcp_client_connection:client(),
             erlmcp_client_connection:live()) ->
    ok | {error, erlmcp_client:reason()}.
notify(Method, Params, Client, #{revision := Revision} = Live) ->
    send(notification, erlmcp_client_request:notification(Method, Params, Revision), Client, Live).

-doc """
Answers the server's request `Id` with a result, or with the code and the message of an error. Waits
until the transport has delivered the answer, at most five seconds. The error says why the answer
was not delivered.
""".
-spec answer(erlmcp_message:id(), {ok, map()} | {error, integer(), binary()},
             erlmcp_client_connection:client(), erlmcp_client_connection:live()) ->
    ok | {error, erlmcp_client:reason()}.
answer(Id, Answer, Client, #{revision := Revision} = Live) ->
    send(response, erlmcp_client_request:response(Id, Answer, Revision), Client, Live).

send(Kind, {Message, Headers}, #{channel := {Transport, Handle}}, Live) ->
    #{session := Session, generation := Generation} = Live,
    Deadline = erlmcp_clock:now_ms() + ?SEND,
    Outgoing = #{kind => Kind, id => none, message => Message, headers => Headers,
                 session => Session, generation => Generation, deadline => Deadline},
    maybe
        {ok, Exchange} ?= Transport:send(Outgoing, Handle),
        ok ?= taken(Transport, Exchange, Deadline)
    else
        {error, timeout} -> {error, {timeout, ?SEND}};
        {error, _} = Error -> Error
    end.

taken(Transport, Exchange, Deadline) ->
    receive
        Message ->
            case Transport:received(Message, Exchange) of
                other -> taken(Transport, Exchange, Deadline);
                {Events, Next} -> taken(Events, Transport, Next, Deadline)
            end
    after max(0, Deadline - erlmcp_clock:now_ms()) ->
        _ = Transport:abort(Exchange),
        {error, timeout}
    end.

taken([sent | _], _, _, _) -> ok;
taken([{failed, Reason} | _], _, _, _) -> {error, Reason};
taken([_ | Events], Transport, Exchange, Deadline) -> taken(Events, Transport, Exchange, Deadline);
taken([], Transport, Exchange, Deadline) -> taken(Transport, Exchange, Deadline).
