#!/bin/sh
# Runs a command while the everything server is up on a free port of this machine, and stops the
# server after it. The command finds the server's URL in ERLMCP_URL.
#
#   scripts/with_server.sh COMMAND [ARGUMENT...]
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
said=$(mktemp)
"$root/bin/erlmcp" serve everything --port 0 >"$said" </dev/null &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -f "$said"' EXIT
trap 'exit 130' INT TERM

url=''
tries=0
while [ -z "$url" ]; do
    url=$(sed -n 's|^ *\(https\{0,1\}://[^ ]*\)$|\1|p' "$said" | head -n 1)
    kill -0 "$server" 2>/dev/null || { echo 'with_server: the server did not start' >&2; exit 1; }
    tries=$((tries + 1))
    [ "$tries" -lt 1200 ] || { echo 'with_server: no server after 120 s' >&2; exit 1; }
    sleep 0.1
done
ERLMCP_URL=$url
export ERLMCP_URL
"$@"
