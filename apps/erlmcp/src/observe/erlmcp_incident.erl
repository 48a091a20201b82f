-module(erlmcp_incident).
-moduledoc """
Incidents: errors inside, for the log alone. A report is written under an id, and the peer is told
the id.

`log/1` and `log/2` wait as long as the handlers of the log block, which the process that went wrong
can afford. A process that others wait for calls `log_apart/2`: at most 1,000 reports of the node
wait in processes of their own. Reports over that are left out, and the next report says how many
were, as `dropped`.

Internal.
""".

-export([open/0, log/1, log/2, log_apart/2]).

-doc "Makes the table of what waits; it belongs to the calling process.".
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

-doc "Logs a report of an error of the server with this key.".
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

%% OTP's handlers give up a report after five seconds where what they write to is not read, and
%% others when they like: it is the backlog that bounds them.
waiting(Report, Key, Backlog) ->
    try
        ok = erlmcp_log:report(error, erlmcp_drop_counter:with_dropped(Report, Backlog), Key)
    after
        ok = erlmcp_drop_counter:leave(Backlog)
    end.

id() ->
    binary:encode_hex(rand:bytes(8), lowercase).
