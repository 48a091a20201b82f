#!/usr/bin/env bash
# Measures clients: calls per second of `tools/call echo`, and the microseconds of CPU time that a
# call costs its client. The clients are this project's and the official Go, TypeScript and Python
# ones (the versions locked under test/interop). They run in turn, against one server on one
# machine, over HTTP/1.1, HTTP/2 in the clear (only ours and Go's have it), stdio, and TCP (only
# ours).
#
#   bench/client.sh [SECONDS [ROUNDS]]     default: 3 seconds a measurement, 3 rounds
#
# Each is measured with one caller and with 32, in the stateless era (2026-07-28) and in a session
# (2025-11-25). The server answers with prepared bytes (bench/client/server.go), so the figures are
# those of the client; on few cores the server has a part in the calls per second. The CPU time is
# that of the client's process, user and system, without children. The medians of the rounds are
# shown. On a machine with other work only the CPU time is meaningful. The Rust SDK is left out: its
# peer is not built for speed.
#
#   ERLMCP_BENCH     the transports to measure (default: http1 http2 stdio tcp)
#   ERLMCP_CLIENTS   the clients (default: erlmcp go typescript python)
#
# ERLMCP_CLIENTS may also name `socket` and `gun`: the same request in a loop on a bare socket
# (HTTP/1.1), and through gun, which our client uses for HTTP/2 and TLS. They are not compared with
# ours. `ERLMCP_BENCH="http1 http2" ERLMCP_CLIENTS="erlmcp gun socket go" bench/client.sh` shows our
# part of a call.
#
# A client is started as `CLIENT TARGET ERA CALLERS SECONDS`; it warms up for 1.5 seconds, and
# prints the number of calls, the seconds they took together, the microseconds of CPU time, and the
# median and 99th percentile of a call's microseconds.
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-3}
rounds=${2:-3}
[[ $seconds == *.* ]] || seconds=$seconds.0
transports=${ERLMCP_BENCH:-http1 http2 stdio tcp}
clients=${ERLMCP_CLIENTS:-erlmcp go typescript python}

. scripts/env.sh
scripts/build.sh >&2
peers=$(scripts/peers.sh go typescript python2)
. bench/ports.sh
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT
erlc -o "$work" bench/client/bench_client.erl bench/client/bench_floor.erl
# Node resolves the client's imports from its folder.
ln -s "$peers/typescript/node_modules" "$work/node_modules"
cp bench/client/client.mjs "$work/"
for program in server client; do
    source=$PWD/bench/client/$program.go
    (cd test/interop/go && CGO_ENABLED=0 go build -mod=readonly -o "$work/$program" "$source")
done

http_port=$(free_port)
tcp_port=$(free_port)
"$work/server" "$http_port" "$tcp_port" &
await_port "$http_port"
await_port "$tcp_port"

# target TRANSPORT CLIENT: prints nothing if the client has no such transport.
target() {
    case $1-$2 in
        stdio-socket | stdio-gun) ;;
        http1-*) echo "http://127.0.0.1:$http_port/mcp" ;;
        http2-erlmcp | http2-go | http2-gun) echo "h2+http://127.0.0.1:$http_port/mcp" ;;
        stdio-*) echo "$work/server" ;;
        tcp-erlmcp) echo "tcp://127.0.0.1:$tcp_port" ;;
    esac
}

# measure CLIENT TARGET ERA CALLERS
measure() {
    case $1 in
        erlmcp) set -- node "bench_client:main([\"$2\", \"$3\", \"$4\", \"$seconds\"])" ;;
        socket | gun)
            set -- node "bench_floor:main([\"$1\", \"$2\", \"$3\", \"$4\", \"$seconds\"])" ;;
        go) set -- "$work/client" "$2" "$3" "$4" "$seconds" ;;
        typescript) set -- "$peers/bin/node" "$work/client.mjs" "$2" "$3" "$4" "$seconds" ;;
        python) set -- "$peers/python2/bin/python" bench/client/client.py "$2" "$3" "$4" \
            "$seconds" ;;
    esac
    # The flags of bin/erlmcp: busy-waiting schedulers would count as time of calls.
    [ "$1" != node ] || set -- env "ERL_LIBS=${REBAR_BASE_DIR:-_build}/default/lib" erl \
        +sbwt none +sbwtdcpu none +sbwtdio none -noinput -pa "$work" -eval "$2, halt()."
    timeout 120 "$@" 2>"$work/err" || { cat "$work/err" >&2; return 1; }
}

echo "$seconds s a measurement, $rounds rounds; $(nproc) cores;" \
    "load before: $(cut -d ' ' -f 1 /proc/loadavg)"
for _ in $(seq "$rounds"); do
    for transport in $transports; do
        for era in stateless session; do
            for callers in 1 32; do
                for client in $clients; do
                    target=$(target "$transport" "$client")
                    [ -n "$target" ] || continue
                    figures=$(measure "$client" "$target" "$era" "$callers")
                    echo "$transport,$era,$callers $client $figures" >>"$work/figures"
                done
            done
        done
    done
done

awk '
    function median(text,    list, count, i, j, swap) {
        count = split(text, list, " ")
        for (i = 2; i <= count; i++)
            for (j = i; j > 1 && list[j - 1] + 0 > list[j] + 0; j--) {
                swap = list[j]; list[j] = list[j - 1]; list[j - 1] = swap
            }
        return list[int((count + 1) / 2)]
    }
    { row = $1 " " $2
      if (!(row in rate)) order[++n] = row
      rate[row] = rate[row] " " $3 / $4
      cpu[row] = cpu[row] " " $5 / $3
      p50[row] = p50[row] " " $6
      p99[row] = p99[row] " " $7 }
    END {
        for (i = 1; i <= n; i++) {
            split(order[i], part, " ")
            r[order[i]] = median(rate[order[i]]); c[order[i]] = median(cpu[order[i]])
            if (part[2] !~ /^(erlmcp|socket|gun)$/) {
                if (r[order[i]] > best[part[1]]) best[part[1]] = r[order[i]]
                if (!(part[1] in least) || c[order[i]] < least[part[1]])
                    least[part[1]] = c[order[i]]
            }
        }
        line = "%-6s %-9s %7s  %-10s %8s %9s %8s %8s  %s\n"
        printf line, "", "era", "callers", "client", "calls/s", "CPU us", "p50 us", "p99 us", \
            "calls/s and CPU over the best"
        for (i = 1; i <= n; i++) {
            row = order[i]
            split(row, part, " "); split(part[1], what, ",")
            ratio = ""
            if (part[2] == "erlmcp" && part[1] in best)
                ratio = sprintf("%.2f, %.2f", r[row] / best[part[1]], least[part[1]] / c[row])
            printf line, what[1], what[2], what[3], part[2], sprintf("%d", r[row]), \
                sprintf("%.1f", c[row]), median(p50[row]), median(p99[row]), ratio
        }
    }' "$work/figures"
echo "load after: $(cut -d ' ' -f 1 /proc/loadavg)"
