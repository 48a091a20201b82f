-module(erlmcp_chaos_relay).
-moduledoc """
The ear of the instruments in the node of the server under test: it keeps the server's events
(`on_event`), and the reports of supervisors whose children ended, with the time at which they came,
until they are fetched. The time is the system's, which all processes of a machine share.

What the node logs is not printed: it would come between the instrument's lines.
""".

-export([start/0, event/1, fetch/2]).
-export([log/2, init/1]).

%% Events that wait to be fetched; older ones are dropped.
-define(KEPT, 1000).

-doc "Starts it; it outlives who starts it.".
-spec start() -> ok.
start() ->
    {ok, _} = proc_lib:start(?MODULE, init, [self()]),
    ok.

-doc "For `on_event`: an event of the server's.".
-spec event(map()) -> ok.
event(Event) ->
    _ = [Pid ! {event, Event, os:system_time(microsecond)} || Pid <- [whereis(?MODULE)],
                                                               is_pid(Pid)],
    ok.

-doc "A supervisor that tells of a child is an event too. A logger's handler.".
-spec log(logger:log_event(), logger:handler_config()) -> ok.
log(#{msg := {report, #{label := {supervisor, What}}}}, _) ->
    event(#{event => supervisor_report, what => What});
log(_, _) ->
    ok.

-doc """
The events after the one of this number, and the newest one's; waits for one so long at most.
""".
-spec fetch(After :: non_neg_integer(), Milliseconds :: non_neg_integer()) ->
    {non_neg_integer(), [{Event :: map(), SystemUs :: integer()}]}.
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

%% The newest event stands first, and has the number.
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
