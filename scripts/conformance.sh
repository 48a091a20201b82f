#!/bin/sh
# Runs the official conformance suite against a server.
#
#   scripts/conformance.sh URL [SET ...]
#
#   tools-resources-prompts    tools, resources and prompts on both wires (the default)
#   requirements-2025-11-25    all that the suite scores a server of 2025-11-25 on
#   requirements-2026-07-28    the same for 2026-07-28
#   extensions                 the extensions that we serve
#   pending                    what the suite has beyond that and we serve
#   all                        every set
#
# The sets are the files test/conformance/*.txt. A check that failed or warned is a line
# `not ok - ...`, and so is a scenario that was skipped or made another number of checks than its
# set says. The last line is `N passed, N failed` and counts checks; exit 1 when one failed.
#
#   ERLMCP_CONFORMANCE_OUT    a folder to keep the suite's own reports in
set -eu

[ $# -ge 1 ] || { echo "usage: $0 URL [SET ... | all]" >&2; exit 2; }
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
peers=$("$root/scripts/peers.sh" conformance)
"$peers/bin/node" "$root/test/conformance/run.mjs" \
    "$peers/conformance/node_modules/@modelcontextprotocol/conformance/dist/index.js" "$@"
