#!/usr/bin/env bash
# A server under more load than it can carry, in an open loop: requests are due by the clock,
# whatever became of those before, and a latency is counted from the time when its request was due.
#
#   bench/overload.sh [SECONDS [TOOL...]]     default: 60 s a load; echo burn burn10 sleep
#
# For each tool (`echo`; `burn` and `burn10`, 2 and 10 ms of CPU time; `sleep`, which waits 20 ms)
# it is found first how many callers of a closed loop, each of whom asks again when it is answered,
# have the most results. What the server carries is what they have in a third of SECONDS, and that
# is measured again between any two loads: the figures of one load are compared with the mean of just
# before and just after, so that a machine that becomes slower or faster is not taken for the server.
# Nor is the best of several short runs, which is always more than what is there for long.
#
# The loads are 0.8, 2, 5 and 10 times what was carried just before, at exponential distances, over
# 1,000 connections that are kept alive. Shown are what was offered and answered with a result, the
# latter's share of what is carried, the server's CPU time by its results (in a closed loop that is
# what a result costs; by it one sees the machine's own changes), the latencies of the accepted and
# the 99th percentile of a refusal's, what was never sent (no connection was free for 5 seconds: the
# load generator offered less than it says), what was lost (no answer), and by how much the sending
# was late (99th percentile); the server's memory before, at most and after, the cores that both
# sides used, and what was refused by its code. Then what a result and a refusal cost the server
# (the result as in the closed loops around the 10 times; the refusal is what remains of that load),
# and what is left where refusals cost as much: what docs/overload.md computes. Each tool's lines of
# the table in docs/overload.md come with it.
#
# At last nine principals that ask for half of what is carried, each for a ninth of that: alone,
# beside a tenth that asks for ten times what is carried, and alone again. The quiet 99th percentile
# is that of both times alone.
#
# The server has one half of the cores and the load generator (bench/overload/load.go) the other, so
# that the one cannot take what the other's figures say. With ERLMCP_PIN=no both have all of them.
#
#   ERLMCP_FAIRNESS  the tool of the run with principals (default: burn; no: no such run)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
[ $# -gt 1 ] && tools=("${@:2}") || tools=(echo burn burn10 sleep)

. bench/overload/start.sh
for tool in "${tools[@]}"; do
    start_server
    load overload "$tool" "$seconds"
    stop_server
done
if [ "${ERLMCP_FAIRNESS:-burn}" != no ]; then
    start_server
    load fairness "${ERLMCP_FAIRNESS:-burn}" "$seconds"
    stop_server
fi
echo "load after: $(cut -d ' ' -f 1 /proc/loadavg)"
