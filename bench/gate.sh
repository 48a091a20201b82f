#!/usr/bin/env bash
# What the gate costs a request, `erlmcp_gate:enter/2` and `leave/1` together, with its seat, or its
# row in the ledger where it holds more than a place: nanoseconds where nobody else enters, and
# millions a second over so many schedulers, each with a process that does nothing else.
#
#   bench/gate.sh [SECONDS [SCHEDULERS [NAME]]]     default: 1 second a measurement, all of the
#                                                   machine, and all of these
#
#   server       the server's bound `in_flight` alone
#   principal    that, and `in_flight_per_principal`; each process is a principal of its own
#   one          the same, and all are one principal
#   rates        as `principal`, with a rate of the principal and one of the server
#   waits        as many places as processes, each of which leaves its own when it waits for another
#   rows         what of this is the ledger's: a row is written, changed and taken away
#
# Alone, what is shown is the fastest of many short runs and their median: on a machine that has
# other work only the first says much of the gate.
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
