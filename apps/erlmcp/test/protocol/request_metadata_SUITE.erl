-module(request_metadata_SUITE).
-moduledoc """
What 2026-07-28 has servers validate of a request beside its params, by properties: its `_meta`, and
the headers that say again what the body says.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([meta_is_checked_in_order/1, headers_decode_to_what_was_encoded/1,
         header_decoding_is_strict/1, mirrored_headers_must_agree/1,
         mirrored_arguments_are_the_tools_alone/1]).

-import(erlmcp_test_json, [outcome/1]).
-import(erlmcp_test_property, [holds/2]).

-define(CASES, 1000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [meta_is_checked_in_order, headers_decode_to_what_was_encoded, header_decoding_is_strict,
     mirrored_headers_must_agree, mirrored_arguments_are_the_tools_alone].

holds(Property) ->
    holds(Property, ?CASES).

is_id(Id) -> is_integer(Id) orelse is_binary(Id).

decoded(Bytes) -> json:decode(iolist_to_binary(Bytes)).

%% 2026-07-28, Server Validation, in this order: the header is there, the fields are there and of
%% their type, the header says what the body says, the version is supported; what the client
%% declares of itself is of the types of that version.
meta_is_checked_in_order(_) ->
    holds(?FORALL({Header, Version, Capabilities, Extra},
                  {oneof([none, undefined, ~"2026-07-28", ~"2025-11-25", binary()]),
                   oneof([missing, ~"2026-07-28", ~"2026-07-28", ~"2025-11-25",
                          erlmcp_test_json:text(), erlmcp_test_json:json()]),
                   oneof([missing, erlmcp_test_json:object(), erlmcp_test_json:object(),
                          erlmcp_test_json:json()]),
                   oneof([[], [], extra()])},
                  begin
                      Meta = maps:from_list(
                          [{~"io.modelcontextprotocol/protocolVersion", Version}
                           || Version =/= missing]
                          ++ [{~"io.modelcontextprotocol/clientCapabilities", Capabilities}
                              || Capabilities =/= missing]
                          ++ Extra),
                      Expected = meta_code(Header, Version, Capabilities, Extra),
                      case erlmcp_meta:validate(#{~"_meta" => Meta}, Header) of
                          {ok, '2026-07-28', #{client_capabilities := Capabilities}} ->
                              Expected =:= ok;
                          {error, Refusal} ->
                              Expected =:= code(Refusal)
                                  andalso erlmcp_refusal:status(Refusal) =:= 400
                      end
                  end), 3 * ?CASES).

code(Refusal) ->
    maps:get(~"code", decoded(erlmcp_refusal:encode(Refusal))).

extra() ->
    ?LET({Key, Value},
         {oneof([~"io.modelcontextprotocol/clientInfo", ~"io.modelcontextprotocol/logLevel",
                 ~"progressToken", ~"other"]),
          oneof([~"error", 1, #{~"name" => ~"a", ~"version" => ~"1"}, erlmcp_test_json:json()])},
         [{Key, Value}]).

meta_code(undefined, _, _, _) -> -32020;
meta_code(Header, Version, Capabilities, Extra) ->
    Typed = is_binary(Version) andalso is_map(Capabilities)
        andalso lists:all(fun is_extra/1, Extra),
    if
        not Typed -> -32602;
        Header =/= none, Header =/= Version -> -32020;
        Version =/= ~"2026-07-28" -> -32022;
        true -> lists:last([ok | [-32602 || {Key, Value} <- Extra, not is_declared(Key, Value)]])
    end.

is_declared(~"io.modelcontextprotocol/clientInfo", Identity) ->
    case Identity of
        #{~"name" := Name, ~"version" := Version} -> is_binary(Name) andalso is_binary(Version);
        _ -> false
    end;
is_declared(_, _) ->
    true.

is_extra({~"io.modelcontextprotocol/logLevel", Level}) ->
    lists:member(Level, [~"debug", ~"info", ~"notice", ~"warning", ~"error", ~"critical", ~"alert",
                         ~"emergency"]);
is_extra({~"progressToken", Token}) -> is_id(Token);
is_extra({_, _}) -> true.

%% 2026-07-28, Value Encoding: what a client encodes is what is compared; its table of examples.
headers_decode_to_what_was_encoded(_) ->
    [{Header, {ok, Value}} = {Header, erlmcp_header:decode(Header)}
     || {Value, Header} <- [
            {~"us-west1", ~"us-west1"},
            {~"Hello, 世界", ~"=?base64?SGVsbG8sIOS4lueVjA==?="},
            {~" padded ", ~"=?base64?IHBhZGRlZCA=?="},
            {~"line1\nline2", ~"=?base64?bGluZTEKbGluZTI=?="},
            {~"=?base64?literal?=", ~"=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="}]],
    holds(?FORALL(Value, oneof([binary(), erlmcp_test_json:text()]),
                  erlmcp_header:decode(<<"=?base64?", (base64:encode(Value))/binary, "?=">>)
                      =:= {ok, Value})),
    holds(?FORALL(Value, ?LET(Bytes, list(oneof([range(16#20, 16#7e), $\t, $=, $?])),
                              exactly(list_to_binary(Bytes))),
                  erlmcp_header:decode(Value) =:= {ok, Value})).

%% "A header value contains invalid characters": everything but 0x21-0x7E, space and tab, and in the
%% sentinel everything but base64 with its padding. "These markers are case-sensitive".
header_decoding_is_strict(_) ->
    holds(?FORALL({Before, Byte, After},
                  {printable(), oneof([range(0, 8), range(10, 31), range(127, 255)]), printable()},
                  erlmcp_header:decode(<<Before/binary, Byte, After/binary>>) =:= error)),
    holds(?FORALL({Value, Place, Byte},
                  {non_empty_binary(), non_neg_integer(),
                   oneof([$\s, $\t, $\n, $-, $_, $=, $!, 0])},
                  begin
                      Encoded = base64:encode(Value),
                      <<Head:(Place rem (byte_size(Encoded) - 3))/binary, Tail/binary>> = Encoded,
                      erlmcp_header:decode(<<"=?base64?", Head/binary, Byte, Tail/binary, "?=">>)
                          =:= error
                  end)),
    holds(?FORALL({Value, Cut}, {non_empty_binary(), range(1, 3)},
                  begin
                      Encoded = base64:encode(Value),
                      Short = binary_part(Encoded, 0, byte_size(Encoded) - Cut),
                      erlmcp_header:decode(<<"=?base64?", Short/binary, "?=">>) =:= error
                  end)),
    [{Header, {ok, Header}} = {Header, erlmcp_header:decode(Header)}
     || Header <- [~"=?BASE64?QQ==?=", ~"=?Base64?QQ==?=", ~"=?base64?QQ==", ~"QQ==?=",
                   ~"=?base64?QQ==? =", ~"x=?base64?QQ==?="]],
    {ok, ~""} = erlmcp_header:decode(~"=?base64??="),
    {ok, ~""} = erlmcp_header:decode(~"").

printable() ->
    ?LET(Bytes, list(range(16#20, 16#7e)), exactly(list_to_binary(Bytes))).

non_empty_binary() ->
    ?LET({First, Rest}, {byte(), binary()}, exactly(<<First, Rest/binary>>)).

%% Server Validation: "A header value does not match the corresponding request body value" is
%% -32020, and nothing else is.
mirrored_headers_must_agree(_) ->
    Values = oneof([~"a", ~"b", ~"tools/call", ~"ü", ~" a", ~"=?base64?YQ==?=", undefined]),
    holds(?FORALL({Method, HeaderMethod, Value, HeaderName, IsEncoded},
                  {oneof([~"tools/call", ~"prompts/get", ~"resources/read", ~"tools/list", ~"a"]),
                   oneof([same, same, same, Values]), Values, oneof([same, same, Values]),
                   boolean()},
                  begin
                      Field = case Method of ~"resources/read" -> ~"uri"; _ -> ~"name" end,
                      Params = #{Field => V || V <- [Value], V =/= undefined},
                      Name = case HeaderName of same -> Value; _ -> HeaderName end,
                      Sent = case {Name, IsEncoded orelse not is_plain(Name)} of
                          {undefined, _} -> undefined;
                          {_, true} -> <<"=?base64?", (base64:encode(Name))/binary, "?=">>;
                          {_, false} -> Name
                      end,
                      SentMethod = case HeaderMethod of same -> Method; _ -> HeaderMethod end,
                      Headers = #{Key => Header || {Key, Header} <- [{~"mcp-method", SentMethod},
                                                                     {~"mcp-name", Sent}],
                                                   Header =/= undefined},
                      Agrees = lists:member(HeaderMethod, [same, Method])
                          andalso (Name =:= Value orelse Value =:= undefined
                                   orelse lists:member(Method, [~"tools/list", ~"a"])),
                      case erlmcp_header:check(Method, Params, erlmcp_header:read(Headers)) of
                          ok -> Agrees;
                          {error, Refusal} ->
                              not Agrees andalso code(Refusal) =:= -32020
                                  andalso erlmcp_refusal:status(Refusal) =:= 400
                      end
                  end), 2 * ?CASES).

is_plain(undefined) -> true;
is_plain(~"ü") -> false;
is_plain(~" a") -> false;
is_plain(<<"=?base64?", _/binary>>) -> false;
is_plain(_) -> true.

%% Custom Headers: `Mcp-Param-*` mirrors what a tool's schema declares, in a `tools/call`. A prompt
%% that has its name has no such headers.
mirrored_arguments_are_the_tools_alone(_) ->
    {ok, Catalog} = erlmcp_catalog:add(prompt, #{name => ~"there", handler => fun(_, _) -> ~"" end},
                                       erlmcp_metaschemas:compiled(), erlmcp_test_json:catalog()),
    Meta = #{~"io.modelcontextprotocol/protocolVersion" => ~"2026-07-28",
             ~"io.modelcontextprotocol/clientCapabilities" => #{}},
    [{Method, Expected} = {Method, outcome(Effect)}
     || {Method, Expected} <- [{~"tools/call", -32020}, {~"prompts/get", prompt}],
        {[Effect], none} <- [erlmcp_engine:handle(
            #{~"jsonrpc" => ~"2.0", ~"id" => 1, ~"method" => Method,
              ~"params" => #{~"name" => ~"there", ~"arguments" => #{~"region" => ~"eu"},
                             ~"_meta" => Meta}},
            #{headers => #{~"mcp-protocol-version" => ~"2026-07-28", ~"mcp-method" => Method,
                           ~"mcp-name" => ~"there"},
              principal => anonymous},
            Catalog, none)]].
