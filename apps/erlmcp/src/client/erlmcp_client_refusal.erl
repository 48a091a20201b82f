-module(erlmcp_client_refusal).
-moduledoc """
The reason of a server for refusing a request that lacks authorization. The reason stands in
`WWW-Authenticate`, and in the body, which may be a JSON-RPC error or one of OAuth. Pure.

Sources: RFC 6750, section 3; RFC 9728, section 5.1.

Internal.
""".

-export([read/1, words/1]).

-export_type([refusal/0]).

-doc """
A refusal. `error`, `error_description` and `scopes` come from the challenge, `rpc` is the JSON-RPC
error of the body. Texts of headers are cut to 512 bytes and are ASCII.
""".
-type refusal() :: #{
    status := 401 | 403,
    error => binary(),
    error_description => binary(),
    scopes => [binary(), ...],
    resource_metadata => binary(),
    rpc => #{code := integer(), message => binary(), data => erlmcp_json:json_term()}
}.

-define(TEXT_BYTES, 512).
-define(SCOPES, 50).
-define(LIMITS, #{message_bytes => 4096, depth => 16, members => 200}).

-doc "Reads the refusal in the reason of a failed call; `none` for any other reason.".
-spec read(erlmcp_client:reason() | tuple()) -> {ok, refusal()} | none.
read({unauthorized, {http, _, _, _} = Response}) ->
    read(Response);
read({unauthorized, {insufficient_scope, Scopes}}) ->
    {ok, maps:merge(#{status => 403, error => ~"insufficient_scope"}, scopes(Scopes))};
read({http, Status, Headers, Body}) when Status =:= 401; Status =:= 403 ->
    Challenged = challenged(Headers),
    {ok, (maps:merge(body(Body), Challenged))#{status => Status}};
read(_) ->
    none.

challenged(#{~"www-authenticate" := Field}) ->
    Known = [Params || #{scheme := Scheme, params := Params} <- erlmcp_challenge:parse(Field),
                       Scheme =:= ~"bearer" orelse Scheme =:= ~"dpop"],
    %% The error stands in the challenge of the scheme that was used.
    Params = lists:foldl(fun maps:merge/2, #{},
                         Known ++ [One || #{~"error" := _} = One <- Known]),
    maps:merge(texts(Params, [error, error_description, resource_metadata]),
               scopes(erlmcp_oauth_scope:parse(maps:get(~"scope", Params, ~""))));
challenged(_) ->
    #{}.

scopes([]) -> #{};
scopes(Scopes) -> #{scopes => [part(Scope) || Scope <- lists:sublist(Scopes, ?SCOPES)]}.

texts(Members, Names) ->
    #{Name => part(Text) || Name <- Names, #{} <- [Members],
                            {ok, Text} <- [maps:find(atom_to_binary(Name), Members)],
                            is_binary(Text), Text =/= ~""}.

part(Text) -> erlmcp_printable:part(Text, ?TEXT_BYTES).

body(Body) ->
    case erlmcp_json:decode(Body, ?LIMITS) of
        {ok, #{~"jsonrpc" := ~"2.0", ~"error" := #{~"code" := Code} = Error}}
          when is_integer(Code) ->
            #{rpc => maps:merge(#{code => Code}, rpc(Error))};
        {ok, #{~"error" := Name} = OAuth} when is_binary(Name) ->
            texts(OAuth, [error, error_description]);
        _ ->
            #{}
    end.

rpc(Error) ->
    maps:merge(#{message => Message || #{~"message" := Message} <- [Error], is_binary(Message)},
               #{data => Data || #{~"data" := Data} <- [Error]}).

-doc """
Returns the text of a refusal: its error, the server's description, and the scopes that it requires.
The text is empty if the server gave none of them.
""".
-spec words(refusal()) -> unicode:chardata().
words(Refusal) ->
    Error = [Name || #{error := Name} <- [Refusal]],
    Said = [Text || #{error_description := Text} <- [Refusal]],
    Message = [Text || #{rpc := #{message := Text}} <- [Refusal],
                       not lists:member(part(Text), Said)],
    Scopes = [["scope: ", lists:join($\s, Names)] || #{scopes := Names} <- [Refusal]],
    About = [lists:join("; ", Parts) || [_ | _] = Parts <- [Said ++ Message ++ Scopes]],
    lists:join(": ", Error ++ About).
