#!/usr/bin/env bash
# Runs a command while a proxy stands in front of a server, and stops the proxy after it. The
# command finds the proxy's URL in ERLMCP_URL. Clients speak HTTP/1.1 to it; it speaks HTTP/1.1 or
# HTTP/2 (in clear, from the first byte) to the server.
#
#   scripts/with_proxy.sh (haproxy | nginx) (1.1 | 2) URL COMMAND [ARGUMENT...]
#
# Both are as a careful operator would have them. See scripts/proxies.sh for where they come from.
#
#   ERLMCP_PROXY_PATIENCE    seconds of silence after which they give up (18; the server writes into
#                            a quiet stream every 15)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
proxy=$1
version=$2
[[ $3 =~ ^http://([^/]+)(/.*)?$ ]] || { echo "with_proxy: $3 is no http URL" >&2; exit 2; }
upstream=${BASH_REMATCH[1]}
path=${BASH_REMATCH[2]:-}
shift 3
patience=${ERLMCP_PROXY_PATIENCE:-18}
programs=$("$root/scripts/proxies.sh")
work=$(mktemp -d)
pid=''

stop() {
    if [ -n "$pid" ]; then
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM

haproxy() {
    cat >"$work/haproxy.cfg" <<CONFIGURATION
global
    maxconn 1000
    # Or two of them could have one port, each for a part of the connections.
    noreuseport
defaults
    mode http
    timeout connect 5s
    timeout client ${patience}s
    timeout server ${patience}s
    # Without it an event waits for the next one, for up to 200 ms.
    option http-no-delay
    option abortonclose
frontend clients
    bind 127.0.0.1:$1
    default_backend servers
backend servers
    server mcp $upstream $([ "$version" = 2 ] && echo 'proto h2')
CONFIGURATION
    "$programs/haproxy" -q -db -f "$work/haproxy.cfg" >"$work/log" 2>&1 &
    pid=$!
}

nginx() {
    cat >"$work/nginx.conf" <<CONFIGURATION
daemon off;
master_process off;
pid $work/nginx.pid;
error_log stderr warn;
events {
    worker_connections 1000;
}
http {
    access_log off;
    client_body_temp_path $work/body;
    proxy_temp_path $work/proxy;
    fastcgi_temp_path $work/fastcgi;
    uwsgi_temp_path $work/uwsgi;
    scgi_temp_path $work/scgi;
    server {
        listen 127.0.0.1:$1;
        client_max_body_size 8m;
        location / {
            proxy_pass http://$upstream;
            proxy_http_version $version;
            proxy_set_header Host \$http_host;
            proxy_set_header Connection "";
            proxy_read_timeout ${patience}s;
        }
    }
}
CONFIGURATION
    "$programs/nginx" -p "$work" -c "$work/nginx.conf" >"$work/log" 2>&1 &
    pid=$!
}

# The port may be another's by the time that the proxy binds it: then it ends, and takes another.
ready=''
for ((tries = 0; tries < 20 && ! ${#ready}; tries++)); do
    port=$((RANDOM % 10000 + 20000))
    # Whoever answers there already would be taken for the proxy.
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then continue; fi
    "$proxy" "$port"
    for ((waited = 0; waited < 100; waited++)); do
        kill -0 "$pid" 2>/dev/null || break
        if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            ready=$port
            break
        fi
        sleep 0.05
    done
done
if [ -z "$ready" ] || ! kill -0 "$pid" 2>/dev/null; then
    echo "with_proxy: $proxy did not start" >&2
    cat "$work/log" >&2
    exit 1
fi
status=0
ERLMCP_URL=http://127.0.0.1:$port$path "$@" || status=$?
[ "$status" -eq 0 ] || tail -n 20 "$work/log" | sed "s/^/# $proxy: /" >&2
exit "$status"
