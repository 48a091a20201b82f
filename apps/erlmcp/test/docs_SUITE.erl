-module(docs_SUITE).
-moduledoc """
The user's documentation is true: what a page shows of the protocol is what its own module serves
over HTTP, what it shows of the client is what the client does there, its links lead somewhere, its
tables are the code's data. One case for each page; how a page is read says `m:erlmcp_test_page`,
how it is run `m:erlmcp_test_script`.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1]).
-export([init_per_testcase/2, end_per_testcase/2]).
-export([shows_what_is_served/1, links_lead_somewhere/1, tables_are_the_codes/1]).
-export([what_users_write_is_on_a_page/1]).
-export([every_page_is_in_the_index/1, examples_are_what_happens/1]).
-export([a_wrong_page_is_found/1, a_right_page_is_run/1]).

%% Pages that have nothing to run here: maps, lists, and those of the command and of the cluster,
%% which their own suites run.
-define(WITHOUT_CODE, ["README.md", "architecture.md", "benchmarks.md", "capacity.md", "cli.md",
                       "cluster.md", "cluster-faults.md", "cluster-scaling.md", "glossary.md",
                       "interop.md", "performance.md", "scenarios.md", "upgrading.md"]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_right_page_is_run, a_wrong_page_is_found, links_lead_somewhere, tables_are_the_codes,
     what_users_write_is_on_a_page, every_page_is_in_the_index, examples_are_what_happens
     | [{group, Group} || {Group, _, _} <- groups()]].

%% A group is a page: its name is what the log shows, and what `rebar3 ct --group` takes.
groups() ->
    [{list_to_atom(filename:basename(Page, ".md")), [], [shows_what_is_served]}
     || Page <- pages() -- ?WITHOUT_CODE].

pages() ->
    filelib:wildcard("*.md", docs()).

docs() ->
    filename:join(root(), "docs").

root() ->
    erlmcp_test_page:root().

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% The figures of clients stay until the application ends, and a page may get a port that the server
%% of another page had.
init_per_testcase(shows_what_is_served, Config) ->
    ok = application:stop(erlmcp),
    ok = application:start(erlmcp),
    Config;
init_per_testcase(_, Config) ->
    Config.

end_per_testcase(_, _) ->
    ok.

%% Pages.

shows_what_is_served(Config) ->
    Properties = proplists:get_value(tc_group_properties, Config),
    Page = atom_to_list(proplists:get_value(name, Properties)) ++ ".md",
    ok = serve(Page, erlmcp_test_page:read(filename:join(docs(), Page)), Config).

serve(Page, #{module := {_, Source} = Code, blocks := Blocks}, Config) ->
    true = length(string:split(string:trim(Source), "\n", all)) =< 40
        orelse ct:fail("the module of ~ts has more than 40 lines", [Page]),
    Module = erlmcp_test_page:load(Page, Code, proplists:get_value(priv_dir, Config)),
    try
        Blocks =/= [] orelse exports(test, Module) orelse exports(client, Module)
            orelse error({nothing_to_try, Page}),
        {ok, Pid} = Module:start(0),
        run(Blocks, Module, Pid)
    after
        _ = code:purge(Module),
        code:delete(Module)
    end.

run(Blocks, Module, Pid) ->
    try
        [#{url := Url} = Listener | _] =
            [Listener || #{transport := http} = Listener <- erlmcp:listeners(Pid)],
        lists:foreach(fun(Block) -> ok = erlmcp_test_script:run(Block, Listener) end, Blocks),
        _ = [Module:test(binary_to_list(Url)) || exports(test, Module)],
        _ = [Module:client(Url) || exports(client, Module)],
        ok
    after
        ok = erlmcp:stop_server(Pid)
    end.

exports(Name, Module) ->
    erlang:function_exported(Module, Name, 1).

%% What all of them have.

links_lead_somewhere(_) ->
    Pages = [filename:join("docs", Page) || Page <- pages()] ++ filelib:wildcard("*.md", root()),
    [] = [{Page, Line, Target}
          || Page <- Pages,
             #{links := Links} <- [erlmcp_test_page:read(filename:join(root(), Page))],
             {Line, Target} <- Links,
             not leads_somewhere(Page, Target)].

leads_somewhere(_, <<"http://", _/binary>>) -> true;
leads_somewhere(_, <<"https://", _/binary>>) -> true;
leads_somewhere(Page, <<"#", Anchor/binary>>) -> has_anchor(filename:join(root(), Page), Anchor);
leads_somewhere(Page, Target) ->
    [Path | Anchors] = binary:split(Target, ~"#"),
    File = filename:join([root(), filename:dirname(Page), Path]),
    filelib:is_file(File)
        andalso lists:all(fun(Anchor) -> has_anchor(File, Anchor) end, Anchors).

has_anchor(File, Anchor) ->
    #{anchors := Anchors} = erlmcp_test_page:read(File),
    lists:member(Anchor, Anchors).

tables_are_the_codes(_) ->
    Tables = [{Page, Line, Subject, Rows}
              || Page <- pages(),
                 #{tables := Tables} <- [erlmcp_test_page:read(filename:join(docs(), Page))],
                 {Line, Subject, Rows} <- Tables],
    [] = [{Page, Line, {missing, Data -- Rows}, {too_much, Rows -- Data}}
          || {Page, Line, Subject, Shown} <- Tables,
             {Data, Rows} <- [compared(Subject, Shown)], Data =/= Rows].

%% The data of the code, and what the table says of it.
compared(~"limits", Rows) ->
    numbers(erlmcp_server_options:limits(), Rows);
compared(~"options", Rows) ->
    {codes(fields(erlmcp, options)), named(Rows)};
compared(~"refusals", Rows) ->
    %% Those that the code can give.
    Atoms = lists:usort(lists:append([atoms(forms(Module)) || Module <- modules()])),
    {[[integer_to_binary(Number), code(Name), integer_to_binary(Status)]
      || #{number := Number, name := Name, status := Status} <- erlmcp_refusal:table(),
         lists:member(Name, Atoms)],
     [[Number, Name, Status] || [Number, Name, Status | _] <- Rows]};
compared(~"plans", Rows) ->
    Shown = [[Name | [binary:replace(Value, ~",", ~"", [global]) || Value <- Values]]
             || [Name | Values] <- Rows],
    {[[code(Name) | [integer_to_binary(map_get(Plan, Values)) || Plan <- [team, enterprise, gov]]]
      || {Name, Values} <- erlmcp_envelope:plans()],
     Shown};
compared(~"measured", Rows) ->
    {[[code(Name), How] || {Name, _, How} <- erlmcp_envelope:measured()], Rows};
compared(~"node bounds", Rows) ->
    {[[code(Name), iolist_to_binary(io_lib:format("~p", [Default])), What]
      || {Name, Default, What} <- erlmcp_memory_guard:bounds()
                                  ++ erlmcp_unfinished_messages:bounds()
             ++ erlmcp_processor_guard:bounds()],
     Rows};
compared(~"events", Rows) ->
    {[[code(Name), codes_of(Measurements), codes_of(Metadata), When]
      || {Name, Measurements, Metadata, When} <- erlmcp_event:table()],
     Rows};
compared(~"families", Rows) ->
    {[[code(Name), atom_to_binary(Type), codes_of(Labels), Help]
      || {Name, Type, Labels, Help} <- erlmcp_prometheus:families()],
     Rows};
compared(~"alerts", Rows) ->
    {ok, Rules} = file:read_file(filename:join(root(), "ops/alerts.yml")),
    {match, Names} = re:run(Rules, ~"- alert: (\\w+)",
                            [global, {capture, all_but_first, binary}]),
    {lists:sort([code_of(Name) || [Name] <- Names]), named(Rows)};
compared(~"cost of signals", Rows) ->
    Kinds = measured("traces"),
    Signals = [{~"none", ~"off"}, {~"none, on a second server", ~"again"},
               {~"metrics, scraped once a second", ~"metrics"},
               {~"traces, 1 % recorded", ~"0.01"}, {~"traces, all recorded", ~"1.0"}],
    {[[Label | lists:append([cost(map_get(Key, map_get(Kind, Kinds)))
                             || Kind <- [~"quick", ~"ordinary", ~"working"]])]
      || {Label, Key} <- Signals],
     Rows};
compared(~"cost of the console", Rows) ->
    #{~"viewers" := Viewers, ~"none" := None, ~"without" := Without} = measured("console"),
    {[[Label | cost(Figures)]
      || {Label, Figures} <- [{~"no console", Without}, {~"a console that nobody looks at", None},
                              {~"10 open pages", Viewers}]],
     Rows};
compared(~"cost of nodes", Rows) ->
    #{~"nodes" := Sizes} = measured("cluster"),
    {[[Label | [spread(map_get(Figure, map_get(Size, Sizes)), Unit)
                || {Figure, Unit} <- [{~"idle", ~"ms/s"}, {~"idle_most", ~"ms/s"},
                                      {~"stateless", ~"us"}, {~"session", ~"us"},
                                      {~"task", ~"us"}, {~"change", ~"us"}]]]
      || {Label, Size} <- [{~"1, no cluster", ~"none"}
                           | [{Count, Count} || Count <- [~"1", ~"2", ~"4", ~"8"]]]],
     Rows};
compared(~"opening of sessions", Rows) ->
    Result = measured("sessions"),
    {[[Server, Connections | opening(map_get(Name, map_get(Way, Result)))]
      || {Connections, Way} <- [{~"one for each session", ~"own"},
                                {~"one for each client", ~"kept"}],
         {Server, Name} <- [{~"no cluster", ~"without"}, {~"no cluster, a second server", ~"again"},
                            {~"a cluster", ~"cluster"}]],
     Rows};
compared(~"law of nodes", Rows) ->
    #{~"model" := Model} = measured("cluster"),
    Number = fun(Format, Value) -> iolist_to_binary(io_lib:format(Format, [Value])) end,
    {[[Label, Number("~.1f " ++ Unit, Base), Number("~.1f " ++ Unit, Slope), With,
       Number("~.1f %", Off)]
      || {Label, Figure, Unit, With} <-
             [{~"without load, each node", ~"idle", "ms/s", ~"N"},
              {~"without load, the busiest one", ~"idle_most", "ms/s", ~"N"},
              {~"session's call", ~"session", "us", ~"(N - 1) / N"},
              {~"task", ~"task", "us", ~"N"}, {~"change", ~"change", "us", ~"N"}],
         #{~"base" := Base, ~"slope" := Slope, ~"off_percent" := Off}
             <- [map_get(Figure, Model)]],
     Rows};
compared(<<"verdicts of the ", Rest/binary>>, Rows) ->
    [Form, ~"form"] = binary:split(Rest, ~" "),
    File = <<Form/binary, ".json">>,
    {ok, Bytes} = file:read_file(filename:join([root(), "bench", "cluster", File])),
    #{~"verdicts" := Verdicts} = json:decode(Bytes),
    {[[Scenario, code_of(Figure), figure(Measured), bound(Verdict),
       case Passed of true -> ~"yes"; false -> ~"**no**" end]
      || #{~"scenario" := Scenario, ~"figure" := Figure, ~"measured" := Measured,
           ~"passed" := Passed} = Verdict <- Verdicts],
     Rows};
compared(~"zones", Rows) ->
    {[[code(Zone), iolist_to_binary(io_lib:format("~p %", [Percent]))]
      || {Zone, Percent} <- erlmcp_error_budget_window:zones()],
     Rows};
compared(~"client numbers", Rows) ->
    numbers(erlmcp_client_options:defaults(), Rows);
compared(~"client limits", Rows) ->
    numbers(erlmcp_client_options:limits(), Rows);
compared(~"client options", Rows) ->
    Numbers = [Name || {Name, _, _} <- erlmcp_client_options:defaults()],
    {codes(fields(erlmcp_client, options) -- Numbers), named(Rows)};
compared(~"options of a call", Rows) ->
    {codes(fields(erlmcp_client, call_options)), named(Rows)};
compared(~"options of a client on http", Rows) ->
    Url = ~"http://localhost/",
    Takes = fun(Key) ->
        case erlmcp_httpc_options:check(Url, #{Key => make_ref()}) of
            {error, {bad_option, Key, ~"no such option of a client on HTTP"}} -> false;
            {error, {bad_option, Key, _}} -> true
        end
    end,
    {taken(Takes, erlmcp_httpc_options), named(Rows)};
compared(~"options of a client on stdio", Rows) ->
    Takes = fun(Key) ->
        erlmcp_stdio_channel:option(Key, make_ref()) =/= ~"no such option of a client on stdio"
    end,
    {taken(Takes, erlmcp_stdio_channel), named(Rows)};
compared(~"options of auth", Rows) ->
    {codes(fields(erlmcp_oauth, options)), named(Rows)};
compared(~"options of bearer", Rows) ->
    {codes(fields(erlmcp_listen, bearer)), named(Rows)};
compared(~"options of a pool", Rows) ->
    {codes(fields(erlmcp_pool, options)), named(Rows)};
compared(~"reasons", Rows) ->
    %% By the first word of each: the sentences are what the client can say.
    [Clauses] = [Clauses || {function, _, sentence, 1, Clauses} <- forms(erlmcp_client_error)],
    {lists:usort([tag(Pattern) || {clause, _, [Pattern], _, _} <- Clauses]),
     lists:usort([Tag || [Reasons | _] <- Rows, Tag <- tags(Reasons)])};
compared(~"workloads", Rows) ->
    {[[code_of(Id), code(Benchmark)]
      || #{id := Id, benchmark := Benchmark} <- erlmcp_bench_workloads:all()],
     [[Id, Benchmark] || [Id, Benchmark, _] <- Rows]};
compared(~"fields of a result", Rows) ->
    {[[code_of(Name), said(Type)] || {Name, Type} <- erlmcp_metrology_rules:fields()],
     [[Name, binary:replace(Said, ~"`", ~"", [global])] || [Name, Said] <- Rows]};
compared(~"fields of an environment", Rows) ->
    {[[code_of(Name), said(Type)] || {Name, Type} <- erlmcp_metrology_rules:environment()], Rows};
compared(~"rules of metrology", Rows) ->
    {[[code(Rule), What] || {Rule, What} <- erlmcp_metrology_rules:rules()], Rows};
compared(~"rejected names", Rows) ->
    {[[iolist_to_binary(lists:join(~", ", [code_of(Name) || Name <- Names])), Instead]
      || {Names, _, Instead} <- erlmcp_metrology_rules:rejected()],
     Rows};
compared(~"regressions", Rows) ->
    {[[Of, atom_to_binary(Worse), integer_to_binary(Percent)]
      || {Of, _, Worse, Percent} <- erlmcp_bench_compare:judged()],
     Rows};
compared(<<"fields of a ", Kind/binary>>, Rows) ->
    Named = binary_to_existing_atom(binary:replace(Kind, ~" ", ~"_")),
    {codes([Name || {Name, _, _, _} <- erlmcp_definition:fields(Named)]), named(Rows)}.

%% The figures that the pages have of a script in `bench`, as it has written them.
measured(Name) ->
    {ok, Bytes} = file:read_file(filename:join([root(), "bench", Name, "2-core-x86_64.json"])),
    json:decode(Bytes).

cost(#{~"us_per_call" := #{~"median" := Us},
       ~"share" := #{~"median" := Share, ~"least" := Least, ~"most" := Most}}) ->
    [iolist_to_binary(io_lib:format("~.1f us", [Us])),
     iolist_to_binary(io_lib:format("~.2f (~.2f to ~.2f)", [Share, Least, Most]))].

opening(#{~"sessions_per_s" := #{~"median" := Sessions}, ~"us_per_session" := #{~"median" := Us},
          ~"rate" := Rate, ~"cpu" := Cpu}) ->
    Relative = fun(#{~"median" := Median, ~"least" := Least, ~"most" := Most}) ->
        iolist_to_binary(io_lib:format("~.2f (~.2f to ~.2f)", [Median, Least, Most]))
    end,
    [integer_to_binary(round(Sessions)), iolist_to_binary(io_lib:format("~.1f us", [Us])),
     Relative(Rate), Relative(Cpu)].

spread(#{~"median" := Median, ~"least" := Least, ~"most" := Most}, Unit) ->
    iolist_to_binary(io_lib:format("~.1f ~ts (~.1f to ~.1f)", [Median, Unit, Least, Most])).

figure(Number) when is_integer(Number) -> integer_to_binary(Number);
figure(Number) when Number >= 10 -> integer_to_binary(round(Number));
figure(Number) -> float_to_binary(Number, [{decimals, 3}]).

bound(#{~"at_most" := Most}) -> <<"at most ", (figure(Most))/binary>>;
bound(#{~"at_least" := Least}) -> <<"at least ", (figure(Least))/binary>>.

numbers(Data, Rows) ->
    {[[code(Name), number(Default), What] || {Name, Default, What} <- Data],
     [[Name, binary:replace(Default, ~",", ~"", [global]), What] || [Name, Default, What] <- Rows]}.

number(infinity) -> code(infinity);
number(Number) -> integer_to_binary(Number).

codes(Names) ->
    lists:sort([code(Name) || Name <- Names]).

%% Of all that a module names, what its check takes for an option.
taken(Takes, Module) ->
    codes([Atom || Atom <- lists:usort(atoms(forms(Module))), Takes(Atom)]).

tag({atom, _, Atom}) -> atom_to_binary(Atom);
tag({tuple, _, [{atom, _, Atom} | _]}) -> atom_to_binary(Atom).

tags(Cell) ->
    {match, Tags} = re:run(Cell, ~"`{?([a-z_]+)[^`]*`", [global, {capture, [1], binary}]),
    lists:append(Tags).

%% The first cell of a row may name several.
named(Rows) ->
    lists:sort([Name || [Names | _] <- Rows, Name <- string:split(Names, ", ", all)]).

code(Name) -> code_of(atom_to_binary(Name)).

%% Some names, in their order.
codes_of(Names) -> iolist_to_binary(lists:join(~", ", [code(Name) || Name <- Names])).

code_of(Name) -> <<$`, Name/binary, $`>>.

said(Type) -> erlmcp_metrology_rules:expected(Type).

%% The keys of a map type, or of the maps in a type.
fields(Module, Type) ->
    [Form] = [Form || {attribute, _, type, {Name, Form, []}} <- forms(Module), Name =:= Type],
    fields(Form).

fields({type, _, map, Fields}) -> [Field || {type, _, _, [{atom, _, Field}, _]} <- Fields];
fields({type, _, _, Parts}) when is_list(Parts) -> lists:append([fields(Part) || Part <- Parts]);
fields(_) -> [].

%% The functions of the faces, the options of listeners, and what is in a context but for what is
%% erlmcp's own.
what_users_write_is_on_a_page(_) ->
    Called = [<<(atom_to_binary(Face))/binary, $:, (atom_to_binary(Name))/binary>>
              || Face <- [erlmcp, erlmcp_client, erlmcp_pool, erlmcp_skills],
                 {Name, _} <- exported(Face) -- [{settings, 1}]],
    Names = lists:append([fields(erlmcp_listen, Type) || Type <- [http, tcp, stdio]])
        ++ fields(erlmcp, context),
    Text = iolist_to_binary([begin
                                 {ok, Page} = file:read_file(filename:join(docs(), File)),
                                 Page
                             end || File <- pages() -- ["architecture.md"]]),
    true = length(Names) > 10,
    [] = [Word || Word <- lists:usort(Called ++ [code(Name) || Name <- Names]),
                  binary:match(Text, Word) =:= nomatch].

%% The modules that may refuse.
modules() ->
    _ = application:load(erlmcp),
    {ok, Modules} = application:get_key(erlmcp, modules),
    Modules -- [erlmcp_refusal].

atoms({atom, _, Atom}) -> [Atom];
atoms(Form) when is_tuple(Form) -> atoms(tuple_to_list(Form));
atoms([Form | Forms]) -> atoms(Form) ++ atoms(Forms);
atoms(_) -> [].

forms(Module) ->
    {ok, {_, [{abstract_code, {_, Forms}}]}} =
        beam_lib:chunks(code:which(Module), [abstract_code]),
    Forms.

every_page_is_in_the_index(_) ->
    #{links := Links} = erlmcp_test_page:read(filename:join(docs(), "README.md")),
    [] = [Page || Page <- pages() -- ["README.md"],
                  not lists:member(list_to_binary(Page), [Target || {_, Target} <- Links])].

%% What the modules say of themselves.

%% `1> ...` in a -doc is what the shell would say.
examples_are_what_happens(_) ->
    erlmcp_test_doctests:run(modules()).

exported(Module) ->
    Module:module_info(exports) -- [{module_info, 0}, {module_info, 1}, {behaviour_info, 1}].

%% That this suite can fail.

a_right_page_is_run(Config) ->
    ok = planted(planted_source(), ~"""
        ```mcp
        > tools/call {"name": "count", "_meta": {"progressToken": "p"}}
        < notifications/progress {"progress": 1, "progressToken": "p"}
        < {"content": [{"type": "text", "text": "..."}], "resultType": "complete"}
        > subscriptions/listen {"notifications": {"toolsListChanged": true}}
        < notifications/subscriptions/acknowledged {"notifications": {"toolsListChanged": true}}
        > tools/call {"name": "grow"}
        < {"content": []}
        < notifications/tools/list_changed
        > tools/call {"name": "none"}
        < error -32602 {"name": "tool_not_found"}
        > tools/call {"name": "ask"}
        < {"resultType": "input_required", "inputRequests": {"roots": {"method": "roots/list"}}}
        > tools/call {"name": "ask", "requestState": "$requestState",
                      "inputResponses": {"roots": {"roots": []}}}
        < {"structuredContent": {"roots": [], "round": 2.0}}
        ```
        ```mcp 2025-06-18
        > tools/call {"name": "ask"}
        < roots/list
        > result {"roots": []}
        < {"structuredContent": {"roots": [], "round": 2}}
        ```
        ```mcp 2024-11-05
        > initialize {"protocolVersion": "2024-11-05", "capabilities": {},
                      "clientInfo": {"name": "page", "version": "1"}}
        < {"protocolVersion": "2024-11-05"}
        > ping
        < {}
        ```
        """, Config).

a_wrong_page_is_found(Config) ->
    Fails = fun(Lines) ->
        try planted(planted_source(), [~"```mcp\n", Lines, ~"\n```"], Config) of
            ok -> is_right
        catch
            error:Reason -> Reason
        end
    end,
    Count = ~"> tools/call {\"name\": \"count\", \"_meta\": {\"progressToken\": 7}}\n",
    Progress = ~"< notifications/progress {\"progress\": 1}\n",
    %% A wrong result, a member that is not there, an array of another length.
    {line, _, {expected, _}, {came, _}} = Fails([Count, Progress, ~"< {\"content\": [{}, {}]}"]),
    {line, _, {expected, _}, {came, _}} = Fails([Count, Progress, ~"< {\"no_such\": 1}"]),
    %% A notification that comes and is not shown, before a result or at the end; a result too.
    {line, _, {expected, result, _}, {came, #{~"method" := _}}} = Fails([Count, ~"< {}"]),
    {not_shown, {~"tools/call", #{~"method" := _}}} = Fails(Count),
    {not_shown, {~"tools/call", #{~"result" := _}}} = Fails([Count, Progress]),
    %% One that is shown and does not come, and one that says something else.
    {line, _, {expected, ~"notifications/message", _}, {came, [#{~"result" := _}]}} =
        Fails([Count, Progress, ~"< notifications/message {}\n", ~"< {}"]),
    {line, _, {expected, #{~"progress" := 2}}, _} =
        Fails([Count, ~"< notifications/progress {\"progress\": 2}\n", ~"< {}"]),
    %% Errors: where a result is, and of another code.
    None = ~"> tools/call {\"name\": \"none\"}\n",
    {line, _, {expected, {error, -32602}, _}, _} = Fails([Count, Progress, ~"< error -32602"]),
    {line, _, {expected, {error, -32601}, _}, _} = Fails([None, ~"< error -32601"]),
    {line, _, {expected, result, _}, _} = Fails([None, ~"< {}"]),
    {nothing_was_asked, _} = Fails(~"> result {}"),
    {nothing_was_requested, _} = Fails(~"< {}"),
    {no_such_value, _, ~"nextCursor"} = Fails(~"> tools/list {\"cursor\": \"$cursor\"}"),
    %% A page's own test.
    {badmatch, "http://" ++ _} = source_fails(planted_test(~"test"), Config),
    {badmatch, <<"http://", _/binary>>} = source_fails(planted_test(~"client"), Config),
    {nothing_to_try, _} = source_fails(planted_source(), Config),
    %% Modules and pages that are none.
    {does_not_compile, "planted", _} = planted_fails("start(Port) -> {ok, Unused}.", Config),
    {does_not_compile, "planted", _} = planted_fails("start(Port) -> Unused = Port, ok.", Config),
    {no_json, 2, ~"{", _} = Fails(~"> tools/list {"),
    {no_such_line, 2, ~"tools/list"} = Fails(~"tools/list"),
    {unclosed_block, 1} = page_fails(~"```erl\nthere is no end"),
    {a_second_module, 4} = page_fails(~"```erlang\n```\n```erlang\n```"),
    false = leads_somewhere("docs/README.md", ~"no_such_page.md"),
    false = leads_somewhere("docs/README.md", ~"#no-such-heading"),
    true = leads_somewhere("docs/README.md", ~"../README.md#call-a-server"),
    false = leads_somewhere("docs/README.md", ~"../README.md#no-such-heading"),
    #{tables := [{1, ~"limits", [[~"`a`", ~"1"]]}]} =
        erlmcp_test_page:parse(~"<!-- table: limits -->\n| l | d |\n| --- | --- |\n| `a` | 1 |\n"),
    ok.

planted(Source, Page, Config) ->
    Parsed = erlmcp_test_page:parse(iolist_to_binary(Page)),
    serve("planted", Parsed#{module := {1, iolist_to_binary(Source)}}, Config).

planted_fails(Function, Config) ->
    source_fails(["-module(planted).\n-export([start/1]).\n", Function, "\n"], Config).

source_fails(Source, Config) ->
    try planted(Source, ~"", Config) of
        ok -> is_right
    catch
        error:Reason -> Reason
    end.

page_fails(Text) ->
    try erlmcp_test_page:parse(Text) of
        Page -> Page
    catch
        error:Reason -> Reason
    end.

planted_test(Name) ->
    Exported = binary:replace(planted_source(), ~"[start/1]", <<"[start/1, ", Name/binary, "/1]">>),
    [Exported, Name, "(Url) -> ftp = Url.\n"].

planted_source() ->
    ~"""
    -module(planted).
    -export([start/1]).
    start(Port) ->
        erlmcp:start_server(#{
            id => planted, name => ~"planted", version => ~"1", listen => [{http, #{port => Port}}],
            tools => [#{name => ~"count", handler => fun count/2},
                      #{name => ~"grow", handler => fun grow/2},
                      #{name => ~"ask", handler => fun ask/2}]}).
    count(_, Context) ->
        ok = erlmcp:progress(Context, 1, #{}),
        ~"counted".
    grow(_, _) ->
        ok = erlmcp:add(planted, tool, #{name => ~"grown", handler => fun count/2}),
        [].
    ask(_, #{input := #{~"roots" := Answer}, state := Round}) ->
        Answer#{round => Round};
    ask(_, _) ->
        {input_required, #{~"roots" => erlmcp_input:roots()}, 2}.

    """.
