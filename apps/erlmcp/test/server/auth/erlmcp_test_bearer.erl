-module(erlmcp_test_bearer).
-moduledoc """
The check of bearer tokens of a listener, without the listener. `verify/2` begins the check of a
token, waits as long as the check does, and returns its answer. The issuer is
`m:erlmcp_test_issuer`.
""".

-export([handle/1, handle/2, jwt/2, introspection/2, url/0]).
-export([claims/1, token/2, opaque/2, part/1, encode/1]).
-export([request/1, bearer/1, verify/2, answer/2, begun/2, awaited/2, refusal/1, refused/2]).
-export([held/3, next_asked/0, nobody_asked/0, asked/2, later/1]).

-define(PATIENCE, 30_000).

-doc "Returns the resource that tokens are for.".
url() -> ~"https://mcp.example/mcp".

-doc """
Returns a handle with these options. Unless they name other sources, its tokens are JWTs of the
case's issuer.
""".
handle(Options, Config) ->
    Issuer = erlmcp_test_suite:issuer(Config),
    handle(maps:merge(#{tokens => [jwt(#{}, Issuer)]}, Options)).

-doc "Returns a handle, and starts its process, which is linked to the calling one.".
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

-doc "Returns a source of JWTs of an issuer, with these options in place of its own.".
jwt(Options, Issuer) ->
    {jwt, maps:merge(#{issuer => erlmcp_test_issuer:url(Issuer),
                       jwks => {uri, erlmcp_test_issuer:url(Issuer, ~"/jwks")}}, Options)}.

introspection(Options, Issuer) ->
    {introspection, maps:merge(#{issuer => erlmcp_test_issuer:url(Issuer),
                                 uri => erlmcp_test_issuer:url(Issuer, ~"/introspect"),
                                 client_id => ~"server", client_secret => ~"server-secret"},
                               Options)}.

-doc "Returns claims that the check accepts.".
claims(Issuer) -> (erlmcp_test_issuer:claims(Issuer))#{~"aud" => url()}.

token(Changes, Issuer) ->
    erlmcp_test_issuer:token(maps:merge(#{~"aud" => url()}, Changes), Issuer).

opaque(Changes, Issuer) ->
    erlmcp_test_issuer:opaque(maps:merge(#{~"aud" => url()}, Changes), Issuer).

-doc "Returns a part of a JWT.".
part(Map) -> encode(iolist_to_binary(json:encode(Map))).

encode(Bytes) -> base64:encode(Bytes, #{mode => urlsafe, padding => false}).

request(Headers) ->
    #{url => ~"https://127.0.0.1:8443/mcp", method => ~"POST", path => ~"/mcp", headers => Headers,
      peer => {{127, 0, 0, 1}, 5}, tls => true}.

bearer(Token) -> request(#{~"authorization" => <<"Bearer ", Token/binary>>}).

verify(Token, Handle) -> answer(bearer(Token), Handle).

answer(Request, Handle) ->
    awaited(begun(Request, Handle), Handle).

-doc "Begins the check of a request, and does not wait. Messages about it have a tag of its own.".
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

-doc "Returns the name of a refusal, its status, and the error that the client gets, or `none`.".
refusal({error, #{refusal := Refusal} = Failure}) ->
    {erlmcp_refusal:name(Refusal), erlmcp_refusal:status(Refusal),
     maps:get(error, Failure, none)}.

refused(Token, Handle) -> refusal(verify(Token, Handle)).

-doc """
Holds requests for a path of the issuer from now on. Each goes on when its process, which
`next_asked/0` returns, gets `go_on`.
""".
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

-doc "Returns how often a path was asked for.".
asked(Path, Issuer) -> length(erlmcp_test_oauth:asked(Issuer, Path)).

-doc "Lets the keys of the first source be fetched again, as if enough time had passed.".
later(#{tables := Tables}) ->
    erlmcp_bearer_tables:fetch_again(1, 0, Tables).
