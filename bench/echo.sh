#!/usr/bin/env bash
# Requests per second of `tools/call echo` over HTTP/1.1, next to nginx's `return 200` of the same
# size, in one run on one machine: wrk, 64 connections, the load generator on the same cores.
#
#   bench/echo.sh [SECONDS [ROUNDS]]     default: 5 seconds a measurement, 3 rounds, interleaved
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-5}
rounds=${2:-3}
tools=$(bench/tools.sh)
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0));
print(s.getsockname()[1])'; }
await() { for _ in $(seq 100); do
        (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return; sleep 0.1
    done
    echo "nothing listens on port $1" >&2; exit 1; }
measure() {
    "$tools/usr/bin/wrk" -t 2 -c 64 -d "${seconds}s" --latency -s bench/echo.lua "$1" >"$work/wrk"
    if grep -q 'Non-2xx\|Socket errors' "$work/wrk"; then cat "$work/wrk" >&2; exit 1; fi
    awk '/Requests\/sec/ {r = $2} $1 == "99%" {p = $2} END {print r, p}' "$work/wrk"; }

port=$(free_port)
bin/erlmcp serve everything --port "$port" >"$work/erlmcp.log" 2>&1 &
await "$port"
url=http://127.0.0.1:$port/mcp
body=$(curl -fsS "$url" -H 'Content-Type: application/json' -H 'MCP-Protocol-Version: 2026-07-28' \
    -H 'Mcp-Method: tools/call' -H 'Mcp-Name: echo' \
    --data "$(sed -n "/^wrk.body/,\$p" bench/echo.lua | grep -o "'[^']*'" | tr -d "'\n")")

nginx_port=$(free_port)
cat >"$work/nginx.conf" <<CONF
daemon off; worker_processes 2; pid $work/nginx.pid; error_log stderr crit;
events { worker_connections 1024; }
http { access_log off; keepalive_requests 1000000000; default_type application/json;
  client_body_temp_path $work; proxy_temp_path $work; fastcgi_temp_path $work;
  uwsgi_temp_path $work; scgi_temp_path $work;
  server { listen 127.0.0.1:$nginx_port; location / { return 200 '$body'; } } }
CONF
"$tools/usr/sbin/nginx" -c "$work/nginx.conf" -p "$work" &
await "$nginx_port"

echo "answer: ${#body} bytes; $seconds s a measurement; $(nproc) cores"
measure "$url" >/dev/null # warm-up
ours=() theirs=()
for round in $(seq "$rounds"); do
    read -r erlmcp erlmcp_p99 < <(measure "$url")
    read -r nginx nginx_p99 < <(measure "http://127.0.0.1:$nginx_port/")
    echo "round $round: erlmcp $erlmcp/s (p99 $erlmcp_p99), nginx $nginx/s (p99 $nginx_p99)"
    ours+=("$erlmcp") theirs+=("$nginx")
done
median() { printf '%s\n' "$@" | sort -g | sed -n "$((($# + 1) / 2))p"; }
awk -v a="$(median "${ours[@]}")" -v b="$(median "${theirs[@]}")" \
    'BEGIN { printf "median: erlmcp %d/s, nginx %d/s, ratio %.2f\n", a, b, a / b }'
