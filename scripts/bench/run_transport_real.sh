#!/bin/sh
# The workloads over a network, as long as they are described: an hour, unless --duration says less.
#
#   scripts/bench/run_transport_real.sh [OPTION...]     those of `erlmcp bench`
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/../.."
exec bin/erlmcp bench network_real --json bench/results "$@"
