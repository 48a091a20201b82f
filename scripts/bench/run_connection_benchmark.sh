#!/bin/sh
# How many connections a server carries, how fast they are opened, and what each costs.
#
#   scripts/bench/run_connection_benchmark.sh [OPTION...]     those of `erlmcp bench`
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
exec "$root/bin/erlmcp" bench connections_tcp connections_http --json "$root/bench/results" "$@"
