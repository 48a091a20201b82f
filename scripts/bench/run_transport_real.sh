#!/bin/sh
# Runs the workloads over a network for their full time: an hour, or less with --duration.
#
#   scripts/bench/run_transport_real.sh [OPTION...]     options of `erlmcp bench`
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/../.."
exec bin/erlmcp bench network_real --json bench/results "$@"
