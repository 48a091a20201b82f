-module(cluster_tokens_SUITE).
-moduledoc """
The token store of a cluster: what one node stores, the others have, sealed everywhere. The cases
follow each other in one cluster of three nodes.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_value_is_on_all_nodes/1, names_and_keys_are_told_apart/1, bounds_are_refused/1,
         options_are_checked/1, a_client_uses_what_another_node_has_got/1,
         nothing_is_seen_in_clear/1, nothing_is_read_without_a_majority/1]).
%% On the nodes.
-export([client/1, store/2, states/0]).

-import(erlmcp_test_cluster, [call/4, call/5, await/2]).

-define(STORE, erlmcp_cluster_token_store).
-define(KEY, {tokens, ~"https://example.com/mcp", authorization_code, false, none}).
-define(PLANTED, ~"planted-refresh-token-0123456789").
-define(NAME, ~"planted-name-of-a-user").
-define(MAX_BYTES, 32_768).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [a_value_is_on_all_nodes, names_and_keys_are_told_apart, bounds_are_refused,
     options_are_checked, a_client_uses_what_another_node_has_got, nothing_is_seen_in_clear,
     nothing_is_read_without_a_majority].

init_per_suite(Config) ->
    Applications = erlmcp_test_applications:start([gun, jose, cowboy, inets], Config),
    Members = erlmcp_test_cluster:start(Config, #{}),
    {error, not_joined} = call(hd(Members), ?STORE, open, [#{name => ~"ada"}]),
    [ok, ok, ok] = erlmcp_test_cluster:join(Members),
    persistent_term:put(?MODULE, Members),
    Applications.

end_per_suite(Config) ->
    lists:foreach(fun erlmcp_test_cluster:stop/1, members()),
    persistent_term:erase(?MODULE),
    erlmcp_test_applications:stop(Config).

a_value_is_on_all_nodes(_) ->
    [A, B, C] = members(),
    Of = #{name => ?NAME},
    none = stored(A, Of, get, [?KEY]),
    ok = stored(A, Of, put, [?KEY, value(~"first")]),
    [{ok, #{~"refresh_token" := ~"first"}} = stored(Member, Of, get, [?KEY])
     || Member <- members()],
    ok = stored(B, Of, put, [?KEY, value(?PLANTED)]),
    [{ok, #{~"refresh_token" := ?PLANTED}} = stored(Member, Of, get, [?KEY])
     || Member <- members()],
    ok = stored(C, Of, delete, [?KEY]),
    none = stored(A, Of, get, [?KEY]),
    ok = stored(A, Of, delete, [?KEY]).

names_and_keys_are_told_apart(_) ->
    [A | _] = members(),
    Places = [{#{name => Name}, Key} || Name <- [~"ada", ~"bo"],
                                        Key <- [~"a", a, {a}, [~"a"], {client, ~"a"}]],
    [ok = stored(A, Of, put, [Key, value(integer_to_binary(N))])
     || {N, {Of, Key}} <- lists:enumerate(Places)],
    [begin
         Number = integer_to_binary(N),
         {ok, #{~"refresh_token" := Number}} = stored(A, Of, get, [Key]),
         ok = stored(A, Of, delete, [Key])
     end || {N, {Of, Key}} <- lists:enumerate(Places)].

bounds_are_refused(_) ->
    [A, B, _] = members(),
    Few = #{name => ~"ada", values => 2},
    ok = stored(A, Few, put, [one, value(~"1")]),
    ok = stored(B, Few#{name => ~"bo"}, put, [two, value(~"2")]),
    {error, {full, 2}} = stored(A, Few, put, [three, value(~"3")]),
    ok = stored(A, Few, put, [one, value(~"replaced")]),
    ok = stored(B, Few#{name => ~"bo"}, delete, [two]),
    ok = stored(A, Few, put, [three, value(~"3")]),
    Around = iolist_size(json:encode(value(~""))),
    Largest = value(binary:copy(~"x", ?MAX_BYTES - Around)),
    ok = stored(A, Few, put, [three, Largest]),
    {ok, Largest} = stored(B, Few, get, [three]),
    TooLarge = value(binary:copy(~"x", ?MAX_BYTES - Around + 1)),
    {error, {too_large, ?MAX_BYTES}} = stored(A, Few, put, [three, TooLarge]),
    [ok = stored(A, Few, delete, [Key]) || Key <- [one, three]].

options_are_checked(_) ->
    [A | _] = members(),
    [{Options, {error, {bad_option, Name}}} = {Options, call(A, ?STORE, open, [Options])}
     || {Options, Name} <- [{#{}, name}, {#{name => ~""}, name}, {#{name => ada}, name},
                            {#{name => ~"ada", values => 0}, values},
                            {#{name => ~"ada", other => 1}, other}]].

%% The user logs in at one node only, and a token that is refreshed there is not refreshed again.
a_client_uses_what_another_node_has_got(_) ->
    [A, B, C] = members(),
    #{table := Table} = Peer = erlmcp_test_oauth:start(),
    Url = erlmcp_test_oauth:url(Peer),
    [One, Two, Three] = [begin
                             {ok, Client} = call(Member, ?MODULE, client, [Url]),
                             {Member, Client}
                         end || Member <- [A, B, C]],
    [{ok, 200} = request(Client, Url) || Client <- [One, Two]],
    1 = length(erlmcp_test_oauth:asked(Peer, ~"/authorize")),
    true = ets:match_delete(Table, {{token, '_'}}),
    [{ok, 200} = request(Client, Url) || Client <- [Two, One, Three]],
    1 = length(erlmcp_test_oauth:asked(Peer, ~"/authorize")),
    2 = length(erlmcp_test_oauth:asked(Peer, ~"/token")),
    ok = erlmcp_test_oauth:stop(Peer).

nothing_is_seen_in_clear(_) ->
    [A | _] = members(),
    ok = stored(A, #{name => ?NAME}, put, [?KEY, value(?PLANTED)]),
    Secrets = [?PLANTED, ?NAME, ~"example.com/mcp"],
    [begin
         Files = [File || File <- filelib:wildcard(filename:join(Folder, "**")),
                          filelib:is_regular(File)],
         true = Files =/= [],
         [begin
              {ok, Bytes} = file:read_file(File),
              {File, nomatch} = {File, binary:match(Bytes, Secrets)}
          end || File <- Files]
     end || #{options := #{data_dir := Folder}} <- members()],
    %% The name under which the store has it is there, so what is there is seen. A node has it a
    %% moment after the leader.
    Digest = crypto:hash(sha256, term_to_binary({?NAME, ?KEY}, [deterministic])),
    [begin
         {States, _} = await(fun() ->
             Read = call(Member, ?MODULE, states, []),
             binary:match(Read, Digest) =/= nomatch andalso Read
         end, 30_000),
         {Member, nomatch} = {Member, binary:match(States, Secrets)}
     end || Member <- members()],
    {ok, #{~"refresh_token" := ?PLANTED}} = stored(A, #{name => ?NAME}, get, [?KEY]).

nothing_is_read_without_a_majority(_) ->
    [A, B, C] = members(),
    ok = erlmcp_test_cluster:kill(B),
    ok = erlmcp_test_cluster:kill(C),
    Of = #{name => ?NAME},
    {error, unavailable} = stored_once(A, Of, put, [?KEY, value(~"late")]),
    {error, unavailable} = stored_once(A, Of, get, [?KEY]),
    {error, unavailable} = stored_once(A, Of, delete, [?KEY]).

members() -> persistent_term:get(?MODULE).

value(Token) ->
    #{~"refresh_token" => Token, ~"expires_at" => 1}.

%% A pause of the machine may delay the store by a second. Then it says that it is unavailable.
stored(Member, Of, Function, Arguments) ->
    {Result, _} = await(fun() ->
        case stored_once(Member, Of, Function, Arguments) of
            {error, unavailable} -> false;
            Answer -> Answer
        end
    end, 30_000),
    Result.

stored_once(Member, Of, Function, Arguments) ->
    call(Member, ?MODULE, store, [Of, {Function, Arguments}], 60_000).

%% A node has no users, and its process for calls ends with each.
-doc false.
store(Of, {Function, Arguments}) ->
    {ok, Store} = ?STORE:open(Of),
    apply(?STORE, Function, Arguments ++ [Store]).

-doc false.
client(Url) ->
    {ok, _} = application:ensure_all_started([gun, jose, inets]),
    Test = self(),
    _ = spawn(fun() ->
        Options = erlmcp_test_oauth:logged_in(#{store => {?STORE, #{name => ~"ada"}}}),
        {ok, Pid} = erlmcp_authorizer:start_link(Options, Url),
        Test ! {handle, erlmcp_authorizer:handle(Pid)},
        receive after infinity -> ok end
    end),
    receive {handle, Handle} -> {ok, Handle} after 30_000 -> error(no_client) end.

request({Member, Handle}, Url) ->
    Deadline = call(Member, erlmcp_test_oauth, deadline, []),
    call(Member, erlmcp_test_oauth, call, [Handle, #{base => base(Url)}, Deadline], 60_000).

base(Url) ->
    binary:part(Url, 0, byte_size(Url) - byte_size(~"/mcp")).

%% The states of all processes, and all tables that can be read, as bytes.
-doc false.
states() ->
    States = [sys:get_state(Pid) || {_, Pid, _, [Module]} <-
                                        supervisor:which_children(erlmcp_cluster_sup)
                                            ++ supervisor:which_children(member()),
                                    is_atom(Module)],
    Tables = [ets:tab2list(Table) || Table <- ets:all(),
                                     ets:info(Table, protection) =/= private],
    term_to_binary({States, sys:get_status(erlmcp_cluster), Tables}).

member() ->
    [Pid] = [Pid || {member, Pid, _, _} <- supervisor:which_children(erlmcp_cluster_sup)],
    Pid.
