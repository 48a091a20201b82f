#!/bin/sh
# Tests interoperability in both directions. The official clients use the everything server, over
# HTTP, stdio and HTTP+SSE. erlmcp's client uses that server and the servers of the official SDKs.
# The everything server's lists have several pages. Then come a login at a real authorization
# server, a trace over several servers, the hosts that need no account, and h2spec. Needs
# scripts/env.sh.
#
#   scripts/interop.sh [clients | servers | login | traces | hosts | h2spec]    only one of these
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/.."
part=${1:-all}
# The folder's name needs quotes: a script that does not quote it fails.
odd=$(mktemp -d)/"it's here"
trap 'rm -rf "${odd%/*}"' EXIT
trap 'exit 130' INT TERM
mkdir "$odd"
ln -s "$PWD/bin/erlmcp" "$odd/erlmcp"
program=$(scripts/quoted.sh "$odd/erlmcp" serve everything --stdio)
status=0

# paged COMMAND, whole COMMAND: runs while the everything server is up, with lists in pages or not.
paged() { scripts/with_server.sh --page-size 7 sh -c "$1" - "$program --page-size 7"; }
whole() { scripts/with_server.sh sh -c "$1" - "$program"; }

case $part in all | clients)
    paged 'exec test/interop/run.sh "$ERLMCP_URL" "$1" "sse+$ERLMCP_SSE_URL"' || status=1 ;;
esac
case $part in all | servers)
    paged 'exec test/interop/servers.sh "http=$ERLMCP_URL" "sse=$ERLMCP_SSE_URL" "stdio=$1"' ||
        status=1 ;;
esac
case $part in all | login) test/interop/login.sh || status=1 ;; esac
case $part in all | traces) test/interop/tracing.sh || status=1 ;; esac
case $part in all | hosts)
    whole 'exec test/interop/hosts/run.sh "$ERLMCP_URL" "$ERLMCP_SSE_URL" "$1"' || status=1 ;;
esac
case $part in all | h2spec) whole 'exec scripts/h2spec.sh "$ERLMCP_URL"' || status=1 ;; esac
exit "$status"
