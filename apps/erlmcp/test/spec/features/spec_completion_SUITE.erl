-module(spec_completion_SUITE).
-moduledoc "\"Completion\" of all revisions of the specification, over HTTP and TCP.".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([capability_is_declared/1, values_begin_with_what_is_there/1, values_come_from_a_fun/1,
         arguments_are_context/1, hundred_values_at_most/1, fun_says_what_more_there_is/1,
         nothing_to_complete_is_empty/1]).
-export([unknown_references_are_refused/1, malformed_requests_are_refused/1,
         failures_are_errors/1, completion_has_a_deadline/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [open/3, ask/3]).

-define(METHOD, ~"completion/complete").
-define(TEMPLATE, <<"test://{language}/{framework}"
                    "{?many,enough,counted,all,more,none,context,refuses,crashes,strange,hangs}">>).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp}, {group, sse}].

groups() ->
    Cases = erlmcp_test_suite:cases(?MODULE),
    [{Transport, Cases} || Transport <- [http, tcp, sse]].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Transport, Config) -> [{transport, Transport} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(_, Config) ->
    [{server, start(#{})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_client:stop(server(Config)).

%% Names of arguments may be atoms, as those of a tool's input schema.
start(Limits) ->
    Test = self(),
    Complete = #{~"language" => [~"python", ~"pytorch", ~"perl", ~"Pascal", ~"\x{e9}lan"],
                 framework => fun framework/2,
                 many => numbers(101), ~"enough" => numbers(100),
                 ~"counted" => fun(Value, _) -> #{values => [Value], total => 7} end,
                 ~"all" => fun(_, _) -> #{values => numbers(100)} end,
                 ~"more" => fun(_, _) -> #{values => numbers(150), total => 1000} end,
                 ~"none" => fun(_, _) -> [] end,
                 ~"context" => fun(Value, Context) ->
                     Test ! {completing, Value, maps:with([name, uri, method, arguments], Context)},
                     []
                 end,
                 ~"refuses" => fun(_, _) -> {error, ~"on purpose"} end,
                 ~"crashes" => fun(_, _) -> error(on_purpose) end,
                 ~"strange" => fun(_, _) -> [1] end,
                 ~"hangs" => fun(_, _) -> receive never -> [] end end},
    Handler = fun(_, _) -> ~"text" end,
    erlmcp_test_client:start(#{
        limits => Limits,
        prompts => [#{name => ~"review", handler => Handler, complete => Complete,
                      arguments => [#{name => Name} || Name := _ <- Complete]},
                    #{name => ~"plain", handler => Handler}],
        resources => [#{uri => ~"test://one", name => ~"one", handler => Handler}],
        resource_templates => [#{uri_template => ?TEMPLATE,
                                 name => ~"template", handler => Handler,
                                 complete => Complete}]}).

%% What there is depends on the language that was chosen before.
framework(Value, #{arguments := #{~"language" := ~"python"}}) ->
    [Name || Name <- [~"flask", ~"django"], string:prefix(Name, Value) =/= nomatch];
framework(_, _) ->
    [~"any"].

numbers(Count) ->
    [integer_to_binary(N) || N <- lists:seq(1, Count)].

revisions() ->
    [~"2024-11-05", ~"2025-03-26", ~"2025-06-18", ~"2025-11-25", ~"2026-07-28"].

client(Config) ->
    client(Config, ~"2026-07-28").

client(Config, Revision) ->
    open(server(Config), transport(Config), Revision).

prompt() ->
    #{type => ~"ref/prompt", name => ~"review"}.

template() ->
    #{type => ~"ref/resource", uri => ?TEMPLATE}.

complete(Client, Ref, Name, Value) ->
    complete(Client, Ref, Name, Value, #{}).

complete(Client, Ref, Name, Value, More) ->
    #{~"result" := #{~"completion" := Completion} = Result} =
        ask(Client, ?METHOD, More#{ref => Ref, argument => #{name => Name, value => Value}}),
    case Client of
        #{capabilities := _} -> #{~"resultType" := ~"complete"} = Result;
        #{} -> false = is_map_key(~"resultType", Result)
    end,
    #{~"values" := Values, ~"total" := Total, ~"hasMore" := HasMore} = Completion,
    3 = map_size(Completion),
    {Values, Total, HasMore}.

%% "Servers that support completions MUST declare the completions capability".
capability_is_declared(Config) ->
    #{~"result" := #{~"capabilities" := #{~"completions" := #{}}}} =
        ask(client(Config), ~"server/discover", #{}),
    [#{messages := [#{~"result" := #{~"capabilities" := #{~"completions" := #{}}}}]} =
         erlmcp_test_http:initialize(server(Config), Revision, #{})
     || Revision <- revisions() -- [~"2026-07-28"]].

%% "ref/prompt: References a prompt by name"; "ref/resource: References a resource URI or URI
%% template".
values_begin_with_what_is_there(Config) ->
    [begin
         Client = client(Config, Revision),
         {[~"python", ~"pytorch"], 2, false} = complete(Client, Ref, ~"language", ~"py"),
         {[~"python", ~"pytorch", ~"perl"], 3, false} = complete(Client, Ref, ~"language", ~"p"),
         {[_, _, _, _, _], 5, false} = complete(Client, Ref, ~"language", ~""),
         {[~"\x{e9}lan"], 1, false} = complete(Client, Ref, ~"language", ~"\x{e9}"),
         {[], 0, false} = complete(Client, Ref, ~"language", ~"x"),
         erlmcp_test_client:close(Client)
     end || Revision <- revisions(), Ref <- [prompt(), template()]].

values_come_from_a_fun(Config) ->
    [begin
         Client = client(Config, Revision),
         {[~"any"], 1, false} = complete(Client, Ref, ~"framework", ~"fl"),
         {[], 0, false} = complete(Client, Ref, ~"none", ~""),
         erlmcp_test_client:close(Client)
     end || Revision <- revisions(), Ref <- [prompt(), template()]].

%% "clients should include previous completions in the context.arguments object to provide context
%% for subsequent requests".
arguments_are_context(Config) ->
    Python = #{context => #{arguments => #{language => ~"python"}}},
    [begin
         Client = client(Config, Revision),
         {[~"flask"], 1, false} = complete(Client, Ref, ~"framework", ~"fla", Python),
         {[~"flask", ~"django"], 2, false} = complete(Client, Ref, ~"framework", ~"", Python),
         [{~"any", Given} = {hd(element(1, complete(Client, Ref, ~"framework", ~"", Given))), Given}
          || Given <- [#{}, #{context => #{}}, #{context => #{arguments => #{}}}]],
         erlmcp_test_client:close(Client)
     end || Revision <- [~"2025-06-18", ~"2025-11-25", ~"2026-07-28"],
            Ref <- [prompt(), template()]],
    Client = client(Config),
    {[], 0, false} = complete(Client, prompt(), ~"context", ~"v", Python),
    #{name := ~"review", method := ?METHOD, arguments := #{~"language" := ~"python"}} =
        completing(~"v"),
    {[], 0, false} = complete(Client, template(), ~"context", ~"w"),
    #{uri := ?TEMPLATE, arguments := None} = completing(~"w"),
    0 = map_size(None).

completing(Value) ->
    receive {completing, Value, Context} -> Context after 30_000 -> error(not_called) end.

%% "Maximum 100 items per response"; "Optional total number of available matches"; "Boolean
%% indicating if additional results exist".
hundred_values_at_most(Config) ->
    Client = client(Config),
    Hundred = numbers(100),
    {Hundred, 101, true} = complete(Client, prompt(), ~"many", ~""),
    {Hundred, 100, false} = complete(Client, prompt(), ~"enough", ~""),
    {Hundred, 100, false} = complete(Client, prompt(), ~"all", ~""),
    %% What was typed narrows it before it is cut.
    {[~"10", ~"100", ~"101"], 3, false} = complete(Client, prompt(), ~"many", ~"10").

fun_says_what_more_there_is(Config) ->
    Client = client(Config),
    {[~"v"], 7, true} = complete(Client, prompt(), ~"counted", ~"v"),
    Hundred = numbers(100),
    {Hundred, 1000, true} = complete(Client, template(), ~"more", ~"").

%% An argument without completions, a definition without any, a resource that is no template.
nothing_to_complete_is_empty(Config) ->
    [begin
         Client = client(Config, Revision),
         [{[], 0, false} = complete(Client, Ref, ~"other", ~"v")
          || Ref <- [prompt(), template(), #{type => ~"ref/prompt", name => ~"plain"},
                     #{type => ~"ref/resource", uri => ~"test://one"}]],
         erlmcp_test_client:close(Client)
     end || Revision <- revisions()].

refused(Code, Client, Params) ->
    #{~"error" := #{~"code" := Code}} = ask(Client, ?METHOD, Params).

%% "Invalid prompt name: -32602 (Invalid params)".
unknown_references_are_refused(Config) ->
    Argument = #{name => ~"language", value => ~""},
    [begin
         Client = client(Config, Revision),
         [refused(-32602, Client, #{ref => Ref, argument => Argument})
          || Ref <- [#{type => ~"ref/prompt", name => ~"unknown"},
                     #{type => ~"ref/prompt", name => ~""},
                     #{type => ~"ref/tool", name => ~"review"},
                     #{type => ~"ref/prompt", uri => ~"test://one"},
                     #{type => ~"ref/resource", name => ~"review"}]],
         #{~"error" := #{~"code" := Code}} =
             ask(Client, ?METHOD, #{ref => #{type => ~"ref/resource", uri => ~"other://unknown"},
                                    argument => Argument}),
         true = lists:member(Code, [-32602, -32002]),
         erlmcp_test_client:close(Client)
     end || Revision <- revisions()],
    refused(-32602, client(Config), #{ref => #{type => ~"ref/resource", uri => ~"other://x"},
                                      argument => Argument}).

%% "Missing required arguments: -32602 (Invalid params)"; "Implementations MUST: Validate all
%% completion inputs".
malformed_requests_are_refused(Config) ->
    Good = #{ref => prompt(), argument => #{name => ~"language", value => ~""}},
    [begin
         Client = client(Config, Revision),
         [refused(-32602, Client, Bad)
          || Bad <- [#{}, maps:remove(ref, Good), maps:remove(argument, Good)]
                 ++ [Good#{ref => Ref} || Ref <- [null, 1, ~"review", [], [prompt()], #{},
                                                  #{type => ~"ref/prompt"},
                                                  #{name => ~"review"},
                                                  #{type => ~"ref/prompt", name => 1},
                                                  #{type => null, name => ~"review"},
                                                  #{type => ~"ref/resource", uri => null}]]
                 ++ [Good#{argument => Argument}
                     || Argument <- [null, 1, ~"language", [], #{}, #{name => ~"language"},
                                     #{value => ~""}, #{name => 1, value => ~""},
                                     #{name => ~"language", value => 1},
                                     #{name => ~"language", value => null}]]
                 ++ [Good#{context => Context}
                     %% It came with 2025-06-18.
                     || Revision >= ~"2025-06-18",
                        Context <- [null, 1, [], ~"", #{arguments => null},
                                    #{arguments => []}, #{arguments => ~"x"},
                                    #{arguments => #{language => 1}}]]],
         erlmcp_test_client:close(Client)
     end || Revision <- revisions()].

%% "Internal errors: -32603 (Internal error)".
failures_are_errors(Config) ->
    logger:set_primary_config(level, none),
    [begin
         Client = client(Config, Revision),
         [refused(-32603, Client, #{ref => prompt(), argument => #{name => Name, value => ~""}})
          || Name <- [~"refuses", ~"crashes", ~"strange"]],
         erlmcp_test_client:close(Client)
     end || Revision <- revisions()],
    logger:set_primary_config(level, notice).

completion_has_a_deadline(Config) ->
    Server = start(#{call_timeout_ms => 100}),
    Client = client([{server, Server} | Config]),
    refused(1069, Client, #{ref => prompt(), argument => #{name => ~"hangs", value => ~""}}),
    erlmcp_test_client:stop(Server).
