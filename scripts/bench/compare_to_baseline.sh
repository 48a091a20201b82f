#!/bin/sh
# Compares results with a baseline. Exits with 4 if one is worse.
#
#   scripts/bench/compare_to_baseline.sh RESULTS_DIR BASELINE
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
exec "$root/bin/erlmcp" compare "$@"
