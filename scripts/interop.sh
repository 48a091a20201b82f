#!/bin/sh
# Both directions: the official clients against the everything server, over HTTP, stdio and
# HTTP+SSE, and erlmcp's client against it and the servers of the official SDKs. Its lists have
# several pages. Then a login at a real authorization server, and h2spec. Needs scripts/env.sh.
#
#   scripts/interop.sh [clients | servers | login | h2spec]    one of them only
set -eu
cd "$(dirname -- "$0")/.."
run='
status=0
command="$1 serve everything --stdio --page-size 7"
case $2 in clients | both)
    test/interop/run.sh "$ERLMCP_URL" "$command" "sse+$ERLMCP_SSE_URL" || status=1 ;;
esac
case $2 in servers | both)
    test/interop/servers.sh "http=$ERLMCP_URL" "sse=$ERLMCP_SSE_URL" "stdio=$command" || status=1 ;;
esac
case $2 in both) test/interop/login.sh || status=1 ;; esac
case $2 in h2spec | both) scripts/h2spec.sh "$ERLMCP_URL" || status=1 ;; esac
exit "$status"'
[ "${1:-both}" != login ] || exec test/interop/login.sh
exec scripts/with_server.sh --page-size 7 sh -c "$run" - "'$PWD/bin/erlmcp'" "${1:-both}"
