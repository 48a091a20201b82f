#!/bin/sh
# How many connections a server carries, how fast they are opened, and what each costs.
#
#   scripts/bench/run_connection_benchmark.sh [OPTION...]     those of `erlmcp bench`
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/../.."
exec bin/erlmcp bench connections_tcp connections_http --json bench/results "$@"
