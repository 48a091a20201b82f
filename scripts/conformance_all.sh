#!/bin/sh
# Runs sets of the conformance suite: those of servers against the everything server, those of
# clients against our client. Needs scripts/env.sh and a built project.
#
#   scripts/conformance_all.sh [SET ...]                     default: all sets
#
# See scripts/conformance.sh. Each of the two has a last line of its own; exit 1 when one failed.
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
