-module(erlmcp_chaos_hogs).
-moduledoc "Operating system processes outside every node that only compute.".

-export([start/1, stop/1, cpu_us/1]).

%% Each process checks from time to time that the shell that keeps it still runs.
-define(MAKE, "
    hogs=''
    count=0
    while [ \"$count\" -lt \"$1\" ]; do
        (trap - HUP INT TERM
         while kill -0 $$; do
             turn=0
             while [ \"$turn\" -lt 100000 ]; do turn=$((turn + 1)); done
         done) </dev/null >/dev/null 2>&1 &
        hogs=\"$hogs $!\"
        count=$((count + 1))
    done").
-define(UNMAKE, "
    [ -z \"$hogs\" ] || kill -KILL $hogs
    wait").

-doc """
Starts `Count` operating system processes that compute all the time. They end when the calling
process ends, or with `stop/1`. `erlmcp_chaos_program:reason/1` returns a text for the error.
""".
-spec start(Count :: non_neg_integer()) -> {ok, erlmcp_chaos_keeper:keeper()} | {error, term()}.
start(Count) ->
    erlmcp_chaos_keeper:keep(?MAKE, ?UNMAKE, [integer_to_list(Count)]).

-doc """
Returns the processor time that all processes of `start/1` have taken together so far, in
microseconds. Fails if the shell that started them has ended.
""".
-spec cpu_us(erlmcp_chaos_keeper:keeper()) -> non_neg_integer().
cpu_us(Hogs) ->
    round(lists:sum([Us || Pid <- erlmcp_chaos_keeper:children(Hogs),
                           Us <- [erlmcp_bench_process:cpu_us(Pid)], is_integer(Us)])).

-doc """
Ends the processes of `start/1`. Only the process that started them may do so. The errors are those
of `erlmcp_chaos_keeper:release/1`.
""".
-spec stop(erlmcp_chaos_keeper:keeper()) -> ok | {error, term()}.
stop(Hogs) ->
    erlmcp_chaos_keeper:release(Hogs).
