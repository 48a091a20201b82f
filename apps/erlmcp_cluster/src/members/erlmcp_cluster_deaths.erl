-module(erlmcp_cluster_deaths).
-moduledoc """
The deaths in a cluster, and the homes of sessions that follow from them. Pure.

Each start of a node in the cluster is an incarnation, with a number that no other ever has. A
session's first home is the incarnation that opened it. When a home dies, a rendezvous hash chooses
the next home among the incarnations that survived this death. An incarnation that joins moves no
session.

Internal.
""".

-export([new/0, declare/4, is_dead/2, epoch/1, home/3, inherited/3, list/1]).

-export_type([deaths/0, incarnation/0, death/0]).

%% The most deaths that are remembered.
-define(KEPT, 1_000).
-define(HASHES, (1 bsl 32)).

-opaque deaths() :: {Epoch :: non_neg_integer(), #{incarnation() => death()}}.
-type incarnation() :: 1..16#FFFFFFFF.
-doc """
A death: its place among the deaths (`epoch`), and the incarnations that survived it. `at` is when
the lease ended, or when an incarnation that was leaving was declared dead, in seconds since 1970 by
the agreed time (`m:erlmcp_cluster_time`).
""".
-type death() :: #{epoch := pos_integer(), at := integer(), survivors := [incarnation()]}.

-doc "Returns the deaths of a new cluster, which has none.".
-spec new() -> deaths().
new() ->
    {0, #{}}.

-doc """
Adds the death of an incarnation at `At`, in seconds since 1970, unless it is among the deaths. The
survivors are the others of `Alive` that have not died. Only the last 1,000 deaths stay.
""".
-spec declare(incarnation(), Alive :: [incarnation()], At :: integer(), deaths()) -> deaths().
declare(Incarnation, _, _, {_, Deaths} = Same) when is_map_key(Incarnation, Deaths) ->
    Same;
declare(Incarnation, Alive, At, {Epoch, Deaths}) ->
    Survivors = [Other || Other <- lists:usort(Alive), Other =/= Incarnation,
                          not is_map_key(Other, Deaths)],
    Death = #{epoch => Epoch + 1, at => At, survivors => Survivors},
    {Epoch + 1, last(Epoch + 1, Deaths#{Incarnation => Death})}.

%% Deaths are in the order of their epochs, so at most one is too old. Survivors of a death have not
%% died in an earlier epoch, so a search for a home goes to later deaths only.
last(Newest, Deaths) when map_size(Deaths) > ?KEPT ->
    maps:filter(fun(_, #{epoch := Epoch}) -> Epoch > Newest - ?KEPT end, Deaths);
last(_, Deaths) ->
    Deaths.

-doc "Returns `true` if the death of an incarnation is among those that are remembered.".
-spec is_dead(incarnation(), deaths()) -> boolean().
is_dead(Incarnation, {_, Deaths}) ->
    is_map_key(Incarnation, Deaths).

-doc "Returns the number of deaths that were declared.".
-spec epoch(deaths()) -> non_neg_integer().
epoch({Epoch, _}) ->
    Epoch.

-doc """
Returns the home of the session with the name `Name`, which the incarnation `First` opened. Returns
`none` if a home of the session died without a survivor. An incarnation whose death is forgotten
counts as alive.
""".
-spec home(Name :: binary(), First :: incarnation(), deaths()) -> {ok, incarnation()} | none.
home(Name, First, {_, Deaths} = All) ->
    case Deaths of
        #{First := #{survivors := []}} -> none;
        #{First := #{survivors := Survivors}} -> home(Name, chosen(Name, Survivors), All);
        #{} -> {ok, First}
    end.

-doc """
Returns when the session `Name` came to its last home: when the home before it died, in seconds
since 1970. Returns `never` if its only home was the incarnation `First`, which opened it.
""".
-spec inherited(Name :: binary(), First :: incarnation(), deaths()) -> integer() | never.
inherited(Name, First, {_, Deaths} = All) ->
    case Deaths of
        #{First := #{survivors := [_ | _] = Survivors, at := At}} ->
            case inherited(Name, chosen(Name, Survivors), All) of
                never -> At;
                Later -> Later
            end;
        #{} ->
            never
    end.

chosen(Name, Survivors) ->
    {_, Chosen} = lists:max([{erlang:phash2({Name, Survivor}, ?HASHES), Survivor}
                             || Survivor <- Survivors]),
    Chosen.

-doc "Returns the deaths that are remembered, the latest first.".
-spec list(deaths()) -> [{incarnation(), death()}].
list({_, Deaths}) ->
    lists:sort(fun({_, #{epoch := One}}, {_, #{epoch := Other}}) -> One >= Other end,
               maps:to_list(Deaths)).
