#!/usr/bin/env bash
# A server under more load than it can carry, in an open loop: requests are due by the clock,
# whatever became of those before, and a latency is counted from the time when its request was due.
#
#   bench/overload.sh [SECONDS [TOOL...]]     default: 60 s a load; echo burn burn10 sleep
#
# For each tool (`echo`; `burn` and `burn10`, 2 and 10 ms of CPU time; `sleep`, which waits 20 ms)
# the peak is found first, with closed loops of more and more callers. Then 0.8, 2, 5 and 10 times
# that many requests a second are sent, at exponential distances, over 1,000 connections that are
# kept alive. Shown are what was offered and answered with a result, the latter's share of the peak,
# the latencies of the accepted and the 99th percentile of a refusal's, what was refused by its
# code, what was lost (no answer), what was never sent (no connection was free for 5 seconds: the
# load generator offered less than it says), and by how much the sending was late (99th percentile);
# the server's memory before, at most and after, and the cores that both sides used. Then what a
# result and a refusal cost the server, and what is left of the peak where refusals cost as much:
# what docs/overload.md computes. At last nine principals that ask for half of the peak, each for a
# ninth of that, alone and beside a tenth that asks for ten times the peak.
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
