#!/usr/bin/env bash
# Loads a server with more than its capacity, in an open loop: requests are due by the clock,
# regardless of earlier requests, and a latency begins when its request was due.
#
#   bench/overload.sh [SECONDS [TOOL...]]     default: 60 s a load; echo burn burn10 sleep
#
# `burn` and `burn10` use 2 and 10 ms of CPU time, and `sleep` waits 20 ms. The steps for each tool:
#
# 1. Find the callers of a closed loop that keep the server busy: the fewest with the most results,
#    within 3 %. A caller sends again when it is answered. Refusals do not count: a caller that
#    sends again at once after a refusal is overload, and not capacity.
# 2. Open connections for ten times that many requests a second, so that each sends less than once
#    in the second after which refusals ask clients to come back: 1,000 at least and 10,000 at most.
#    Everything that follows uses these connections in turn.
# 3. Measure the capacity: a closed loop of these callers for a third of SECONDS. This is repeated
#    between any two loads. A load is compared with the mean of the capacity just before and just
#    after it, so that a changing speed of the machine is not taken for the server's. (The best of
#    several short runs is always more than the long-term capacity.)
# 4. Load the server with 0.8, 2, 5 and 10 times the capacity, at exponential distances.
#
# The columns:
#
# - offered requests, results, and the results' share of the capacity;
# - the server's CPU time divided by its results. Without refusals this is the cost of a result, and
#   shows changes of the machine;
# - latencies of accepted requests, and the 99th percentile of a refusal's latency;
# - unsent requests: no connection was free for 5 seconds, so less was offered than shown. Lost
#   requests had no answer. The lateness of sending is its 99th percentile;
# - the server's memory before, at most and after, the cores that both sides used, and refusals by
#   their code.
#
# Then follow the cost of a result and of a refusal. The cost of a result is that just before and
# just after the load of 10 times. The cost of a refusal is the remainder of that load, and is given
# for both: one percent of a result of 10 ms is some 10 us of a refusal. From these follows the
# capacity that remains, as docs/overload.md computes it.
#
# Finally nine principals send half of the capacity together: alone, next to a tenth principal that
# sends ten times the capacity, and alone again. The quiet 99th percentile is that of both times
# alone. The tenth has 500 connections, and sends again on each after any answer. Its unsent
# requests show how far the server holds it back. The figures of the loads are printed again as
# a table.
#
# The server has one half of the cores and the load generator (bench/overload/load.go) the other, so
# that the generator does not change the server's figures. With ERLMCP_PIN=no both have all cores.
#
#   ERLMCP_FAIRNESS  the tool of the run with principals (default: burn; no: skip this run)
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
[ $# -gt 1 ] && tools=("${@:2}") || tools=(echo burn burn10 sleep)

. bench/overload/start.sh
for tool in "${tools[@]}"; do
    start_server
    load overload "$tool" "$seconds" | tee -a "$work/output" | grep -v --line-buffered '^|'
    stop_server
done
if [ "${ERLMCP_FAIRNESS:-burn}" != no ]; then
    start_server
    load fairness "${ERLMCP_FAIRNESS:-burn}" "$seconds"
    stop_server
fi
echo "| tool | times | offered/s | carried/s | results/s | share | p99 ms | over that at 0.8 |" \
    "refused | lost | memory MiB |"
echo "|$(printf ' --- |%.0s' {1..11})"
grep '^|' "$work/output"
echo "load after: $(cut -d ' ' -f 1 /proc/loadavg)"
