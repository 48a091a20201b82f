-module(erlmcp_client_error).
-moduledoc """
Describes the reasons of failed calls in sentences for people. Pure.

A server that refuses a request for lack of authorization may give its reason in the header
`WWW-Authenticate` or in the body. The body may have a JSON-RPC error, or one of OAuth.

Sources: RFC 6750, section 3; RFC 9728, section 5.1.

Internal.
""".

-export([text/1, refusal/1, refusal_text/1]).

-export_type([refusal/0]).

-doc """
A server's refusal for lack of authorization. `scopes`, the first 50, and `resource_metadata` are
from the challenge, which is the header `WWW-Authenticate`. `error` and `error_description` are from
the challenge, or else from an OAuth error in the body. `rpc` is the JSON-RPC error of the body. All
texts except those of `rpc` are ASCII, of at most 512 bytes.
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

-doc "Returns the sentence for `Reason`, without its full stop.".
-spec text(erlmcp_client:reason()) -> binary().
text(Reason) ->
    %% Text from a server need not be valid UTF-8.
    case unicode:characters_to_binary(sentence(Reason)) of
        Text when is_binary(Text) -> Text;
        {_, Text, _} -> Text
    end.

sentence({rpc, #{code := Code, message := Message}}) ->
    io_lib:format("the server answered with error ~b: ~ts", [Code, Message]);
sentence({timeout, Milliseconds}) ->
    io_lib:format("the server did not answer within ~b ms", [Milliseconds]);
sentence(timeout) ->
    "the server was not reached in time";
sentence({connect, Why}) ->
    ["the server cannot be reached: ", why(Why)];
sentence({closed, Why}) ->
    ["the connection ended before the answer: ", why(Why)];
sentence({http, Status, _, _}) ->
    io_lib:format("the server answered with HTTP status ~b", [Status]);
sentence(session_lost) ->
    "the server has forgotten the session";
sentence({redirect, Location}) ->
    %% A header need not be valid UTF-8.
    ["the server redirects to a URL that is not followed: ",
     erlmcp_printable:part(Location, byte_size(Location))];
sentence({unauthorized, Why}) ->
    ["the server requires authorization: ", why(Why)];
sentence({protocol, What}) ->
    ["the server's message is not MCP: ", What];
sentence({too_large, heap}) ->
    "the server's messages take more memory than a call may use";
sentence({too_large, Limit}) ->
    io_lib:format("the server's message is larger than ~b bytes", [Limit]);
sentence({overload, Limit}) ->
    io_lib:format("the client's own limit of ~b is reached", [Limit]);
sentence({unsupported_version, Versions}) ->
    ["the server supports none of the client's revisions, but: ", lists:join(", ", Versions)];
sentence({cursor_loop, Cursor}) ->
    ["the server's list returns to an earlier page: ", Cursor];
sentence({too_many_pages, Limit}) ->
    io_lib:format("the server's list has more than ~b pages", [Limit]);
sentence({too_many_rounds, Limit}) ->
    io_lib:format("the server asked for input more than ~b times", [Limit]);
sentence({input, Name, Why}) ->
    ["the server asked for input (", Name, "), and there was none: ", why(Why)];
sentence({unavailable, Milliseconds}) ->
    io_lib:format("no server of the pool works; one is tried again in ~b ms", [Milliseconds]);
sentence({crashed, _}) ->
    "the call crashed; the log says more";
sentence({bad_option, Key, Expected}) ->
    io_lib:format("option ~0tp: expected ~ts", [Key, Expected]);
sentence(cancelled) ->
    "the call was cancelled";
sentence(stopped) ->
    "the client is not running".

why(Text) when is_binary(Text) -> Text;
why({http, _, _, _} = Response) -> [sentence(Response), server_words(Response)];
why({insufficient_scope, _} = Why) -> server_words({unauthorized, Why});
why({host_not_allowed, Host, Why}) ->
    ["the login leads to the host ", Host, outside(Why), "; `allow_hosts` allows it"];
why(Posix) when is_atom(Posix) ->
    case inet:format_error(Posix) of
        "unknown POSIX error" ++ _ -> atom_to_list(Posix);
        Text -> Text
    end;
why(Term) -> io_lib:format("~0tp", [Term]).

server_words(Reason) ->
    maybe
        {ok, Refusal} ?= refusal(Reason),
        [_ | _] = Words ?= refusal_text(Refusal),
        [[": " || element(1, Reason) =:= http], Words]
    else
        _ -> ""
    end.

outside({other_origin, Issuer}) -> [", which is not of the origin of its issuer ", Issuer];
outside({inner_address, Address}) ->
    [" (", Address, "), which lies further inside than the MCP server"].

-doc "Returns the refusal in the reason of a failed call; `none` for any other reason.".
-spec refusal(erlmcp_client:reason() | tuple()) -> {ok, refusal()} | none.
refusal({unauthorized, {http, _, _, _} = Response}) ->
    refusal(Response);
refusal({unauthorized, {insufficient_scope, Scopes}}) ->
    {ok, maps:merge(#{status => 403, error => ~"insufficient_scope"}, scopes(Scopes))};
refusal({http, Status, Headers, Body}) when Status =:= 401; Status =:= 403 ->
    Challenged = challenged(Headers),
    {ok, (maps:merge(body(Body), Challenged))#{status => Status}};
refusal(_) ->
    none.

challenged(#{~"www-authenticate" := Field}) ->
    Schemes = [Params || #{scheme := Scheme, params := Params} <- erlmcp_challenge:parse(Field),
                         Scheme =:= ~"bearer" orelse Scheme =:= ~"dpop"],
    %% The error is in the challenge with the scheme that the request used.
    Params = lists:foldl(fun maps:merge/2, #{},
                         Schemes ++ [One || #{~"error" := _} = One <- Schemes]),
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
Returns the text of a refusal: its error, the server's description, the message of the JSON-RPC
error, and the required scopes. The text is empty if the server sent none of them.
""".
-spec refusal_text(refusal()) -> unicode:chardata().
refusal_text(Refusal) ->
    Error = [Name || #{error := Name} <- [Refusal]],
    Descriptions = [Text || #{error_description := Text} <- [Refusal]],
    Message = [Text || #{rpc := #{message := Text}} <- [Refusal],
                       not lists:member(part(Text), Descriptions)],
    Scopes = [["scope: ", lists:join($\s, Names)] || #{scopes := Names} <- [Refusal]],
    About = [lists:join("; ", Parts) || [_ | _] = Parts <- [Descriptions ++ Message ++ Scopes]],
    lists:join(": ", Error ++ About).
