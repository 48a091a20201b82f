-module(erlmcp_gate_permits).
-moduledoc """
The permits of a gate. Each permit is a row of a table with its holder and its shares of the gate's
counters (`m:erlmcp_gate_counters`). The process that took the shares writes the row. The first
process that gives the permit back removes the row, and gives the shares back.

The process of this module gives back the permits of dead processes about once a second. It also
gives back the shares of processes that were killed before they wrote the row, or after they removed
it, and removes idle counters.

Internal.
""".

-behaviour(gen_server).

%% Every request passes here.
-compile({inline, [give_back/2]}).

-export([new/1, add/3, grant/4, exchange/4, hand_over/2, leave/2, is_held/1]).
-export([calls/1, oldest_calls/2]).
-export([queue/1, put_queue/3, tell_queue/1]).
-export([start_link/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([permits/0, id/0]).

%% Each scheduler has a table of its own, so processes rarely wait for the lock of a table. One
%% table for all, with `write_concurrency`, takes twice as long.
-record(permits, {
    %% {Id, Holder, InFlight, Held}, where InFlight is the share of a request in flight, or 0; and
    %% in the first table {queue, {Pid, LongestMs}}
    tables :: tuple(),
    counters :: erlmcp_gate_counters:counters()
}).
-opaque permits() :: #permits{}.
-opaque id() :: {ets:table(), integer()}.
-type in_flight() :: erlmcp_gate_counters:share() | 0.
-type taken() :: [erlmcp_gate_counters:taken()].

%% Milliseconds between two looks. The pause after a look is at least `?PAUSE` times as long as the
%% look.
-define(LOOK, 1000).
-define(PAUSE, 20).
%% Looks at a generation that is over: a process has three seconds to write its row.
-define(LOOKS, 3).
%% All processes are listed if there are at most this many for each row.
-define(LISTED, 8).

%% The unique integers of a node begin at minus this.
-define(LEAST_ID, (1 bsl 59)).

%% A process may be killed between taking its shares and writing its row, or between removing its
%% row and giving its shares back. Then a counter differs from the sum of the rows. Shares belong to
%% a generation (`erlmcp_gate_counters:next_generation/1`). If the difference is the same in three
%% looks at a generation that is over, it is given back. That takes up to eight seconds, or longer
%% if a look takes more than 50 ms, or if permits with a share of the same counter leave during the
%% looks.
-record(look, {
    permits :: permits(),
    timer :: reference(),
    over :: erlmcp_gate_counters:generation(),
    %% the number of looks at the generation that is over, and the differences that were the same in
    %% all of them
    looks = 0 :: 0..?LOOKS - 1,
    differences = #{} :: #{term() => integer()}
}).

-doc "Makes empty tables of permits, which belong to the calling process.".
-spec new(erlmcp_gate_counters:counters()) -> permits().
new(Counters) ->
    Tables = [ets:new(?MODULE, [public]) || _ <- lists:seq(1, erlang:system_info(schedulers))],
    #permits{tables = list_to_tuple(Tables), counters = Counters}.

-doc """
Adds a permit that the calling process holds, and returns its id. `InFlight` is a share of the
requests in flight, or 0, and `Held` has shares of other counters.
""".
-spec add(InFlight :: in_flight(), Held :: taken(), permits()) -> id().
add(InFlight, Held, #permits{tables = Tables}) ->
    %% The numbers of dirty schedulers are larger than those of the others.
    Table = element(1 + erlang:system_info(scheduler_id) rem tuple_size(Tables), Tables),
    Id = erlang:unique_integer(),
    true = ets:insert(Table, {Id, self(), InFlight, Held}),
    {Table, Id}.

-doc """
Adds a share of the requests in flight to the permit of a request that waited, gives the shares
`Waiting` back, and returns `true`. The permit keeps the shares `Held`. Returns `false`, and does
nothing, if the permit was given back before.
""".
-spec grant(id(), erlmcp_gate_counters:share(), {Held :: taken(), Waiting :: taken()}, permits()) ->
    boolean().
grant({Table, Id}, InFlight, {Held, Waiting}, #permits{counters = Counters}) ->
    ets:update_element(Table, Id, [{3, InFlight}, {4, Held}])
        andalso erlmcp_gate_counters:give(Waiting, Counters) =:= ok.

-doc """
Replaces the shares of a permit by `InFlight` and `Held`, and gives the former shares back. If the
permit was given back before, gives `InFlight` and `Held` back instead. Only the process that runs
the request may call this function, after the request came in flight.
""".
-spec exchange(id(), in_flight(), Held :: taken(), permits()) -> ok.
exchange({Table, Id}, InFlight, Held, Permits) ->
    New = {Id, self(), InFlight, Held},
    %% Another process may give the permit back meanwhile. It changes no share.
    case ets:lookup(Table, Id) of
        [Before] ->
            case ets:update_element(Table, Id, [{3, InFlight}, {4, Held}]) of
                true -> give_back(Before, Permits);
                false -> give_back(New, Permits)
            end;
        [] ->
            give_back(New, Permits)
    end.

-doc "Makes another process the holder of a permit, unless the permit was given back before.".
-spec hand_over(id(), pid()) -> ok.
hand_over({Table, Id}, Pid) ->
    _ = ets:update_element(Table, Id, {2, Pid}),
    ok.

-doc "Gives a permit back, unless it was given back before. Any process may call this function.".
-spec leave(id(), permits()) -> ok.
leave({Table, Id}, Permits) ->
    case ets:take(Table, Id) of
        [Row] -> give_back(Row, Permits);
        [] -> ok
    end.

give_back({_, _, InFlight, Held}, #permits{counters = Counters} = Permits) ->
    _ = Held =:= [] orelse erlmcp_gate_counters:give(Held, Counters),
    case InFlight > 0 andalso erlmcp_gate_counters:leave(InFlight, Counters) of
        true -> send_look(Permits);
        false -> ok
    end.

-doc "Returns `true` if a permit has not been given back yet.".
-spec is_held(id()) -> boolean().
is_held({Table, Id}) ->
    ets:member(Table, Id).

-doc """
Returns the holders of requests that are in flight, wait or ask their clients. A process is in the
list once for each of its requests.
""".
-spec calls(permits()) -> [pid()].
calls(Permits) ->
    [Holder || {_, {_, Holder, _, Held} = Row} <- rows(Permits),
               is_call(Row) orelse lists:keymember(asking, 1, Held)].

-doc """
Returns the ids, as texts, and the holders of requests that are in flight or wait. For each
scheduler, returns only the `Most` oldest of the requests that entered on it.
""".
-spec oldest_calls(permits(), Most :: pos_integer() | infinity) -> [{Id :: binary(), pid()}].
oldest_calls(#permits{tables = Tables}, Most) ->
    lists:append([oldest([{Id, Holder} || {Id, Holder, _, _} = Row <- ets:tab2list(Table),
                                          is_call(Row)], Most)
                  || Table <- tuple_to_list(Tables)]).

%% The processes that add to a table run on one scheduler, whose unique integers grow.
oldest(Calls, infinity) -> named(Calls);
oldest(Calls, Most) -> named(lists:sublist(lists:sort(Calls), Most)).

named(Calls) ->
    [{string:lowercase(integer_to_binary(Id + ?LEAST_ID, 36)), Holder} || {Id, Holder} <- Calls].

is_call({_, _, InFlight, Held}) ->
    InFlight > 0 orelse lists:keymember(waiting, 1, Held).

%% Returns all rows that exist the whole time, and some that are added or removed meanwhile.
rows(#permits{tables = Tables}) ->
    [{Table, Row} || Table <- tuple_to_list(Tables), {_, _, _, _} = Row <- ets:tab2list(Table)].

-doc """
Returns the process of the gate's queue, which may have ended, and the longest wait there in
milliseconds. Returns `none` before the queue has started.
""".
-spec queue(permits()) -> {pid(), LongestMs :: pos_integer()} | none.
queue(#permits{tables = Tables}) ->
    ets:lookup_element(element(1, Tables), queue, 2, none).

-doc """
Makes a process the gate's queue, which has no requests yet. A request may wait in it for up to
`LongestMs` milliseconds.
""".
-spec put_queue(pid(), LongestMs :: pos_integer(), permits()) -> ok.
put_queue(Pid, LongestMs, #permits{tables = Tables, counters = Counters}) ->
    true = ets:insert(element(1, Tables), {queue, {Pid, LongestMs}}),
    erlmcp_gate_counters:queued(0, Counters).

-doc """
Sends the message `look` to the process of the queue if requests wait there. The process then lets
requests run if there is room.
""".
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

-doc "Starts the process that gives back the permits of dead processes.".
-spec start_link(erlmcp_gate:gate()) -> gen_server:start_ret().
start_link(#{permits := Permits}) ->
    gen_server:start_link(?MODULE, Permits, []).

-doc false.
init(#permits{counters = Counters} = Permits) ->
    ok = erlmcp_label:set([?MODULE]),
    %% During a look, removed rows stay in their table and slow all requests down. So this process
    %% must not wait behind all others in the middle of a look.
    _ = process_flag(priority, high),
    %% If this process was restarted, the one before may have begun the current generation just now.
    {ok, #look{permits = Permits, timer = later(0),
               over = erlmcp_gate_counters:next_generation(Counters)}}.

-doc false.
handle_call(_, _, Look) ->
    {noreply, Look}.

-doc false.
handle_cast(_, Look) ->
    {noreply, Look}.

-doc false.
handle_info(look, #look{timer = Timer} = Look) ->
    %% A look that another process has asked for is no reason for more looks later.
    _ = erlang:cancel_timer(Timer),
    Began = erlmcp_clock:now_ms(),
    Next = look(Look),
    Took = erlmcp_clock:now_ms() - Began,
    {noreply, Next#look{timer = later(Took)}, hibernate};
handle_info(_, Look) ->
    {noreply, Look}.

later(Took) ->
    erlang:send_after(max(?LOOK, ?PAUSE * Took), self(), look).

%% The rows are read first. Rows that are removed meanwhile make a counter too low, never too high.
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

%% Returns the sums of a generation by counter, over the permits of living holders. Gives the others
%% back.
held_by_the_living(Generation, Permits) ->
    Rows = rows(Permits),
    Living = living(length(Rows)),
    lists:foldl(fun({_, {_, Holder, InFlight, Held}} = Row, Sums) ->
        case is_map_key(Holder, Living) orelse is_process_alive(Holder) of
            true ->
                erlmcp_gate_counters:add_up([{in_flight, InFlight} | Held], Generation, Sums);
            false ->
                ok = leave_as_read(Row, Permits),
                Sums
        end
    end, #{}, Rows).

%% Returns all processes of the node, unless these are many more than the rows. `is_process_alive/1`
%% may have to wait until a holder with pending signals is scheduled among all busy processes.
living(Rows) ->
    case erlang:system_info(process_count) =< ?LISTED * Rows of
        true -> maps:from_keys(processes(), []);
        false -> #{}
    end.

%% A permit that has changed meanwhile may have another holder. The next look decides about it.
leave_as_read({Table, {Id, Holder, InFlight, Held} = Row}, Permits) ->
    Same = [{{Id, Holder, InFlight, '$1'}, [{'=:=', '$1', {const, Held}}], [true]}],
    case ets:select_delete(Table, Same) of
        1 -> give_back(Row, Permits);
        0 -> ok
    end.
