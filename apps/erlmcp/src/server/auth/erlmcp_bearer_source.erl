-module(erlmcp_bearer_source).
-moduledoc """
The sources of a listener, which find the identity of a token. Sources are tried in their order
until one accepts or refuses the token, or needs another machine.

Internal.
""".

-export([identity/5]).

-export_type([source/0, subject/0, outcome/0, answer/0]).

-doc "A source as `erlmcp_bearer_options:settings/1` makes it.".
-type source() ::
    {jwt, #{issuer := binary(),
            keys := {keys, [erlmcp_jwk:key()]} | {uri, binary()}
                  | {secret, fun(() -> erlmcp_jwk:key())},
            audience := resource | [binary()], algorithms := [binary()], types := [binary()],
            leeway_s := non_neg_integer()}}
    | {introspection, #{uri := binary(), issuer := binary(),
                        client := introspecting_client(), cache_s := non_neg_integer(),
                        audience := resource | [binary()]}}
    | {static, #{erlmcp_bearer_tables:digest() => erlmcp_bearer:identity()}}
    | {verify, fun((binary(), erlmcp_listen:request()) -> term())}.
-doc """
The client that asks an authorization server about a token. `settings` has its key for
`private_key_jwt` and the algorithm of that key, or is empty.
""".
-type introspecting_client() :: #{client := erlmcp_oauth_client_authentication:client(),
                                  settings := map()}.
-doc """
The subject of a question to another machine: the keys of a source, or the validity of a token.
`Index` is the position of the source in the option `tokens`, from 1.
""".
-type subject() :: {keys, Index :: pos_integer()}
                 | {token, Index :: pos_integer(), erlmcp_bearer_tables:digest()}.
-doc """
The answer to a question. `ok` means that the issuer was asked for its keys recently. If the
issuer's answer was valid, its keys are in the table. `active` and `inactive` are about a token.
`{error, unavailable}` means that no valid answer came in time.
""".
-type outcome() :: ok | {active, erlmcp_token_claims:claims()} | inactive | {error, unavailable}.
-doc """
The subject that a request has waited for, with the answer; `none` if the request has not waited.
""".
-type answer() :: {subject(), outcome()} | none.

%% Seconds for which a checked signature is not checked again.
-define(SIGNED_S, 60).
%% The most bytes of a token's algorithm that an error text shows.
-define(ALGORITHM_BYTES, 16).

-record(question, {
    token :: binary(),
    digest :: erlmcp_bearer_tables:digest(),
    jwt :: {ok, erlmcp_jwt:jwt()} | error,
    request :: erlmcp_listen:request(),
    answer :: answer(),
    settings :: erlmcp_bearer_options:settings(),
    tables :: erlmcp_bearer_tables:tables(),
    now :: integer()
}).

-doc """
Returns the identity of a token and its bindings, or the failure of the request.
`{wait, Subject, Token}` means that the caller must ask another machine about `Subject`
(`m:erlmcp_bearer_keeper`). When the answer has come, the caller calls this function again, with
`Subject` and the answer as `Answer`. Sources that come before the source of `Subject` are not tried
again.
""".
-spec identity(Token :: binary(), erlmcp_listen:request(), Answer :: answer(),
               erlmcp_bearer_options:settings(), erlmcp_bearer_tables:tables()) ->
    {ok, erlmcp_bearer:identity(), erlmcp_token_claims:confirmation()}
    | {wait, subject(), Token :: fun(() -> binary())}
    | {error, erlmcp_bearer_failure:failure()}.
identity(Token, Request, Answer, #{blind := Blind, sources := Sources} = Settings, Tables) ->
    Digest = Blind(Token),
    Now = erlang:system_time(second),
    case erlmcp_bearer_tables:identity(Digest, Now, Tables) of
        {ok, Identity, Confirmation} ->
            {ok, Identity, Confirmation};
        unknown ->
            first(from(Answer, Sources),
                  #question{token = Token, digest = Digest, jwt = erlmcp_jwt:read(Token),
                            request = Request, answer = Answer, settings = Settings,
                            tables = Tables, now = Now})
    end.

from(none, Sources) -> Sources;
from({Subject, _}, Sources) -> lists:nthtail(element(2, Subject) - 1, Sources).

first([], _) ->
    refused(~"the token is not known here");
first([{Index, Source} | Sources], Question) ->
    case ask(Source, Index, Question) of
        next -> first(Sources, Question);
        Answer -> Answer
    end.

refused(Text) ->
    {error, erlmcp_bearer_failure:invalid(Text)}.

ask({static, Tokens}, _, #question{digest = Digest, now = Now}) ->
    case Tokens of
        #{Digest := #{expires_at := End}} when Now >= End ->
            {error, erlmcp_bearer_failure:expired()};
        #{Digest := Identity} ->
            {ok, Identity, []};
        #{} ->
            next
    end;
ask({verify, Fun}, _, #question{token = Token, request = Request, now = Now} = Question) ->
    #question{settings = #{server := Key}} = Question,
    verified(erlmcp_auth:run_guarded(fun() -> Fun(Token, Request) end, Key), Now, Key);
ask({jwt, #{issuer := Issuer} = Source}, Index,
    #question{jwt = {ok, #{claims := #{~"iss" := Issuer}} = Jwt}} = Question) ->
    jwt(Jwt, Source, Index, Question);
ask({jwt, _}, _, _) ->
    next;
ask({introspection, Source}, Index, #question{digest = Digest} = Question) ->
    Subject = {token, Index, Digest},
    introspected(outcome(Subject, Question), Subject, Source, Question).

outcome(Subject, #question{answer = {Subject, Outcome}}) -> Outcome;
outcome(_, _) -> none.

%% The result of a user's fun.

verified({ok, {ok, #{principal := Principal} = Given}}, Now, Key) ->
    Identity = maps:merge(#{scopes => [], expires_at => infinity, claims => #{}},
                          maps:with([scopes, expires_at, claims], Given)),
    #{scopes := Scopes, expires_at := End, claims := Claims} = Identity,
    case (Scopes =:= all orelse erlmcp_user_term:is_list_of(fun is_binary/1, Scopes))
             andalso (is_integer(End) orelse End =:= infinity) andalso is_map(Claims) of
        true when Now >= End -> {error, erlmcp_bearer_failure:expired()};
        true -> {ok, Identity#{principal => Principal}, erlmcp_token_claims:confirmation(Claims)};
        false -> {error, erlmcp_bearer_failure:refused(erlmcp_auth:bad_return(Key))}
    end;
verified({ok, {error, Text}}, _, Key) when is_binary(Text) ->
    case unicode:characters_to_binary(Text) of
        Text -> refused(Text);
        _ -> {error, erlmcp_bearer_failure:refused(erlmcp_auth:bad_return(Key))}
    end;
verified({ok, unknown}, _, _) ->
    next;
verified({ok, _}, _, Key) ->
    {error, erlmcp_bearer_failure:refused(erlmcp_auth:bad_return(Key))};
verified({error, Refusal}, _, _) ->
    {error, erlmcp_bearer_failure:refused(Refusal)}.

%% A JWT of the source's issuer.

jwt(#{type := Type} = Jwt, Source, Index, #question{tables = Tables} = Question) ->
    #{types := Types, algorithms := Algorithms, keys := KeySource} = Source,
    %% A JWT without a type counts as `jwt`.
    maybe
        true ?= lists:member(maps:get(Type, #{none => ~"jwt"}, Type), Types)
            orelse refused(~"the token is of another type"),
        {Freshness, Keys, Kept} ?= keys(KeySource, Index, Tables),
        ok ?= verified_by(KeySource, Jwt, Algorithms, Keys),
        ok = refreshed(Freshness, Index, Tables),
        signed(Jwt, Source, Kept, Question)
    else
        none -> fetched({keys, Index}, ~"the issuer's keys are not available", Question);
        {error, unknown_key} when element(1, KeySource) =:= uri ->
            fetched({keys, Index}, unknown_key, Question);
        {error, algorithm} -> refused(algorithm_not_taken(Jwt, Algorithms));
        {error, Reason} when is_atom(Reason) -> refused(unsigned(Reason));
        {error, Failure} -> {error, Failure}
    end.

%% A secret has no id, so the token's `kid` is ignored.
verified_by({secret, _}, Jwt, Algorithms, Keys) ->
    case erlmcp_jwt:check_signature(Jwt#{kid := none}, Algorithms, Keys) of
        {error, unknown_key} -> {error, signature};
        Signed -> Signed
    end;
verified_by(_, Jwt, Algorithms, Keys) ->
    erlmcp_jwt:check_signature(Jwt, Algorithms, Keys).

keys({secret, Key}, _, _) ->
    {fresh, [Key()], lasting};
keys({keys, Keys}, _, _) ->
    {fresh, Keys, lasting};
keys({uri, _}, Index, Tables) ->
    case erlmcp_bearer_tables:keys(Index, erlmcp_clock:now_ms(), Tables) of
        {Freshness, Keys, Generation} -> {Freshness, Keys, {Index, Generation}};
        none -> none
    end.

algorithm_not_taken(#{algorithm := Algorithm}, Algorithms) ->
    iolist_to_binary([~"the token's algorithm ", erlmcp_printable:part(Algorithm, ?ALGORITHM_BYTES),
                      ~" is not accepted, only ", lists:join(~", ", Algorithms)]).

unsigned(unknown_key) -> ~"the token's key is not one of its issuer's";
unsigned(signature) -> ~"the token's signature is not valid".

refreshed(fresh, _, _) -> ok;
refreshed(stale, Index, Tables) -> erlmcp_bearer_keeper:refresh(Index, Tables).

%% Keys are fetched once for a request, and not soon after they were fetched before.
fetched({keys, Index} = Subject, Otherwise, #question{tables = Tables} = Question) ->
    case outcome(Subject, Question) of
        {error, unavailable} ->
            {error, erlmcp_bearer_failure:unavailable(~"the issuer's keys are not available")};
        ok when Otherwise =:= unknown_key ->
            refused(unsigned(unknown_key));
        _ ->
            case erlmcp_bearer_tables:may_fetch(Index, Tables) of
                true -> {wait, Subject, token(Question)};
                false when Otherwise =:= unknown_key -> refused(unsigned(unknown_key));
                false -> {error, erlmcp_bearer_failure:unavailable(Otherwise)}
            end
    end.

token(#question{token = Token}) ->
    fun() -> Token end.

signed(#{claims := Claims}, #{leeway_s := Leeway} = Source, Kept, Question) ->
    #question{now = Now} = Question,
    found(Claims, wanted(Source, Leeway, false, Question), Now + ?SIGNED_S, Kept, Question).

wanted(#{issuer := Issuer, audience := Audience}, Leeway, Introspected, Question) ->
    #question{request = #{url := Url}, settings = Settings, now = Now} = Question,
    Accepted = case Audience of
        resource -> erlmcp_bearer_options:resources(Settings, Url);
        _ -> Audience
    end,
    #{issuer => Issuer, audience => Accepted, now => Now, leeway => Leeway,
      introspected => Introspected}.

found(Claims, Wanted, Until, Kept, #question{digest = Digest, tables = Tables} = Question) ->
    maybe
        ok ?= erlmcp_token_claims:check(Claims, Wanted),
        {ok, Principal} ?= principal(Claims, Wanted, Question),
        #{expires_at := End} = Identity = erlmcp_token_claims:identity(Principal, Claims, Wanted),
        Confirmation = erlmcp_token_claims:confirmation(Claims),
        ok = erlmcp_bearer_tables:remember(Digest, min(Until, End), Kept,
                                           {Identity, Confirmation}, Tables),
        {ok, Identity, Confirmation}
    else
        {error, expired} -> {error, erlmcp_bearer_failure:expired()};
        {error, Reason} when is_atom(Reason) -> refused(wrong(Reason));
        {error, Failure} -> {error, Failure}
    end.

principal(Claims, Wanted, #question{settings = #{principal := default}}) ->
    erlmcp_token_claims:principal(Claims, Wanted);
principal(Claims, _, #question{settings = #{principal := Fun, server := Key}}) ->
    case erlmcp_auth:run_guarded(fun() -> Fun(Claims) end, Key) of
        {ok, Principal} -> {ok, Principal};
        {error, Refusal} -> {error, erlmcp_bearer_failure:refused(Refusal)}
    end.

wrong(issuer) -> ~"the token is of another issuer";
wrong(expiry) -> ~"the token does not say when it expires";
wrong(not_yet) -> ~"the token is not valid yet";
wrong(issued_at) -> ~"the token was issued in the future";
wrong(audience) -> ~"the token is not for this server";
wrong(no_subject) -> ~"the token does not say whose it is".

%% A token that its issuer must introspect.

introspected(none, {token, Index, Digest} = Subject, _, Question) ->
    #question{tables = Tables, now = Now} = Question,
    case erlmcp_bearer_tables:is_inactive({Index, Digest}, Now, Tables) of
        true -> next;
        false -> {wait, Subject, token(Question)}
    end;
introspected({active, Claims}, _, #{cache_s := Cached} = Source, #question{now = Now} = Question) ->
    found(Claims, wanted(Source, 0, true, Question), Now + Cached, lasting, Question);
introspected(inactive, {token, Index, Digest}, _, #question{tables = Tables, now = Now}) ->
    ok = erlmcp_bearer_tables:remember_inactive({Index, Digest}, Now, Tables),
    next;
introspected({error, unavailable}, _, _, _) ->
    {error, erlmcp_bearer_failure:unavailable(~"the token cannot be checked now")}.
