-module(cluster_command_SUITE).
-moduledoc "`erlmcp cluster`, and `erlmcp serve --cluster`.".

-include_lib("kernel/include/file.hrl").

-import(erlmcp_test_program, [main/1, one_line/1]).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_node_serves_in_its_cluster/1, a_node_has_one_name/1, a_long_cookie_is_refused/1,
         the_status_says_how_many_may_fail/1, the_status_says_whose_clock_is_wrong/1,
         secrets_are_random_and_private/1, wrong_use_is_said/1]).

-define(NODE, "mcp@127.0.0.7").

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [a_node_serves_in_its_cluster, a_node_has_one_name, a_long_cookie_is_refused,
     the_status_says_how_many_may_fail, the_status_says_whose_clock_is_wrong,
     secrets_are_random_and_private, wrong_use_is_said].

init_per_suite(Given) ->
    Config = erlmcp_test_program:init(Given),
    {ok, _} = application:ensure_all_started(erlmcp_cli),
    %% The path of a socket has 107 bytes at most.
    Folder = filename:join("/tmp", "erlmcp-cluster-" ++ os:getpid()),
    ok = filelib:ensure_path(Folder),
    [{folder, Folder} | Config].

end_per_suite(Config) ->
    file:del_dir_r(folder(Config)).

folder(Config) -> proplists:get_value(folder, Config).

in(Name, Config) -> filename:join(folder(Config), Name).

%% A cluster of one node is there at once, and its sessions are there again when it is.
a_node_serves_in_its_cluster(Config) ->
    Secret = in("secret", Config),
    {0, "", ""} = main(["cluster", "secret", Secret]),
    with_flags("", fun() ->
        Session = serving(fun(Http, Url) -> used(Http, Url, Config) end, Config),
        #{status := 200} = serving(fun(Http, _) ->
            erlmcp_test_http:call(Http, ~"ping", #{}, #{session => Session})
        end, Config)
    end).

with_flags(More, Do) ->
    Port = integer_to_list(erlmcp_test_port:unused()),
    true = os:putenv("ERL_FLAGS", "-start_epmd false -erl_epmd_port " ++ Port
                                      ++ " -kernel inet_dist_use_interface {127,0,0,7}" ++ More),
    true = os:putenv("ERLMCP_COOKIE", "of_this_test"),
    try
        Do()
    after
        true = os:unsetenv("ERL_FLAGS"),
        true = os:unsetenv("ERLMCP_COOKIE")
    end.

%% The others would not find it by the name that its user has given.
a_node_has_one_name(Config) ->
    Other = "other@127.0.0.7",
    Secret = in("secret_of_other", Config),
    {0, "", ""} = main(["cluster", "secret", Secret]),
    with_flags(" -name " ++ Other, fun() ->
        {1, _, Why} = erlmcp_test_program:erlmcp(
            ["serve", "everything", "--port", "0", "--cluster", in("other", Config),
             "--name", ?NODE, "--seed", Other, "--secret", Secret,
             "--control", in("o.sock", Config)], Config),
        match = re:run(Why, "^--name mcp@127\\.0\\.0\\.7: .*other@127\\.0\\.0\\.7",
                       [multiline, {capture, none}])
    end).

%% No atom is longer than 255 characters, and a cookie is one.
a_long_cookie_is_refused(Config) ->
    Secret = in("secret_of_long", Config),
    {0, "", ""} = main(["cluster", "secret", Secret]),
    with_flags("", fun() ->
        true = os:putenv("ERLMCP_COOKIE", lists:duplicate(256, $a)),
        {2, _, Why} = erlmcp_test_program:erlmcp(
            ["serve", "everything", "--port", "0", "--cluster", in("long", Config),
             "--name", ?NODE, "--seed", ?NODE, "--secret", Secret,
             "--control", in("l.sock", Config)], Config),
        match = re:run(Why, "^ERLMCP_COOKIE: .*255 characters", [multiline, {capture, none}])
    end).

serving(Use, Config) ->
    {Server, Url, _} = erlmcp_test_program:serve(
        ["--port", "0", "--cluster", in("store", Config), "--name", ?NODE, "--seed", ?NODE,
         "--secret", in("secret", Config), "--control", in("c.sock", Config), "--lame", "0"],
        Config),
    #{port := Port} = uri_string:parse(Url),
    try
        Use(#{port => Port, url => ~"http://127.0.0.1"}, Url)
    after
        0 = erlmcp_test_program:stop("TERM", Server)
    end.

used(Http, Url, Config) ->
    Cluster = fun(Arguments) ->
        main(["cluster" | Arguments] ++ ["--control", in("c.sock", Config)])
    end,
    Session = erlmcp_test_http:initialize(Http, ~"2025-11-25"),
    %% A slow disk may let a lease lapse for a moment.
    ok = erlmcp_test_servers:await(fun() ->
        {0, Status, ""} = Cluster(["status"]),
        case re:run(Status, "^mcp@127\\.0\\.0\\.7  alive  [01]\\.[0-9] s  1 +0 +0 +"
                            "this node, leads$", [multiline, {capture, none}]) of
            match -> {ok, ok};
            nomatch -> again
        end
    end),
    {0, Json, ""} = Cluster(["status", "--json"]),
    #{~"majority" := 1, ~"own" := ~"mcp@127.0.0.7", ~"nodes" := [#{~"state" := ~"alive"}]} =
        json:decode(list_to_binary(Json)),
    {0, _, ""} = erlmcp_test_program:erlmcp(["call", Url, "echo",
                                             "{\"text\":\"hello\"}"], Config),
    Said = fun(Sentence, Arguments) ->
        {1, "", Why} = Cluster(Arguments),
        Sentence = string:trim(Why)
    end,
    lists:foreach(fun({Sentence, Arguments}) -> Said(Sentence, Arguments) end, [
        {"this node is in its cluster", ["join", in("store", Config), "--seed", ?NODE]},
        {"the cluster has no such node", ["forget", "mcp@127.0.0.9"]},
        {"this node is alive: stop it, or let it leave", ["forget", ?NODE]},
        {"this node is the last one of its cluster, and cannot leave",
         ["leave", "--seconds", "0", "--lame", "0"]}]),
    %% It was not drained.
    {0, _, ""} = erlmcp_test_program:erlmcp(["call", Url, "echo",
                                             "{\"text\":\"hello\"}"], Config),
    Session.

%% The answers of nodes, as a socket gives them.
the_status_says_how_many_may_fail(Config) ->
    Node = fun(State) -> #{node => ~"mcp@a", state => State, leads => false} end,
    [{States, Sentence} = {States, advice(States, Node, Config)}
     || {States, Sentence} <- [
            {[alive], "One node: while it does not run, its sessions wait. Let two more join."},
            {[alive, alive], "Two nodes, and both make the majority: if one fails, sessions are "
                             "refused. Let a third one join."},
            {[alive, alive, alive], "3 nodes, and 2 make a majority: 1 more may fail."},
            {[alive, leaving, alive], "3 nodes, and 2 make a majority: none of those alive may "
                                      "fail."},
            {[dead, leaving, alive], "3 nodes, and 2 make a majority: there is none, so sessions "
                                     "are refused."},
            {lists:duplicate(5, alive), "5 nodes, and 3 make a majority: 2 more may fail."}]].

advice(States, Node, Config) ->
    lists:last(status([Node(State) || State <- States], Config)).

the_status_says_whose_clock_is_wrong(Config) ->
    Node = fun(Ahead) ->
        #{node => ~"mcp@b", state => alive, leads => false, clock_ahead_s => Ahead}
    end,
    [_, Right, Ahead, Behind, _] = status([Node(Seconds) || Seconds <- [0, 3_600, -61]], Config),
    "its clock is 3600 s ahead" = string:find(Ahead, "its"),
    nomatch = string:find(Right, "clock"),
    "its clock is 61 s behind" = string:find(Behind, "its").

%% The lines for these nodes.
status(Nodes, Config) ->
    File = in("answers.sock", Config),
    _ = file:delete(File),
    {ok, Listening} = gen_tcp:listen(0, [{ifaddr, {local, File}}, binary, {active, false}]),
    Answer = json:encode(#{ok => #{own => ~"mcp@a", lease_ms => 900,
                                   majority => length(Nodes) div 2 + 1,
                                   nodes => Nodes}}),
    _ = spawn_link(fun() ->
        {ok, Socket} = gen_tcp:accept(Listening),
        {ok, _} = gen_tcp:recv(Socket, 0),
        ok = gen_tcp:send(Socket, Answer),
        gen_tcp:close(Socket)
    end),
    {0, Out, ""} = main(["cluster", "status", "--control", File]),
    ok = gen_tcp:close(Listening),
    string:lexemes(Out, "\n").

secrets_are_random_and_private(Config) ->
    {0, One, ""} = main(["cluster", "secret"]),
    {0, Other, ""} = main(["cluster", "secret"]),
    false = One =:= Other,
    32 = byte_size(base64:decode(string:trim(One), #{mode => urlsafe, padding => false})),
    File = in("a_secret", Config),
    {0, "", ""} = main(["cluster", "secret", File]),
    {ok, #file_info{mode = Mode}} = file:read_file_info(File),
    8#600 = Mode band 8#777,
    {ok, Kept} = file:read_file(File),
    %% One that is in use is not lost.
    {1, "", Why} = main(["cluster", "secret", File]),
    one_line(Why),
    {ok, Kept} = file:read_file(File).

wrong_use_is_said(Config) ->
    Serve = ["serve", "everything"],
    [begin
         {2, "", Why} = main(Arguments),
         one_line(Why)
     end || Arguments <- [
         ["cluster"], ["cluster", "destroy"], ["cluster", "forget"], ["cluster", "join"],
         ["cluster", "join", folder(Config)],
         ["cluster", "join", folder(Config), "--seed", "a@b", "--dns", "c"],
         ["cluster", "join", folder(Config), "--seed", "a@b" | secrets(3)],
         Serve ++ ["--name", "mcp@127.0.0.1"], Serve ++ ["--cluster", folder(Config)],
         Serve ++ ["--seed", "mcp@127.0.0.1"],
         Serve ++ ["--cluster", folder(Config), "--name", "mcp@127.0.0.1"],
         Serve ++ ["--stdio", "--cluster", folder(Config)]]],
    {2, "", Long} = main(Serve ++ ["--cluster", folder(Config), "--seed", "a@b", "--secret",
                                   in("secret", Config), "--name", lists:duplicate(256, $a)]),
    match = re:run(Long, "^--name: .*255 characters", [multiline, {capture, none}]),
    {3, "", None} = main(["cluster", "status", "--control", in("none", Config)]),
    one_line(None).

secrets(Count) -> lists:append([["--secret", "s"] || _ <- lists:seq(1, Count)]).
