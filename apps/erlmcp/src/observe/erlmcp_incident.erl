-module(erlmcp_incident).
-moduledoc """
Incidents: internal errors. The log has the report under an id, and the peer gets the id alone.

`log/1` and `log/2` wait as long as the handlers of the log block, which a process that has failed
can afford. A process that others wait for calls `log_apart/2`: at most 1,000 reports of the node
wait in processes of their own. Reports over that are dropped, and the next report has their number
as `dropped`.

Internal.
""".

-export([open/0, log/1, log/2, log_apart/2]).

-doc "Creates the table with the count of waiting reports, which belongs to the calling process.".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, {read_concurrency, true}]),
    true = ets:insert(?MODULE, {backlog, erlmcp_drop_counter:new()}),
    ok.

-doc "Logs a report of an error, and returns the id that finds it.".
-spec log(#{what := atom(), atom() => term()}) -> Id :: binary().
log(Report) ->
    Id = id(),
    ok = erlmcp_log:report(error, Report#{incident => Id}),
    Id.

-doc "Logs a report of an error of the server with the key `Key`.".
-spec log(#{what := atom(), atom() => term()}, Key :: reference()) -> Id :: binary().
log(Report, Key) ->
    Id = id(),
    ok = erlmcp_log:report(error, Report#{incident => Id}, Key),
    Id.

-doc "Logs a report of an error of a server in another process, and does not wait.".
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

%% OTP's handlers drop a report after five seconds if their output is not read, and other handlers
%% may wait for ever. So the counter bounds the waiting processes.
waiting(Report, Key, Backlog) ->
    try
        ok = erlmcp_log:report(error, erlmcp_drop_counter:with_dropped(Report, Backlog), Key)
    after
        ok = erlmcp_drop_counter:leave(Backlog)
    end.

id() ->
    binary:encode_hex(rand:bytes(8), lowercase).
