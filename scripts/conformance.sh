#!/bin/sh
# Runs the official conformance suite against a server, over HTTP/1.1 and HTTP/2. Without a URL it
# runs the suite against test/conformance/client, which needs scripts/env.sh and a built project.
#
#   scripts/conformance.sh [--direct] URL [SET ...]          default: all sets of a server
#   scripts/conformance.sh [SET ...]                         default: all sets of a client
#
#   all                  every scenario of the suite, each in its revision
#   2025-11-25           everything that the suite requires of a server of 2025-11-25
#   2026-07-28           the same for 2026-07-28
#   skills-2025-11-25    the scenarios of Skills in a session
#   client-all           every scenario of the suite for clients, and so on
#   client-2025-11-25
#   client-2026-07-28
#
# A check that failed or warned prints a line `not ok - ...`. A scenario does too if it was skipped,
# or made another number of checks than test/conformance/SET.txt says. The last line is `N passed, N
# failed`. It counts each check once, whatever sets and wires it passed in. The exit code is 1 if a
# check failed.
#
# The suite itself speaks HTTP/1.1. For HTTP/2 a proxy stands between it and the server (see
# scripts/with_proxy.sh); --direct leaves HTTP/2 out. The suite's own servers listen only on
# 127.0.0.1.
#
#   ERLMCP_CONFORMANCE_OUT    a folder for the suite's own reports
set -eu

direct=''
if [ "${1:-}" = --direct ]; then
    direct=yes
    shift
fi
CDPATH='' cd -- "$(dirname -- "$0")/.."
root=$PWD
peers=$("$root/scripts/peers.sh" conformance)
suite=$peers/conformance/node_modules/@modelcontextprotocol/conformance/dist/index.js
case ${1:-} in
    *://*) url=$1 ;;
    *)
        beams=${REBAR_BASE_DIR:-$root/_build}/conformance
        mkdir -p "$beams"
        erlc -Werror -o "$beams" "$root"/test/conformance/*.erl
        exec "$peers/bin/node" "$root/test/conformance/run.mjs" "$suite" client \
            'exec test/conformance/client' "$@"
        ;;
esac
shift
set -- "$suite" "$url" "$@"
run='node=$1 run=$2 suite=$3 url=$4
     shift 4
     exec "$node" "$run" "$suite" server "HTTP/1.1=$url${ERLMCP_URL:+,HTTP/2=$ERLMCP_URL}" "$@"'
set -- sh -c "$run" - "$peers/bin/node" "$root/test/conformance/run.mjs" "$@"
unset ERLMCP_URL
[ -z "$direct" ] || exec "$@"
exec "$root/scripts/with_proxy.sh" haproxy 2 "$url" "$@"
