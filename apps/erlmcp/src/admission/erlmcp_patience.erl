-module(erlmcp_patience).
-moduledoc """
How long it does good to wait in a queue. Pure; times are milliseconds of whatever clock.

As long as the queue was empty of late, everybody may wait the longest time. A queue that has not
been empty for that long only makes everything late: then one may wait for a twentieth of it, or for
as long as one turn takes. That is "controlled delay", as in Ben Maurer, "Fail at Scale" (ACM Queue
13.8, 2015).
""".

-export([new/1, began/2, turned/2, allowed/2, needed/2, longest/1]).

-export_type([patience/0]).

-opaque patience() :: #{
    longest := pos_integer(),
    %% when the queue was empty the last time, when the last turn was
    empty := integer(), turn := integer(),
    %% from one turn to the next, as it is usual; 0 where that is not known
    distance := number()
}.

%% What part of the longest time is allowed in a queue that stays.
-define(STANDING, 20).
%% The weight of the newest turn in their usual distance.
-define(WEIGHT, 0.125).

-doc "Nobody waits. The longest time is what anybody may wait.".
-spec new(Longest :: pos_integer()) -> patience().
new(Longest) ->
    #{longest => Longest, empty => 0, turn => 0, distance => 0}.

-doc "The longest time.".
-spec longest(patience()) -> pos_integer().
longest(#{longest := Longest}) ->
    Longest.

-doc "Somebody begins to wait, where nobody did.".
-spec began(Now :: integer(), patience()) -> patience().
began(Now, Patience) ->
    Patience#{empty := Now, turn := Now}.

-doc "It was somebody's turn.".
-spec turned(Now :: integer(), patience()) -> patience().
turned(Now, #{turn := Turn, distance := 0} = Patience) ->
    Patience#{turn := Now, distance := Now - Turn};
turned(Now, #{turn := Turn, distance := Distance} = Patience) ->
    Patience#{turn := Now, distance := Distance + ?WEIGHT * (Now - Turn - Distance)}.

-doc "How long those may have waited whose turn it is.".
-spec allowed(Now :: integer(), patience()) -> pos_integer().
allowed(Now, #{longest := Longest, empty := Empty}) when Now - Empty =< Longest ->
    Longest;
allowed(Now, #{longest := Longest, turn := Turn}) ->
    max(max(1, Longest div ?STANDING), Now - Turn).

-doc "How long so many turns take, as far as that is known.".
-spec needed(Turns :: non_neg_integer(), patience()) -> non_neg_integer().
needed(Turns, #{distance := Distance}) ->
    round(Turns * Distance).
