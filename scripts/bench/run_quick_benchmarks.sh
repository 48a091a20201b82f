#!/bin/sh
# Runs a benchmark in its short form.
#
#   scripts/bench/run_quick_benchmarks.sh core_ops|network_real|stress|integration
set -eu
[ $# -eq 1 ] || { sed -n '4s/^# */usage: /p' "$0" >&2 && exit 2; }
CDPATH='' cd -- "$(dirname -- "$0")/../.."
exec bin/erlmcp bench "$1" --quick --json bench/results
