-module(erlmcp_incident).
-moduledoc """
Incidents, which are internal errors: the log gets a report with an id, and the peer gets the id
alone.

`log/1` and `log/2` wait while the log handlers block. A process that others wait for calls
`log_apart/2`, which logs in a process of its own. At most 1,000 such processes wait in the node.
Further reports are dropped, and the next report has their number as `dropped`.

Internal.
""".

-export([open/0, log/1, log/2, log_apart/2]).

-doc "Creates the table with the count of waiting reports, owned by the calling process.".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, {read_concurrency, true}]),
    true = ets:insert(?MODULE, {backlog, erlmcp_drop_counter:new()}),
    ok.

-doc "Logs a report of an error, and returns the id that the report has in the log.".
-spec log(#{what := atom(), atom() => term()}) -> Id :: binary().
log(Report) ->
    Id = id(),
    ok = erlmcp_log:report(error, Report#{incident => Id}),
    Id.

-doc "Logs a report of an error of the server with the key `Key`, and returns its id.".
-spec log(#{what := atom(), atom() => term()}, Key :: reference()) -> Id :: binary().
log(Report, Key) ->
    Id = id(),
    ok = erlmcp_log:report(error, Report#{incident => Id}, Key),
    Id.

-doc """
Logs a report of an error of the server with the key `Key` in another process, without waiting, and
returns its id. The report is dropped if 1,000 wait already; its id is returned even then.
""".
-spec log_apart(#{what := atom(), atom() => term()}, Key :: reference()) -> Id :: binary().
log_apart(Report, Key) ->
    Id = id(),
    ok = apart(Report#{incident => Id}, Key),
    Id.

apart(Report, Key) ->
    try ets:lookup_element(?MODULE, backlog, 2) of
        Backlog ->
            _ = erlmcp_drop_counter:enter(Backlog)
                andalso spawn(fun() -> waiting(Report, Key, Backlog) end),
            ok
    catch
        %% The application has stopped before the server.
        error:badarg -> erlmcp_log:report(error, Report, Key)
    end.

%% OTP's log handlers drop a report after five seconds if their output is not read, but other
%% handlers may wait forever. So the counter bounds the waiting processes.
waiting(Report, Key, Backlog) ->
    try
        ok = erlmcp_log:report(error, erlmcp_drop_counter:with_dropped(Report, Backlog), Key)
    after
        ok = erlmcp_drop_counter:leave(Backlog)
    end.

id() ->
    binary:encode_hex(rand:bytes(8), lowercase).
