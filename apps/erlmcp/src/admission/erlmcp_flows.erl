-module(erlmcp_flows).
-moduledoc """
What waits, by flow: within a flow it is first come, first served, and the flows take turns. A value
with tables that belong to the process that made it.

Whose turn it is says a clock of turns: a flow in which nobody waited is due now, and after its turn
one turn later than it was. Who is due first is next. So flows that always have somebody waiting get
equal shares, and one that asks for less than its share waits for hardly more than the turns of its
like, not for those that ask for more: they are due later. That is start-time fair queueing (Goyal,
Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996), with turns that all count the same. When
flows that come and go are always due first, the clock goes on too, if slowly, and so those that
stay have their turns.
""".

-export([new/0, add/5, take/2, next/1, served/2, length/1, ahead/2, round/1, since/2]).

-export_type([flows/0, key/0]).

-type key() :: {Flow :: term(), Number :: integer()}.
-type due() :: {Clock :: integer(), Order :: integer()}.
-opaque flows() :: #{
    waiting := ets:table(), due := ets:table(), clock := integer(), order := integer(),
    %% how many wait, since when somebody always did, and when it is their turn
    flows := #{Flow :: term() => {pos_integer(), Since :: integer(), due()}},
    %% what had its turn and is due later than now, when somebody waits again
    ended := #{Flow :: term() => Clock :: integer()}
}.

%% What the clock counts for a turn, and in how many turns of others it goes on as much at least.
-define(TURN, (1 bsl 20)).
-define(OTHERS, 16).
%% Lower than all numbers.
-define(FIRST, (-1 bsl 64)).

-doc "Nothing waits.".
-spec new() -> flows().
new() ->
    #{waiting => ets:new(erlmcp_flows, [ordered_set, private]),
      due => ets:new(erlmcp_flows_due, [ordered_set, private]),
      clock => 0, order => 0, flows => #{}, ended => #{}}.

-doc "Something waits in a flow from now on, behind all of it that have lower numbers.".
-spec add(Flow :: term(), Number :: integer(), Value :: term(), Now :: integer(), flows()) ->
    flows().
add(Flow, Number, Value, Now, #{waiting := Waiting, flows := Known} = Flows) ->
    true = ets:insert_new(Waiting, {{Flow, Number}, Value}),
    case Known of
        #{Flow := {Length, Since, Due}} ->
            Flows#{flows := Known#{Flow := {Length + 1, Since, Due}}};
        #{} ->
            #{clock := Clock, ended := Ended} = Flows,
            due(Flow, max(Clock, maps:get(Flow, Ended, Clock)), {1, Now},
                Flows#{ended := maps:remove(Flow, Ended)})
    end.

due(Flow, Clock, {Length, Since}, #{due := Due, order := Order, flows := Known} = Flows) ->
    true = ets:insert_new(Due, {{Clock, Order}, Flow}),
    Flows#{order := Order + 1, flows := Known#{Flow => {Length, Since, {Clock, Order}}}}.

-doc "It waits no longer.".
-spec take(key(), flows()) -> {ok, Value :: term(), flows()} | error.
take({Flow, _} = Key, #{waiting := Waiting, due := Due, flows := Known} = Flows) ->
    case ets:take(Waiting, Key) of
        [{_, Value}] ->
            case Known of
                #{Flow := {1, _, {Clock, _} = When}} ->
                    true = ets:delete(Due, When),
                    {ok, Value, Flows#{flows := maps:remove(Flow, Known),
                                       ended := later(Flow, Clock, Flows)}};
                #{Flow := {Length, Since, When}} ->
                    {ok, Value, Flows#{flows := Known#{Flow := {Length - 1, Since, When}}}}
            end;
        [] ->
            error
    end.

later(Flow, Due, #{clock := Clock, ended := Ended}) when Due > Clock -> Ended#{Flow => Due};
later(_, _, #{ended := Ended}) -> Ended.

-doc "The first of the flow whose turn it is.".
-spec next(flows()) -> {key(), Value :: term()} | none.
next(#{waiting := Waiting, due := Due}) ->
    case ets:first_lookup(Due) of
        {_, [{_, Flow}]} ->
            {Key, [{_, Value}]} = ets:next_lookup(Waiting, {Flow, ?FIRST}),
            {Key, Value};
        '$end_of_table' ->
            none
    end.

-doc "This was taken, and had a turn of its flow.".
-spec served(key(), flows()) -> flows().
served({Flow, _}, #{due := Due, flows := Known, ended := Ended, clock := Clock} = Flows) ->
    Turn = ?TURN div max(?OTHERS, map_size(Known)),
    case Known of
        #{Flow := {Length, Since, {Was, _} = When}} ->
            true = ets:delete(Due, When),
            due(Flow, Was + ?TURN, {Length, Since}, Flows#{clock := max(Was, Clock + Turn)});
        #{} ->
            Was = maps:get(Flow, Ended, Clock),
            forget(Flows#{clock := max(Was, Clock + Turn), ended := Ended#{Flow => Was + ?TURN}})
    end.

%% Not each time, since there may be many.
forget(#{flows := Known, ended := Ended, clock := Clock} = Flows)
        when map_size(Ended) > 2 * (?OTHERS + map_size(Known)) ->
    Flows#{ended := maps:filter(fun(_, When) -> When > Clock end, Ended)};
forget(Flows) ->
    Flows.

-doc "How many wait.".
-spec length(flows()) -> non_neg_integer().
length(#{waiting := Waiting}) ->
    ets:info(Waiting, size).

-doc "How many turns there are at most until one that comes to this flow now has its own.".
-spec ahead(Flow :: term(), flows()) -> non_neg_integer().
ahead(Flow, #{flows := Known} = Flows) ->
    case maps:get(Flow, Known, none) of
        none ->
            min(?MODULE:length(Flows), map_size(Known));
        {Own, _, _} when is_integer(Own) ->
            min(?MODULE:length(Flows), (Own + 1) * map_size(Known))
    end.

-doc "How many turns there are until each flow had one.".
-spec round(flows()) -> non_neg_integer().
round(#{flows := Known}) ->
    map_size(Known).

-doc "Since when somebody always waited in a flow in which somebody does.".
-spec since(Flow :: term(), flows()) -> integer().
since(Flow, #{flows := Known}) ->
    #{Flow := {_, Since, _}} = Known,
    Since.
