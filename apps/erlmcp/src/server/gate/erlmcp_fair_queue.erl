-module(erlmcp_fair_queue).
-moduledoc """
What waits, by flow: within a flow it is first come, first served, and the flows take turns. Pure.

Whose turn it is says a clock of turns: a flow in which nobody waited was due a few turns ago, and
after its turn is due one turn later than it was. Who is due first is next. So flows that always
have somebody waiting get equal shares, and one that asks for less than its share waits for hardly
more than the turns of its like, not for those that ask for more: they are due later. That is
start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996), with
turns that all count the same, and with the few turns of credit because requests come in bursts:
who asks for less than its share, but for three calls at once, would wait with the third until
others had two turns. When flows that come and go are always due first, the clock goes on too, if
slowly, and so those that stay have their turns.

Internal.
""".

-export([new/0, add/5, take/2, drop/2, next/1, served/2, length/1, ahead/2, round/1, since/2]).

-export_type([flows/0, key/0]).

-type key() :: {Flow :: term(), Number :: integer()}.
-type due() :: {Clock :: integer(), Order :: integer()}.
-opaque flows() :: #{
    length := non_neg_integer(), due := gb_trees:tree(due(), Flow :: term()),
    clock := integer(), order := integer(),
    %% how many wait, since when somebody always did, when it is their turn, and who they are
    flows := #{Flow :: term() => {pos_integer(), Since :: integer(), due(), waiting()}},
    %% what had its turn and has not all of its credit, when somebody waits again
    ended := #{Flow :: term() => Clock :: integer()}
}.
-type waiting() :: queue:queue({Number :: integer(), Value :: term()}).

%% What the clock counts for a turn, and in how many turns of others it goes on as much at least.
-define(TURN, (1 bsl 20)).
-define(OTHERS, 16).
%% How long ago who has all of its credit was due: four turns.
-define(CREDIT, (4 * ?TURN)).

-doc "Nothing waits.".
-spec new() -> flows().
new() ->
    #{length => 0, due => gb_trees:empty(), clock => 0, order => 0, flows => #{}, ended => #{}}.

-doc "Something waits in a flow from now on, behind all of it, by a number of its own.".
-spec add(Flow :: term(), Number :: integer(), Value :: term(), Now :: integer(), flows()) ->
    flows().
add(Flow, Number, Value, Now, #{length := All, flows := Known} = Flows) ->
    case Known of
        #{Flow := {Length, Since, When, Waiting}} ->
            More = {Length + 1, Since, When, queue:in({Number, Value}, Waiting)},
            Flows#{length := All + 1, flows := Known#{Flow := More}};
        #{} ->
            #{clock := Clock, ended := Ended} = Flows,
            Credited = Clock - ?CREDIT,
            due(Flow, max(Credited, maps:get(Flow, Ended, Credited)),
                {1, Now, queue:from_list([{Number, Value}])},
                Flows#{length := All + 1, ended := maps:remove(Flow, Ended)})
    end.

due(Flow, Clock, {Length, Since, Waiting}, Flows) ->
    #{due := Due, order := Order, flows := Known} = Flows,
    When = {Clock, Order},
    Flows#{due := gb_trees:insert(When, Flow, Due), order := Order + 1,
           flows := Known#{Flow => {Length, Since, When, Waiting}}}.

-doc "It waits no longer.".
-spec take(key(), flows()) -> {ok, Value :: term(), flows()} | error.
take({Flow, Number}, #{flows := Known} = Flows) ->
    maybe
        #{Flow := {_, _, _, Waiting} = Of} ?= Known,
        {ok, Value, Rest} ?= out(Number, Waiting),
        {ok, Value, taken(Flow, setelement(4, Of, Rest), Flows)}
    else
        _ -> error
    end.

%% It is the first, but for those whose time is over before that of others.
out(Number, Waiting) ->
    case queue:get(Waiting) of
        {Number, Value} -> {ok, Value, queue:drop(Waiting)};
        _ -> out_of(lists:keytake(Number, 1, queue:to_list(Waiting)))
    end.

out_of({value, {_, Value}, Rest}) -> {ok, Value, queue:from_list(Rest)};
out_of(false) -> error.

taken(Flow, {1, _, {Clock, _} = When, _}, Flows) ->
    #{length := All, due := Due, flows := Known} = Flows,
    Flows#{length := All - 1, due := gb_trees:delete(When, Due), flows := maps:remove(Flow, Known),
           ended := later(Flow, Clock, Flows)};
taken(Flow, {Length, Since, When, Rest}, #{length := All, flows := Known} = Flows) ->
    Flows#{length := All - 1, flows := Known#{Flow := {Length - 1, Since, When, Rest}}}.

later(Flow, Due, #{clock := Clock, ended := Ended}) when Due > Clock - ?CREDIT ->
    Ended#{Flow => Due};
later(_, _, #{ended := Ended}) ->
    Ended.

-doc "The first of each flow waits no longer if the fun says so, nor the next ones then.".
-spec drop(fun((key()) -> boolean()), flows()) -> flows().
drop(Is, #{flows := Known} = Flows) ->
    lists:foldl(fun(Flow, Left) -> drop(Flow, Is, Left) end, Flows, maps:keys(Known)).

drop(Flow, Is, #{flows := Known} = Flows) ->
    maybe
        #{Flow := {_, _, _, Waiting} = Of} ?= Known,
        {Number, _} = queue:get(Waiting),
        true ?= Is({Flow, Number}),
        drop(Flow, Is, taken(Flow, setelement(4, Of, queue:drop(Waiting)), Flows))
    else
        _ -> Flows
    end.

-doc "The first of the flow whose turn it is.".
-spec next(flows()) -> {key(), Value :: term()} | none.
next(#{length := 0}) ->
    none;
next(#{due := Due, flows := Known}) ->
    {_, Flow} = gb_trees:smallest(Due),
    #{Flow := {_, _, _, Waiting}} = Known,
    {Number, Value} = queue:get(Waiting),
    {{Flow, Number}, Value}.

-doc "This was taken, and had a turn of its flow.".
-spec served(key(), flows()) -> flows().
served({Flow, _}, #{due := Due, flows := Known, ended := Ended, clock := Clock} = Flows) ->
    Turn = ?TURN div max(?OTHERS, map_size(Known)),
    case Known of
        #{Flow := {Length, Since, {Was, _} = When, Waiting}} ->
            due(Flow, Was + ?TURN, {Length, Since, Waiting},
                Flows#{due := gb_trees:delete(When, Due), clock := max(Was, Clock + Turn)});
        #{} ->
            Was = maps:get(Flow, Ended, Clock - ?CREDIT),
            forget(Flows#{clock := max(Was, Clock + Turn), ended := Ended#{Flow => Was + ?TURN}})
    end.

%% Not each time, since there may be many.
forget(#{flows := Known, ended := Ended, clock := Clock} = Flows)
        when map_size(Ended) > 2 * (?OTHERS + map_size(Known)) ->
    Flows#{ended := maps:filter(fun(_, When) -> When > Clock - ?CREDIT end, Ended)};
forget(Flows) ->
    Flows.

-doc "How many wait.".
-spec length(flows()) -> non_neg_integer().
length(#{length := Length}) ->
    Length.

-doc "How many turns there are at most until one that comes to this flow now has its own.".
-spec ahead(Flow :: term(), flows()) -> non_neg_integer().
ahead(Flow, #{flows := Known} = Flows) ->
    case maps:get(Flow, Known, none) of
        none ->
            min(?MODULE:length(Flows), map_size(Known));
        {Own, _, _, _} when is_integer(Own) ->
            min(?MODULE:length(Flows), (Own + 1) * map_size(Known))
    end.

-doc "How many turns there are until each flow had one.".
-spec round(flows()) -> non_neg_integer().
round(#{flows := Known}) ->
    map_size(Known).

-doc "Since when somebody always waited in a flow in which somebody does.".
-spec since(Flow :: term(), flows()) -> integer().
since(Flow, #{flows := Known}) ->
    #{Flow := {_, Since, _, _}} = Known,
    Since.
