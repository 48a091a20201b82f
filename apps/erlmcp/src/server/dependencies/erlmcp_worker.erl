-module(erlmcp_worker).
-moduledoc """
The process of one worker of a pool (`erlmcp_workers`): it starts the worker, is linked to what that
linked, and stops it. So a start that takes long, or fails, holds up nobody but who waits for it.
""".

-export([start_link/2, stop/1]).

-export_type([start/0, stop/0]).

-doc "Makes a worker: a process, or any term that stands for something scarce.".
-type start() :: fun(() -> {ok, Worker :: term()} | {error, Reason :: term()}).
-doc "Ends a worker that has not ended itself.".
-type stop() :: fun((Worker :: term()) -> term()).

-doc """
Starts the process of a worker, linked to the caller, which is sent `{ready, Pid, Worker}`. It ends
with the worker, and with `{start, Reason}` where there is none.
""".
-spec start_link(start(), stop()) -> pid().
start_link(Start, Stop) ->
    Pool = self(),
    spawn_link(fun() -> started(Start, Stop, Pool) end).

-doc "Ends a worker and its process.".
-spec stop(pid()) -> ok.
stop(Pid) ->
    Pid ! stop,
    ok.

started(Start, Stop, Pool) ->
    process_flag(trap_exit, true),
    try Start() of
        {ok, Worker} ->
            _ = is_pid(Worker) andalso monitor(process, Worker),
            Pool ! {ready, self(), Worker},
            until_end(Worker, Stop, Pool);
        {error, Reason} ->
            exit({start, Reason});
        _ ->
            exit({start, bad_return})
    catch
        error:Reason:Stack -> exit({start, {Reason, Stack}});
        throw:Reason:Stack -> exit({start, {Reason, Stack}})
    end.

until_end(Worker, Stop, Pool) ->
    receive
        stop -> Stop(Worker);
        {'EXIT', Pool, _} -> Stop(Worker);
        {'DOWN', _, process, Worker, Reason} -> exit({worker, Reason});
        %% What the start had beside the worker, a process of its own kind, may end.
        _ -> until_end(Worker, Stop, Pool)
    end.
