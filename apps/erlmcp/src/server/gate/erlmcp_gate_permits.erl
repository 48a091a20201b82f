-module(erlmcp_gate_permits).
-moduledoc """
Who holds what of a gate's counters (`m:erlmcp_gate_counters`): a row of a table for each permit,
written by the process that took, and removed by whichever process gives back first.

The process of this module gives back what the dead held. Each second it looks at all rows, and
removes those whose holders are gone. A process that was killed after it took and before it wrote
its row shows as a difference between a counter and the rows. If that is the same in three looks at
a generation that is over, it is given back: after six seconds at most. Looks are further apart
where one takes more than 50 ms. This process also removes counters of keys that are idle.

Internal.
""".

-behaviour(gen_server).

-export([new/1, add/2, add_waiting/3, grant/4, hand_over/3, leave/2, is_held/2, calls/1]).
-export([counters/1, queue/1, put_queue/3, tell_queue/1]).
-export([start_link/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([permits/0, id/0]).

%% Every request passes here twice.
-compile({inline, [insert/3, give_back/2]}).

-record(permits, {
    %% {Id, Holder, Held, Waiting}: what of it is held only as long as the request waits is Waiting;
    %% and {queue, {Pid, LongestMs}}
    table :: ets:table(),
    counters :: erlmcp_gate_counters:counters()
}).
-opaque permits() :: #permits{}.
-type id() :: integer().
-type taken() :: [erlmcp_gate_counters:taken()].

%% Milliseconds between two looks, and how many times longer than a look the pause after it is.
-define(LOOK, 1000).
-define(PAUSE, 20).
%% Looks at a generation that is over: a process that took has three seconds to write its row.
-define(LOOKS, 3).
%% Processes of the node for each row up to which all are listed, and no holder is asked.
-define(LISTED, 8).

-record(look, {
    permits :: permits(),
    %% the generation that is over
    over :: erlmcp_gate_counters:generation(),
    %% the looks at it, and the differences that were the same in all of them
    looks = 0 :: 0..?LOOKS - 1,
    differences = #{} :: #{term() => integer()}
}).

-doc "Makes a table without permits, for these counters. It belongs to the calling process.".
-spec new(erlmcp_gate_counters:counters()) -> permits().
new(Counters) ->
    #permits{table = ets:new(?MODULE, [public, {write_concurrency, auto}]), counters = Counters}.

-doc "Writes down that the calling process holds this.".
-spec add(taken(), permits()) -> id().
add(Held, #permits{table = Table}) ->
    insert(Held, [], Table).

-doc "Writes down that the calling process holds this, and `Waiting` until `grant/4`.".
-spec add_waiting(Held :: taken(), Waiting :: taken(), permits()) -> id().
add_waiting(Held, Waiting, #permits{table = Table}) ->
    insert(Held, Waiting, Table).

insert(Held, Waiting, Table) ->
    Id = erlang:unique_integer(),
    true = ets:insert(Table, {Id, self(), Held, Waiting}),
    Id.

-doc """
Adds one of the requests in flight to a permit that waited with `Held` and `Waiting`, and gives the
latter back. Returns `false` if the permit was left: then the caller still has what it took.
""".
-spec grant(id(), InFlight :: erlmcp_gate_counters:taken(), {Held :: taken(), Waiting :: taken()},
            permits()) -> boolean().
grant(Id, InFlight, {Held, Waiting}, #permits{table = Table, counters = Counters}) ->
    ets:update_element(Table, Id, [{3, [InFlight | Held]}, {4, []}])
        andalso erlmcp_gate_counters:give(Waiting, Counters) =:= ok.

-doc "Makes another process the holder of a permit, unless the permit was left.".
-spec hand_over(id(), pid(), permits()) -> ok.
hand_over(Id, Pid, #permits{table = Table}) ->
    _ = ets:update_element(Table, Id, {2, Pid}),
    ok.

-doc "Gives back what a permit holds, unless that was done. Any process may.".
-spec leave(id(), permits()) -> ok.
leave(Id, #permits{table = Table} = Permits) ->
    case ets:take(Table, Id) of
        [Row] -> give_back(Row, Permits);
        [] -> ok
    end.

give_back({_, _, Held, Waiting}, #permits{counters = Counters} = Permits) ->
    _ = Waiting =:= [] orelse erlmcp_gate_counters:give(Waiting, Counters),
    case erlmcp_gate_counters:give_and_look(Held, Counters) of
        true -> send_look(Permits);
        false -> ok
    end.

-doc "Returns `true` if a permit was not left yet.".
-spec is_held(id(), permits()) -> boolean().
is_held(Id, #permits{table = Table}) ->
    ets:member(Table, Id).

-doc "Returns the holders of requests that are in flight or wait.".
-spec calls(permits()) -> [pid()].
calls(Permits) ->
    [Holder || {_, Holder, Held, Waiting} <- rows(Permits),
               Waiting =/= [] orelse lists:keymember(in_flight, 1, Held)].

%% All rows that are there the whole time, and some of those that come or go meanwhile.
rows(#permits{table = Table}) ->
    [Row || {_, _, _, _} = Row <- ets:tab2list(Table)].

-doc "Returns the counters of these permits.".
-spec counters(permits()) -> erlmcp_gate_counters:counters().
counters(#permits{counters = Counters}) ->
    Counters.

-doc """
Returns the process of the gate's queue and the milliseconds that a request waits there at most;
`none` while it is started.
""".
-spec queue(permits()) -> {pid(), LongestMs :: pos_integer()} | none.
queue(#permits{table = Table}) ->
    ets:lookup_element(Table, queue, 2, none).

-doc "Makes a process the gate's queue, in which nothing waits yet.".
-spec put_queue(pid(), LongestMs :: pos_integer(), permits()) -> ok.
put_queue(Pid, LongestMs, #permits{table = Table, counters = Counters}) ->
    true = ets:insert(Table, {queue, {Pid, LongestMs}}),
    erlmcp_gate_counters:queued(0, Counters).

-doc "Sends `look` to the queue, if a request waits there: one more may be in flight.".
-spec tell_queue(permits()) -> ok.
tell_queue(#permits{counters = Counters} = Permits) ->
    case erlmcp_gate_counters:queued(Counters) of
        0 -> ok;
        _ -> send_look(Permits)
    end.

send_look(Permits) ->
    case queue(Permits) of
        {Queue, _} ->
            Queue ! look,
            ok;
        none ->
            ok
    end.

-doc "Starts the process that gives back what the dead held.".
-spec start_link(erlmcp_gate:gate()) -> gen_server:start_ret().
start_link(#{permits := Permits}) ->
    gen_server:start_link(?MODULE, Permits, []).

-doc false.
init(#permits{counters = Counters} = Permits) ->
    ok = erlmcp_label:set([?MODULE]),
    %% While it looks, rows that are removed stay in their table, in the way of all requests. So it
    %% does not wait for its turn behind every process that has something to do.
    _ = process_flag(priority, high),
    %% Not the generation that a process before this one may have begun just now.
    {ok, later(0, #look{permits = Permits, over = erlmcp_gate_counters:next_generation(Counters)})}.

-doc false.
handle_call(_, _, Look) ->
    {noreply, Look}.

-doc false.
handle_cast(_, Look) ->
    {noreply, Look}.

-doc false.
handle_info(look, Look) ->
    Began = erlang:monotonic_time(millisecond),
    Next = look(Look),
    {noreply, later(erlang:monotonic_time(millisecond) - Began, Next), hibernate};
handle_info(_, Look) ->
    {noreply, Look}.

later(Took, Look) ->
    _ = erlang:send_after(max(?LOOK, ?PAUSE * Took), self(), look),
    Look.

%% The rows first: those that are removed meanwhile make a counter look too low, and not too high.
look(#look{permits = Permits, over = Over, looks = Looks, differences = Before} = Look) ->
    #permits{counters = Counters} = Permits,
    Sums = held_by_the_living(Over, Permits),
    Differences = erlmcp_gate_counters:unwritten(Over, Sums, Counters),
    Same = maps:filter(fun(Counter, More) ->
                           Looks =:= 0 orelse maps:get(Counter, Before, 0) =:= More
                       end, Differences),
    case Looks + 1 of
        ?LOOKS ->
            ok = erlmcp_gate_counters:correct(Over, Same, Counters),
            ok = tell_queue(Permits),
            ok = erlmcp_gate_counters:remove_idle(Counters),
            Look#look{over = erlmcp_gate_counters:next_generation(Counters), looks = 0};
        More ->
            Look#look{looks = More, differences = Same}
    end.

%% What these hold of a generation, by counter; what the dead held is given back.
held_by_the_living(Generation, Permits) ->
    Rows = rows(Permits),
    Living = living(length(Rows)),
    lists:foldl(fun({_, Holder, Held, Waiting} = Row, Sums) ->
        case is_map_key(Holder, Living) orelse is_process_alive(Holder) of
            true ->
                erlmcp_gate_counters:add_up(Waiting, Generation,
                                            erlmcp_gate_counters:add_up(Held, Generation, Sums));
            false ->
                ok = leave_as_read(Row, Permits),
                Sums
        end
    end, #{}, Rows).

%% The processes of the node, unless they are many more than the holders. To ask a holder that has
%% signals waiting is to wait for its turn among all busy ones.
living(Rows) ->
    case erlang:system_info(process_count) =< ?LISTED * Rows of
        true -> maps:from_keys(processes(), []);
        false -> #{}
    end.

%% Not if the permit has another holder since, who lives, or holds something else: that is looked at
%% the next time.
leave_as_read({Id, Holder, Held, Waiting} = Row, #permits{table = Table} = Permits) ->
    Same = [{{Id, Holder, '$1', '$2'},
             [{'=:=', '$1', {const, Held}}, {'=:=', '$2', {const, Waiting}}], [true]}],
    case ets:select_delete(Table, Same) of
        1 -> give_back(Row, Permits);
        0 -> ok
    end.
