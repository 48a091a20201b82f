#!/usr/bin/env bash
# Runs a command while a proxy stands in front of a server, and then stops the proxy. The command
# finds the proxy's URL in ERLMCP_URL. Clients speak HTTP/1.1 to the proxy. The proxy speaks
# HTTP/1.1 or HTTP/2 (in clear, from the first byte) to the server. In front of a server at
# tcp://HOST:PORT it forwards bytes.
#
#   scripts/with_proxy.sh (haproxy | nginx) (1.1 | 2) URL COMMAND [ARGUMENT...]
#
# Both proxies are configured as a careful operator does it. scripts/proxies.sh installs them.
#
#   ERLMCP_PROXY_PATIENCE    the proxy's timeout in seconds (18; the server writes into a quiet
#                            stream every 15)
#   ERLMCP_PROXY_CLIENT      how the proxy names the client of a request to the server:
#                            x-forwarded-for, forwarded, or the PROXY protocol as proxy-v1 or
#                            proxy-v2 (default: not at all). For the PROXY protocol nginx forwards
#                            bytes, and has only version 1.
#   ERLMCP_PROXY_CHECK       a path that HAProxy looks at every 100 ms, to see whether the server is
#                            ready (default: it does not look)
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
proxy=$1
version=$2
[[ $3 =~ ^(http|tcp)://([^/]+)(/.*)?$ ]] || { echo "with_proxy: $3 is no http URL" >&2; exit 2; }
scheme=${BASH_REMATCH[1]}
upstream=${BASH_REMATCH[2]}
path=${BASH_REMATCH[3]:-}
shift 3
client=${ERLMCP_PROXY_CLIENT:-}
check=${ERLMCP_PROXY_CHECK:-}
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
    server=$upstream
    [ "$version" != 2 ] || [ "$scheme" = tcp ] || server+=' proto h2'
    client_option=''
    check_option=''
    if [ -n "$check" ]; then
        server+=' check inter 100 fall 1 rise 1'
        check_option="option httpchk GET $check"
    fi
    case $client in
        x-forwarded-for) client_option='option forwardfor' ;;
        forwarded) client_option='option forwarded' ;;
        proxy-v1) server+=' send-proxy' ;;
        proxy-v2) server+=' send-proxy-v2' ;;
    esac
    cat >"$work/haproxy.cfg" <<CONFIGURATION
global
    maxconn 1000
    # Without it two proxies could share a port, each with a part of the connections.
    noreuseport
defaults
    mode $scheme
    timeout connect 5s
    timeout client ${patience}s
    timeout server ${patience}s
$([ "$scheme" = tcp ] || cat <<'HTTP'
    # Without it an event waits for the next one, for up to 200 ms.
    option http-no-delay
    option abortonclose
HTTP
)
    $client_option
frontend clients
    bind 127.0.0.1:$1
    default_backend servers
backend servers
    $check_option
    server mcp $server
CONFIGURATION
    "$programs/haproxy" -q -db -f "$work/haproxy.cfg" >"$work/log" 2>&1 &
    pid=$!
}

nginx() {
    # An empty header is not sent. So a client's own header is dropped, unless nginx writes it.
    addresses='""'
    forwarded='""'
    case $client in
        x-forwarded-for) addresses=\$proxy_add_x_forwarded_for ;;
        forwarded) forwarded=\$forwarded_client ;;
        '') addresses=\$http_x_forwarded_for forwarded=\$http_forwarded ;;
    esac
    cat >"$work/nginx.conf" <<CONFIGURATION
load_module $programs/usr/lib/nginx/modules/ngx_stream_module.so;
daemon off;
master_process off;
pid $work/nginx.pid;
error_log stderr warn;
events {
    worker_connections 1000;
}
CONFIGURATION
    if [ "$scheme" = tcp ] || [[ $client = proxy-* ]]; then
        nginx_stream "$1"
    else
        nginx_http "$1"
    fi
    "$programs/nginx" -p "$work" -c "$work/nginx.conf" >"$work/log" 2>&1 &
    pid=$!
}

nginx_stream() {
    cat >>"$work/nginx.conf" <<CONFIGURATION
stream {
    server {
        listen 127.0.0.1:$1;
        proxy_pass $upstream;
        proxy_timeout ${patience}s;
        proxy_protocol $([ "$client" = proxy-v1 ] && echo on || echo off);
    }
}
CONFIGURATION
}

nginx_http() {
    cat >>"$work/nginx.conf" <<CONFIGURATION
http {
    map \$remote_addr \$forwarded_client {
        ~^[0-9.]+\$ "for=\$remote_addr";
        default "for=\"[\$remote_addr]\"";
    }
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
            proxy_set_header X-Forwarded-For $addresses;
            proxy_set_header Forwarded $forwarded;
            proxy_read_timeout ${patience}s;
        }
    }
}
CONFIGURATION
}

# Another process may take the port before the proxy binds it. Then the proxy ends, and gets another
# port.
ready=''
for ((tries = 0; tries < 20 && ! ${#ready}; tries++)); do
    port=$((RANDOM % 10000 + 20000))
    # A process that already listens there would be mistaken for the proxy.
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then continue; fi
    "$proxy" "$port"
    for ((waited = 0; waited < 100; waited++)); do
        sleep 0.05
        # A proxy that has ended may have found another process there, which then answers.
        if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            kill -0 "$pid" 2>/dev/null && ready=$port
            break
        fi
        kill -0 "$pid" 2>/dev/null || break
    done
done
if [ -z "$ready" ] || ! kill -0 "$pid" 2>/dev/null; then
    echo "with_proxy: $proxy did not start" >&2
    cat "$work/log" >&2
    exit 1
fi
status=0
ERLMCP_URL=$scheme://127.0.0.1:$port$path "$@" || status=$?
[ "$status" -eq 0 ] || tail -n 20 "$work/log" | sed "s/^/# $proxy: /" >&2
exit "$status"
