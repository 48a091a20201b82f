-module(client_tables_SUITE).
-moduledoc """
What a client keeps of its server within bounds: results, and what it knows of tools. A result that
is kept too long is an answer of yesterday, and a table without a bound is the server's to fill.
""".

-export([suite/0, all/0]).
-export([results_are_kept_for_their_time/1, a_newer_result_ends_the_former/1,
         large_results_are_not_kept/1, older_results_make_room/1,
         a_change_forgets_what_it_is_about/1, changes_together_forget_what_each_is_about/1,
         what_was_asked_before_a_change_is_not_kept/1, no_cache_keeps_nothing/1,
         tools_have_a_number/1, tools_have_few_bytes/1, the_newest_definition_counts/1,
         tools_that_no_header_can_mirror/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [results_are_kept_for_their_time, a_newer_result_ends_the_former, large_results_are_not_kept,
     older_results_make_room, a_change_forgets_what_it_is_about,
     changes_together_forget_what_each_is_about,
     what_was_asked_before_a_change_is_not_kept,
     no_cache_keeps_nothing, tools_have_a_number, tools_have_few_bytes,
     the_newest_definition_counts, tools_that_no_header_can_mirror].

%% Results.

cache(Options) ->
    erlmcp_client_cache:new(maps:merge(#{entries => 10, bytes => 100_000}, Options)).

read(Uri) -> {~"resources/read", #{~"uri" => Uri}}.

result(Text) -> #{~"ttlMs" => 60_000, ~"text" => Text}.

keep(Key, Result, Cache) ->
    erlmcp_client_cache:keep(Key, Result, erlmcp_client_cache:changes(Cache), Cache).

results_are_kept_for_their_time(_) ->
    Cache = cache(#{}),
    Key = read(~"a:1"),
    [begin
         ok = keep(Key, #{~"ttlMs" => Ttl}, Cache),
         {Ttl, none} = {Ttl, erlmcp_client_cache:find(Key, Cache)}
     end || Ttl <- [0, -1, 1.5, ~"60000", null]],
    ok = keep(Key, #{}, Cache),
    ok = keep({~"tools/call", #{}}, result(~""), Cache),
    #{entries := 0, bytes := 0} = erlmcp_client_cache:info(Cache),
    Result = result(~"text"),
    ok = keep(Key, Result, Cache),
    {ok, Result} = erlmcp_client_cache:find(Key, Cache),
    [none = erlmcp_client_cache:find(Other, Cache)
     || Other <- [read(~"a:2"), {~"resources/list", #{~"uri" => ~"a:1"}},
                  {~"resources/read", #{~"uri" => ~"a:1", ~"more" => 1}}]],
    %% A later one takes its place, and its bytes.
    Later = result(~"another text"),
    ok = keep(Key, Later, Cache),
    {ok, Later} = erlmcp_client_cache:find(Key, Cache),
    Bytes = erlang:external_size(Later),
    #{entries := 1, bytes := Bytes} = erlmcp_client_cache:info(Cache),
    ok = keep(Key, Later#{~"ttlMs" := 1}, Cache),
    receive after 5 -> none = erlmcp_client_cache:find(Key, Cache) end.

%% Even one that is not kept.
a_newer_result_ends_the_former(_) ->
    Key = read(~"a:1"),
    [begin
         Cache = cache(#{}),
         ok = keep(Key, result(~"former"), Cache),
         ok = keep(Key, Newer, Cache),
         {Newer, none} = {Newer, erlmcp_client_cache:find(Key, Cache)},
         #{entries := 0, bytes := 0} = erlmcp_client_cache:info(Cache)
     end || Newer <- [#{}, #{~"ttlMs" => 0}, #{~"ttlMs" => ~"60000"},
                      result(binary:copy(~"x", 25_000))]].

%% A quarter of all bytes, and one byte more.
large_results_are_not_kept(_) ->
    Result = result(binary:copy(~"x", 1_000)),
    Size = erlang:external_size(Result),
    [begin
         Cache = cache(#{bytes => Bytes}),
         ok = keep(read(~"a"), Result, Cache),
         {Bytes, Entries} = {Bytes, maps:get(entries, erlmcp_client_cache:info(Cache))}
     end || {Bytes, Entries} <- [{4 * Size, 1}, {4 * Size - 1, 0}]].

%% As many as there may be, and no more of them than have to go.
older_results_make_room(_) ->
    Few = cache(#{entries => 3}),
    [begin
         ok = keep(read(Uri), result(Uri), Few),
         {ok, _} = erlmcp_client_cache:find(read(Uri), Few),
         Entries = min(N, 3),
         #{entries := Entries} = erlmcp_client_cache:info(Few)
     end || {N, Uri} <- lists:enumerate([~"a", ~"b", ~"c", ~"d", ~"e"])],
    Size = erlang:external_size(result(~"1")),
    Small = cache(#{bytes => 5 * Size}),
    [begin
         Uri = integer_to_binary(N),
         ok = keep(read(Uri), result(Uri), Small),
         Bytes = Size * min(N, 5),
         #{bytes := Bytes} = erlmcp_client_cache:info(Small)
     end || N <- lists:seq(1, 9)].

a_change_forgets_what_it_is_about(_) ->
    Lists = [{~"tools/list", #{}}, {~"tools/list", #{~"cursor" => ~"c"}}, {~"prompts/list", #{}},
             {~"resources/list", #{}}, {~"resources/templates/list", #{}},
             {~"server/discover", #{}}],
    [begin
         Cache = cache(#{}),
         [ok = keep(Key, result(~""), Cache) || Key <- Lists ++ [read(~"a:1"), read(~"a:2")]],
         ok = erlmcp_client_cache:changed(Method, Params, Cache),
         Left = [Key || Key <- Lists ++ [read(~"a:1"), read(~"a:2")],
                        erlmcp_client_cache:find(Key, Cache) =:= none],
         {Method, Gone} = {Method, Left},
         Changes = erlmcp_client_cache:changes(Cache),
         {Method, Changes} = {Method, Counted}
     end || {Method, Params, Gone, Counted} <- [
                {~"notifications/tools/list_changed", #{}, lists:sublist(Lists, 2), 1},
                {~"notifications/prompts/list_changed", #{}, [{~"prompts/list", #{}}], 1},
                {~"notifications/resources/list_changed", #{},
                 [{~"resources/list", #{}}, {~"resources/templates/list", #{}}], 1},
                {~"notifications/resources/updated", #{~"uri" => ~"a:1"}, [read(~"a:1")], 1},
                {~"notifications/resources/updated", #{}, [], 0},
                {~"notifications/message", #{}, [], 0}]].

%% As at the beginning of a subscription.
changes_together_forget_what_each_is_about(_) ->
    Cache = cache(#{}),
    Kept = [{~"prompts/list", #{}}, read(~"a:2")],
    Gone = [{~"tools/list", #{}}, read(~"a:1"), read(~"a:3")],
    [ok = keep(Key, result(~""), Cache) || Key <- Kept ++ Gone],
    ok = erlmcp_client_cache:changed([], Cache),
    0 = erlmcp_client_cache:changes(Cache),
    ok = erlmcp_client_cache:changed(
        [{~"notifications/tools/list_changed", #{}}
         | [{~"notifications/resources/updated", #{~"uri" => Uri}} || Uri <- [~"a:1", ~"a:3"]]],
        Cache),
    1 = erlmcp_client_cache:changes(Cache),
    Gone = [Key || Key <- Kept ++ Gone, erlmcp_client_cache:find(Key, Cache) =:= none].

%% The server may have sent it before what it has told since.
what_was_asked_before_a_change_is_not_kept(_) ->
    Cache = cache(#{}),
    Before = erlmcp_client_cache:changes(Cache),
    ok = erlmcp_client_cache:changed(~"notifications/tools/list_changed", #{}, Cache),
    ok = erlmcp_client_cache:keep(read(~"a"), result(~""), Before, Cache),
    none = erlmcp_client_cache:find(read(~"a"), Cache),
    #{entries := 0, bytes := 0} = erlmcp_client_cache:info(Cache),
    ok = keep(read(~"a"), result(~""), Cache),
    {ok, _} = erlmcp_client_cache:find(read(~"a"), Cache).

no_cache_keeps_nothing(_) ->
    None = erlmcp_client_cache:new(none),
    ok = keep(read(~"a"), result(~""), None),
    none = erlmcp_client_cache:find(read(~"a"), None),
    ok = erlmcp_client_cache:changed(~"notifications/tools/list_changed", #{}, None),
    {0, #{entries := 0, bytes := 0}} =
        {erlmcp_client_cache:changes(None), erlmcp_client_cache:info(None)}.

%% Tools.

tool(Name, More) -> More#{~"name" => Name}.

learn(Tools, Table) -> erlmcp_client_tools:learn(Tools, first, true, Table).

%% Ten thousand, and one more, which is listed all the same.
tools_have_a_number(_) ->
    Table = erlmcp_client_tools:new(),
    Tools = [tool(integer_to_binary(N), #{}) || N <- lists:seq(1, 10_001)],
    Tools = learn(Tools, Table),
    [[], [], unknown] = [erlmcp_client_tools:declarations(Name, Table)
                         || Name <- [~"1", ~"10000", ~"10001"]],
    %% One that is known already needs no room.
    [_] = learn([tool(~"1", #{~"execution" => #{~"taskSupport" => ~"required"}})], Table),
    true = erlmcp_client_tools:is_task(~"1", Table).

%% 16 MiB together, of which a tool gives its own back when it changes.
tools_have_few_bytes(_) ->
    Table = erlmcp_client_tools:new(),
    Of = fun(Name, Bytes) ->
        tool(Name, #{~"outputSchema" => #{~"description" => binary:copy(~"x", Bytes)}})
    end,
    Checked = fun(Name) -> erlmcp_client_tools:check_result(Name, #{}, Table) =/= ok end,
    [_] = learn([Of(~"a", 10_000_000)], Table),
    [_] = learn([Of(~"b", 10_000_000)], Table),
    {true, false} = {Checked(~"a"), Checked(~"b")},
    [_] = learn([Of(~"a", 11_000_000)], Table),
    true = Checked(~"a"),
    %% A former schema is no measure of a tool that has another one.
    [_] = learn([Of(~"a", 17_000_000)], Table),
    false = Checked(~"a"),
    [_] = learn([Of(~"a", 1_000)], Table),
    [_] = learn([Of(~"b", 10_000_000)], Table),
    {true, true} = {Checked(~"a"), Checked(~"b")},
    %% Not even alone.
    Other = erlmcp_client_tools:new(),
    [_] = learn([Of(~"c", 17_000_000)], Other),
    ok = erlmcp_client_tools:check_result(~"c", #{}, Other).

the_newest_definition_counts(_) ->
    Table = erlmcp_client_tools:new(),
    Schema = #{~"type" => ~"object", ~"properties" => #{~"r" => #{~"type" => ~"string",
                                                                 ~"x-mcp-header" => ~"R"}}},
    [unknown, false] = [erlmcp_client_tools:declarations(~"t", Table),
                        erlmcp_client_tools:is_task(~"t", Table)],
    [_] = learn([tool(~"t", #{~"inputSchema" => Schema,
                              ~"execution" => #{~"taskSupport" => ~"required"}})], Table),
    [_] = erlmcp_client_tools:declarations(~"t", Table),
    true = erlmcp_client_tools:is_task(~"t", Table),
    [_] = learn([tool(~"t", #{~"execution" => #{~"taskSupport" => ~"optional"}})], Table),
    {[], false} = {erlmcp_client_tools:declarations(~"t", Table),
                   erlmcp_client_tools:is_task(~"t", Table)}.

%% Where headers do not mirror, nothing is wrong with them.
tools_that_no_header_can_mirror(_) ->
    Bad = tool(~"bad", #{~"inputSchema" => #{~"properties" => #{
        ~"r" => #{~"type" => ~"string", ~"x-mcp-header" => ~"two words"}}}}),
    Good = tool(~"good", #{}),
    Table = erlmcp_client_tools:new(),
    [Good] = learn([Bad, Good], Table),
    {unknown, []} = {erlmcp_client_tools:declarations(~"bad", Table),
                     erlmcp_client_tools:declarations(~"good", Table)},
    [Bad, Good] = erlmcp_client_tools:learn([Bad, Good], first, false, Table),
    [] = erlmcp_client_tools:declarations(~"bad", Table).
