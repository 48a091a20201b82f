-module(erlmcp_verdicts).
-moduledoc """
Keeps the last verdict on each server of the node: whether it is well, since when, and why not. The
console judges the servers while it runs.

Internal.
""".

-export([open/0, judged/2, forget/1, find/1]).

-export_type([verdict/0]).

%% Milliseconds for which a verdict holds. The console judges each five seconds.
-define(HOLDS, 20_000).

-doc """
A verdict on a server: whether it is well, since which system time in milliseconds, and sentences
that say why not.
""".
-type verdict() :: #{well := boolean(), since := integer(), causes := [binary()]}.

-doc """
Creates the table of verdicts. The table belongs to the calling process, which judges the servers,
and alone may write to it.
""".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, {read_concurrency, true}]),
    ok.

-doc """
Sets the verdict on the server with the pid `Server`, for 20 seconds (`find/1`). Only the owner of
the table may call this function.
""".
-spec judged(Server :: pid(), verdict()) -> ok.
judged(Server, Verdict) ->
    true = ets:insert(?MODULE, {Server, Verdict, erlmcp_clock:now_ms()}),
    ok.

-doc """
Deletes the verdict on a server that has ended. Only the owner of the table may call this function.
""".
-spec forget(Server :: pid()) -> ok.
forget(Server) ->
    true = ets:delete(?MODULE, Server),
    ok.

-doc """
Returns the verdict on a server. Returns `none` if the server was not judged in the last 20 seconds,
or if no console runs.
""".
-spec find(Server :: pid()) -> verdict() | none.
find(Server) ->
    try ets:lookup(?MODULE, Server) of
        [{_, Verdict, At}] ->
            case erlmcp_clock:now_ms() - At =< ?HOLDS of
                true -> Verdict;
                false -> none
            end;
        [] ->
            none
    catch
        %% No console runs in this node.
        error:badarg -> none
    end.
