#!/bin/sh
# Runs the official clients against the everything server, over HTTP, stdio and HTTP+SSE. Needs
# scripts/env.sh.
set -eu
cd "$(dirname -- "$0")/.."
exec scripts/with_server.sh sh -c \
    'exec test/interop/run.sh "$ERLMCP_URL" "$1 serve everything --stdio" "sse+$ERLMCP_SSE_URL"' \
    - "'$PWD/bin/erlmcp'"
