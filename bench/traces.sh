#!/usr/bin/env bash
# Measures the cost of signals: the CPU time of a node for one call of `echo` over HTTP/1.1, without
# signals, with a page of metrics that is scraped once a second, and with 1 % and 100 % of the
# traces recorded and sent to a collector, which is a process of its own. The tool is a quick one,
# an ordinary one, and one that hashes its text 100 times. All servers are in one node. The servers
# are loaded in turn, round by round. Each figure is the median of its rounds with the least and the
# most, and a share is that of the same round without signals. A second server without signals
# (`again`) shows how far shares of the same work differ. The figures are written to FILE, as JSON.
#
#   bench/traces.sh [ROUNDS] [SECONDS] [FILE]
#                                default: 5 rounds of 4 seconds for each server, _build/traces.json
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-5}
seconds=${2:-4}
file=${3:-_build/traces.json}

. scripts/env.sh
# The build for tests has the library `prometheus`.
scripts/build.sh test >&2
build=${REBAR_BASE_DIR:-_build}
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT
erlc -o "$work" bench/traces/bench_traces.erl

# start NAME LINES ARGUMENT...: starts a program that prints LINES lines, and sets pid.
start() {
    : >"$work/$1"
    # The flags of bin/erlmcp. The first line is not to be the log's.
    ERL_LIBS=$build/default/lib:$build/test/lib erl +sbwt none +sbwtdcpu none +sbwtdio none \
        -kernel logger_level warning -noinput -pa "$work" \
        -eval 'bench_traces:main(init:get_plain_arguments()).' \
        -extra "${@:3}" >"$work/$1" 2>&1 &
    pid=$!
    until [ "$(wc -l <"$work/$1")" -ge "$2" ]; do sleep 0.1; done
}

# cpu: the CPU time of the node, in ticks of 10 ms.
cpu() { cut -d ')' -f 2 "/proc/$pid/stat" | awk '{ print $12 + $13 }'; }

signals=(off metrics 0.01 1.0 again)
start collector 1 collect
start servers $((3 * ${#signals[@]})) serve "$(head -n 1 "$work/collector")" "${signals[@]}"
mapfile -t servers <"$work/servers"
load_before=$(cut -d ' ' -f 1 /proc/loadavg)
echo "$rounds rounds of $seconds s; load before: $load_before"
for ((round = 0; round <= rounds; round++)); do
    # Each round begins with another server.
    for i in "${!servers[@]}"; do
        read -r kind signal url <<<"${servers[(i + round) % ${#servers[@]}]}"
        scraping=
        if [ "$signal" = metrics ]; then
            while curl -sSf -o "$work/page" "${url%/*}/metrics"; do sleep 1; done &
            scraping=$!
        fi
        before=$(cpu)
        answered=$(bin/erlmcp load "$url" --connections 64 --duration "$seconds" --warmup 0 |
            awk '$1 == "answered" { gsub(/,/, "", $2); print $2 }')
        # The last spans are sent after a second at most.
        sleep 1.1
        used=$(($(cpu) - before))
        [ -z "$scraping" ] || { kill "$scraping"; wait "$scraping" 2>/dev/null || true; }
        # The first round warms up.
        [ "$round" = 0 ] || echo "$kind $signal $round $used $answered" >>"$work/costs"
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
        split("quick ordinary working", kinds); split("off again metrics 0.01 1.0", signals)
        printf "{\"rounds\": %d, \"seconds\": %s, \"load\": [%s, %s]", rounds, seconds, before,
            after >file
        for (k = 1; k <= 3; k++) {
            printf ", \"%s\": {", kinds[k] >file
            for (r = 1; r <= 5; r++) {
                for (i = 1; i <= rounds; i++) {
                    us[i] = cost[kinds[k], signals[r], i]
                    share[i] = us[i] / cost[kinds[k], "off", i]
                }
                sort(us, rounds); sort(share, rounds)
                printf "%-9s %-8s %6.2f us of CPU a call (%.2f to %.2f), ", kinds[k], signals[r],
                    median(us, rounds), us[1], us[rounds]
                printf "%.3f of without (%.3f to %.3f)\n", median(share, rounds), share[1],
                    share[rounds]
                printf "%s\"%s\": {%s, %s}", (r > 1 ? ", " : ""), signals[r],
                    json("us_per_call", us, rounds), json("share", share, rounds) >file
            }
            printf "}" >file
        }
        print "}" >file
    }' "$work/costs"
echo "load after: $load_after; written: $file"
