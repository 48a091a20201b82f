#!/bin/sh
# Prints a folder with a program written in Go, and builds it there first, once: of the modules
# locked under test/TOOL, with this machine's go. Tools: h2spec; toxiproxy, the fault proxy of
# `erlmcp chaos`, whose program is toxiproxy-server; otelcol, the OpenTelemetry Collector; jaeger;
# porcupine, a judge of histories; compose, what reads the files of `docker compose` (compose-go).
#
#   PATH=$(scripts/go_tool.sh toxiproxy toxiproxy-server):$PATH bin/erlmcp chaos drill_latency
#
#   ERLMCP_CACHE     where it goes (default: $XDG_CACHE_HOME/erlmcp or ~/.cache/erlmcp)
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cache=${ERLMCP_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/erlmcp}
tool=$1
program=$2
locked=$root/test/$tool

say() { printf '%s: %s\n' "$tool" "$*" >&2; }

folder=$cache/$tool-$(cat "$0" "$locked/go.sum" | sha256sum | cut -c 1-16)
if [ ! -x "$folder/$program" ]; then
    for needed in go flock; do
        command -v "$needed" >/dev/null 2>&1 || { say "building it needs $needed."; exit 1; }
    done
    mkdir -p "$folder"
    exec 9>"$cache/$tool.lock"
    flock 9
    if [ ! -x "$folder/$program" ]; then
        say "building it in $folder (once)"
        (cd "$locked" &&
            export CGO_ENABLED=0 GOFLAGS='-mod=readonly -trimpath -buildvcs=false' &&
            go build -o "$folder/new" "$(sed -n 's/^tool //p' go.mod)") >"$folder/log" 2>&1 || {
            tail -n 5 "$folder/log" >&2
            say "go could not build it. The whole log: $folder/log"
            exit 1
        }
        mv "$folder/new" "$folder/$program"
    fi
fi
echo "$folder"
