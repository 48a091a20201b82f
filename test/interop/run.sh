#!/bin/sh
# Runs the official clients, in each of their modes, against a server.
#
#   test/interop/run.sh URL ['STDIO COMMAND' [sse+SSE_URL]]
#
# URL is the server's Streamable HTTP endpoint, the command starts it on stdio, and SSE_URL is the
# stream of HTTP+SSE of 2024-11-05. An empty argument is left out.
# Every check is a line of a client's output. The last line is `N passed, N failed`. The exit status
# is 1 if a check failed, or a client made another number of checks than test/interop/checks.txt
# says. The server is the everything server with seven definitions on a page.
#
#   ERLMCP_PEERS    the clients to run (default: typescript python2 python1 go rust)
set -eu

[ $# -ge 1 ] && [ $# -le 3 ] ||
    { echo "usage: $0 URL ['STDIO COMMAND' [sse+SSE_URL]]" >&2; exit 2; }
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
clients=${ERLMCP_PEERS:-typescript python2 python1 go rust}
peers=$("$here/../../scripts/peers.sh" node $clients)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Node resolves the client's imports from its folder.
ln -s "$peers/typescript/node_modules" "$work/node_modules"
cp "$here/typescript/client.mjs" "$work/client.mjs"

passed=0
failed=0
# visit CLIENT TRANSPORT TARGET
visit() {
    name="$1 $2"
    case $1 in
        typescript) set -- "$3" "$peers/bin/node" "$work/client.mjs" ;;
        python?) set -- "$3" "$peers/$1/bin/python" "$here/python/client.py" ;;
        *) set -- "$3" "$peers/$1/client" ;;
    esac
    target=$1
    shift
    status=0
    timeout -k 5 300 "$@" "$target" >"$work/out" 2>"$work/err" || status=$?
    sed '$d' "$work/out"
    count=$(tail -n 1 "$work/out")
    case $count in
        *' passed, '*' failed') ;;
        # The client died early, which is a failure whatever it printed before.
        *)
            echo "$count"
            echo "not ok - $name: ended with status $status before its last line"
            count="$(grep -c '^ok - ' "$work/out") passed, $(($(grep -c '^not ok - ' \
                "$work/out") + 1)) failed" || :
            ;;
    esac
    now=${count##*passed, }
    now=${now% failed}
    made=${count%% passed*}
    wanted=$(awk -v name="$name" '$1 " " $2 == name { print $3 }' "$here/checks.txt")
    if [ "$now" -eq 0 ] && [ "$made" != "$wanted" ]; then
        echo "not ok - $name: $made checks, expected ${wanted:-some in test/interop/checks.txt}"
        now=1
    fi
    passed=$((passed + made))
    failed=$((failed + now))
    [ "$now" -eq 0 ] || awk -v name="$name" '{ print "# " name ": " $0 }' "$work/err" | tail -n 40
}

for client in $clients; do
    [ -z "$1" ] || visit "$client" http "$1"
    [ -z "${2:-}" ] || visit "$client" stdio "$2"
    case $client in
        # The Rust SDK has no HTTP+SSE, and the Go client does not use it.
        go | rust) ;;
        *) [ -z "${3:-}" ] || visit "$client" http+sse "$3" ;;
    esac
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
