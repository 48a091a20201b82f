#!/bin/sh
# Tests the spans of `erlmcp serve` with the OpenTelemetry Collector, which is built of Go modules
# first, once (scripts/go_tool.sh). The collector has the configuration ops/otelcol.yml, except for
# its port, and prints the spans that it has decoded.
#
#   test/interop/collector.sh
#
# Every check is a line, and the last line is `N passed, N failed`. No other command runs this one,
# since the build takes minutes. Needs a built project and scripts/env.sh.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
folder=$("$root/scripts/go_tool.sh" otelcol otelcol)
trace=4bf92f3577b34da6a3ce929d0e0e4736
work=$(mktemp -d)
programs=''
stop() {
    for program in $programs; do
        kill "$program" 2>/dev/null || :
        wait "$program" 2>/dev/null || :
    done
    programs=''
}
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# start NAME TEXT COMMAND...: starts a program, and waits until it has printed TEXT.
start() {
    name=$1
    text=$2
    shift 2
    "$@" >"$work/$name" 2>&1 </dev/null &
    programs="$! $programs"
    tries=0
    until grep -q "$text" "$work/$name"; do
        kill -0 "${programs%% *}" 2>/dev/null && [ "$tries" -lt 300 ] || {
            sed "s/^/# $name: /" "$work/$name" | tail -n 20 >&2
            echo "not ok - collector: $name did not start"
            echo '0 passed, 1 failed'
            exit 1
        }
        tries=$((tries + 1))
        sleep 0.1
    done
}

port=$(erl -noinput -eval '
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Socket),
    io:format("~b", [Port]), halt().')
start collector 'Everything is ready' "$folder/otelcol" --config "$root/ops/otelcol.yml" \
    --config "yaml:receivers::otlp::protocols::http::endpoint: 127.0.0.1:$port" \
    --config 'yaml:service::telemetry::metrics::level: none'
OTEL_SERVICE_NAME=collected
export OTEL_SERVICE_NAME
start server 'Stop it: ' "$root/bin/erlmcp" serve everything --port 0 \
    --otlp "http://127.0.0.1:$port"
url=$(sed -n 's|^ *\(http://[^ ]*\)$|\1|p' "$work/server")
"$root/bin/erlmcp" call "$url" echo text=secret-7 \
    --header "traceparent: 00-$trace-00f067aa0ba902b7-01" >/dev/null
"$root/bin/erlmcp" call "$url" test_error_handling >/dev/null 2>&1 || :
# The server sends the rest before it ends, and the collector has printed what it has answered.
stop

# A file for each span, and what stands before the first one.
awk -v folder="$work" '/^Span #/ { n++ } { print > (folder "/span" (n + 0)) }' "$work/collector"

passed=0
failed=0
# check WHAT COMMAND...: a line of the result.
check() {
    what=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
        echo "ok - collector: $what"
    else
        failed=$((failed + 1))
        echo "not ok - collector: $what"
    fi
}

# span NAME PATTERN...: one span with this name has a line like each pattern.
span() {
    name=$1
    shift
    for file in $(grep -l "^ *Name *: $name\$" "$work"/span*); do
        found=yes
        for pattern in "$@"; do
            grep -q -- "^ *$pattern" "$file" || found=''
        done
        [ -z "$found" ] || return 0
    done
    return 1
}

printed() { grep -q -- "$1" "$work/collector"; }
not() { ! "$@"; }

check 'the resource has the name of the service' printed ' service\.name: Str(collected)$'
check 'the scope is the library' printed '^InstrumentationScope erlmcp '
check "a call has its client's trace and span" span 'tools/call echo' \
    "Trace ID *: $trace\$" 'Parent ID *: 00f067aa0ba902b7$' 'Kind *: Server$'
check 'it has times' span 'tools/call echo' 'Start time *: 20' 'End time *: 20'
check 'it has attributes of each type' span 'tools/call echo' \
    '-> gen_ai\.tool\.name: Str(echo)$' '-> client\.port: Int([1-9]'
check 'a failed call has its error' span 'tools/call test_error_handling' \
    'Status code *: Error$' 'Status message *: tool_error$' '-> error\.type: Str(tool_error)$'
check 'the collector has refused nothing' not grep -q spans_dropped "$work/server"
check 'no span has the argument' not printed secret-7
[ "$failed" -eq 0 ] || sed 's/^/# /' "$work/collector" "$work/server" | tail -n 40 >&2
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
