#!/bin/sh
# Runs ten workloads, each in its short form, in about a minute.
#
#   scripts/bench/quick_bench.sh [OPTION...]     options of `erlmcp bench`
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/../.."
exec bin/erlmcp bench all --quick --json bench/results "$@"
