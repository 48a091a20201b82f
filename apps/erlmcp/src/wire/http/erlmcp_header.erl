-module(erlmcp_header).
-moduledoc """
Checks the `Mcp-*` headers of a stateless HTTP request against the request's body, which they
mirror. Pure. Headers are maps with lower-case names.

Sources: specification 2026-07-28, "Streamable HTTP / Request Metadata"; the extension
`io.modelcontextprotocol/tasks`, "Routing Headers".

Internal.
""".

-export([read/1, check/3, check_arguments/3, declared/1, decode/1]).
-export([source/1, argument/2]).

-export_type([headers/0, values/0, declaration/0]).

-type headers() :: #{binary() => binary()}.
-doc """
The values of the headers that `read/1` parses. An absent header is `undefined`. `name` is
`{error, Given}` if `decode/1` cannot decode the value `Given` of `Mcp-Name`.
""".
-type values() :: #{
    version := binary() | undefined,
    method := binary() | undefined,
    %% The member of `params` that `Mcp-Name` mirrors, if the method has one.
    source := binary() | none,
    name := {ok, binary()} | {error, Given :: binary()} | undefined
}.
-doc """
An argument that a header mirrors: the header's name, the keys that lead to the argument, and its
type.
""".
-type declaration() :: {Header :: binary(), Path :: [binary(), ...], Type :: binary()}.

%% Greater integers are not exact in every JSON reader.
-define(SAFE_INTEGER, 9007199254740991).

-doc "Parses the headers with the version, the method and the name.".
-spec read(headers()) -> values().
read(Headers) ->
    Method = maps:get(~"mcp-method", Headers, undefined),
    #{version => maps:get(~"mcp-protocol-version", Headers, undefined),
      method => Method,
      source => source(Method),
      name => case Headers of
                  #{~"mcp-name" := Name} -> decoded_name(Name);
                  #{} -> undefined
              end}.

decoded_name(Name) ->
    case decode(Name) of
        {ok, _} = Decoded -> Decoded;
        error -> {error, Name}
    end.

-doc """
Checks that `Mcp-Method` equals the body's method. If the method has a name, URI or task id in
`Params` (`source/1`), `Mcp-Name`, decoded, must equal this member. A member that is absent or not a
string passes, since the method refuses the request later.
""".
-spec check(Method :: binary(), Params :: map(), values()) ->
    ok | {error, erlmcp_refusal:refusal()}.
check(Method, _, #{method := Method, source := none}) ->
    ok;
check(Method, Params, #{method := Method, source := Field, name := Name}) ->
    case Params of
        #{Field := Value} when is_binary(Value) -> check_name(Name, Field, Value);
        %% A body without the field is refused later, by the method, with more details.
        #{} -> ok
    end;
check(Method, _, #{method := Given}) ->
    mismatch([~"Mcp-Method: expected ", erlmcp_value_text:literal(Method),
              ~", as the body's method, got ", shown(Given)]).

-doc "Returns the member of a method's `params` that `Mcp-Name` mirrors, or `none`.".
-spec source(Method :: binary() | undefined) -> binary() | none.
source(~"tools/call") -> ~"name";
source(~"prompts/get") -> ~"name";
source(~"resources/read") -> ~"uri";
source(~"tasks/get") -> ~"taskId";
source(~"tasks/update") -> ~"taskId";
source(~"tasks/cancel") -> ~"taskId";
source(_) -> none.

check_name({ok, Value}, _, Value) ->
    ok;
check_name({ok, Given}, Field, Value) ->
    differs(~"Mcp-Name", Value, [~"the body's params.", Field], erlmcp_value_text:literal(Given));
check_name({error, Given}, _, _) ->
    undecoded(~"Mcp-Name", Given);
check_name(undefined, Field, Value) ->
    differs(~"Mcp-Name", Value, [~"the body's params.", Field], shown(undefined)).

differs(Header, Value, Source, Came) ->
    mismatch([Header, ~": expected ", erlmcp_value_text:literal(Value), ~", as ", Source,
              ~", got ", Came]).

undecoded(Header, Given) ->
    mismatch([Header, ~": expected printable ASCII or =?base64?...?=, got ", shown(Given)]).

shown(undefined) -> ~"no such header";
shown(Given) -> erlmcp_printable:quoted(Given).

-doc """
Checks that the declared `Mcp-Param-*` headers of a tool call, decoded, equal its arguments. An
argument that is there and not null must have its header. An absent or null argument must not have
one. Numbers are compared as numbers. A number beyond 2^53 - 1, of either sign, equals no header.
""".
-spec check_arguments(Arguments :: map(), [declaration()], headers()) ->
    ok | {error, erlmcp_refusal:refusal()}.
check_arguments(_, [], _) ->
    ok;
check_arguments(Arguments, [{Header, Path, _} | Declared], Headers) ->
    case {argument(Path, Arguments), Headers} of
        {absent, #{Header := Given}} ->
            mismatch([Header, ~": expected no such header, as ", argument(Path),
                      ~" is not there, got ", shown(Given)]);
        {absent, _} ->
            check_arguments(Arguments, Declared, Headers);
        {Value, #{Header := Encoded}} ->
            case decode(Encoded) of
                {ok, Text} ->
                    case same(Value, Text) of
                        true ->
                            check_arguments(Arguments, Declared, Headers);
                        false ->
                            differs(Header, Value, argument(Path), erlmcp_value_text:literal(Text))
                    end;
                error ->
                    undecoded(Header, Encoded)
            end;
        {Value, _} ->
            differs(Header, Value, argument(Path), shown(undefined))
    end.

argument(Path) ->
    [~"the argument ", lists:join($., Path)].

-doc """
Returns the argument that the keys of `Path` lead to, or `absent` if there is none or it is `null`.
""".
-spec argument(Path :: [binary(), ...], Arguments :: term()) -> absent | term().
argument([Key | Keys], #{} = Object) ->
    case Object of
        #{Key := null} -> absent;
        #{Key := Value} when Keys =:= [] -> Value;
        #{Key := Inner} -> argument(Keys, Inner);
        #{} -> absent
    end;
argument(_, _) ->
    absent.

%% Integers are compared as numbers: 42 and 42.0 are equal.
same(Value, Text) when is_binary(Value) -> Value =:= Text;
same(true, Text) -> Text =:= ~"true";
same(false, Text) -> Text =:= ~"false";
same(Value, Text) when is_number(Value), byte_size(Text) =< 32 ->
    try json:decode(Text) of
        Number -> is_number(Number) andalso Number == Value andalso abs(Number) =< ?SAFE_INTEGER
    catch
        error:_ -> false
    end;
same(_, _) -> false.

-doc """
Returns the arguments for which a tool's input schema declares a header with `x-mcp-header`. The
name there must be a token, and unique without regard to case. The argument must be a string,
integer or boolean, and `properties` alone must lead to it. Otherwise the error says what was
expected. A declaration has the header's whole name in lower case, with `mcp-param-`.
""".
-spec declared(InputSchema :: map()) -> {ok, [declaration()]} | {error, Expected :: binary()}.
declared(Schema) ->
    Reachable = reachable(Schema, []),
    Names = [Header || {Header, _, _} <- Reachable],
    maybe
        true ?= length(Reachable) =:= annotations(Schema)
            orelse {error, ~"x-mcp-header only where properties alone lead to"},
        true ?= lists:all(fun({_, _, Type}) -> mirrorable(Type) end, Reachable)
            orelse {error, ~"x-mcp-header on a string, integer or boolean"},
        true ?= lists:all(fun is_token/1, Names)
            orelse {error, ~"x-mcp-header to be a header token"},
        Lower = [<<"mcp-param-", (string:lowercase(Name))/binary>> || Name <- Names],
        true ?= length(lists:usort(Lower)) =:= length(Lower)
            orelse {error, ~"each x-mcp-header to be used once"},
        {ok, [{Header, Path, Type} || {Header, {_, Path, Type}} <- lists:zip(Lower, Reachable)]}
    end.

reachable(#{~"properties" := #{} = Properties}, Path) ->
    lists:append([property(Schema, Path ++ [Key])
                  || Key := #{} = Schema <- maps:iterator(Properties, ordered)]);
reachable(_, _) ->
    [].

property(#{~"x-mcp-header" := Header} = Schema, Path) ->
    [{Header, Path, maps:get(~"type", Schema, undefined)} | reachable(Schema, Path)];
property(Schema, Path) ->
    reachable(Schema, Path).

%% Counts all declarations, wherever they are.
annotations(#{} = Schema) ->
    lists:sum([annotations(Key, Value) || Key := Value <- Schema]);
annotations(List) when is_list(List) ->
    lists:sum([annotations(Item) || Item <- List]);
annotations(_) ->
    0.

%% Examples and defaults are data, and may contain the same key. Where the keys of a map are names,
%% as in `properties`, they have no meaning as keywords.
annotations(~"x-mcp-header", Name) when not is_map(Name) ->
    1;
annotations(Key, _) when Key =:= ~"x-mcp-header"; Key =:= ~"default"; Key =:= ~"const";
                         Key =:= ~"enum"; Key =:= ~"examples" ->
    0;
annotations(Key, #{} = Named) when Key =:= ~"properties"; Key =:= ~"patternProperties";
                                   Key =:= ~"$defs"; Key =:= ~"definitions";
                                   Key =:= ~"dependentSchemas"; Key =:= ~"dependencies" ->
    annotations(maps:values(Named));
annotations(_, Value) ->
    annotations(Value).

mirrorable(Type) ->
    Type =:= ~"string" orelse Type =:= ~"integer" orelse Type =:= ~"boolean".

is_token(Name) ->
    is_binary(Name) andalso
        re:run(Name, "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", [{capture, none}, dollar_endonly]) =:= match.

-doc """
Decodes the value of a header: plain text of printable ASCII and tabs, or base64 with its padding
between `=?base64?` and `?=`. The decoded bytes may be any. Returns `error` for any other value.

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
        _ -> plain(Header, Header)
    end;
decode(Header) ->
    plain(Header, Header).

decode_base64(Encoded) ->
    %% base64:decode/1 skips whitespace, so the text is checked first.
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

plain(<<C, Rest/binary>>, Header) when C >= 16#20, C < 16#7f; C =:= $\t -> plain(Rest, Header);
plain(<<>>, Header) -> {ok, Header};
plain(_, _) -> error.

mismatch(Message) ->
    {error, erlmcp_refusal:new(invalid_header, Message, #{code => -32020, status => 400})}.
