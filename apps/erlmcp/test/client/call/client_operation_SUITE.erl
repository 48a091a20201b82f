-module(client_operation_SUITE).
-moduledoc """
What a client knows of each method: which requests only read, which results may be kept, and what a
result must have.
""".

-export([suite/0, all/0]).
-export([requests_that_only_read/1, results_that_may_be_kept/1, results_have_their_members/1]).

-define(KEPT, [~"server/discover", ~"tools/list", ~"prompts/list", ~"resources/list",
               ~"resources/templates/list", ~"resources/read", ~"skills/list"]).
-define(READ, [~"prompts/get", ~"completion/complete", ~"ping", ~"tasks/get"]).
-define(OTHERS, [~"tools/call", ~"tasks/cancel", ~"tasks/update", ~"resources/subscribe",
                 ~"initialize", ~"unknown"]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [requests_that_only_read, results_that_may_be_kept, results_have_their_members].

requests_that_only_read(_) ->
    [{Method, true} = {Method, erlmcp_client_operation:is_safe(Method)}
     || Method <- ?KEPT ++ ?READ],
    [{Method, false} = {Method, erlmcp_client_operation:is_safe(Method)} || Method <- ?OTHERS].

results_that_may_be_kept(_) ->
    [{Method, true} = {Method, erlmcp_client_operation:is_cacheable(Method)} || Method <- ?KEPT],
    [{Method, false} = {Method, erlmcp_client_operation:is_cacheable(Method)}
     || Method <- ?READ ++ ?OTHERS].

%% Each list has objects with a member that its callers read.
results_have_their_members(_) ->
    Lists = [{~"tools/list", ~"tools", ~"name"}, {~"prompts/list", ~"prompts", ~"name"},
             {~"resources/list", ~"resources", ~"uri"},
             {~"resources/templates/list", ~"resourceTemplates", ~"uriTemplate"},
             {~"skills/list", ~"skills", ~"uri"}, {~"tools/call", ~"content", ~"type"},
             {~"resources/read", ~"contents", ~"uri"}, {~"prompts/get", ~"messages", ~"role"}],
    [begin
         Check = fun(Result) -> erlmcp_client_operation:check(Method, Result) end,
         [{Method, ok} = {Method, Check(Result)}
          || Result <- [#{Member => []}, #{Member => [#{Key => ~"k"}]},
                        #{Member => [], ~"nextCursor" => ~"c"},
                        #{Member => [], ~"nextCursor" => null}]],
         [{Method, {error, _}} = {Method, Check(Result)}
          || Result <- [[], #{}, #{Member => #{}}, #{Member => [#{}]}, #{Member => [#{Key => 1}]},
                        #{Member => [#{Key => ~"k"}, ~"k"]},
                        #{Member => [], ~"nextCursor" => 1}]]
     end || {Method, Member, Key} <- Lists],
    Complete = fun(Result) -> erlmcp_client_operation:check(~"completion/complete", Result) end,
    ok = Complete(#{~"completion" => #{~"values" => []}}),
    [{error, _} = Complete(Result)
     || Result <- [none, #{}, #{~"completion" => #{}}, #{~"completion" => #{~"values" => 1}}]],
    ok = erlmcp_client_operation:check(~"ping", #{}),
    {error, _} = erlmcp_client_operation:check(~"ping", null).
