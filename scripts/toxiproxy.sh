#!/bin/sh
# Prints a folder with toxiproxy-server, the fault proxy of `erlmcp chaos`, and builds it there
# first, once: of the Go modules locked under test/toxiproxy, with this machine's go.
#
#   PATH=$(scripts/toxiproxy.sh):$PATH bin/erlmcp chaos drill_latency
#
#   ERLMCP_CACHE     where it goes (default: $XDG_CACHE_HOME/erlmcp or ~/.cache/erlmcp)
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cache=${ERLMCP_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/erlmcp}

say() { printf 'toxiproxy: %s\n' "$*" >&2; }

folder=$cache/toxiproxy-$(cat "$0" "$root/test/toxiproxy/go.sum" | sha256sum | cut -c 1-16)
if [ ! -x "$folder/toxiproxy-server" ]; then
    for program in go flock; do
        command -v "$program" >/dev/null 2>&1 || { say "building it needs $program."; exit 1; }
    done
    mkdir -p "$folder"
    exec 9>"$cache/toxiproxy.lock"
    flock 9
    if [ ! -x "$folder/toxiproxy-server" ]; then
        say "building it in $folder (once)"
        (cd "$root/test/toxiproxy" &&
            export CGO_ENABLED=0 GOFLAGS='-mod=readonly -trimpath -buildvcs=false' &&
            go build -o "$folder/new" github.com/Shopify/toxiproxy/v2/cmd/server) \
            >"$folder/log" 2>&1 || {
            tail -n 5 "$folder/log" >&2
            say "go could not build it. The whole log: $folder/log"
            exit 1
        }
        mv "$folder/new" "$folder/toxiproxy-server"
    fi
    exec 9>&-
fi
echo "$folder"
