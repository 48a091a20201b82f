-module(spec_tools_schemas_SUITE).
-moduledoc """
Specification, "Server features / Tools": what the input and output schemas of a tool mean to its
calls, for each revision, over HTTP and TCP; and "Base protocol / JSON Schema Usage".
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([log/2]).
-export([arguments_are_validated/1, each_error_is_named/1, many_errors_are_cut_short/1,
         absent_arguments_are_empty/1, every_object_fits_a_tool_without_constraints/1,
         formats_are_checked/1, dialects/1, shorthand_is_shown_as_json_schema/1,
         costly_arguments_are_refused/1, arguments_of_a_batch_are_validated/1]).
-export([structured_content_is_what_was_promised/1, broken_promise_is_an_incident/1,
         missing_content_is_an_incident/1, errors_promise_nothing/1,
         nothing_is_promised_to_earlier_revisions/1]).
-export([bad_schema_is_refused_by_name/1, schemas_are_not_fetched/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [open/3, ask/3]).

-define(INVALID, -32602).
-define(REVISIONS, [~"2024-11-05", ~"2025-03-26", ~"2025-06-18", ~"2025-11-25", ~"2026-07-28"]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp}, bad_schema_is_refused_by_name, schemas_are_not_fetched].

groups() ->
    Alone = [bad_schema_is_refused_by_name, schemas_are_not_fetched],
    Cases = erlmcp_test_suite:cases(?MODULE) -- Alone,
    [{http, Cases}, {tcp, Cases}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Transport, Config) -> [{transport, Transport} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(_, Config) ->
    [{server, erlmcp_test_client:start(#{tools => tools(self())})} | Config].

end_per_testcase(_, Config) ->
    _ = logger:remove_handler(?MODULE),
    erlmcp_test_client:stop(server(Config)).

tools(Test) ->
    Tool = fun(Name, Schema) ->
        #{name => Name, input_schema => Schema,
          handler => fun(Arguments, _) ->
              Test ! {called, Arguments},
              ~"called"
          end}
    end,
    Promising = fun(Name, Schema, Return) ->
        #{name => Name, output_schema => Schema, handler => fun(_, _) -> Return end}
    end,
    Sum = #{type => object, properties => #{sum => #{type => integer}}, required => [sum]},
    [Tool(~"weather", #{city => string, days => {optional, {integer, #{minimum => 1}}},
                        'when' => {optional, {string, #{format => date}}},
                        at => {optional, #{x => number, y => number}}}),
     Tool(~"raw", #{type => object, properties => #{a => #{'$ref' => ~"#/$defs/a"}},
                    '$defs' => #{a => #{type => [string, ~"null"]}}}),
     Tool(~"open", #{}), Tool(~"silent", #{type => object, properties => #{a => #{title => ~"A"}},
                                          description => ~"Anything"}),
     (maps:remove(input_schema, Tool(~"none", #{}))),
     Tool(~"costly", #{a => {array, #{items => #{allOf => [#{} || _ <- lists:seq(1, 1000)]}}}}),
     Tool(~"names", #{type => object, additionalProperties => false}),
     Tool(~"2020-12", tuple(#{}, prefixItems, items)),
     Tool(~"2019-09", tuple(#{'$schema' => ~"https://json-schema.org/draft/2019-09/schema"},
                            items, additionalItems)),
     Tool(~"draft-07", tuple(#{'$schema' => ~"http://json-schema.org/draft-07/schema#"},
                             items, additionalItems)),
     Promising(~"sums", Sum, #{sum => 3, parts => [one, two]}),
     Promising(~"shorthand", #{sum => integer}, {structured, #{sum => 3}}),
     Promising(~"sums badly", Sum, #{sum => ~"three"}),
     Promising(~"says", Sum, ~"3"),
     Promising(~"shows", Sum, [~"3"]),
     Promising(~"fails", Sum, {error, ~"no numbers"}),
     Promising(~"list", [integer], {structured, [1, 2]}),
     Promising(~"lists badly", [integer], {structured, [1, ~"2"]}),
     Promising(~"number", number, {structured, 1.5}),
     Promising(~"dates", #{at => {string, #{format => 'date-time'}}}, #{at => ~"yesterday"})].

%% An array of a string and then integers, as each dialect says it.
tuple(Schema, First, Rest) ->
    Schema#{type => object,
            properties => #{a => #{First => [#{type => string}], Rest => #{type => integer}}}}.

client(Revision, Config) ->
    open(server(Config), transport(Config), Revision).

%% What a call of a tool came to, with the text of its first content.
call(Client, Name, Arguments) ->
    outcome(ask(Client, ~"tools/call", #{name => Name, arguments => Arguments})).

outcome(#{~"result" := #{~"isError" := true, ~"content" := [#{~"text" := Text}]}}) ->
    {tool_error, Text};
outcome(#{~"result" := #{~"content" := [#{~"text" := Text}]} = Result}) ->
    false = is_map_key(~"isError", Result),
    {result, Text};
outcome(#{~"error" := #{~"code" := Code, ~"message" := Message, ~"data" := Data}}) ->
    {error, Code, Message, Data}.

called() ->
    receive {called, Arguments} -> Arguments after 0 -> no end.

%% "Servers MUST: Validate all tool inputs".
%%
%% "Tool Execution Errors: Reported in tool results with isError: true: [...] Input validation
%% errors (e.g., date in wrong format, value out of range)" since 2025-11-25; "Invalid arguments"
%% among the protocol errors before.
arguments_are_validated(Config) ->
    [begin
         Client = client(Revision, Config),
         {result, ~"called"} = call(Client, ~"weather", #{city => ~"Oslo", days => 3}),
         #{~"city" := ~"Oslo", ~"days" := 3} = called(),
         [begin
              Outcome = call(Client, Name, Arguments),
              {Revision, Arguments, Way} = {Revision, Arguments, element(1, Outcome)},
              no = called()
          end || {Name, Arguments} <- [{~"weather", #{}}, {~"weather", #{city => 1}},
                                       {~"weather", #{city => ~"Oslo", days => 0}},
                                       {~"weather", #{city => ~"Oslo", days => 1.5}},
                                       {~"weather", #{city => ~"Oslo", more => 1}},
                                       {~"raw", #{a => 1}}, {~"names", #{a => null}}]],
         {result, ~"called"} = call(Client, ~"raw", #{a => null}),
         #{~"a" := null} = called(),
         200 = get(status),
         erlmcp_test_client:close(Client)
     end || Revision <- ?REVISIONS,
            Way <- [case Revision >= ~"2025-11-25" of true -> tool_error; false -> error end]].

%% SEP-1303: "Language models can learn from tool input validation error messages".
each_error_is_named(Config) ->
    Wrong = #{days => ~"many", at => #{x => true}},
    Sentences = [~"/at/x must be a number, not true.",
                 ~"/days must be an integer, not the string \"many\".",
                 ~"/at must have the property \"y\", but has \"x\".",
                 ~"The value must have the property \"city\", but has \"at\" and \"days\"."],
    [begin
         {tool_error, Text} = call(client(Revision, Config), ~"weather", Wrong),
         [First | Lines] = binary:split(Text, ~"\n", [global]),
         ~"The arguments do not fit the tool's input schema." = First,
         [] = Sentences -- Lines,
         [] = Lines -- Sentences
     end || Revision <- [~"2025-11-25", ~"2026-07-28"]],
    [begin
         {error, ?INVALID, <<"arguments: ", First/binary>>,
          #{~"errors" := Errors, ~"refusal" := 1021, ~"name" := ~"invalid_params"}} =
             call(client(Revision, Config), ~"weather", Wrong),
         true = lists:member(First, Sentences),
         [] = [{~"/at/x", lists:nth(1, Sentences)}, {~"/days", lists:nth(2, Sentences)},
               {~"/at", lists:nth(3, Sentences)}, {~"", lists:nth(4, Sentences)}]
             -- [{Path, Message} || #{~"instancePath" := Path, ~"message" := Message} <- Errors]
     end || Revision <- [~"2024-11-05", ~"2025-03-26", ~"2025-06-18"]].

many_errors_are_cut_short(Config) ->
    Wrong = #{integer_to_binary(N) => N || N <- lists:seq(1, 1000)},
    {tool_error, Text} = call(client(~"2026-07-28", Config), ~"names", Wrong),
    11 = length(binary:split(Text, ~"\n", [global])).

%% `arguments` is optional in CallToolRequest.
absent_arguments_are_empty(Config) ->
    [begin
         Client = client(Revision, Config),
         {tool_error, _} = outcome(ask(Client, ~"tools/call", #{name => ~"weather"})),
         no = called(),
         {result, ~"called"} = outcome(ask(Client, ~"tools/call", #{name => ~"names"})),
         0 = map_size(called())
     end || Revision <- [~"2025-11-25", ~"2026-07-28"]].

%% "For tools with no parameters [...] { "type": "object" } - accepts any object".
every_object_fits_a_tool_without_constraints(Config) ->
    Client = client(~"2026-07-28", Config),
    [begin
         {result, ~"called"} = call(Client, Name, Arguments),
         Arguments = called()
     end || Name <- [~"none", ~"open", ~"silent"],
            Arguments <- [#{}, #{~"a" => #{~"b" => [null]}}, #{~"" => 1}]],
    %% That there is nothing to pay for it is seen where the tool is compiled.
    {ok, _, Instance} = erlmcp_registry:whereis(maps:get(pid, server(Config))),
    Catalog = erlmcp_published_catalog:catalog(Instance),
    [begin
         {ok, Tool} = erlmcp_catalog:tool(Name, anonymous, Catalog),
         Validated = is_map_key(input_validator, Tool)
     end || {Name, Validated} <- [{~"none", false}, {~"open", false}, {~"silent", false},
                                  {~"names", true}, {~"raw", true}]].

%% "date in wrong format".
formats_are_checked(Config) ->
    Client = client(~"2026-07-28", Config),
    {result, _} = call(Client, ~"weather", #{city => ~"Oslo", 'when' => ~"2024-02-29"}),
    {tool_error, Text} = call(Client, ~"weather", #{city => ~"Oslo", 'when' => ~"2023-02-29"}),
    {_, _} = binary:match(Text, ~"/when must have the format date").

%% "When a schema does not include a $schema field, it defaults to JSON Schema 2020-12"; "Schemas
%% MAY include a $schema field to specify a different dialect".
dialects(Config) ->
    Client = client(~"2026-07-28", Config),
    [begin
         {result, _} = call(Client, Dialect, #{a => [~"one", 2, 3]}),
         {tool_error, One} = call(Client, Dialect, #{a => [1, 2]}),
         {_, _} = binary:match(One, ~"/a/0 must be a string"),
         {tool_error, Two} = call(Client, Dialect, #{a => [~"one", 2, ~"three"]}),
         {_, _} = binary:match(Two, ~"/a/2 must be an integer")
     end || Dialect <- [~"2020-12", ~"2019-09", ~"draft-07"]].

shorthand_is_shown_as_json_schema(Config) ->
    #{~"result" := #{~"tools" := Tools}} = ask(client(~"2026-07-28", Config), ~"tools/list", #{}),
    #{~"weather" := #{~"inputSchema" := Input}, ~"list" := #{~"outputSchema" := Output},
      ~"open" := #{~"inputSchema" := Open}} = #{Name => Tool || #{~"name" := Name} = Tool <- Tools},
    #{~"type" := ~"object", ~"required" := [~"city"], ~"additionalProperties" := false,
      ~"properties" := #{~"city" := #{~"type" := ~"string"},
                         ~"days" := #{~"type" := ~"integer", ~"minimum" := 1},
                         ~"at" := #{~"type" := ~"object", ~"required" := [~"x", ~"y"]}}} = Input,
    Output = #{~"type" => ~"array", ~"items" => #{~"type" => ~"integer"}},
    %% smolagents' adapter, for one, looks for the properties of every tool.
    Open = #{~"type" => ~"object", ~"properties" => #{}}.

%% "Implementations SHOULD apply reasonable bounds, such as [...] a per-validation time budget".
costly_arguments_are_refused(Config) ->
    Client = client(~"2026-07-28", Config),
    {result, _} = call(Client, ~"costly", #{a => lists:seq(1, 1000)}),
    {tool_error, Text} = call(Client, ~"costly", #{a => lists:seq(1, 2000)}),
    {_, _} = binary:match(Text, ~"takes too long to check").

arguments_of_a_batch_are_validated(Config) ->
    Client = client(~"2025-03-26", Config),
    Batch = [#{jsonrpc => ~"2.0", id => Id, method => ~"tools/call",
               params => #{name => ~"weather", arguments => Arguments}}
             || {Id, Arguments} <- [{1, #{city => ~"Oslo"}}, {2, #{city => 1}}]],
    Answers = answers(Client, Batch),
    {2, {1, {result, ~"called"}}} = {length(Answers), lists:keyfind(1, 1, Answers)},
    {2, {error, ?INVALID, _, _}} = lists:keyfind(2, 1, Answers).

answers(#{transport := tcp, socket := Socket}, Batch) ->
    erlmcp_test_line:send(Socket, Batch),
    [{Id, outcome(Answer)} || #{~"id" := Id} = Answer <- erlmcp_test_line:recv(Socket)];
answers(#{server := Server, session := Session}, Batch) ->
    {Headers, _} = erlmcp_test_http:message(~"", #{}, #{session => Session}),
    #{messages := [Answers]} = erlmcp_test_http:post(Server, Headers, json:encode(Batch)),
    [{Id, outcome(Answer)} || #{~"id" := Id} = Answer <- Answers].

%% "Servers MUST provide structured results that conform to this schema."
structured_content_is_what_was_promised(Config) ->
    [begin
         Client = client(Revision, Config),
         [begin
              #{~"result" := #{~"structuredContent" := #{~"sum" := 3}} = Result} =
                  ask(Client, ~"tools/call", #{name => Name}),
              false = is_map_key(~"isError", Result)
          end || Name <- [~"sums", ~"shorthand"]]
     end || Revision <- [~"2025-06-18", ~"2025-11-25", ~"2026-07-28"]],
    %% "This can be any JSON value", since 2026-07-28.
    Client = client(~"2026-07-28", Config),
    #{~"result" := #{~"structuredContent" := [1, 2]}} =
        ask(Client, ~"tools/call", #{name => ~"list"}),
    #{~"result" := #{~"structuredContent" := 1.5}} =
        ask(Client, ~"tools/call", #{name => ~"number"}).

%% It is the server's fault: "Server errors" are protocol errors.
broken_promise_is_an_incident(Config) ->
    [incident(Revision, Name, Sentence, Config)
     || {Revisions, Name, Sentence} <-
            [{[~"2025-06-18", ~"2025-11-25", ~"2026-07-28"], ~"sums badly",
              ~"/sum must be an integer, not the string \"three\"."},
             {[~"2025-06-18", ~"2026-07-28"], ~"dates",
              ~"/at must have the format date-time, not be the string \"yesterday\"."},
             {[~"2026-07-28"], ~"lists badly", ~"/1 must be an integer, not the string \"2\"."}],
        Revision <- Revisions].

missing_content_is_an_incident(Config) ->
    [incident(Revision, Name, ~"There is no structured content.", Config)
     || Name <- [~"says", ~"shows"], Revision <- [~"2025-06-18", ~"2025-11-25", ~"2026-07-28"]].

%% The peer gets an id; the log has what was wrong under it.
incident(Revision, Name, Sentence, Config) ->
    Client = client(Revision, Config),
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => #{test => self()}}),
    {error, -32603, ~"internal error", #{~"incident" := Incident, ~"refusal" := 1079} = Data} =
        call(Client, Name, #{}),
    3 = map_size(Data),
    receive
        {logged, #{incident := Incident, target := Name,
                   reason := {bad_return, structured_content, Errors}}} ->
            [Sentence] = Errors
    after 30_000 ->
        error(not_logged)
    end,
    ok = logger:remove_handler(?MODULE),
    erlmcp_test_client:close(Client).

%% As a handler of logger's.
log(#{msg := {report, Report}}, #{config := #{test := Test}}) ->
    Test ! {logged, Report};
log(_, _) ->
    ok.

errors_promise_nothing(Config) ->
    [{tool_error, ~"no numbers"} = call(client(Revision, Config), ~"fails", #{})
     || Revision <- ?REVISIONS].

%% 2024-11-05 and 2025-03-26 have no output schema, and until 2026-07-28 it is of type object: what
%% these clients are not shown is not owed to them.
nothing_is_promised_to_earlier_revisions(Config) ->
    [begin
         {result, Text} = call(client(Revision, Config), Name, #{})
     end || {Revisions, Name, Text} <-
                [{[~"2024-11-05", ~"2025-03-26"], ~"says", ~"3"},
                 {[~"2024-11-05", ~"2025-03-26"], ~"sums badly", ~'{"sum":"three"}'},
                 {?REVISIONS -- [~"2026-07-28"], ~"lists badly", ~'[1,"2"]'}],
            Revision <- Revisions].

%% "Schemas MUST be valid according to their declared or default dialect"; "They MUST handle
%% unsupported dialects gracefully by returning an appropriate error indicating the dialect is not
%% supported". A bad one takes no other definition with it.
bad_schema_is_refused_by_name(Config) ->
    #{pid := Pid} = Server = server(Config),
    Client = open(Server, tcp, ~"2026-07-28"),
    List = listed(Client),
    [begin
         Tool = #{name => ~"bad", Field => Schema, handler => fun(_, _) -> ~"" end},
         {error, {bad_definition, tool, ~"bad", Field, Text}} = erlmcp:add(Pid, tool, Tool),
         {Text, {_, _}} = {Text, binary:match(Text, Word)},
         {error, {bad_definition, tool, ~"bad", Field, Text}} =
             erlmcp:start_server(#{name => ~"n", version => ~"1",
                                   tools => tools(self()) ++ [Tool]})
     end || Field <- [input_schema, output_schema],
            {Schema, Word} <-
                [{#{type => object, properties => #{a => #{type => int}}}, ~"/properties/a/type"},
                 {#{type => object, '$ref' => ~"#/$defs/none"}, ~"#/$defs/none"},
                 {#{type => object, '$ref' => ~"#/$defs/100%_of"}, ~"#/$defs/100%_of"},
                 {#{type => object, '$schema' => ~"http://json-schema.org/draft-04/schema#"},
                  ~"draft-04"},
                 {#{type => object, patternProperties => #{~"(" => #{}}}, ~"regular expression"},
                 {deep(100), ~"deeper than 64 levels"},
                 {#{type => object, '$ref' => ~"#"}, ~"without end"},
                 {#{a => {b, c}}, ~"/a is neither a shorthand nor JSON: {b,c}."}]],
    List = listed(Client),
    erlmcp_test_client:close(Client).

listed(Client) ->
    #{~"result" := #{~"tools" := Tools}} = ask(Client, ~"tools/list", #{}),
    [Name || #{~"name" := Name} <- Tools].

deep(0) -> #{type => object};
deep(N) -> #{type => object, properties => #{a => deep(N - 1)}}.

%% "Implementations MUST NOT automatically dereference $ref values that resolve to a network URI";
%% "Schemas that fail to validate due to an unresolved external $ref SHOULD be rejected".
schemas_are_not_fetched(Config) ->
    #{pid := Pid} = server(Config),
    {ok, Listening} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {active, false}]),
    {ok, Port} = inet:port(Listening),
    Uri = <<"http://127.0.0.1:", (integer_to_binary(Port))/binary, "/schema.json">>,
    {error, {bad_definition, tool, ~"canary", input_schema, Text}} =
        erlmcp:add(Pid, tool, #{name => ~"canary", handler => fun(_, _) -> ~"" end,
                                input_schema => #{type => object,
                                                  properties => #{a => #{'$ref' => Uri}}}}),
    {_, _} = binary:match(Text, Uri),
    {error, timeout} = gen_tcp:accept(Listening, 0),
    ok = gen_tcp:close(Listening).
