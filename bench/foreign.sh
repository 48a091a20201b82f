#!/usr/bin/env bash
# This project's load generator against three servers in one run on one machine, interleaved: ours,
# the official TypeScript SDK's (npm @modelcontextprotocol/server, the version locked under
# test/interop, on Node's own HTTP server), and nginx, which says `return 200` with the bytes that
# ours would answer. That is no MCP server: it is the ceiling of the generator, and of the machine.
#
#   bench/foreign.sh [SECONDS [ROUNDS]]     default: 3 seconds a measurement, 3 rounds
#
# The request is `tools/call echo` of 2026-07-28, with 64 in flight: on 64 connections of HTTP/1.1,
# or on 8 of HTTP/2 in the clear, which Node's has not. `erlmcp load` reads and checks every reply,
# and nginx's too; wrk, beside it on the same nginx, looks at their status. CPU time is what a
# request costs the server's process and the generator's; on a machine that has other work it alone
# says much. The medians of the rounds are shown.
#
#   ERLMCP_PAYLOAD   bytes that are echoed (default: 64; wrk sends 5)
#   ERLMCP_BENCH     what to measure (default: erlmcp-http1 erlmcp-http2 typescript-http1
#                    nginx-http1 nginx-http2 nginx-wrk)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-3}
rounds=${2:-3}
payload=${ERLMCP_PAYLOAD:-64}
what='erlmcp-http1 erlmcp-http2 typescript-http1 nginx-http1 nginx-http2 nginx-wrk'
what=${ERLMCP_BENCH:-$what}

. scripts/env.sh
scripts/build.sh >&2
tools=$(bench/tools.sh)
peers=$(scripts/peers.sh typescript)
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0));
print(s.getsockname()[1])'; }
await() { for _ in $(seq 100); do
        (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return; sleep 0.1
    done
    echo "nothing listens on port $1" >&2; exit 1; }

declare -A url pid
port=$(free_port)
bin/erlmcp serve erlmcp_bench_fixture --port "$port" >"$work/erlmcp.log" 2>&1 &
pid[erlmcp]=$!
url[erlmcp]=http://127.0.0.1:$port/mcp
await "$port"

# The server's imports are looked up from where it lies.
ln -s "$peers/typescript/node_modules" "$work/node_modules"
cp bench/foreign/server.mjs "$work/"
: >"$work/said"
"$peers/bin/node" "$work/server.mjs" >"$work/said" 2>"$work/node.log" &
pid[typescript]=$!
for _ in $(seq 100); do
    url[typescript]=$(head -n 1 "$work/said")
    [ -z "${url[typescript]}" ] || break
    sleep 0.1
done
[ -n "${url[typescript]}" ] || { cat "$work/node.log" >&2; exit 1; }

# The answer is ours, with the id that a header of the request says. One process, so that its CPU
# time is one number.
text=$(printf '%*s' "$payload" '' | tr ' ' x)
body=$(curl -fsS "${url[erlmcp]}" -H 'Content-Type: application/json' \
    -H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: 2026-07-28' \
    -H 'Mcp-Method: tools/call' -H 'Mcp-Name: echo' --data @- <<JSON
{"jsonrpc":"2.0","id":1000000000,"method":"tools/call","params":{"name":"echo",
 "arguments":{"text":"$text"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",
 "io.modelcontextprotocol/clientInfo":{"name":"foreign","version":"1.0.0"},
 "io.modelcontextprotocol/clientCapabilities":{}}}}
JSON
)
port=$(free_port)
cat >"$work/nginx.conf" <<CONF
daemon off; master_process off; pid $work/nginx.pid; error_log stderr crit;
events { worker_connections 1024; }
http { access_log off; keepalive_requests 1000000000; default_type application/json;
  client_body_temp_path $work; proxy_temp_path $work; fastcgi_temp_path $work;
  uwsgi_temp_path $work; scgi_temp_path $work; http2 on;
  server { listen 127.0.0.1:$port;
    location / { return 200 '${body//1000000000/\$http_x_id}'; } } }
CONF
"$tools/usr/sbin/nginx" -c "$work/nginx.conf" -p "$work" &
pid[nginx]=$!
url[nginx]=http://127.0.0.1:$port/
await "$port"

# Each prints: requests/s, CPU microseconds of the server and of the generator for one, and the
# median and 99th percentile of the latencies in microseconds.
# load SERVER PROTOCOL CONNECTIONS WINDOW
load() {
    rm -rf "$work/result"
    # What nginx answers has the request's id in it by the header.
    timeout 120 bin/erlmcp load --url "${url[$1]}" --protocol "$2" --connections "$3" \
        --window "$4" --payload "$payload" --duration "$seconds" --server-pid "${pid[$1]}" \
        --header 'X-Id: {id}' --json "$work/result" >"$work/table" 2>&1 ||
        { cat "$work/table" >&2; return 1; }
    python3 - "$work"/result/*.json <<'PYTHON'
import json, sys
with open(sys.argv[1]) as file:
    result = json.load(file)
if result['sent_count'] != result['sample_count']:
    sys.exit('%d requests, and %d answers' % (result['sent_count'], result['sample_count']))
print(*[result[name] for name in (
    'throughput_msg_per_s', 'cpu_us_per_msg', 'generator_cpu_us_per_msg', 'latency_p50_us',
    'latency_p99_us')])
PYTHON
}

# Clock ticks, of which there are 100 a second, of a process.
ticks() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$1/stat"; }

# wrk SERVER
wrk() {
    local before TIMEFORMAT='%U %S'
    before=$(ticks "${pid[$1]}")
    { time "$tools/usr/bin/wrk" -t 2 -c 64 -d "${seconds}s" --latency -s bench/echo.lua \
        -H 'X-Id: 1000000000' "${url[$1]}" >"$work/wrk" 2>&1; } 2>"$work/time"
    if grep -q 'Non-2xx\|Socket errors' "$work/wrk"; then cat "$work/wrk" >&2; return 1; fi
    awk -v ticks="$(($(ticks "${pid[$1]}") - before))" '
        function us(text) {
            return text * (text ~ /us$/ ? 1 : text ~ /ms$/ ? 1000 : 1000000)
        }
        FNR == NR { cpu = ($1 + $2) * 1000000; next }
        $1 == "50%" { p50 = us($2) } $1 == "99%" { p99 = us($2) }
        $2 == "requests" && $3 == "in" { n = $1 } /Requests\/sec/ { rate = $2 }
        END { print rate, ticks * 10000 / n, cpu / n, p50, p99 }' "$work/time" "$work/wrk"
}

measure() {
    case $2 in
        http1) load "$1" http1 64 1 ;;
        http2) load "$1" http2 8 8 ;;
        wrk) wrk "$1" ;;
    esac
}

echo "answer: ${#body} bytes; $seconds s a measurement, $rounds rounds; $(nproc) cores;" \
    "load before: $(cut -d ' ' -f 1 /proc/loadavg)"
for _ in $(seq "$rounds"); do
    for one in $what; do
        said=$(measure "${one%-*}" "${one#*-}")
        echo "$one $said" >>"$work/measured"
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
    { if (!($1 in rate)) order[++n] = $1
      rate[$1] = rate[$1] " " $2; server[$1] = server[$1] " " $3
      generator[$1] = generator[$1] " " $4; p50[$1] = p50[$1] " " $5; p99[$1] = p99[$1] " " $6 }
    END {
        line = "%-18s %11s %14s %17s %8s %8s\n"
        printf line, "", "requests/s", "server CPU us", "generator CPU us", "p50 us", "p99 us"
        for (i = 1; i <= n; i++) {
            one = order[i]
            printf line, one, sprintf("%d", median(rate[one])),
                sprintf("%.1f", median(server[one])), sprintf("%.1f", median(generator[one])),
                median(p50[one]), median(p99[one])
        }
    }' "$work/measured"
echo "load after: $(cut -d ' ' -f 1 /proc/loadavg)"
