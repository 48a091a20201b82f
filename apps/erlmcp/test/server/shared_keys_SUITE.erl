-module(shared_keys_SUITE).
-moduledoc """
Servers whose keys are those of a cluster: the keys change while a server runs, and the cursors and
states that clients have stay good as long as their keys are in the ring. The cluster is this
module.
""".

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([cursors_have_the_keys_of_the_cluster/1, keys_change_while_a_server_runs/1,
         keys_of_the_options_come_first/1, a_server_starts_before_its_cluster/1,
         a_state_needs_the_node_that_made_it/1, a_forgotten_state_is_not_used_again/1,
         what_is_not_known_has_no_effect/1,
         a_node_that_stops_has_no_state/1]).
%% The cluster.
-export([init/2, task_store/1, publish/2, ask/3, keys/2]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [cursors_have_the_keys_of_the_cluster, keys_change_while_a_server_runs,
     keys_of_the_options_come_first, a_server_starts_before_its_cluster,
     a_state_needs_the_node_that_made_it, a_forgotten_state_is_not_used_again,
     what_is_not_known_has_no_effect,
     a_node_that_stops_has_no_state].

init_per_testcase(_, Config) ->
    Started = erlmcp_test_applications:start([erlmcp], Config),
    ok = ring([key()]),
    Started.

end_per_testcase(_, Config) ->
    _ = persistent_term:erase(?MODULE),
    erlmcp_test_applications:stop(Config).

init(Id, _) -> Id.

task_store(_) -> {erlmcp_task_store_ets, #{}}.

publish(_, _) -> ok.

keys(_, _) -> persistent_term:get(?MODULE).

%% Nobody else is there.
ask(_, _, _) -> unreachable.

ring(none) -> persistent_term:put(?MODULE, none);
ring(Keys) -> persistent_term:put(?MODULE, {ok, Keys}).

key() -> crypto:strong_rand_bytes(32).

cursors_have_the_keys_of_the_cluster(_) ->
    [One, Other] = [start(#{}) || _ <- [1, 2]],
    [begin
         {First, Cursor} = page(One, Method, Params),
         {Second, _} = page(Other, Method, Params#{cursor => Cursor}),
         [] = [Same || Same <- First, lists:member(Same, Second)]
     end || {Method, Params} <- lists()],
    stop([One, Other]).

%% The first page is encoded before it is asked for, and its cursor must have a key of the day. So
%% must those of a catalog that is in layers.
keys_change_while_a_server_runs(_) ->
    Old = key(),
    New = key(),
    [begin
         ok = ring([Old]),
         Server = start(#{tools => [tool(N) || N <- lists:seq(1, Tools)]}),
         Before = [{List, cursor(Server, List)} || List <- lists()],
         ok = ring([New, Old]),
         ok = looks(Server),
         After = [{List, cursor(Server, List)} || List <- lists()],
         [] = [Same || Same <- Before, lists:member(Same, After)],
         [ok = accepted(Server, List, Cursor) || {List, Cursor} <- Before ++ After],
         ok = ring([New]),
         ok = looks(Server),
         [refused = accepted(Server, List, Cursor) || {List, Cursor} <- Before],
         [ok = accepted(Server, List, Cursor) || {List, Cursor} <- After],
         stop([Server])
     end || Tools <- [5, 400]].

keys_of_the_options_come_first(_) ->
    Key = key(),
    Server = start(#{keys => [Key]}),
    Apart = start(#{keys => fun() -> [Key] end, cluster => none}),
    List = hd(lists()),
    ok = accepted(Apart, List, cursor(Server, List)),
    ok = looks(Server),
    ok = accepted(Apart, List, cursor(Server, List)),
    stop([Server, Apart]).

a_server_starts_before_its_cluster(_) ->
    ok = ring(none),
    [One, Other] = Servers = [start(#{}) || _ <- [1, 2]],
    List = hd(lists()),
    refused = accepted(Other, List, cursor(One, List)),
    ok = ring([key()]),
    [ok = looks(Server) || Server <- Servers],
    ok = accepted(Other, List, cursor(One, List)),
    stop(Servers).

%% The keys are the same, and nothing else is.
a_state_needs_the_node_that_made_it(_) ->
    [One, Other] = Servers = [start(#{}) || _ <- [1, 2]],
    [begin
         #{~"result" := #{~"requestState" := State}} = book(One, #{once => Once}, #{}),
         Answers = #{requestState => State,
                     inputResponses => #{sure => #{action => accept, content => #{}}}},
         case {Once, book(Other, #{once => Once}, Answers)} of
             {false, #{~"result" := #{~"content" := _}}} ->
                 ok;
             {true, #{~"error" := #{~"code" := -32602, ~"message" := Message}}} ->
                 <<"requestState: the node that made it cannot be asked; send the request again "
                   "without it">> = Message
         end,
         #{~"result" := #{~"content" := _}} = book(One, #{once => Once}, Answers)
     end || Once <- [false, true]],
    stop(Servers).

%% A node forgets what was used when that expires by its own clock. The clock of the node that asks
%% may be behind, and time passes until a node looks, on this one, too.
a_forgotten_state_is_not_used_again(_) ->
    #{id := Id} = Started = start(#{}),
    {ok, _, #{key := Key}} = erlmcp_registry:whereis(Id),
    Use = fun(State) ->
        erlmcp_server_cluster:answer(Id, {use_state, Key, State, anonymous})
    end,
    Now = erlang:system_time(millisecond),
    [ok, again] = [Use({Now + 60_000, ~"valid"}) || _ <- [1, 2]],
    expired = Use({Now, ~"expired"}),
    stop([Started]).

what_is_not_known_has_no_effect(_) ->
    #{id := Id} = Started = start(#{}),
    Strange = [strange, {strange, 1, 2}, {list, strange, all}, {list, strange, [{tool, ~"book"}]},
               {list, tool, [{strange, ~"book"}]}, {list, tool, strange}],
    [ok = erlmcp_server_cluster:heard(Id, [Change, missed, {list, tool, all}])
     || Change <- Strange],
    ok = erlmcp_server_cluster:heard(no_such_server, [missed]),
    unsupported = erlmcp_server_cluster:answer(Id, strange),
    Question = {use_state, make_ref(), {0, ~""}, anonymous},
    [gone = erlmcp_server_cluster:answer(Server, Question) || Server <- [Id, no_such_server]],
    stop([Started]).

%% Its application has ended, and it still answers other nodes.
a_node_that_stops_has_no_state(_) ->
    #{id := Id} = start(#{}),
    ok = application:stop(erlmcp),
    gone = erlmcp_server_cluster:answer(Id, {use_state, make_ref(), {0, ~""}, anonymous}),
    ok = application:start(erlmcp).

start(Options) ->
    Id = make_ref(),
    Defaults = #{id => Id, cluster => ?MODULE, page_size => 2,
                 tools => [tool(N) || N <- lists:seq(1, 5)],
                 prompts => [#{name => integer_to_binary(N), handler => fun(_, _) -> ~"" end}
                             || N <- lists:seq(1, 5)],
                 skills => [#{files => #{~"SKILL.md" => ~"---\nname: x\ndescription: x\n---\n",
                                         ~"a/1" => ~"", ~"a/2" => ~"", ~"a/3" => ~""}}]},
    Given = maps:filter(fun(_, Value) -> Value =/= none end, maps:merge(Defaults, Options)),
    (erlmcp_test_http:start(Given))#{id => Id}.

tool(1) ->
    #{name => ~"book", handler => fun
        (_, #{state := booked}) -> ~"booked";
        (#{~"once" := Once}, _) ->
            Form = erlmcp_input:elicit(~"Sure?", #{type => object, properties => #{}}),
            {input_required, #{~"sure" => Form}, booked, #{once => Once}}
    end};
tool(N) ->
    #{name => integer_to_binary(N), handler => fun(_, _) -> ~"" end}.

stop(Servers) ->
    lists:foreach(fun erlmcp_test_http:stop/1, Servers).

%% The publisher looks at the keys each ten seconds, and now.
looks(#{pid := Pid}) ->
    Publisher = erlmcp_server_sup:publisher(Pid),
    Publisher ! keys,
    _ = sys:get_state(Publisher),
    ok.

lists() ->
    [{~"tools/list", #{}}, {~"prompts/list", #{}},
     {~"resources/directory/read", #{uri => ~"skill://x/a"}}].

cursor(Server, {Method, Params}) ->
    {_, Cursor} = page(Server, Method, Params),
    Cursor.

accepted(Server, {Method, Params}, Cursor) ->
    case message(Server, Method, Params#{cursor => Cursor}, #{}) of
        #{~"result" := _} -> ok;
        #{~"error" := #{~"code" := -32602}} -> refused
    end.

page(Server, Method, Params) ->
    #{~"result" := Result} = message(Server, Method, Params, #{}),
    [Items] = [List || _ := List <- Result, is_list(List)],
    {Items, maps:get(~"nextCursor", Result, none)}.

book(Server, Arguments, Answers) ->
    Meta = #{~"io.modelcontextprotocol/clientCapabilities" => #{elicitation => #{form => #{}}}},
    message(Server, ~"tools/call", Answers#{name => ~"book", arguments => Arguments},
            #{meta => Meta}).

message(Server, Method, Params, Options) ->
    #{messages := [Message]} = erlmcp_test_http:call(Server, Method, Params, Options),
    Message.
