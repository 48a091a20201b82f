#!/bin/sh
# Runs a command while the everything server is up on a free port of this machine, and then stops
# the server. The command finds the server's URL in ERLMCP_URL, and that of HTTP+SSE in
# ERLMCP_SSE_URL.
#
#   scripts/with_server.sh [--page-size N] COMMAND [ARGUMENT...]
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
work=$(mktemp -d)
: >"$work/output"
options=''
if [ "$1" = --page-size ]; then
    options="--page-size $2"
    shift 2
fi
"$root/bin/erlmcp" serve everything --port 0 --sse $options \
    >"$work/output" 2>"$work/log" </dev/null &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

refuse() {
    echo "with_server: $1" >&2
    cat "$work/log" >&2
    exit 1
}

url=''
tries=0
while [ -z "$url" ]; do
    url=$(sed -n 's|^ *\(https\{0,1\}://[^ ]*\)$|\1|p' "$work/output" | head -n 1)
    kill -0 "$server" 2>/dev/null || refuse 'the server did not start'
    tries=$((tries + 1))
    [ "$tries" -lt 1200 ] || refuse 'no server after 120 s'
    sleep 0.1
done
ERLMCP_URL=$url
ERLMCP_SSE_URL=$(sed -n 's|^ *\(https\{0,1\}://[^ ]*\) (HTTP+SSE.*$|\1|p' "$work/output")
export ERLMCP_URL ERLMCP_SSE_URL
status=0
"$@" || status=$?
[ "$status" -eq 0 ] || tail -n 100 "$work/log" | sed 's/^/# server: /' >&2
exit "$status"
