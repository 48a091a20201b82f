#!/usr/bin/env bash
# Compares the figures that hardly depend on the speed of the machine with those of bench/stable:
# memory of connections and sessions, and of the core operations. Exits as `erlmcp compare` does.
#
#   bench/stable.sh           compares one run
#   bench/stable.sh record    makes the file of this kind of machine from three runs
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

measure() {
    bin/erlmcp bench memory_session memory_connection_http core_ops_1k growth_tools \
        --connections 500 --duration 0.5 --json "$work/results" >"$work/table"
}

if [ "${1:-}" = record ]; then
    for _ in 1 2 3; do measure; done
    bin/erlmcp baseline "$work/results" --stable --output bench/stable
else
    measure
    bin/erlmcp compare "$work/results" bench/stable
fi
