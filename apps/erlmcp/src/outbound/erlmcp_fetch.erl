-module(erlmcp_fetch).
-moduledoc """
Makes the HTTP requests of authorization, and those that send spans to a collector, in the calling
process.

A URL is called only if `m:erlmcp_oauth_url` allows it, and only at an address that
`m:erlmcp_outbound_hosts` allows. Redirects are followed only for GET, within the origin, and at
most three times. Any other redirect is an error. The body of an answer may have at most 1 MiB.

Internal.
""".

-export([get_json/2, post_form/4, post_json/3, post/4]).

-export_type([settings/0, answer/0, reason/0]).

-doc """
Settings of requests. `deadline` is in milliseconds of `erlang:monotonic_time/1`. A request has at
most 30 seconds after the lookup of its host's name; one after a redirect has as many again. `plain`
has the hosts that may be called over plain http, and `tls` the options of TLS. Without `hosts` all
addresses are allowed.
""".
-type settings() :: #{
    deadline := integer(),
    plain := erlmcp_oauth_url:plain(),
    tls := [ssl:tls_client_option()],
    hosts => erlmcp_outbound_hosts:hosts()
}.
-doc """
An answer. The names of `headers` are in lower case, and the values of a repeated header are joined
with commas. `json` is `none` if the body has no JSON media type, is not a JSON document, or has
more than 16 levels or 5,000 members.
""".
-type answer() :: #{
    status := 200..599,
    headers := #{binary() => binary()},
    json := {ok, erlmcp_json:json_term()} | none
}.
-type reason() ::
    {url_not_allowed, binary()}
    | {connect, term()}
    | erlmcp_outbound_hosts:reason()
    | {closed, term()}
    | {redirect, binary()}
    | {too_large, pos_integer()}
    | timeout.

-define(BODY_BYTES, 1_048_576).
-define(REDIRECTS, 3).
%% The most milliseconds of one request: a slow server delays the login, and all requests that wait
%% for its token.
-define(REQUEST_MS, 30_000).
-define(LIMITS, #{message_bytes => ?BODY_BYTES, depth => 16, members => 5_000}).

-doc """
Gets the JSON document at `Url`. The answer may have any status, and need not have JSON. A redirect
that is not followed is an error.
""".
-spec get_json(Url :: binary(), settings()) -> {ok, answer()} | {error, reason()}.
get_json(Url, Settings) ->
    Revision = erlmcp_revision:name(erlmcp_revision:latest(stateless)),
    get_json(Url, [{~"mcp-protocol-version", Revision}], Settings, ?REDIRECTS).

get_json(Url, Headers, Settings, Redirects) ->
    maybe
        {ok, Answer} ?= exchange(~"GET", Url, Headers, ~"", Settings),
        {again, Location} ?= redirected(Answer, Url, Redirects),
        get_json(Location, Headers, Settings, Redirects - 1)
    end.

-doc """
Posts a form to `Url`, with additional headers. The errors are those of `get_json/2`. Every redirect
is an error.
""".
-spec post_form(Url :: binary(), Headers :: [{binary(), iodata()}], Form :: [{binary(), binary()}],
                settings()) ->
    {ok, answer()} | {error, reason()}.
post_form(Url, Headers, Form, Settings) ->
    Body = uri_string:compose_query(Form),
    Type = {~"content-type", ~"application/x-www-form-urlencoded"},
    post(Url, [Type | Headers], Body, Settings).

-doc """
Posts a JSON document to `Url`. The errors are those of `get_json/2`. Every redirect is an error.
""".
-spec post_json(Url :: binary(), Document :: #{binary() => json:encode_value()}, settings()) ->
    {ok, answer()} | {error, reason()}.
post_json(Url, Document, Settings) ->
    post(Url, [{~"content-type", ~"application/json"}], json:encode(Document), Settings).

-doc """
Posts a body to `Url`. `Headers` must have its `content-type`. The errors are those of `get_json/2`.
Every redirect is an error.
""".
-spec post(Url :: binary(), Headers :: [{binary(), iodata()}], Body :: iodata(), settings()) ->
    {ok, answer()} | {error, reason()}.
%% The body of a POST may have secrets for its own URL, so redirects of a POST are not followed.
post(Url, Headers, Body, Settings) ->
    maybe
        {ok, Answer} ?= exchange(~"POST", Url, Headers, Body, Settings),
        {again, Location} ?= redirected(Answer, Url, 0),
        {error, {redirect, Location}}
    end.

redirected(#{status := Status, headers := #{~"location" := Location}}, Url, Redirects)
  when Status =:= 301; Status =:= 302; Status =:= 303; Status =:= 307; Status =:= 308 ->
    Target = resolved(Location, Url),
    case Redirects > 0 andalso erlmcp_oauth_url:same_origin(Target, Url) of
        true -> {again, Target};
        false -> {error, {redirect, Target}}
    end;
redirected(Answer, _, _) ->
    {ok, Answer}.

resolved(Location, Url) when byte_size(Location) =< 4096 ->
    %% uri_string takes text, and a header is bytes.
    case unicode:characters_to_binary(Location) =:= Location
             andalso uri_string:resolve(Location, Url) of
        Target when is_binary(Target) -> Target;
        _ -> ~""
    end;
resolved(_, _) ->
    ~"".

exchange(Method, Url, Headers, Body, #{plain := Plain, deadline := Deadline} = Settings) ->
    maybe
        true ?= erlmcp_oauth_url:allowed(Url, Plain) orelse {error, {url_not_allowed, Url}},
        {ok, Addresses} ?= erlmcp_outbound_hosts:addresses(Url, maps:get(hosts, Settings, any)),
        {ok, Origin} = erlmcp_oauth_url:origin(Url),
        Own = min(Deadline, erlmcp_clock:now_ms() + ?REQUEST_MS),
        exchanged(Addresses, Origin, {Method, target(Url), [host(Origin) | Headers], Body},
                  Settings#{deadline := Own})
    end.

%% Calls the first address of a host that can be reached. The remaining time is divided among the
%% addresses, so that a dead address leaves time for the next one.
exchanged([Address | Others], Origin, Request, #{deadline := Deadline} = Settings) ->
    Part = remaining_ms(Deadline) div (1 + length(Others)),
    Until = erlmcp_clock:now_ms() + Part,
    case connected(Address, Origin, Request, Until, Settings) of
        {error, {connect, _}} when Others =/= [] -> exchanged(Others, Origin, Request, Settings);
        {error, {connect, timeout}} -> {error, timeout};
        Answer -> Answer
    end.

connected(Address, {Scheme, Host, Port} = Origin, Request, Until, Settings) ->
    maybe
        {ok, _} ?= started(),
        {ok, Options} ?= connection(Scheme, address(Host), Until, Settings),
        {ok, Connection} ?= gun:open(Address, Port, Options),
        Answered = try answered(Connection, Request, Until, Settings)
        after
            gun:close(Connection),
            gun:flush(Connection)
        end,
        case Answered of
            %% The connection ended before gun could tell the reason. Nothing was sent on it.
            {error, {connect, noproc}} ->
                case remaining_ms(Until) of
                    0 -> {error, {connect, timeout}};
                    _ -> connected(Address, Origin, Request, Until, Settings)
                end;
            _ ->
                Answered
        end
    else
        {error, Reason} -> {error, {connect, Reason}}
    end.

%% The command `erlmcp` starts a server without gun; here gun starts. A node that stops starts
%% nothing.
started() ->
    case whereis(gun_sup) of
        undefined -> application:ensure_all_started(gun);
        _ -> {ok, []}
    end.

answered(Connection, {Method, Target, Headers, Body}, Until, #{deadline := Deadline}) ->
    maybe
        {ok, _} ?= connect_error(gun:await_up(Connection, remaining_ms(Until))),
        Stream = gun:request(Connection, Method, Target, headers(Headers), Body, #{flow => 4}),
        {ok, Status, Given, End} ?= head(Connection, Stream, Deadline),
        {ok, Text} ?= body(End, Connection, Stream, Deadline),
        Received = received(Given),
        {ok, #{status => Status, headers => Received, json => document(Received, Text)}}
    end.

head(Connection, Stream, Deadline) ->
    case gun:await(Connection, Stream, remaining_ms(Deadline)) of
        {response, End, Status, Headers} -> {ok, Status, Headers, End};
        {inform, _, _} -> head(Connection, Stream, Deadline);
        {error, timeout} -> {error, timeout};
        {error, Reason} -> {error, {closed, outline(Reason)}};
        _ -> {error, {closed, protocol}}
    end.

body(fin, _, _, _) -> {ok, ~""};
body(nofin, Connection, Stream, Deadline) -> body(Connection, Stream, Deadline, 0, []).

body(Connection, Stream, Deadline, Size, Parts) ->
    case gun:await(Connection, Stream, remaining_ms(Deadline)) of
        {data, _, Part} when Size + byte_size(Part) > ?BODY_BYTES ->
            {error, {too_large, ?BODY_BYTES}};
        {data, fin, Part} ->
            {ok, iolist_to_binary(lists:reverse(Parts, [Part]))};
        {data, nofin, Part} ->
            gun:update_flow(Connection, Stream, 1),
            body(Connection, Stream, Deadline, Size + byte_size(Part), [Part | Parts]);
        {trailers, _} ->
            {ok, iolist_to_binary(lists:reverse(Parts))};
        {error, timeout} ->
            {error, timeout};
        {error, Reason} ->
            {error, {closed, outline(Reason)}};
        _ ->
            {error, {closed, protocol}}
    end.

connection(Scheme, Host, Until, #{tls := Tls}) ->
    Common = #{retry => 0, connect_timeout => remaining_ms(Until), protocols => [http]},
    case Scheme of
        ~"http" ->
            {ok, Common#{transport => tcp}};
        ~"https" ->
            maybe
                {ok, Verified} ?= erlmcp_tls:client_options(Host, Tls),
                {ok, Common#{transport => tls, tls_opts => Verified}}
            end
    end.

address(Host) ->
    Text = binary_to_list(Host),
    case inet:parse_strict_address(Text) of
        {ok, Address} -> Address;
        {error, einval} -> Text
    end.

%% The value of `host`, which the request needs, since the connection is to an address.
host({Scheme, Host, Port}) ->
    Name = case binary:match(Host, ~":") of
        nomatch -> Host;
        _ -> [$[, Host, $]]
    end,
    Standard = #{~"http" => 80, ~"https" => 443},
    {~"host", iolist_to_binary([Name, [[$:, integer_to_binary(Port)]
                                       || map_get(Scheme, Standard) =/= Port]])}.

target(Url) ->
    case uri_string:parse(Url) of
        #{path := ~"", query := Query} -> <<"/?", Query/binary>>;
        #{path := ~""} -> ~"/";
        #{path := Path, query := Query} -> <<Path/binary, "?", Query/binary>>;
        #{path := Path} -> Path
    end.

headers(Headers) ->
    [{~"accept", ~"application/json"} | Headers].

%% Joins the values of a repeated header. A header that must occur once is invalid then.
received(Given) ->
    lists:foldl(fun({Name, Value}, Headers) ->
                    maps:update_with(Name, fun(Old) -> <<Old/binary, ", ", Value/binary>> end,
                                     Value, Headers)
                end, #{}, Given).

document(#{~"content-type" := Type}, Text) ->
    maybe
        true ?= is_json(hd(binary:split(Type, [~";", ~" ", ~"\t"]))),
        {ok, Json} ?= erlmcp_json:decode(Text, ?LIMITS),
        {ok, Json}
    else
        _ -> none
    end;
document(_, _) ->
    none.

%% The functions of `string` need UTF-8, and a header may have any bytes.
is_json(Type) ->
    case cowboy_bstr:to_lower(Type) of
        ~"application/json" -> true;
        <<"application/", Rest/binary>> -> binary:longest_common_suffix([Rest, ~"+json"]) =:= 5;
        _ -> false
    end.

connect_error({ok, Protocol}) -> {ok, Protocol};
connect_error({error, Reason}) -> {error, {connect, outline(Reason)}}.

%% Shortens a reason of gun's, which may contain the state of a connection, with the bytes sent on
%% it.
outline({shutdown, Reason}) -> outline(Reason);
outline({down, Reason}) -> outline(Reason);
outline({stream_error, Reason}) -> outline(Reason);
outline({connection_error, Reason}) -> outline(Reason);
outline({tls_alert, {Alert, _}}) when is_atom(Alert) -> {tls_alert, Alert};
outline(Reason) when is_atom(Reason) -> Reason;
outline(Reason) when is_tuple(Reason), is_atom(element(1, Reason)) -> element(1, Reason);
outline(_) -> other.

remaining_ms(Deadline) ->
    max(0, Deadline - erlmcp_clock:now_ms()).
