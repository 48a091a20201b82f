-module(token_store_SUITE).
-moduledoc "What keeps tokens: in memory and in a folder, and what a folder must be like.".

-include_lib("kernel/include/file.hrl").

-export([suite/0, all/0, groups/0, init_per_group/2, end_per_group/2, init_per_testcase/2]).
-export([a_value_is_kept_until_it_is_deleted/1, keys_are_told_apart/1, options_are_checked/1,
         writers_do_not_disturb_each_other/1, values_have_a_number/1]).
-export([memory_ends_with_its_owner/1]).
-export([a_folder_is_read_again/1, a_file_is_its_owner_s_alone/1, an_open_folder_is_refused/1,
         a_file_that_others_read_is_refused/1, links_are_refused/1, another_user_s_is_refused/1,
         what_is_no_value_is_malformed/1, a_value_has_a_size/1, a_value_has_any_form/1,
         a_reader_sees_whole_values/1,
         leftovers_are_deleted/1, many_open_a_new_folder/1,
         a_folder_may_be_replaced_while_it_is_empty/1, a_removed_folder_is_made_again/1]).

-define(KEY, {~"https://as.example", ~"https://mcp.example/mcp"}).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, memory}, {group, folder}].

groups() ->
    Both = [a_value_is_kept_until_it_is_deleted, keys_are_told_apart, options_are_checked,
            writers_do_not_disturb_each_other, values_have_a_number],
    [{memory, [], [memory_ends_with_its_owner | Both]},
     {folder, [], [a_folder_is_read_again, a_file_is_its_owner_s_alone, an_open_folder_is_refused,
                   a_file_that_others_read_is_refused, links_are_refused,
                   another_user_s_is_refused, what_is_no_value_is_malformed, a_value_has_a_size,
                   a_value_has_any_form,
                   a_reader_sees_whole_values, leftovers_are_deleted,
                   many_open_a_new_folder, a_folder_may_be_replaced_while_it_is_empty,
                   a_removed_folder_is_made_again | Both]}].

init_per_group(memory, Config) -> [{store, erlmcp_token_store_ets} | Config];
init_per_group(folder, Config) -> [{store, erlmcp_token_store_file} | Config].

end_per_group(_, _) ->
    ok.

init_per_testcase(Case, Config) ->
    Folder = filename:join([proplists:get_value(priv_dir, Config), "tokens", Case]),
    [{folder, Folder} | Config].

open(Config) ->
    Store = proplists:get_value(store, Config),
    Options = case Store of
        erlmcp_token_store_ets -> #{};
        erlmcp_token_store_file -> #{folder => proplists:get_value(folder, Config)}
    end,
    {ok, Opened} = Store:open(Options),
    {Store, Opened}.

value(N) ->
    #{~"access_token" => integer_to_binary(N), ~"scopes" => [~"a", ~"é"], ~"expires" => N,
      ~"dpop" => #{~"bound" => true}}.

a_value_is_kept_until_it_is_deleted(Config) ->
    {Store, Opened} = open(Config),
    none = Store:get(?KEY, Opened),
    ok = Store:put(?KEY, value(1), Opened),
    Kept = value(1),
    {ok, Kept} = Store:get(?KEY, Opened),
    ok = Store:put(?KEY, value(2), Opened),
    Newer = value(2),
    {ok, Newer} = Store:get(?KEY, Opened),
    ok = Store:delete(?KEY, Opened),
    none = Store:get(?KEY, Opened),
    ok = Store:delete(?KEY, Opened).

keys_are_told_apart(Config) ->
    {Store, Opened} = open(Config),
    Keys = [~"", ~"a", a, ~"1", 1, -1, {}, [], {a}, [a], {~"a", ~"b"}, [~"a", ~"b"], {~"ab", ~""},
            {~"a", ~"b", ~""}, {{~"a"}, ~"b"}, {~"a", {~"b"}}, ~"b1:a", <<255>>],
    [ok = Store:put(Key, value(N), Opened) || {N, Key} <- lists:enumerate(Keys)],
    [{ok, #{~"expires" := N}} = Store:get(Key, Opened) || {N, Key} <- lists:enumerate(Keys)],
    ok = Store:delete(~"a", Opened),
    {ok, _} = Store:get(a, Opened).

options_are_checked(Config) ->
    Store = proplists:get_value(store, Config),
    {error, {bad_option, other}} =
        Store:open(#{other => 1, folder => proplists:get_value(folder, Config)}),
    case Store of
        erlmcp_token_store_ets -> ok;
        erlmcp_token_store_file -> [{error, {bad_option, folder}} = Store:open(Options)
                                    || Options <- [#{}, #{folder => tokens}]]
    end.

writers_do_not_disturb_each_other(Config) ->
    {Store, Opened} = open(Config),
    Writers = [spawn_monitor(fun() -> ok = Store:put({~"key", N}, value(N), Opened) end)
               || N <- lists:seq(1, 50)],
    [receive {'DOWN', Ref, process, Pid, Reason} -> normal = Reason end
     || {Pid, Ref} <- Writers],
    [{ok, #{~"expires" := N}} = Store:get({~"key", N}, Opened) || N <- lists:seq(1, 50)].

values_have_a_number(Config) ->
    {Store, Opened} = open(Config),
    ok = Store:put(?KEY, value(1), Opened),
    case Store of
        erlmcp_token_store_ets ->
            [ok = Store:put(N, value(N), Opened) || N <- lists:seq(3, 1000)];
        erlmcp_token_store_file ->
            [ok = file:write_file(path(Config, integer_to_list(N)), "") || N <- lists:seq(3, 1000)]
    end,
    ok = Store:put(last, value(1), Opened),
    {error, {full, 1000}} = Store:put(another, value(1), Opened),
    ok = Store:put(?KEY, value(2), Opened),
    {ok, #{~"expires" := 2}} = Store:get(?KEY, Opened),
    ok = Store:delete(?KEY, Opened),
    ok = Store:put(another, value(1), Opened).

%% No call crashes, so no crash shows the arguments.
memory_ends_with_its_owner(_) ->
    Self = self(),
    {Owner, Ref} = spawn_monitor(fun() ->
        {ok, Opened} = erlmcp_token_store_ets:open(#{}),
        ok = erlmcp_token_store_ets:put(?KEY, value(1), Opened),
        Self ! {store, Opened},
        receive stop -> ok end
    end),
    Store = receive {store, Opened} -> Opened end,
    {ok, _} = erlmcp_token_store_ets:get(?KEY, Store),
    Owner ! stop,
    receive {'DOWN', Ref, process, Owner, normal} -> ok end,
    {error, closed} = erlmcp_token_store_ets:get(?KEY, Store),
    {error, closed} = erlmcp_token_store_ets:put(?KEY, value(2), Store),
    {error, closed} = erlmcp_token_store_ets:delete(?KEY, Store).

path(Config, Name) ->
    filename:join(proplists:get_value(folder, Config), Name).

%% The only file of a folder.
file(Config) ->
    {ok, [Name]} = file:list_dir(proplists:get_value(folder, Config)),
    path(Config, Name).

mode(Path) ->
    {ok, #file_info{mode = Mode}} = file:read_link_info(Path),
    Mode band 8#7777.

a_folder_is_read_again(Config) ->
    {Store, Opened} = open(Config),
    ok = Store:put(?KEY, value(1), Opened),
    {_, Again} = open(Config),
    Kept = value(1),
    {ok, Kept} = Store:get(?KEY, Again),
    %% A name is the same in every release: this is the one of the text that stands for the key.
    Text = ~"t2:b18:https://as.exampleb23:https://mcp.example/mcp",
    Name = <<(binary:encode_hex(crypto:hash(sha256, Text), lowercase))/binary, ".json">>,
    true = filelib:is_regular(path(Config, Name)).

a_file_is_its_owner_s_alone(Config) ->
    {Store, Opened} = open(Config),
    ok = Store:put(?KEY, value(1), Opened),
    8#700 = mode(proplists:get_value(folder, Config)),
    8#600 = mode(file(Config)),
    ok = Store:put(?KEY, value(2), Opened),
    8#600 = mode(file(Config)).

an_open_folder_is_refused(Config) ->
    Folder = proplists:get_value(folder, Config),
    {Store, Opened} = open(Config),
    ok = Store:put(?KEY, value(1), Opened),
    [begin
         ok = file:change_mode(Folder, Mode),
         Unsafe = {error, {unsafe, folder, {mode, Mode}}},
         Unsafe = Store:open(#{folder => Folder}),
         Unsafe = Store:get(?KEY, Opened),
         Unsafe = Store:put(?KEY, value(2), Opened),
         Unsafe = Store:delete(?KEY, Opened)
     end || Mode <- [8#710, 8#701, 8#770, 8#755, 8#777]],
    ok = file:change_mode(Folder, 8#700),
    {ok, #{~"expires" := 1}} = Store:get(?KEY, Opened),
    File = filename:join(proplists:get_value(priv_dir, Config), "a_file"),
    ok = file:write_file(File, ""),
    {error, {unsafe, folder, type}} = Store:open(#{folder => File}),
    {error, {file, _}} = Store:open(#{folder => filename:join(File, "below")}).

a_file_that_others_read_is_refused(Config) ->
    {Store, Opened} = open(Config),
    ok = Store:put(?KEY, value(1), Opened),
    [begin
         ok = file:change_mode(file(Config), Mode),
         {error, {unsafe, file, {mode, Mode}}} = Store:get(?KEY, Opened)
     end || Mode <- [8#640, 8#604, 8#620, 8#666]],
    %% What is put there instead is nobody else's.
    ok = Store:put(?KEY, value(2), Opened),
    8#600 = mode(file(Config)),
    {ok, #{~"expires" := 2}} = Store:get(?KEY, Opened).

links_are_refused(Config) ->
    Folder = proplists:get_value(folder, Config),
    {Store, Opened} = open(Config),
    ok = Store:put(?KEY, value(1), Opened),
    File = file(Config),
    Elsewhere = filename:join(proplists:get_value(priv_dir, Config), "token_elsewhere"),
    ok = file:rename(File, Elsewhere),
    ok = file:make_symlink(Elsewhere, File),
    {error, {unsafe, file, symlink}} = Store:get(?KEY, Opened),
    {ok, Before} = file:read_file(Elsewhere),
    ok = Store:put(?KEY, value(2), Opened),
    {ok, Before} = file:read_file(Elsewhere),
    {ok, #{~"expires" := 2}} = Store:get(?KEY, Opened),
    Link = filename:join(proplists:get_value(priv_dir, Config), "token_link"),
    ok = file:make_symlink(Folder, Link),
    {error, {unsafe, folder, symlink}} = Store:open(#{folder => Link}),
    ok = file:delete(File),
    ok = file:make_dir(File),
    {error, {unsafe, file, type}} = Store:get(?KEY, Opened).

another_user_s_is_refused(Config) ->
    Folder = proplists:get_value(folder, Config),
    {Store, Opened} = open(Config),
    ok = Store:put(?KEY, value(1), Opened),
    case file:change_owner(file(Config), 4711) of
        ok ->
            {error, {unsafe, file, owner}} = Store:get(?KEY, Opened),
            ok = file:change_owner(Folder, 4711),
            {error, {unsafe, folder, owner}} = Store:get(?KEY, Opened),
            {error, {unsafe, folder, owner}} = Store:put(?KEY, value(2), Opened),
            {error, {unsafe, folder, owner}} = Store:open(#{folder => Folder}),
            ok;
        {error, eperm} ->
            {skip, "needs root"}
    end.

what_is_no_value_is_malformed(Config) ->
    {Store, Opened} = open(Config),
    ok = Store:put(?KEY, value(1), Opened),
    File = file(Config),
    [begin
         ok = file:write_file(File, Bytes),
         {error, malformed} = Store:get(?KEY, Opened)
     end || Bytes <- [~"", ~"{", ~"[]", ~"null", <<255>>, ~B|{"a":1,"a":2}|,
                      [~B|{"a":"|, binary:copy(~"x", 65536), ~B|"}|]]],
    ok = Store:put(?KEY, value(1), Opened),
    {ok, _} = Store:get(?KEY, Opened).

a_value_has_a_size(Config) ->
    {Store, Opened} = open(Config),
    Value = fun(Bytes) -> #{~"a" => binary:copy(~"x", Bytes - 8)} end,
    ok = Store:put(?KEY, Value(65536), Opened),
    Kept = Value(65536),
    {ok, Kept} = Store:get(?KEY, Opened),
    {error, {too_large, 65536}} = Store:put(?KEY, Value(65537), Opened),
    {ok, Kept} = Store:get(?KEY, Opened).

%% What is stored can be read: as many members, and as deep, as the size allows.
a_value_has_any_form(Config) ->
    {Store, Opened} = open(Config),
    [begin
         ok = Store:put(?KEY, Value, Opened),
         {ok, Value} = Store:get(?KEY, Opened)
     end || Value <- [#{integer_to_binary(N) => 1 || N <- lists:seq(1, 6_000)},
                      #{~"a" => lists:foldl(fun(_, Inner) -> [Inner] end, [],
                                            lists:seq(1, 32_000))}]].

a_reader_sees_whole_values(Config) ->
    {Store, Opened} = open(Config),
    Value = fun(N) -> #{~"n" => N, ~"a" => binary:copy(integer_to_binary(N), 20000)} end,
    ok = Store:put(?KEY, Value(1), Opened),
    Write = fun(N) -> [ok = Store:put(?KEY, Value(N), Opened) || _ <- lists:seq(1, 20)] end,
    Writers = [spawn_monitor(fun() -> Write(N) end) || N <- lists:seq(1, 4)],
    [begin
         {ok, #{~"n" := N} = Read} = Store:get(?KEY, Opened),
         Read = Value(N)
     end || _ <- lists:seq(1, 200)],
    [receive {'DOWN', Ref, process, Pid, Reason} -> normal = Reason end
     || {Pid, Ref} <- Writers],
    _ = file(Config).

leftovers_are_deleted(Config) ->
    {Store, Opened} = open(Config),
    [Old, New] = [path(Config, Name) || Name <- ["aside-1", "aside-2"]],
    [ok = file:write_file(Path, "") || Path <- [Old, New]],
    Then = erlang:system_time(second) - 3700,
    ok = file:write_file_info(Old, #file_info{mtime = Then}, [{time, posix}]),
    _ = open(Config),
    {true, false} = {filelib:is_regular(New), filelib:is_regular(Old)},
    none = Store:get(?KEY, Opened).

many_open_a_new_folder(Config) ->
    Within = proplists:get_value(folder, Config),
    [begin
         Folder = filename:join(Within, integer_to_list(Round)) ++ "/",
         Open = fun(N) ->
             {ok, Opened} = erlmcp_token_store_file:open(#{folder => Folder}),
             ok = erlmcp_token_store_file:put(N, value(N), Opened)
         end,
         Openers = [spawn_monitor(fun() -> Open(N) end) || N <- lists:seq(1, 8)],
         [receive {'DOWN', Ref, process, Pid, Reason} -> normal = Reason end
          || {Pid, Ref} <- Openers],
         {ok, Names} = file:list_dir(Folder),
         8 = length(Names)
     end || Round <- lists:seq(1, 20)],
    {ok, Folders} = file:list_dir(Within),
    20 = length(Folders).

%% Who makes it too replaces it while it is empty: what is being written then is written again.
a_folder_may_be_replaced_while_it_is_empty(Config) ->
    Folder = proplists:get_value(folder, Config),
    Maker = spawn_link(fun() -> replaces(Folder, Folder ++ "-other") end),
    [begin
         {ok, Opened} = erlmcp_token_store_file:open(#{folder => Folder}),
         ok = erlmcp_token_store_file:put(?KEY, value(1), Opened),
         ok = erlmcp_token_store_file:delete(?KEY, Opened)
     end || _ <- lists:seq(1, 1_000)],
    unlink(Maker),
    exit(Maker, kill).

replaces(Folder, Aside) ->
    _ = file:make_dir(Aside),
    ok = file:change_mode(Aside, 8#700),
    _ = file:rename(Aside, Folder),
    receive after 1 -> replaces(Folder, Aside) end.

a_removed_folder_is_made_again(Config) ->
    Folder = proplists:get_value(folder, Config),
    {Store, Opened} = open(Config),
    ok = Store:put(?KEY, value(1), Opened),
    ok = file:del_dir_r(Folder),
    none = Store:get(?KEY, Opened),
    ok = Store:delete(?KEY, Opened),
    ok = Store:put(?KEY, value(2), Opened),
    {ok, #{~"expires" := 2}} = Store:get(?KEY, Opened),
    8#700 = mode(Folder).
