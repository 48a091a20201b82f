#!/bin/sh
# Runs the official clients against the everything server, over HTTP, stdio and HTTP+SSE; its lists
# have several pages. Needs scripts/env.sh.
set -eu
cd "$(dirname -- "$0")/.."
run='exec test/interop/run.sh "$ERLMCP_URL" "$1 serve everything --stdio --page-size 7" \
    "sse+$ERLMCP_SSE_URL"'
exec scripts/with_server.sh --page-size 7 sh -c "$run" - "'$PWD/bin/erlmcp'"
