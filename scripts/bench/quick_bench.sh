#!/bin/sh
# Some of the workloads, each in a short form, in less than a minute.
#
#   scripts/bench/quick_bench.sh [OPTION...]     those of `erlmcp bench`
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
exec "$root/bin/erlmcp" bench --quick --json "$root/bench/results" "$@"
