-module(erlmcp_client_error).
-moduledoc "The reasons for which calls fail, as sentences for people. Pure. Internal.".

-export([text/1]).

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
    ["the server redirects to another place, which is not followed: ",
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
why({http, _, _, _} = Response) -> [sentence(Response), refusal_text(Response)];
why({insufficient_scope, _} = Why) -> refusal_text({unauthorized, Why});
why({host_not_allowed, Host, Why}) ->
    ["the login leads to the host ", Host, outside(Why), "; `allow_hosts` allows it"];
why(Posix) when is_atom(Posix) ->
    case inet:format_error(Posix) of
        "unknown POSIX error" ++ _ -> atom_to_list(Posix);
        Text -> Text
    end;
why(Term) -> io_lib:format("~0tp", [Term]).

refusal_text(Reason) ->
    maybe
        {ok, Refusal} ?= erlmcp_client_refusal:read(Reason),
        [_ | _] = Words ?= erlmcp_client_refusal:words(Refusal),
        [[": " || element(1, Reason) =:= http], Words]
    else
        _ -> ""
    end.

outside({other_origin, Issuer}) -> [", which is not of the origin of its issuer ", Issuer];
outside({inner_address, Address}) ->
    [" (", Address, "), which lies further inside than the MCP server"].
