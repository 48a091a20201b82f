#!/bin/sh
# Runs every test suite, then the official clients and the conformance suite against bin/erlmcp, and
# our client against the official servers and that suite, and then the short form of
# scripts/test_cluster.sh. With ERLMCP_OTP (see scripts/toolchain.sh) it runs only the suites of
# apps/erlmcp. Needs scripts/env.sh.
#
# A skipped case counts as failed, unless it needs what this machine lacks; see scripts/left_out.sh.
# The last line is `N passed, N failed` or `N passed, N failed, N skipped`, after lists of what was
# counted, was left out, has failed, and of what the machine lacks.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/.."
# A case opens ten thousand sockets, more than the usual soft limit allows.
ulimit -S -n 20000 2>/dev/null || ulimit -S -n "$(ulimit -H -n)"
# Absolute, since bin/erlmcp runs in its caller's folder.
build=${REBAR_BASE_DIR:-_build}
case $build in /*) ;; *) build=$PWD/$build ;; esac
logs=$build/test/logs
work=$(mktemp -d)
recap=$work/recap
: >"$recap"
counted=$work/counted
: >"$counted"
lacks=$work/lacks
: >"$lacks"
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
passed=0
failed=0
left_out=0

folders='apps/*/test examples/*/test'
programs='apps/erlmcp_bench/test apps/erlmcp_cli/test apps/erlmcp/test/client/http'
cluster=apps/erlmcp_cluster/test
if [ -n "${ERLMCP_OTP:-}" ]; then
    folders=apps/erlmcp/test
    programs=''
    cluster=''
fi

# The suites run in four nodes at the same time, since they wait more than they work. Three nodes
# run the suites of these folders, and the fourth all others. Each takes about as long. One suite
# comes after them, alone, since it judges how soon a server notices faults and recovers.
clients='client spec/tasks'
inside='observe outbound protocol schema spec/transports text wire server/call server/catalog
    server/dependencies server/gate server/overload server/session server/task
    server/transport/http1 client/channel'
alone=apps/erlmcp_bench/test/chaos/chaos_faults_SUITE

# suites_in FOLDER...: the suites in these folders and below.
suites_in() {
    find "$@" -name '*_SUITE.erl' | LC_ALL=C sort | sed 's/\.erl$//'
}

# node NAME SUITE...: runs suites and keeps their exit status.
node() {
    name=$1
    shift
    status=0
    scripts/suites.sh --coverage "$logs/$name" "$@" || status=$?
    echo "$status" >"$work/suites.$name"
}

# The counts come from the records that the test server writes, not from its printed output.
suites() {
    rm -rf "$logs"
    inside=$(suites_in $(printf 'apps/erlmcp/test/%s ' $inside))
    [ -z "$programs" ] || programs=$(suites_in $programs | grep -v -x -F "$alone")
    clients=$(suites_in $(printf 'apps/erlmcp/test/%s ' $clients) $cluster | grep -v -x -F "$inside
$programs")
    others=$(suites_in $folders | grep -v -x -F "$clients
$inside
$programs
$alone")
    node clients $clients >"$work/clients" 2>&1 &
    node inside $inside >"$work/inside" 2>&1 &
    [ -z "$programs" ] || node programs $programs >"$work/programs" 2>&1 &
    node others $others
    # Also for the peers that are being installed.
    wait
    cat "$work/clients" "$work/inside"
    [ -z "$programs" ] || { node alone $alone && cat "$work/programs"; }
    status=$(cat "$work"/suites.* | LC_ALL=C sort -n | tail -n 1)
    # No sum counts the failure of an end_per_suite or end_per_group, or of a suite's groups.
    counts=$(find "$logs" -name suite.log -exec cat {} + | awk '
        $1 == "=case" { name = $2 }
        $1 == "=result" && $2 ~ /^failed/ && name ~ /:(end_per_(suite|group)|error_in_suite)$/ {
            failed++
        }
        $1 == "=successful" { passed += $2 }
        $1 == "=failed" || $1 == "=user_skipped" || $1 == "=auto_skipped" { failed += $2 }
        END { print passed + 0, failed + 0 }')
    scripts/left_out.sh "$logs" >"$work/left_out"
    left_out=$(wc -l <"$work/left_out")
    # Only the first lines of a reason: a whole one has the terms of every call.
    names=$(cut -d ' ' -f 1 "$work/left_out" | tr '\n' ' ')
    find "$logs" -name suite.log -exec cat {} + | awk -v left_out=" $names" '
        /^=/ { lines = 0 }
        $1 == "=case" { name = $2 }
        $1 == "=result" && $2 !~ /^ok/ && !index(left_out, " " name " ") {
            print name; lines = 15; sub(/^=result */, "")
        }
        lines > 0 { print "    " substr($0, 1, 200); lines-- }' >>"$recap"
    # Faults that the machine cannot have; a suite names them in a file of its private folder.
    find "$logs" -name not_run -exec cat {} + >"$lacks"
    add suites "${counts% *}" $((${counts#* } - left_out)) "$status"
}

# peer NAME COMMAND...: keeps the output and the exit status for `count_peer`.
peer() {
    name=$1
    shift
    status=0
    "$@" >"$work/$name" || status=$?
    echo "$status" >"$work/$name.status"
}

# The last line of a peer's output has its counts.
count_peer() {
    cat "$work/$1"
    counts=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$work/$1" | tail -n 1)
    [ -n "$counts" ] || counts='0 1'
    # Also the last comments of a failed peer.
    { grep '^not ok' "$work/$1" && grep '^# [^|]' "$work/$1" | tail -n 20; } >>"$recap" || :
    add "$1" "${counts% *}" "${counts#* }" "$(cat "$work/$1.status")"
}

# counts_what PART: what a part counts.
counts_what() {
    case $1 in
        suites) echo 'cases of the test suites' ;;
        clients) echo 'checks by official clients at our server' ;;
        servers) echo 'checks by our client at official servers' ;;
        login) echo 'checks of logins at an authorization server' ;;
        traces) echo 'checks of traces over several servers' ;;
        conformance) echo 'checks of the official conformance suite for servers, each once' ;;
        conformance_of_clients) echo 'checks of that suite for clients, each once' ;;
        cluster) echo 'verdicts of a cluster that was harmed under load' ;;
    esac
}

# add PART PASSED FAILED STATUS: a bad end without a counted failure counts as one.
add() {
    passed=$((passed + $2))
    failed=$((failed + $3))
    printf '%7d %s\n' "$2" "$(counts_what "$1")" >>"$counted"
    [ "$3" -eq 0 ] || echo "$1: $3 failed" >>"$recap"
    if [ "$4" -ne 0 ] && [ "$3" -eq 0 ] || [ "$2" -eq 0 ] && [ "$3" -eq 0 ]; then
        failed=$((failed + 1))
        echo "$1: ended with status $4 after $2 passed" >>"$recap"
    fi
}

if ! scripts/build.sh test; then
    failed=1
    echo 'it does not compile' >>"$recap"
elif [ -n "${ERLMCP_OTP:-}" ]; then
    suites
else
    # For the only fault that needs it. If it cannot be built, that fault is not run, and is listed.
    if toxiproxy=$(scripts/go_tool.sh toxiproxy toxiproxy-server); then PATH=$toxiproxy:$PATH; fi
    # For the suite that compares the load generator with another one, and for its server. Both are
    # installed before, so that no case waits for it.
    bench/tools.sh >/dev/null || :
    scripts/peers.sh node >/dev/null || :
    # So is what reads the metrics.
    scripts/prometheus.sh >/dev/null || :
    # So is what gives nodes wrong clocks.
    scripts/faketime.sh >/dev/null || :
    # And so is what checks the files of ops/cluster.
    scripts/ops_tools.sh >/dev/null || :
    scripts/go_tool.sh compose compose-go >/dev/null || :
    # Also what suites drive and compare with: a browser, proxies, and a test suite of JSON Schema.
    scripts/chromium.sh >/dev/null || :
    scripts/playwright.sh >/dev/null || :
    scripts/proxies.sh >/dev/null || :
    scripts/schema_suite.sh >/dev/null || :
    # The peers are installed while the suites run, which have the processors first. A missing one
    # is reported where it is needed.
    nice -n 19 scripts/peers.sh >/dev/null 2>&1 &
    suites
    wait
    # All but the last wait more than they work.
    peer clients scripts/interop.sh clients &
    peer servers scripts/interop.sh servers
    peer login scripts/interop.sh login
    peer traces scripts/interop.sh traces
    peer conformance scripts/with_server.sh sh -c 'exec scripts/conformance.sh "$ERLMCP_URL"'
    wait
    peer conformance_of_clients scripts/conformance.sh
    # Alone, since it judges how soon a cluster serves again.
    peer cluster scripts/test_cluster.sh
    for name in clients servers login traces conformance conformance_of_clients; do
        count_peer "$name"
    done
    # It names what the machine lacks.
    if tail -n 1 "$work/cluster" | grep -q '^0 passed, 0 failed, 1 skipped$'; then
        echo "make test-cluster: $(head -n 1 "$work/cluster")" >>"$lacks"
    else
        count_peer cluster
    fi
fi
echo 'What passed:'
cat "$counted"
[ "$left_out" -eq 0 ] || {
    echo 'What was left out, since this machine lacks what it needs:'
    cat "$work/left_out"
    skipped=", $left_out skipped"
}
[ "$failed" -eq 0 ] || { echo 'What failed:' && head -n 150 "$recap"; }
[ ! -s "$lacks" ] || { echo 'Not run, since the machine lacks it:' && sed 's/^/    /' "$lacks"; }
echo "$passed passed, $failed failed${skipped:-}"
[ "$failed" -eq 0 ]
