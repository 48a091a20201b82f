#!/usr/bin/env bash
# Measures what a cluster costs: the CPU time of its nodes for a stateless call, a session's call,
# a task, and a change that 160 streams hear of. There are 1, 2, 4 or 8 nodes on this machine behind
# HAProxy, or one that is in no cluster; see bench/cluster/bench_cluster.erl. Each figure is the
# median of its rounds with the least and the most. The figures are written to FILE, as JSON.
# Needs addresses 127.0.0.2 to 127.0.0.9, and 4 GB of memory.
#
#   bench/cluster.sh [ROUNDS] [SECONDS] [FILE]
#                                default: 4 rounds of 2 seconds for each, _build/cluster.json
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-4}
seconds=${2:-2}
file=${3:-_build/cluster.json}

. scripts/env.sh
. bench/ports.sh
# The build for tests has what starts the nodes.
scripts/build.sh test >&2
haproxy=$(scripts/proxies.sh)/haproxy
build=${REBAR_BASE_DIR:-_build}
case $build in /*) ;; *) build=$PWD/$build ;; esac
work=$(mktemp -d)
# HAProxy does not end with who started it.
trap 'pkill -f -- "$work/nodes-" || :; rm -rf "$work"' EXIT
erlc -o "$work" bench/cluster/bench_cluster.erl
ulimit -n "$(ulimit -H -n)"
erl +sbwt none -noinput -pa "$work" "$build"/test/lib/*/ebin "$build"/test/lib/*/test \
    -eval 'bench_cluster:main(init:get_plain_arguments()).' \
    -extra "$haproxy" "$work" "$(free_port)" "$rounds" "$seconds" "$file"
echo "written: $file"
