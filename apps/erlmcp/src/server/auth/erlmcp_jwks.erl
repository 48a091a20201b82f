-module(erlmcp_jwks).
-moduledoc """
The keys of an issuer, fetched from its URI. It runs in the process that asks.

Sources: RFC 7517, section 5; RFC 9111, section 5.2 for how long they are fresh.

Internal.
""".

-export([fetch/2]).

%% Bounds on the issuer's `max-age`: withdrawn keys must go soon, and the issuer is not asked all
%% the time.
-define(LEAST_S, 60).
-define(MOST_S, 3600).
-define(SECONDS, 600).

-doc """
Fetches the keys that serve for signatures, at least one, with the milliseconds that they are fresh.
""".
-spec fetch(Uri :: binary(), erlmcp_fetch:settings()) ->
    {ok, [erlmcp_jwk:key(), ...], Milliseconds :: pos_integer()}
    | {error, erlmcp_fetch:reason() | {status, pos_integer()} | no_keys}.
fetch(Uri, Fetch) ->
    case erlmcp_fetch:get_json(Uri, Fetch) of
        {ok, #{status := 200, json := {ok, Document}, headers := Headers}} ->
            case erlmcp_jwk:set(Document) of
                [_ | _] = Keys -> {ok, Keys, 1000 * seconds(Headers)};
                [] -> {error, no_keys}
            end;
        {ok, #{status := 200}} -> {error, no_keys};
        {ok, #{status := Status}} -> {error, {status, Status}};
        {error, Reason} -> {error, Reason}
    end.

seconds(#{~"cache-control" := Field}) ->
    case re:run(Field, ~"(?i)(?:^|[,\\s])max-age\\s*=\\s*\"?([0-9]{1,9})",
                [{capture, all_but_first, binary}]) of
        {match, [Digits]} -> max(?LEAST_S, min(?MOST_S, binary_to_integer(Digits)));
        nomatch -> ?SECONDS
    end;
seconds(_) ->
    ?SECONDS.
