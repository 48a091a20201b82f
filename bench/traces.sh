#!/usr/bin/env bash
# Measures the cost of traces: the CPU time of a server for one call of `echo` over HTTP/1.1,
# without traces, with 1 % and with 100 % of them recorded and sent to a collector, which is a
# process of its own. The servers are loaded in turn, round by round. Each figure is the median of
# its rounds with the least and the most, and a share is that of the same round without traces. The
# figures are written to FILE, as JSON.
#
#   bench/traces.sh [ROUNDS] [SECONDS] [FILE]
#                                default: 5 rounds of 4 seconds for each server, _build/traces.json
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-5}
seconds=${2:-4}
file=${3:-_build/traces.json}

. scripts/env.sh
scripts/build.sh >&2
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT
erlc -o "$work" bench/traces/bench_traces.erl

# start NAME ARGUMENT...: starts a program, and sets url and pid.
start() {
    # The flags of bin/erlmcp. The first line is not to be the log's.
    ERL_LIBS=${REBAR_BASE_DIR:-_build}/default/lib erl +sbwt none +sbwtdcpu none +sbwtdio none \
        -kernel logger_level warning -noinput -pa "$work" \
        -eval 'bench_traces:main(init:get_plain_arguments()).' \
        -extra "${@:2}" >"$work/$1" 2>&1 &
    pid=$!
    until [ -s "$work/$1" ]; do sleep 0.1; done
    url=$(head -n 1 "$work/$1")
}

# cpu PID: the CPU time of a process, in ticks of 10 ms.
cpu() { cut -d ')' -f 2 "/proc/$1/stat" | awk '{ print $12 + $13 }'; }

start collector collect
collector=$url
for kind in quick ordinary; do
    for ratio in off 0.01 1.0; do
        start "$kind$ratio" serve "$ratio" "$collector" "$kind"
        servers+=("$kind $ratio $url $pid")
    done
done
load_before=$(cut -d ' ' -f 1 /proc/loadavg)
echo "$rounds rounds of $seconds s; load before: $load_before"
for ((round = 0; round <= rounds; round++)); do
    # Each round begins with another server.
    for i in "${!servers[@]}"; do
        read -r kind ratio url pid <<<"${servers[(i + round) % ${#servers[@]}]}"
        before=$(cpu "$pid")
        answered=$(bin/erlmcp load "$url" --connections 64 --duration "$seconds" --warmup 0 |
            awk '$1 == "answered" { gsub(/,/, "", $2); print $2 }')
        # The first round warms up.
        [ "$round" = 0 ] ||
            echo "$kind $ratio $round $(($(cpu "$pid") - before)) $answered" >>"$work/costs"
    done
done
load_after=$(cut -d ' ' -f 1 /proc/loadavg)
awk -v rounds="$rounds" -v seconds="$seconds" -v before="$load_before" -v after="$load_after" \
    -v file="$file" '
    { cost[$1, $2, $3] = 10000 * $4 / $5 }
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
        split("quick ordinary", kinds); split("off 0.01 1.0", ratios)
        printf "{\"rounds\": %d, \"seconds\": %s, \"load\": [%s, %s]", rounds, seconds, before,
            after >file
        for (k = 1; k <= 2; k++) {
            printf ", \"%s\": {", kinds[k] >file
            for (r = 1; r <= 3; r++) {
                for (i = 1; i <= rounds; i++) {
                    us[i] = cost[kinds[k], ratios[r], i]
                    share[i] = us[i] / cost[kinds[k], "off", i]
                }
                sort(us, rounds); sort(share, rounds)
                printf "%-9s %-5s %6.2f us of CPU a call (%.2f to %.2f), ", kinds[k], ratios[r],
                    median(us, rounds), us[1], us[rounds]
                printf "%.3f of without (%.3f to %.3f)\n", median(share, rounds), share[1],
                    share[rounds]
                printf "%s\"%s\": {%s, %s}", r > 1 ? ", " : "", ratios[r],
                    json("us_per_call", us, rounds), json("share", share, rounds) >file
            }
            printf "}" >file
        }
        print "}" >file
    }' "$work/costs"
echo "load after: $load_after; written: $file"
