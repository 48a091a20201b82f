-module(erlmcp_chaos_relay).
-moduledoc """
A process in the node of the server under test. It collects the events of the server (`on_event`)
and the reports of supervisors, with their system times, until the instruments fetch them. The log
of the node is not printed.
""".

-export([start/0, event/1, fetch/2]).
-export([log/2, init/1]).

%% The most events that wait to be fetched. Older ones are dropped.
-define(KEPT, 1000).

-doc """
Starts the relay of this node, which outlives the calling process, and removes the node's default
log handler. Fails if the node has a relay already.
""".
-spec start() -> ok.
start() ->
    {ok, _} = proc_lib:start(?MODULE, init, [self()]),
    ok.

-doc """
Records an event, with the system time, in this node's relay. Does nothing if the node has no relay.
This function can be the option `on_event` of a server.
""".
-spec event(map()) -> ok.
event(Event) ->
    _ = [Pid ! {event, Event, os:system_time(microsecond)} || Pid <- [whereis(?MODULE)],
                                                               is_pid(Pid)],
    ok.

-doc "Handles an event of `m:logger`: records a supervisor's report, and ignores all others.".
-spec log(logger:log_event(), logger:handler_config()) -> ok.
log(#{msg := {report, #{label := {supervisor, What}}}}, _) ->
    event(#{event => supervisor_report, what => What});
log(_, _) ->
    ok.

-doc """
Returns the events whose numbers are above `After`, oldest first, and the number of the newest one.
The relay's first event has the number 1.

If there is no such event, waits for one. Returns `{After, []}` if none comes within `Milliseconds`.
Only the newest thousand events are kept. Only one process may wait at a time. Fails if the node has
no relay.
""".
-spec fetch(After :: non_neg_integer(), Milliseconds :: non_neg_integer()) ->
    {Newest :: non_neg_integer(), [{Event :: map(), SystemUs :: integer()}]}.
fetch(After, Milliseconds) ->
    Monitor = monitor(process, ?MODULE, [{alias, reply_demonitor}]),
    ?MODULE ! {fetch, After, Monitor},
    receive
        {Monitor, Answer} -> Answer;
        {'DOWN', Monitor, process, _, Reason} -> error({no_relay, Reason})
    after Milliseconds ->
        true = demonitor(Monitor, [flush]),
        receive
            {Monitor, Answer} -> Answer
        after 0 ->
            {After, []}
        end
    end.

-doc false.
init(Parent) ->
    true = register(?MODULE, self()),
    _ = logger:remove_handler(default),
    ok = logger:add_handler(?MODULE, ?MODULE, #{}),
    ok = proc_lib:init_ack(Parent, {ok, self()}),
    loop(0, [], none).

%% The newest event is first in the list, and `Number` is its number.
loop(Number, Kept, Waiting) ->
    receive
        {event, Event, At} ->
            answer(Number + 1, lists:sublist([{Number + 1, Event, At} | Kept], ?KEPT), Waiting);
        {fetch, After, Reply} ->
            answer(Number, Kept, {After, Reply})
    end.

answer(Number, Kept, {After, Reply}) when Number > After ->
    New = [{Event, At} || {N, Event, At} <- lists:reverse(Kept), N > After],
    Reply ! {Reply, {Number, New}},
    loop(Number, Kept, none);
answer(Number, Kept, Waiting) ->
    loop(Number, Kept, Waiting).
