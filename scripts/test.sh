#!/bin/sh
# Runs every test suite, then the official clients and the conformance suite against bin/erlmcp, and
# our client against the official servers and that suite. A case that was skipped counts as failed.
# Needs scripts/env.sh. The last line says `N passed, N failed`; what failed stands before it, once
# more.
set -eu
cd "$(dirname -- "$0")/.."
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

# The suites of these folders, and those of the instruments, run beside the others, in a build of
# their own: they wait more than they work.
beside='admission engine extensions http observe rounds schema server tasks wire'

# suites_of FOLDER...: those that stand in them, as rebar3 wants to have them.
suites_of() {
    find "$@" -name '*_SUITE.erl' | LC_ALL=C sort | sed 's/\.erl$//' | paste -s -d , -
}

# What ran is read from the records that the test server writes, not from what rebar3 prints.
suites() {
    rm -rf "$logs" "$build/beside/test/logs"
    folders="$(for name in $beside; do echo "apps/erlmcp/test/$name"; done) apps/erlmcp_bench/test"
    # For bin/erlmcp, which some of them start.
    mkdir -p "$build/beside"
    rm -rf "$build/beside/default"
    cp -a "$build/default" "$build/beside/"
    here=$(find apps/*/test examples/*/test -name '*_SUITE.erl' |
        grep -v -F "$(printf '%s/\n' $folders)" |
        LC_ALL=C sort | sed 's/\.erl$//' | paste -s -d , -)
    REBAR_BASE_DIR=$build/beside rebar3 ct --suite "$(suites_of $folders)" >"$said/suites" 2>&1 &
    status=0
    rebar3 ct --suite "$here" || status=$?
    wait "$!" || status=$?
    cat "$said/suites"
    mkdir -p "$logs" "$build/beside/test/logs"
    # The failure of an end_per_suite or end_per_group is in no sum.
    counts=$(find "$logs" "$build/beside/test/logs" -name suite.log -exec cat {} + | awk '
        $1 == "=case" { name = $2 }
        $1 == "=result" && $2 ~ /^failed/ && name ~ /:end_per_(suite|group)$/ { failed++ }
        $1 == "=successful" { passed += $2 }
        $1 == "=failed" || $1 == "=user_skipped" || $1 == "=auto_skipped" { failed += $2 }
        END { print passed + 0, failed + 0 }')
    # Of a reason the first lines: a whole one has the terms of every call in it.
    find "$logs" "$build/beside/test/logs" -name suite.log -exec cat {} + | awk '
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

if scripts/build.sh; then
    # For the one fault that wants it; where it cannot be built, that one is not run.
    if toxiproxy=$(scripts/toxiproxy.sh); then PATH=$toxiproxy:$PATH; fi
    # The peers come while the suites run. What does not come is told where it is missed.
    scripts/peers.sh >/dev/null 2>&1 &
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
