-module(erlmcp_load_pending).
-moduledoc """
The requests of a connection that have no end yet, and what is known of those that ended badly.
Pure.

A reply to nothing that was asked may be the one that a request waits for, under another id: so one
that is not answered in its time, on a connection where that happened, was answered wrongly.
""".

-export([new/0, add/5, count/1, oldest/1, take/2, drop/2, stray/1, overdue/2, give_up/2, clear/1]).

-export_type([pending/0]).

-record(pending, {
    %% What they ask, when they were due, and until when they have time.
    requests = #{} :: #{erlmcp_load_wire:tag() => {Kind :: pos_integer(), Due :: integer(),
                                                  Deadline :: integer()}},
    %% Those whose time is over and that may be answered yet.
    overdue = #{} :: #{erlmcp_load_wire:tag() => []},
    strays = 0 :: non_neg_integer()
}).

-opaque pending() :: #pending{}.

%% Requests whose time is over and that are remembered.
-define(OVERDUE, 1000).

-doc "Of a new connection.".
-spec new() -> pending().
new() -> #pending{}.

-doc "A request of this kind was sent, that was due then and has time until its deadline.".
-spec add(erlmcp_load_wire:tag(), Kind :: pos_integer(), Due :: integer(), Deadline :: integer(),
          pending()) -> pending().
add(Tag, Kind, Due, Deadline, #pending{requests = Requests} = Pending) ->
    Pending#pending{requests = Requests#{Tag => {Kind, Due, Deadline}}}.

-doc "How many wait.".
-spec count(pending()) -> non_neg_integer().
count(#pending{requests = Requests}) -> map_size(Requests).

-doc "The one that was sent first.".
-spec oldest(pending()) -> erlmcp_load_wire:tag() | none.
oldest(#pending{requests = Requests}) when map_size(Requests) =:= 0 -> none;
oldest(#pending{requests = Requests}) -> lists:min(maps:keys(Requests)).

-doc "Which request a reply is to: one that waits, one that did (`late`), or none (`stray`).".
-spec take(erlmcp_load_wire:tag(), pending()) ->
    {{Kind :: pos_integer(), Due :: integer()} | late | stray, pending()}.
take(Tag, #pending{requests = Requests, overdue = Overdue} = Pending) ->
    case Requests of
        #{Tag := {Kind, Due, _}} ->
            {{Kind, Due}, Pending#pending{requests = maps:remove(Tag, Requests)}};
        #{} when is_map_key(Tag, Overdue) ->
            {late, Pending#pending{overdue = maps:remove(Tag, Overdue)}};
        #{} ->
            {stray, stray(Pending)}
    end.

-doc "A request waits no longer; when it was due, if it did wait.".
-spec drop(erlmcp_load_wire:tag(), pending()) -> {Due :: integer(), pending()} | none.
drop(Tag, #pending{requests = Requests} = Pending) ->
    case maps:take(Tag, Requests) of
        {{_, Due, _}, Others} -> {Due, Pending#pending{requests = Others}};
        error -> none
    end.

-doc "There was a reply to nothing that was asked.".
-spec stray(pending()) -> pending().
stray(#pending{strays = Strays} = Pending) ->
    Pending#pending{strays = Strays + 1}.

-doc "Those whose time is over, the first of them first, and when the next one's will be.".
-spec overdue(Now :: integer(), pending()) ->
    {[erlmcp_load_wire:tag()], Next :: integer() | none}.
overdue(Now, #pending{requests = Requests}) ->
    %% All have the same time, and so it ends in the order of their tags.
    {Over, Others} = lists:splitwith(fun({_, {_, _, Deadline}}) -> Deadline =< Now end,
                                     lists:sort(maps:to_list(Requests))),
    Next = case Others of
        [{_, {_, _, Deadline}} | _] -> Deadline;
        [] -> none
    end,
    {[Tag || {Tag, _} <- Over], Next}.

-doc "One whose time is over is given up: what became of it.".
-spec give_up(erlmcp_load_wire:tag(), pending()) ->
    {erlmcp_load_reply:outcome(), pending()}.
give_up(Tag, #pending{strays = 0, overdue = Overdue} = Pending) ->
    Remembered = case map_size(Overdue) < ?OVERDUE of
        true -> Overdue;
        false -> #{}
    end,
    {{failed, timeout}, Pending#pending{overdue = Remembered#{Tag => []}}};
give_up(_, #pending{strays = Strays} = Pending) ->
    {{wrong, id}, Pending#pending{strays = Strays - 1}}.

-doc "None waits any longer: when they were due.".
-spec clear(pending()) -> {[integer()], pending()}.
clear(#pending{requests = Requests}) ->
    {[Due || _ := {_, Due, _} <- Requests], new()}.
