-module(erlmcp_flows).
-moduledoc """
What waits, by flow: the flows take turns, and within a flow it is first come, first served. A value
with a table that belongs to the process that made it.
""".

-export([new/0, add/4, take/2, next/1, served/2, length/1, ahead/2]).

-export_type([flows/0, key/0]).

-type key() :: {Flow :: term(), Number :: integer()}.
-opaque flows() :: #{
    table := ets:table(), lengths := #{Flow :: term() => pos_integer()}, served := {term(), atom()}
}.

-doc "Nothing waits.".
-spec new() -> flows().
new() ->
    #{table => ets:new(erlmcp_flows, [ordered_set, private]), lengths => #{},
      served => {none, last}}.

-doc "Something waits in a flow, behind all of it that have lower numbers.".
-spec add(Flow :: term(), Number :: integer(), Value :: term(), flows()) -> flows().
add(Flow, Number, Value, #{table := Table, lengths := Lengths} = Flows) ->
    true = ets:insert_new(Table, {{Flow, Number}, Value}),
    Flows#{lengths := maps:update_with(Flow, fun(Length) -> Length + 1 end, 1, Lengths)}.

-doc "It waits no longer.".
-spec take(key(), flows()) -> {ok, Value :: term(), flows()} | error.
take({Flow, _} = Key, #{table := Table, lengths := Lengths} = Flows) ->
    case ets:take(Table, Key) of
        [{_, Value}] ->
            Rest = case Lengths of
                #{Flow := 1} -> maps:remove(Flow, Lengths);
                #{Flow := Length} -> Lengths#{Flow := Length - 1}
            end,
            {ok, Value, Flows#{lengths := Rest}};
        [] ->
            error
    end.

-doc "The first of the flow whose turn it is.".
-spec next(flows()) -> {key(), Value :: term()} | none.
next(#{table := Table, served := Served}) ->
    %% In the order of terms a number comes before an atom: this is past the last of the flow.
    case ets:next_lookup(Table, Served) of
        {Key, [{_, Value}]} ->
            {Key, Value};
        '$end_of_table' ->
            case ets:first_lookup(Table) of
                {Key, [{_, Value}]} -> {Key, Value};
                '$end_of_table' -> none
            end
    end.

-doc "This flow had its turn; it is the next one's.".
-spec served(key(), flows()) -> flows().
served({Flow, _}, Flows) ->
    Flows#{served := {Flow, last}}.

-doc "How many wait.".
-spec length(flows()) -> non_neg_integer().
length(#{table := Table}) ->
    ets:info(Table, size).

-doc "How many turns there are at most until one that comes to this flow now has its own.".
-spec ahead(Flow :: term(), flows()) -> non_neg_integer().
ahead(Flow, #{lengths := Lengths} = Flows) ->
    case maps:get(Flow, Lengths, 0) of
        Own when is_integer(Own) -> min(?MODULE:length(Flows), (Own + 1) * map_size(Lengths))
    end.
