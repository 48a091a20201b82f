-module(erlmcp_fair_queue).
-moduledoc """
A queue in which tenants take turns. The requests of one tenant are served first come, first served.
Pure.

The algorithm is start-time fair queueing, with turns that all count the same (Goyal, Vin and Cheng,
"Start-time Fair Queueing", SIGCOMM 1996). Tenants whose requests always wait get equal shares. A
tenant that asks for less than its share hardly waits, since it has a credit of a few turns.

Internal.
""".

-export([new/0, add/5, take/2, drop/2, next/1, served/2, length/1, ahead/2, round/1, since/2]).

-export_type([queue/0, key/0]).

-type key() :: {Tenant :: term(), Id :: term()}.
-type due() :: {Clock :: integer(), Order :: integer()}.
-opaque queue() :: #{
    length := non_neg_integer(), due := gb_trees:tree(due(), Tenant :: term()),
    clock := integer(), order := integer(),
    %% the tenants with waiting requests: the number of requests, the time since which there was
    %% always one, the time at which the tenant is due, and the requests
    tenants := #{Tenant :: term() => {pos_integer(), Since :: integer(), due(), requests()}},
    %% tenants without waiting requests whose credit is not complete again
    ended := #{Tenant :: term() => Clock :: integer()}
}.
-type requests() :: queue:queue({Id :: term(), Value :: term()}).

%% Each tenant is due at a time of a clock that counts turns, and the tenant that is due first has
%% the next turn. After its turn, a tenant is due one turn later. A tenant that had no turn recently
%% begins as one that was due a few turns ago. Without that credit, the third of three calls at once
%% would wait until other tenants had two turns. If tenants that come and go are always due first,
%% the clock still advances slowly, so that the tenants that stay have their turns.

%% The units of the clock in one turn.
-define(TURN, (1 bsl 20)).
%% The clock advances by at least one turn in this number of turns. If more tenants have waiting
%% requests, it does so in as many turns as there are such tenants.
-define(OTHERS, 16).
%% The credit of a tenant: it begins as one that was due four turns ago.
-define(CREDIT, (4 * ?TURN)).

-doc "Makes an empty queue.".
-spec new() -> queue().
new() ->
    #{length => 0, due => gb_trees:empty(), clock => 0, order => 0, tenants => #{}, ended => #{}}.

-doc """
Adds the request `Value` behind the other requests of `Tenant`. No other waiting request of this
tenant may have the same `Id`. `Now` is the present time by a clock of the caller. `since/2` returns
a time of this clock.
""".
-spec add(Tenant :: term(), Id :: term(), Value :: term(), Now :: integer(), queue()) ->
    queue().
add(Tenant, Id, Value, Now, #{length := All, tenants := Tenants} = Queue) ->
    case Tenants of
        #{Tenant := {Length, Since, When, Waiting}} ->
            More = {Length + 1, Since, When, queue:in({Id, Value}, Waiting)},
            Queue#{length := All + 1, tenants := Tenants#{Tenant := More}};
        #{} ->
            #{clock := Clock, ended := Ended} = Queue,
            Credited = Clock - ?CREDIT,
            due(Tenant, max(Credited, maps:get(Tenant, Ended, Credited)),
                {1, Now, queue:from_list([{Id, Value}])},
                Queue#{length := All + 1, ended := maps:remove(Tenant, Ended)})
    end.

due(Tenant, Clock, {Length, Since, Waiting}, Queue) ->
    #{due := Due, order := Order, tenants := Tenants} = Queue,
    When = {Clock, Order},
    Queue#{due := gb_trees:insert(When, Tenant, Due), order := Order + 1,
           tenants := Tenants#{Tenant => {Length, Since, When, Waiting}}}.

-doc """
Removes the request with this key from the queue, and returns its value and the remaining queue.
Returns `error` if there is no such request.
""".
-spec take(key(), queue()) -> {ok, Value :: term(), queue()} | error.
take({Tenant, Id}, #{tenants := Tenants} = Queue) ->
    maybe
        #{Tenant := {_, _, _, Waiting} = Of} ?= Tenants,
        {ok, Value, Rest} ?= out(Id, Waiting),
        {ok, Value, taken(Tenant, setelement(4, Of, Rest), Queue)}
    else
        _ -> error
    end.

%% The request is usually the first of its tenant. Another one is taken out if its deadline is
%% earlier.
out(Id, Waiting) ->
    case queue:get(Waiting) of
        {Id, Value} -> {ok, Value, queue:drop(Waiting)};
        _ -> out_of(lists:keytake(Id, 1, queue:to_list(Waiting)))
    end.

out_of({value, {_, Value}, Rest}) -> {ok, Value, queue:from_list(Rest)};
out_of(false) -> error.

taken(Tenant, {1, _, {Clock, _} = When, _}, Queue) ->
    #{length := All, due := Due, tenants := Tenants} = Queue,
    Queue#{length := All - 1, due := gb_trees:delete(When, Due),
           tenants := maps:remove(Tenant, Tenants), ended := later(Tenant, Clock, Queue)};
taken(Tenant, {Length, Since, When, Rest}, #{length := All, tenants := Tenants} = Queue) ->
    Queue#{length := All - 1, tenants := Tenants#{Tenant := {Length - 1, Since, When, Rest}}}.

later(Tenant, Due, #{clock := Clock, ended := Ended}) when Due > Clock - ?CREDIT ->
    Ended#{Tenant => Due};
later(_, _, #{ended := Ended}) ->
    Ended.

-doc """
Drops requests from the front of each tenant's queue while the fun returns `true` for their keys.
Returns the values of the dropped requests, in no particular order, and the remaining queue.
""".
-spec drop(fun((key()) -> boolean()), queue()) -> {Dropped :: [Value :: term()], queue()}.
drop(Is, #{tenants := Tenants} = Queue) ->
    lists:foldl(fun(Tenant, Done) -> drop(Tenant, Is, Done) end, {[], Queue}, maps:keys(Tenants)).

drop(Tenant, Is, {Dropped, #{tenants := Tenants} = Queue} = Done) ->
    maybe
        #{Tenant := {_, _, _, Waiting} = Of} ?= Tenants,
        {Id, Value} = queue:get(Waiting),
        true ?= Is({Tenant, Id}),
        Left = taken(Tenant, setelement(4, Of, queue:drop(Waiting)), Queue),
        drop(Tenant, Is, {[Value | Dropped], Left})
    else
        _ -> Done
    end.

-doc """
Returns the first request of the tenant whose turn it is, and leaves it in the queue. Returns `none`
if the queue is empty.
""".
-spec next(queue()) -> {key(), Value :: term()} | none.
next(#{length := 0}) ->
    none;
next(#{due := Due, tenants := Tenants}) ->
    {_, Tenant} = gb_trees:smallest(Due),
    #{Tenant := {_, _, _, Waiting}} = Tenants,
    {Id, Value} = queue:get(Waiting),
    {{Tenant, Id}, Value}.

-doc """
Records that the request with this key has had the turn of its tenant. The request has been taken
out of the queue before (`take/2`).
""".
-spec served(key(), queue()) -> queue().
served({Tenant, _}, #{due := Due, tenants := Tenants, ended := Ended, clock := Clock} = Queue) ->
    Turn = ?TURN div max(?OTHERS, map_size(Tenants)),
    case Tenants of
        #{Tenant := {Length, Since, {Was, _} = When, Waiting}} ->
            due(Tenant, Was + ?TURN, {Length, Since, Waiting},
                Queue#{due := gb_trees:delete(When, Due), clock := max(Was, Clock + Turn)});
        #{} ->
            Was = maps:get(Tenant, Ended, Clock - ?CREDIT),
            forget(Queue#{clock := max(Was, Clock + Turn), ended := Ended#{Tenant => Was + ?TURN}})
    end.

%% Forgets tenants whose credit is complete again. Not at each turn, since it looks at all of them.
forget(#{tenants := Tenants, ended := Ended, clock := Clock} = Queue)
        when map_size(Ended) > 2 * (?OTHERS + map_size(Tenants)) ->
    Queue#{ended := maps:filter(fun(_, When) -> When > Clock - ?CREDIT end, Ended)};
forget(Queue) ->
    Queue.

-doc "Returns the number of requests in the queue.".
-spec length(queue()) -> non_neg_integer().
length(#{length := Length}) ->
    Length.

-doc """
Returns an estimate of how many turns there are before the turn of a request of `Tenant` that is
added now.
""".
-spec ahead(Tenant :: term(), queue()) -> non_neg_integer().
ahead(Tenant, #{tenants := Tenants} = Queue) ->
    case maps:get(Tenant, Tenants, none) of
        none ->
            min(?MODULE:length(Queue), map_size(Tenants));
        {Own, _, _, _} when is_integer(Own) ->
            min(?MODULE:length(Queue), (Own + 1) * map_size(Tenants))
    end.

-doc "Returns the number of turns in a round, one for each tenant with a waiting request.".
-spec round(queue()) -> non_neg_integer().
round(#{tenants := Tenants}) ->
    map_size(Tenants).

-doc """
Returns the time, as given to `add/5`, since which `Tenant` has always had a waiting request. The
tenant must have a waiting request now.
""".
-spec since(Tenant :: term(), queue()) -> integer().
since(Tenant, #{tenants := Tenants}) ->
    #{Tenant := {_, Since, _, _}} = Tenants,
    Since.
