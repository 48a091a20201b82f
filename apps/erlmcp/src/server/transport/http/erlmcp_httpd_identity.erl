-module(erlmcp_httpd_identity).
-moduledoc """
Who comes: the stream handler that stands before those that serve. It looks at the head of a
request (host, origin, who asks and with which scopes) before anything of its body is read, and
answers those that ask for the listener's metadata. A request that enters is given to the next
handler, whose configuration then has the request's `identity`. What is answered to a page of
another origin, whoever of them answers, has the headers that its browser looks for
(`m:erlmcp_httpd_cors`).

Whoever has to be asked first, a process or another machine, is not waited for: the stream keeps
what arrives meanwhile, which the flow control of HTTP bounds, and the connection's other streams go
on.

Source: specification 2026-07-28, "Authorization"; RFC 9728; RFC 6750.
""".

-behaviour(cowboy_stream).

-export([config/1, unasked/2]).
-export([init/3, data/4, info/3, terminate/3, early_error/5]).

-export_type([config/0]).

-doc "What a listener asks of its requests.".
-type config() :: #{
    endpoints := [binary()],
    path := binary(),
    policy := erlmcp_host:policy(),
    pages := erlmcp_httpd_cors:pages(),
    methods := erlmcp_httpd_cors:methods(),
    auth := erlmcp_httpd_auth:auth(),
    scopes := [erlmcp_scope:scope()],
    implied := erlmcp_scope:implied(),
    metadata := erlmcp_httpd_metadata:metadata() | none
}.

-record(waiting, {
    request :: cowboy_req:req(),
    options :: cowboy:opts(),
    for :: undefined | erlmcp_httpd_auth:wait(),
    %% what came of the body, the last first
    kept = [] :: [{cowboy_stream:fin(), binary()}]
}).
-record(refused, {body :: erlmcp_httpd_body:body() | none}).
-record(entered, {
    next :: {module(), term()} | undefined,
    %% headers that its answer has too
    extra :: #{binary() => binary()}
}).
%% What a page of another origin asked for.
-record(shared, {with :: #{binary() => binary()}, state :: #waiting{} | #refused{} | #entered{}}).

-doc "What the listener's options say of it.".
-spec config(map()) -> config().
config(Options) ->
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

-doc """
Who comes with a head, where that is known and the same for all that have it, as the request and the
configuration of the next handler: a listener that asks nobody, and a head that is not refused.
""".
-spec unasked(cowboy_req:req(), cowboy:opts()) ->
    {ok, cowboy_req:req(), erlmcp_httpd_config:config()} | unknown.
unasked(#{headers := #{~"origin" := Origin}}, #{erlmcp_identity := #{pages := Pages}})
  when is_map_key(Origin, Pages) ->
    unknown;
unasked(#{headers := Headers} = Came, #{erlmcp_identity := #{auth := none} = Asked} = Options) ->
    #{erlmcp := #{instance := #{limits := Limits}}, erlmcp_trusted_proxies := Proxies} = Options,
    Request = erlmcp_trusted_proxies:request(Came, Proxies),
    #{scopes := Needed} = Asked,
    #{scopes := Scopes} = Identity = erlmcp_auth:anonymous(),
    maybe
        ok ?= from_here(Request, Asked, maps:get(~"origin", Headers, undefined)),
        ok ?= erlmcp_scope:check(Needed, Scopes),
        ok = erlmcp_heap:bound_connection(Limits),
        {ok, Request, with_identity(Identity, Request, Options)}
    else
        {error, _} -> unknown
    end;
unasked(_, _) ->
    unknown.

-doc false.
init(StreamId, #{headers := #{~"origin" := Origin}} = Request,
     #{erlmcp_identity := #{pages := Pages} = Asked} = Options) when is_map_key(Origin, Pages) ->
    #{Origin := With} = Pages,
    shared(asked_by_page(StreamId, Request, Options#{erlmcp_identity := Asked#{pages := #{}}}),
           With);
init(StreamId, #{path := Path, method := Method} = Came, Options) ->
    #{erlmcp_identity := #{endpoints := Endpoints, metadata := Metadata} = Asked,
      erlmcp_trusted_proxies := Proxies, erlmcp := #{instance := #{limits := Limits}}} = Options,
    Request = erlmcp_trusted_proxies:request(Came, Proxies),
    ok = erlmcp_heap:bound_connection(Limits),
    case lists:member(Path, Endpoints) of
        true ->
            looked_at(StreamId, Request, Options);
        false ->
            case erlmcp_httpd_metadata:is_at(Path, Metadata)
                andalso from_here(Request, Asked, any) of
                false ->
                    enter(StreamId, erlmcp_auth:anonymous(), Request, Options);
                ok ->
                    {erlmcp_httpd_metadata:respond(Method, shown(Request, Asked), Metadata),
                     #refused{body = none}};
                {error, Refusal} ->
                    refuse(Refusal, #{}, StreamId, Request, Options)
            end
    end.

%% A browser's question is answered to whom may enter, whoever it is.
asked_by_page(StreamId, Request, #{erlmcp_identity := #{methods := Methods} = Asked} = Options) ->
    case from_here(Request, Asked, any) =:= ok
        andalso erlmcp_httpd_cors:preflight(Request, Methods) of
        [_ | _] = Commands -> {Commands, #refused{body = none}};
        _ -> init(StreamId, Request, Options)
    end.

shared({Commands, State}, With) ->
    {erlmcp_httpd_response:with(With, Commands), #shared{with = With, state = State}}.

looked_at(StreamId, #{headers := Headers} = Request, #{erlmcp_identity := Asked} = Options) ->
    case from_here(Request, Asked, maps:get(~"origin", Headers, undefined)) of
        ok -> authenticate(StreamId, Request, Options);
        {error, Refusal} -> refuse(Refusal, #{}, StreamId, Request, Options)
    end.

%% What is public is so for pages of any origin.
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
shown(#{host := Host, scheme := Scheme, sock := {Ip, Port}} = Request, #{path := Path} = Asked) ->
    case is_loopback(Ip) andalso lists:member(Host, [~"localhost", ~"127.0.0.1", ~"[::1]"]) of
        true -> <<Scheme/binary, "://", Host/binary, $:, (integer_to_binary(Port))/binary,
                  Path/binary>>;
        false -> endpoint(Request, Asked)
    end.

is_loopback({127, _, _, _}) -> true;
is_loopback(Ip) -> Ip =:= {0, 0, 0, 0, 0, 0, 0, 1}.

%% Who asks.

authenticate(StreamId, Request, Options) ->
    #{erlmcp := #{instance := Instance}, erlmcp_identity := #{auth := Auth}} = Options,
    Answer = erlmcp_httpd_auth:ask(Auth, asking(Request, Options), {self(), {self(), StreamId}},
                                   Instance),
    answered(Answer, StreamId, #waiting{request = Request, options = Options}).

asking(#{scheme := Scheme, cert := Certificate} = Request, #{erlmcp_identity := Asked}) ->
    Head = (maps:with([method, path, headers, peer], Request))#{url => endpoint(Request, Asked)},
    case Certificate of
        undefined -> Head#{tls => Scheme =:= ~"https"};
        _ -> Head#{tls => true, certificate => Certificate}
    end.

answered({wait, Commands, Wait}, _, Waiting) ->
    {Commands, Waiting#waiting{for = Wait}};
answered({ok, Identity}, StreamId, #waiting{request = Request, options = Options, kept = Kept}) ->
    #{erlmcp_identity := #{scopes := Needed, implied := Implied}} = Options,
    #{scopes := Scopes} = Identity,
    Full = Identity#{scopes := erlmcp_scope:with_implied(Scopes, Implied)},
    Entered = case erlmcp_scope:check(Needed, maps:get(scopes, Full)) of
        ok ->
            enter(StreamId, Full, Request, Options);
        {error, Refusal} ->
            refuse(Refusal, insufficient(Needed, Full, Request, Options), StreamId, Request,
                   Options)
    end,
    replay(StreamId, lists:reverse(Kept), Entered);
answered({error, #{refusal := Refusal} = Failure}, StreamId, Waiting) ->
    #waiting{request = #{headers := Headers} = Request, options = Options, kept = Kept} = Waiting,
    #{erlmcp_identity := #{auth := Auth, scopes := Scopes} = Asked} = Options,
    Known = (known(Request, Asked))#{scope => Scopes},
    Told = erlmcp_admission:refused_by_head(Refusal, Headers),
    Refused = refuse(Told, erlmcp_httpd_auth:headers(Auth, Failure, Known), StreamId, Request,
                     Options),
    replay(StreamId, lists:reverse(Kept), Refused).

%% What a client that is refused is told of the listener.
known(_, #{metadata := none}) -> #{};
known(Request, #{metadata := Metadata} = Asked) ->
    #{resource_metadata => erlmcp_httpd_metadata:url(shown(Request, Asked), Metadata)}.

insufficient(Needed, Identity, Request, #{erlmcp_identity := #{auth := Auth} = Asked}) ->
    #{scopes := All} = Asked,
    erlmcp_httpd_auth:insufficient(Auth, Identity, lists:uniq(All ++ Needed),
                                   known(Request, Asked)).

refuse(Refusal, Extra, StreamId, Request, #{erlmcp := Config}) ->
    forgotten(erlmcp_httpd_body:refuse(Refusal, Extra, Request, {self(), {self(), StreamId}},
                                       Config)).

forgotten({more, Commands, Body}) -> {Commands, #refused{body = Body}};
forgotten({ended, Commands}) -> {Commands, #refused{body = none}}.

%% The next handler has the identity with its configuration, and how a request of it is refused that
%% lacks scopes.
enter(StreamId, Identity, Request, Options) ->
    Extra = #{~"dpop-nonce" => Nonce || #{dpop_nonce := Nonce} <- [Identity]},
    Known = with_identity(Identity, Request, Options),
    passed(cowboy_stream:init(StreamId, Request, Options#{erlmcp := Known}), Extra).

with_identity(Identity, Request, #{erlmcp := Config} = Options) ->
    Insufficient = fun(Needed) -> insufficient(Needed, Identity, Request, Options) end,
    Config#{identity => Identity, insufficient => Insufficient}.

passed({Commands, Next}, Extra) when map_size(Extra) =:= 0 ->
    {Commands, #entered{next = Next, extra = Extra}};
passed({Commands, Next}, Extra) ->
    {erlmcp_httpd_response:with(Extra, Commands), #entered{next = Next, extra = Extra}}.

%% What came while it was asked who asks, unless nothing of it is wanted any more.
replay(_, [], Reached) ->
    Reached;
replay(StreamId, [{IsFin, Data} | Kept], {Commands, State}) ->
    case lists:member(stop, Commands) of
        true ->
            {Commands, State};
        false ->
            {More, Next} = data(StreamId, IsFin, Data, State),
            replay(StreamId, Kept, {Commands ++ More, Next})
    end.

-doc false.
data(StreamId, IsFin, Data, #entered{next = Next, extra = Extra}) ->
    passed(cowboy_stream:data(StreamId, IsFin, Data, Next), Extra);
data(_, IsFin, Data, #waiting{kept = Kept} = Waiting) ->
    {[], Waiting#waiting{kept = [{IsFin, Data} | Kept]}};
data(_, _, _, #refused{body = none} = Refused) ->
    {[], Refused};
data(_, IsFin, Data, #refused{body = Body}) ->
    forgotten(erlmcp_httpd_body:data(IsFin, Data, Body));
data(StreamId, IsFin, Data, #shared{with = With, state = State}) ->
    shared(data(StreamId, IsFin, Data, State), With).

-doc false.
info(StreamId, Message, #entered{next = Next, extra = Extra}) ->
    passed(cowboy_stream:info(StreamId, Message, Next), Extra);
%% Cowboy's answer to a body that it cannot read.
info(_, {response, 400, _, _} = Response, #waiting{} = Waiting) ->
    {[Response], Waiting};
info(StreamId, Message, #waiting{for = Wait, options = Options} = Waiting) ->
    #{erlmcp_identity := #{auth := Auth}} = Options,
    case erlmcp_httpd_auth:told(Auth, Message, Wait) of
        ignored -> {[], Waiting};
        Answer -> answered(Answer, StreamId, Waiting)
    end;
info(_, receive_timeout, #refused{body = Body}) when Body =/= none ->
    {erlmcp_httpd_body:late(Body), #refused{body = none}};
info(StreamId, Message, #shared{with = With, state = State}) ->
    shared(info(StreamId, Message, State), With);
info(_, _, Refused) ->
    {[], Refused}.

-doc false.
terminate(StreamId, Reason, #entered{next = Next}) ->
    cowboy_stream:terminate(StreamId, Reason, Next);
terminate(_, _, #waiting{for = Wait}) ->
    erlmcp_httpd_auth:forget(Wait);
terminate(_, _, #refused{}) ->
    ok;
terminate(StreamId, Reason, #shared{state = State}) ->
    terminate(StreamId, Reason, State).

-doc false.
early_error(_, _, _, Response, _) ->
    Response.
