-module(erlmcp_httpd_request).
-moduledoc """
What the head of an HTTP request asks for, checked before its body is read: path, method, media
types, announced length. `erlmcp_httpd_route` has looked at where it comes from and who asks.

Real clients are not all as strict as the specification. What is harmless is accepted: a missing
`Accept` or one with wildcards counts as both media types; one that names `application/json` alone
gets JSON, and its calls no notifications.
""".

-export([check/3, check_stream/1, check_message/2, no_stream/1]).

-export_type([accept/0, asked/0]).

-doc "What the client reads: JSON or a stream as it suits, or only one of them.".
-type accept() :: both | json | stream.
-type asked() :: {post, accept()} | {get | delete, Session :: binary()}.

-doc """
What is asked for, or the refusal of the request. Requests without a session id that need one are
told so by 405 for GET, since that is what a server without sessions says.
""".
-spec check(cowboy_req:req(), Path :: binary(),
            #{message_bytes := pos_integer(), _ => _}) ->
    {ok, asked()} | {error, erlmcp_refusal:refusal()}.
check(#{path := Path, headers := Headers, method := Method} = Request, Path, Config) ->
    method(Method, Headers, Request, Config);
check(#{path := Other}, Path, _) ->
    refuse(invalid_uri, [~"the endpoint's path is ", Path, ~", not ",
                         erlmcp_printable:quoted(Other)], 404).

-doc "Whether a request opens a stream at the SSE endpoint of 2024-11-05.".
-spec check_stream(cowboy_req:req()) -> ok | {error, erlmcp_refusal:refusal()}.
check_stream(#{headers := Headers, method := Method, has_body := HasBody}) ->
    maybe
        ~"GET" ?= Method,
        false ?= HasBody,
        reads_stream(Headers)
    else
        {error, _} = Error -> Error;
        true -> unwanted_body(Method);
        _ -> wrong_method(~"this endpoint is for GET: its stream names the one for POST", Method)
    end.

-doc """
For which session a message at the POST endpoint of 2024-11-05 is. What the client
accepts is not looked at: the answers come on the session's stream.
""".
-spec check_message(cowboy_req:req(),
                    #{message_bytes := pos_integer(), _ => _}) ->
    {ok, Session :: binary()} | {error, erlmcp_refusal:refusal()}.
check_message(#{headers := Headers, method := Method, qs := Query} = Request, Config) ->
    maybe
        ~"POST" ?= Method,
        {ok, Session} ?= session(Query),
        ok ?= content_type(Headers),
        ok ?= encoding(Headers),
        ok ?= length(Request, Config),
        {ok, Session}
    else
        {error, _} = Error -> Error;
        _ -> wrong_method(~"this endpoint is for POST", Method)
    end.

session(Query) ->
    maybe
        [_ | _] = Parameters ?= uri_string:dissect_query(Query),
        {_, <<Session/binary>>} ?= lists:keyfind(~"sessionId", 1, Parameters),
        {ok, Session}
    else
        _ -> refuse(invalid_session_id, ~"sessionId: the parameter is missing in the query", 400)
    end.

method(~"POST", Headers, Request, Config) ->
    maybe
        ok ?= content_type(Headers),
        ok ?= encoding(Headers),
        ok ?= length(Request, Config),
        {ok, Accept} ?= accept(Headers),
        {ok, {post, Accept}}
    end;
%% An empty body is none: with HTTP/2 it may come as a frame of its own.
method(Method, _, #{has_body := true, body_length := Length}, _)
  when Length =/= 0, (Method =:= ~"GET" orelse Method =:= ~"DELETE") ->
    unwanted_body(Method);
method(~"GET", #{~"mcp-session-id" := Id} = Headers, _, _) ->
    case reads_stream(Headers) of
        ok -> {ok, {get, Id}};
        {error, _} = Error -> Error
    end;
method(~"DELETE", #{~"mcp-session-id" := Id}, _, _) ->
    {ok, {delete, Id}};
method(~"DELETE", _, _, _) ->
    refuse(invalid_session_id, ~"Mcp-Session-Id: the header is missing", 400);
method(Method, _, _, _) ->
    wrong_method(~"this endpoint is for POST; GET and DELETE are for sessions", Method).

unwanted_body(Method) ->
    refuse(protocol_error, [Method, ~": expected no body, got one"], 400).

wrong_method(Why, Method) ->
    refuse(protocol_error, [Why, ~"; got ", erlmcp_printable:quoted(Method)], 405).

content_type(#{~"content-type" := ~"application/json"}) ->
    ok;
content_type(#{~"content-type" := Type}) ->
    try cow_http_hd:parse_content_type(Type) of
        {~"application", ~"json", _} -> ok;
        _ -> wrong_type(Type)
    catch
        error:_ -> wrong_type(Type)
    end;
content_type(_) ->
    refuse(invalid_content_type, ~"Content-Type: expected application/json, got no such header",
           415).

wrong_type(Type) ->
    refuse(invalid_content_type, [~"Content-Type: expected application/json, got ",
                                  erlmcp_printable:quoted(Type)], 415).

encoding(#{~"content-encoding" := Encoding}) when Encoding =/= ~"identity" ->
    refuse(unsupported_encoding, [~"Content-Encoding: expected none, got ",
                                  erlmcp_printable:quoted(Encoding)], 415);
encoding(_) ->
    ok.

%% Refused while it arrives, and where its length is announced, before.
length(#{body_length := Length}, #{message_bytes := Max}) when is_integer(Length), Length > Max ->
    {error, erlmcp_refusal:new(message_too_large, ~"the message is too large",
                               #{limit => Max, observed => Length})};
length(_, _) ->
    ok.

reads_stream(Headers) ->
    case accept(Headers) of
        {ok, Accept} when Accept =/= json -> ok;
        {ok, json} -> {error, no_stream(Headers)};
        {error, _} = Error -> Error
    end.

-doc "The refusal of a request with these headers that is answered with a stream alone.".
-spec no_stream(Headers :: #{binary() => binary()}) -> erlmcp_refusal:refusal().
no_stream(#{~"accept" := Header}) ->
    not_acceptable(~"text/event-stream", Header).

accept(#{~"accept" := ~"application/json, text/event-stream"}) ->
    {ok, both};
accept(#{~"accept" := Header}) ->
    try cow_http_hd:parse_accept(Header) of
        Ranges -> accepted([Kind || {{Type, Sub, _}, Quality, _} <- Ranges, Quality > 0,
                                    Kind <- media(Type, Sub)], Header)
    catch
        error:_ -> refuse(invalid_header, [~"Accept: expected a list of media types, got ",
                                           erlmcp_printable:quoted(Header)], 400)
    end;
accept(_) ->
    {ok, both}.

media(~"*", ~"*") -> [json, stream];
media(~"application", Sub) when Sub =:= ~"json"; Sub =:= ~"*" -> [json];
media(~"text", Sub) when Sub =:= ~"event-stream"; Sub =:= ~"*" -> [stream];
media(_, _) -> [].

accepted(Types, Header) ->
    case {lists:member(json, Types), lists:member(stream, Types)} of
        {true, true} -> {ok, both};
        {true, false} -> {ok, json};
        {false, true} -> {ok, stream};
        {false, false} ->
            {error, not_acceptable(~"application/json, text/event-stream", Header)}
    end.

not_acceptable(Types, Header) ->
    erlmcp_refusal:new(invalid_header, [~"Accept: expected ", Types, ~", got ",
                                        erlmcp_printable:quoted(Header)], #{status => 406}).

refuse(Name, Message, Status) ->
    {error, erlmcp_refusal:new(Name, Message, #{status => Status})}.
