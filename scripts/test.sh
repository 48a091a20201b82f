#!/bin/sh
# Runs every test suite, then the official clients and the conformance suite against bin/erlmcp, and
# our client against the official servers and that suite. A case that was skipped counts as failed.
# Needs scripts/env.sh. The last line says `N passed, N failed`; what failed stands before it, once
# more.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/.."
# Absolute, since bin/erlmcp runs in its caller's folder.
build=${REBAR_BASE_DIR:-_build}
case $build in /*) ;; *) build=$PWD/$build ;; esac
logs=$build/test/logs
said=$(mktemp -d)
recap=$said/recap
: >"$recap"
trap 'rm -rf "$said"' EXIT
passed=0
failed=0

# The suites run in three nodes beside each other, since they wait more than they work: those of
# these folders in two of them, all others in the third. Each takes about as long as the others.
clients='client spec/features spec/tasks server/transport/sse'
inside='observe outbound protocol schema text wire server/call server/catalog server/dependencies
    server/gate server/overload server/session server/task'

# suites_in FOLDER...: those that stand in them, and below.
suites_in() {
    find "$@" -name '*_SUITE.erl' | LC_ALL=C sort | sed 's/\.erl$//'
}

# node NAME SUITE...: runs them; how it ends is kept.
node() {
    name=$1
    shift
    status=0
    scripts/suites.sh --coverage "$logs/$name" "$@" || status=$?
    echo "$status" >"$said/suites.$name"
}

# What ran is read from the records that the test server writes, not from what is printed.
suites() {
    rm -rf "$logs"
    clients=$(suites_in $(printf 'apps/erlmcp/test/%s ' $clients))
    inside=$(suites_in $(printf 'apps/erlmcp/test/%s ' $inside) apps/erlmcp_bench/test)
    others=$(suites_in apps/*/test examples/*/test | grep -v -x -F "$clients
$inside")
    node clients $clients >"$said/clients" 2>&1 &
    node inside $inside >"$said/inside" 2>&1 &
    node others $others
    wait
    cat "$said/clients" "$said/inside"
    status=$(cat "$said"/suites.* | LC_ALL=C sort -n | tail -n 1)
    # The failure of an end_per_suite or end_per_group, or of what a suite says of its groups, is in
    # no sum.
    counts=$(find "$logs" -name suite.log -exec cat {} + | awk '
        $1 == "=case" { name = $2 }
        $1 == "=result" && $2 ~ /^failed/ && name ~ /:(end_per_(suite|group)|error_in_suite)$/ {
            failed++
        }
        $1 == "=successful" { passed += $2 }
        $1 == "=failed" || $1 == "=user_skipped" || $1 == "=auto_skipped" { failed += $2 }
        END { print passed + 0, failed + 0 }')
    # Of a reason the first lines: a whole one has the terms of every call in it.
    find "$logs" -name suite.log -exec cat {} + | awk '
        /^=/ { left = 0 }
        $1 == "=case" { name = $2 }
        $1 == "=result" && $2 !~ /^ok/ { print name; left = 15; sub(/^=result */, "") }
        left > 0 { print "    " substr($0, 1, 200); left-- }' >>"$recap"
    add suites "${counts% *}" "${counts#* }" "$status"
}

# peer NAME COMMAND...: what it says, and how it ends, is kept for `counted`.
peer() {
    name=$1
    shift
    status=0
    "$@" >"$said/$name" || status=$?
    echo "$status" >"$said/$name.status"
}

# A peer's own last line says what it counted.
counted() {
    cat "$said/$1"
    counts=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$said/$1" | tail -n 1)
    [ -n "$counts" ] || counts='0 1'
    # After them, what the failed one said on its way.
    { grep '^not ok' "$said/$1" && grep '^# [^|]' "$said/$1" | tail -n 20; } >>"$recap" || :
    add "$1" "${counts% *}" "${counts#* }" "$(cat "$said/$1.status")"
}

# add PART PASSED FAILED STATUS: what ended badly without naming a failure is one.
add() {
    passed=$((passed + $2))
    failed=$((failed + $3))
    [ "$3" -eq 0 ] || echo "$1: $3 failed" >>"$recap"
    if [ "$4" -ne 0 ] && [ "$3" -eq 0 ] || [ "$2" -eq 0 ] && [ "$3" -eq 0 ]; then
        failed=$((failed + 1))
        echo "$1: ended with status $4 after $2 passed" >>"$recap"
    fi
}

if scripts/build.sh test; then
    # For the one fault that wants it; where it cannot be built, that one is not run.
    if toxiproxy=$(scripts/go_tool.sh toxiproxy toxiproxy-server); then PATH=$toxiproxy:$PATH; fi
    # What is tried with comes while the suites run. What does not come is told where it is missed.
    { scripts/chromium.sh; scripts/proxies.sh; scripts/peers.sh; } >/dev/null 2>&1 &
    suites
    wait
    # They wait more than they work, but for the last.
    peer clients scripts/interop.sh clients &
    peer servers scripts/interop.sh servers
    peer login scripts/interop.sh login
    peer conformance scripts/with_server.sh sh -c 'exec scripts/conformance.sh "$ERLMCP_URL"'
    wait
    peer conformance_of_clients scripts/conformance.sh
    for name in clients servers login conformance conformance_of_clients; do
        counted "$name"
    done
else
    failed=1
    echo 'it does not compile' >>"$recap"
fi
[ "$failed" -eq 0 ] || { echo 'What failed:' && head -n 150 "$recap"; }
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
