#!/bin/sh
# Checks the code without running it: line width, warnings, calls to missing functions, types, and
# calls between rooms. Prints the coverage of the last `make test`, if there was one. All checks
# run, even if one fails. Needs scripts/env.sh.
set -u
CDPATH='' cd -- "$(dirname -- "$0")/.." || exit 1
failed=''

check() {
    name=$1
    shift
    "$@" || failed="$failed, $name"
}

# The types of OTP's own applications are shared by all clones.
types() {
    REBAR_CACHE_DIR=${ERLMCP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/erlmcp}/rebar3 rebar3 dialyzer
}

test=${REBAR_BASE_DIR:-_build}/test

layers() {
    scripts/build.sh test && scripts/suites.sh "$test/logs" apps/erlmcp/test/layers_SUITE
}

coverage() {
    ERL_CRASH_DUMP_SECONDS=0 erl -noinput -pa "$test"/lib/*/ebin "$test"/lib/erlmcp/test \
        -run erlmcp_test_coverage report "$test/logs" test/coverage.terms
}

check width scripts/width.sh
check warnings scripts/build.sh
check xref rebar3 xref
check dialyzer types
check layers layers
check coverage coverage
[ -z "$failed" ] || { echo "check: failed: ${failed#, }" >&2; exit 1; }
