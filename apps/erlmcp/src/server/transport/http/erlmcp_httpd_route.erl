-module(erlmcp_httpd_route).
-moduledoc """
Decides what to do with a request from its head, before a byte of its body is read. Checks the host
and the origin, the identity and its scopes, and the path, method, media types and announced length.
Pure, except for the date of an answer, and for the log entry about headers of a proxy that is not
trusted.

The head of a request is a map with the keys of cowboy's requests, for HTTP/1.1 and for HTTP/2. A
missing `Accept`, or `*/*`, counts as both media types. A client that accepts `application/json`
alone gets JSON, and no notifications of its calls.

Source: specification 2026-07-28, "Streamable HTTP" and "Authorization"; RFC 9728; RFC 6750.

Internal.
""".

-export([listener/1, resolve/2, is_page/2, question/2, identified/3, kept/2, no_stream/1]).

-export_type([listener/0, route/0, question/0, resolved/0, accept/0, action/0]).

-doc "The part of a listener's options that decides about its requests.".
-type listener() :: #{
    endpoints := [binary()],
    %% the path in URLs for clients: the endpoint's, or the root if there is no endpoint
    path := binary(),
    policy := erlmcp_host:policy(),
    origins := erlmcp_httpd_cors:origins(),
    methods := erlmcp_httpd_cors:methods(),
    auth := erlmcp_httpd_auth:auth(),
    scopes := [erlmcp:scope()],
    implied := erlmcp_scope:implied(),
    metadata := erlmcp_httpd_metadata:metadata() | none,
    pages := erlmcp_httpd_page:pages()
}.

-doc "The forms of an answer that the client reads: JSON, a stream of events, or both.".
-type accept() :: both | json | stream.
-doc "The action that the method of a request asks for.".
-type action() :: {post, accept()} | {get | delete, Session :: binary()}.

-doc """
A request to be served. `asks` is its kind, with the data that this kind needs. `address`,
`principal` and `tenant` are those of the sender. `request_context` is the part of the head that the
engine needs. `session` is the id of a session that the head names. `extra` has further headers for
the answer.
""".
-type route() :: #{
    asks := {post, accept(),
             erlmcp_admission:announced() | {post, accept()}}
        | {get | delete, Session :: binary()}
        | {sse, erlmcp_httpd_sse:asks()},
    address := inet:ip_address(),
    config := erlmcp_httpd:config(),
    request_context := erlmcp_engine:request_context(),
    session := binary() | none,
    principal := erlmcp_auth:principal(),
    tenant := erlmcp_admission:tenant(),
    extra := headers()
}.

-doc "A request whose identity is not known yet.".
-opaque question() :: #{
    request := cowboy_req:req(), extra := headers(), found => erlmcp_httpd_page:found()
}.

-doc """
The decision: serve the request, serve a page, ask for the identity first, refuse the request, or
answer it.
""".
-type resolved() ::
    {serve, route()}
    | {page, erlmcp_httpd_page:request()}
    | {ask, question()}
    | {refuse, erlmcp_refusal:refusal(), headers()}
    | {answer, cowboy_stream:commands()}.

-type headers() :: #{binary() => iodata()}.

-doc """
Returns the part of a listener's `Options` that decides about its requests. The table of its pages
belongs to the calling process.
""".
-spec listener(map()) -> listener().
listener(Options) ->
    {Endpoints, Path} = case maps:get(path, Options, ~"/mcp") of
        none -> {[], ~"/"};
        Own -> {[Own], Own}
    end,
    SsePaths = case erlmcp_listen_options:sse(Options) of
        #{path := SsePath, message_path := MessagePath} -> [SsePath, MessagePath];
        none -> []
    end,
    Scopes = maps:get(scopes, Options, []),
    Auth = maps:get(authenticate, Options, none),
    All = Endpoints ++ SsePaths,
    #{endpoints => All, path => Path, policy => erlmcp_host:policy(Options),
      origins => erlmcp_httpd_cors:origins(Options),
      methods => maps:with(All, erlmcp_httpd_cors:methods(Path, SsePaths)),
      auth => Auth, scopes => Scopes, implied => maps:get(implied_scopes, Options, #{}),
      metadata => erlmcp_httpd_metadata:new(Auth, maps:get(protected_resource, Options, #{}),
                                            Scopes,
                                            [Path | lists:sublist(SsePaths, 1)]),
      pages => erlmcp_httpd_page:new(Options)}.

-doc """
Decides about a request from its head. `Options` are those of its connection
(`erlmcp_httpd:child_specs/3`). Logs the first header of a proxy that the listener does not trust.
""".
-spec resolve(cowboy_req:req(), cowboy:opts()) -> resolved().
resolve(#{headers := Headers} = Received, #{erlmcp_route := Listener} = Options) ->
    #{erlmcp_trusted_proxies := Proxies} = Options,
    Request = erlmcp_trusted_proxies:request(Received, Proxies),
    #{origins := Origins} = Listener,
    case Headers of
        #{~"origin" := Origin} when is_map_key(Origin, Origins) ->
            with(map_get(Origin, Origins), of_page(Request, Options));
        #{} ->
            at_path(Request, Options)
    end.

-doc """
Returns `true` if a page answers the path of a request (`erlmcp_httpd_page:find/2`), and no endpoint
has this path.
""".
-spec is_page(cowboy_req:req(), cowboy:opts()) -> boolean().
is_page(#{path := Path}, #{erlmcp_route := #{endpoints := Endpoints, pages := Pages}}) ->
    not lists:member(Path, Endpoints) andalso erlmcp_httpd_page:find(Path, Pages) =/= none.

%% A preflight request is answered for pages of every origin that is accepted.
of_page(Request, #{erlmcp_route := #{methods := Methods} = Listener} = Options) ->
    case from_here(Request, Listener, any) =:= ok
        andalso erlmcp_httpd_cors:preflight(Request, Methods) of
        [_ | _] = Commands -> {answer, Commands};
        _ -> at_path(Request, Options)
    end.

at_path(#{path := Path, headers := Headers} = Request, #{erlmcp_route := Listener} = Options) ->
    #{endpoints := Endpoints, metadata := Metadata} = Listener,
    case lists:member(Path, Endpoints) of
        true ->
            case from_here(Request, Listener, maps:get(~"origin", Headers, undefined)) of
                ok -> authenticate(Request, Options);
                {error, Refusal} -> {refuse, Refusal, #{}}
            end;
        false ->
            case erlmcp_httpd_metadata:is_at(Path, Metadata) of
                true -> metadata(Request, Listener);
                false -> besides(Request, Options)
            end
    end.

%% The pages of the listener. Every other path is refused.
besides(#{path := Path} = Request, #{erlmcp_route := Listener} = Options) ->
    #{pages := Pages, auth := Auth} = Listener,
    maybe
        {ok, Found} ?= erlmcp_httpd_page:find(Path, Pages),
        ok ?= page_from_here(Request, Listener),
        case Auth =/= none andalso erlmcp_httpd_page:asks_identity(Found) of
            true -> {ask, #{request => Request, extra => #{}, found => Found}};
            false -> page(Found, erlmcp_auth:anonymous(), Request)
        end
    else
        none -> asked_for(erlmcp_auth:anonymous(), Request, Options);
        {error, Refusal} -> {refuse, Refusal, #{}}
    end.

%% Balancers check a page with HTTP/1.0 and without a host. No browser does.
page_from_here(#{host := <<>>, headers := Headers}, _) when not is_map_key(~"origin", Headers) ->
    ok;
page_from_here(#{headers := Headers} = Request, Listener) ->
    from_here(Request, Listener, maps:get(~"origin", Headers, undefined)).

page(Found, Identity, Request) ->
    {page, #{found => Found, identity => Identity, request => Request, extra => #{}}}.

%% The metadata are public for pages of any origin.
metadata(#{method := Method} = Request, #{metadata := Metadata} = Listener) ->
    case from_here(Request, Listener, any) of
        ok -> {answer, erlmcp_httpd_metadata:respond(Method, shown(Request, Listener), Metadata)};
        {error, Refusal} -> {refuse, Refusal, #{}}
    end.

from_here(#{host := Host}, #{policy := Policy}, Origin) ->
    Checked = case Origin of
        any -> erlmcp_host:check(Host, undefined, Policy);
        _ -> erlmcp_host:check(Host, Origin, Policy)
    end,
    case Checked of
        ok -> ok;
        {error, host} -> forbidden(~"Host: expected a name of this server, got ", Host);
        {error, origin} -> forbidden(~"Origin: expected one that is allowed here, got ", Origin)
    end.

forbidden(Expected, Value) ->
    {error, erlmcp_refusal:new(authz_forbidden, [Expected, erlmcp_printable:quoted(Value)])}.

%% The URL of the endpoint at the local address of the connection, whatever `Host` says.
endpoint(#{scheme := Scheme, sock := {Ip, Port}}, #{path := Path}) ->
    <<Scheme/binary, "://", (erlmcp_host:authority(Ip, Port))/binary, Path/binary>>.

%% The URL of the endpoint that clients are shown. On the loopback it has the name that the client
%% uses.
shown(#{host := Host, scheme := Scheme, sock := {Ip, Port}} = Request, Listener) ->
    #{path := Path} = Listener,
    case erlmcp_listener:is_loopback(Ip)
        andalso lists:member(Host, [~"localhost", ~"127.0.0.1", ~"[::1]"]) of
        true -> <<Scheme/binary, "://", Host/binary, $:, (integer_to_binary(Port))/binary,
                  Path/binary>>;
        false -> endpoint(Request, Listener)
    end.

%% The identity.

authenticate(Request, #{erlmcp_route := #{auth := none}} = Options) ->
    identified({ok, erlmcp_auth:anonymous()}, #{request => Request, extra => #{}}, Options);
authenticate(Request, _) ->
    {ask, #{request => Request, extra => #{}}}.

-doc """
Returns the request in the form that `m:erlmcp_httpd_auth` needs. `url` is the endpoint's URL.
""".
-spec question(question(), cowboy:opts()) -> erlmcp_listen:request().
question(#{request := #{scheme := Scheme, cert := Certificate} = Request}, Options) ->
    #{erlmcp_route := Listener} = Options,
    Head = (maps:with([method, path, headers, peer], Request))#{url => endpoint(Request, Listener)},
    case Certificate of
        undefined -> Head#{tls => Scheme =:= ~"https"};
        _ -> Head#{tls => true, certificate => Certificate}
    end.

-doc "Decides about a request, from its head and the answer about the identity of its sender.".
-spec identified({ok, erlmcp_auth:identity()} | {error, erlmcp_bearer_failure:failure()},
                 question(), cowboy:opts()) -> resolved().
identified({ok, Identity}, #{request := Request, extra := Extra} = Question, Options) ->
    #{erlmcp_route := #{scopes := Needed, implied := Implied}} = Options,
    #{principal := Principal, scopes := Scopes} = Identity,
    Full = Identity#{principal := erlmcp_auth:own_principal(Principal),
                     scopes := erlmcp_scope:with_implied(Scopes, Implied)},
    with(Extra, case erlmcp_scope:check(Needed, maps:get(scopes, Full)) of
        ok ->
            with(#{~"dpop-nonce" => Nonce || #{dpop_nonce := Nonce} <- [Full]},
                 identified(Full, Question, Request, Options));
        {error, Refusal} ->
            {refuse, Refusal, insufficient(Needed, Full, Request, Options)}
    end);
identified({error, #{refusal := Refusal} = Failure}, #{request := Request, extra := Extra},
           #{erlmcp_route := #{auth := Auth, scopes := Scopes} = Listener}) ->
    #{headers := Headers} = Request,
    Parameters = (challenge(Request, Listener))#{scope => Scopes},
    with(Extra, {refuse, erlmcp_admission:refused_by_head(Refusal, Headers),
                 erlmcp_httpd_auth:headers(Auth, Failure, Parameters)}).

identified(Identity, #{found := Found}, Request, _) -> page(Found, Identity, Request);
identified(Identity, _, Request, Options) -> asked_for(Identity, Request, Options).

%% The parameters of a challenge that depend on the listener.
challenge(_, #{metadata := none}) -> #{};
challenge(Request, #{metadata := Metadata} = Listener) ->
    #{resource_metadata => erlmcp_httpd_metadata:url(shown(Request, Listener), Metadata)}.

insufficient(Needed, Identity, Request, #{erlmcp_route := #{auth := Auth} = Listener}) ->
    #{scopes := All} = Listener,
    erlmcp_httpd_auth:insufficient(Auth, Identity, lists:uniq(All ++ Needed),
                                   challenge(Request, Listener)).

%% The path, method, media types and announced length.

asked_for(#{principal := Principal} = Identity, Request, #{erlmcp := Config} = Options) ->
    #{headers := Headers, peer := {Ip, _}} = Request,
    case endpoint_of(Request, Options) of
        {ok, Asks} ->
            Insufficient = fun(Needed) -> insufficient(Needed, Identity, Request, Options) end,
            {serve, #{asks => Asks, address => Ip, principal => Principal,
                      config => Config#{identity => Identity, insufficient => Insufficient},
                      request_context => erlmcp_engine:request_context(Identity, Headers),
                      session => maps:get(~"mcp-session-id", Headers, none),
                      tenant => erlmcp_admission:tenant(Principal, Ip), extra => #{}}};
        {error, Refusal} ->
            {refuse, Refusal, #{}};
        {error, Refusal, Allowed} ->
            {refuse, Refusal, #{~"allow" => Allowed || erlmcp_refusal:status(Refusal) =:= 405}}
    end.

endpoint_of(#{path := Path} = Request, #{erlmcp := Config, erlmcp_sse := Endpoints}) ->
    case Endpoints of
        #{path := Path, message_path := MessagePath} ->
            case open_stream(Request) of
                ok -> {ok, {sse, {open, MessagePath}}};
                {error, Refusal} -> {error, Refusal, ~"GET"}
            end;
        #{message_path := Path} ->
            case message_session(Request, Config) of
                {ok, Session} -> {ok, {sse, {message, Session}}};
                {error, Refusal} -> {error, Refusal, ~"POST"}
            end;
        #{} ->
            streamable(Request, Config)
    end;
endpoint_of(Request, #{erlmcp := Config}) ->
    streamable(Request, Config).

%% GET without a session id gets 405, as from a server without sessions.
streamable(#{path := Path, headers := Headers, method := Method} = Request,
           #{path := Path} = Config) ->
    maybe
        Known = Request#{has_body := announces_body(Request)},
        {ok, {post, Accept}} ?= method(Method, Headers, Known, Config),
        {ok, {post, Accept, erlmcp_admission:announced(Headers, Accept)}}
    end;
streamable(#{path := Other}, #{path := none}) ->
    refuse(invalid_uri, [~"there is no page at ", erlmcp_printable:quoted(Other)], 404);
streamable(#{path := Other}, #{path := Path}) ->
    refuse(invalid_uri, [~"the endpoint's path is ", Path, ~", not ",
                         erlmcp_printable:quoted(Other)], 404).

%% A request that opens a stream at the SSE endpoint of 2024-11-05.
open_stream(#{headers := Headers, method := Method} = Request) ->
    maybe
        ~"GET" ?= Method,
        false ?= announces_body(Request),
        reads_stream(Headers)
    else
        {error, _} = Error -> Error;
        true -> unwanted_body(Method);
        _ -> wrong_method(~"this endpoint is for GET: its stream names the one for POST", Method)
    end.

%% The session of a message at the POST endpoint of 2024-11-05. Its answer comes on the session's
%% stream, whatever its `Accept` says.
message_session(#{headers := Headers, method := Method, qs := Query} = Request, Config) ->
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
        {ok, Parameters} ?= erlmcp_query:parameters(Query),
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
method(Method, _, #{has_body := true}, _) when Method =:= ~"GET"; Method =:= ~"DELETE" ->
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

%% An empty body counts as none, since HTTP/2 may send one as a frame of its own, and need not
%% announce its length.
announces_body(#{body_length := undefined, version := 'HTTP/2'}) -> false;
announces_body(#{body_length := 0}) -> false;
announces_body(#{has_body := HasBody}) -> HasBody.

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

%% A body that is too long is refused here if its length is announced, and else while it arrives.
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

with(Extra, Resolved) when map_size(Extra) =:= 0 -> Resolved;
with(Extra, {refuse, Refusal, Headers}) -> {refuse, Refusal, maps:merge(Headers, Extra)};
with(Extra, {answer, Commands}) -> {answer, erlmcp_httpd_response:with(Extra, Commands)};
with(Extra, {serve, #{extra := Before} = Route}) ->
    {serve, Route#{extra := maps:merge(Before, Extra)}};
with(Extra, {page, #{extra := Before} = Asked}) ->
    {page, Asked#{extra := maps:merge(Before, Extra)}};
with(Extra, {ask, Question}) -> {ask, Question#{extra := Extra}}.

-doc """
Returns a request in the form in which a connection keeps it, for later requests with the same head.
A POST request contains its route, if all clients of the listener are anonymous and `resolve/2`
decides to serve the request.
""".
-spec kept(cowboy_req:req(), cowboy:opts()) -> cowboy_req:req().
kept(#{method := ~"POST"} = Request, #{erlmcp_route := #{auth := none}} = Options) ->
    case resolve(Request, Options) of
        {serve, Route} -> Request#{route => Route};
        _ -> Request
    end;
kept(Request, _) ->
    Request.

-doc """
Returns the refusal of a request that only a stream can answer, and whose client accepts none.
""".
-spec no_stream(Headers :: #{binary() => binary()}) -> erlmcp_refusal:refusal().
no_stream(#{~"accept" := Header}) ->
    not_acceptable(~"text/event-stream", Header).
