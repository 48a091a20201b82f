-module(erlmcp_unfinished_messages).
-moduledoc """
Bounds the bytes of messages that have begun and not ended, of all servers of the node together:
heads and bodies of HTTP requests, lines, and bytes that wait behind a running request.

A process that holds such bytes counts them (`count/4`). If the sum exceeds the bound, the holder
waits, and the process of this module makes room by refusing the largest and slowest messages. A
holder `{Pid, Tag}` is sent `{Tag, {unfinished, go_on | refused}}`. A refused holder that does not
give its bytes back within two seconds is killed.

Internal.
""".

%% The bytes are counted in a row of a table and in a sum. A message that arrives in one read is not
%% counted, unless it waits behind others. The process refuses messages until an eighth of the bound
%% is free. Their order is that of the bytes of their connection times the square of their age. So a
%% large message of a quick client is rarely refused, since it is never old. Then as many waiting
%% holders go on as there is room for, the smallest and newest messages first. The process also
%% gives back the bytes of dead processes.

-behaviour(gen_server).

-export([open/0, start_link/0, bounds/0]).
-export([count/3, count/4, is_refused/1, refusal/0, sum/0, bound/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).
%% Pure.
-export([choose/2]).

-export_type([owner/0, verdict/0]).

-doc "The process that holds a message, and a tag that distinguishes its messages.".
-type owner() :: {pid(), Tag :: term()}.
-type verdict() :: go_on | refused.

%% Milliseconds between two looks, and the same while a holder waits. The pause after a look is at
%% least `?TIMES` times as long as the look.
-define(PAUSE, 200).
-define(SHORT_PAUSE, 5).
-define(TIMES, 3).
%% Bytes that are set aside for each holder that goes on.
-define(STEP, 65_536).
%% Milliseconds that are added to each age, so that new messages are ordered by size.
-define(NEW, 10).
%% The memory of a node, in bytes, if it is not known.
-define(MEMORY, (2 bsl 30)).
%% Milliseconds after which a refused client may try again.
-define(RETRY_MS, 1000).
%% Milliseconds in which a refused holder has to give back its bytes.
-define(GIVE_BACK, 2000).
%% Milliseconds between two lines in the log.
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
    %% the timer of the next look, and the first millisecond at which it may be
    timer = make_ref() :: reference(),
    rests_until = erlmcp_clock:now_ms() :: integer(),
    %% the difference between the sum and the rows at the last look, if nothing changed meanwhile
    astray = 0 :: integer(),
    %% the process that wrote the last line in the log, and the time of it
    logged = none :: none | {pid(), integer()}
}).

-doc "Returns every bound: its key in the application's environment, its default and its meaning.".
-spec bounds() -> [{atom(), Default :: pos_integer() | infinity, What :: binary()}].
bounds() ->
    [{unfinished_percent, 12,
      ~"percent of the node's memory that messages may fill which have begun and not ended"},
     {unfinished_bytes, infinity, ~"bytes of these messages"}].

-doc """
Makes the counters of the node's sum and bound, and the table of unfinished messages. The table
belongs to the calling process.
""".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {write_concurrency, auto}]),
    Words = atomics:new(3, []),
    %% The bound until the first look.
    ok = atomics:put(Words, ?BOUND, ?MEMORY),
    persistent_term:put(?MODULE, Words).

-doc """
Starts the process that makes room by refusing messages. The error is
`{bad_option, Bound, Expected}` if a bound has a wrong value.
""".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc """
Counts `Now` bytes of a message of this owner, in place of the `Before` bytes that were counted
last. A message with 0 bytes is no longer counted. Returns `wait` if the bytes grow and the node's
sum then exceeds the bound. After `wait` the owner reads no more of the message until it is sent
`go_on`. An owner that is sent `refused`, at any time, refuses the message and counts 0 bytes.
Counts nothing, and returns `ok`, if the application does not run.
""".
-spec count(owner(), Before :: non_neg_integer(), Now :: non_neg_integer()) -> ok | wait.
count(_, Held, Held) -> ok;
count(Owner, Before, Now) -> count(Owner, Before, Now, first).

-doc """
Counts the bytes of several messages as `count/3` counts those of one. The oldest of the messages
began at `SinceMs`, in monotonic milliseconds. With `first`, this is the time at which bytes of this
owner were counted first. For 0 bytes `SinceMs` is ignored, and may be `infinity`.
""".
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

begun(first) -> erlmcp_clock:now_ms();
begun(Since) -> Since.

added(More, Owner) ->
    Words = persistent_term:get(?MODULE),
    Sum = atomics:add_get(Words, ?SUM, More),
    case More > 0 andalso Sum > atomics:get(Words, ?BOUND) of
        true ->
            %% Before the look is asked for, so that it finds the row in this state.
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

-doc "Returns `true` if the message of `Owner` has to be refused.".
-spec is_refused(Owner :: owner()) -> boolean().
is_refused(Owner) ->
    try ets:lookup_element(?MODULE, Owner, ?STATE) of
        {refused, _} -> true;
        _ -> false
    catch
        error:badarg -> false
    end.

-doc "Returns the refusal that is sent to the client of a refused message.".
-spec refusal() -> erlmcp_refusal:refusal().
refusal() ->
    erlmcp_refusal:new(resource_exhausted, ~"the server holds too many unfinished messages",
                       #{limit => bound(), observed => sum(), retry_after_ms => ?RETRY_MS}).

-doc "Returns the counted bytes of all unfinished messages of the node.".
-spec sum() -> non_neg_integer().
sum() ->
    max(0, atomics:get(persistent_term:get(?MODULE), ?SUM)).

-doc "Returns the bound of the node, in bytes.".
-spec bound() -> pos_integer().
bound() ->
    atomics:get(persistent_term:get(?MODULE), ?BOUND).

-doc false.
init([]) ->
    %% So that it does not wait for the processes that fill the memory.
    _ = process_flag(priority, high),
    Given = configured_bounds(),
    case wrong(Given) of
        [] ->
            State = #state{memory = memory(), given = Given},
            {ok, looked(State)};
        [{Name, Expected} | _] ->
            {stop, {bad_option, Name, Expected}}
    end.

%% Returns the memory of the machine, or that of the smallest control group if that is less. Returns
%% `infinity` if neither can be read.
memory() ->
    Facts = erlmcp_machine:facts("/"),
    lists:min([maps:get(Key, Facts, infinity) || Key <- [memory, group_memory]]).

configured_bounds() ->
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
    {noreply, next_look(max(0, End - erlmcp_clock:now_ms()), State)};
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info({timeout, Timer, look}, #state{timer = Timer} = State) ->
    {noreply, looked(State)};
handle_info(_, State) ->
    {noreply, State}.

%% If the new value of a bound is wrong, the bound does not change.
looked(#state{given = Before} = State) ->
    Given = configured_bounds(),
    Bounds = maps:merge(Before, maps:without([Name || {Name, _} <- wrong(Given)], Given)),
    ok = atomics:put(persistent_term:get(?MODULE), ?BOUND, bytes(Bounds, State)),
    Began = erlmcp_clock:now_ms(),
    Next = room_made(State#state{given = Bounds}),
    End = erlmcp_clock:now_ms(),
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
    Now = erlmcp_clock:now_ms(),
    Bound = atomics:get(Words, ?BOUND),
    {Refused, GoOn} = choose(Rows, #{sum => Sum, bound => Bound, now => Now}),
    _ = [tell(refused, {refused, Now}, Owner) || Owner <- Refused],
    _ = [tell(go_on, reading, Owner) || Owner <- GoOn],
    %% A holder that waits to write to its client handles no message, and keeps its bytes. If others
    %% were refused instead, a few clients that do not read could shut out all others.
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

%% A process that is killed between writing a row and adding to the sum leaves one without the
%% other. While nothing changes the rows are right, and a difference at two looks is such a loss.
audit(true, Astray, #state{astray = Astray} = State) when Astray =/= 0 ->
    ok = atomics:sub(persistent_term:get(?MODULE), ?SUM, Astray),
    State#state{astray = 0};
audit(true, Astray, State) ->
    State#state{astray = Astray};
audit(false, _, State) ->
    State#state{astray = 0}.

logged(0, _, _, _, State) ->
    State;
logged(Refused, Sum, Bound, Now, #state{logged = Last} = State) ->
    case is_quiet(Last, Now) of
        true ->
            Report = #{what => unfinished_refused, used => Sum, limit => Bound,
                       refused => Refused, refusal => 1089},
            %% Logging may block, so another process does it.
            Pid = spawn(fun() -> ok = erlmcp_log:report(warning, Report) end),
            State#state{logged = {Pid, Now}};
        false ->
            State
    end.

is_quiet(none, _) -> true;
is_quiet({Pid, At}, Now) -> Now - At >= ?QUIET_MS andalso not is_process_alive(Pid).

-doc """
Returns the owners whose messages are to be refused, and the waiting owners that may go on. Each row
is an owner with the bytes of its message, the time at which the message began, and its state: the
owner reads, waits, or was sent `refused` at `AtMs`. `sum` counts the bytes of all messages.

No message is refused while all fit within the bound and no owner waits. Otherwise the largest and
slowest are refused until an eighth of the bound is free.

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
    %% The bytes of refused messages are still held. If there is any room, at least one holder goes
    %% on.
    Room = Bound - Sum,
    {Refused, lists:sublist(Waiting, if Room > 0 -> max(1, Room div ?STEP); true -> 0 end)}.

score(Bytes, Age) ->
    Bytes * (Age + ?NEW) * (Age + ?NEW).

refused([{_, Bytes, Owner, _} | Rest], Over, Refused) when Over > 0 ->
    refused(Rest, Over - Bytes, [Owner | Refused]);
refused(Kept, _, Refused) ->
    {lists:reverse(Refused), Kept}.
