#!/bin/sh
# Harms a cluster under load, and judges what its clients see; see docs/cluster-faults.md. Compiles
# first. Needs scripts/env.sh. The last line is `N passed, N failed`. A machine without root, `ip`,
# `unshare` or namespaces runs nothing: the last line says that all is skipped.
#
#   scripts/test_cluster.sh      LONG, PLAN: variables
#
#   LONG=1                                the long form
#   PLAN='#{faults => [{kill, 1}]}'       changes of the form's plan; see erlmcp_test_cluster_run
#
# The results and the logs are in _build/cluster. The run has its own network, mounts and processes:
# all of them end with it, however it ends.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/.."
built=${REBAR_BASE_DIR:-_build}
case $built in /*) ;; *) built=$PWD/$built ;; esac
if [ -z "${ERLMCP_CLUSTER_RUN:-}" ]; then
    lacks=''
    [ "$(id -u)" -eq 0 ] || lacks=root
    for program in ip unshare; do command -v "$program" >/dev/null || lacks=$program; done
    [ -n "$lacks" ] || unshare --net --mount --pid --fork true 2>/dev/null || lacks=namespaces
    [ -z "$lacks" ] || { echo "needs $lacks" && echo '0 passed, 0 failed, 1 skipped' && exit 0; }
    scripts/build.sh test
    haproxy=$(scripts/proxies.sh)/haproxy
    porcupine=$(scripts/go_tool.sh porcupine porcupine)/porcupine
    scripts/faketime.sh >/dev/null
    scripts/peers.sh conformance >/dev/null
    mkdir -p "$built/cluster"
    rm -f "$built"/cluster/*.log
    form=${LONG:+long}
    ERLMCP_CLUSTER_RUN=yes exec unshare --net --mount --pid --fork --kill-child --mount-proc \
        scripts/test_cluster.sh "${form:-short}" "${PLAN:-#{\}}" "$haproxy" "$porcupine"
fi
trap 'exit 130' INT TERM
# Files in memory make no node wait for a disk.
mount -t tmpfs -o mode=0755 erlmcp-cluster /run
folder=/run/erlmcp
mkdir /run/netns "$folder"
export TMPDIR="$folder" ERL_CRASH_DUMP_SECONDS=0
erl -noinput -boot no_dot_erlang -pa "$built"/test/lib/*/ebin \
    "$built"/test/lib/*/test -eval 'erlmcp_test_cluster_run:main().' \
    -extra "$1" "$2" "$folder" "$3" "$4" "$built/cluster/$1.json" </dev/null &
status=0
wait $! || status=$?
cp "$folder"/*.log "$built/cluster/"
exit "$status"
