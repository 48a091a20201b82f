-module(client_dpop_proofs_SUITE).
-moduledoc "Proofs of possession (RFC 9449), checked with OTP's `m:public_key` alone.".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_proof_says_what_section_4_2_asks/1, each_proof_is_new/1, a_token_is_bound_by_its_hash/1,
         the_server_s_nonce_is_in_it/1, query_and_fragment_are_left_out/1,
         a_thumbprint_is_that_of_rfc_7638/1, a_key_is_written_down_and_read/1,
         what_is_no_key_is_refused/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    {ok, Started} = application:ensure_all_started(jose),
    [{started, Started} | Config].

end_per_suite(Config) ->
    [ok = application:stop(App) || App <- lists:reverse(proplists:get_value(started, Config))],
    ok.

a_proof_says_what_section_4_2_asks(_) ->
    Before = erlang:system_time(second),
    {Header, Payload} = read(erlmcp_dpop:proof(~"POST", ~"https://a.example/mcp", #{},
                                               erlmcp_dpop:new())),
    #{~"typ" := ~"dpop+jwt", ~"alg" := ~"ES256", ~"jwk" := Jwk} = Header,
    3 = map_size(Header),
    %% "It MUST NOT contain a private key."
    [~"crv", ~"kty", ~"x", ~"y"] = lists:sort(maps:keys(Jwk)),
    #{~"jti" := Jti, ~"htm" := ~"POST", ~"htu" := ~"https://a.example/mcp", ~"iat" := At} =
        Payload,
    4 = map_size(Payload),
    true = byte_size(Jti) >= 16,
    true = is_integer(At) andalso At >= Before andalso At =< erlang:system_time(second).

each_proof_is_new(_) ->
    Key = erlmcp_dpop:new(),
    Ids = [maps:get(~"jti", Payload)
           || _ <- lists:seq(1, 20),
              {_, Payload} <- [read(erlmcp_dpop:proof(~"GET", ~"https://a.example", #{}, Key))]],
    20 = length(lists:usort(Ids)).

%% Section 7.1 has this token and its hash.
a_token_is_bound_by_its_hash(_) ->
    {_, Payload} = read(erlmcp_dpop:proof(
        ~"GET", ~"https://resource.example.org/protectedresource",
        #{access_token => ~"Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU"}, erlmcp_dpop:new())),
    #{~"ath" := ~"fUHyO2r2Z3DZ53EsNrWBb0xWXoaNy59IiKCAqksmQEo"} = Payload.

the_server_s_nonce_is_in_it(_) ->
    {_, Payload} = read(erlmcp_dpop:proof(~"POST", ~"https://a.example/token",
                                          #{nonce => ~"eyJ7S_zG.eyJH0-Z"}, erlmcp_dpop:new())),
    #{~"nonce" := ~"eyJ7S_zG.eyJH0-Z"} = Payload,
    false = is_map_key(~"ath", Payload).

query_and_fragment_are_left_out(_) ->
    Key = erlmcp_dpop:new(),
    [{Url, Target} = begin
         {_, Payload} = read(erlmcp_dpop:proof(~"GET", Url, #{}, Key)),
         {Url, maps:get(~"htu", Payload)}
     end || {Url, Target} <- [
         {~"https://a.example/b?c=d", ~"https://a.example/b"},
         {~"https://a.example/b#c?d", ~"https://a.example/b"},
         {~"https://a.example/b?c#d", ~"https://a.example/b"},
         {~"https://a.example:8443/", ~"https://a.example:8443/"}]].

%% RFC 7638, section 3: the hash of the members that are required, in their order, without spaces.
a_thumbprint_is_that_of_rfc_7638(_) ->
    Key = erlmcp_dpop:new(),
    #{~"x" := X, ~"y" := Y} = erlmcp_dpop:to_map(Key),
    Canonical = [~B|{"crv":"P-256","kty":"EC","x":"|, X, ~B|","y":"|, Y, ~B|"}|],
    Thumbprint = base64:encode(crypto:hash(sha256, Canonical),
                               #{mode => urlsafe, padding => false}),
    Thumbprint = erlmcp_dpop:thumbprint(Key).

a_key_is_written_down_and_read(_) ->
    Key = erlmcp_dpop:new(),
    {ok, Same} = erlmcp_dpop:from_map(json:decode(iolist_to_binary(
        json:encode(erlmcp_dpop:to_map(Key))))),
    true = erlmcp_dpop:thumbprint(Key) =:= erlmcp_dpop:thumbprint(Same),
    {#{~"jwk" := Jwk}, _} = read(erlmcp_dpop:proof(~"GET", ~"https://a.example", #{}, Same)),
    true = maps:with([~"x", ~"y"], Jwk) =:= maps:with([~"x", ~"y"], erlmcp_dpop:to_map(Key)).

what_is_no_key_is_refused(_) ->
    Map = erlmcp_dpop:to_map(erlmcp_dpop:new()),
    #{~"x" := X, ~"y" := Y} = erlmcp_dpop:to_map(erlmcp_dpop:new()),
    [{Bad, {error, bad_key}} = {Bad, erlmcp_dpop:from_map(Bad)}
     || Bad <- [#{}, maps:remove(~"d", Map), maps:remove(~"x", Map), Map#{~"d" => ~"!"},
                Map#{~"d" => 1}, Map#{~"d" => ~""}, Map#{~"x" => ~"AA"}, Map#{~"crv" => ~"P-384"},
                Map#{~"kty" => ~"RSA"}, Map#{~"x" => X, ~"y" => Y}]].

%% The header and the payload of a proof whose signature the key in it made.
read(Proof) ->
    [Header, Payload, Signature] = binary:split(Proof, ~".", [global]),
    #{~"jwk" := #{~"x" := X, ~"y" := Y}} = Decoded = json:decode(decode(Header)),
    <<R:256, S:256>> = decode(Signature),
    Der = public_key:der_encode('ECDSA-Sig-Value', {'ECDSA-Sig-Value', R, S}),
    Point = {'ECPoint', <<4, (decode(X))/binary, (decode(Y))/binary>>},
    true = public_key:verify(<<Header/binary, $., Payload/binary>>, sha256, Der,
                             {Point, {namedCurve, secp256r1}}),
    {Decoded, json:decode(decode(Payload))}.

decode(Text) ->
    base64:decode(Text, #{mode => urlsafe, padding => false}).
