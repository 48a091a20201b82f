-module(erlmcp_httpd_response).
-moduledoc """
Makes cowboy's commands for answers: whole responses, and streams of Server-Sent Events. Pure,
except for the date.

Internal.
""".

-export([answer/5, refuse/1, refuse/3, respond/3, ended/2]).
-export([stream/1, event/1, comment/0]).
-export([with/2, without_body/1]).

-type headers() :: #{binary() => iodata()}.

-doc """
Returns the commands for an encoded answer. If the request's stream is open (`Streaming`), the
answer is its last event, and no `Headers` are sent. Otherwise the answer is a response in JSON or,
with the status 200 and a client that reads only streams, a stream of one event. The status 202
means that there is no answer (`ended/2`).
""".
-spec answer(erlmcp_reply:status(), headers(), iodata(), erlmcp_httpd_route:accept(),
             Streaming :: boolean()) -> cowboy_stream:commands().
answer(202, _, _, Accept, Streaming) ->
    ended(Accept, Streaming);
answer(_, _, Bytes, _, true) ->
    [{data, fin, erlmcp_sse:event(Bytes)}, stop];
answer(200, Headers, Bytes, stream, false) ->
    respond(200, maps:merge(stream_headers(), Headers), erlmcp_sse:event(Bytes));
answer(200, Headers, Bytes, _, false) when map_size(Headers) =:= 0 ->
    [{response, 200,
      #{~"content-type" => ~"application/json", ~"content-length" => length_of(Bytes),
        ~"date" => cowboy_clock:rfc1123()}, Bytes}, stop];
answer(Status, Headers, Bytes, _, false) ->
    respond(Status, Headers#{~"content-type" => ~"application/json"}, Bytes).

-doc """
Returns the commands that end a request without an answer: the end of its open stream, or a stream
without events. A client that reads no streams gets an empty response with the status 202.
""".
-spec ended(erlmcp_httpd_route:accept(), Streaming :: boolean()) -> cowboy_stream:commands().
ended(_, true) -> [{data, fin, <<>>}, stop];
ended(json, false) -> respond(202, #{}, <<>>);
ended(_, false) -> respond(200, stream_headers(), <<>>).

-doc "Returns the commands that refuse a request whose id is not known.".
-spec refuse(erlmcp_refusal:refusal()) -> cowboy_stream:commands().
refuse(Refusal) ->
    refuse(Refusal, undefined, #{}).

-doc """
Returns the commands that refuse the request `Id`, with the status of the refusal. `Extra` are
further headers of the response. Without an `allow` in `Extra`, a 405 names POST, GET and DELETE.
""".
-spec refuse(erlmcp_refusal:refusal(), Id :: erlmcp_message:id() | undefined, Extra :: headers()) ->
    cowboy_stream:commands().
refuse(Refusal, Id, Extra) ->
    {reply, Status, Bytes} = erlmcp_reply:refuse(Id, Refusal),
    Headers = case Status of
        405 -> maps:merge(#{~"allow" => ~"POST, GET, DELETE"}, Extra);
        _ -> Extra
    end,
    respond(Status, Headers#{~"content-type" => ~"application/json"}, Bytes).

-doc """
Returns the commands that send a whole response and end its stream. A status with a time adds
`retry-after`, in seconds, and a status with scopes adds nothing. The body of a 204 is dropped.
""".
-spec respond(erlmcp_reply:status(), headers(), iodata()) -> cowboy_stream:commands().
respond({403, Scopes}, Headers, Body) when is_list(Scopes) ->
    respond(403, Headers, Body);
respond({Status, RetryAfter}, Headers, Body) ->
    respond(Status, Headers#{~"retry-after" => integer_to_binary(RetryAfter)}, Body);
respond(204, Headers, _) ->
    [{response, 204, Headers#{~"date" => cowboy_clock:rfc1123()}, <<>>}, stop];
respond(Status, Headers, Body) ->
    [{response, Status,
      Headers#{~"content-length" => length_of(Body), ~"date" => cowboy_clock:rfc1123()}, Body},
     stop].

length_of(Body) ->
    integer_to_binary(iolist_size(Body)).

-doc "Returns the commands that begin a stream, with its first bytes.".
-spec stream(iodata()) -> cowboy_stream:commands().
stream(First) ->
    [{headers, 200, stream_headers()}, {data, nofin, First}].

-doc "Returns the commands that send an encoded message as an event of an open stream.".
-spec event(iodata()) -> cowboy_stream:commands().
event(Bytes) ->
    [{data, nofin, erlmcp_sse:event(Bytes)}].

-doc "Returns the commands that send a comment, which keeps a quiet stream open.".
-spec comment() -> cowboy_stream:commands().
comment() ->
    [{data, nofin, erlmcp_sse:comment()}].

-doc """
Adds headers to the response, or to the beginning of the stream, among the commands. They replace
headers of the same name.
""".
-spec with(#{binary() => iodata()}, cowboy_stream:commands()) -> cowboy_stream:commands().
with(Extra, Commands) ->
    [with_headers(Extra, Command) || Command <- Commands].

with_headers(Extra, {response, Status, Headers, Body}) ->
    {response, Status, maps:merge(Headers, Extra), Body};
with_headers(Extra, {headers, Status, Headers}) ->
    {headers, Status, maps:merge(Headers, Extra)};
with_headers(_, Command) ->
    Command.

-doc """
Drops the bodies of whole responses among the commands, for HEAD (RFC 9110, section 9.3.2). The
length of a dropped body is left out, too, since it may differ from that of the answer to GET.
""".
-spec without_body(cowboy_stream:commands()) -> cowboy_stream:commands().
without_body(Commands) ->
    [bodiless(Command) || Command <- Commands].

bodiless({response, _, _, <<>>} = Response) ->
    Response;
bodiless({response, Status, Headers, _}) ->
    {response, Status, maps:remove(~"content-length", Headers), <<>>};
bodiless(Command) ->
    Command.

stream_headers() ->
    #{~"content-type" => ~"text/event-stream", ~"cache-control" => ~"no-cache",
      ~"x-accel-buffering" => ~"no", ~"date" => cowboy_clock:rfc1123()}.
