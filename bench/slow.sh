#!/usr/bin/env bash
# Measures good callers next to slow clients: 200 requests a second of `tools/call echo`, alone and
# next to 2,000 slow clients. Of these, 1,000 send a request at one byte a second, and 1,000 read a
# large answer at one byte a second. Latencies begin when a request was due.
#
#   bench/slow.sh [SECONDS]     default: 60 seconds alone, and 60 with slow clients
#
# A slow client that the server cuts off comes back a second later. bench/overload.sh explains the
# columns and the shares of the cores.
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}

. bench/overload/start.sh
start_server
load slow "$seconds"
stop_server
echo "load after: $(cut -d ' ' -f 1 /proc/loadavg)"
