#!/usr/bin/env bash
# Measures the cost of the console: the CPU time of a server's process for one call of `echo` over
# HTTP/1.1. The server has no console, a console that nobody looks at, or one with viewers of its
# stream, which are a process of their own. The three are loaded in turn, round by round. Each
# figure is the median of its rounds with the least and the most, and a share is that of the same
# round without viewers. The figures are written to FILE, as JSON.
#
#   bench/console.sh [ROUNDS] [SECONDS] [VIEWERS] [FILE]
#                                default: 5 rounds of 4 seconds, 10 viewers, _build/console.json
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-5}
seconds=${2:-4}
viewers=${3:-10}
file=${4:-_build/console.json}

. scripts/env.sh
scripts/build.sh >&2
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT
erlc -o "$work" bench/console/bench_console.erl

# start NAME ARGUMENT...: starts a program, and sets said, its first line, and pid.
start() {
    rm -f "$work/$1"
    # The flags of bin/erlmcp. The first line is not to be the log's.
    ERL_LIBS=${REBAR_BASE_DIR:-_build}/default/lib erl +sbwt none +sbwtdcpu none +sbwtdio none \
        -kernel logger_level warning -noinput -pa "$work" \
        -eval 'bench_console:main(init:get_plain_arguments()).' \
        -extra "${@:2}" >"$work/$1" 2>&1 &
    pid=$!
    until [ -s "$work/$1" ]; do sleep 0.1; done
    said=$(head -n 1 "$work/$1")
}

# cpu PID: the CPU time of a process, in ticks of 10 ms.
cpu() { cut -d ')' -f 2 "/proc/$1/stat" | awk '{ print $12 + $13 }'; }

start without serve without
without="$said $pid"
start with serve with
with="$said $pid"
kinds=(without none viewers)
load_before=$(cut -d ' ' -f 1 /proc/loadavg)
echo "$rounds rounds of $seconds s, $viewers viewers; load before: $load_before"
for ((round = 0; round <= rounds; round++)); do
    # Each round begins with another kind.
    for i in 0 1 2; do
        kind=${kinds[(i + round) % 3]}
        server=$with
        [ "$kind" != without ] || server=$without
        read -r url server <<<"$server"
        if [ "$kind" = viewers ]; then
            start viewers view "$url" "$viewers"
            looking=$pid
        fi
        before=$(cpu "$server")
        answered=$(bin/erlmcp load "$url" --connections 64 --duration "$seconds" --warmup 0 |
            awk '$1 == "answered" { gsub(/,/, "", $2); print $2 }')
        used=$(($(cpu "$server") - before))
        if [ "$kind" = viewers ]; then
            kill "$looking"
            wait "$looking" 2>/dev/null || true
        fi
        # The first round warms up.
        [ "$round" = 0 ] || echo "$kind $round $used $answered" >>"$work/costs"
    done
done
load_after=$(cut -d ' ' -f 1 /proc/loadavg)
awk -v rounds="$rounds" -v seconds="$seconds" -v viewers="$viewers" -v before="$load_before" \
    -v after="$load_after" -v file="$file" '
    { cost[$1, $2] = 10000 * $3 / $4 }
    function sort(values, count,    i, j, held) {
        for (i = 2; i <= count; i++)
            for (j = i; j > 1 && values[j - 1] > values[j]; j--) {
                held = values[j]; values[j] = values[j - 1]; values[j - 1] = held
            }
    }
    function median(values, count) {
        return count % 2 ? values[(count + 1) / 2] : (values[count / 2] + values[count / 2 + 1]) / 2
    }
    function json(name, values, count) {
        return sprintf("\"%s\": {\"median\": %.4f, \"least\": %.4f, \"most\": %.4f}", name,
            median(values, count), values[1], values[count])
    }
    END {
        split("without none viewers", kinds)
        name["without"] = "no console"; name["none"] = "console, nobody looks"
        name["viewers"] = "console, " viewers " viewers"
        printf "{\"rounds\": %d, \"seconds\": %s, \"viewer_count\": %d, \"load\": [%s, %s]", rounds,
            seconds, viewers, before, after >file
        for (k = 1; k <= 3; k++) {
            for (i = 1; i <= rounds; i++) {
                us[i] = cost[kinds[k], i]
                share[i] = us[i] / cost["none", i]
            }
            sort(us, rounds); sort(share, rounds)
            printf "%-24s %6.2f us of CPU a call (%.2f to %.2f), ", name[kinds[k]],
                median(us, rounds), us[1], us[rounds]
            printf "%.3f of that of nobody (%.3f to %.3f)\n", median(share, rounds), share[1],
                share[rounds]
            printf ", \"%s\": {%s, %s}", kinds[k], json("us_per_call", us, rounds),
                json("share", share, rounds) >file
        }
        print "}" >file
    }' "$work/costs"
echo "load after: $load_after; written: $file"
