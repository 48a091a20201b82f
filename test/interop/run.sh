#!/bin/sh
# Runs the official clients, in every mode they have, against a server.
#
#   test/interop/run.sh URL ['STDIO COMMAND' [sse+SSE_URL]]
#
# URL is its Streamable HTTP endpoint, the command starts it on stdio, SSE_URL is where HTTP+SSE of
# 2024-11-05 has its stream; an empty one is left out.
# Every check is a line of the clients'; the last line is `N passed, N failed`, and the exit status
# is 1 when one failed.
set -eu

[ $# -ge 1 ] && [ $# -le 3 ] ||
    { echo "usage: $0 URL ['STDIO COMMAND' [sse+SSE_URL]]" >&2; exit 2; }
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
peers=$("$here/../../scripts/peers.sh" node typescript python2 python1)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The client's imports are looked up from where it lies.
ln -s "$peers/typescript/node_modules" "$work/node_modules"
cp "$here/typescript/client.mjs" "$work/client.mjs"

passed=0
failed=0
# visit NAME PROGRAM ... TARGET
visit() {
    name=$1
    shift
    status=0
    timeout -k 5 300 "$@" >"$work/out" 2>"$work/err" || status=$?
    sed '$d' "$work/out"
    count=$(tail -n 1 "$work/out")
    case $count in
        *' passed, '*' failed') ;;
        # It died on the way: whatever it said before, this is a failure.
        *)
            echo "$count"
            echo "not ok - $name: ended with status $status before its last line"
            count="$(grep -c '^ok - ' "$work/out") passed, $(($(grep -c '^not ok - ' \
                "$work/out") + 1)) failed" || :
            ;;
    esac
    now=${count##*passed, }
    now=${now% failed}
    passed=$((passed + ${count%% passed*}))
    failed=$((failed + now))
    [ "$now" -eq 0 ] || awk -v name="$name" '{ print "# " name ": " $0 }' "$work/err" | tail -n 40
}

for target in "$@"; do
    [ -n "$target" ] || continue
    visit typescript "$peers/bin/node" "$work/client.mjs" "$target"
    visit 'python 2' "$peers/python2/bin/python" "$here/python/client.py" "$target"
    visit 'python 1' "$peers/python1/bin/python" "$here/python/client.py" "$target"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
