-module(cache_SUITE).
-moduledoc "`docs/caching.md`: what a server keeps, for whom, how long and how much, in both eras.".

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([results_are_given_again/1, arguments_are_compared_as_json/1, every_kind_is_kept/1,
         results_are_kept_as_they_are/1, what_is_no_result_is_not_kept/1,
         private_results_are_their_principals/1,
         public_results_are_everybodys/1, results_expire/1, errors_are_not_kept/1,
         questions_are_not_kept/1, crashes_are_not_kept/1, equal_calls_run_once/1,
         errors_are_shared/1, a_waiting_call_takes_over/1, waiting_has_a_deadline/1,
         repeated_calls_do_not_wait_for_themselves/1, removed_definitions_are_forgotten/1,
         replaced_definitions_are_not_asked/1,
         updated_resources_are_forgotten/1, runs_that_an_update_overtook_are_not_kept/1,
         entries_are_bounded/1, bytes_are_bounded/1, large_arguments_are_not_kept/1,
         middleware_runs_for_kept_results/1, mounted_servers_keep_their_own/1,
         kept_results_need_no_process/1, looking_needs_no_process/1,
         calls_outlive_their_cache/1, uses_are_counted/1]).

-import(erlmcp_test_line, [serve/1, code/1, send/2, recv/1, stateless/3, await_call/0]).
-import(erlmcp_test_two_eras, [eras/0, open/2, ask/3, call/3, read/2, text/1, await/1]).

-define(LONG, 600_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [results_are_given_again, arguments_are_compared_as_json, every_kind_is_kept,
     results_are_kept_as_they_are, private_results_are_their_principals,
     public_results_are_everybodys, results_expire, errors_are_not_kept, questions_are_not_kept,
     crashes_are_not_kept, equal_calls_run_once, errors_are_shared, a_waiting_call_takes_over,
     waiting_has_a_deadline, repeated_calls_do_not_wait_for_themselves,
     removed_definitions_are_forgotten, replaced_definitions_are_not_asked,
     updated_resources_are_forgotten, runs_that_an_update_overtook_are_not_kept,
     entries_are_bounded, bytes_are_bounded, large_arguments_are_not_kept,
     middleware_runs_for_kept_results, mounted_servers_keep_their_own,
     kept_results_need_no_process, looking_needs_no_process, calls_outlive_their_cache,
     uses_are_counted].

init_per_testcase(_, Config) ->
    %% Handlers that crash, and processes that are killed, say so to the log at length.
    #{level := Level} = logger:get_primary_config(),
    ok = logger:set_primary_config(level, none),
    [{log_level, Level} | Config].

end_per_testcase(_, Config) ->
    ok = logger:set_primary_config(level, proplists:get_value(log_level, Config)).

%% A tool that returns how often it ran, and what it was given.
counting(Name, Cache) ->
    Counter = counters:new(1, []),
    #{name => Name, cache => Cache,
      handler => fun(Arguments, _) -> counted(Counter, Arguments) end}.

counted(Counter, Arguments) ->
    ok = counters:add(Counter, 1, 1),
    Text = maps:get(~"text", Arguments, ~""),
    <<Text/binary, (integer_to_binary(counters:get(Counter, 1)))/binary>>.

%% "The same call, in either era, is given the result again and does not run."
results_are_given_again(_) ->
    Server = serve(#{tools => [counting(~"count", #{ttl_ms => ?LONG}),
                               maps:remove(cache, counting(~"not kept", #{}))]}),
    Clients = [open(Era, Server) || Era <- eras() ++ eras()],
    [~"a1" = text(call(Client, ~"count", #{~"text" => ~"a"})) || Client <- Clients],
    [~"b2" = text(call(Client, ~"count", #{~"text" => ~"b"})) || Client <- Clients],
    [~"1", ~"2", ~"3", ~"4"] = [text(call(Client, ~"not kept", #{})) || Client <- Clients].

%% The order of an object's members is not part of it; everything else is.
arguments_are_compared_as_json(_) ->
    Server = serve(#{tools => [counting(~"count", #{ttl_ms => ?LONG})]}),
    {_, Socket} = open(~"2026-07-28", Server),
    Meta = json:encode(erlmcp_test_line:meta()),
    Ask = fun(Arguments) ->
        send(Socket, iolist_to_binary(
            [~'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count",',
             ~'"arguments":', Arguments, ~',"_meta":', Meta, ~"}}"])),
        text(recv(Socket))
    end,
    [{Arguments, Text} = {Arguments, Ask(Arguments)}
     || {Arguments, Text} <- [{~'{"a":{"x":1,"y":[1,2]},"b":2}', ~"1"},
                              {~'{ "b": 2, "a": {"y":[1,2], "x":1} }', ~"1"},
                              {~'{"a":{"x":1,"y":[2,1]},"b":2}', ~"2"},
                              {~'{"a":{"x":1,"y":[1,2]},"b":"2"}', ~"3"},
                              {~'{"a":{"x":1,"y":[1,2]},"b":2,"c":null}', ~"4"},
                              {~'{"a":{"x":1,"y":[1,2]}}', ~"5"}]].

every_kind_is_kept(_) ->
    Counter = counters:new(1, []),
    Handler = fun(Arguments, _) -> counted(Counter, Arguments) end,
    Cache = #{ttl_ms => ?LONG},
    Server = serve(#{resources => [#{uri => ~"r://plain", name => ~"r", cache => Cache,
                                     handler => Handler}],
                     resource_templates => [#{uri_template => ~"t://{id}", name => ~"t",
                                              cache => Cache, handler => Handler}],
                     prompts => [#{name => ~"p", cache => Cache, handler => Handler}]}),
    [begin
         Client = open(Era, Server),
         [~"1", ~"2", ~"3"] =
             [text(read(Client, Uri)) || Uri <- [~"r://plain", ~"t://a", ~"t://b"]],
         ~"4" = text(ask(Client, ~"prompts/get", #{~"name" => ~"p"}))
     end || Era <- eras()].

%% "As the handler returned it": with its links, `_meta` and structure, in each revision's own way.
results_are_kept_as_they_are(_) ->
    Results = #{~"links" => [erlmcp_content:resource_link(~"r://x", ~"x", #{'_meta' => #{a => 1}}),
                             erlmcp_content:image(<<0, 255>>, ~"image/png"), ~"text"],
                ~"map" => #{celsius => 21.5, ~"in" => [1, null, ~"x"]},
                ~"list" => {structured, [1, 2]}},
    Definition = fun(Name, Return) ->
        #{name => Name, handler => fun(_, _) -> Return end}
    end,
    Server = serve(#{tools => [(Definition(Name, Return))#{cache => #{ttl_ms => ?LONG}}
                               || Name := Return <- Results]}),
    Plain = serve(#{tools => [Definition(Name, Return) || Name := Return <- Results]}),
    [begin
         Client = open(Era, Server),
         #{~"result" := Result} = call(open(Era, Plain), Name, #{}),
         [#{~"result" := Result} = call(Client, Name, #{}) || _ <- [1, 2]]
     end || Era <- eras(), Name <- maps:keys(Results)].

%% What its tool does not promise fails one call, and not all that are equal to it.
what_is_no_result_is_not_kept(_) ->
    Counter = counters:new(1, []),
    Handler = fun(_, _) ->
        ok = counters:add(Counter, 1, 1),
        case counters:get(Counter, 1) of
            1 -> #{celsius => ~"warm"};
            2 -> [not_content];
            N -> #{celsius => N}
        end
    end,
    Server = serve(#{tools => [#{name => ~"weather", output_schema => #{celsius => number},
                                 cache => #{ttl_ms => ?LONG}, handler => Handler}]}),
    Client = open(~"2026-07-28", Server),
    [#{~"error" := #{~"code" := -32603}} = call(Client, ~"weather", #{}) || _ <- [1, 2]],
    [#{~"result" := #{~"structuredContent" := #{~"celsius" := 3}}} =
         call(Client, ~"weather", #{}) || _ <- [1, 2]].

%% Two listeners, whose clients are two principals.
two_principals(Tool) ->
    serve(#{tools => [Tool], listen => [{tcp, #{principal => Who}} || Who <- [~"Ada", ~"Bob"]]}).

as(Who, Era, Server) ->
    [Ada, Bob] = [Port || #{port := Port} <- erlmcp:listeners(Server)],
    text(call(open(Era, maps:get(Who, #{ada => Ada, bob => Bob})), ~"count", #{})).

%% "`private`, the default: to the same principal only."
private_results_are_their_principals(_) ->
    [begin
         Server = two_principals(counting(~"count", Cache)),
         [[~"1", ~"2", ~"1", ~"2"] = [as(Who, Era, Server) || Who <- [ada, bob, ada, bob]]
          || Era <- eras()]
     end || Cache <- [#{ttl_ms => ?LONG}, #{ttl_ms => ?LONG, scope => private}]].

public_results_are_everybodys(_) ->
    Server = two_principals(counting(~"count", #{ttl_ms => ?LONG, scope => public})),
    [~"1" = as(Who, Era, Server) || Era <- eras(), Who <- [ada, bob]].

results_expire(_) ->
    Server = serve(#{tools => [counting(~"count", #{ttl_ms => 1})]}),
    [begin
         Client = open(Era, Server),
         First = text(call(Client, ~"count", #{})),
         await(fun() -> text(call(Client, ~"count", #{})) =/= First end)
     end || Era <- eras()].

%% "Only complete, successful results are kept."
errors_are_not_kept(_) ->
    Counter = counters:new(1, []),
    Server = serve(#{tools => [#{name => ~"fails", cache => #{ttl_ms => ?LONG},
                                 handler => fun(A, _) -> {error, counted(Counter, A)} end}]}),
    Client = open(~"2026-07-28", Server),
    [{error, Count} = text(call(Client, ~"fails", #{})) || Count <- [~"1", ~"2", ~"3"]],
    #{cache := #{entries := 0, hits := 0, misses := 3}} = info(Server).

%% "Results produced by retrying a request [with] `inputResponses` or `requestState` MUST NOT be
%% cached, as they depend on inputs that are not part of the cache key."
questions_are_not_kept(_) ->
    Question = erlmcp_input:elicit(~"Who?", #{type => object, properties => #{}}),
    Handler = fun(_, #{input := #{~"q" := #{~"content" := #{~"who" := Who}}}}) -> Who;
                 (_, _) -> {input_required, #{~"q" => Question}}
              end,
    Server = serve(#{tools => [#{name => ~"asks", cache => #{ttl_ms => ?LONG},
                                 handler => Handler}]}),
    Client = open(~"2026-07-28", Server),
    Params = #{~"name" => ~"asks", ~"_meta" =>
        #{~"io.modelcontextprotocol/clientCapabilities" => #{~"elicitation" => #{~"form" => #{}}}}},
    [begin
         #{~"result" := #{~"resultType" := ~"input_required"}} = ask(Client, ~"tools/call", Params),
         Answers = #{~"q" => #{~"action" => ~"accept", ~"content" => #{~"who" => Who}}},
         Who = text(ask(Client, ~"tools/call", Params#{~"inputResponses" => Answers}))
     end || Who <- [~"Ada", ~"Bob"]],
    #{cache := #{entries := 0}} = info(Server).

%% A tool that crashes the first time.
crashing_first() ->
    Counter = counters:new(1, []),
    #{name => ~"c", cache => #{ttl_ms => ?LONG}, handler => fun(Arguments, _) ->
        case counted(Counter, Arguments) of
            ~"1" -> error(first);
            Count -> Count
        end
    end}.

crashes_are_not_kept(_) ->
    Server = serve(#{tools => [crashing_first()]}),
    Client = open(~"2026-07-28", Server),
    -32603 = code(call(Client, ~"c", #{})),
    [~"2" = text(call(Client, ~"c", #{})) || _ <- [1, 2]].

%% A tool that tells the test of each run, and returns what it is told to.
waiting() ->
    (erlmcp_test_line:waiting_tool(~"wait"))#{cache => #{ttl_ms => ?LONG}}.

ask_later(Server) ->
    Socket = erlmcp_test_line:connect(Server),
    send(Socket, stateless(1, ~"tools/call", #{~"name" => ~"wait"})),
    Socket.

%% A call that runs, and others that wait for it.
together(Count, Server) ->
    Runner = ask_later(Server),
    Call = await_call(),
    Waiting = [ask_later(Server) || _ <- lists:seq(1, Count)],
    await(fun() -> waiting_calls(Server) =:= Count end),
    receive {called, _, _, _} -> ct:fail(ran_twice) after 0 -> ok end,
    {Call, Runner, Waiting}.

%% Nothing tells that a call waits, but the process that it waits for knows.
waiting_calls(Server) ->
    {_, Cache, _, _} = lists:keyfind(cache, 1, supervisor:which_children(Server)),
    #{runs := Runs} = sys:get_state(Cache),
    lists:sum([queue:len(Waiting) || _ := {_, Waiting} <- Runs]).

%% "Of equal calls at one time one runs; the others wait for it and get its result."
equal_calls_run_once(_) ->
    Server = serve(#{tools => [waiting()]}),
    {Call, Runner, Waiting} = together(20, Server),
    Call ! {answer, ~"once"},
    [~"once" = text(recv(Socket)) || Socket <- [Runner | Waiting]],
    receive {called, _, _, _} -> ct:fail(ran_twice) after 0 -> ok end,
    #{cache := #{entries := 1, hits := 20, misses := 1}} = info(Server).

%% "An error is given to those that wait, and is not kept."
errors_are_shared(_) ->
    [begin
         Server = serve(#{tools => [waiting()]}),
         {Call, Runner, Waiting} = together(3, Server),
         Call ! {answer, Error},
         [{error, ~"no"} = text(recv(Socket)) || Socket <- [Runner | Waiting]],
         Later = ask_later(Server),
         await_call() ! {answer, ~"yes"},
         ~"yes" = text(recv(Later))
     end || Error <- [{error, ~"no"}, {ok, {error, ~"no"}}]].

%% "If the one that runs ends without a result, the next one that waits runs."
a_waiting_call_takes_over(_) ->
    Server = serve(#{tools => [waiting()]}),
    [begin
         {Call, Runner, Waiting} = together(3, Server),
         End(Call, Runner),
         Next = await_call(),
         true = Next =/= Call,
         await(fun() -> waiting_calls(Server) =:= 2 end),
         Next ! {answer, ~"second"},
         [~"second" = text(recv(Socket)) || Socket <- Waiting],
         receive {called, _, _, _} -> ct:fail(ran_twice) after 0 -> ok end,
         ok = erlmcp:remove(Server, tool, ~"wait"),
         ok = erlmcp:add(Server, tool, waiting())
     end || End <- [fun(Call, _) -> exit(Call, kill) end,
                    fun(Call, _) -> Call ! {answer, {crash, ~"is no return"}} end,
                    fun(_, Runner) ->
                        send(Runner, erlmcp_test_line:notification(~"notifications/cancelled",
                                                                   #{~"requestId" => 1}))
                    end,
                    fun(_, Runner) -> erlmcp_test_line:reset(Runner) end]].

%% "A call that waits has its own deadline."
waiting_has_a_deadline(_) ->
    Server = serve(#{tools => [(waiting())#{timeout_ms => 200}]}),
    Sockets = [ask_later(Server) || _ <- [1, 2, 3]],
    [#{~"error" := #{~"data" := #{~"name" := ~"timeout"}}} = recv(Socket) || Socket <- Sockets],
    await(fun() -> waiting_calls(Server) =:= 0 end).

%% A middleware that repeats a call in one process.
repeated_calls_do_not_wait_for_themselves(_) ->
    Repeat = fun(Arguments, Context, Next) ->
        try Next(Arguments, Context) catch error:first -> Next(Arguments, Context) end
    end,
    Server = serve(#{tools => [(crashing_first())#{middleware => [Repeat]}]}),
    [~"2" = text(call(open(Era, Server), ~"c", #{})) || Era <- eras()].

%% "Results go with their definition, and one that replaces it does not get them."
removed_definitions_are_forgotten(_) ->
    Count = fun() -> counting(~"count", #{ttl_ms => ?LONG}) end,
    Server = serve(#{tools => [Count(), (Count())#{name := ~"other"}]}),
    Client = open(~"2026-07-28", Server),
    [~"1" = text(call(Client, Name, #{})) || Name <- [~"count", ~"other"]],
    #{cache := #{entries := 2}} = info(Server),
    ok = erlmcp:remove(Server, tool, ~"count"),
    #{cache := #{entries := 1, bytes := Bytes}} = info(Server),
    ok = erlmcp:add(Server, tool, (Count())#{handler := fun(_, _) -> ~"new" end}),
    ~"new" = text(call(Client, ~"count", #{})),
    ok = erlmcp:remove(Server, tool, ~"count"),
    #{cache := #{entries := 1, bytes := Bytes}} = info(Server),
    ok = erlmcp:remove(Server, tool, ~"other"),
    #{cache := #{entries := 0, bytes := 0}} = info(Server).

%% Not from a call of the one before it either, that had begun and did not run yet.
replaced_definitions_are_not_asked(_) ->
    #{handler := Wait} = waiting(),
    Held = fun(Arguments, Context, Next) -> _ = Wait(Arguments, Context), Next(#{}, Context) end,
    Tool = counting(~"count", #{ttl_ms => ?LONG}),
    Server = serve(#{tools => [Tool#{middleware => [Held], handler := fun(_, _) -> ~"old" end}]}),
    Socket = erlmcp_test_line:connect(Server),
    send(Socket, stateless(1, ~"tools/call", #{~"name" => ~"count"})),
    Call = await_call(),
    ok = erlmcp:remove(Server, tool, ~"count"),
    ok = erlmcp:add(Server, tool, Tool),
    Call ! {answer, go},
    ~"old" = text(recv(Socket)),
    ~"1" = text(call(open(~"2026-07-28", Server), ~"count", #{})).

%% "`erlmcp:resource_updated/2` forgets what was kept of the resource."
updated_resources_are_forgotten(_) ->
    Counter = counters:new(1, []),
    Kept = #{name => ~"r", cache => #{ttl_ms => ?LONG},
             handler => fun(Variables, _) -> counted(Counter, Variables) end},
    Server = serve(#{resources => [Kept#{uri => ~"r://plain"}],
                     resource_templates => [Kept#{uri_template => ~"t://{id}"}]}),
    Client = open(~"2026-07-28", Server),
    Read = fun(Uri) -> text(read(Client, Uri)) end,
    [~"1", ~"2", ~"3"] = [Read(Uri) || Uri <- [~"r://plain", ~"t://a", ~"t://b"]],
    ok = erlmcp:resource_updated(Server, ~"t://a"),
    [~"1", ~"4", ~"3"] = [Read(Uri) || Uri <- [~"r://plain", ~"t://a", ~"t://b"]],
    ok = erlmcp:resource_updated(Server, ~"r://plain"),
    [~"5", ~"4", ~"3"] = [Read(Uri) || Uri <- [~"r://plain", ~"t://a", ~"t://b"]],
    ok = erlmcp:resource_updated(Server, ~"other://").

%% What was read before a change is not given to who asks after it, even while it is being read.
runs_that_an_update_overtook_are_not_kept(_) ->
    #{handler := Handler} = waiting(),
    Server = serve(#{resources => [#{uri => ~"r://x", name => ~"x", cache => #{ttl_ms => ?LONG},
                                     handler => Handler}]}),
    Ask = fun() ->
        Socket = erlmcp_test_line:connect(Server),
        send(Socket, stateless(1, ~"resources/read", #{~"uri" => ~"r://x"})),
        Socket
    end,
    Early = Ask(),
    Old = await_call(),
    ok = erlmcp:resource_updated(Server, ~"r://x"),
    Late = Ask(),
    New = await_call(),
    New ! {answer, ~"new"},
    ~"new" = text(recv(Late)),
    Old ! {answer, ~"old"},
    ~"old" = text(recv(Early)),
    ~"new" = text(recv(Ask())).

%% `cache_entries`: at the limit nothing goes; one more, and the oldest does.
entries_are_bounded(_) ->
    Server = serve(#{limits => #{cache_entries => 2},
                     tools => [counting(~"count", #{ttl_ms => ?LONG})]}),
    Client = open(~"2026-07-28", Server),
    Call = fun(Text) -> text(call(Client, ~"count", #{~"text" => Text})) end,
    [~"a1", ~"b2", ~"a1", ~"b2"] = [Call(Text) || Text <- [~"a", ~"b", ~"a", ~"b"]],
    ~"c3" = Call(~"c"),
    #{cache := #{entries := 2}} = info(Server),
    [~"b2", ~"c3", ~"a4"] = [Call(Text) || Text <- [~"b", ~"c", ~"a"]],
    #{cache := #{entries := 2}} = info(Server).

%% `cache_bytes`: the same in bytes; what is larger by itself is not kept at all.
bytes_are_bounded(_) ->
    Size = byte_size(term_to_binary(~"a1")),
    Calls = fun(Max, Texts) ->
        Server = serve(#{limits => #{cache_bytes => Max},
                         tools => [counting(~"count", #{ttl_ms => ?LONG})]}),
        Client = open(~"2026-07-28", Server),
        Given = [text(call(Client, ~"count", #{~"text" => Text})) || Text <- Texts],
        #{cache := #{bytes := Bytes, entries := Entries}} = info(Server),
        {Given, Bytes, Entries}
    end,
    {[~"a1", ~"b2", ~"a1"], Two, 2} = Calls(2 * Size, [~"a", ~"b", ~"a"]),
    Two = 2 * Size,
    {[~"a1", ~"b2", ~"a3"], Size, 1} = Calls(2 * Size - 1, [~"a", ~"b", ~"a"]),
    {[~"a1", ~"a1"], Size, 1} = Calls(Size, [~"a", ~"a"]),
    {[~"a1", ~"a2"], 0, 0} = Calls(Size - 1, [~"a", ~"a"]).

%% Of arguments, however large, a hash stays; of a text in them that is returned, that text.
large_arguments_are_not_kept(_) ->
    Server = serve(#{tools => [counting(~"count", #{ttl_ms => ?LONG})]}),
    Client = open(~"2026-07-28", Server),
    Large = #{~"text" => ~"a", ~"more" => binary:copy(~"x", 1_000_000)},
    [~"a1" = text(call(Client, ~"count", Large)) || _ <- [1, 2]],
    #{cache := #{entries := 1, bytes := Bytes}} = info(Server),
    true = Bytes < 100,
    {ok, _, #{cache := Table}} = erlmcp_registry:whereis(Server),
    true = ets:info(Table, memory) * erlang:system_info(wordsize) < 100_000.

%% "The cache is next to the handler: all middleware runs, and may refuse what is kept."
middleware_runs_for_kept_results(_) ->
    Refuse = fun(_, #{principal := ~"Bob"}, _) -> {error, ~"not you"};
                (Arguments, Context, Next) -> Next(Arguments, Context)
             end,
    Tool = counting(~"count", #{ttl_ms => ?LONG, scope => public}),
    Server = two_principals(Tool#{middleware => [Refuse]}),
    [[~"1", {error, ~"not you"}, ~"1"] = [as(Who, Era, Server) || Who <- [ada, bob, ada]]
     || Era <- eras()].

%% "A mounted server keeps its own results: they are the same wherever it is asked."
mounted_servers_keep_their_own(_) ->
    Counter = counters:new(1, []),
    Inner = serve(#{tools => [counting(~"count", #{ttl_ms => ?LONG})],
                    resources => [#{uri => ~"r://x", name => ~"x", cache => #{ttl_ms => ?LONG},
                                    handler => fun(A, _) -> counted(Counter, A) end}]}),
    Server = serve(#{mounts => [{~"m", Inner}]}),
    [begin
         ~"1" = text(call(open(Era, Inner), ~"count", #{})),
         ~"1" = text(call(open(Era, Server), ~"m_count", #{}))
     end || Era <- eras()],
    ~"1" = text(read(open(~"2026-07-28", Server), ~"r://m/x")),
    ok = erlmcp:resource_updated(Inner, ~"r://x"),
    ~"2" = text(read(open(~"2026-07-28", Server), ~"r://m/x")),
    #{cache := #{entries := 2}} = info(Inner),
    #{cache := #{entries := 0, misses := 0}} = info(Server).

%% With what the cache has been told by now.
info(Server) ->
    _ = sys:get_state(cache_process(Server)),
    erlmcp:info(Server).

cache_process(Server) ->
    {_, Cache, _, _} = lists:keyfind(cache, 1, supervisor:which_children(Server)),
    Cache.

kept_results_need_no_process(_) ->
    Server = serve(#{tools => [counting(~"count", #{ttl_ms => ?LONG})]}),
    Client = open(~"2026-07-28", Server),
    ~"1" = text(call(Client, ~"count", #{})),
    ok = sys:suspend(cache_process(Server)),
    ~"1" = text(call(Client, ~"count", #{})),
    ok = sys:resume(cache_process(Server)).

%% `erlmcp:info/1`: "No process is asked", also of a server that ends, where some of them have.
looking_needs_no_process(_) ->
    Test = self(),
    Crashing = #{name => ~"crash", handler => fun(_, _) -> error(crash) end},
    Server = serve(#{tools => [counting(~"count", #{ttl_ms => ?LONG}), Crashing],
                     on_event => fun(_) -> Test ! {told, self()}, receive go_on -> ok end end}),
    Client = open(~"2026-07-28", Server),
    _ = call(Client, ~"crash", #{}),
    Tells = receive {told, Pid} -> Pid end,
    ~"1" = text(call(Client, ~"count", #{})),
    #{cache := #{entries := 1}} = info(Server),
    Cache = cache_process(Server),
    ok = sys:suspend(Cache),
    #{cache := #{entries := 1, bytes := Bytes}} = erlmcp:info(Server),
    true = Bytes > 0,
    ok = sys:resume(Cache),
    Gone = monitor(process, Cache),
    {Stopping, Stopped} = spawn_monitor(fun() -> ok = erlmcp:stop_server(Server) end),
    receive {'DOWN', Gone, process, Cache, _} -> ok end,
    %% It tells that yet, or is gone, if nobody looked for long.
    case erlmcp:info(Server) of
        #{cache := #{bytes := 0, hits := 0, misses := 0}} -> ok;
        {error, not_found} -> ok
    end,
    [Tells ! go_on || _ <- lists:seq(1, 100)],
    receive {'DOWN', Stopped, process, Stopping, normal} -> ok end.

%% Without its process nothing is kept, and nothing else is lost.
calls_outlive_their_cache(_) ->
    Server = serve(#{tools => [waiting(), counting(~"count", #{ttl_ms => ?LONG})]}),
    Client = open(~"2026-07-28", Server),
    ~"1" = text(call(Client, ~"count", #{})),
    {Call, Runner, [Waiting]} = together(1, Server),
    exit(cache_process(Server), kill),
    Alone = await_call(),
    Call ! {answer, ~"one"},
    Alone ! {answer, ~"two"},
    [~"one", ~"two"] = [text(recv(Socket)) || Socket <- [Runner, Waiting]],
    await(fun() -> is_pid(cache_process(Server)) end),
    [~"2" = text(call(Client, ~"count", #{})) || _ <- [1, 2]].

%% `erlmcp:info/1`: "hits and misses".
uses_are_counted(_) ->
    Server = serve(#{tools => [counting(~"count", #{ttl_ms => ?LONG})]}),
    #{cache := #{entries := 0, bytes := 0, hits := 0, misses := 0}} = info(Server),
    Client = open(~"2026-07-28", Server),
    [_ = call(Client, ~"count", #{~"text" => Text}) || Text <- [~"a", ~"b", ~"a", ~"a"]],
    #{cache := #{entries := 2, bytes := Bytes, hits := 2, misses := 2}} = info(Server),
    true = Bytes > 0,
    {error, not_found} = erlmcp:info(nobody).
