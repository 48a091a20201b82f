-module(cluster_deaths_properties_SUITE).
-moduledoc """
Properties of homes: they are found by each node alike from the deaths alone. A history is a list of
joins and deaths; what is alive after it is known without the module under test.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([a_home_is_alive/1, a_death_moves_its_own_sessions_alone/1, a_join_moves_nothing/1,
         a_death_is_declared_once/1, survivors_share_the_sessions/1,
         only_the_last_deaths_are_remembered/1, nobody_is_left/1]).

-define(NAMES, [<<Name:96>> || Name <- lists:seq(1, 40)]).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [a_home_is_alive, a_death_moves_its_own_sessions_alone, a_join_moves_nothing,
     a_death_is_declared_once, survivors_share_the_sessions, only_the_last_deaths_are_remembered,
     nobody_is_left].

a_home_is_alive(_) ->
    holds(?FORALL(History, history(), begin
        {Alive, All, Deaths} = played(History),
        lists:all(fun({Name, First}) ->
                      {ok, Home} = erlmcp_cluster_deaths:home(Name, First, Deaths),
                      lists:member(Home, Alive)
                          andalso (Home =:= First) =:= lists:member(First, Alive)
                  end, [{Name, First} || Name <- ?NAMES, First <- All])
    end)).

a_death_moves_its_own_sessions_alone(_) ->
    holds(?FORALL({History, Chosen}, {history(), non_neg_integer()}, begin
        {Alive, All, Deaths} = played(History),
        Dead = lists:nth(Chosen rem length(Alive) + 1, Alive),
        After = erlmcp_cluster_deaths:declare(Dead, Alive, 0, Deaths),
        length(Alive) =:= 1 orelse
            lists:all(fun({Name, First}) ->
                          Before = erlmcp_cluster_deaths:home(Name, First, Deaths),
                          Next = erlmcp_cluster_deaths:home(Name, First, After),
                          (Before =:= Next) =:= (Before =/= {ok, Dead})
                      end, [{Name, First} || Name <- ?NAMES, First <- All])
    end)).

%% Some join, and then one dies. Those who have joined get sessions of the dead one only.
a_join_moves_nothing(_) ->
    holds(?FORALL({History, Chosen}, {history(), non_neg_integer()}, begin
        {Alive, All, Deaths} = played(History),
        Dead = lists:nth(Chosen rem length(Alive) + 1, Alive),
        {More, _, Same} = played(History ++ [join, join]),
        After = erlmcp_cluster_deaths:declare(Dead, More, 0, Same),
        lists:all(fun({Name, First}) ->
                      {ok, Before} = erlmcp_cluster_deaths:home(Name, First, Deaths),
                      {ok, Home} = erlmcp_cluster_deaths:home(Name, First, After),
                      case Before of
                          Dead -> lists:member(Home, lists:delete(Dead, More));
                          _ -> Home =:= Before
                      end
                  end, [{Name, First} || Name <- ?NAMES, First <- All])
    end)).

%% The second declaration of a node comes with other survivors, and is no more than the first.
a_death_is_declared_once(_) ->
    holds(?FORALL(History, history(), begin
        {Alive, All, Deaths} = played(History),
        lists:all(fun(Dead) ->
                      is_dead(Dead, Deaths)
                          andalso Deaths =:= erlmcp_cluster_deaths:declare(Dead, All, 9, Deaths)
                  end, All -- Alive)
            andalso erlmcp_cluster_deaths:epoch(Deaths) =:= length(All -- Alive)
            andalso [Epoch || {_, #{epoch := Epoch}} <- erlmcp_cluster_deaths:list(Deaths)]
                    =:= lists:reverse(lists:seq(1, length(All -- Alive)))
    end)).

survivors_share_the_sessions(_) ->
    Survivors = lists:seq(2, 8),
    Deaths = erlmcp_cluster_deaths:declare(1, [1 | Survivors], 0, erlmcp_cluster_deaths:new()),
    Homes = [Home || Name <- lists:seq(1, 70_000),
                     {ok, Home} <- [erlmcp_cluster_deaths:home(<<Name:96>>, 1, Deaths)]],
    Shares = #{Survivor => length([Home || Home <- Homes, Home =:= Survivor])
               || Survivor <- Survivors},
    ct:pal("of 70,000: ~p", [Shares]),
    [] = [Share || _ := Share <- Shares, abs(Share - 10_000) > 500].

only_the_last_deaths_are_remembered(_) ->
    Last = lists:foldl(fun(Dead, Deaths) ->
                           erlmcp_cluster_deaths:declare(Dead, [Dead, Dead + 1], Dead, Deaths)
                       end, erlmcp_cluster_deaths:new(), lists:seq(1, 1_001)),
    1_000 = length(erlmcp_cluster_deaths:list(Last)),
    1_001 = erlmcp_cluster_deaths:epoch(Last),
    false = is_dead(1, Last),
    true = is_dead(2, Last),
    %% A chain of a thousand homes ends.
    {ok, 1_002} = erlmcp_cluster_deaths:home(<<7:96>>, 2, Last),
    %% It became the home by the last of these deaths.
    1_001 = erlmcp_cluster_deaths:inherited(<<7:96>>, 2, Last),
    never = erlmcp_cluster_deaths:inherited(<<7:96>>, 1_002, Last).

nobody_is_left(_) ->
    Deaths = erlmcp_cluster_deaths:declare(1, [1], 0, erlmcp_cluster_deaths:new()),
    none = erlmcp_cluster_deaths:home(<<7:96>>, 1, Deaths),
    never = erlmcp_cluster_deaths:inherited(<<7:96>>, 1, Deaths),
    {ok, 2} = erlmcp_cluster_deaths:home(<<7:96>>, 2, Deaths).

is_dead(Incarnation, Deaths) ->
    lists:keymember(Incarnation, 1, erlmcp_cluster_deaths:list(Deaths)).

%% Histories.

holds(Property) ->
    erlmcp_test_property:holds(Property, 300).

history() ->
    list(frequency([{2, join}, {3, {die, non_neg_integer()}}])).

%% Two join first, and the last one alive does not die. Returns who is alive, who ever was, and the
%% deaths. The declarer may also believe in some who have died before.
played(History) ->
    lists:foldl(
        fun(join, {Alive, All, Deaths}) ->
                Next = length(All) + 1,
                {Alive ++ [Next], All ++ [Next], Deaths};
           ({die, _}, {[_], _, _} = Same) ->
                Same;
           ({die, Chosen}, {Alive, All, Deaths}) ->
                Dead = lists:nth(Chosen rem length(Alive) + 1, Alive),
                Believed = case Chosen rem 2 of
                    0 -> Alive;
                    1 -> All
                end,
                {lists:delete(Dead, Alive), All,
                 erlmcp_cluster_deaths:declare(Dead, Believed, 0, Deaths)}
        end, {[1, 2], [1, 2], erlmcp_cluster_deaths:new()}, History).
