-module(erlmcp_conformance_auth).
-moduledoc """
The authorization of the client under test, by scenario of the conformance suite, and whether the
client must get access. The user's browser is played by a request whose answer has the next address.
""".

-export([scenario/2]).

%% No server listens there: the browser's address is read and not followed.
-define(CALLBACK, ~"http://localhost:3000/callback").
-define(DOCUMENT, ~"https://conformance-test.local/client-metadata.json").

-doc "Returns the options of authorization, and the expected outcome.".
-spec scenario(Name :: binary(), Context :: map()) -> {map(), allowed | refused}.
scenario(Name, Context) ->
    {options(Name, Context), outcome(Name)}.

outcome(Name) when
    Name =:= ~"scope-retry-limit";
    Name =:= ~"resource-mismatch";
    Name =:= ~"iss-supported-missing";
    Name =:= ~"iss-wrong-issuer";
    Name =:= ~"iss-unexpected";
    Name =:= ~"iss-normalized";
    Name =:= ~"metadata-issuer-mismatch"
->
    refused;
outcome(_) ->
    allowed.

options(~"client-credentials-jwt", Context) ->
    #{~"client_id" := Id, ~"private_key_pem" := Key, ~"signing_algorithm" := Algorithm} = Context,
    #{grant => client_credentials, client_id => Id, key => Key, algorithm => Algorithm};
options(~"client-credentials-basic", #{~"client_id" := Id, ~"client_secret" := Secret}) ->
    #{grant => client_credentials, client_id => Id, client_secret => Secret};
options(~"enterprise-managed-authorization", Context) ->
    #{
        ~"client_id" := Id,
        ~"client_secret" := Secret,
        ~"idp_client_id" := ThereId,
        ~"idp_id_token" := IdToken,
        ~"idp_token_endpoint" := Endpoint
    } = Context,
    #{
        grant => enterprise,
        client_id => Id,
        client_secret => Secret,
        idp => #{token_endpoint => Endpoint, client_id => ThereId, id_token => IdToken}
    };
options(~"wif-jwt-bearer", #{~"client_id" := Id, ~"valid_jwt" := Assertion}) ->
    #{grant => jwt_bearer, client_id => Id, assertion => Assertion};
options(~"pre-registration", Context) ->
    #{~"client_id" := Id, ~"client_secret" := Secret, ~"issuer" := Issuer} = Context,
    (login())#{client_id => Id, client_secret => Secret, issuer => Issuer};
options(<<"dpop", _/binary>>, _) ->
    (login())#{dpop => true};
options(~"offline-access-scope", _) ->
    %% The suite checks the client's registration; a metadata document could not be fetched.
    login();
options(_, _) ->
    (login())#{client_metadata_url => ?DOCUMENT}.

login() ->
    #{client_name => ~"erlmcp conformance", redirect_uri => ?CALLBACK, browser => fun browse/1}.

browse(Url) ->
    case httpc:request(get, {Url, []}, [{autoredirect, false}], [{body_format, binary}]) of
        {ok, {{_, 302, _}, Headers, _}} ->
            {_, Location} = lists:keyfind("location", 1, Headers),
            {ok, list_to_binary(Location)};
        {ok, {{_, Status, _}, _, _}} ->
            {error, {http, Status}};
        {error, Reason} ->
            {error, Reason}
    end.
