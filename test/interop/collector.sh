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

receiver=collector
. "$(dirname -- "$0")/otlp.sh"
folder=$("$root/scripts/go_tool.sh" otelcol otelcol)

start collector 'Everything is ready' "$folder/otelcol" --config "$root/ops/otelcol.yml" \
    --config "yaml:receivers::otlp::protocols::http::endpoint: 127.0.0.1:$port" \
    --config 'yaml:service::telemetry::metrics::level: none'
serve collected
"$root/bin/erlmcp" call "$url" test_error_handling >/dev/null 2>&1 || :
# The server sends the rest before it ends, and the collector has printed what it has answered.
stop

# A file for each span, and what stands before the first one.
awk -v folder="$work" '/^Span #/ { n++ } { print > (folder "/span" (n + 0)) }' "$work/collector"

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
