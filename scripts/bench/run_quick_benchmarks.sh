#!/bin/sh
# A benchmark in its short form.
#
#   scripts/bench/run_quick_benchmarks.sh core_ops|network_real|stress|integration
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
[ $# -eq 1 ] || { sed -n '4s/^# */usage: /p' "$0" >&2 && exit 2; }
exec "$root/bin/erlmcp" bench "$1" --quick --json "$root/bench/results"
