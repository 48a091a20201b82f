-module(erlmcp_httpd_route).
-moduledoc """
What the head of a request comes to, before a byte of its body is looked at: where it comes from
(host, origin), who asks and with which scopes, and what is asked for. Pure, except for a fun of the
user's that says who asks, and a line in the log on headers of a proxy that is not trusted.

The head of a request is a map with the keys of cowboy's requests, whichever HTTP it came with. What
is answered to a page of another origin has the headers that its browser looks for
(`m:erlmcp_httpd_cors`).

Source: specification 2026-07-28, "Streamable HTTP" and "Authorization"; RFC 9728; RFC 6750.

Internal.
""".

-export([listener/1, resolve/2, question/2, identified/3, kept/2]).

-export_type([listener/0, route/0, question/0, resolved/0]).

-doc "The requirements of a listener for its requests.".
-type listener() :: #{
    endpoints := [binary()],
    path := binary(),
    policy := erlmcp_host:policy(),
    pages := erlmcp_httpd_cors:pages(),
    methods := erlmcp_httpd_cors:methods(),
    auth := erlmcp_httpd_auth:auth(),
    scopes := [erlmcp:scope()],
    implied := erlmcp_scope:implied(),
    metadata := erlmcp_httpd_metadata:metadata() | none
}.

-doc """
A request that may enter: what is asked for, by whom, and what all requests with this head have in
common. `extra` are headers that its answer has in addition.
""".
-type route() :: #{
    asks := {post, erlmcp_httpd_request:accept(),
             erlmcp_admission:announced() | {post, erlmcp_httpd_request:accept()}}
        | {get | delete, Session :: binary()}
        | {sse, erlmcp_httpd_sse:asks()},
    address := inet:ip_address(),
    config := erlmcp_httpd_config:config(),
    envelope := erlmcp_engine:envelope(),
    session := binary() | none,
    principal := erlmcp_auth:principal(),
    flow := erlmcp_admission:tenant(),
    extra := headers()
}.

-doc "A request of which somebody has to be asked who sends it.".
-opaque question() :: #{request := cowboy_req:req(), extra := headers()}.

-doc "A request is served, somebody is to be asked who sends it, it is refused, or is answered.".
-type resolved() ::
    {serve, route()}
    | {ask, question()}
    | {refuse, erlmcp_refusal:refusal(), headers()}
    | {answer, cowboy_stream:commands()}.

-type headers() :: #{binary() => iodata()}.

-doc "Returns what the listener's options say of it.".
-spec listener(map()) -> listener().
listener(Options) ->
    Path = maps:get(path, Options, ~"/mcp"),
    SsePaths = case erlmcp_listen_options:sse(Options) of
        #{path := SsePath, message_path := MessagePath} -> [SsePath, MessagePath];
        none -> []
    end,
    Scopes = maps:get(scopes, Options, []),
    Auth = maps:get(authenticate, Options, none),
    #{endpoints => [Path | SsePaths], path => Path, policy => erlmcp_host:policy(Options),
      pages => erlmcp_httpd_cors:pages(Options),
      methods => erlmcp_httpd_cors:methods(Path, SsePaths),
      auth => Auth, scopes => Scopes, implied => maps:get(implied_scopes, Options, #{}),
      metadata => erlmcp_httpd_metadata:new(Auth, maps:get(protected_resource, Options, #{}),
                                            Scopes,
                                            [Path | lists:sublist(SsePaths, 1)])}.

-doc "Resolves the head of a request to a listener with these options.".
-spec resolve(cowboy_req:req(), cowboy:opts()) -> resolved().
resolve(#{headers := Headers} = Came, #{erlmcp_route := Listener} = Options) ->
    #{erlmcp_trusted_proxies := Proxies} = Options,
    Request = erlmcp_trusted_proxies:request(Came, Proxies),
    #{pages := Pages} = Listener,
    case Headers of
        #{~"origin" := Origin} when is_map_key(Origin, Pages) ->
            with(map_get(Origin, Pages), of_page(Request, Options));
        #{} ->
            at_path(Request, Options)
    end.

%% A browser's question is answered to whoever may enter.
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
                false -> asked_for(erlmcp_auth:anonymous(), Request, Options)
            end
    end.

%% What is public is so for pages of any origin.
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

forbidden(Expected, Came) ->
    {error, erlmcp_refusal:new(authz_forbidden, [Expected, erlmcp_printable:quoted(Came)])}.

%% Of the address that the connection came to, and not of what a client writes in `Host`.
endpoint(#{scheme := Scheme, sock := {Ip, Port}}, #{path := Path}) ->
    <<Scheme/binary, "://", (erlmcp_host:authority(Ip, Port))/binary, Path/binary>>.

%% The same for clients to read: the loopback has several names, and each knows it by its own.
shown(#{host := Host, scheme := Scheme, sock := {Ip, Port}} = Request, Listener) ->
    #{path := Path} = Listener,
    case is_loopback(Ip) andalso lists:member(Host, [~"localhost", ~"127.0.0.1", ~"[::1]"]) of
        true -> <<Scheme/binary, "://", Host/binary, $:, (integer_to_binary(Port))/binary,
                  Path/binary>>;
        false -> endpoint(Request, Listener)
    end.

is_loopback({127, _, _, _}) -> true;
is_loopback(Ip) -> Ip =:= {0, 0, 0, 0, 0, 0, 0, 1}.

%% Who asks.

authenticate(Request, #{erlmcp_route := #{auth := none}} = Options) ->
    identified({ok, erlmcp_auth:anonymous()}, #{request => Request, extra => #{}}, Options);
authenticate(Request, _) ->
    {ask, #{request => Request, extra => #{}}}.

-doc """
Returns what `m:erlmcp_httpd_auth` asks about the sender of a request; `url` is the endpoint's.
""".
-spec question(question(), cowboy:opts()) -> erlmcp_listen:request().
question(#{request := #{scheme := Scheme, cert := Certificate} = Request}, Options) ->
    #{erlmcp_route := Listener} = Options,
    Head = (maps:with([method, path, headers, peer], Request))#{url => endpoint(Request, Listener)},
    case Certificate of
        undefined -> Head#{tls => Scheme =:= ~"https"};
        _ -> Head#{tls => true, certificate => Certificate}
    end.

-doc "Resolves the head of a request when it is known who sends it, or that nobody does.".
-spec identified({ok, erlmcp_auth:identity()} | {error, erlmcp_bearer_failure:failure()},
                 question(), cowboy:opts()) -> resolved().
identified({ok, Identity}, #{request := Request, extra := Extra}, Options) ->
    #{erlmcp_route := #{scopes := Needed, implied := Implied}} = Options,
    #{scopes := Scopes} = Identity,
    Full = Identity#{scopes := erlmcp_scope:with_implied(Scopes, Implied)},
    with(Extra, case erlmcp_scope:check(Needed, maps:get(scopes, Full)) of
        ok ->
            with(#{~"dpop-nonce" => Nonce || #{dpop_nonce := Nonce} <- [Full]},
                 asked_for(Full, Request, Options));
        {error, Refusal} ->
            {refuse, Refusal, insufficient(Needed, Full, Request, Options)}
    end);
identified({error, #{refusal := Refusal} = Failure}, #{request := Request, extra := Extra},
           #{erlmcp_route := #{auth := Auth, scopes := Scopes} = Listener}) ->
    #{headers := Headers} = Request,
    Parameters = (challenge(Request, Listener))#{scope => Scopes},
    with(Extra, {refuse, erlmcp_admission:refused_by_head(Refusal, Headers),
                 erlmcp_httpd_auth:headers(Auth, Failure, Parameters)}).

%% What a challenge says of the listener.
challenge(_, #{metadata := none}) -> #{};
challenge(Request, #{metadata := Metadata} = Listener) ->
    #{resource_metadata => erlmcp_httpd_metadata:url(shown(Request, Listener), Metadata)}.

insufficient(Needed, Identity, Request, #{erlmcp_route := #{auth := Auth} = Listener}) ->
    #{scopes := All} = Listener,
    erlmcp_httpd_auth:insufficient(Auth, Identity, lists:uniq(All ++ Needed),
                                   challenge(Request, Listener)).

%% What is asked for.

asked_for(#{principal := Principal} = Identity, Request, #{erlmcp := Config} = Options) ->
    #{headers := Headers, peer := {Ip, _}} = Request,
    case endpoint_of(Request, Options) of
        {ok, Asks} ->
            Insufficient = fun(Needed) -> insufficient(Needed, Identity, Request, Options) end,
            {serve, #{asks => Asks, address => Ip, principal => Principal,
                      config => Config#{identity => Identity, insufficient => Insufficient},
                      envelope => erlmcp_engine:envelope(Identity, Headers),
                      session => maps:get(~"mcp-session-id", Headers, none),
                      flow => erlmcp_admission:tenant(Principal, Ip), extra => #{}}};
        {error, Refusal} ->
            {refuse, Refusal, #{}};
        {error, Refusal, Allowed} ->
            {refuse, Refusal, #{~"allow" => Allowed || erlmcp_refusal:status(Refusal) =:= 405}}
    end.

endpoint_of(#{path := Path} = Request, #{erlmcp := Config, erlmcp_sse := Endpoints}) ->
    case Endpoints of
        #{path := Path, message_path := MessagePath} ->
            case erlmcp_httpd_request:check_stream(Request) of
                ok -> {ok, {sse, {open, MessagePath}}};
                {error, Refusal} -> {error, Refusal, ~"GET"}
            end;
        #{message_path := Path} ->
            case erlmcp_httpd_request:check_message(Request, Config) of
                {ok, Session} -> {ok, {sse, {message, Session}}};
                {error, Refusal} -> {error, Refusal, ~"POST"}
            end;
        #{} ->
            streamable(Request, Config)
    end;
endpoint_of(Request, #{erlmcp := Config}) ->
    streamable(Request, Config).

streamable(Request, #{path := Path} = Config) ->
    maybe
        {ok, {post, Accept}} ?= erlmcp_httpd_request:check(Request, Path, Config),
        #{headers := Headers} = Request,
        {ok, {post, Accept, erlmcp_admission:announced(Headers, Accept)}}
    end.

with(Extra, Resolved) when map_size(Extra) =:= 0 -> Resolved;
with(Extra, {refuse, Refusal, Headers}) -> {refuse, Refusal, maps:merge(Headers, Extra)};
with(Extra, {answer, Commands}) -> {answer, erlmcp_httpd_response:with(Extra, Commands)};
with(Extra, {serve, #{extra := Before} = Route}) ->
    {serve, Route#{extra := maps:merge(Before, Extra)}};
with(Extra, {ask, Question}) -> {ask, Question#{extra := Extra}}.

-doc """
Returns a POST request as a connection may keep it for others with the same head: with its route,
where the listener asks nobody who sends it, and the head is not refused.
""".
-spec kept(cowboy_req:req(), cowboy:opts()) -> cowboy_req:req().
kept(#{method := ~"POST"} = Request, #{erlmcp_route := #{auth := none}} = Options) ->
    case resolve(Request, Options) of
        {serve, Route} -> Request#{route => Route};
        _ -> Request
    end;
kept(Request, _) ->
    Request.
