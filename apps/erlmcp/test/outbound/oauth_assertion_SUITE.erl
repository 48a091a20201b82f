-module(oauth_assertion_SUITE).
-moduledoc "Client assertions (RFC 7523), checked with OTP's `m:public_key` alone.".

-include_lib("public_key/include/public_key.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([an_assertion_says_what_section_3_asks/1, every_algorithm_signs/1, older_forms_are_read/1,
         each_assertion_is_new/1, a_key_of_another_kind_is_refused/1, what_is_no_key_is_refused/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    {ok, Started} = application:ensure_all_started(jose),
    Rsa = public_key:generate_key({rsa, 2048, 65537}),
    Keys = #{p256 => public_key:generate_key({namedCurve, secp256r1}),
             p384 => public_key:generate_key({namedCurve, secp384r1}),
             ed25519 => public_key:generate_key({namedCurve, ed25519}),
             rsa => Rsa, short => public_key:generate_key({rsa, 1024, 65537})},
    [{started, Started}, {keys, Keys} | Config].

end_per_suite(Config) ->
    [ok = application:stop(App) || App <- lists:reverse(proplists:get_value(started, Config))],
    ok.

assertion(Pem, Algorithm) ->
    Client = #{auth => private_key_jwt, client_id => ~"https://c.example/id"},
    case erlmcp_oauth_client_authentication:authenticate(
             Client, ~"https://as.example", #{key => Pem, algorithm => Algorithm}) of
        {ok, [], Parameters} ->
            #{~"client_id" := ~"https://c.example/id", ~"client_assertion" := Jwt,
              ~"client_assertion_type" :=
                  ~"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"} =
                maps:from_list(Parameters),
            {ok, Jwt};
        {error, {assertion, Reason}} ->
            {error, Reason}
    end.

key(Name, Config) ->
    maps:get(Name, proplists:get_value(keys, Config)).

%% PKCS#8, as `openssl genpkey` writes it.
pem(Name, Config) ->
    public_key:pem_encode([public_key:pem_entry_encode('PrivateKeyInfo', key(Name, Config))]).

an_assertion_says_what_section_3_asks(Config) ->
    Before = erlang:system_time(second),
    {ok, Jwt} = assertion(pem(p256, Config), ~"ES256"),
    {#{~"alg" := ~"ES256", ~"typ" := ~"JWT"}, Payload} = read(Jwt, ~"ES256", key(p256, Config)),
    #{~"iss" := ~"https://c.example/id", ~"sub" := ~"https://c.example/id",
      ~"aud" := ~"https://as.example", ~"iat" := At, ~"exp" := Until, ~"jti" := _} = Payload,
    6 = map_size(Payload),
    true = At >= Before andalso At =< erlang:system_time(second) andalso Until =:= At + 60.

every_algorithm_signs(Config) ->
    [begin
         {ok, Jwt} = assertion(pem(Name, Config), Algorithm),
         {#{~"alg" := Algorithm} = Header, #{~"iat" := At, ~"exp" := Until}} =
             read(Jwt, Algorithm, key(Name, Config)),
         false = is_map_key(~"kid", Header),
         60 = Until - At
     end || {Name, Algorithm} <- [{p256, ~"ES256"}, {rsa, ~"RS256"}, {rsa, ~"PS256"},
                                  {ed25519, ~"EdDSA"}]].

%% As `openssl ecparam -genkey` and `openssl genrsa -traditional` write them.
older_forms_are_read(Config) ->
    Curve = public_key:pem_entry_encode('EcpkParameters', {namedCurve, ?secp256r1}),
    [begin
         Entry = public_key:pem_entry_encode(Type, key(Name, Config)),
         {ok, Jwt} = assertion(public_key:pem_encode([Curve, Entry]), Algorithm),
         read(Jwt, Algorithm, key(Name, Config))
     end || {Name, Type, Algorithm} <- [{p256, 'ECPrivateKey', ~"ES256"},
                                        {rsa, 'RSAPrivateKey', ~"RS256"}]].

each_assertion_is_new(Config) ->
    Pem = pem(p256, Config),
    Ids = [maps:get(~"jti", Payload)
           || _ <- lists:seq(1, 20), {ok, Jwt} <- [assertion(Pem, ~"ES256")],
              {_, Payload} <- [read(Jwt, ~"ES256", key(p256, Config))]],
    20 = length(lists:usort(Ids)).

a_key_of_another_kind_is_refused(Config) ->
    [{Name, Algorithm, {error, {wrong_key, Algorithm}}} =
         {Name, Algorithm, assertion(pem(Name, Config), Algorithm)}
     || {Name, Algorithm} <- [{p384, ~"ES256"}, {rsa, ~"ES256"}, {ed25519, ~"ES256"},
                              {p256, ~"RS256"}, {p256, ~"PS256"}, {p256, ~"EdDSA"},
                              {rsa, ~"EdDSA"}, {short, ~"RS256"}, {short, ~"PS256"}]],
    [{error, {unsupported_algorithm, Algorithm}} = assertion(pem(rsa, Config), Algorithm)
     || Algorithm <- [~"none", ~"HS256", ~"RS512", ~"es256", ~""]].

what_is_no_key_is_refused(Config) ->
    #'ECPrivateKey'{publicKey = Point} = key(p256, Config),
    Public = public_key:pem_encode([public_key:pem_entry_encode(
        'SubjectPublicKeyInfo', {{'ECPoint', Point}, {namedCurve, ?secp256r1}})]),
    Encrypted = public_key:pem_encode([public_key:pem_entry_encode(
        'RSAPrivateKey', key(rsa, Config), {{"AES-128-CBC", <<1:128>>}, "password"})]),
    Pem = pem(p256, Config),
    Broken = binary:replace(Pem, ~"MI", ~"AA"),
    [{Bad, {error, Reason}} = {Bad, assertion(Bad, ~"ES256")}
     || {Bad, Reason} <- [
            {~"", no_key}, {~"garbage", no_key}, {<<255, 0>>, no_key}, {Public, no_key},
            {binary:part(Pem, 0, byte_size(Pem) - 40), no_key}, {Broken, no_key},
            {public_key:pem_encode([{'PrivateKeyInfo', ~"x", not_encrypted}]), no_key},
            {Encrypted, encrypted_key}]].

%% The header and the payload of a JWT that the key signed.
read(Jwt, Algorithm, Key) ->
    [Header, Payload, Signature] = binary:split(Jwt, ~".", [global]),
    true = verify(Algorithm, <<Header/binary, $., Payload/binary>>, decode(Signature), Key),
    {json:decode(decode(Header)), json:decode(decode(Payload))}.

verify(~"ES256", Input, <<R:256, S:256>>, #'ECPrivateKey'{publicKey = Point}) ->
    Der = public_key:der_encode('ECDSA-Sig-Value', #'ECDSA-Sig-Value'{r = R, s = S}),
    public_key:verify(Input, sha256, Der, {{'ECPoint', Point}, {namedCurve, secp256r1}});
verify(~"EdDSA", Input, Signature, #'ECPrivateKey'{publicKey = Point}) ->
    crypto:verify(eddsa, none, Input, Signature, [Point, ed25519]);
verify(Algorithm, Input, Signature, #'RSAPrivateKey'{} = Key) ->
    Options = case Algorithm of
        ~"RS256" -> [];
        ~"PS256" -> [{rsa_padding, rsa_pkcs1_pss_padding}, {rsa_pss_saltlen, 32},
                     {rsa_mgf1_md, sha256}]
    end,
    #'RSAPrivateKey'{modulus = N, publicExponent = E} = Key,
    public_key:verify(Input, sha256, Signature, #'RSAPublicKey'{modulus = N, publicExponent = E},
                      Options).

decode(Text) ->
    base64:decode(Text, #{mode => urlsafe, padding => false}).
