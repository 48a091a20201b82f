#!/bin/sh
# Tests the spans of `erlmcp serve` with Jaeger 2, which is built of Go modules first, once
# (scripts/go_tool.sh). Jaeger has the arguments of ops/jaeger.yml, except for its port, and is
# asked for the trace that it has stored.
#
#   test/interop/jaeger.sh
#
# Every check is a line, and the last line is `N passed, N failed`. No other command runs this one,
# since the build takes minutes. Needs a built project, scripts/env.sh, and the free port 16686.
set -eu

receiver=jaeger
. "$(dirname -- "$0")/otlp.sh"
folder=$("$root/scripts/go_tool.sh" jaeger jaeger)

arguments=$(sed -n 's/^ *- \(--[^ ]*\)$/\1/p' "$root/ops/jaeger.yml" \
    | sed "s/0\.0\.0\.0:4318/127.0.0.1:$port/")
[ -n "$arguments" ]
# shellcheck disable=SC2086 # Each line is an argument.
start jaeger 'Everything is ready' "$folder/jaeger" $arguments
serve stored

# The spans are sent within a second.
tries=0
until curl -sS "http://127.0.0.1:16686/api/traces/$trace" >"$work/trace" 2>"$work/error" \
    && grep -q '"tools/call echo"' "$work/trace" || [ "$tries" -ge 100 ]; do
    tries=$((tries + 1))
    sleep 0.1
done

shown() { grep -q -- "$1" "$work/trace"; }

check 'the trace has the call' shown '"operationName":"tools/call echo"'
check "the call's parent is its client's span" shown '"spanID":"00f067aa0ba902b7"'
check 'it has attributes' shown '"key":"gen_ai.tool.name","type":"string","value":"echo"'
check 'the service has its name' shown '"serviceName":"stored"'
check 'no span has the argument' not shown secret-7
[ "$failed" -eq 0 ] || cat "$work/trace" "$work/error" "$work/server" | head -c 4000 >&2
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
