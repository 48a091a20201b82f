-module(erlmcp_incident).
-moduledoc """
What went wrong inside, for the log alone: it is written under an id, and the peer is told the id.

`log/1` and `log/2` wait as long as the handlers of the log block, which is what the process that
went wrong can do. For one that others wait for there is `log_apart/2`: at most 1,000 reports of the
node wait in processes of their own; what is over that is left out, and the next report says how
many were, as `dropped`.
""".

-export([open/0, log/1, log/2, log_apart/2]).

%% Reports that wait for the handlers of the log. OTP's give up a report after five seconds where
%% what they write to is not read, and others when they like: it is this that bounds them.
-define(MAX_WAITING, 1000).

%% Of the counters.
-define(WAITING, 1).
-define(DROPPED, 2).

-doc "Makes the table of what waits; it belongs to the calling process.".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, {read_concurrency, true}]),
    true = ets:insert(?MODULE, {counters, atomics:new(2, [])}),
    ok.

-doc "Logs a report of an error, and gives the id that finds it.".
-spec log(#{what := atom(), atom() => term()}) -> Id :: binary().
log(Report) ->
    Id = id(),
    ok = erlmcp_log:report(error, Report#{incident => Id}),
    Id.

-doc "The same of the server with this key.".
-spec log(#{what := atom(), atom() => term()}, Key :: reference()) -> Id :: binary().
log(Report, Key) ->
    Id = id(),
    ok = erlmcp_log:report(error, Report#{incident => Id}, Key),
    Id.

-doc "The same, and does not wait.".
-spec log_apart(#{what := atom(), atom() => term()}, Key :: reference()) -> Id :: binary().
log_apart(Report, Key) ->
    Id = id(),
    ok = apart(Report#{incident => Id}, Key),
    Id.

apart(Report, Key) ->
    try ets:lookup_element(?MODULE, counters, 2) of
        Counters -> apart(Report, Key, Counters)
    catch
        %% The application has stopped before the server.
        error:badarg -> erlmcp_log:report(error, Report, Key)
    end.

apart(Report, Key, Counters) ->
    case atomics:add_get(Counters, ?WAITING, 1) of
        Waiting when Waiting > ?MAX_WAITING ->
            ok = atomics:sub(Counters, ?WAITING, 1),
            atomics:add(Counters, ?DROPPED, 1);
        _ ->
            _ = spawn(fun() -> waiting(Report, Key, Counters) end),
            ok
    end.

waiting(Report, Key, Counters) ->
    try
        ok = erlmcp_log:report(error, with_dropped(Report, Counters), Key)
    after
        ok = atomics:sub(Counters, ?WAITING, 1)
    end.

with_dropped(Report, Counters) ->
    case atomics:exchange(Counters, ?DROPPED, 0) of
        0 -> Report;
        Dropped -> Report#{dropped => Dropped}
    end.

id() ->
    binary:encode_hex(rand:bytes(8), lowercase).
