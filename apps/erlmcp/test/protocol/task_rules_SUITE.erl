-module(task_rules_SUITE).
-moduledoc """
When a tool call becomes a task, and which requests about tasks are refused, in each revision that
has tasks. A call that should be one and is not holds its connection for as long as it works, and
the other way round its client never asks for the result.

Sources: SEP-2663; specification 2025-11-25, "Tasks".
""".

-export([suite/0, all/0]).
-export([calls_become_tasks_where_both_may/1, refused_calls_say_what_they_lack/1,
         tasks_begin_when_their_tool_says/1, a_time_to_live_is_milliseconds/1,
         requests_have_their_arguments/1, requests_need_the_extension/1,
         subscribed_tasks_are_bounded/1]).

-define(EXTENSION, ~"io.modelcontextprotocol/tasks").

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [calls_become_tasks_where_both_may, refused_calls_say_what_they_lack,
     tasks_begin_when_their_tool_says, a_time_to_live_is_milliseconds,
     requests_have_their_arguments, requests_need_the_extension, subscribed_tasks_are_bounded].

%% A client that declares the extension, or does not.
client(Revision, Declares) ->
    Extensions = maps:from_list([{?EXTENSION, #{}} || Declares]),
    #{revision => Revision, principal => ~"ada",
      client_capabilities => #{~"extensions" => Extensions}}.

mode(Support, Params, Revision, Declares) ->
    case erlmcp_task:mode(#{task => Support}, Params, client(Revision, Declares), true) of
        {ok, none} -> none;
        {ok, #{starts := Starts, ttl := Ttl}} -> {Starts, Ttl};
        {error, Refusal} -> erlmcp_refusal:code(Refusal)
    end.

calls_become_tasks_where_both_may(_) ->
    Task = #{~"task" => #{}},
    [{Case, Expected} = {Case, mode(Support, Params, Revision, Declares)}
     || {Support, Params, Revision, Declares, Expected} = Case <- [
            {required, #{}, '2026-07-28', true, {at_once, undefined}},
            {optional, #{}, '2026-07-28', true, {at_once, undefined}},
            {forbidden, #{}, '2026-07-28', true, none},
            {required, #{}, '2026-07-28', false, -32021},
            {optional, #{}, '2026-07-28', false, none},
            %% The parameter is the older revision's, and the declaration the newer one's.
            {optional, Task, '2026-07-28', false, none},
            {forbidden, Task, '2026-07-28', true, none},
            {required, Task, '2025-11-25', false, {at_once, undefined}},
            {optional, Task, '2025-11-25', false, {at_once, undefined}},
            {forbidden, Task, '2025-11-25', false, -32601},
            {required, #{}, '2025-11-25', true, -32601},
            {optional, #{}, '2025-11-25', true, none},
            {forbidden, #{}, '2025-11-25', false, none},
            {required, Task, '2025-06-18', true, -32601},
            {optional, Task, '2025-06-18', true, none},
            {forbidden, Task, '2025-06-18', true, none}]],
    %% A server without tasks does not know the parameter.
    {ok, none} = erlmcp_task:mode(#{}, Task, client('2025-11-25', false), false),
    {error, _} = erlmcp_task:mode(#{}, Task, client('2025-11-25', false), true).

refused_calls_say_what_they_lack(_) ->
    Refused = fun(Revision) ->
        {error, Refusal} =
            erlmcp_task:mode(#{task => required}, #{}, client(Revision, false), true),
        Refusal
    end,
    Undeclared = Refused('2026-07-28'),
    {-32021, 400} = {erlmcp_refusal:code(Undeclared), erlmcp_refusal:status(Undeclared)},
    #{~"data" := #{~"requiredCapabilities" := #{~"extensions" := #{?EXTENSION := Settings}}}} =
        json:decode(iolist_to_binary(erlmcp_refusal:encode(Undeclared))),
    0 = map_size(Settings),
    Alone = Refused('2025-11-25'),
    {404, {_, _}} = {erlmcp_refusal:status(Alone),
                     binary:match(erlmcp_refusal:message(Alone), ~"task parameter")}.

%% 2025-11-25 has no call that becomes a task later.
tasks_begin_when_their_tool_says(_) ->
    Starts = fun(Revision) ->
        {ok, #{starts := When}} =
            erlmcp_task:mode(#{task => optional, task_starts => on_return}, #{~"task" => #{}},
                             client(Revision, true), true),
        When
    end,
    {on_return, at_once} = {Starts('2026-07-28'), Starts('2025-11-25')}.

a_time_to_live_is_milliseconds(_) ->
    [{Task, Expected} = {Task, mode(optional, #{~"task" => Task}, '2025-11-25', false)}
     || {Task, Expected} <- [{#{~"ttl" => 0}, {at_once, 0}}, {#{~"ttl" => 7}, {at_once, 7}},
                             {#{~"ttl" => 7.9}, {at_once, 7}}, {#{~"ttl" => -1}, -32602},
                             {#{~"ttl" => ~"7"}, -32602}, {#{~"ttl" => null}, -32602},
                             {[], -32602}, {true, -32602}, {null, -32602}]].

requests_have_their_arguments(_) ->
    Operation = fun(Method, Params) ->
        case erlmcp_task:operation(Method, Params, client('2025-11-25', false), true) of
            {ok, Asked, Arguments} -> {Asked, Arguments};
            {error, Refusal} -> erlmcp_refusal:message(Refusal)
        end
    end,
    Id = #{~"taskId" => ~"t"},
    Of = #{task => ~"t"},
    [{Method, Params, Expected} = {Method, Params, Operation(Method, Params)}
     || {Method, Params, Expected} <- [
            {~"tasks/get", Id, {get, Of}}, {~"tasks/cancel", Id, {cancel, Of}},
            {~"tasks/result", Id, {result, Of}}, {~"tasks/list", #{}, {list, #{}}},
            {~"tasks/list", #{~"cursor" => ~"c"}, {list, #{cursor => ~"c"}}},
            {~"tasks/update", Id#{~"inputResponses" => #{}}, {update, Of#{responses => #{}}}},
            {~"tasks/update", Id#{~"inputResponses" => #{~"q" => #{~"a" => 1}}},
             {update, Of#{responses => #{~"q" => #{~"a" => 1}}}}}]],
    [{Method, Params, {0, _}} = {Method, Params, binary:match(Operation(Method, Params), Field)}
     || {Method, Params, Field} <- [
            {~"tasks/get", #{}, ~"taskId"}, {~"tasks/cancel", #{~"taskId" => 1}, ~"taskId"},
            {~"tasks/update", #{~"inputResponses" => #{}}, ~"taskId"},
            {~"tasks/update", Id, ~"inputResponses"},
            {~"tasks/update", Id#{~"inputResponses" => []}, ~"inputResponses"},
            {~"tasks/update", Id#{~"inputResponses" => #{~"q" => 1}}, ~"inputResponses"},
            {~"tasks/list", #{~"cursor" => 1}, ~"cursor"}]].

requests_need_the_extension(_) ->
    Get = fun(Revision, Declares, Offered) ->
        case erlmcp_task:operation(~"tasks/get", #{~"taskId" => ~"t"}, client(Revision, Declares),
                                   Offered) of
            {ok, get, _} -> ok;
            {error, Refusal} -> erlmcp_refusal:code(Refusal)
        end
    end,
    [ok, -32021, -32601] = [Get('2026-07-28', Declares, Offered)
                            || {Declares, Offered} <- [{true, true}, {false, true}, {true, false}]],
    [ok, -32601] = [Get('2025-11-25', false, Offered) || Offered <- [true, false]].

%% At the bounds, and one more. A topic is the principal's, so that nobody hears of others' tasks.
subscribed_tasks_are_bounded(_) ->
    Client = client('2026-07-28', true),
    Topics = fun(Ids) -> erlmcp_task:topics(#{~"taskIds" => Ids}, Client, true) end,
    {ok, [~"a", ~"b"], [{task, ~"ada", ~"a"}, {task, ~"ada", ~"b"}]} = Topics([~"a", ~"b"]),
    Thousand = [integer_to_binary(N) || N <- lists:seq(1, 1_000)],
    {ok, Thousand, Honoured} = Topics(Thousand),
    1_000 = length(Honoured),
    {error, TooMany} = Topics([~"x" | Thousand]),
    #{~"data" := #{~"limit" := 1_000, ~"observed" := 1_001}} =
        json:decode(iolist_to_binary(erlmcp_refusal:encode(TooMany))),
    [Longest, TooLong] = [binary:copy(~"x", Bytes) || Bytes <- [64, 65]],
    {ok, [Longest], [_]} = Topics([Longest, TooLong]),
    {error, _} = Topics([1]),
    {error, _} = Topics(~"a"),
    {ok, [], []} = Topics([]),
    {error, Undeclared} = erlmcp_task:topics(#{~"taskIds" => [~"a"]},
                                             client('2026-07-28', false), true),
    -32021 = erlmcp_refusal:code(Undeclared),
    [{ok, [], []} = erlmcp_task:topics(Filter, Client, Offered)
     || {Filter, Offered} <- [{#{}, true}, {#{~"taskIds" => [~"a"]}, false}]].
