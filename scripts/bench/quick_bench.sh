#!/bin/sh
# Some of the workloads, each in a short form, in less than a minute.
#
#   scripts/bench/quick_bench.sh [OPTION...]     those of `erlmcp bench`
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/../.."
exec bin/erlmcp bench all --quick --json bench/results "$@"
