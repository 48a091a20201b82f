-module(server_options_SUITE).
-moduledoc """
What `m:erlmcp` takes to start a server, and what it refuses, by name: options, limits, definitions;
and servers that are modules.
""".

-behaviour(erlmcp_server).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([server/0, tools/0, resources/0, resource_templates/0, prompts/0,
         call_tool/3, read_resource/3, get_prompt/3]).
%% As of a cluster.
-export([init/2]).
-export([bad_options_are_refused_by_name/1, bad_listener_options_say_what_is_expected/1,
         bad_limits_are_refused_by_name/1, every_limit_can_be_set/1,
         calls_have_room_for_their_first_heap/1, times_have_a_bound/1,
         bad_definitions_are_refused_by_name/1, duplicates_are_refused/1,
         handler_modules_are_servers/1, options_win_over_the_handlers/1,
         modules_without_a_callback_are_refused/1, modules_without_options_are_refused/1,
         lists_of_handlers_are_checked/1]).

-import(erlmcp_test_line, [connect/1, ask/4, initialize/2, result/1, echo_tool/0]).
-import(erlmcp_test_servers, [start/1, options/1, started/1, kinds/0, definition/2, key/1, with/2,
                              listed/2]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [bad_options_are_refused_by_name, bad_listener_options_say_what_is_expected,
     bad_limits_are_refused_by_name, every_limit_can_be_set,
     calls_have_room_for_their_first_heap, times_have_a_bound, bad_definitions_are_refused_by_name,
     duplicates_are_refused, handler_modules_are_servers, options_win_over_the_handlers,
     modules_without_a_callback_are_refused, modules_without_options_are_refused,
     lists_of_handlers_are_checked].

init_per_suite(Config) ->
    erlmcp_test_servers:init_suite(Config).

end_per_suite(Config) ->
    erlmcp_test_servers:end_suite(Config).

init_per_testcase(_, Config) ->
    erlmcp_test_servers:init_case(Config).

end_per_testcase(_, _) ->
    erlmcp_test_servers:stop_all().

%% `{bad_option, Key, Expected}`: "an option is unknown, missing or of the wrong type".
bad_options_are_refused_by_name(_) ->
    [{Options, {error, {bad_option, Key, _}}} = {Options, started(Options)}
     || {Options, Key} <- [{[], options}, {not_a_map, options}, {#{version => ~"1"}, name},
                           {#{name => ~"n"}, version}]],
    %% The nodes of a cluster find each other's servers by their id.
    {error, {bad_option, id, <<_, _/binary>>}} =
        started(options(#{cluster => ?MODULE})),
    [] = [{Key, Value, Got} || {Key, Value} <- bad_options(),
                               Got <- [started(options(#{Key => Value}))],
                               not is_refused(Key, Got)].

%% One that is there but wrong is told from one that is not.
bad_listener_options_say_what_is_expected(_) ->
    Url = ~"https://a.example",
    NotUtf8 = <<Url/binary, "/", 255>>,
    Verify = {verify, fun(_, _) -> unknown end},
    Jwt = {jwt, #{issuer => Url, jwks => {uri, <<Url/binary, "/jwks">>}}},
    [{Listener, {error, {bad_option, Key, Expected}}} =
         {Listener, started(options(#{listen => [Listener]}))}
     || {Listener, Key, Expected} <- [
            {{tcp, #{port => 65536}}, {tcp, port}, ~"an integer of 0 to 65535"},
            {{tcp, #{porrt => 1}}, {tcp, porrt}, ~"no such option of this listener"},
            {{http, #{allowed_hosts => [~"a" | ~"b"]}}, {http, allowed_hosts},
             ~"any, or a list of binaries, UTF-8"},
            {{http, #{allowed_origins => [~"a" | ~"b"]}}, {http, allowed_origins},
             ~"any, or a list of binaries, UTF-8"},
            {{http, #{allowed_hosts => [<<255>>]}}, {http, allowed_hosts},
             ~"any, or a list of binaries, UTF-8"},
            {{http, #{protected_resource => #{resource_name => <<255>>}}},
             {http, protected_resource, resource_name}, ~"a binary, UTF-8"},
            {{http, #{tls => [{certs_keys, [#{} | x]}]}}, {http, tls, certs_keys},
             ~"a list of maps"},
            {{http, #{protected_resource => #{authorization_servers => [Url | Url]}}},
             {http, protected_resource, authorization_servers}, ~"a list of URLs"},
            {{http, #{protected_resource => #{authorization_servers => [NotUtf8]}}},
             {http, protected_resource, authorization_servers}, ~"a list of URLs"},
            {{http, #{protected_resource => #{resource => NotUtf8}}},
             {http, protected_resource, resource}, ~"a URL without a fragment"},
            {{http, #{protected_resource => #{resource_tos_uri => NotUtf8}}},
             {http, protected_resource, resource_tos_uri}, ~"a URL"},
            {{http, #{path => ~"mcp"}}, {http, path},
             ~"a path: a slash, and no query; or none"},
            {{http, #{path => ~"/mcp?x"}}, {http, path},
             ~"a path: a slash, and no query; or none"},
            {{http, #{path => <<"/é"/utf8>>, authenticate => {bearer, #{tokens => [Verify, Jwt]}}}},
             {http, path}, ~"a path as it stands in a URL, or the option resource"},
            {{http, #{path => <<"/é"/utf8>>,
                      authenticate => {bearer, #{tokens => [Verify], dpop => optional}}}},
             {http, path}, ~"a path as it stands in a URL, or the option resource"},
            {{http, #{path => <<"/é"/utf8>>,
                      authenticate => {bearer, #{tokens => [Verify],
                                                 authorization_servers => [Url]}}}},
             {http, path}, ~"a path as it stands in a URL, or the option resource"},
            {{http, #{path => ~"/{id}", protected_resource => #{authorization_servers => [Url]}}},
             {http, path}, ~"a path as it stands in a URL, or the option resource"},
            {{http, #{path => none}}, {http, pages}, ~"one page at least, since path is none"},
            {{http, #{pages => #{~"/a/" => {?MODULE, 1}}}}, {http, pages, ~"/a/"},
             ~"a path: a slash first and none last, and no query"},
            {{http, #{pages => #{~"/a" => {?MODULE, 1}}}}, {http, pages, ~"/a"},
             ~"a module with -behaviour(erlmcp_page)"},
            {{http, #{pages => #{~"/a" => {pages_SUITE, 1, #{autenticate => true}}}}},
             {http, pages, ~"/a"}, ~"authenticate, true or false, and no other option"},
            {{http, #{pages => #{~"/mcp" => {pages_SUITE, 1}}}}, {http, pages, ~"/mcp"},
             ~"paths that differ, and from path"},
            {{http, #{path => ~"/health/live", health => true}}, {http, pages, ~"/health/live"},
             ~"paths that differ, and from path"},
            {{http, #{pages => #{~"/health/ready" => {pages_SUITE, 1}}, health => true}},
             {http, pages, ~"/health/ready"}, ~"paths that differ, and from path"},
            {{http, #{sse => #{path => ~"/health/ready"}, health => true}},
             {http, pages, ~"/health/ready"}, ~"paths that differ, and from path"},
            {{http, #{sse => #{path => ~"/a?b"}}}, {http, sse, path},
             ~"a path: a slash, and no query"}]],
    %% Where no URL has the path, it may have other bytes.
    [started = started(options(#{listen => [{http, Options#{path => <<"/é"/utf8>>}}]}))
     || Options <- [#{}, #{protected_resource => #{resource => Url,
                                                   authorization_servers => [Url]}},
                    #{authenticate => {bearer, #{tokens => [Verify, {static, []}]}}},
                    #{authenticate => {bearer, #{tokens => [Verify, Jwt], resource => Url}}}]].

%% The key is the option's; for a listener or a limit, its and the option's in it.
is_refused(Key, {error, {bad_option, Named, <<_, _/binary>>}}) ->
    Named =:= Key orelse Key =:= listen andalso is_tuple(Named);
is_refused(_, _) ->
    false.

bad_options() ->
    Unclosed = [echo_tool() | echo_tool()],
    [{Key, Value}
     || {Key, Values} <- [
            {nam, [~"n"]}, {~"name", [~"n"]}, {tool, [[]]}, {limit, [#{}]},
            {name, [n, "n", 1, undefined, <<255>>]}, {version, [1.0, "1", <<255>>]},
            {title, [t, <<255>>]}, {description, ["d", <<255>>]}, {website_url, ["u", <<255>>]},
            {instructions, [i, <<255>>]},
            {icons, [#{}, ~"i", [~"i"], [#{src => self()}], [#{src => <<255>>}]]},
            {tools, [#{}, none, Unclosed]}, {resources, [#{}]}, {resource_templates, [x]},
            {prompts, [~"p"]},
            {handler, [~"lists", 1, no_such_module, lists, fun() -> ok end]},
            {limits, [[], none, [{depth, 1}]]},
            {middleware, [#{}, fun(_, _, _) -> ok end, [fun(_, _) -> ok end], [?MODULE]]},
            {mounts, [#{}, ?MODULE, [?MODULE], [{a, ?MODULE}], [{~"", ?MODULE}],
                      [{~"A", ?MODULE}], [{~"a.b", ?MODULE}], [{~"_a", ?MODULE}],
                      [{binary:copy(~"a", 65), ?MODULE}], [{~"a", ?MODULE} | x]]},
            {task_store, [erlmcp_task_store_ets, {erlmcp_task_store_ets, []}, {lists, #{}},
                          {no_such_module, #{}}]},
            {cluster, [no_such_module, lists, {?MODULE, #{}}]},
            {listen, [none, #{}, [tcp], [{tcp}], [{tcp, []}], [{bogus, #{}}],
                      [{bogus, #{port => 0}}], [{tcp, #{port => -1}}], [{tcp, #{port => 65536}}],
                      [{tcp, #{port => ~"0"}}],
                      [{tcp, #{ip => ~"127.0.0.1"}}], [{tcp, #{ip => {1, 2}}}],
                      [{tcp, #{path => ~"/"}}], [{tcp, #{bogus => 1}}], [{stdio, #{port => 0}}],
                      [{http, #{path => ~"mcp"}}], [{http, #{path => "/mcp"}}],
                      [{http, #{path => ~"/mcp#a"}}], [{http, #{path => ~"/m cp"}}],
                      [{http, #{path => ~"/mcp\n"}}], [{http, #{path => ~"/mcp?a"}}],
                      [{http, #{pages => [~"/a"]}}], [{http, #{pages => #{"/a" => {lists, 1}}}}],
                      [{http, #{pages => #{~"/a?b" => {pages_SUITE, 1}}}}],
                      [{http, #{pages => #{~"a" => {pages_SUITE, 1}}}}],
                      [{http, #{pages => #{~"/a" => pages_SUITE}}}],
                      [{tcp, #{pages => #{~"/a" => {pages_SUITE, 1}}}}],
                      [{http, #{tls => #{}}}], [{http, #{allowed_hosts => [localhost]}}],
                      [{http, #{allowed_origins => ~"any"}}], [{tcp, #{}} | tcp]]}],
        Value <- Values].

%% Each limit is a positive integer, but for the lengths of queues, and nothing else is a limit.
bad_limits_are_refused_by_name(_) ->
    [{Name, Value, {error, {bad_option, {limits, Name}, <<_, _/binary>>}}} =
         {Name, Value, started(options(#{limits => #{Name => Value}}))}
     || {Name, Default, _} <- [{no_such_limit, 1, ~""} | erlmcp_server_options:limits()],
        Value <- [0, -1, 1.5, ~"1", infinity, undefined, #{}],
        Value =/= Default, not (Value =:= 0 andalso lists:member(Name, may_be_none()))].

may_be_none() -> [queue, queue_per_connection].

%% Each of them, with its default from one place, and described there.
every_limit_can_be_set(_) ->
    [begin
         true = byte_size(What) > 10,
         true = Default =:= infinity orelse is_integer(Default) andalso Default > 0,
         started = started(options(#{limits => #{Name => Value}}))
     end || {Name, Default, What} <- erlmcp_server_options:limits(),
            Value <- [least(Name), Default] ++ [Default * 2 || Default =/= infinity]].

least(call_heap_bytes) -> erlmcp_heap:least_of_call();
least(_) -> 1.

%% With a smaller bound no process of a call could start, and with 0 words there would be no bound.
calls_have_room_for_their_first_heap(_) ->
    Least = erlmcp_heap:least_of_call(),
    Expected = <<"an integer, ", (integer_to_binary(Least))/binary, " or more">>,
    [{error, {bad_option, {limits, call_heap_bytes}, Expected}}
         = started(options(#{limits => #{call_heap_bytes => Bytes}}))
     || Bytes <- [1, 4000, Least - 1]],
    Server = start(#{limits => #{call_heap_bytes => Least}, tools => [echo_tool()]}),
    Params = #{~"name" => ~"echo", ~"arguments" => #{~"text" => ~"a"}},
    %% With this bound most calls are killed, and each is answered.
    #{~"id" := 1} = erlmcp_test_line:ask_stateless(connect(Server), 1, ~"tools/call", Params).

%% The runtime waits for no longer time in `receive`.
times_have_a_bound(_) ->
    [{Name, {error, {bad_option, {limits, Name}, ~"an integer of 1 to 4294967295"}}} =
         {Name, started(options(#{limits => #{Name => Value}}))}
     || {Name, _, _} <- erlmcp_server_options:limits(), is_time(Name),
        Value <- [0, 4_294_967_296, 5_000_000_000]],
    Times = #{Name => 4_294_967_295 || {Name, _, _} <- erlmcp_server_options:limits(),
                                       is_time(Name)},
    started = started(options(#{limits => Times})).

is_time(Name) -> lists:suffix("_ms", atom_to_list(Name)).

%% `{bad_definition, Kind, Name, Field, Expected}`, for every field of every kind, at the start and
%% at run time.
bad_definitions_are_refused_by_name(_) ->
    Server = start(#{}),
    Socket = connect(Server),
    _ = initialize(Socket, ~"2025-11-25"),
    [begin
         %% A definition is called by its key, where it has one.
         Refused = {error, {bad_definition, Kind, maps:get(Key, Definition, undefined), Field}},
         {Definition, Refused} = {Definition, fault(started(with(Kind, Definition)))},
         {Definition, Refused} = {Definition, fault(erlmcp:add(Server, Kind, Definition))}
     end || Kind <- kinds(), Key <- [key(Kind)], {Field, Definition} <- bad_definitions(Kind)],
    [{error, {bad_definition, Kind, undefined, definition}} =
         fault(started(with(Kind, NoMap)))
     || Kind <- kinds(), NoMap <- [none, [], [{name, ~"n"}], {tool}]],
    [~"echo"] = listed(tool, Socket),
    [[] = listed(Kind, Socket) || Kind <- kinds() -- [tool]].

fault({error, {bad_definition, Kind, Key, Field, <<_, _/binary>>}}) ->
    {error, {bad_definition, Kind, Key, Field}};
fault(Other) ->
    Other.

bad_definitions(Kind) ->
    Fields = erlmcp_definition:fields(Kind),
    Good = definition(Kind, ~"good"),
    [{Field, maps:remove(Field, Good)} || {Field, _, _, required} <- Fields]
        ++ [{Field, Good#{Field => Wrong}} || {Field, _, Type, _} <- Fields, Wrong <- wrong(Type)]
        ++ [{Field, Good#{Field => ~"x"}} || Field <- [nam, inputSchema, ~"name", 1]]
        %% "PromptArgument": `name` is required.
        ++ [{arguments, Good#{arguments => [#{name => ~"a"}, Argument]}}
            || Kind =:= prompt, Argument <- [#{}, #{title => ~"b"}, #{name => 1}, #{name => ~""},
                                             #{name => ~"b", required => ~"yes"}]]
        ++ [{complete, Given#{complete => #{a => [], Misspelt => []}}}
            || Given <- with_names(Kind, Good), Misspelt <- [~"aa", 'A']]
        %% A resource has no variables, and MCP no annotations of prompts.
        ++ [{complete, Good#{complete => #{~"a" => []}}} || Kind =:= resource]
        ++ [{annotations, Good#{annotations => #{}}} || Kind =:= prompt]
        ++ [{input_schema, Good#{input_schema => Schema}}
            || Kind =:= tool, Schema <- [#{type => string}, #{~"type" => ~"array"},
                                         #{type => [object]}]]
        ++ [{Field, Good#{Field => Value}}
            || Kind =:= tool, {Field, Value} <- [{task_starts, on_return}, {task_timeout_ms, 1},
                                                 {timeout_ms, 4_294_967_296}, {repeatable, true}]]
        %% The fun that goes on is no part of a task's record.
        ++ [{repeatable, Good#{task => required, task_starts => on_return, repeatable => true}}
            || Kind =:= tool]
        %% What waits for others is not quick.
        ++ [{quick, Good#{quick => true, breaker => #{}}}]
        %% What only some may see is in no shared cache.
        ++ [{cache_scope, Good#{visible => fun(_) -> true end, cache_scope => public}}
            || {cache_scope, _, _, _} <- Fields].

%% With one of which the name is `a`; without any, none is right.
with_names(prompt, Good) -> [Good#{arguments => [#{name => ~"a"}]}, Good];
with_names(resource_template, Good) -> [Good#{uri_template => ~"t://x/{a}"}];
with_names(_, _) -> [].

wrong(name) -> [~"" | wrong(text)];
wrong(text) -> [text, "text", 1, undefined, <<255>>];
wrong(object) -> [[], ~"{}", [{a, 1}], undefined, #{a => self()}, #{a => <<255>>}, #{a => {b}}];
wrong(schema) ->
    [[], ~"{}", [{a, 1}], undefined, [string | string], #{a => self()}, #{a => {const, <<255>>}},
     #{a => {b}}, #{type => object, properties => []}, #{properties => #{a => #{type => int}}},
     #{type => object, '$ref' => ~"#/$defs/a"}, #{a => {string, #{pattern => ~"("}}}];
wrong(objects) -> [#{}, undefined, [1], [[]], [#{} | #{}], [#{a => self()}]];
wrong(uri_template) -> [template, "a://b", ~"a://{b", ~"a://b}", ~"a://{b c}", <<255>>];
wrong(handler) -> [fun() -> ok end, fun(_) -> ok end, handler, {?MODULE, call_tool}, undefined];
wrong(completions) -> [[], undefined, #{1 => []}, #{~"a" => ~"text"}, #{~"a" => [a]},
                       #{~"a" => [~"b" | ~"c"]}, #{~"a" => [<<255>>]}, #{~"a" => fun(_) -> [] end},
                       #{~"no such" => []}];
wrong(milliseconds) -> [-1, 1.5, infinity, ~"1", undefined];
wrong(wait) -> [4_294_967_296 | wrong(milliseconds)];
wrong(size) -> [-1, 1.5, ~"1", undefined];
wrong(flag) -> [yes, 1, ~"true", undefined];
wrong(scope) -> [everybody, ~"public", undefined];
wrong(visibility) -> [true, undefined, all, fun() -> true end, fun(_, _) -> true end];
wrong(middleware) -> [fun(_, _, _) -> ok end, [fun(_, _) -> ok end], [log], undefined];
wrong(cache) -> [1000, #{}, #{ttl_ms => 0}, #{ttl_ms => ~"1"}, #{ttl_ms => 1, scope => everybody},
                 #{ttl_ms => 1, size => 1}, undefined];
wrong(ui) -> [[], undefined, ~"ui://a", #{visibility => []}, #{colour => red}];
wrong(task_support) -> [true, ~"optional", undefined];
wrong(task_start) -> [later, ~"at_once", undefined];
wrong(breaker) -> [~"db", db, [], 1, #{failures => 0}, #{opens => 1}];
wrong(count) -> [0, -1, 1.5, ~"1", infinity];
wrong(rates) -> [10, #{hour => 1}, #{second => 0}, [{second, 1}]];
wrong(scopes) -> [~"read", [read], [~""], [~"a b"], #{}];
wrong(label) -> [~"db", db, #{}, 1].

%% `{duplicate, Kind, Name}`: within a kind. What is of two kinds may have one name.
duplicates_are_refused(_) ->
    Server = start(#{tools => []}),
    [begin
         Definition = definition(Kind, ~"one"),
         Key = maps:get(key(Kind), Definition),
         Twice = with(Kind, Definition),
         Both = #{List => Items ++ Items || List := [_] = Items <- Twice},
         {error, {duplicate, Kind, Key}} = started(maps:merge(Twice, Both)),
         ok = erlmcp:add(Server, Kind, Definition),
         {error, {duplicate, Kind, Key}} = erlmcp:add(Server, Kind, Definition),
         ok = erlmcp:remove(Server, Kind, Key),
         ok = erlmcp:add(Server, Kind, Definition)
     end || Kind <- kinds()],
    {error, {duplicate, tool, ~"of the module"}} =
        started(#{handler => ?MODULE, tools => [definition(tool, ~"of the module")]}).

init(_, _) -> none.

server() ->
    #{name => ~"module", version => ~"2", instructions => ~"Mine.",
      tools => [definition(tool, ~"of its options")]}.

tools() -> [#{name => ~"of the module"}, definition(tool, ~"with a fun")].

resources() -> [#{uri => ~"m://plain", name => ~"plain"}].

resource_templates() -> [#{uri_template => ~"m://{id}/x", name => ~"template"}].

prompts() -> [#{name => ~"prompt", arguments => [#{name => ~"who"}]}].

call_tool(Name, Arguments, #{name := Name}) -> #{tool => Name, arguments => Arguments}.

read_resource(Uri, Variables, #{uri := Uri}) ->
    iolist_to_binary([Uri, json:encode(Variables)]).

get_prompt(Name, Arguments, #{name := Name}) -> iolist_to_binary([Name, json:encode(Arguments)]).

%% "A definition may leave `handler` out; the module's `call_tool/3`, `read_resource/3` or
%% `get_prompt/3` is called for it then."
handler_modules_are_servers(_) ->
    {ok, Server} = erlmcp:start_server(#{handler => ?MODULE, listen => [{tcp, #{}}]}),
    Socket = connect(Server),
    #{~"serverInfo" := #{~"name" := ~"module", ~"version" := ~"2"}, ~"instructions" := ~"Mine."} =
        initialize(Socket, ~"2025-11-25"),
    [~"of its options", ~"of the module", ~"with a fun"] = lists:sort(listed(tool, Socket)),
    #{~"structuredContent" := #{~"tool" := ~"of the module", ~"arguments" := #{~"a" := 1}}} =
        result(ask(Socket, 1, ~"tools/call", #{~"name" => ~"of the module",
                                               ~"arguments" => #{~"a" => 1}})),
    #{~"content" := [#{~"text" := ~"with a fun"}]} =
        result(ask(Socket, 2, ~"tools/call", #{~"name" => ~"with a fun"})),
    [#{~"contents" := [#{~"uri" := Uri, ~"text" := Text}]} =
         result(ask(Socket, 3, ~"resources/read", #{~"uri" => Uri}))
     || {Uri, Text} <- [{~"m://plain", ~"m://plain{}"}, {~"m://7/x", ~'m://7/x{"id":"7"}'}]],
    #{~"messages" := [#{~"role" := ~"user", ~"content" := #{~"text" := ~'prompt{"who":"me"}'}}]} =
        result(ask(Socket, 4, ~"prompts/get", #{~"name" => ~"prompt",
                                                ~"arguments" => #{~"who" => ~"me"}})),
    ok = erlmcp:stop_server(Server).

%% "`server/0` gives the options that are not given here, and whose definitions come before those
%% given here."
options_win_over_the_handlers(_) ->
    Server = start(#{handler => ?MODULE, name => ~"given", tools => [echo_tool()]}),
    Socket = connect(Server),
    #{~"serverInfo" := #{~"name" := ~"given"}, ~"instructions" := ~"Mine."} =
        initialize(Socket, ~"2025-11-25"),
    [_, _, _, ~"echo"] = listed(tool, Socket),
    [~"m://plain"] = listed(resource, Socket).

%% What nobody serves is refused when the server starts, and not when it is called.
modules_without_a_callback_are_refused(_) ->
    [begin
         Module = handler_module([
             "server() -> #{name => <<\"x\">>, version => <<\"1\">>}.",
             lists:concat([List, "() -> [", Definition, "]."])]),
         {error, {bad_definition, Kind, Key, handler, ~"a fun of two arguments"}} =
             started(#{handler => Module})
     end || {Kind, Key, List, Definition} <- [
         {tool, ~"t", tools, "#{name => <<\"t\">>}"},
         {resource, ~"r://r", resources, "#{uri => <<\"r://r\">>, name => <<\"r\">>}"},
         {resource_template, ~"r://{r}", resource_templates,
          "#{uri_template => <<\"r://{r}\">>, name => <<\"r\">>}"},
         {prompt, ~"p", prompts, "#{name => <<\"p\">>}"}]].

%% With other callbacks or without, and also if the module is mounted.
modules_without_options_are_refused(_) ->
    Options = #{name => ~"given", version => ~"1"},
    [begin
         Module = handler_module([lists:concat(["server() -> ", Returned, "."]) | Others]),
         Expected = {bad_option, handler, ~"a module whose server/0 returns a map"},
         {error, Expected} = started(Options#{handler => Module}),
         {error, {mount, ~"m", Expected}} = started(Options#{mounts => [{~"m", Module}]})
     end || Returned <- ["[{name, <<\"x\">>}]", "ok", "{ok, #{}}"],
            Others <- [[], ["tools() -> []."]]].

%% Whichever callback has them, and also if the options have another list: all are taken.
lists_of_handlers_are_checked(_) ->
    Keys = [tools, resources, resource_templates, prompts, skills],
    Server = "server() -> #{name => <<\"x\">>, version => <<\"1\">>",
    [begin
         Module = handler_module(Callbacks),
         [{Callbacks, {error, {bad_option, Key, <<_, _/binary>>}}} = {Callbacks, started(Options)}
          || Options <- [#{handler => Module}, #{handler => Module, Key => []}]]
     end || Key <- Keys, Value <- ["none", "[a | b]"],
            Callbacks <- [[lists:concat([Server, ", ", Key, " => ", Value, "}."])],
                          [lists:concat([Server, ", ", Key, " => ", Value, "}."]),
                           lists:concat([Key, "() -> []."])],
                          [Server ++ "}.", lists:concat([Key, "() -> ", Value, "."])]]].

handler_module(Functions) ->
    Forms = [begin
                 {ok, Tokens, _} = erl_scan:string(Text),
                 {ok, Form} = erl_parse:parse_form(Tokens),
                 Form
             end || Text <- ["-module(half_a_handler).", "-behaviour(erlmcp_server)." | Functions]],
    {ok, Module, Code} = compile:forms(Forms, [export_all]),
    {module, Module} = code:load_binary(Module, "half_a_handler", Code),
    Module.
