#!/usr/bin/env bash
# Measures how long a server on stdio takes from its start to its first answer, compared with a node
# that ends as soon as it has started. Both take turns. It prints medians of wall and processor
# time, in milliseconds. The processor time is that of the whole process, including its end.
#
#   bench/start.sh [ROUNDS] [MODULE]     21 rounds of erlmcp_cli_boot, a server of one tool
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/env.sh
scripts/build.sh >&2
python3 - "${1:-21}" "${2:-erlmcp_cli_boot}" <<'PYTHON'
import os, resource, statistics, subprocess, sys, time

rounds, module = int(sys.argv[1]), sys.argv[2]
ask = (b'{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":'
       b'{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
       b'"io.modelcontextprotocol/clientCapabilities":{}}}}\n')
programs = {"erl -noinput": (["erl", "-noinput", "-s", "erlang", "halt"], False),
            "first answer": (["bin/erlmcp", "serve", module, "--stdio"], True)}
taken = {name: [] for name in programs}

def spent():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

for _ in range(rounds):
    for name, (words, answers) in programs.items():
        cpu, begun = spent(), time.monotonic()
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL)
        if answers:
            child.stdin.write(ask)
            child.stdin.flush()
            assert child.stdout.readline(), "no answer"
            wall = time.monotonic() - begun
        child.communicate()
        if not answers:
            wall = time.monotonic() - begun
        taken[name].append((wall * 1000, (spent() - cpu) * 1000))

print(f"load before: {os.getloadavg()[0]}")
for name, pairs in taken.items():
    wall, cpu = (sorted(figures) for figures in zip(*pairs))
    print(f"{name}: {statistics.median(wall):.0f} ms ({wall[0]:.0f} to {wall[-1]:.0f}), "
          f"{statistics.median(cpu):.0f} ms of processor time")
PYTHON
