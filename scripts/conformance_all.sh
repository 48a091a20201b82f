#!/bin/sh
# Runs sets of the conformance suite: sets of servers against the everything server, and sets of
# clients against our client. Needs scripts/env.sh and a built project.
#
#   scripts/conformance_all.sh [SET ...]                     default: all sets
#
# See scripts/conformance.sh. Each of the two prints a last line of its own. The exit code is 1 if
# one of them failed.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/.."
servers=''
clients=''
for set in "$@"; do
    case $set in
        client-*) clients="$clients $set" ;;
        *) servers="$servers $set" ;;
    esac
done
status=0
if [ $# -eq 0 ] || [ -n "$servers" ]; then
    scripts/with_server.sh sh -c 'exec scripts/conformance.sh "$ERLMCP_URL" "$@"' - $servers ||
        status=1
fi
if [ $# -eq 0 ] || [ -n "$clients" ]; then
    scripts/conformance.sh $clients || status=1
fi
exit "$status"
