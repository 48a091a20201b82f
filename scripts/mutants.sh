#!/bin/sh
# Runs mutants of the code against the suites for some minutes, and prints the survivors and the
# totals; see docs/benchmarks.md. Compiles first. Needs scripts/env.sh.
#
#   scripts/mutants.sh     MINUTES, SECONDS_EACH, WORKERS, SEED, ONLY, RECORD: variables
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/.."
built=${REBAR_BASE_DIR:-_build}
case $built in /*) ;; *) built=$PWD/$built ;; esac
scripts/build.sh test
# A node with a mutant may end in any way.
ERL_CRASH_DUMP_SECONDS=0
export ERL_CRASH_DUMP_SECONDS
exec erl -noinput -pa "$built"/test/lib/*/ebin "$built"/test/lib/*/test \
    -eval 'erlmcp_test_mutants:main().' -extra "$PWD" "$built" "${MINUTES:-30}" \
    "${SECONDS_EACH:-20}" "${WORKERS:-$(nproc)}" "${SEED:-1}" "${ONLY:-}" \
    "${RECORD:+docs/benchmarks.md}" "$(git log -1 --format='%h of %cs' 2>/dev/null)"
