#!/usr/bin/env bash
# Measures the cost of the gate for a request, `erlmcp_gate:enter/2` and `leave/1` together. Prints
# nanoseconds for a single process, and millions a second over several schedulers with one process
# each.
#
#   bench/gate.sh [SECONDS [SCHEDULERS [NAME]]]     default: 1 second a measurement, all schedulers
#                                                   of the machine, and all of these
#
#   server       the server's limit `in_flight` alone
#   principal    that, and `in_flight_per_principal`; each process is a principal of its own
#   one          the same, and all processes are one principal
#   rates        as `principal`, with a rate of the principal and one of the server
#   waits        as many permits as processes; each gives its own back when it waits for the next
#   rows         the part of the permits' tables: a row is written, changed and removed
#
# For a single process the figures are the fastest of many short runs and their median. On a busy
# machine only the first says much about the gate.
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
    # All of a few, and then powers of two.
    ((schedulers > 2 && schedulers < most && (schedulers & (schedulers - 1)))) && continue
    erl +S "$schedulers" +sbwt none +sbwtdcpu none +sbwtdio none -noinput -pa "$work" \
        -pa "${REBAR_BASE_DIR:-_build}"/default/lib/erlmcp/ebin \
        -eval "bench_gate:main($seconds, \"$name\"), halt()."
done
