-module(erlmcp_request_header).
-moduledoc """
Makes the `MCP-Protocol-Version` and `Mcp-*` headers of a client's messages on HTTP, with names in
lower case. Pure.

Sources: specification 2026-07-28, "Streamable HTTP / Request Metadata"; 2025-06-18 and 2025-11-25,
"Transports / Protocol Version Header"; the extension `io.modelcontextprotocol/tasks`, "Routing
Headers".

Internal.
""".

-export([version/1, request/2, arguments/2, encode/1]).

-export_type([headers/0]).

-type headers() :: [{Name :: binary(), Value :: binary()}].

-doc """
Returns the header `MCP-Protocol-Version` in a list. All messages have this header after the client
and the server have agreed on the revision. The list is empty for the two oldest revisions, which do
not have the header.
""".
-spec version(erlmcp_revision:revision()) -> headers().
version(Revision) when Revision >= '2025-06-18' ->
    [{~"mcp-protocol-version", erlmcp_revision:name(Revision)}];
version(_) ->
    [].

-doc """
Returns the headers of a stateless request: `Mcp-Method` and, if the method names a tool, a prompt,
a resource or a task, `Mcp-Name`.

## Examples

```erlang
1> erlmcp_request_header:request(~"tools/call", #{~"name" => ~"größe"}).
[{~"mcp-method", ~"tools/call"}, {~"mcp-name", ~"=?base64?Z3LDtsOfZQ==?="}]
2> erlmcp_request_header:request(~"tools/list", #{}).
[{~"mcp-method", ~"tools/list"}]
```
""".
-spec request(Method :: binary(), Params :: map()) -> headers().
request(Method, Params) ->
    Name = case erlmcp_header:source(Method) of
        none -> none;
        Field -> maps:get(Field, Params, none)
    end,
    case Name of
        _ when is_binary(Name) -> [{~"mcp-method", Method}, {~"mcp-name", encode(Name)}];
        _ -> [{~"mcp-method", Method}]
    end.

-doc """
Returns the `Mcp-Param-*` headers of a tool call. Each argument for which the tool declares a header
(`erlmcp_header:declared/1`) gets it, if its value is a string, an integer or a boolean.

## Examples

```erlang
1> {ok, Declared} = erlmcp_header:declared(
       #{~"properties" => #{~"n" => #{~"type" => ~"integer", ~"x-mcp-header" => ~"Count"}}}).
2> erlmcp_request_header:arguments(#{~"n" => 42}, Declared).
[{~"mcp-param-count", ~"42"}]
3> erlmcp_request_header:arguments(#{~"n" => null}, Declared).
[]
```
""".
-spec arguments(Arguments :: map(), [erlmcp_header:declaration()]) -> headers().
arguments(Arguments, Declared) ->
    [{Header, Text} || {Header, Path, _} <- Declared,
                       {ok, Text} <- [text(erlmcp_header:argument(Path, Arguments))]].

text(absent) -> none;
text(true) -> {ok, ~"true"};
text(false) -> {ok, ~"false"};
text(Text) when is_binary(Text) -> {ok, encode(Text)};
text(Number) when is_integer(Number) -> {ok, integer_to_binary(Number)};
%% A float without a fraction, which is an integer to JSON Schema.
text(Number) when is_float(Number), trunc(Number) == Number ->
    {ok, integer_to_binary(trunc(Number))};
text(_) -> none.

-doc """
Encodes a text as the value of a header, for `erlmcp_header:decode/1`. Printable ASCII that neither
begins nor ends with a space, and does not look like an encoded text, stays as it is. Any other text
becomes base64.

## Examples

```erlang
1> erlmcp_request_header:encode(~"us west 1").
~"us west 1"
2> erlmcp_request_header:encode(~" padded ").
~"=?base64?IHBhZGRlZCA=?="
```
""".
-spec encode(Text :: binary()) -> binary().
encode(<<"=?base64?", _/binary>> = Text) ->
    case binary:longest_common_suffix([Text, ~"?="]) of
        2 -> encode_base64(Text);
        _ -> encode_unless_plain(Text)
    end;
encode(<<" ", _/binary>> = Text) ->
    encode_base64(Text);
encode(Text) ->
    encode_unless_plain(Text).

encode_unless_plain(Text) ->
    case is_plain(Text) of
        true -> Text;
        false -> encode_base64(Text)
    end.

%% A header may contain a tab, but intermediaries turn tabs into spaces, so it is encoded.
is_plain(<<" ">>) -> false;
is_plain(<<C, Rest/binary>>) when C >= 16#20, C < 16#7f -> is_plain(Rest);
is_plain(Rest) -> Rest =:= <<>>.

encode_base64(Text) ->
    <<"=?base64?", (base64:encode(Text))/binary, "?=">>.
