-module(erlmcp_queue_delay).
-moduledoc """
How long it does good to wait in a queue. Pure; times are milliseconds of whatever clock.

As long as the queue was empty of late, everybody may wait the longest time. A queue that has not
been empty for a quarter of that only makes everything late: then one may wait for a tenth, or
for as long as one turn takes. That is "controlled delay", as in Ben Maurer, "Fail at Scale" (ACM
Queue 13.8, 2015).

The queue is one of many flows that take turns, and the flow whose requests always wait is the one
that asks for too much. So a flow of which nobody waited of late has more time in a queue that
stays: a round of turns more, but a fifth of the longest time at most, since so may all of many do.

Internal.
""".

-export([new/1, began/2, turned/2, allowed/4, needed/2, lasting/1]).

-export_type([patience/0]).

-opaque patience() :: #{
    longest := pos_integer(),
    %% when the queue was empty the last time, when the last turn was
    empty := integer(), turn := integer(),
    %% from one turn to the next, as it is usual; 0 where that is not known
    distance := number()
}.

%% What part of the longest time makes a queue one that stays.
-define(LASTING, 4).
%% What part of the longest time is allowed in a queue that stays, and at most to a flow that does
%% not.
-define(STANDING, 10).
-define(ROUND, 5).
%% The weight of the newest turn in their usual distance.
-define(WEIGHT, 0.125).

-doc "Nobody waits. The longest time is what anybody may wait.".
-spec new(Longest :: pos_integer()) -> patience().
new(Longest) ->
    #{longest => Longest, empty => 0, turn => 0, distance => 0}.

-doc "How long a queue is not empty until it is one that stays, by the longest time.".
-spec lasting(Longest :: pos_integer()) -> pos_integer().
lasting(Longest) ->
    max(1, Longest div ?LASTING).

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

-doc """
How long those may have waited whose turn it is, where somebody of their flow always waited since
then, and so many turns are a round.
""".
-spec allowed(Now :: integer(), Since :: integer(), Round :: non_neg_integer(), patience()) ->
    pos_integer().
allowed(Now, Since, Round, #{longest := Longest, empty := Empty, turn := Turn} = Patience)
        when is_integer(Now - Turn), is_integer(Longest) ->
    Lasting = lasting(Longest),
    Standing = max(max(1, Longest div ?STANDING), Now - Turn),
    case {Now - Empty > Lasting, Now - Since > Lasting} of
        {true, true} -> Standing;
        {true, false} -> max(Standing, min(Longest div ?ROUND, Standing + needed(Round, Patience)));
        {false, _} -> Longest
    end.

-doc "How long so many turns take, as far as that is known.".
-spec needed(Turns :: non_neg_integer(), patience()) -> non_neg_integer().
needed(Turns, #{distance := Distance}) ->
    round(Turns * Distance).
