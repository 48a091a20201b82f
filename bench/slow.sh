#!/usr/bin/env bash
# 1,000 clients that send a request a byte a second, and 1,000 that ask for a large answer and read
# it a byte a second, beside good callers, 200 requests a second of `tools/call echo`: the good
# callers' latencies (from the time when a request was due) alone and beside them.
#
#   bench/slow.sh [SECONDS]     default: 60 seconds alone, and 60 beside
#
# A slow client that the server cuts comes back a second later. See bench/overload.sh for the
# columns, and for who has which cores.
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}

. bench/overload/start.sh
start_server
load slow "$seconds"
stop_server
echo "load after: $(cut -d ' ' -f 1 /proc/loadavg)"
