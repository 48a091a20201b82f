-module(erlmcp_client_stream).
-moduledoc """
The process of a session's GET stream on HTTP, where the server sends messages that belong to no
call. It passes notifications to the client's process and answers requests itself. A server need not
offer such a stream.

Source: specification 2025-11-25, "Transports / Listening for Messages from the Server".

Internal.
""".

-export([run/2]).

%% Milliseconds until the server must have begun to answer.
-define(OPEN, 30_000).

-record(stream, {
    client :: erlmcp_client_connection:client(),
    live :: erlmcp_client_connection:live(),
    questions = erlmcp_client_questions:new() :: erlmcp_client_questions:questions(),
    pause = erlmcp_client_backoff:first_ms() :: pos_integer()
}).

-doc """
Keeps the stream open until the session is lost, or the server turns out to offer none. The process
is linked to the client's, whose exit signal ends it; the server sees the stream close then.
""".
-spec run(erlmcp_client_connection:client(), erlmcp_client_connection:live()) -> ok.
run(Client, Live) ->
    process_flag(trap_exit, true),
    open(#stream{client = Client, live = Live}).

open(#stream{client = #{channel := {Transport, Handle}}, live = Live} = Stream) ->
    #{session := Session, revision := Revision} = Live,
    Outgoing = #{kind => stream, id => none, message => [], session => Session, resumes => true,
                 headers => erlmcp_request_header:version(Revision),
                 deadline => erlang:monotonic_time(millisecond) + ?OPEN},
    case Transport:send(Outgoing, Handle) of
        {ok, Exchange} -> receiving(Exchange, Stream);
        {error, Reason} -> failed(Reason, Stream)
    end.

receiving(Exchange, #stream{client = Client, questions = Questions} = Stream) ->
    #{channel := {Transport, _}} = Client,
    receive
        {'EXIT', _, _} ->
            _ = Transport:abort(Exchange),
            ok;
        {'DOWN', Monitor, process, _, _} = Message ->
            case erlmcp_client_questions:ended(Monitor, Questions) of
                {ok, Left} ->
                    receiving(Exchange, Stream#stream{questions = Left});
                other ->
                    received(Transport:received(Message, Exchange), Exchange, Stream)
            end;
        Message ->
            received(Transport:received(Message, Exchange), Exchange, Stream)
    end.

received(other, Exchange, Stream) -> receiving(Exchange, Stream);
received({Events, Exchange}, _, Stream) -> events(Events, Exchange, Stream).

events([], Exchange, Stream) ->
    receiving(Exchange, Stream);
events([{headers, _} | Events], Exchange, #stream{client = #{peer := Peer}} = Stream) ->
    Peer ! {stream, self(), open},
    events(Events, Exchange, Stream#stream{pause = erlmcp_client_backoff:first_ms()});
events([{message, {notification, Method, Params}} | Events], Exchange, Stream) ->
    ok = erlmcp_client_connection:notify(Stream#stream.client, Method, Params),
    events(Events, Exchange, Stream);
events([{message, {request, _, _, _} = Request} | Events], Exchange, Stream) ->
    events(Events, Exchange, answer_request(Request, Stream));
events([{failed, Reason} | _], _, Stream) ->
    failed(Reason, Stream);
events([_ | Events], Exchange, Stream) ->
    events(Events, Exchange, Stream).

answer_request(Request, #stream{client = Client, live = Live, questions = Questions} = Stream) ->
    Stream#stream{questions = erlmcp_client_questions:ask(Request, {Client, Live}, Questions)}.

%% These 4xx pass by themselves: too slow, too many, and an earlier stream that is still open.
failed({http, Status, _, _}, #stream{client = #{peer := Peer}}) when
    Status < 500, Status =/= 408, Status =/= 409, Status =/= 425, Status =/= 429
->
    Peer ! {stream, self(), refused},
    ok;
failed(session_lost, #stream{client = #{peer := Peer} = Client, live = Live} = Stream) ->
    %% A server without sessions and without a stream gives the same answer.
    case Live of
        #{session := none} ->
            Peer ! {stream, self(), refused},
            ok;
        #{} ->
            _ = erlmcp_client_connection:renegotiate(Client, Live,
                                                     erlang:monotonic_time(millisecond) + ?OPEN),
            failed(lost, Stream)
    end;
failed(_, #stream{pause = Pause} = Stream) ->
    receive
        {'EXIT', _, _} -> ok
    after erlmcp_client_backoff:with_jitter(Pause) ->
        open(Stream#stream{pause = erlmcp_client_backoff:next_ms(Pause)})
    end.
