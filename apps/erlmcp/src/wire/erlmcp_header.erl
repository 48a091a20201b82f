-module(erlmcp_header).
-moduledoc """
The `Mcp-*` headers that mirror a stateless request's body on HTTP. Pure.

Source: specification 2026-07-28, "Streamable HTTP / Request Metadata".
""".

-export([check/3, decode/1]).

-export_type([mirrored/0]).

-type mirrored() :: #{mcp_method := binary() | undefined, mcp_name := binary() | undefined}.

-doc """
Whether `Mcp-Method` and, for the methods that have a name or URI, `Mcp-Name` say what the body
says. Values are compared case-sensitively, `Mcp-Name` after decoding.
""".
-spec check(Method :: binary(), Params :: map(), mirrored()) ->
    ok | {error, erlmcp_refusal:refusal()}.
check(Method, Params, #{mcp_method := Method, mcp_name := Name}) ->
    case source(Method) of
        none -> ok;
        Field -> check_name(Name, Field, maps:get(Field, Params, undefined))
    end;
check(_, _, #{mcp_method := undefined}) ->
    mismatch(~"Mcp-Method: the header is missing");
check(_, _, _) ->
    mismatch(~"Mcp-Method: the header differs from the body's method").

source(~"tools/call") -> ~"name";
source(~"prompts/get") -> ~"name";
source(~"resources/read") -> ~"uri";
source(_) -> none.

%% A body without the field is refused by its method, which can say more.
check_name(_, _, Value) when not is_binary(Value) ->
    ok;
check_name(Value, _, Value) when binary_part(Value, 0, min(9, byte_size(Value))) =/= ~"=?base64?" ->
    ok;
check_name(undefined, _, _) ->
    mismatch(~"Mcp-Name: the header is missing");
check_name(Header, Field, Value) ->
    case decode(Header) of
        {ok, Value} -> ok;
        {ok, _} -> mismatch([~"Mcp-Name: the header differs from the body's params.", Field]);
        error -> mismatch(~"Mcp-Name: invalid base64 or characters")
    end.

-doc """
The value that a header carries: itself, or what stands in base64 between `=?base64?` and `?=`.
Strict: padding is required, and nothing but the alphabet and printable ASCII is accepted.

```erlang
{ok, ~"Hello"} = erlmcp_header:decode(~"=?base64?SGVsbG8=?=").
error = erlmcp_header:decode(~"=?base64?SGVsbG8?=").
```
""".
-spec decode(binary()) -> {ok, binary()} | error.
decode(<<"=?base64?", Rest/binary>> = Header) when byte_size(Rest) >= 2 ->
    Size = byte_size(Rest) - 2,
    case Rest of
        <<Encoded:Size/binary, "?=">> -> decode_base64(Encoded);
        _ -> plain(Header)
    end;
decode(Header) ->
    plain(Header).

decode_base64(Encoded) ->
    %% base64:decode/1 skips whitespace, so it is looked for first.
    case re:run(Encoded, "^[A-Za-z0-9+/]*={0,2}$", [{capture, none}, dollar_endonly]) of
        match when byte_size(Encoded) rem 4 =:= 0 ->
            try
                {ok, base64:decode(Encoded)}
            catch
                error:_ -> error
            end;
        _ ->
            error
    end.

plain(Header) ->
    case << <<C>> || <<C>> <= Header, C =:= $\t orelse (C >= 16#20 andalso C < 16#7f) >> of
        Header -> {ok, Header};
        _ -> error
    end.

mismatch(Message) ->
    {error, erlmcp_refusal:new(invalid_header, Message, #{code => -32020, status => 400})}.
