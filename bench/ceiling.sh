#!/usr/bin/env bash
# Measures the most requests that the load generator can send, and their cost: `erlmcp load` against
# nginx's `return 200`, which costs less than any MCP server. wrk (HTTP/1.1) and h2load (HTTP/2)
# send the same bytes to the same target for comparison. nginx returns the id of each request, from
# a header, so that erlmcp can check every reply; wrk and h2load check the status.
#
#   bench/ceiling.sh [SECONDS [CONNECTIONS]]     default: 3 seconds a measurement, 64 connections
#
# Both sides have all the cores. Processor time is the system's figure of a whole process, in user
# and kernel mode: of nginx, of wrk and h2load over their runs, and of erlmcp while it measures.
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-3}
connections=${2:-64}
tools=$(bench/tools.sh)
. bench/ports.sh
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT


text=$(printf 'x%.0s' $(seq 64))
http1=$(free_port)
http2=$(free_port)
answer='{"jsonrpc":"2.0","id":$http_x_request_id,"result":{"resultType":"complete",'
answer+='"content":[{"type":"text","text":"'$text'"}]}}'
cat >"$work/nginx.conf" <<CONF
daemon off; master_process off; pid $work/nginx.pid; error_log stderr crit;
events { worker_connections 65536; }
http { access_log off; keepalive_requests 1000000000; default_type application/json;
  client_body_temp_path $work; proxy_temp_path $work; fastcgi_temp_path $work;
  uwsgi_temp_path $work; scgi_temp_path $work;
  server { listen 127.0.0.1:$http1; location / { return 200 '$answer'; } }
  server { listen 127.0.0.1:$http2; http2 on; location / { return 200 '$answer'; } } }
CONF
"$tools/usr/sbin/nginx" -c "$work/nginx.conf" -p "$work" 2>/dev/null &
nginx=$!
await_port "$http1"
await_port "$http2"

body='{"jsonrpc":"2.0","id":1000000000,"method":"tools/call","params":{"name":"echo",'
body+='"arguments":{"text":"'$text'"},"_meta":{'
body+='"io.modelcontextprotocol/clientCapabilities":{},'
body+='"io.modelcontextprotocol/clientInfo":{"name":"erlmcp-load","version":"0.1.0"},'
body+='"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}'
printf %s "$body" >"$work/body"
headers=('Content-Type: application/json' 'Accept: application/json, text/event-stream'
    'MCP-Protocol-Version: 2026-07-28' 'Mcp-Method: tools/call' 'Mcp-Name: echo'
    'X-Request-Id: 1000000000')
{
    echo 'wrk.method = "POST"'
    echo "wrk.body = '$body'"
    for header in "${headers[@]}"; do
        echo "wrk.headers['${header%%: *}'] = '${header#*: }'"
    done
} >"$work/wrk.lua"

# spent PID: processor time in hundredths of a second.
spent() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$1/stat"; }
# row NAME ANSWERS_A_SECOND ITS_US NGINX_US P99
row() { printf '%-22s %10s %16s %12s %10s\n' "$@"; }

# other NAME COMMAND...: another generator, whose output has its rate and p99.
other() {
    local name=$1 before after
    shift
    before=$(spent "$nginx")
    TIMEFORMAT='%U %S'
    { time "$@" >"$work/output" 2>&1; } 2>"$work/time"
    after=$(spent "$nginx")
    read -r answers rate p99 < <(awk '
        /Non-2xx|Socket errors/ { bad = 1 }
        /requests in/ { n = $1 } /Requests\/sec/ { r = $2 } $1 == "99%" { p = $2 }
        /^requests:/ { n = $8; if ($10 + $12 + $14 > 0) bad = 1 }
        /^finished in/ { r = $4 }
        END { if (bad || !n) exit 1; print n, int(r), (p == "" ? "-" : p) }' "$work/output") || {
        cat "$work/output" >&2
        exit 1
    }
    row "$name" "$rate" \
        "$(awk -v n="$answers" '{ printf "%.1f", ($1 + $2) * 1e6 / n }' "$work/time")" \
        "$(awk -v n="$answers" -v t=$((after - before)) 'BEGIN { printf "%.1f", t * 1e4 / n }')" \
        "$p99"
}

ours() {
    local name=$1
    shift
    bin/erlmcp load --duration "$seconds" --warmup 1 --connections "$connections" \
        --server-pid "$nginx" --header 'X-Request-Id: {id}' --json "$work/results" \
        --workload "$name" "$@" >"$work/output" || { cat "$work/output" >&2; exit 1; }
    python3 - "$(tail -n 1 "$work/output")" <<'PY' >"$work/row"
import json, sys
r = json.load(open(sys.argv[1]))
print(int(r["throughput_msg_per_s"]), "%.1f" % r["generator_cpu_us_per_msg"],
      "%.1f" % r["cpu_us_per_msg"], "%.2fms" % (r["latency_p99_us"] / 1000))
PY
    read -r rate own theirs p99 <"$work/row"
    row "${name//_/ }" "$rate" "$own" "$theirs" "$p99"
}

scripts/build.sh >/dev/null 2>&1 || { echo 'it does not compile' >&2; exit 1; }
echo "$connections connections, $seconds s each, $(nproc) cores; nginx is one process"
row generator answers/s 'own us' 'us of nginx' p99
ours erlmcp_http1 --url "http://127.0.0.1:$http1/"
other 'wrk' "$tools/usr/bin/wrk" -t 1 -c "$connections" -d "${seconds}s" --latency \
    -s "$work/wrk.lua" "http://127.0.0.1:$http1/"
ours erlmcp_http2 --url "http://127.0.0.1:$http2/" --protocol http2 --window 8
other 'h2load, 8 streams' "$tools/usr/bin/h2load" -t 1 -c "$connections" -m 8 -D "$seconds" \
    -d "$work/body" "${headers[@]/#/-H}" "http://127.0.0.1:$http2/"
