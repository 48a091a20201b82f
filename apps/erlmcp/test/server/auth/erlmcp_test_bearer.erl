-module(erlmcp_test_bearer).
-moduledoc """
A listener's check of bearer tokens without the listener: `verify/2` is asked for one request, waits
for what the check waits for, and gives its answer. The issuer is `m:erlmcp_test_issuer`.
""".

-export([handle/1, handle/2, jwt/2, introspection/2, url/0]).
-export([claims/1, token/2, opaque/2, part/1, encode/1]).
-export([request/1, bearer/1, verify/2, answer/2, begun/2, awaited/2, refusal/1, refused/2]).
-export([held/3, next_asked/0, nobody_asked/0, asked/2, later/1]).

-define(PATIENCE, 30_000).

-doc "The resource that tokens are for.".
url() -> ~"https://mcp.example/mcp".

-doc "A handle with these options beside or in place of a source of JWTs of the case's issuer.".
handle(Options, Config) ->
    Issuer = erlmcp_test_suite:issuer(Config),
    handle(maps:merge(#{tokens => [jwt(#{}, Issuer)]}, Options)).

-doc "A handle and its process, which ends with the calling one.".
handle(Options) ->
    Given = maps:merge(#{resource => url()}, Options),
    Kept = maps:filter(fun(_, Value) -> Value =/= none end, Given),
    ok = erlmcp_bearer_options:check(Kept),
    Server = make_ref(),
    ok = erlmcp_log:name(Server, ~"of the test"),
    Handle = erlmcp_bearer:new(erlmcp_bearer_options:settings(Kept), Server),
    #{start := {Module, Function, Arguments}} = erlmcp_bearer:child_spec(Handle),
    {ok, _} = apply(Module, Function, Arguments),
    Handle.

-doc "Sources of an issuer's.".
jwt(Options, Issuer) ->
    {jwt, maps:merge(#{issuer => erlmcp_test_issuer:url(Issuer),
                       jwks => {uri, erlmcp_test_issuer:url(Issuer, ~"/jwks")}}, Options)}.

introspection(Options, Issuer) ->
    {introspection, maps:merge(#{issuer => erlmcp_test_issuer:url(Issuer),
                                 uri => erlmcp_test_issuer:url(Issuer, ~"/introspect"),
                                 client_id => ~"server", client_secret => ~"server-secret"},
                               Options)}.

-doc "Good claims, and tokens with changed ones.".
claims(Issuer) -> (erlmcp_test_issuer:claims(Issuer))#{~"aud" => url()}.

token(Changes, Issuer) ->
    erlmcp_test_issuer:token(maps:merge(#{~"aud" => url()}, Changes), Issuer).

opaque(Changes, Issuer) ->
    erlmcp_test_issuer:opaque(maps:merge(#{~"aud" => url()}, Changes), Issuer).

-doc "A part of a JWT.".
part(Map) -> encode(iolist_to_binary(json:encode(Map))).

encode(Bytes) -> base64:encode(Bytes, #{mode => urlsafe, padding => false}).

request(Headers) ->
    #{url => ~"https://127.0.0.1:8443/mcp", method => ~"POST", path => ~"/mcp", headers => Headers,
      peer => {{127, 0, 0, 1}, 5}, tls => true}.

bearer(Token) -> request(#{~"authorization" => <<"Bearer ", Token/binary>>}).

verify(Token, Handle) -> answer(bearer(Token), Handle).

answer(Request, Handle) ->
    awaited(begun(Request, Handle), Handle).

-doc "Asks, and does not wait. Each request is told of under a tag of its own.".
begun(Request, Handle) ->
    Tag = make_ref(),
    {Tag, erlmcp_bearer:verify(Handle, Request, {self(), Tag})}.

awaited({Tag, {wait, Wait}}, Handle) ->
    receive
        {Tag, Message} -> awaited({Tag, erlmcp_bearer:awaited(Handle, Message, Wait)}, Handle)
    after ?PATIENCE ->
        error(nobody_was_told)
    end;
awaited({_, Answer}, _) ->
    Answer.

-doc "The name of a refusal, its status, and the error that the client is told.".
refusal({error, #{refusal := Refusal} = Failure}) ->
    {erlmcp_refusal:name(Refusal), erlmcp_refusal:status(Refusal),
     maps:get(error, Failure, none)}.

refused(Token, Handle) -> refusal(verify(Token, Handle)).

-doc "From now on requests for a path of the issuer are held until `go_on` is sent to who does it.".
held(Path, Answer, Issuer) ->
    Test = self(),
    erlmcp_test_oauth:change(Issuer, Path, fun(_) ->
        Test ! {asked, self()},
        receive
            go_on -> Answer
        end
    end).

next_asked() ->
    receive
        {asked, Pid} -> Pid
    after ?PATIENCE ->
        error(nobody_asks)
    end.

nobody_asked() ->
    receive
        {asked, _} -> error(asked)
    after 0 ->
        ok
    end.

-doc "How often a path was asked for.".
asked(Path, Issuer) -> length(erlmcp_test_oauth:asked(Issuer, Path)).

-doc "So much time has passed since the first source's keys were fetched that they may be again.".
later(#{tables := Tables}) ->
    erlmcp_bearer_tables:fetch_again(1, 0, Tables).
