#!/bin/sh
# Tests one trace over several servers. A call goes from a client through two erlmcp servers, each a
# program of its own, to a server of the official Python SDK, which reports its own spans. The
# client is erlmcp's, and then the SDK's. A collector decodes all spans with PyPI
# opentelemetry-proto.
#
#   test/interop/tracing.sh
#
# Every check is a line, and the last line is `N passed, N failed`. The exit status is 1 if a check
# failed, or if the number of checks is not that of test/interop/checks.txt. Needs a built project
# and scripts/env.sh.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$here/../..
# Erlang looks for modules in its current folder.
cd "$root"
peers=$("$root/scripts/peers.sh" python2)
python=$peers/python2/bin/python
work=$(mktemp -d)
programs=''
stop() {
    exec 8>&-
    for program in $programs; do
        kill "$program" 2>/dev/null || :
        wait "$program" 2>/dev/null || :
    done
    programs=''
}
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
erlc -o "$work" "$here/tracing/tracing.erl"
: >"$work/spans"

# Only this script holds the input of the programs open, so they end with this script at the latest.
mkfifo "$work/input"
: <"$work/input" &
exec 8>"$work/input"

# start NAME COMMAND...: starts a program, and prints its first line, which is its URL.
start() {
    name=$1
    shift
    "$@" <"$work/input" >"$work/$name.out" 2>"$work/$name.log" &
    programs="$! $programs"
    tries=0
    until [ -s "$work/$name.out" ]; do
        kill -0 "${programs%% *}" 2>/dev/null && [ "$tries" -lt 300 ] || {
            awk -v name="$name" '{ print "# " name ": " $0 }' "$work/$name.log" | tail -n 20 >&2
            echo "not ok - tracing: $name did not start"
            echo '0 passed, 1 failed'
            exit 1
        }
        tries=$((tries + 1))
        sleep 0.1
    done
    url=$(head -n 1 "$work/$name.out")
}

erlang() {
    erl -noinput -pa "$work" -pa "$root"/_build/default/lib/*/ebin \
        -eval 'tracing:main(init:get_plain_arguments()).' -extra "$@"
}

start collector "$python" "$here/tracing/collector.py" "$work/spans"
collector=$url
start warehouse "$python" "$here/tracing/warehouse.py" "$collector"
for name in depot shop; do
    start "$name" erl -noshell -kernel logger_level warning -pa "$work" \
        -pa "$root"/_build/default/lib/*/ebin \
        -eval 'tracing:main(init:get_plain_arguments()).' -extra serve "$name" "$collector" "$url"
done
status=0
erlang visit "$collector" "$url" >"$work/visitor.log" 2>&1 || status=1
"$python" "$here/tracing/visitor.py" "$collector" "$url" >"$work/python.log" 2>&1 || status=1
"$python" "$here/tracing/check.py" "$work/spans" >"$work/out" || status=1
cat "$work/out"
wanted=$(awk '$1 " " $2 == "tracing http" { print $3 }' "$here/checks.txt")
[ "$(tail -n 1 "$work/out")" = "$wanted passed, 0 failed" ] || status=1
[ "$status" -eq 0 ] || for log in "$work"/*.log; do
    awk -v name="$(basename "$log")" '{ print "# " name ": " $0 }' "$log" | tail -n 20 >&2
done
exit "$status"
