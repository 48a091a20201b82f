-module(erlmcp_load_request).
-moduledoc """
Prepares the messages of a load, without their ids, and the expected content of their results. Pure.
""".

-export([new/2, echo/1, mix/1]).
-export([initialize/1, initialized/1, stream/1, goodbye/2, in_session/2]).

-export_type([request/0, era/0]).

-type era() :: stateless | {session, Revision :: binary()}.
-type request() :: {erlmcp_load_wire:message(), erlmcp_load_reply:expectation()}.

-define(CLIENT, #{~"name" => ~"erlmcp-load", ~"version" => ~"0.1.0"}).
-define(META, ~"io.modelcontextprotocol/").
%% The most bytes of JSON in the text of a mix.
-define(SHOWN_BYTES, 100).

-doc "Prepares a request for an era: its message, and the expected content of its result.".
-spec new({Method :: binary(), Params :: map()}, era()) -> request().
new({Method, Params}, stateless) ->
    Version = erlmcp_revision:name(erlmcp_revision:latest(stateless)),
    Meta = #{<<?META/binary, "protocolVersion">> => Version,
             <<?META/binary, "clientInfo">> => ?CLIENT,
             <<?META/binary, "clientCapabilities">> => #{}},
    Whole = Params#{~"_meta" => maps:merge(maps:get(~"_meta", Params, #{}), Meta)},
    Headers = [{~"mcp-protocol-version", Version} | erlmcp_request_header:request(Method, Params)],
    {message(request(Method, Whole), Headers), expected(Method, Params)};
new({Method, Params}, {session, Revision}) ->
    {message(request(Method, Params), version(Revision)), expected(Method, Params)}.

-doc "Returns the default request: the tool `echo` with a text of `PayloadBytes` bytes.".
-spec echo(PayloadBytes :: non_neg_integer()) -> {Method :: binary(), Params :: map()}.
echo(PayloadBytes) ->
    {~"tools/call", #{~"name" => ~"echo",
                      ~"arguments" => #{~"text" => binary:copy(~"x", PayloadBytes)}}}.

-doc """
Returns the requests of a load as text, separated by commas. A request begins with its method, and
with the name or URI that it asks for. Its other parameters follow as JSON, and its weight unless
that is 1. An example is `tools/call add {"a": 1, "b": 2}=9,ping`. JSON of more than 100 bytes is
shown by its hash.
""".
-spec mix([{Weight :: pos_integer(), {Method :: binary(), Params :: map()}}, ...]) -> binary().
mix(Requests) ->
    iolist_to_binary(lists:join($,, [[Method, subject(Method, Params), weight(Weight)]
                                     || {Weight, {Method, Params}} <- Requests])).

subject(Method, Params) ->
    Field = erlmcp_header:source(Method),
    case maps:take(Field, Params) of
        {Name, #{~"arguments" := Of} = Others} when is_binary(Name), map_size(Others) =:= 1 ->
            [$\s, Name, $\s, json(Of)];
        {Name, Others} when is_binary(Name), map_size(Others) =:= 0 -> [$\s, Name];
        {Name, Others} when is_binary(Name) -> [$\s, Name, $\s, json(Others)];
        _ when map_size(Params) =:= 0 -> "";
        _ -> [$\s, json(Params)]
    end.

json(Value) ->
    Json = string:trim(erlmcp_bench_json:lines(Value), trailing),
    case byte_size(Json) =< ?SHOWN_BYTES of
        true -> Json;
        false ->
            [~"sha256:", binary:encode_hex(binary:part(crypto:hash(sha256, Json), 0, 8), lowercase)]
    end.

weight(1) -> "";
weight(Weight) -> [$=, integer_to_binary(Weight)].

%% The expected content of a result. The tools `echo`, `add` and `large` have known results on
%% measured servers. Other tools and MCP's methods must have their characteristic member. A result
%% of another method may be anything.
expected(~"tools/call", #{~"name" := ~"echo", ~"arguments" := #{~"text" := Text}})
  when is_binary(Text) -> {text, Text};
expected(~"tools/call", #{~"name" := ~"add", ~"arguments" := #{~"a" := A, ~"b" := B}})
  when is_number(A), is_number(B) -> {number, A + B};
expected(~"tools/call", #{~"name" := ~"large", ~"arguments" := #{~"bytes" := Bytes}})
  when is_integer(Bytes) -> {bytes, Bytes};
expected(~"tools/call", _) -> {member, ~"content", list};
expected(~"tools/list", _) -> {member, ~"tools", list};
expected(~"prompts/list", _) -> {member, ~"prompts", list};
expected(~"prompts/get", _) -> {member, ~"messages", list};
expected(~"resources/list", _) -> {member, ~"resources", list};
expected(~"resources/templates/list", _) -> {member, ~"resourceTemplates", list};
expected(~"resources/read", _) -> {member, ~"contents", list};
expected(~"completion/complete", _) -> {member, ~"completion", object};
expected(~"server/discover", _) -> {member, ~"supportedVersions", list};
expected(~"initialize", _) -> {member, ~"capabilities", object};
expected(_, _) -> any.

-doc "Returns the request that opens a session of `Revision`.".
-spec initialize(Revision :: binary()) -> request().
initialize(Revision) ->
    Params = #{~"protocolVersion" => Revision, ~"capabilities" => #{}, ~"clientInfo" => ?CLIENT},
    {message(request(~"initialize", Params), []), expected(~"initialize", Params)}.

-doc "Returns the notification that a session of `Revision` is open.".
-spec initialized(Revision :: binary()) -> erlmcp_load_wire:message().
initialized(Revision) ->
    message([~B'{"jsonrpc":"2.0","method":"notifications/initialized"}'], version(Revision)).

-doc """
Returns the HTTP GET that opens a stream of a session of `Revision`. `in_session/2` adds the id of
the session.
""".
-spec stream(Revision :: binary()) -> erlmcp_load_wire:message().
stream(Revision) ->
    #{method => get, pieces => [~""], headers => version(Revision)}.

-doc "Returns the HTTP DELETE that ends the session with the id `Session`.".
-spec goodbye(Revision :: binary(), Session :: binary()) -> erlmcp_load_wire:message().
goodbye(Revision, Session) ->
    in_session(Session, #{method => delete, pieces => [~""], headers => version(Revision)}).

-doc """
Adds the id `Session` of a session to the headers of a message. If `Session` is `none`, the message
stays as it is.
""".
-spec in_session(Session :: binary() | none, erlmcp_load_wire:message()) ->
    erlmcp_load_wire:message().
in_session(none, Message) ->
    Message;
in_session(Session, #{headers := Headers} = Message) ->
    Message#{headers := [{~"mcp-session-id", Session} | Headers]}.

request(Method, Params) ->
    [~B'{"jsonrpc":"2.0","id":',
     iolist_to_binary([~B',"method":', json:encode(Method), ~B',"params":', json:encode(Params),
                       $}])].

message(Pieces, Headers) ->
    #{method => post, pieces => Pieces, headers => Headers}.

version(Revision) ->
    {ok, Parsed} = erlmcp_revision:parse(Revision),
    erlmcp_request_header:version(Parsed).
