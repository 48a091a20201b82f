#!/usr/bin/env bash
# Compares how many sessions a second clients open at a server without a cluster, and at one in a
# cluster. A session is opened by `initialize` and `notifications/initialized` of 2025-11-25, over
# HTTP/1.1. The servers are nodes of their own with one scheduler; one node is the cluster, or the
# first of NODES. Each is loaded in turn, round by round, by 4 clients in one more node, which open
# one session after the other. They open a connection for each session (`own`), and then have one
# connection each, as a proxy has (`kept`). Shown are the medians of all rounds with the least and
# the most: sessions a second, the server's CPU time for each, and both relative to the same round
# without a cluster. A second server without a cluster (`again`) shows how far equal servers differ.
# With FILE, the figures are also written there as JSON.
#
#   bench/sessions.sh [ROUNDS] [SECONDS] [NODES] [FILE]
#                                default: 20 rounds of 1 second for each way, 1 node, no file
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."

. scripts/env.sh
scripts/build.sh >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
erlc -o "$work" bench/sessions/bench_sessions.erl
ERL_LIBS=${REBAR_BASE_DIR:-_build}/default/lib erl +sbwt none +sbwtdcpu none +sbwtdio none \
    -noinput -pa "$work" \
    -eval "bench_sessions:main(\"$work\", ${1:-20}, ${2:-1}, ${3:-1}, 4, \"${4:-}\"), halt()."
