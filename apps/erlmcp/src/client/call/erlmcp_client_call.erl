-module(erlmcp_client_call).
-moduledoc """
The process of one call of a client, which runs one operation (`m:erlmcp_client_requests`) and ends
with its outcome. The time and the heap of a call are bounded, and so is the number of calls. If the
caller dies, the process cancels the request at the server and ends.

Internal.
""".

-export([check/1, run/3, start/4, cancel/2, notify/3]).

%% The subject of a call whose process has not looked at its operation yet.
-define(UNKNOWN, {~"", #{}}).
%% The initial heap of a call's process, in words.
-define(HEAP_WORDS, 2048).

-doc "Checks the options of a call. The error names a wrong option, and what was expected.".
-spec check(erlmcp_client:call_options() | term()) ->
    ok | {error, {bad_option, Key :: term(), Expected :: binary()}}.
check(#{} = Options) ->
    erlmcp_client_options:first_wrong(Options, fun option/2);
check(_) ->
    {error, {bad_option, options, ~"a map"}}.

option(Key, Value) when Key =:= timeout; Key =:= max_timeout ->
    erlmcp_user_term:check_wait(Value);
option(Key, Value) when Key =:= progress; Key =:= log ->
    is_function(Value, 1) orelse ~"a fun of one argument";
option(log_level, Value) ->
    is_atom(Value) andalso erlmcp_meta:level(atom_to_binary(Value)) =/= error
        orelse ~"a log level";
option(meta, Value) ->
    is_map(Value) orelse ~"a map";
option(Key, Value) when Key =:= fresh; Key =:= repeatable ->
    is_boolean(Value) orelse ~"a boolean";
option(task, Value) ->
    Value =:= await orelse Value =:= handle orelse ~"await or handle";
option(trace, #{trace_id := _, span_id := _, sampled := _}) ->
    true;
option(trace, _) ->
    ~"the context of a span";
option(key, _) ->
    true;
option(_, _) ->
    ~"no such option of a call".

-doc """
Runs an operation in a process of its own, waits for it, and returns its result or the reason of its
failure. The caller has checked the options with `check/1`.
""".
-spec run(erlmcp_client:operation(), erlmcp_client_connection:client(),
          erlmcp_client:call_options()) ->
    {ok, term()} | {error, erlmcp_client:reason()}.
run(Operation, #{calls := Calls} = Client, Options) ->
    Caller = self(),
    {Pid, Monitor} = erlmcp_one_shot:start(fun() ->
        Watch = erlmcp_client_exchange:watch(Options#{caller => monitor(process, Caller)}, Client),
        %% Only a call that was killed leaves its row.
        try
            outcome(Operation, Client, Options, Watch, none)
        after
            erlmcp_client_calls:remove_own(Calls)
        end
    end, bounds(Client)),
    receive
        {'DOWN', Monitor, process, Pid, {outcome, Outcome}} -> Outcome;
        {'DOWN', Monitor, process, Pid, Reason} -> {error, died(Reason)}
    end.

-doc """
Starts an operation, and returns a reference. The caller has checked the options with `check/1`. The
process `Receiver` gets `{erlmcp, Reference, Outcome}` at the end. Before that it gets
`{erlmcp, Reference, {progress | log, Params}}` for notifications, unless an option has a fun for
them. Such messages are dropped while `Receiver` does not read its mailbox
(`erlmcp_client_mailbox:offer/2`). The call is cancelled if `Receiver` dies.
""".
-spec start(erlmcp_client:operation(), erlmcp_client_connection:client(),
            erlmcp_client:call_options(), Receiver :: pid()) -> reference().
start(Operation, #{calls := Calls} = Client, Options, Receiver) ->
    Reference = make_ref(),
    Tell = fun(Kind) ->
        fun(Params) ->
            erlmcp_client_mailbox:offer(Receiver, {erlmcp, Reference, {Kind, Params}})
        end
    end,
    Reporting = maps:merge(#{progress => Tell(progress), log => Tell(log)}, Options),
    To = {Receiver, Reference},
    Pid = spawn_opt(fun() ->
        Gone = monitor(process, Receiver),
        receive
            {go, Reference} ->
                started(Operation, Client, Reporting, Gone, To);
            %% The receiver was killed when it had just started this process.
            {'DOWN', Gone, process, _, _} ->
                erlmcp_client_calls:remove_own(Calls)
        end
    end, bounds(Client)),
    %% From here on the call can be cancelled.
    ok = case erlmcp_client_calls:add(Pid, To, ?UNKNOWN, Calls) of
        ok ->
            Pid ! {go, Reference},
            ok;
        stopped ->
            exit(Pid, kill),
            ok = refused(?UNKNOWN, Client, stopped),
            erlmcp_client_calls:report(To, {error, stopped})
    end,
    Reference.

started(Operation, #{calls := Calls} = Client, Options, Gone, {_, Reference} = To) ->
    try
        Ends = #{caller => Gone, cancel => Reference},
        Watch = erlmcp_client_exchange:watch(maps:merge(Options, Ends), Client),
        outcome(Operation, Client, Options, Watch, To)
    of
        Outcome -> ended(Outcome, To, Calls)
    catch
        Class:Reason:Stack ->
            ended({error, {crashed, crash(Class, Reason, Stack)}}, To, Calls),
            erlang:raise(Class, Reason, Stack)
    end.

ended(Outcome, To, Calls) ->
    case erlmcp_client_calls:remove_own(Calls) of
        true -> erlmcp_client_calls:report(To, Outcome);
        false -> ok
    end.

%% The reason with which the process would have exited without the catch.
crash(error, Reason, Stack) -> {Reason, Stack};
crash(throw, Reason, Stack) -> {{nocatch, Reason}, Stack};
crash(exit, Reason, _) -> Reason.

bounds(#{settings := #{limits := #{call_heap_bytes := Bytes}}}) ->
    Words = Bytes div erlang:system_info(wordsize),
    %% With this initial heap, most calls end without a garbage collection. The caller gets the
    %% error of a killed call, so no report is logged.
    [{min_heap_size, min(?HEAP_WORDS, Words)},
     {max_heap_size, #{size => Words, kill => true, error_logger => false,
                       include_shared_binaries => false}}].

died(killed) -> {too_large, heap};
died(shutdown) -> stopped;
died(Reason) -> {crashed, Reason}.

-doc """
Asks the call of a reference from `start/4` to cancel its request. The outcome of the call is then
`{error, cancelled}`, unless the call ends before.
""".
-spec cancel(reference(), erlmcp_client_connection:client()) -> ok.
cancel(Reference, #{calls := Calls}) ->
    erlmcp_client_calls:cancel(Reference, Calls).

-doc """
Sends a notification in a process of its own, and waits until the notification is delivered. While
the client has no outcome of a negotiation, waits for one first, at most the client's `timeout`. The
delivery may take five seconds. The error says why the notification was not delivered.
""".
-spec notify(Method :: binary(), Params :: map(), erlmcp_client_connection:client()) ->
    ok | {error, term()}.
notify(Method, Params, #{settings := #{timeout := Timeout}} = Client) ->
    {Pid, Monitor} = erlmcp_one_shot:start(fun() ->
        case erlmcp_client_connection:live(Client, erlmcp_clock:now_ms() + Timeout) of
            {ok, Live} -> erlmcp_client_one_way:notify(Method, Params, Client, Live);
            {error, _} = Error -> Error
        end
    end, []),
    receive
        {'DOWN', Monitor, process, Pid, {outcome, {error, timeout}}} -> {error, {timeout, Timeout}};
        {'DOWN', Monitor, process, Pid, {outcome, Outcome}} -> Outcome;
        {'DOWN', Monitor, process, Pid, Reason} -> {error, {crashed, Reason}}
    end.

outcome(Operation, #{calls := Calls, settings := #{calls := Limit}} = Client, Options, Watch, To) ->
    About = about(Operation),
    maybe
        ok ?= erlmcp_client_calls:add(self(), To, About, Calls),
        ok ?= within_limit(erlmcp_client_calls:count(Calls), Limit),
        performed(Operation, Client, Options, Watch)
    else
        Reason when Reason =:= stopped; element(1, Reason) =:= overload ->
            ok = refused(About, Client, Reason),
            {error, Reason}
    end.

%% The client may have ended since the call was added.
within_limit(undefined, _) -> stopped;
within_limit(Count, Limit) when Count > Limit -> {overload, Limit};
within_limit(_, _) -> ok.

%% The first request of an operation, as far as it is counted.
about(Operation) ->
    {Method, Params} = erlmcp_client_operation:request(Operation),
    {Method, maps:with([~"name"], Params)}.

refused(About, #{server := Server}, Reason) ->
    erlmcp_client_meter:unsent(About, {Server, none}, erlang:monotonic_time(nanosecond), Reason).

performed(Operation, Client, Options, Watch) ->
    try
        erlmcp_client_requests:outcome(Operation, Client, Options, Watch)
    catch
        throw:cancelled -> {error, cancelled}
    end.
