-module(erlmcp_unused_sessions).
-moduledoc """
An index of the sessions that their clients have not used since `initialize`, in the order in which
they were opened: the oldest of all, and the oldest of a tenant, are found without a search.
""".

-export([new/0, add/2, take/2, oldest/2, forget/2]).

-export_type([unused/0]).

-doc "When a session was opened, its id, and whose it is.".
-type unused() :: {Microseconds :: integer(), erlmcp_instance:session_id(), erlmcp_gate:tenant()}.

%% Before every time.
-define(EVER, -(1 bsl 64)).

-doc "Makes an empty index. It belongs to the calling process.".
-spec new() -> ets:table().
new() ->
    %% Of each session `{{Opened, Id}, Flow}` and `{{Flow, Opened, Id}}`: pairs come before triples.
    ets:new(erlmcp_unused_sessions, [public, ordered_set, {write_concurrency, true}]).

-doc "Adds a session.".
-spec add(unused(), ets:table()) -> ok.
add({Opened, Id, Flow}, Table) ->
    %% One by one: both at once would lock the whole table.
    true = ets:insert(Table, {{Flow, Opened, Id}}),
    true = ets:insert(Table, {{Opened, Id}, Flow}),
    ok.

-doc """
Takes a session away, because it is used now, or to end it. Of all that take the same one this is
`true` once.
""".
-spec take(unused(), ets:table()) -> boolean().
take({Opened, Id, Flow}, Table) ->
    true = ets:delete(Table, {Flow, Opened, Id}),
    ets:take(Table, {Opened, Id}) =/= [].

-doc "The session that was opened first, of all or of a tenant.".
-spec oldest(all | {of_flow, erlmcp_gate:tenant()}, ets:table()) -> {ok, unused()} | none.
oldest(all, Table) ->
    case ets:first(Table) of
        {Opened, Id} = Key ->
            case ets:lookup(Table, Key) of
                [{_, Flow}] -> {ok, {Opened, Id, Flow}};
                %% It was taken away just now.
                [] -> oldest(all, Table)
            end;
        _ ->
            none
    end;
oldest({of_flow, Flow}, Table) ->
    case ets:next(Table, {Flow, ?EVER, ~""}) of
        {Flow, Opened, Id} -> {ok, {Opened, Id, Flow}};
        _ -> none
    end.

-doc "Takes away the sessions that were opened before a time.".
-spec forget(Before :: integer(), ets:table()) -> ok.
forget(Before, Table) ->
    Earlier = [{'<', '$1', Before}],
    _ = ets:select_delete(Table, [{{{'$1', '_'}, '_'}, Earlier, [true]},
                                  {{{'_', '$1', '_'}}, Earlier, [true]}]),
    ok.
