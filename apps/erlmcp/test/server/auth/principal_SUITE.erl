-module(principal_SUITE).
-moduledoc """
Who asks: the principal that a listener's `authenticate` or `principal` gives reaches handlers, and
what was made for one principal is nobody else's. Quotes are of specification 2026-07-28,
"Authorization", and of "Security Best Practices / Session Hijacking".
""".

-include_lib("public_key/include/public_key.hrl").

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([nobody_is_asked/1, handlers_know_the_principal/1, each_request_is_asked_once/1,
         tcp_clients_are_the_listeners_principal/1, what_authenticate_is_told/1,
         certificates_are_told/1, names_of_certificates_are_different/1,
         identities_of_certificates_expire_with_them/1, names_of_certificates_are_written/1,
         certificates_without_a_name_are_refused/1, options_of_certificates/1,
         what_authenticate_leaves_out/1]).
-export([missing_credentials_are_401/1, wrong_credentials_are_401/1,
         expired_credentials_are_401/1, refused_before_the_body/1,
         every_method_is_asked/1, a_crash_refuses/1, a_return_that_is_none_refuses/1,
         wrong_options_are_refused/1]).
-export([session_is_its_principals/1, stream_is_its_principals/1, delete_is_its_principals/1,
         calls_are_their_principals/1, state_is_its_principals/1, sessions_keep_no_request/1,
         principals_keep_no_request/1]).
-export([log/2]).

-import(erlmcp_test_suite, [server/1]).

-define(TIMEOUT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, asked}, {group, refused}, {group, bound}].

groups() ->
    [{asked, [nobody_is_asked, handlers_know_the_principal, each_request_is_asked_once,
              tcp_clients_are_the_listeners_principal, what_authenticate_is_told,
              certificates_are_told, names_of_certificates_are_different,
              identities_of_certificates_expire_with_them, names_of_certificates_are_written,
              certificates_without_a_name_are_refused, options_of_certificates,
              what_authenticate_leaves_out]},
     {refused, [missing_credentials_are_401, wrong_credentials_are_401,
                expired_credentials_are_401, refused_before_the_body, every_method_is_asked,
                a_crash_refuses, a_return_that_is_none_refuses,
                wrong_options_are_refused]},
     {bound, [session_is_its_principals, stream_is_its_principals, delete_is_its_principals,
              calls_are_their_principals, state_is_its_principals, sessions_keep_no_request,
              principals_keep_no_request]}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, ssl], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    Server = serve(fun by_token/1),
    [{server, Server} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

serve(Authenticate) ->
    #{tools := Tools} = Definitions = erlmcp_test_http:definitions(self()),
    erlmcp_test_http:start(Definitions#{
        tools := [#{name => ~"size", handler => fun(_, #{principal := {user, Name}}) ->
                        integer_to_binary(binary:referenced_byte_size(Name))
                    end},
                  #{name => ~"whoami", handler => fun(_, #{principal := Principal}) ->
                        iolist_to_binary(io_lib:format("~0p", [Principal]))
                    end},
                  #{name => ~"ask", handler => fun ask/2} | Tools],
        listen => [{http, #{authenticate => Authenticate}}, {tcp, #{principal => {tcp, 1}}},
                   {tcp, #{}}]}).

%% A handler with a round of input, whose state is what it was told at first.
ask(_, #{state := Secret, input := #{~"name" := #{~"content" := #{~"name" := Name}}}}) ->
    <<Name/binary, " knows ", Secret/binary>>;
ask(#{~"secret" := Secret}, _) ->
    Schema = #{type => object, properties => #{name => #{type => string}}},
    {input_required, #{~"name" => erlmcp_input:elicit(~"Who?", Schema)}, Secret}.

by_token(#{headers := #{~"authorization" := <<"Bearer user-", Name/binary>>}}) ->
    {ok, {user, Name}};
by_token(#{headers := #{~"authorization" := _}}) ->
    {error, ~"the token is not known"};
by_token(_) ->
    {error, ~"a bearer token is required"}.

as(Name) ->
    #{headers => bearer(Name)}.

bearer(Name) ->
    #{~"authorization" => <<"Bearer user-", Name/binary>>}.

session(Server, Name) ->
    #{status := 200, headers := #{~"mcp-session-id" := Id}} =
        erlmcp_test_http:initialize(Server, ~"2025-11-25", bearer(Name)),
    {Id, ~"2025-11-25"}.

text(#{messages := [#{~"result" := #{~"content" := [#{~"text" := Text}]}}]}) ->
    Text.

whoami(Server, Options) ->
    text(erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"whoami"}, Options)).

%% Who asks.

%% Where a listener has no `authenticate`, all are `anonymous`.
nobody_is_asked(Config) ->
    Whoami = #{tools => [#{name => ~"whoami", handler => fun(_, #{principal := Principal}) ->
                               atom_to_binary(Principal)
                           end}]},
    Server = erlmcp_test_http:start(Whoami),
    ~"anonymous" = whoami(Server, as(~"ada")),
    ~"anonymous" = whoami(Server, #{session => erlmcp_test_http:initialize(Server,
                                                                           ~"2025-11-25")}),
    erlmcp_test_http:stop(Server),
    [_, Tcp] = tcp_ports(Config),
    ~"anonymous" = whoami_tcp(Tcp).

handlers_know_the_principal(Config) ->
    Server = server(Config),
    ~"{user,<<\"ada\">>}" = whoami(Server, as(~"ada")),
    ~"{user,<<\"bob\">>}" = whoami(Server, as(~"bob")),
    Session = session(Server, ~"ada"),
    ~"{user,<<\"ada\">>}" = whoami(Server, (as(~"ada"))#{session => Session}).

%% "MCP servers that implement authorization MUST verify all inbound requests." Also those that come
%% on one connection.
each_request_is_asked_once(_) ->
    Test = self(),
    Server = serve(fun(Request) -> Test ! asked, by_token(Request) end),
    Socket = erlmcp_test_http:connect(Server),
    [begin
         {Headers, Body} = erlmcp_test_http:message(~"tools/call", #{name => ~"whoami"}, as(Name)),
         ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
         Expected = <<"{user,<<\"", Name/binary, "\">>}">>,
         Expected = text(erlmcp_test_http:response(Socket)),
         1 = asked(0)
     end || Name <- [~"ada", ~"bob", ~"ada"]],
    %% A page of another origin is turned away before, whatever it brings.
    #{status := 403} = erlmcp_test_http:call(Server, ~"tools/list", #{},
        #{headers => (bearer(~"ada"))#{~"origin" => ~"https://elsewhere.example"}}),
    0 = asked(0),
    erlmcp_test_http:stop(Server).

asked(Times) ->
    receive
        asked -> asked(Times + 1)
    after 0 ->
        Times
    end.

tcp_clients_are_the_listeners_principal(Config) ->
    [Tcp | _] = tcp_ports(Config),
    ~"{tcp,1}" = whoami_tcp(Tcp),
    Socket = erlmcp_test_line:connect(Tcp),
    _ = erlmcp_test_line:initialize(Socket, ~"2025-11-25"),
    #{~"result" := #{~"content" := [#{~"text" := ~"{tcp,1}"}]}} =
        erlmcp_test_line:ask(Socket, 2, ~"tools/call", #{name => ~"whoami"}),
    ok = erlmcp_test_line:close(Socket).

tcp_ports(Config) ->
    #{pid := Pid} = server(Config),
    [Port || #{transport := tcp, port := Port} <- erlmcp:listeners(Pid)].

whoami_tcp(Port) ->
    Socket = erlmcp_test_line:connect(Port),
    #{~"result" := #{~"content" := [#{~"text" := Text}]}} =
        erlmcp_test_line:ask_stateless(Socket, 1, ~"tools/call", #{name => ~"whoami"}),
    ok = erlmcp_test_line:close(Socket),
    Text.

what_authenticate_is_told(_) ->
    Test = self(),
    Ask = fun(Request) -> Test ! {told, Request}, {ok, someone} end,
    [begin
         #{url := Url} = Server = serve(Authenticate),
         Socket = erlmcp_test_http:connect(Server),
         {ok, Own} = inet:sockname(Socket),
         {Headers, Body} = erlmcp_test_http:message(~"tools/list", #{}, as(~"ada")),
         ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
         #{status := 200} = erlmcp_test_http:response(Socket),
         receive
             {told, Request} ->
                 #{method := ~"POST", path := ~"/mcp", peer := Own, tls := false, url := Url,
                   headers := #{~"authorization" := ~"Bearer user-ada"}} = Request,
                 6 = map_size(Request)
         after ?TIMEOUT ->
             error(not_told)
         end,
         erlmcp_test_http:stop(Server)
     end || Authenticate <- [Ask, {process, Ask}]].

%% With TLS a client may have a certificate.
certificates_are_told(_) ->
    Test = self(),
    Made = [{digest, sha256}, {key, {namedCurve, secp256r1}}],
    Chain = #{root => Made, intermediates => [], peer => Made},
    #{server_config := Tls, client_config := Client} =
        public_key:pkix_test_data(#{server_chain => Chain, client_chain => Chain}),
    Certificate = proplists:get_value(cert, Client),
    Server = erlmcp_test_http:start(#{listen => [{http, #{
        tls => [{verify, verify_peer}, {fail_if_no_peer_cert, false} | Tls],
        authenticate => fun(Request) -> Test ! {told, Request}, {error, ~"nobody"} end}}]}),
    [begin
         Options = [{verify, verify_none}, {active, false}, binary | Own],
         {ok, Socket} = ssl:connect("127.0.0.1", maps:get(port, Server), Options, ?TIMEOUT),
         ok = ssl:send(Socket, ~"GET /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"),
         {ok, <<"HTTP/1.1 401", _/binary>>} = ssl:recv(Socket, 0, ?TIMEOUT),
         ok = ssl:close(Socket),
         receive
             {told, #{tls := true} = Told} -> Expected = maps:with([certificate], Told)
         after ?TIMEOUT ->
             error(not_told)
         end
     end || {Own, Expected} <- [{[], #{}}, {Client, #{certificate => Certificate}}]],
    erlmcp_test_http:stop(Server).

%% RFC 4514, 2.2: "Where there is a multi-valued RDN, the outputs from adjacent
%% AttributeTypeAndValues are separated by a plus sign". Two clients of one authority must not be
%% one principal.
names_of_certificates_are_different(_) ->
    Made = [{digest, sha256}, {key, {namedCurve, secp256r1}}],
    #{key := RootKey} = Root = public_key:pkix_test_root_cert("authority", Made),
    Chain = #{root => Root, intermediates => [], peer => Made},
    #{server_config := Tls, client_config := Client} =
        public_key:pkix_test_data(#{server_chain => Chain, client_chain => Chain}),
    #'OTPCertificate'{tbsCertificate = Certificate} =
        public_key:pkix_decode_cert(proplists:get_value(cert, Client), otp),
    Server = erlmcp_test_http:start(#{
        tools => [#{name => ~"whoami", handler => fun(_, #{principal := {_, Name}}) -> Name end}],
        listen => [{http, #{tls => [{verify, verify_peer}, {fail_if_no_peer_cert, true} | Tls],
                            authenticate => {certificate, #{}}}}]}),
    [Ada, Firm] = [#'AttributeTypeAndValue'{type = Type, value = {utf8String, Value}}
                   || {Type, Value} <- [{?'id-at-commonName', ~"ada"},
                                        {?'id-at-organizationName', ~"firm"}]],
    Names = [begin
        Signed = public_key:pkix_sign(
            Certificate#'OTPTBSCertificate'{subject = {rdnSequence, Sequence}}, RootKey),
        {ok, Socket} = ssl:connect("127.0.0.1", maps:get(port, Server),
                                   [{cert, Signed}, {verify, verify_none}, {active, false}, binary
                                    | proplists:delete(cert, Client)], ?TIMEOUT),
        {Headers, Body} = erlmcp_test_http:message(~"tools/call", #{name => ~"whoami"}, #{}),
        ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
        #{messages := [#{~"result" := #{~"content" := [#{~"text" := Name}]}}]} =
            erlmcp_test_http:response(Socket),
        ok = ssl:close(Socket),
        Name
    end || Sequence <- [[[Firm], [Ada]], [[Ada], [Firm]], [[Ada, Firm]]]],
    [~"CN=ada,O=firm", ~"O=firm,CN=ada", ~"CN=ada+O=firm"] = Names,
    erlmcp_test_http:stop(Server).

%% RFC 5280, 4.1.2.5.1: "Where YY is less than 50, the year SHALL be interpreted as 20YY".
identities_of_certificates_expire_with_them(_) ->
    Ending = fun(NotAfter) ->
        identity(#{}, fun(Certificate) ->
            #'OTPTBSCertificate'{validity = Validity} = Certificate,
            Until = Validity#'Validity'{notAfter = NotAfter},
            Certificate#'OTPTBSCertificate'{validity = Until}
        end)
    end,
    [begin
         Seconds = calendar:rfc3339_to_system_time(End),
         {End, {ok, #{expires_at := Seconds}}} = {End, Ending(NotAfter)}
     end || {NotAfter, End} <- [{{utcTime, "491231235958Z"}, "2049-12-31T23:59:58Z"},
                                {{utcTime, "400102030405Z"}, "2040-01-02T03:04:05Z"},
                                {{generalTime, "20500304050607Z"}, "2050-03-04T05:06:07Z"}]],
    %% The year 1950, on a connection that was opened before.
    {error, Expired} = Ending({utcTime, "500101000000Z"}),
    {authz_forbidden, ~"the credentials have expired"} =
        {erlmcp_refusal:name(Expired), erlmcp_refusal:message(Expired)}.

%% What a certificate says of a client, for a listener with these options.
identity(Options, Change) ->
    #{cert := Root, key := Key} =
        public_key:pkix_test_root_cert("authority", [{digest, sha256},
                                                     {key, {namedCurve, secp256r1}}]),
    #'OTPCertificate'{tbsCertificate = Certificate} = public_key:pkix_decode_cert(Root, otp),
    Server = make_ref(),
    ok = erlmcp_log:name(Server, ~"of the test"),
    Request = #{method => ~"POST", path => ~"/mcp", headers => #{}, tls => true,
                peer => {{127, 0, 0, 1}, 1},
                certificate => public_key:pkix_sign(Change(Certificate), Key)},
    erlmcp_certificate:identity(Options, Request, Server).

%% RFC 4514, 2.4: what is escaped, and that other types are written as dotted decimals.
names_of_certificates_are_written(_) ->
    Utf8 = fun(Text) -> {utf8String, Text} end,
    Attributes = [{?'id-at-commonName', Utf8(~B(a,b+c"d\e<f>g;h=i#j)),
                   ~B(CN=a\,b\+c\"d\\e\<f\>g\;h\=i\#j)},
                  {?'id-at-organizationName', Utf8(~"firm"), ~"O=firm"},
                  {?'id-at-organizationalUnitName', Utf8(~"unit"), ~"OU=unit"},
                  {?'id-at-countryName', "SE", ~"C=SE"},
                  {?'id-at-stateOrProvinceName', Utf8(~"state"), ~"ST=state"},
                  {?'id-at-localityName', Utf8(~"town"), ~"L=town"},
                  {?'id-at-serialNumber', "7", ~"SERIALNUMBER=7"},
                  {?'id-emailAddress', "a@b.example", ~"EMAIL=a@b.example"},
                  {?'id-at-title', Utf8(~"mx"), ~"2.5.4.12=mx"}],
    [begin
         Name = {rdnSequence, [[#'AttributeTypeAndValue'{type = Type, value = Value}]]},
         {ok, #{principal := {_, Text}}} = identity(#{}, fun(Certificate) ->
             Certificate#'OTPTBSCertificate'{subject = Name}
         end)
     end || {Type, Value, Text} <- Attributes].

certificates_without_a_name_are_refused(_) ->
    As = fun(Principal) ->
        case identity(#{principal => Principal}, fun(Certificate) -> Certificate end) of
            {ok, #{principal := Name}} -> Name;
            {error, Refusal} -> {erlmcp_refusal:status(Refusal), erlmcp_refusal:message(Refusal)}
        end
    end,
    {403, NoName} = As(san),
    true = iolist_to_binary(NoName)
        =:= ~"the certificate has no alternative name that is a URI, an email or a host",
    ada = As(fun(_) -> {ok, ada} end),
    {403, No} = As(fun(_) -> {error, ~"not you"} end),
    ~"not you" = iolist_to_binary(No),
    {500, _} = As(fun(_) -> error(on_purpose) end),
    %% Scopes and an end are those of the options and of the certificate.
    {500, _} = As(fun(_) -> {ok, ada, #{}} end).

options_of_certificates(_) ->
    [ok = erlmcp_certificate:check(Options)
     || Options <- [#{}, #{principal => subject}, #{principal => san, scopes => all},
                    #{principal => fun(_) -> {ok, a} end, scopes => [~"a"]}]],
    [{Wrong, _} = erlmcp_certificate:check(#{Wrong => Value})
     || {Wrong, Value} <- [{principal, cn}, {principal, fun() -> a end}, {scopes, none},
                           {scopes, [a]}, {other, all}]],
    true = is_binary(erlmcp_certificate:check([])).

%% Without scopes all of them.
what_authenticate_leaves_out(_) ->
    [{ok, Identity} = erlmcp_auth:identity(fun(_) -> Return end, #{headers => #{}}, make_ref())
     || {Return, Identity} <- [
            {{ok, a}, #{principal => a, scopes => all}},
            {{ok, a, #{}}, #{principal => a, scopes => all}},
            {{ok, a, #{claims => #{}, expires_at => 4_000_000_000}},
             #{principal => a, scopes => all, claims => #{}, expires_at => 4_000_000_000}},
            {{ok, a, #{scopes => [~"s"]}}, #{principal => a, scopes => [~"s"]}}]].

%% Refusals.

%% "Invalid or expired tokens MUST receive a HTTP 401 response." RFC 6750: a request without any
%% credentials is told the scheme, and no error.
missing_credentials_are_401(Config) ->
    #{status := 401, headers := #{~"www-authenticate" := ~"Bearer"}, messages := [Message]} =
        erlmcp_test_http:call(server(Config), ~"tools/list", #{}),
    #{~"error" := #{~"code" := 1015, ~"message" := ~"a bearer token is required",
                    ~"data" := #{~"refusal" := 1015, ~"name" := ~"auth_missing"}}} = Message,
    false = is_map_key(~"id", Message).

wrong_credentials_are_401(Config) ->
    #{status := 401, headers := #{~"www-authenticate" := Challenge},
      messages := [#{~"error" := #{~"code" := 1013, ~"message" := ~"the token is not known"}}]} =
        erlmcp_test_http:call(server(Config), ~"tools/list", #{},
                              #{headers => #{~"authorization" => ~"Bearer other"}}),
    ~"Bearer error=\"invalid_token\", error_description=\"the token is not known\"" =
        Challenge.

%% RFC 6750, section 3.1: `invalid_token` is for an expired token, too.
expired_credentials_are_401(_) ->
    Now = erlang:system_time(second),
    Listed = fun(ExpiresAt) ->
        Server = serve(fun(_) -> {ok, a, #{expires_at => ExpiresAt}} end),
        #{status := Status, headers := Headers} =
            erlmcp_test_http:call(Server, ~"tools/list", #{}, as(~"secret")),
        erlmcp_test_http:stop(Server),
        {Status, maps:get(~"www-authenticate", Headers, none)}
    end,
    {200, none} = Listed(Now + 1_000),
    {401, Challenge} = Listed(Now),
    ~"Bearer error=\"invalid_token\", error_description=\"the credentials have expired\"" =
        Challenge.

refused_before_the_body(Config) ->
    Socket = erlmcp_test_http:connect(server(Config)),
    ok = erlmcp_test_http:send(Socket, ~"POST", [{~"content-length", ~"1000"}], ~""),
    #{status := 401} = erlmcp_test_http:response(Socket),
    ok = erlmcp_test_http:close(Socket).

%% Also what would be refused for itself: who may not enter learns nothing of what is here.
every_method_is_asked(Config) ->
    [begin
         Socket = erlmcp_test_http:connect(server(Config)),
         ok = erlmcp_test_http:send(Socket, Method, Headers, ~""),
         {401, #{~"www-authenticate" := ~"Bearer"}} = erlmcp_test_http:head(Socket),
         ok = erlmcp_test_http:close(Socket)
     end || {Method, Headers} <- [{~"GET", []}, {~"HEAD", []}, {~"PUT", []}, {~"DELETE", []},
                                  {~"GET", [{~"mcp-session-id", ~"x"}]},
                                  {~"POST", [{~"content-type", ~"text/plain"}]}]].

%% The peer is told an id that finds the log entry, and neither of them what the request carried.
a_crash_refuses(_) ->
    Server = serve(fun(#{headers := #{~"authorization" := <<"Basic ", _/binary>>}}) -> {ok, a} end),
    Logged = failure(Server, fun() ->
        erlmcp_test_http:call(Server, ~"tools/list", #{}, as(~"secret"))
    end),
    #{reason := function_clause, stacktrace := [{?MODULE, _, 1, _} | _]} = Logged,
    nomatch = string:find(io_lib:format("~0p", [Logged]), "secret"),
    erlmcp_test_http:stop(Server).

a_return_that_is_none_refuses(_) ->
    [begin
         Server = serve(fun(_) -> Return end),
         #{reason := bad_return} = failure(Server, fun() ->
             erlmcp_test_http:call(Server, ~"tools/list", #{}, as(~"secret"))
         end),
         erlmcp_test_http:stop(Server)
     end || Return <- [true, ok, {error, denied}, {error, <<255>>}, {ok, a, b},
                       {ok, a, #{claims => b}}, {ok, a, #{scopes => b}},
                       {ok, a, #{expires_at => never}}, {ok, a, #{other => b}}]].

failure(_, Call) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self()}),
    #{status := 500, headers := Headers, messages := [#{~"error" := Error}]} = Call(),
    ok = logger:remove_handler(?MODULE),
    false = is_map_key(~"www-authenticate", Headers),
    #{~"message" := ~"internal error", ~"data" := #{~"incident" := Incident}} = Error,
    receive
        {logged, #{incident := Incident} = Report} -> Report
    after ?TIMEOUT ->
        error(not_logged)
    end.

-doc false.
log(#{msg := {report, #{what := authenticate_failed, server := _} = Report}},
    #{config := Test}) ->
    Test ! {logged, Report},
    ok;
log(_, _) ->
    ok.

wrong_options_are_refused(_) ->
    [{error, {bad_option, {Transport, Key}, _}} =
         erlmcp:start_server(#{name => ~"test", version => ~"1",
                               listen => [{Transport, #{Key => Value}}]})
     || {Transport, Key, Value} <- [{http, authenticate, fun() -> {ok, a} end},
                                    {http, authenticate, true}, {http, principal, a},
                                    {tcp, authenticate, fun by_token/1}]].

%% What belongs to a principal.

%% "MCP servers SHOULD bind session IDs to user-specific information." A session of another is as
%% unknown as one that never was: 404.
session_is_its_principals(Config) ->
    Server = server(Config),
    Session = session(Server, ~"ada"),
    Options = (as(~"bob"))#{session => Session},
    Other = erlmcp_test_http:call(Server, ~"tools/list", #{}, Options),
    Unknown = erlmcp_test_http:call(Server, ~"tools/list", #{},
                                    (as(~"bob"))#{session => {~"none", ~"2025-11-25"}}),
    #{status := 404} = Other,
    true = maps:without([headers], Other) =:= maps:without([headers], Unknown),
    #{status := 404} = erlmcp_test_http:call(Server, ~"notifications/cancelled",
                                             #{requestId => 1}, Options#{id => none}),
    ~"{user,<<\"ada\">>}" = whoami(Server, (as(~"ada"))#{session => Session}).

stream_is_its_principals(Config) ->
    Server = server(Config),
    Session = session(Server, ~"ada"),
    Accept = {~"accept", ~"text/event-stream"},
    Get = fun(Name) ->
        erlmcp_test_http:get_stream(Server, Session, [Accept | maps:to_list(bearer(Name))])
    end,
    {Bobs, {404, _}} = Get(~"bob"),
    ok = erlmcp_test_http:close(Bobs),
    {Adas, {200, _}} = Get(~"ada"),
    ok = erlmcp_test_http:close(Adas).

delete_is_its_principals(Config) ->
    Server = server(Config),
    {Id, _} = Session = session(Server, ~"ada"),
    Delete = fun(Name) ->
        Socket = erlmcp_test_http:connect(Server),
        ok = erlmcp_test_http:send(Socket, ~"DELETE", [{~"mcp-session-id", Id}
                                                       | maps:to_list(bearer(Name))], ~""),
        {Status, _} = erlmcp_test_http:head(Socket),
        ok = erlmcp_test_http:close(Socket),
        Status
    end,
    404 = Delete(~"bob"),
    ~"{user,<<\"ada\">>}" = whoami(Server, (as(~"ada"))#{session => Session}),
    204 = Delete(~"ada").

%% Nobody else ends a call of a session, nor answers what it asked its client.
calls_are_their_principals(Config) ->
    Server = server(Config),
    Session = session(Server, ~"ada"),
    Ada = (as(~"ada"))#{session => Session},
    Socket = erlmcp_test_http:connect(Server),
    {Headers, Body} = erlmcp_test_http:message(~"tools/call", #{name => ~"wait"}, Ada#{id => 7}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    {Call, _} = erlmcp_test_http:running(),
    #{status := 404} = erlmcp_test_http:call(Server, ~"notifications/cancelled", #{requestId => 7},
                                             (as(~"bob"))#{session => Session, id => none}),
    %% What ada's session is told after it has come there after it.
    #{status := 202} = erlmcp_test_http:call(Server, ~"notifications/cancelled",
                                             #{requestId => 8}, Ada#{id => none}),
    ok = erlmcp_test_http:finish(Call, ~"unharmed"),
    ~"unharmed" = text(erlmcp_test_http:response(Socket)),
    ok = erlmcp_test_http:close(Socket).

%% "To prevent replay, servers SHOULD include [...] the authenticated principal, rejecting state
%% presented by a different principal."
state_is_its_principals(Config) ->
    Server = server(Config),
    Capable = #{~"io.modelcontextprotocol/clientCapabilities" => #{elicitation => #{}}},
    Params = #{name => ~"ask", arguments => #{secret => ~"it"}},
    #{messages := [#{~"result" := #{~"requestState" := State}}]} =
        erlmcp_test_http:call(Server, ~"tools/call", Params, (as(~"ada"))#{meta => Capable}),
    Answered = Params#{requestState => State,
                       inputResponses => #{name => #{action => accept,
                                                     content => #{name => ~"X"}}}},
    #{status := 400, messages := [#{~"error" := #{~"code" := -32602}}]} =
        erlmcp_test_http:call(Server, ~"tools/call", Answered, (as(~"bob"))#{meta => Capable}),
    ~"X knows it" = text(erlmcp_test_http:call(Server, ~"tools/call", Answered,
                                               (as(~"ada"))#{meta => Capable})).

%% A principal is often a part of a header: what a session keeps of it does not keep the request.
sessions_keep_no_request(Config) ->
    Server = server(Config),
    Name = binary:copy(~"n", 100),
    Headers = (bearer(Name))#{~"x-padding" => binary:copy(~"x", 1000)},
    #{status := 200, headers := #{~"mcp-session-id" := Id}} =
        erlmcp_test_http:initialize(Server, ~"2025-11-25", Headers),
    ~"100" = text(erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"size"},
                                      #{headers => Headers, session => {Id, ~"2025-11-25"}})).

%% Neither do counts, tasks and subscriptions, which keep the principals of requests without a
%% session.
principals_keep_no_request(Config) ->
    Name = binary:copy(~"n", 100),
    Headers = (bearer(Name))#{~"x-padding" => binary:copy(~"x", 1000)},
    Bearer = serve({bearer, #{tokens => [{verify, fun(<<"user-", Token/binary>>, _) ->
        {ok, #{principal => {user, Token}}}
    end}]}}),
    [~"100" = text(erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"size"},
                                         #{headers => Headers}))
     || Server <- [server(Config), Bearer]],
    erlmcp_test_http:stop(Bearer).
