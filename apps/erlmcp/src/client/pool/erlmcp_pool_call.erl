-module(erlmcp_pool_call).
-moduledoc """
A call of a pool: it runs at one member and, where repeating is safe, at others, within one
deadline. Runs in the process that calls.

Internal.
""".

-export([run/3, start/4, cancel/2]).

%% The least pause before members are tried again, in milliseconds; jitter adds up to as much.
-define(PAUSE, 50).

-doc "Runs an operation at a member. The call options `key` and `repeatable` are for the pool.".
-spec run(erlmcp_client:operation(), erlmcp_pool_members:pool(), map()) ->
    {ok, term()} | {error, erlmcp_client:reason()}.
run(Operation, #{options := #{retries := Retries}} = Pool, Options) ->
    Key = case Options of
        #{key := Value} -> {key, Value};
        #{} -> none
    end,
    {Method, _} = erlmcp_client_operation:request(Operation),
    Repeatable = maps:get(repeatable, Options, erlmcp_client_operation:is_safe(Method)),
    Call = maps:without([key, repeatable], Options),
    Begun = erlang:monotonic_time(millisecond),
    try_at(Operation, {Call, Begun}, {Key, [], Pool}, Repeatable, {Retries, none}).

%% `Left` counts the tries after this one, and `Last` is the outcome of the one before.
try_at(Operation, Options, {Key, Tried, Pool}, Repeatable, {Left, Last}) ->
    case {erlmcp_pool_members:pick(Key, Tried, Pool), Last} of
        {{ok, Index, Client}, _} ->
            Outcome = erlmcp_client_call:run(Operation, Client, in_time(Options, Client)),
            ok = erlmcp_pool_members:leave(Index, verdict(Outcome), Pool),
            case Left > 0 andalso is_repeated(Outcome, Repeatable) of
                true ->
                    try_at(Operation, Options, {Key, [Index | Tried], Pool}, Repeatable,
                           {Left - 1, {some, Outcome}});
                false ->
                    Outcome
            end;
        {{error, _} = Unavailable, none} ->
            Unavailable;
        {{error, _}, {some, Outcome}} when Tried =:= [] ->
            Outcome;
        {{error, _}, _} ->
            %% All members were tried. After a pause they are tried again.
            receive
            after ?PAUSE + rand:uniform(?PAUSE) ->
                try_at(Operation, Options, {Key, [], Pool}, Repeatable, {Left, Last})
            end
    end.

%% The rest of the call's time, which begins with its first try.
in_time({Options, Begun}, #{settings := #{timeout := Default}}) ->
    Timeout = maps:get(timeout, Options, Default),
    Options#{timeout => max(1, Begun + Timeout - erlang:monotonic_time(millisecond))}.

%% Failures that are the member's, and not the call's.
verdict({error, {connect, _}}) -> failed;
verdict({error, {closed, _}}) -> failed;
verdict({error, {timeout, _}}) -> failed;
verdict({error, timeout}) -> failed;
verdict({error, {http, Status, _, _}}) when Status >= 500 -> failed;
verdict({error, {protocol, _}}) -> failed;
verdict({error, stopped}) -> failed;
verdict(_) -> served.

is_repeated({error, {connect, _}}, _) -> true;
is_repeated({error, {closed, unprocessed}}, _) -> true;
is_repeated({error, {overload, _}}, _) -> true;
is_repeated({error, stopped}, Repeatable) -> Repeatable;
is_repeated({error, {http, 503, _, _}}, _) -> true;
is_repeated({error, {http, 429, _, _}}, _) -> true;
is_repeated({error, {closed, _}}, Repeatable) -> Repeatable;
is_repeated({error, {http, Status, _, _}}, Repeatable) -> Status >= 500 andalso Repeatable;
is_repeated(_, _) -> false.

-doc "Starts an operation without waiting for it, as described at `erlmcp_client:async/3`.".
-spec start(erlmcp_client:operation(), erlmcp_pool_members:pool(), map(), pid()) ->
    reference().
start(Operation, #{members := Table} = Pool, Options, Receiver) ->
    Reference = make_ref(),
    Tell = fun(Kind) -> fun(Params) -> Receiver ! {erlmcp, Reference, {Kind, Params}} end end,
    Told = maps:merge(#{progress => Tell(progress), log => Tell(log)}, Options),
    Pid = spawn(fun() ->
        Outcome = waited(fun() -> run(Operation, Pool, Told) end, Receiver, Reference),
        _ = in_table(fun() -> ets:delete(Table, Reference) end),
        Receiver ! {erlmcp, Reference, Outcome}
    end),
    _ = in_table(fun() -> ets:insert(Table, {Reference, Pid}) end),
    Pid ! {go, Reference},
    Reference.

%% The table ends with the pool, whose members then tell the callers.
in_table(Access) ->
    try
        Access()
    catch
        error:badarg -> []
    end.

%% The call ends with the process that runs it.
waited(Run, Receiver, Reference) ->
    receive {go, Reference} -> ok end,
    Gone = monitor(process, Receiver),
    {Pid, Monitor} = erlmcp_one_shot:start(Run, []),
    receive
        {'DOWN', Monitor, process, Pid, {outcome, Outcome}} ->
            Outcome;
        {'DOWN', Monitor, process, Pid, Reason} ->
            {error, {crashed, Reason}};
        {'DOWN', Gone, process, Receiver, _} ->
            exit(Pid, kill),
            {error, cancelled};
        {erlmcp_cancel, Reference} ->
            exit(Pid, kill),
            {error, cancelled}
    end.

-doc "Cancels a call that `start/4` started.".
-spec cancel(reference(), erlmcp_pool_members:pool()) -> ok.
cancel(Reference, #{members := Table}) ->
    lists:foreach(fun({_, Pid}) -> Pid ! {erlmcp_cancel, Reference} end,
                  in_table(fun() -> ets:lookup(Table, Reference) end)).
