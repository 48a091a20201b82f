-module(session_ids_SUITE).
-moduledoc """
The ids of HTTP sessions. Specification 2025-11-25, "Session Management": "The session ID SHOULD
be globally unique and cryptographically secure".
""".

-export([suite/0, all/0]).
-export([each_is_given_once/1, each_has_192_bits_of_its_own/1]).

suite() -> [{timetrap, {seconds, 30}}].

all() -> [each_is_given_once, each_has_192_bits_of_its_own].

%% However many a process opens: one, as most do, or more than are made at once.
each_is_given_once(_) ->
    Ids = lists:append([ids(Count) || Count <- lists:seq(0, 70)]),
    70 * 71 div 2 = length(Ids),
    [] = Ids -- lists:usort(Ids).

%% Bits that all have in common would show: of random ones, 1,000 times in a row, none does.
each_has_192_bits_of_its_own(_) ->
    Numbers = [begin
                   {ok, <<Number:192>>} = erlmcp_base64url:decode(Id),
                   Number
               end || Id <- ids(1_000)],
    {0, All} = lists:foldl(fun(Number, {Both, Any}) -> {Number band Both, Number bor Any} end,
                           {-1, 0}, Numbers),
    All = 1 bsl 192 - 1.

%% As another process was given them.
ids(Count) ->
    {Pid, Monitor} = spawn_monitor(fun() ->
        exit([erlmcp_session_table:new_id() || _ <- lists:seq(1, Count)])
    end),
    receive {'DOWN', Monitor, process, Pid, Ids} -> Ids end.
