-module(erlmcp_unfinished_messages).
-moduledoc """
The bytes of messages that have begun and not ended: bodies of HTTP, lines, and what lies behind a
request that is served on the same connection. No gate has seen them, and all servers of a node hold
them in the same memory. So they have a bound of the node's own.

A process counts what it holds itself (`count/4`): one row of a table, and one sum. A message that
is there in one read is never counted. Over the bound the holder is told to wait, and reads no more
meanwhile. The process of this module then makes room: it refuses the messages that are largest and
slowest, by the bytes of their connection times the square of their age, until an eighth of the
bound is free. What a quick client sends is as large, but never old. Then those that wait go on, the
smallest and newest first. It ends those that were refused and do not give back what they hold, and
gives back what those held that have died.

A holder `{Pid, Tag}` is sent `{Tag, {unfinished, go_on | refused}}`.
""".

-behaviour(gen_server).

-export([open/0, start_link/0, bounds/0]).
-export([count/3, count/4, is_refused/1, refusal/0, sum/0, bound/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
%% Pure.
-export([choose/2]).

-export_type([owner/0, verdict/0, row/0]).

-doc "The process that holds a message, and what tells its messages from one another.".
-type owner() :: {pid(), Tag :: term()}.
-type verdict() :: go_on | refused.
-doc "A message: its bytes, since when it is held, and whether its owner reads on.".
-type row() :: {owner(), Bytes :: pos_integer(), SinceMs :: integer(),
                reading | waiting | {refused, AtMs :: integer()}}.

%% Milliseconds between two looks, and while somebody waits; and how many times longer than a look
%% the pause after it is.
-define(PAUSE, 200).
-define(SHORT_PAUSE, 5).
-define(TIMES, 3).
%% Bytes that one that goes on may bring before it is asked again.
-define(STEP, 65_536).
%% Milliseconds that a message counts as older than it is, so that size tells new ones apart.
-define(NEW, 10).
%% Of a node whose memory is not known.
-define(MEMORY, (2 bsl 30)).
%% When who was refused may come again, and between two lines in the log.
-define(RETRY_MS, 1000).
%% Milliseconds in which who is refused gives back what it holds.
-define(GIVE_BACK, 2000).
-define(QUIET_MS, 60_000).

%% Words of the atomics.
-define(SUM, 1).
-define(BOUND, 2).
-define(ASKED, 3).

%% Elements of a row.
-define(HELD, 2).
-define(SINCE, 3).
-define(STATE, 4).

-record(state, {
    memory :: pos_integer(),
    given :: #{atom() => term()},
    %% what announces the next look, and when that may be, in milliseconds
    timer = make_ref() :: reference(),
    rests_until = erlang:monotonic_time(millisecond) :: integer(),
    %% what the sum was more than its rows at the last look, if nothing changed meanwhile
    astray = 0 :: integer(),
    %% the process that wrote the last line in the log, and when
    said = none :: none | {pid(), integer()}
}).

-doc "Every bound, its default, and what it bounds: the environment of the application.".
-spec bounds() -> [{atom(), Default :: pos_integer() | infinity, What :: binary()}].
bounds() ->
    [{unfinished_percent, 12,
      ~"percent of the node's memory that messages may fill which have begun and not ended"},
     {unfinished_bytes, infinity, ~"bytes of these messages"}].

-doc "Makes the table; it belongs to the calling process.".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {write_concurrency, auto}]),
    Words = atomics:new(3, []),
    %% Until somebody has looked what it is.
    ok = atomics:put(Words, ?BOUND, ?MEMORY),
    persistent_term:put(?MODULE, Words).

-doc "Starts the process that makes room.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc """
The calling process held `Before` bytes of a message, and holds `Now`. With `wait` it is to read no
more of it until it is told. The message is as old as its first count.
""".
-spec count(owner(), Before :: non_neg_integer(), Now :: non_neg_integer()) -> ok | wait.
count(_, Held, Held) -> ok;
count(Owner, Before, Now) -> count(Owner, Before, Now, first).

-doc "Counts messages that come and go. The oldest of them has been there since `SinceMs`.".
-spec count(owner(), Before :: non_neg_integer(), Now :: non_neg_integer(),
            SinceMs :: integer() | first | infinity) -> ok | wait.
count(Owner, Before, Now, Since) ->
    try
        counted(Owner, Before, Now, Since)
    catch
        %% The application has ended, and the table with it.
        error:badarg -> ok
    end.

counted(Owner, _, 0, _) ->
    case ets:take(?MODULE, Owner) of
        [{_, Bytes, _, _}] -> added(-Bytes, Owner);
        [] -> ok
    end;
counted(Owner, Before, Now, Since) ->
    case Before > 0 andalso ets:update_element(?MODULE, Owner, changed(Now, Since)) of
        true ->
            added(Now - Before, Owner);
        false ->
            true = ets:insert(?MODULE, {Owner, Now, begun(Since), reading}),
            added(Now, Owner)
    end.

changed(Now, first) -> [{?HELD, Now}];
changed(Now, Since) -> [{?HELD, Now}, {?SINCE, Since}].

begun(first) -> erlang:monotonic_time(millisecond);
begun(Since) -> Since.

added(More, Owner) ->
    Words = persistent_term:get(?MODULE),
    Sum = atomics:add_get(Words, ?SUM, More),
    case More > 0 andalso Sum > atomics:get(Words, ?BOUND) of
        true ->
            %% Seen by the look that is asked for.
            _ = ets:select_replace(?MODULE, [{{Owner, '$1', '$2', reading}, [],
                                              [{{{const, Owner}, '$1', '$2', waiting}}]}]),
            ok = ask(Words),
            wait;
        false ->
            ok
    end.

ask(Words) ->
    case atomics:exchange(Words, ?ASKED, 1) of
        0 -> gen_server:cast(?MODULE, make_room);
        1 -> ok
    end.

-doc "Whether the message of this owner is to be refused: another one may have begun since.".
-spec is_refused(owner()) -> boolean().
is_refused(Owner) ->
    try ets:lookup_element(?MODULE, Owner, ?STATE) of
        {refused, _} -> true;
        _ -> false
    catch
        error:badarg -> false
    end.

-doc "Returns the refusal that its client is told.".
-spec refusal() -> erlmcp_refusal:refusal().
refusal() ->
    erlmcp_refusal:new(resource_exhausted, ~"the server holds too much of unfinished messages",
                       #{limit => bound(), observed => sum(), retry_after_ms => ?RETRY_MS}).

-doc "Bytes of all unfinished messages of the node.".
-spec sum() -> non_neg_integer().
sum() ->
    max(0, atomics:get(persistent_term:get(?MODULE), ?SUM)).

-doc "Returns the bound of the node, in bytes.".
-spec bound() -> pos_integer().
bound() ->
    atomics:get(persistent_term:get(?MODULE), ?BOUND).

-doc false.
init([]) ->
    %% It must not wait for those that fill the memory.
    _ = process_flag(priority, high),
    Given = given(),
    case wrong(Given) of
        [] ->
            State = #state{memory = memory(), given = Given},
            {ok, looked(State)};
        [{Name, Expected} | _] ->
            {stop, {bad_option, Name, Expected}}
    end.

%% The machine's, or that of the control group that has least.
memory() ->
    Facts = erlmcp_machine:facts("/"),
    lists:min([maps:get(Key, Facts, infinity) || Key <- [memory, group_memory]]).

given() ->
    #{Name => application:get_env(erlmcp, Name, Default) || {Name, Default, _} <- bounds()}.

wrong(Given) ->
    [{Name, Expected} || Name := Value <- Given, {error, Expected} <- [expected(Name, Value)]].

expected(unfinished_bytes, infinity) -> ok;
expected(unfinished_bytes, Bytes) when is_integer(Bytes), Bytes > 0 -> ok;
expected(unfinished_bytes, _) -> {error, ~"a positive integer, or infinity"};
expected(unfinished_percent, Percent)
  when is_integer(Percent), Percent > 0, Percent =< 100 -> ok;
expected(unfinished_percent, _) -> {error, ~"an integer of 1 to 100"}.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast(make_room, #state{timer = Timer, rests_until = End} = State) ->
    _ = erlang:cancel_timer(Timer),
    {noreply, next_look(max(0, End - erlang:monotonic_time(millisecond)), State)};
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info({timeout, Timer, look}, #state{timer = Timer} = State) ->
    {noreply, looked(State)};
handle_info(_, State) ->
    {noreply, State}.

%% One that was changed to something wrong stays as it was.
looked(#state{given = Before} = State) ->
    Given = given(),
    Bounds = maps:merge(Before, maps:without([Name || {Name, _} <- wrong(Given)], Given)),
    ok = atomics:put(persistent_term:get(?MODULE), ?BOUND, bytes(Bounds, State)),
    Began = erlang:monotonic_time(millisecond),
    Next = room_made(State#state{given = Bounds}),
    End = erlang:monotonic_time(millisecond),
    Rest = ?TIMES * (End - Began),
    Pause = case ets:match(?MODULE, {'_', '_', '_', waiting}, 1) of
        {_, _} -> ?SHORT_PAUSE;
        '$end_of_table' -> ?PAUSE
    end,
    next_look(max(Pause, Rest), Next#state{rests_until = End + Rest}).

next_look(Pause, State) ->
    State#state{timer = erlang:start_timer(Pause, self(), look)}.

bytes(#{unfinished_percent := Percent, unfinished_bytes := Bytes}, #state{memory = Memory}) ->
    Own = case application:get_env(erlmcp, memory_bytes) of
        {ok, Bound} when is_integer(Bound), Bound > 0 -> Bound;
        _ -> infinity
    end,
    %% An atom is more than any number.
    Most = case min(Memory, Own) of
        infinity -> ?MEMORY;
        Known -> Known
    end,
    max(1, min(Bytes, Most * Percent div 100)).

room_made(State) ->
    Words = persistent_term:get(?MODULE),
    ok = atomics:put(Words, ?ASKED, 0),
    Before = atomics:get(Words, ?SUM),
    {Rows, Dead} = lists:partition(fun({{Pid, _}, _, _, _}) -> is_process_alive(Pid) end,
                                   ets:tab2list(?MODULE)),
    _ = [count(Owner, Bytes, 0) || {Owner, Bytes, _, _} <- Dead],
    Sum = atomics:get(Words, ?SUM),
    Now = erlang:monotonic_time(millisecond),
    Bound = atomics:get(Words, ?BOUND),
    {Refused, GoOn} = choose(Rows, #{sum => Sum, bound => Bound, now => Now}),
    _ = [tell(refused, {refused, Now}, Owner) || Owner <- Refused],
    _ = [tell(go_on, reading, Owner) || Owner <- GoOn],
    %% One that writes to a client that does not read hears of nothing, and what it holds is no
    %% room for anybody. To refuse others in its stead would let a few such clients shut out all.
    _ = [exit(Pid, kill) || {{Pid, _}, _, _, {refused, At}} <- Rows, Now - At > ?GIVE_BACK],
    Rest = audit(Before =:= Sum, Sum - lists:sum([Bytes || {_, Bytes, _, _} <- Rows]), State),
    logged(length(Refused), Sum, Bound, Now, Rest).

tell(Verdict, State, {Pid, Tag} = Owner) ->
    case ets:update_element(?MODULE, Owner, {?STATE, State}) of
        true ->
            Pid ! {Tag, {unfinished, Verdict}},
            ok;
        false ->
            ok
    end.

%% Who is killed between writing a row and adding to the sum leaves the one without the other. In a
%% quiet moment the rows are right; and a difference that stays is no moment.
audit(true, Astray, #state{astray = Astray} = State) when Astray =/= 0 ->
    ok = atomics:sub(persistent_term:get(?MODULE), ?SUM, Astray),
    State#state{astray = 0};
audit(true, Astray, State) ->
    State#state{astray = Astray};
audit(false, _, State) ->
    State#state{astray = 0}.

logged(0, _, _, _, State) ->
    State;
logged(Refused, Sum, Bound, Now, #state{said = Said} = State) ->
    case is_quiet(Said, Now) of
        true ->
            Report = #{what => unfinished_refused, used => Sum, limit => Bound,
                       refused => Refused, refusal => 1089},
            %% A log may block, and nobody is to wait for that.
            Pid = spawn(fun() -> ok = erlmcp_log:report(warning, Report) end),
            State#state{said = {Pid, Now}};
        false ->
            State
    end.

is_quiet(none, _) -> true;
is_quiet({Pid, At}, Now) -> Now - At >= ?QUIET_MS andalso not is_process_alive(Pid).

-doc """
The owners whose messages are to be refused, and those that may go on. Nobody is refused while all
fit and nobody waits.

## Examples

```erlang
1> Rows = [{{a, 1}, 60, 0, reading}, {{b, 1}, 60, 990, waiting}].
2> erlmcp_unfinished_messages:choose(Rows, #{sum => 120, bound => 100, now => 1000}).
{[{a, 1}], []}
3> erlmcp_unfinished_messages:choose(tl(Rows), #{sum => 60, bound => 100, now => 1000}).
{[], [{b, 1}]}
```
""".
-spec choose([{Owner, Bytes, SinceMs, reading | waiting | {refused, AtMs}}],
             #{sum := integer(), bound := pos_integer(), now := integer()}) ->
    {Refused :: [Owner], GoOn :: [Owner]} when
    Owner :: {Holder :: term(), Tag :: term()}, Bytes :: pos_integer(), SinceMs :: integer(),
    AtMs :: integer().
choose(Rows, #{sum := Sum, bound := Bound, now := Now}) ->
    Going = lists:sum([Bytes || {_, Bytes, _, {refused, _}} <- Rows]),
    Waits = lists:keymember(waiting, ?STATE, Rows),
    Left = Sum - Going,
    Of = lists:foldl(fun({{Holder, _}, Bytes, _, _}, Held) ->
                         Held#{Holder => Bytes + maps:get(Holder, Held, 0)}
                     end, #{}, Rows),
    Scores = [{score(map_get(Holder, Of), Now - Since), Bytes, Owner, State}
              || {{Holder, _} = Owner, Bytes, Since, State} <- Rows, is_atom(State)],
    Scored = lists:reverse(lists:sort(Scores)),
    {Refused, Kept} = case Left > Bound orelse Waits of
        true -> refused(Scored, Left - (Bound - Bound div 8), []);
        false -> {[], Scored}
    end,
    Waiting = [Owner || {_, _, Owner, waiting} <- lists:reverse(Kept)],
    %% What was refused is still held, and is no room yet. Where little is, one goes on.
    Room = Bound - Sum,
    {Refused, lists:sublist(Waiting, if Room > 0 -> max(1, Room div ?STEP); true -> 0 end)}.

score(Bytes, Age) ->
    Bytes * (Age + ?NEW) * (Age + ?NEW).

refused([{_, Bytes, Owner, _} | Rest], Over, Refused) when Over > 0 ->
    refused(Rest, Over - Bytes, [Owner | Refused]);
refused(Kept, _, Refused) ->
    {lists:reverse(Refused), Kept}.
