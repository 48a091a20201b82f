-module(erlmcp_chaos_hogs).
-moduledoc "Processes of the machine, outside of every node, that do nothing but compute.".

-export([start/1, stop/1]).

%% Each looks now and then whether the shell that keeps it is still there.
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

-doc "Starts so many. They go with the calling process, or with `stop/1`.".
-spec start(Count :: pos_integer()) -> {ok, erlmcp_chaos_keeper:keeper()} | {error, term()}.
start(Count) ->
    erlmcp_chaos_keeper:keep(?MAKE, ?UNMAKE, [integer_to_list(Count)]).

-doc "Ends them.".
-spec stop(erlmcp_chaos_keeper:keeper()) -> ok | {error, term()}.
stop(Hogs) ->
    erlmcp_chaos_keeper:release(Hogs).
