#!/usr/bin/env bash
# A server under more load than it can carry, in an open loop: requests are due by the clock,
# whatever became of those before, and a latency is counted from the time when its request was due.
#
#   bench/overload.sh [SECONDS [TOOL...]]     default: 60 s a load; echo burn burn10 sleep
#
# For each tool (`echo`; `burn` and `burn10`, 2 and 10 ms of CPU time; `sleep`, which waits 20 ms)
# it is found first how many callers of a closed loop, each of whom asks again when it is answered,
# keep the server busy: the fewest that have, within 3 %, the most results, of those that are not
# refused (who asks again at once when it is refused is overload, and not capacity). Then as many
# connections are opened as ten times that many requests a second need, if each is asked less than
# once in the second after which refusals bid to come back: 1,000 at least and 10,000 at most. All
# that follows goes over these, in turn.
#
# What the server carries is a closed loop of that many callers for a third of SECONDS, and that is
# measured again between any two loads: the figures of a load are compared with the mean of just
# before and just after, or a machine that becomes slower or faster would be taken for the server.
# (The best of several short runs is always more than what is there for long.) The loads are 0.8,
# 2, 5 and 10 times what was carried just before, at exponential distances.
#
# Shown are what was offered and answered with a result, the latter's share of what is carried, the
# server's CPU time by its results (where nothing is refused that is what a result costs, and shows
# the machine's own changes), the latencies of the accepted and the 99th percentile of a refusal's,
# what was never sent (no connection was free for 5 seconds: less was offered than is said), what
# was lost (no answer), and by how much the sending was late (99th percentile); the server's memory
# before, at most and after, the cores that both sides used, and what was refused by its code. Then
# what a result and a refusal cost the server (the result as just before and after the 10 times;
# the refusal is what remains of that load, and so it is said for each of both: one percent of what
# a result of 10 ms costs is some 10 us of a refusal), and what is left where refusals cost as much:
# what docs/overload.md computes.
#
# At last nine principals that ask for half of what is carried, each for a ninth of that: alone,
# beside a tenth that asks for ten times what is carried, and alone again. The quiet 99th
# percentile is that of both times alone. The tenth has 500 connections, and asks on each again
# whatever it was told: what it could not send is what the server kept it from. The loads' figures
# come again as the table of docs/overload.md.
#
# The server has one half of the cores and the load generator (bench/overload/load.go) the other, so
# that the one cannot take what the other's figures say. With ERLMCP_PIN=no both have all of them.
#
#   ERLMCP_FAIRNESS  the tool of the run with principals (default: burn; no: no such run)
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
[ $# -gt 1 ] && tools=("${@:2}") || tools=(echo burn burn10 sleep)

. bench/overload/start.sh
for tool in "${tools[@]}"; do
    start_server
    load overload "$tool" "$seconds" | tee -a "$work/said" | grep -v --line-buffered '^|'
    stop_server
done
if [ "${ERLMCP_FAIRNESS:-burn}" != no ]; then
    start_server
    load fairness "${ERLMCP_FAIRNESS:-burn}" "$seconds"
    stop_server
fi
echo "| tool | times | offered/s | carried/s | results/s | share | p99 ms | by that at 0.8 |" \
    "refused | lost | memory MiB |"
echo "|$(printf ' --- |%.0s' {1..11})"
grep '^|' "$work/said"
echo "load after: $(cut -d ' ' -f 1 /proc/loadavg)"
