-module(cluster_secret_SUITE).
-moduledoc """
The keys of a cluster come from its secret and the day alone, without a gap, and the secret is seen
nowhere: in no state, no crash report and no crash dump.
""".

-export([suite/0, all/0]).
-export([keys_are_derived_as_the_rfc_says/1, nodes_with_the_secret_have_the_same_keys/1,
         keys_change_each_day_without_a_gap/1, lasting_keys_do_not_change/1,
         a_secret_is_changed_without_a_gap/1, each_use_and_server_has_its_own_keys/1,
         a_secret_has_bounds/1, a_missing_secret_is_named/1, no_state_shows_the_secret/1,
         no_crash_report_shows_the_secret/1,
         no_crash_dump_shows_the_secret/1]).
-export([log/2]).

-define(SECRET, "correct horse battery staple, and more").
-define(OTHER, "another secret that is long enough too").
-define(DAY, 86_400).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [keys_are_derived_as_the_rfc_says, nodes_with_the_secret_have_the_same_keys,
     keys_change_each_day_without_a_gap, lasting_keys_do_not_change,
     a_secret_is_changed_without_a_gap,
     each_use_and_server_has_its_own_keys, a_secret_has_bounds, a_missing_secret_is_named,
     no_state_shows_the_secret, no_crash_report_shows_the_secret, no_crash_dump_shows_the_secret].

%% RFC 5869, appendix A.1. The first block of its output are the first 32 bytes.
keys_are_derived_as_the_rfc_says(_) ->
    Secret = binary:copy(<<16#0b>>, 22),
    Salt = binary:decode_hex(~"000102030405060708090a0b0c"),
    Info = binary:decode_hex(~"f0f1f2f3f4f5f6f7f8f9"),
    Extracted = binary:decode_hex(
        ~"077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"),
    Block = binary:decode_hex(~"3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"),
    Extracted = erlmcp_cluster_secret:extract(Salt, Secret),
    Block = erlmcp_cluster_secret:expand(Extracted, Info).

nodes_with_the_secret_have_the_same_keys(Config) ->
    File = file(Config, ?SECRET ++ "\n"),
    true = os:putenv("ERLMCP_TEST_SECRET", ?SECRET),
    Of = fun(Sources) -> running(Sources, fun() -> [{erlmcp_cluster_secret:sealing_key(Use),
                                                     erlmcp_cluster_secret:ring(Use, shared)}
                                                    || Use <- [session, state, dpop]] end) end,
    Same = Of([{file, File}]),
    Same = Of([{env, "ERLMCP_TEST_SECRET"}]),
    false = Same =:= Of([{file, file(Config, ?OTHER)}]),
    true = os:unsetenv("ERLMCP_TEST_SECRET").

keys_change_each_day_without_a_gap(_) ->
    Masters = [erlmcp_cluster_secret:master(secret())],
    Rows = fun(Day) -> maps:from_list(erlmcp_cluster_secret:rows(Masters, Day * ?DAY + 5)) end,
    [begin
         #{{sealing, session} := {Slot, Key}} = Rows(Slot),
         %% The nodes whose clock is a day behind or ahead, and those of the next 30 days, open it.
         [#{{session, Slot} := [Key]} = Rows(Slot + Days) || Days <- lists:seq(-1, 30)],
         [false = is_map_key({session, Slot}, Rows(Slot + Days)) || Days <- [-2, 31]],
         [true = lists:member(Key, map_get({ring, session}, Rows(Slot + Days)))
          || Days <- [-1, 0, 1]],
         #{{ring, session} := [Key, _, _]} = Rows(Slot)
     end || Slot <- [20_000, 20_001, 65_000]],
    Keys = [map_get({session, Slot}, Rows(20_010)) || Slot <- lists:seq(19_980, 20_011)],
    32 = length(lists:usort(Keys)),
    %% The table has the rows of this moment, and no others.
    ok = running([{file, temporary(?SECRET)}], fun() ->
        Today = erlang:system_time(second) div ?DAY,
        {Today, Key} = erlmcp_cluster_secret:sealing_key(session),
        [Key] = erlmcp_cluster_secret:opening_keys(session, Today),
        [_] = erlmcp_cluster_secret:opening_keys(session, Today + 1),
        [] = erlmcp_cluster_secret:opening_keys(session, Today + 2),
        [] = erlmcp_cluster_secret:opening_keys(session, Today - 31),
        [] = erlmcp_cluster_secret:opening_keys(session, 0),
        ok
    end).

lasting_keys_do_not_change(_) ->
    [Old, New] = [erlmcp_cluster_secret:master(Secret)
                  || Secret <- [secret(), list_to_binary(?OTHER)]],
    Keys = fun(Masters, Day) ->
        map_get({lasting, token}, maps:from_list(erlmcp_cluster_secret:rows(Masters, Day * ?DAY)))
    end,
    [Key] = Keys([Old], 20_000),
    [Key] = Keys([Old], 20_100),
    [_, Key] = Keys([New, Old], 20_100),
    %% No key of a day is one of them.
    [] = [Row || {{_, _}, [Same]} = Row <- erlmcp_cluster_secret:rows([Old], 20_000 * ?DAY),
                 Same =:= Key, Row =/= {{lasting, token}, [Key]}],
    [Key] = running([{file, temporary(?SECRET)}],
                    fun() -> erlmcp_cluster_secret:lasting_keys(token) end),
    none = erlmcp_cluster_secret:lasting_keys(token).

%% First the old one, then the new one with the old one behind it, then the new one: a node of any
%% step opens what a node of the step before seals.
a_secret_is_changed_without_a_gap(_) ->
    Old = erlmcp_cluster_secret:master(secret()),
    New = erlmcp_cluster_secret:master(list_to_binary(?OTHER)),
    Rows = fun(Masters) -> maps:from_list(erlmcp_cluster_secret:rows(Masters, 20_000 * ?DAY)) end,
    #{{sealing, session} := {_, Sealed}} = Rows([Old]),
    #{{sealing, session} := {_, Next}, {session, 20_000} := Both, {ring, state} := Ring}
        = Rows([New, Old]),
    [Next, Sealed] = Both,
    #{{session, 20_000} := [Next]} = Rows([New]),
    6 = length(lists:usort(Ring)).

each_use_and_server_has_its_own_keys(_) ->
    running([{file, temporary(?SECRET)}], fun() ->
        Keys = [Key || Use <- [session, state, dpop], Server <- [one, other],
                       {ok, Ring} <- [erlmcp_cluster_secret:ring(Use, Server)], Key <- Ring],
        18 = length(lists:usort(Keys)),
        [] = [Key || Key <- Keys, byte_size(Key) =/= 32]
    end),
    none = erlmcp_cluster_secret:ring(state, one).

a_secret_has_bounds(Config) ->
    Reads = fun(Bytes) ->
        Source = {file, file(Config, Bytes)},
        case running([Source], fun() -> ok end) of
            {error, {bad_secret, Source, Reason}} -> Reason;
            ok -> ok
        end
    end,
    ok = Reads(lists:duplicate(32, $a)),
    too_short = Reads(lists:duplicate(31, $a)),
    too_short = Reads("  " ++ lists:duplicate(31, $a) ++ "\n\n"),
    ok = Reads(lists:duplicate(4096, $a)),
    too_long = Reads(lists:duplicate(4097, $a)),
    too_long = Reads(lists:duplicate(100_000, $a)),
    too_short = Reads(""),
    %% Bytes that are no text.
    ok = Reads(lists:duplicate(32, 255)).

a_missing_secret_is_named(Config) ->
    Missing = {file, filename:join(proplists:get_value(priv_dir, Config), "none")},
    {error, {bad_secret, Missing, missing}} = running([Missing], fun() -> ok end),
    Unset = {env, "ERLMCP_TEST_NO_SECRET"},
    {error, {bad_secret, Unset, missing}} =
        running([{file, temporary(?SECRET)}, Unset], fun() -> ok end).

no_state_shows_the_secret(_) ->
    running([{file, temporary(?SECRET)}], fun() ->
        Pid = whereis(erlmcp_cluster_secret),
        Terms = [sys:get_state(Pid), sys:get_status(Pid), process_info(Pid),
                 process_info(Pid, [dictionary, messages, backtrace]),
                 ets:info(erlmcp_cluster_secret)],
        [ok = hidden(io_lib:format(Format, [Terms])) || Format <- ["~w", "~p", "~0tp"]],
        %% Nor is it in the fun, which has a key that was made of it.
        nomatch = binary:match(term_to_binary(sys:get_state(Pid)), secret())
    end).

%% The process fails while it derives keys.
no_crash_report_shows_the_secret(_) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self(), level => all}),
    running([{file, temporary(?SECRET)}], fun() ->
        Pid = whereis(erlmcp_cluster_secret),
        {_, Key} = erlmcp_cluster_secret:sealing_key(session),
        [_ | planted] = sys:replace_state(Pid, fun(Masters) -> Masters ++ planted end),
        Pid ! refresh,
        receive {'EXIT', Pid, Reason} -> ok = hidden(io_lib:format("~w", [Reason])) end,
        Reports = [receive {logged, Pid, Event} -> Event end || _ <- [gen_server, proc_lib]],
        [begin
             Text = io_lib:format("~p ~w", [Report, Report]),
             {_, _} = binary:match(unicode:characters_to_binary(Text), ~"erlmcp_cluster_secret"),
             ok = hidden(Text),
             [nomatch = binary:match(unicode:characters_to_binary(Text), Shape)
              || Shape <- shapes(Key)]
         end || Report <- Reports]
    end),
    ok = logger:remove_handler(?MODULE).

no_crash_dump_shows_the_secret(Config) ->
    Dump = filename:join(proplists:get_value(priv_dir, Config), "secret.dump"),
    {Peer, _} = erlmcp_test_peer_node:start(#{env => [{"ERL_CRASH_DUMP", Dump}]}),
    Monitor = monitor(process, Peer),
    Call = fun(Module, Function, Arguments) ->
        erlmcp_test_peer_node:call(Peer, Module, Function, Arguments)
    end,
    {ok, _} = Call(application, ensure_all_started, [erlmcp]),
    {ok, _} = Call(gen_server, start, [{local, erlmcp_cluster_secret}, erlmcp_cluster_secret,
                                       [{file, temporary(?SECRET)}], []]),
    {Slot, _} = Call(erlmcp_cluster_secret, sealing_key, [dpop]),
    ok = peer:cast(Peer, erlang, halt, ["planted"]),
    receive {'DOWN', Monitor, process, Peer, _} -> ok end,
    {ok, Bytes} = file:read_file(Dump),
    {_, _} = binary:match(Bytes, ~"Slogan: planted"),
    {_, _} = binary:match(Bytes, ~"erlmcp_cluster_secret"),
    ok = hidden(Bytes),
    Rows = erlmcp_cluster_secret:rows([erlmcp_cluster_secret:master(secret())], Slot * ?DAY),
    {_, {Slot, Key}} = lists:keyfind({sealing, session}, 1, Rows),
    {_, [Lasting]} = lists:keyfind({lasting, token}, 1, Rows),
    Extracted = erlmcp_cluster_secret:extract(~"erlmcp_cluster", secret()),
    [nomatch = binary:match(Bytes, Shape)
     || Of <- [Key, Lasting, Extracted], Shape <- shapes(Of)].

%% As a dump and a term that is printed have bytes. In a dump they may be a part of a term that is
%% in Base64 as a whole, at one of three alignments, and with other bytes around.
shapes(Bytes) ->
    [Bytes, binary:encode_hex(Bytes), binary:encode_hex(Bytes, lowercase),
     iolist_to_binary(lists:join($,, [integer_to_binary(Byte) || <<Byte>> <= Bytes]))
     | [begin
            Encoded = base64:encode(<<0:Before/unit:8, Bytes/binary>>),
            binary:part(Encoded, Own, byte_size(Encoded) - Own - 4)
        end || {Before, Own} <- [{0, 0}, {1, 2}, {2, 3}]]].

hidden(Text) ->
    Shown = case Text of
        _ when is_binary(Text) -> Text;
        _ -> unicode:characters_to_binary(Text)
    end,
    [nomatch = binary:match(Shown, Shape) || Shape <- shapes(secret())],
    ok.

-doc false.
log(#{meta := #{pid := Pid}} = Event, #{config := Test}) ->
    Test ! {logged, Pid, Event}.

secret() ->
    list_to_binary(?SECRET).

%% Runs `Work` while the process of these sources runs.
running(Sources, Work) ->
    _ = process_flag(trap_exit, true),
    case erlmcp_cluster_secret:start_link(Sources) of
        {ok, Pid} ->
            try
                Work()
            after
                Monitor = monitor(process, Pid),
                exit(Pid, shutdown),
                receive {'DOWN', Monitor, process, Pid, _} -> ok end
            end;
        {error, _} = Error ->
            Error
    end.

file(Config, Bytes) ->
    Name = integer_to_list(erlang:unique_integer([positive])),
    File = filename:join(proplists:get_value(priv_dir, Config), Name),
    ok = file:write_file(File, Bytes),
    File.

temporary(Bytes) ->
    ok = file:write_file("secret", Bytes),
    filename:absname("secret").
