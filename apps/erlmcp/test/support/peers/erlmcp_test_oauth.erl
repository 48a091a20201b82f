-module(erlmcp_test_oauth).
-moduledoc """
A protected MCP server and its authorization server on one port. They keep to the specification
unless a test gives a path another answer (`change/3`). Every request is kept, in order, for
`asked/2`.

The module also is the user: `browser/1` follows the URL of a login until it leaves for the client.
""".

-export([start/0, start/1, stop/1, url/1, url/2]).
-export([change/3, metadata/2, resource/2, asked/1, asked/2]).
-export([browser/1, logged_in/1, call/2, call/3, deadline/0]).
-export([granted/2, token_answer/1, json/2]).
-export([init/2]).

-define(PRM, ~"/.well-known/oauth-protected-resource/mcp").
-define(METADATA, ~"/.well-known/oauth-authorization-server").

start() -> start(#{}).

%% ssl: options of TLS for the listener.
start(Options) ->
    Table = ets:new(?MODULE, [public, ordered_set]),
    Ref = make_ref(),
    Peer = #{table => Table, ref => Ref},
    Dispatch = cowboy_router:compile([{'_', [{'_', ?MODULE, Peer}]}]),
    Protocol = #{env => #{dispatch => Dispatch}},
    {Scheme, {ok, _}} = case Options of
        #{ssl := Ssl} -> {~"https", cowboy:start_tls(Ref, [{port, 0} | Ssl], Protocol)};
        #{} -> {~"http", cowboy:start_clear(Ref, [{port, 0}, {ip, {127, 0, 0, 1}}], Protocol)}
    end,
    Port = integer_to_binary(ranch:get_port(Ref)),
    Base = <<Scheme/binary, "://localhost:", Port/binary>>,
    ets:insert(Table, {base, Base}),
    Peer#{base => Base}.

stop(#{ref := Ref, table := Table}) ->
    ok = cowboy:stop_listener(Ref),
    true = ets:delete(Table),
    ok.

-doc "Returns the URL of the MCP server.".
url(Peer) -> url(Peer, ~"/mcp").

url(#{base := Base}, Path) -> <<Base/binary, Path/binary>>.

-doc """
Gives a path another answer: `{Status, Headers, Body}`, `hang`, or a fun that returns one of these
for a request.
""".
change(#{table := Table}, Path, Answer) ->
    ets:insert(Table, {{answer, Path}, Answer}),
    ok.

-doc "Changes members of the authorization server's metadata; `remove` removes one.".
metadata(#{table := Table}, Changes) ->
    ets:insert(Table, {metadata, Changes}),
    ok.

-doc "Changes members of the resource's metadata; `remove` removes one.".
resource(#{table := Table}, Changes) ->
    ets:insert(Table, {resource, Changes}),
    ok.

-doc "Returns the paths that were asked for, in order.".
asked(Peer) ->
    [Path || #{path := Path} <- requests(Peer)].

asked(Peer, Path) ->
    [Request || #{path := Asked} = Request <- requests(Peer), Asked =:= Path].

requests(#{table := Table}) ->
    [Request || {{request, _}, Request} <- ets:tab2list(Table)].

deadline() -> erlang:monotonic_time(millisecond) + 60_000.

-doc "Follows the URL of a login, as the browser of a user who agrees. Returns the next URL.".
browser(Url) ->
    Request = {binary_to_list(Url), []},
    case httpc:request(get, Request, [{autoredirect, false}], [{body_format, binary}]) of
        {ok, {{_, 302, _}, Headers, _}} ->
            {ok, list_to_binary(proplists:get_value("location", Headers))};
        {ok, {{_, Status, _}, _, _}} ->
            {error, Status}
    end.

-doc "Returns options of a client whose user agrees, and these options.".
logged_in(More) ->
    maps:merge(#{redirect_uri => ~"http://localhost:9/callback", browser => fun browser/1}, More).

-doc "Sends a request to the MCP server, and answers at most three challenges.".
call(Handle, Peer) -> call(Handle, Peer, deadline()).

call(Handle, Peer, Deadline) -> call(Handle, url(Peer), Deadline, 3).

call(Handle, Url, Deadline, Challenges) ->
    maybe
        {ok, Headers} ?= erlmcp_authorizer:headers(Handle, post, Url, Deadline),
        {ok, {{_, Status, _}, Received, _}} =
            httpc:request(post, {binary_to_list(Url), texts(Headers), "application/json", ~"{}"},
                          [{autoredirect, false}], [{body_format, binary}]),
        Answered = #{list_to_binary(Name) => list_to_binary(Value) || {Name, Value} <- Received},
        true ?= Status =:= 401 orelse Status =:= 403
            orelse {erlmcp_authorizer:notice(Handle, Answered), Status},
        true ?= Challenges > 0 orelse {ok, Status},
        retry ?= erlmcp_authorizer:challenged(Handle, Headers, {Status, Answered}, none, Deadline),
        call(Handle, Url, Deadline, Challenges - 1)
    end.

texts(Headers) ->
    [{binary_to_list(Name), binary_to_list(iolist_to_binary(Value))} || {Name, Value} <- Headers].

init(Req0, #{table := Table} = Peer) ->
    Path = cowboy_req:path(Req0),
    {ok, Body, Req} = cowboy_req:read_body(Req0),
    [{base, Base}] = ets:lookup(Table, base),
    Request = #{method => cowboy_req:method(Req), path => Path, headers => cowboy_req:headers(Req),
                query => maps:from_list(cowboy_req:parse_qs(Req)), body => Body,
                form => form(cowboy_req:header(~"content-type", Req), Body), base => Base},
    ets:insert(Table, {{request, erlang:unique_integer([monotonic])}, Request}),
    Answer = case ets:lookup(Table, {answer, Path}) of
        [{_, Fun}] when is_function(Fun) -> Fun(Request);
        [{_, Given}] -> Given;
        [] -> answer(Request, Table)
    end,
    {ok, reply(Answer, Req), Peer}.

reply(hang, _) -> receive never -> ok end;
reply({Status, Headers, Body}, Req) -> cowboy_req:reply(Status, Headers, Body, Req).

form(~"application/x-www-form-urlencoded", Body) -> maps:from_list(cow_qs:parse_qs(Body));
form(_, _) -> #{}.

answer(#{path := ~"/mcp", headers := Headers, base := Base}, Table) ->
    case maps:get(~"authorization", Headers, none) of
        <<"Bearer ", Token/binary>> -> accepted(ets:member(Table, {token, Token}), Base);
        _ -> accepted(false, Base)
    end;
answer(#{path := ?PRM, base := Base}, Table) ->
    json(200, changed(Table, resource, #{~"resource" => <<Base/binary, "/mcp">>,
                                         ~"authorization_servers" => [Base]}));
answer(#{path := ?METADATA, base := Base}, Table) ->
    json(200, changed(Table, metadata, metadata(Base)));
answer(#{path := ~"/register", body := Body}, Table) ->
    Number = integer_to_binary(ets:update_counter(Table, clients, 1, {clients, 0})),
    json(201, (json:decode(Body))#{~"client_id" => <<"client-", Number/binary>>});
answer(#{path := ~"/authorize", query := Query, base := Base}, Table) ->
    #{~"redirect_uri" := RedirectUri, ~"state" := State} = Query,
    ets:insert(Table, {code, maps:get(~"code_challenge", Query, none)}),
    Answer = uri_string:compose_query([{~"code", ~"a-code"}, {~"state", State}, {~"iss", Base}]),
    {302, #{~"location" => <<RedirectUri/binary, "?", Answer/binary>>}, ~""};
answer(#{path := ~"/token", form := Form}, Table) ->
    case granted(Form, Table) of
        true -> json(200, token_answer(Table));
        false -> json(400, #{~"error" => ~"invalid_grant"})
    end;
answer(_, _) ->
    {404, #{}, ~""}.

accepted(true, _) ->
    {200, #{~"content-type" => ~"application/json"}, ~"{}"};
accepted(false, Base) ->
    {401, #{~"www-authenticate" => <<"Bearer resource_metadata=\"", Base/binary, ?PRM/binary,
                                     "\"">>}, ~""}.

metadata(Base) ->
    #{~"issuer" => Base,
      ~"authorization_endpoint" => <<Base/binary, "/authorize">>,
      ~"token_endpoint" => <<Base/binary, "/token">>,
      ~"registration_endpoint" => <<Base/binary, "/register">>,
      ~"code_challenge_methods_supported" => [~"S256"],
      ~"token_endpoint_auth_methods_supported" => [~"none"],
      ~"authorization_response_iss_parameter_supported" => true}.

changed(Table, Name, Document) ->
    case ets:lookup(Table, Name) of
        [{_, Changes}] ->
            maps:filter(fun(_, Value) -> Value =/= remove end, maps:merge(Document, Changes));
        [] ->
            Document
    end.

-doc """
Returns `true` if a request for a token has a valid grant. A code is valid once, and with its
verifier only.
""".
granted(Form, #{table := Table}) ->
    granted(Form, Table);
granted(#{~"grant_type" := ~"authorization_code", ~"code" := ~"a-code",
          ~"code_verifier" := Verifier}, Table) ->
    ets:take(Table, code) =:= [{code, base64:encode(crypto:hash(sha256, Verifier),
                                                    #{mode => urlsafe, padding => false})}];
granted(#{~"grant_type" := ~"refresh_token", ~"refresh_token" := Refresh}, Table) ->
    ets:take(Table, {refresh, Refresh}) =/= [];
granted(#{~"grant_type" := Type}, _) ->
    lists:member(Type, [~"client_credentials", ~"urn:ietf:params:oauth:grant-type:jwt-bearer"]);
granted(_, _) ->
    false.

-doc "Returns the answer with a new token, which the MCP server accepts, and its refresh token.".
token_answer(#{table := Table}) ->
    token_answer(Table);
token_answer(Table) ->
    Number = integer_to_binary(ets:update_counter(Table, tokens, 1, {tokens, 0})),
    Token = <<"token-", Number/binary>>,
    Refresh = <<"refresh-", Number/binary>>,
    ets:insert(Table, [{{token, Token}}, {{refresh, Refresh}}]),
    #{~"access_token" => Token, ~"token_type" => ~"Bearer", ~"expires_in" => 3600,
      ~"refresh_token" => Refresh}.

json(Status, Document) ->
    {Status, #{~"content-type" => ~"application/json"}, json:encode(Document)}.
