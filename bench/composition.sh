#!/usr/bin/env bash
# Measures the cost of mounts, middleware and the result cache: the CPU time of a call over one TCP
# connection, client and server together. The tools differ in nothing else. They run in turn, and
# each is compared with the plain tool.
#
#   bench/composition.sh [SECONDS]     default: 5 seconds a tool
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-5}
[[ $seconds == *.* ]] || seconds=$seconds.0

. scripts/env.sh
scripts/build.sh >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
erlc -o "$work" bench/composition/bench_composition.erl
ERL_LIBS=${REBAR_BASE_DIR:-_build}/default/lib erl +S 1 +sbwt none +sbwtdcpu none +sbwtdio none \
    -noinput -pa "$work" -eval "bench_composition:main([\"$seconds\"]), halt()."
