-module(cluster_changes_SUITE).
-moduledoc """
Three nodes with one server: their clients hear of the changes of each, and cursors, states, nonces
and proofs of one node hold on the others. The nodes are processes of the operating system, and the
clients have sockets. The cases that hurt a node come last.
""".

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([streams_of_all_nodes_hear_of_a_change/1, a_session_hears_of_a_change/1,
         an_audience_is_of_the_own_node/1, cached_results_are_forgotten/1, tasks_are_heard_of/1,
         a_definition_changes_on_all_nodes/1, cursors_hold_on_every_node/1,
         states_hold_on_every_node/1, a_state_is_used_once_in_the_cluster/1,
         nonces_hold_on_every_node/1, a_proof_is_used_once_in_the_cluster/1,
         other_versions_do_no_harm/1, too_many_changes_become_one/1,
         a_busy_connection_blocks_nobody/1, what_a_lost_connection_hid_is_heard/1,
         what_a_killed_process_had_is_heard/1, groups_are_joined_again/1,
         a_node_without_its_store_changes_too/1, a_node_that_has_just_joined_changes_too/1,
         what_a_killed_node_had_is_heard/1]).
%% On the nodes.
-export([counts/0, flood/2, too_many/1, join_and_add/2]).
-export([is_alice/1, done/2, count/2, book/2, wait/2]).

-define(SERVER, shared).
%% Streams in all, and the time in which they have to hear. On a machine that does nothing else,
%% `CLUSTER_STREAMS` sets another number, and the time is the shorter one.
-define(STREAMS, 900).
-define(HEARD_MS, 1_000).
-define(HEARD_AT_ALL_MS, 20_000).
%% The URL of all nodes behind a balancer.
-define(URL, ~"http://127.0.0.1/mcp").
-define(TOKENS, #{alice => ~"token-of-alice-0123456789", bob => ~"token-of-bob-0123456789"}).
-define(EXTENSION, #{~"io.modelcontextprotocol/clientCapabilities" =>
                         #{extensions => #{~"io.modelcontextprotocol/tasks" => #{}},
                           elicitation => #{form => #{}}}}).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [streams_of_all_nodes_hear_of_a_change, a_session_hears_of_a_change,
     an_audience_is_of_the_own_node, cached_results_are_forgotten, tasks_are_heard_of,
     a_definition_changes_on_all_nodes, cursors_hold_on_every_node, states_hold_on_every_node,
     a_state_is_used_once_in_the_cluster, nonces_hold_on_every_node,
     a_proof_is_used_once_in_the_cluster, other_versions_do_no_harm, too_many_changes_become_one,
     a_busy_connection_blocks_nobody, what_a_lost_connection_hid_is_heard,
     what_a_killed_process_had_is_heard, groups_are_joined_again,
     a_node_without_its_store_changes_too, a_node_that_has_just_joined_changes_too,
     what_a_killed_node_had_is_heard].

init_per_suite(Config) ->
    Started = erlmcp_test_applications:start([erlmcp], Config),
    Issuer = erlmcp_test_issuer:start(),
    Members = erlmcp_test_cluster:start(Config, #{}),
    [ok, ok, ok] = erlmcp_test_cluster:join(Members),
    Options = options(Issuer),
    Key = erlmcp_dpop:new(),
    %% The cases may take longer than the five minutes of a usual token.
    Token = erlmcp_test_issuer:token(#{~"aud" => ?URL,
                                       ~"exp" => erlang:system_time(second) + 3_600,
                                       ~"cnf" => #{~"jkt" => erlmcp_dpop:thumbprint(Key)}}, Issuer),
    erlmcp_test_issuer:stop(Issuer),
    [{options, Options}, {proof, {Token, Key}},
     {members, [serving(Member, Options) || Member <- Members]} | Started].

serving(Member, Options) ->
    {_, Listeners} = erlmcp_test_cluster_node:serve(Member, Options),
    Member#{listeners => Listeners}.

end_per_suite(Config) ->
    lists:foreach(fun erlmcp_test_cluster:stop/1, members(Config)),
    erlmcp_test_applications:stop(Config).

options(Issuer) ->
    Static = [#{token => Token, principal => atom_to_binary(Name)} || Name := Token <- ?TOKENS],
    Signed = {jwt, #{issuer => erlmcp_test_issuer:url(Issuer),
                     jwks => {keys, map_get(~"keys", erlmcp_test_issuer:keys(Issuer))}}},
    Bearer = #{resource => ?URL, dpop => optional},
    #{id => ?SERVER, name => ~"shared", version => ~"1", cluster => erlmcp_cluster, page_size => 2,
      tools => [tool(<<"tool_", Letter>>) || Letter <- "abcdefg"]
          ++ [(tool(~"secret"))#{visible => fun ?MODULE:is_alice/1},
              (tool(~"book"))#{handler := fun ?MODULE:book/2},
              (tool(~"wait"))#{handler := fun ?MODULE:wait/2, task => optional}],
      resources => [#{uri => ~"data:///count", name => ~"count",
                      cache => #{ttl_ms => 600_000, scope => public},
                      handler => fun ?MODULE:count/2}],
      listen => [{http, #{}},
                 {http, #{authenticate => {bearer, #{tokens => [{static, Static}]}}}},
                 {http, #{authenticate => {bearer, Bearer#{tokens => [Signed]}}}},
                 {http, #{authenticate => {bearer, Bearer#{tokens => [Signed],
                                                           dpop_nonce => true}}}}]}.

tool(Name) ->
    #{name => Name, description => Name, handler => fun ?MODULE:done/2}.

%% On the nodes.

is_alice(Principal) -> Principal =:= ~"alice".

done(_, _) -> ~"done".

count(_, _) -> binary:encode_hex(crypto:strong_rand_bytes(8)).

book(#{~"once" := _}, #{state := _}) -> ~"booked";
book(#{~"once" := Once}, _) ->
    Form = #{type => object, properties => #{}},
    {input_required, #{~"sure" => erlmcp_input:elicit(~"Sure?", Form)}, state, #{once => Once}}.

%% Until a file is there.
wait(#{~"file" := File}, Context) ->
    case filelib:is_file(File) of
        true -> ~"done";
        false -> receive after 20 -> wait(#{~"file" => File}, Context) end
    end.

counts() ->
    {ok, #{changes := Counts}} = erlmcp_cluster:status(),
    Counts.

%% Changes of many resources until a connection has no room for them.
flood(Most, Before) ->
    Padding = binary:copy(~"x", 400),
    #{sent := Sent} = counts(),
    {Took, _} = timer:tc(fun() ->
        [ok = erlmcp:resource_updated(?SERVER, <<"data:///", Padding/binary, N:32>>)
         || N <- lists:seq(1, 5_000)]
    end, millisecond),
    case left(Sent) of
        #{missed := Missed} when Missed > Before -> Took;
        _ when Most > 1 -> max(Took, flood(Most - 1, Before))
    end.

%% Returns the counts when the process has all these changes, and has sent more messages. A node
%% whose connection has no room has missed some by then.
left(Sent) ->
    _ = sys:get_state(erlmcp_cluster_changes, 30_000),
    case counts() of
        #{sent := Sent} -> receive after 5 -> left(Sent) end;
        Counts -> Counts
    end.

%% More changes than are taken at a time, while the process stands still.
too_many(Of) ->
    Process = whereis(erlmcp_cluster_changes),
    true = erlang:suspend_process(Process),
    ok = too_many(Of, 1),
    true = erlang:resume_process(Process).

too_many(same, 20_002) -> ok;
too_many(different, 10_002) -> ok;
too_many(Of, N) ->
    Uri = case Of of
        same -> ~"data:///same";
        different -> <<"data:///", N:32>>
    end,
    ok = erlmcp:resource_updated(?SERVER, Uri),
    too_many(Of, N + 1).

%% Before the node has looked for its own lease again.
join_and_add(Options, Definition) ->
    ok = erlmcp_cluster:join(Options),
    erlmcp_cluster:add(?SERVER, tool, Definition).

%% "One message per other node per change, whatever the number of subscribers."
streams_of_all_nodes_hear_of_a_change(Config) ->
    [A | _] = Members = members(Config),
    {Count, Most} = case os:getenv("CLUSTER_STREAMS") of
        false -> {?STREAMS, ?HEARD_AT_ALL_MS};
        Given -> {list_to_integer(Given), ?HEARD_MS}
    end,
    Streams = [listen(Member, #{toolsListChanged => true})
               || Member <- Members, _ <- lists:seq(1, Count div length(Members))],
    Before = [call(Member, counts, []) || Member <- Members],
    Began = erlang:monotonic_time(millisecond),
    ok = call(A, erlmcp, add, [?SERVER, tool, tool(~"new")]),
    [~"notifications/tools/list_changed" = heard(Stream) || Stream <- Streams],
    Took = erlang:monotonic_time(millisecond) - Began,
    After = [call(Member, counts, []) || Member <- Members],
    ct:pal("~b streams have heard after ~b ms", [length(Streams), Took]),
    ?assert(Took < Most),
    [{2, 0}, {0, 1}, {0, 1}] = [{Sent - SentBefore, Received - ReceivedBefore}
                                || {#{sent := Sent, received := Received},
                                    #{sent := SentBefore, received := ReceivedBefore}}
                                       <- lists:zip(After, Before)],
    ok = call(A, erlmcp, remove, [?SERVER, tool, ~"new"]),
    %% The next cases do not hear of it.
    [~"notifications/tools/list_changed" = heard(Stream) || Stream <- Streams],
    lists:foreach(fun erlmcp_test_http:close/1, Streams).

%% With its stream open, and without a process.
a_session_hears_of_a_change(Config) ->
    [A, B, _] = members(Config),
    Server = server(B, anonymous),
    Session = erlmcp_test_cluster_node:initialize(Server, ~"2025-11-25"),
    Change = fun() ->
        Prompt = #{name => ~"new", handler => fun ?MODULE:done/2},
        #{received := Before} = call(B, counts, []),
        ok = call(A, erlmcp, add, [?SERVER, prompt, Prompt]),
        ok = call(A, erlmcp, remove, [?SERVER, prompt, ~"new"]),
        awaited(fun() -> map_get(received, call(B, counts, [])) > Before end)
    end,
    Change(),
    {Stream, {200, _}} = erlmcp_test_http:get_stream(Server, Session),
    ~"notifications/prompts/list_changed" = heard(Stream),
    Change(),
    ~"notifications/prompts/list_changed" = heard(Stream),
    erlmcp_test_http:close(Stream).

%% Each node has the definition, and knows itself who may see it.
an_audience_is_of_the_own_node(Config) ->
    [A, B, _] = members(Config),
    Filter = #{toolsListChanged => true, promptsListChanged => true},
    [Alice, Bob] = [listen(server(B, tokens), Filter, with_token(Name)) || Name <- [alice, bob]],
    ok = call(A, erlmcp, remove, [?SERVER, tool, ~"secret"]),
    ~"notifications/tools/list_changed" = heard(Alice),
    Prompt = #{name => ~"for_all", handler => fun ?MODULE:done/2},
    ok = call(A, erlmcp, add, [?SERVER, prompt, Prompt]),
    [~"notifications/prompts/list_changed" = heard(Stream) || Stream <- [Alice, Bob]],
    ok = call(A, erlmcp, remove, [?SERVER, prompt, ~"for_all"]),
    Secret = (tool(~"secret"))#{visible => fun ?MODULE:is_alice/1},
    ok = call(A, erlmcp, add, [?SERVER, tool, Secret]),
    lists:foreach(fun erlmcp_test_http:close/1, [Alice, Bob]).

cached_results_are_forgotten(Config) ->
    [A, B, C] = members(Config),
    Read = fun(Member) ->
        #{~"contents" := [#{~"text" := Text}]} =
            result(Member, ~"resources/read", #{uri => ~"data:///count"}),
        Text
    end,
    Before = [Read(Member) || Member <- [B, C]],
    Before = [Read(Member) || Member <- [B, C]],
    Streams = [listen(Member, #{resourceSubscriptions => [~"data:///count"]})
               || Member <- [B, C]],
    ok = call(A, erlmcp, resource_updated, [?SERVER, ~"data:///count"]),
    %% The cache has forgotten the result when the client hears of the change.
    [~"notifications/resources/updated" = heard(Stream) || Stream <- Streams],
    [] = [Same || Same <- [Read(Member) || Member <- [B, C]], lists:member(Same, Before)],
    lists:foreach(fun erlmcp_test_http:close/1, Streams).

tasks_are_heard_of(Config) ->
    [A, B, _] = members(Config),
    File = filename:join(proplists:get_value(priv_dir, Config), "go"),
    #{~"taskId" := Id} =
        result(A, ~"tools/call", #{name => ~"wait", arguments => #{file => list_to_binary(File)}},
               #{meta => ?EXTENSION}),
    Stream = listen(server(B, anonymous), #{taskIds => [Id]}, #{meta => ?EXTENSION}),
    ok = file:write_file(File, ~""),
    {event, #{~"method" := ~"notifications/tasks",
              ~"params" := #{~"taskId" := Id, ~"status" := ~"completed"}}} =
        erlmcp_test_http:event(Stream),
    erlmcp_test_http:close(Stream).

a_definition_changes_on_all_nodes(Config) ->
    [A, B, _] = Members = members(Config),
    Change = fun(Function, Arguments) ->
        call(A, erlmcp_cluster, Function, [?SERVER | Arguments])
    end,
    ok = Change(add, [tool, tool(~"everywhere")]),
    [#{~"content" := [#{~"text" := ~"done"}]} =
         result(Member, ~"tools/call", #{name => ~"everywhere"}) || Member <- Members],
    ok = call(B, erlmcp, remove, [?SERVER, tool, ~"everywhere"]),
    Without = map_get(node, B),
    {error, #{Without := not_found} = Failed} = Change(remove, [tool, ~"everywhere"]),
    1 = map_size(Failed),
    {error, All} = Change(remove, [tool, ~"everywhere"]),
    [not_found, not_found, not_found] = maps:values(All),
    {error, #{}} = call(A, erlmcp_cluster, add, [no_such_server, tool, tool(~"x")]).

%% The nodes number their definitions differently, since one has had more changes than the others.
%% It also lacks the first tool, so its pages end at other definitions.
cursors_hold_on_every_node(Config) ->
    [A | _] = Members = members(Config),
    {[~"tool_a", ~"tool_b"], AfterB} = page(A, none),
    ok = call(A, erlmcp, remove, [?SERVER, tool, ~"tool_a"]),
    [begin
         ok = call(A, erlmcp, add, [?SERVER, tool, tool(~"passing")]),
         ok = call(A, erlmcp, remove, [?SERVER, tool, ~"passing"])
     end || _ <- lists:seq(1, 5)],
    %% These have other positions on A than on the others.
    Late = [<<"tool_", Letter>> || Letter <- "hijk"],
    [ok = call(A, erlmcp_cluster, add, [?SERVER, tool, tool(Name)]) || Name <- Late],
    Names = [<<"tool_", Letter>> || Letter <- "abcdefg"] ++ [~"book", ~"wait" | Late],
    [begin
         {Page, Cursor} = page(First, none),
         {_, [_ | Rest]} = lists:splitwith(fun(Name) -> Name =/= lists:last(Page) end, Names),
         Rest = walk(Next ++ [First], Cursor)
     end || First <- Members, Next <- [Members -- [First]]],
    [{[~"tool_c", ~"tool_d"], _} = page(Member, AfterB) || Member <- Members],
    [ok = call(A, erlmcp_cluster, remove, [?SERVER, tool, Name]) || Name <- Late],
    ok = call(A, erlmcp, add, [?SERVER, tool, tool(~"tool_a")]).

%% Each page is of the next node.
walk(_, none) ->
    [];
walk([Member | Next], Cursor) ->
    {Page, More} = page(Member, Cursor),
    Page ++ walk(Next ++ [Member], More).

page(Member, Cursor) ->
    Params = #{cursor => Cursor || Cursor =/= none},
    #{~"tools" := Tools} = Result = result(Member, ~"tools/list", Params),
    {[Name || #{~"name" := Name} <- Tools], maps:get(~"nextCursor", Result, none)}.

states_hold_on_every_node(Config) ->
    [A, B, C] = members(Config),
    State = state(A, false),
    [{ok, ~"booked"} = booked(Member, State, false) || Member <- [B, C, A, B]].

a_state_is_used_once_in_the_cluster(Config) ->
    [A, B, C] = Members = members(Config),
    %% A node waits for a second for the answer of another one. A pause may be longer.
    [erlmcp_test_pauses:undisturbed(250, fun() ->
         State = state(Of, true),
         %% Others do not fit, and use nothing up.
         {error, _} = booked(First, State, false),
         {ok, ~"booked"} = booked(First, State, true),
         [{error, <<"requestState: it was used before", _/binary>>} = booked(Again, State, true)
          || Again <- Members]
     end) || Of <- [A, B], First <- Members],
    %% All at once: one of them.
    erlmcp_test_pauses:undisturbed(250, fun() ->
        State = state(B, true),
        Self = self(),
        Booking = [spawn_link(fun() -> Self ! {self(), booked(Member, State, true)} end)
                   || Member <- Members ++ Members],
        [{ok, ~"booked"}] = [Booked || One <- Booking,
                                       {ok, _} = Booked <- [receive {One, It} -> It end]]
    end),
    %% A server that has started again does not know what was used.
    Left = state(C, true),
    ok = call(C, erlmcp, stop_server, [?SERVER]),
    Gone = fun(Member) -> {error, <<"requestState: the node", _/binary>>} =
                              booked(Member, Left, true) end,
    Gone(A),
    #{listen := Listen} = Options = proplists:get_value(options, Config),
    Ports = [{http, Given#{port => Port}}
             || {{http, Given}, #{port := Port}} <- lists:zip(Listen, maps:get(listeners, C))],
    _ = erlmcp_test_cluster_node:serve(C, Options#{listen := Ports}),
    lists:foreach(Gone, Members),
    {ok, ~"booked"} = booked(A, state(C, true), true).

state(Member, Once) ->
    #{~"requestState" := State} =
        result(Member, ~"tools/call", #{name => ~"book", arguments => #{once => Once}},
               #{meta => ?EXTENSION}),
    State.

booked(Member, State, Once) ->
    Params = #{name => ~"book", arguments => #{once => Once}, requestState => State,
               inputResponses => #{sure => #{action => accept, content => #{}}}},
    case message(Member, ~"tools/call", Params, #{meta => ?EXTENSION}) of
        #{~"result" := #{~"content" := [#{~"text" := Text}]}} -> {ok, Text};
        #{~"error" := #{~"message" := Text}} -> {error, Text}
    end.

%% Otherwise each second request behind a load balancer would be refused.
nonces_hold_on_every_node(Config) ->
    [A, B, C] = members(Config),
    {Token, Key} = proplists:get_value(proof, Config),
    Ask = fun(Member, Nonce) ->
        Claims = maps:merge(#{access_token => Token}, #{nonce => Nonce || Nonce =/= none}),
        proved(server(Member, nonces), Token, erlmcp_dpop:proof(~"POST", ?URL, Claims, Key))
    end,
    {401, #{~"dpop-nonce" := Nonce}} = Ask(A, none),
    [{200, _} = Ask(Member, Nonce) || Member <- [B, C, A]],
    {401, _} = Ask(B, ~"made up").

a_proof_is_used_once_in_the_cluster(Config) ->
    [A | Others] = Members = members(Config),
    {Token, Key} = proplists:get_value(proof, Config),
    Proof = erlmcp_dpop:proof(~"POST", ?URL, #{access_token => Token}, Key),
    Streams = [listen(Member, #{resourceSubscriptions => [~"data:///count"]}) || Member <- Others],
    {200, _} = proved(server(A, proofs), Token, Proof),
    %% Until then it might be used again: what is published after it arrives after it.
    ok = call(A, erlmcp, resource_updated, [?SERVER, ~"data:///count"]),
    [~"notifications/resources/updated" = heard(Stream) || Stream <- Streams],
    [{401, _} = proved(server(Member, proofs), Token, Proof) || Member <- Members],
    lists:foreach(fun erlmcp_test_http:close/1, Streams).

proved(Server, Token, Proof) ->
    Headers = #{~"authorization" => <<"DPoP ", Token/binary>>, ~"dpop" => Proof},
    #{status := Status, headers := Received} =
        erlmcp_test_http:call(Server, ~"tools/list", #{}, #{headers => Headers}),
    {Status, Received}.

other_versions_do_no_harm(Config) ->
    [A | _] = members(Config),
    Process = call(A, erlang, whereis, [erlmcp_cluster_changes]),
    Stream = listen(A, #{resourceSubscriptions => [~"data:///count"]}),
    #{missed := Before} = call(A, counts, []),
    [_ = call(A, erlang, send, [Process, Message])
     || Message <- [{erlmcp_cluster_changes, 2, new}, strange,
                    {erlmcp_cluster_changes, 1, [{no_such_server, [missed]},
                                                 {?SERVER, [{strange, 1}]}]}]],
    _ = call(A, sys, get_state, [Process]),
    #{missed := After} = call(A, counts, []),
    1 = After - Before,
    %% What it says may be a change of anything.
    ~"notifications/resources/updated" = heard(Stream),
    erlmcp_test_http:close(Stream),
    Process = call(A, erlang, whereis, [erlmcp_cluster_changes]),
    unsupported = call(A, erlmcp_cluster_changes, answer, [2, ?SERVER, question]),
    unsupported = call(A, erlmcp_cluster_changes, answer, [1, ?SERVER, question]).

%% 20,000 changes wait for the process, and 10,000 of a server for the other nodes, equal ones once.
%% With one more, the other nodes hear that anything may have changed.
too_many_changes_become_one(Config) ->
    [A, B, _] = members(Config),
    Streams = [listen(B, Filter) || Filter <- [#{promptsListChanged => true},
                                               #{resourceSubscriptions => [~"data:///count"]}]],
    [begin
         #{missed := Before} = call(A, counts, []),
         true = call(A, too_many, [Of]),
         [~"notifications/prompts/list_changed", ~"notifications/resources/updated"] =
             [heard(Stream) || Stream <- Streams],
         #{missed := After} = call(A, counts, []),
         ?assert(After > Before)
     end || Of <- [same, different]],
    lists:foreach(fun erlmcp_test_http:close/1, Streams).

a_busy_connection_blocks_nobody(Config) ->
    [A, B, C] = members(Config),
    [Other, Busy] = [listen(Member, #{promptsListChanged => true}) || Member <- [B, C]],
    #{missed := Before} = call(A, counts, []),
    State = state(C, true),
    ok = erlmcp_test_cluster:pause(C),
    try
        Took = call(A, flood, [40, Before]),
        ct:pal("5000 changes published in ~b ms at most", [Took]),
        %% A process that is suspended waits for as long as the other node stands still.
        ?assert(Took < 10_000),
        %% The third node hears of what changes meanwhile.
        Prompt = #{name => ~"meanwhile", handler => fun ?MODULE:done/2},
        ok = call(A, erlmcp, add, [?SERVER, prompt, Prompt]),
        ~"notifications/prompts/list_changed" = heard(Other),
        %% Whoever asks that node does not wait for room, either.
        {error, <<"requestState: the node", _/binary>>} = booked(A, State, true)
    after
        erlmcp_test_cluster:resume(C)
    end,
    ~"notifications/prompts/list_changed" = heard(Busy),
    lists:foreach(fun erlmcp_test_http:close/1, [Other, Busy]).

what_a_lost_connection_hid_is_heard(Config) ->
    [A, B, C] = members(Config),
    Stream = listen(B, #{resourceSubscriptions => [~"data:///count"]}),
    ok = erlmcp_test_cluster:cut([A], [B, C]),
    awaited(fun() -> call(A, erlang, nodes, []) =:= [] end),
    ok = call(A, erlmcp, resource_updated, [?SERVER, ~"data:///count"]),
    ok = erlmcp_test_cluster:heal([A], [B, C]),
    ~"notifications/resources/updated" = heard(Stream),
    erlmcp_test_http:close(Stream).

%% Changes of its own node, and of another one, that wait for it.
what_a_killed_process_had_is_heard(Config) ->
    [A, B, _] = members(Config),
    [begin
         Stream = listen(Hears, #{resourceSubscriptions => [~"data:///count"]}),
         #{sent := Before} = call(B, counts, []),
         ok = call(A, sys, suspend, [erlmcp_cluster_changes]),
         ok = call(Changes, erlmcp, resource_updated, [?SERVER, ~"data:///count"]),
         Changes =:= A orelse awaited(fun() -> map_get(sent, call(B, counts, [])) > Before end),
         ok = killed(erlmcp_cluster_changes, A),
         ~"notifications/resources/updated" = heard(Stream),
         erlmcp_test_http:close(Stream)
     end || {Changes, Hears} <- [{A, B}, {B, A}]].

%% `pg` may end, and with it what it knows.
groups_are_joined_again(Config) ->
    [A, B, _] = Members = members(Config),
    Lease = call(A, erlang, whereis, [erlmcp_cluster_lease]),
    ok = killed(erlmcp_cluster_scope, A),
    #{cluster := Cluster} = call(A, erlmcp_cluster_store, view, []),
    [awaited(fun() ->
         Pid = call(A, erlang, whereis, [Name]),
         lists:all(fun(Member) ->
             lists:member(Pid, call(Member, pg, get_members, [erlmcp_cluster_scope, Group]))
         end, Members)
     end) || {Name, Group} <- [{erlmcp_cluster_changes, Cluster},
                               {erlmcp_cluster_rates, {erlmcp_cluster_rates, Cluster}}]],
    Stream = listen(B, #{resourceSubscriptions => [~"data:///count"]}),
    ok = call(A, erlmcp, resource_updated, [?SERVER, ~"data:///count"]),
    ~"notifications/resources/updated" = heard(Stream),
    erlmcp_test_http:close(Stream),
    %% The node's sessions have stayed here.
    Lease = call(A, erlang, whereis, [erlmcp_cluster_lease]).

%% Its part of the store has ended, and is not started again yet.
a_node_without_its_store_changes_too(Config) ->
    [_, B, _] = Members = members(Config),
    %% A busy machine may let a lease lapse for a moment.
    ok = awaited(fun() -> map_size(call(B, erlmcp_cluster_members, incarnations, [])) =:= 3 end),
    ok = call(B, sys, suspend, [erlmcp_cluster_store]),
    try
        ok = call(B, khepri, stop, [erlmcp_cluster]),
        ok = call(B, erlmcp_cluster, add, [?SERVER, tool, tool(~"late")])
    after
        ok = call(B, sys, resume, [erlmcp_cluster_store])
    end,
    [#{~"content" := [#{~"text" := ~"done"}]} = result(Member, ~"tools/call", #{name => ~"late"})
     || Member <- Members],
    ok = call(B, erlmcp_cluster, remove, [?SERVER, tool, ~"late"]),
    ok = awaited(fun() -> call(B, erlmcp_cluster_store, members, []) =/= [] end).

a_node_that_has_just_joined_changes_too(Config) ->
    [_, _, #{options := Options} = C] = members(Config),
    ok = erlmcp_test_cluster:leave(C),
    ok = call(C, join_and_add, [Options, tool(~"early")]),
    #{~"content" := [#{~"text" := ~"done"}]} = result(C, ~"tools/call", #{name => ~"early"}).

%% It starts its servers when it has joined, so none of them can say that it has missed something.
what_a_killed_node_had_is_heard(Config) ->
    [A, B, _] = members(Config),
    Stream = listen(B, #{resourceSubscriptions => [~"data:///count"]}),
    ok = call(A, sys, suspend, [erlmcp_cluster_changes]),
    ok = call(A, erlmcp, resource_updated, [?SERVER, ~"data:///count"]),
    ok = erlmcp_test_cluster:kill(A),
    Back = erlmcp_test_cluster:revive(maps:remove(listeners, A)),
    try
        [ok] = erlmcp_test_cluster:join([Back]),
        ~"notifications/resources/updated" = heard(Stream)
    after
        erlmcp_test_cluster:stop(Back)
    end,
    erlmcp_test_http:close(Stream).

%% Returns when the next process has the name.
killed(Name, Member) ->
    Pid = call(Member, erlang, whereis, [Name]),
    true = call(Member, erlang, exit, [Pid, kill]),
    awaited(fun() ->
        Next = call(Member, erlang, whereis, [Name]),
        is_pid(Next) andalso Next =/= Pid
    end).

%% Clients.

members(Config) -> proplists:get_value(members, Config).

server(#{listeners := Listeners}, Of) ->
    lists:nth(map_get(Of, #{anonymous => 1, tokens => 2, proofs => 3, nonces => 4}), Listeners).

with_token(Name) ->
    #{headers => #{~"authorization" => <<"Bearer ", (map_get(Name, ?TOKENS))/binary>>}}.

listen(Member, Filter) ->
    listen(server(Member, anonymous), Filter, #{}).

listen(Server, Filter, Options) ->
    Socket = erlmcp_test_http:connect(Server),
    {Headers, Body} = erlmcp_test_http:message(~"subscriptions/listen", #{notifications => Filter},
                                               Options),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    {200, _} = erlmcp_test_http:head(Socket),
    ~"notifications/subscriptions/acknowledged" = heard(Socket),
    Socket.

heard(Socket) ->
    {event, #{~"method" := Method}} = erlmcp_test_http:event(Socket),
    Method.

result(Member, Method, Params) ->
    result(Member, Method, Params, #{}).

result(Member, Method, Params, Options) ->
    #{~"result" := Result} = message(Member, Method, Params, Options),
    Result.

message(Member, Method, Params, Options) ->
    #{messages := [Message]} =
        erlmcp_test_http:call(server(Member, anonymous), Method, Params, Options),
    Message.

call(Member, Function, Arguments) ->
    call(Member, ?MODULE, Function, Arguments).

call(Member, Module, Function, Arguments) ->
    erlmcp_test_cluster:call(Member, Module, Function, Arguments, 60_000).

awaited(Is) ->
    _ = erlmcp_test_cluster:await(Is, 30_000),
    ok.
