#!/bin/sh
# Checks a server's promises under load: half a minute of stress, all faults, or whole clients.
#
#   scripts/bench/run_validation_benchmarks.sh stress|chaos|integration
set -eu
[ $# -eq 1 ] || set -- usage
case $1 in
    stress) set -- bench stress_30s_100k_ops ;;
    chaos) set -- chaos all ;;
    integration) set -- bench integration ;;
    *) sed -n '4s/^# */usage: /p' "$0" >&2 && exit 2 ;;
esac
CDPATH='' cd -- "$(dirname -- "$0")/../.."
exec bin/erlmcp "$@" --json bench/results
