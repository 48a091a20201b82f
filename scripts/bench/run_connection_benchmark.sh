#!/bin/sh
# Measures how many connections a server carries, how fast they open, and the cost of each.
#
#   scripts/bench/run_connection_benchmark.sh [OPTION...]     options of `erlmcp bench`
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/../.."
exec bin/erlmcp bench connections_tcp connections_http --json bench/results "$@"
