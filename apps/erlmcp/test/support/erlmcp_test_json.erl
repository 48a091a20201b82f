-module(erlmcp_test_json).
-moduledoc """
PropEr generators of JSON, of MCP messages, and of what nearly is one; and the outcome of a message.
""".

-include_lib("proper/include/proper.hrl").

-export([json/0, object/0, text/0, id/0, message/0, mutated/1, near_miss/0, request_context/1,
         session/0]).
-export([catalog/0, lists/0, outcome/1]).

-doc "Generates any JSON value, not deep.".
json() ->
    ?SIZED(Size, json(min(Size, 27))).

json(Size) when Size < 3 ->
    scalar();
json(Size) ->
    frequency([{4, scalar()},
               {1, ?LAZY(resize(4, list(json(Size div 3))))},
               {2, ?LAZY(object(Size div 3))}]).

object() ->
    object(9).

object(Size) ->
    ?LET(Members, resize(4, list({key(), json(Size)})), maps:from_list(Members)).

scalar() ->
    frequency([{1, oneof([null, true, false])}, {2, integer()}, {1, float()}, {2, text()},
               {1, word()}, {1, oneof([1 bsl 64, -(1 bsl 200), 0.1, -0.0])}]).

key() ->
    oneof([word(), text()]).

text() ->
    ?LET(Characters,
         resize(8, list(oneof([range($a, $z), 0, $\n, $\r, $", $\\, $/, 16#7f, 16#e9, 16#2028,
                               16#4e16, 16#1f600]))),
         unicode:characters_to_binary(Characters)).

%% Words that mean something somewhere.
word() ->
    elements([~"jsonrpc", ~"2.0", ~"id", ~"method", ~"params", ~"result", ~"error", ~"_meta",
              ~"name", ~"uri", ~"arguments", ~"cursor", ~"level", ~"requestId", ~"progressToken",
              ~"protocolVersion", ~"capabilities", ~"clientInfo", ~"2025-03-26", ~"2026-07-28",
              ~"io.modelcontextprotocol/protocolVersion", ~"io.modelcontextprotocol/logLevel",
              ~"io.modelcontextprotocol/clientCapabilities", ~"tools/call", ~"ping", ~"debug",
              ~"io.modelcontextprotocol/clientInfo", ~"echo", ~"a://plain", ~"t://x/y", ~"greet"]).

id() ->
    oneof([text(), integer(), 0, 1 bsl 53 + 1, -(1 bsl 300), ~""]).

-doc "Generates a valid message of either era, or a batch.".
message() ->
    frequency([{12, request()}, {2, notification()}, {1, response()}, {2, batch()}]).

batch() ->
    resize(6, list(frequency([{6, request()}, {2, notification()}, {1, response()},
                              {2, near(request())}, {1, json()}]))).

request() ->
    ?LET({Id, Method}, {id(), method()},
         ?LET(Params, params(Method), with_params(Params, #{~"id" => Id, ~"method" => Method}))).

notification() ->
    ?LET({Method, Params},
         oneof([{~"notifications/cancelled", ?LET(Id, id(), #{~"requestId" => Id})},
                {~"notifications/initialized", exactly(#{})},
                {method(), object()}, {text(), object()}]),
         with_params(Params, #{~"method" => Method})).

response() ->
    ?LET({Id, Key, Value}, {id(), oneof([~"result", ~"error"]), object()},
         #{~"jsonrpc" => ~"2.0", ~"id" => Id, Key => Value}).

%% No params is a message too.
with_params(Params, Message) when map_size(Params) =:= 0 ->
    exactly(Message#{~"jsonrpc" => ~"2.0"});
with_params(Params, Message) ->
    exactly(Message#{~"jsonrpc" => ~"2.0", ~"params" => Params}).

method() ->
    frequency([{4, ~"tools/call"}, {2, ~"prompts/get"}, {4, ~"resources/read"},
               {2, ~"initialize"}, {1, ~"ping"}, {1, ~"logging/setLevel"}, {1, ~"tools/list"},
               {1, ~"prompts/list"}, {1, ~"resources/list"}, {1, ~"resources/templates/list"},
               {2, ~"server/discover"}, {4, ~"completion/complete"}, {2, ~"resources/subscribe"},
               {2, ~"resources/unsubscribe"}, {2, ~"subscriptions/listen"}, {1, text()}]).

params(Method) ->
    ?LET({Own, Meta, Input}, {own(Method), meta(), input()},
         exactly(case Meta of
                     none -> Own;
                     _ -> (maps:merge(Own, Input))#{~"_meta" => Meta}
                 end)).

%% What a client brings back that was asked for input.
input() ->
    frequency([{8, exactly(#{})},
               {1, ?LET(Value, oneof([object(), json()]), #{~"inputResponses" => Value})},
               {1, ?LET(State, oneof([text(), json()]), #{~"requestState" => State})}]).

own(~"tools/call") ->
    ?LET({Name, Arguments},
         {oneof([~"echo", ~"echo", ~"there", ~"there", ~"none", text()]),
          oneof([object(), ?LET(Region, json(), exactly(#{~"region" => Region}))])},
         #{~"name" => Name, ~"arguments" => Arguments});
own(~"prompts/get") ->
    ?LET({Name, Arguments},
         {oneof([~"greet", ~"greet", ~"free", text()]),
          oneof([exactly(#{~"who" => ~"me"}), exactly(#{}), object()])},
         #{~"name" => Name, ~"arguments" => Arguments});
own(~"resources/read") ->
    ?LET(Uri, oneof([~"a://plain", ~"t://x/y", ~"t://x/", ~"none://", text()]),
         #{~"uri" => Uri});
own(~"initialize") ->
    ?LET({Version, Capabilities},
         {oneof([~"2024-11-05", ~"2025-03-26", ~"2025-11-25", ~"2026-07-28", text()]), object()},
         #{~"protocolVersion" => Version, ~"capabilities" => Capabilities,
           ~"clientInfo" => #{~"name" => ~"n", ~"version" => ~"v"}});
own(~"completion/complete") ->
    ?LET({{Ref, Name}, Value, Context},
         {oneof([{exactly(#{~"type" => ~"ref/prompt", ~"name" => ~"greet"}),
                  oneof([~"who", ~"who", ~"how", text()])},
                 {exactly(#{~"type" => ~"ref/resource", ~"uri" => ~"t://x/{id}"}), ~"id"},
                 {oneof([exactly(#{~"type" => ~"ref/prompt", ~"name" => ~"none"}),
                         exactly(#{~"type" => ~"ref/resource", ~"uri" => ~"t://x/y"}), object()]),
                  text()}]),
          oneof([~"", ~"m", text()]),
          oneof([exactly(#{}), exactly(#{~"arguments" => #{~"a" => ~"b"}}), object()])},
         #{~"ref" => Ref, ~"argument" => #{~"name" => Name, ~"value" => Value},
           ~"context" => Context});
own(Subscribe) when Subscribe =:= ~"resources/subscribe"; Subscribe =:= ~"resources/unsubscribe" ->
    ?LET(Uri, oneof([~"a://plain", text()]), #{~"uri" => Uri});
own(~"subscriptions/listen") ->
    ?LET({Tools, Prompts, Uris}, {boolean(), oneof([boolean(), json()]), resize(3, list(text()))},
         #{~"notifications" => #{~"toolsListChanged" => Tools, ~"promptsListChanged" => Prompts,
                                 ~"resourceSubscriptions" => Uris}});
own(~"logging/setLevel") ->
    ?LET(Level, oneof([~"debug", ~"emergency", text()]), #{~"level" => Level});
own(_) ->
    oneof([exactly(#{}), exactly(#{}), object()]).

meta() ->
    Modern = modern(~"2026-07-28"),
    frequency([{4, none}, {14, exactly(Modern)}, {1, exactly(modern(~"2025-06-18"))},
               {1, ?LET(Token, id(), Modern#{~"progressToken" => Token})},
               {1, ?LET(Token, id(), #{~"progressToken" => Token})},
               {1, exactly(Modern#{~"io.modelcontextprotocol/logLevel" => ~"error"})},
               {2, near(exactly(Modern))}, {1, object()}]).

modern(Version) ->
    #{~"io.modelcontextprotocol/protocolVersion" => Version,
      ~"io.modelcontextprotocol/clientCapabilities" => #{}}.

-doc "Generates a valid message, one with a few changes, or something else.".
near_miss() ->
    frequency([{6, message()}, {6, near(message())}, {1, json()}]).

near(Type) ->
    ?LET(Json, Type, mutated(Json)).

-doc "Generates a JSON value with some of its parts changed.".
mutated(Json) ->
    ?LET(Times, frequency([{4, 1}, {2, 2}, {1, 3}]), mutated(Times, Json)).

mutated(0, Json) -> exactly(Json);
mutated(Times, Json) -> ?LET(Next, mutation(Json), mutated(Times - 1, Next)).

mutation(Json) when is_map(Json), map_size(Json) > 0 ->
    ?LET({Key, Other, Value}, {elements(maps:keys(Json)), key(), json()},
         frequency([{2, exactly(maps:remove(Key, Json))},
                    {3, exactly(Json#{Key := Value})},
                    {1, exactly((maps:remove(Key, Json))#{Other => maps:get(Key, Json)})},
                    {1, exactly(Json#{Other => Value})},
                    {6, ?LAZY(?LET(Part, mutation(maps:get(Key, Json)),
                                   exactly(Json#{Key := Part})))},
                    {1, exactly([Json])}]));
mutation([_ | _] = Json) ->
    ?LET({Place, Value}, {range(1, length(Json)), json()},
         begin
             {Before, [Item | After]} = lists:split(Place - 1, Json),
             frequency([{1, exactly(Before ++ After)},
                        {1, exactly(Before ++ [Value, Item | After])},
                        {3, ?LAZY(?LET(Part, mutation(Item), exactly(Before ++ [Part | After])))}])
         end);
mutation(_) ->
    json().

-doc """
Generates what a transport says beside a message: nothing, or headers, mostly those that mirror the
message. Headers are bytes from outside, and need not be UTF-8.
""".
request_context(Message) ->
    ?LET(Headers,
         frequency([{5, none}, {4, exactly(mirror(Message))}, {2, near_headers(mirror(Message))}]),
         #{headers => Headers, principal => anonymous}).

near_headers(Headers) ->
    ?LET({Key, Value}, {elements(header_names()), oneof([none, header()])},
         exactly(case Value of
                     none -> maps:remove(Key, Headers);
                     _ -> Headers#{Key => Value}
                 end)).

header_names() ->
    [~"mcp-protocol-version", ~"mcp-method", ~"mcp-name", ~"mcp-param-region"].

header() ->
    oneof([binary(), ~"2026-07-28", ~"2025-06-18", ~"tools/call", ~"echo", ~"=?base64?",
           ~"=?base64?ZWNobw==?=", ~"=?base64?ZWNobw?=", ~"=?base64??=", ~"1e400"]).

mirror(#{~"method" := Method, ~"params" := #{} = Params}) when is_binary(Method) ->
    Mirrored = [{~"mcp-protocol-version",
                 at([~"_meta", ~"io.modelcontextprotocol/protocolVersion"], Params)},
                {~"mcp-name", encoded(at([~"name"], Params))},
                {~"mcp-name", encoded(at([~"uri"], Params))},
                {~"mcp-param-region", encoded(at([~"arguments", ~"region"], Params))}],
    #{Name => Value || {Name, Value} <- [{~"mcp-method", Method} | Mirrored], is_binary(Value)};
mirror(_) ->
    #{~"mcp-protocol-version" => ~"2026-07-28"}.

at([Key | Keys], #{} = Object) when is_map_key(Key, Object) -> at(Keys, maps:get(Key, Object));
at([], Value) -> Value;
at(_, _) -> none.

encoded(Text) when is_binary(Text) -> <<"=?base64?", (base64:encode(Text))/binary, "?=">>;
encoded(_) -> none.

-doc "Generates a session as a connection may have one, or `none`.".
session() ->
    frequency([{1, none},
               {3, ?LET({Revision, Level, Initialized, Info},
                        {elements(['2024-11-05', '2025-03-26', '2025-03-26', '2025-06-18',
                                   '2025-11-25']),
                         range(0, 7), boolean(), oneof([undefined, object()])},
                        #{principal => anonymous, revision => Revision, log_level => Level,
                          initialized => Initialized, client_info => Info,
                          client_capabilities => #{}})}]).

-doc "Returns a catalog with definitions of every kind, some of which have arguments or headers.".
catalog() ->
    Handler = fun(_, _) -> ~"" end,
    {ok, Catalog} = erlmcp_catalog:new(
        #{name => ~"engine", version => ~"1", instructions => ~"Ask."},
        [{tool, #{name => ~"echo", handler => Handler}},
         {tool, #{name => ~"there", handler => Handler,
                  input_schema => #{properties => #{region => #{type => string,
                                                                'x-mcp-header' => ~"Region"}}}}},
         {resource, #{uri => ~"a://plain", name => ~"plain", handler => Handler}},
         {resource_template, #{uri_template => ~"t://x/{id}", name => ~"t", handler => Handler,
                               complete => #{~"id" => Handler}}},
         {prompt, #{name => ~"greet", handler => Handler,
                    complete => #{~"who" => Handler, ~"how" => [~"me", ~"möglich"]},
                    arguments => [#{name => ~"who", required => true}, #{name => ~"how"}]}},
         {prompt, #{name => ~"free", handler => Handler}}],
        lists(), erlmcp_metaschemas:compiled()),
    Catalog.

-doc "Returns the settings of lists, such as the size of a page.".
lists() ->
    #{page_size => 100, list_ttl_ms => 0, keys => [<<0:256>>], numbering => <<0:64>>}.

-doc "Returns the kind of an effect, or the code of the error that it answers.".
outcome({answer, _, _, {reply, _, Bytes}}) ->
    case json:decode(iolist_to_binary(Bytes)) of
        #{~"result" := _} -> result;
        #{~"error" := #{~"code" := Code}} -> Code
    end;
outcome({call, #{kind := Kind}}) -> Kind;
outcome(accepted) -> accepted;
outcome(Effect) -> element(1, Effect).
