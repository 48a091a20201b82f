#!/usr/bin/env bash
# Measures the cost of the gate for a request, `erlmcp_gate:enter/2` and `leave/1` together:
# nanoseconds if no other process enters, and millions a second over 1, 2, 4... schedulers, each
# with a process that does nothing else.
#
#   bench/gate.sh [SECONDS [SCHEDULERS [NAME]]]     default: 1 second a measurement, all schedulers
#                                                   of the machine, and all of these names
#
#   server       only the server's bound `in_flight`
#   principal    also `in_flight_per_principal`; each process is a principal of its own
#   one          the same, with one principal for all processes
#   rates        as `principal`, with a rate for the principal and one for the server
#   waits        as many permits as processes, each of which returns its own while it waits for one
#   rows         the table's part of the cost: a row is written, changed and removed
#
# The figures without other processes are the fastest of many short runs and their median. On a
# machine with other work only the fastest is meaningful.
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-1}
most=${2:-$(nproc)}
name=${3:-all}

. scripts/env.sh
scripts/build.sh >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
erlc -o "$work" bench/gate/bench_gate.erl

for schedulers in $(seq "$most"); do
    # 1 and 2, powers of two, and the maximum.
    ((schedulers > 2 && schedulers < most && (schedulers & (schedulers - 1)))) && continue
    erl +S "$schedulers" +sbwt none +sbwtdcpu none +sbwtdio none -noinput -pa "$work" \
        -pa "${REBAR_BASE_DIR:-_build}"/default/lib/erlmcp/ebin \
        -eval "bench_gate:main($seconds, \"$name\"), halt()."
done
