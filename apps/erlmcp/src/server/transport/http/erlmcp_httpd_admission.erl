-module(erlmcp_httpd_admission).
-moduledoc """
What HTTP has of its own at a server's gate: requests that are refused on their heads, before a byte
of their bodies is read; principals that come with a request and not with a connection; statuses.

Internal.
""".

-export([knock/4, told/2, asked/2, ask/4, refused/5, kept_back/3]).

-export_type([told/0]).

-doc "A stateless request with this method, and the text that its body has from there to `params`.".
-type told() :: {told, Method :: binary(), Text :: binary()}.

%% Principals of one connection that are counted. Who has more is a proxy.
-define(PRINCIPALS, 100).
%% Milliseconds that a refusal is kept back at most.
-define(KEPT, 1000).

-doc """
Whether a request may come in as far as its head says: the server takes requests now, and the
connection may be one of this principal's. What a session's client posts may be an answer that is
waited for, and is read; one that asks for a place before it is read (`told`) hears of the server
then.
""".
-spec knock(erlmcp_httpd_request:asked() | told(), cowboy_req:req(), erlmcp_auth:principal(),
            erlmcp_instance:instance()) ->
    ok | {refuse, erlmcp_refusal:refusal(), Headers :: #{binary() => binary()}}.
knock(Asked, #{headers := Headers, version := Version}, Principal, #{gate := Gate} = Instance) ->
    maybe
        ok ?= takes(Asked, Headers, Gate),
        ok ?= joined(Principal, Version, Gate)
    else
        {refuse, Refusal, Extra} ->
            {refuse, erlmcp_error_budget:count_refusal(Refusal, Instance), Extra}
    end.

takes({told, _, _}, _, _) ->
    ok;
takes({post, _}, Headers, _) when is_map_key(~"mcp-session-id", Headers) ->
    ok;
takes({post, _}, Headers, Gate) ->
    case erlmcp_gate:state(Gate) of
        open -> ok;
        {refuse, Refusal} -> {refuse, told(Refusal, Headers), #{}}
    end;
takes(_, _, _) ->
    ok.

%% A connection is one of a principal from its first request of that one to its end.
joined(anonymous, _, _) ->
    ok;
joined(Principal, Version, Gate) ->
    Known = case get(?MODULE) of
        undefined -> #{};
        Joined -> Joined
    end,
    case Known of
        #{Principal := _} ->
            ok;
        #{} when map_size(Known) >= ?PRINCIPALS ->
            ok;
        #{} ->
            case erlmcp_gate:joined(Gate, Principal) of
                {ok, Ticket} ->
                    _ = put(?MODULE, Known#{Principal => Ticket}),
                    ok;
                {refuse, Refusal} ->
                    {refuse, Refusal, erlmcp_httpd_body:closing(Version)}
            end
    end.

-doc """
A refusal as a request's head has it told: `server/discover` is not refused with 429 for load, since
clients that try which era a server is of take that for the older one's word.
""".
-spec told(erlmcp_refusal:refusal(), Headers :: #{binary() => binary()}) ->
    erlmcp_refusal:refusal().
told(Refusal, #{~"mcp-method" := ~"server/discover"}) -> unavailable(Refusal);
told(Refusal, _) -> Refusal.

unavailable(Refusal) ->
    case erlmcp_refusal:status(Refusal) of
        429 -> erlmcp_refusal:with_status(503, Refusal);
        _ -> Refusal
    end.

-doc """
What a POST request asks for as far as its head says: `told` of one whose message is a stateless
request.
""".
-spec asked(Headers :: #{binary() => binary()}, erlmcp_httpd_request:accept()) ->
    told() | {post, erlmcp_httpd_request:accept()}.
asked(#{~"mcp-protocol-version" := ~"2026-07-28", ~"mcp-method" := Method} = Headers, Accept) when
    Method =/= ~"server/discover", not is_map_key(~"mcp-session-id", Headers)
->
    case erlmcp_json_fast:is_plain(Method) of
        true -> {told, Method, <<",\"method\":\"", Method/binary, "\",\"params\":">>};
        false -> {post, Accept}
    end;
asked(_, Accept) ->
    {post, Accept}.

-doc """
Asks for a place for a request before it is read, where its head has told of it and its id stands
where clients write it. What cannot be told so is `unread`.
""".
-spec ask(told() | {post, erlmcp_httpd_request:accept()}, binary(), erlmcp_admission:flow(),
          erlmcp_instance:instance()) ->
    unread
    | {ok, erlmcp_admission:admitted(), Begun :: {erlmcp_message:id(), Bytes :: pos_integer()}}
    | {refuse, erlmcp_message:id(), erlmcp_refusal:refusal()}.
ask({told, _, _}, Bytes, Flow, Instance) ->
    maybe
        {ok, Id, At} ?= erlmcp_message:first_id(Bytes),
        case erlmcp_admission:enter_unread(byte_size(Bytes), Flow, Instance) of
            {ok, Admitted} -> {ok, Admitted, {Id, At}};
            {refuse, Refusal} -> {refuse, Id, Refusal}
        end
    else
        unseen -> unread
    end;
ask(_, _, _, _) ->
    unread.

-doc """
The answer to a message that may not enter. A session's client is told under 200, as of any other
error of a request: to some of them another status means that the session is gone.
""".
-spec refused(erlmcp_message:id() | undefined, erlmcp_refusal:refusal(), Json :: term(),
              erlmcp_engine:envelope(), InSession :: boolean()) -> erlmcp_reply:reply().
refused(Id, Refusal, #{~"method" := ~"server/discover"}, _, _) ->
    erlmcp_reply:refuse(Id, unavailable(Refusal));
refused(Id, Refusal, Json, Envelope, true) when Id =/= undefined ->
    case erlmcp_engine:era(Json, Envelope) of
        session -> {reply, 200, erlmcp_message:error(Id, Refusal)};
        stateless -> erlmcp_reply:refuse(Id, Refusal)
    end;
refused(Id, Refusal, _, _, _) ->
    erlmcp_reply:refuse(Id, Refusal).

-doc """
For how many milliseconds a refusal is kept back, on a connection with one request at a time. Whom a
refusal there has told when to come back, and who asks again before, is told again when that time is
over, a second at most, or up to half of it sooner: not all at once. The next request is read when
this one is answered; so clients that ask again at once leave the server time for what it lets in,
which never waits for this. A proxy's connection is many clients', and nobody is kept back there:
that of one that is trusted, or, on a listener that trusts none, of one whose headers say so.
""".
-spec kept_back(erlmcp_refusal:refusal(), Headers :: #{binary() => binary()},
                erlmcp_httpd_config:config()) -> non_neg_integer().
kept_back(Refusal, Headers, Config) ->
    case {erlmcp_refusal:retry_after(Refusal), is_proxied(Headers, Config)} of
        {Seconds, false} when is_integer(Seconds) ->
            Now = erlang:monotonic_time(millisecond),
            Kept = early(get({?MODULE, told}), Now),
            _ = put({?MODULE, told}, Now + Kept + min(?KEPT, 1000 * Seconds)),
            Kept;
        _ ->
            0
    end.

early(Told, Now) when is_integer(Told), Told > Now ->
    Told - Now - erlang:phash2(self(), (Told - Now) div 2 + 1);
early(_, _) ->
    0.

is_proxied(_, #{proxied := Proxied}) -> Proxied;
is_proxied(#{~"via" := _}, _) -> true;
is_proxied(Headers, _) -> erlmcp_forwarded:is_there(Headers).
