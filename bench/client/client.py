"""The official Python client for bench/client.sh.

    python client.py TARGET ERA CALLERS SECONDS

client.sh explains the arguments and the output.
"""

import sys
import time

import anyio
from mcp import Client, StdioServerParameters

VERSIONS = {"stateless": "2026-07-28", "session": "2025-11-25"}


def cpu():
    """Microseconds of CPU time of this process, user and system."""
    with open("/proc/self/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) * 10_000


async def caller(client, end, took):
    start = time.perf_counter()
    while start < end:
        result = await client.call_tool("echo", {"text": "hello"})
        assert result.content[0].text == "hello"
        now = time.perf_counter()
        took.append((now - start) * 1e6)
        start = now


async def run(client, callers, length):
    took = []
    end = time.perf_counter() + length
    async with anyio.create_task_group() as group:
        for _ in range(callers):
            group.start_soon(caller, client, end, took)
    return sorted(took)


async def main(target, era, callers, seconds):
    server = target if target.startswith("http") else StdioServerParameters(command=target)
    mode = VERSIONS[era] if era == "stateless" else "legacy"
    # The cache is off: it would store results that no call uses.
    async with Client(server, mode=mode, cache=None) as client:
        assert client.protocol_version == VERSIONS[era], client.protocol_version
        await run(client, callers, 1.5)
        start, before = time.perf_counter(), cpu()
        took = await run(client, callers, seconds)
        spent, wall = cpu() - before, time.perf_counter() - start
        p50, p99 = (took[int(len(took) * part)] for part in (0.5, 0.99))
        print(f"{len(took)} {wall:.3f} {spent} {p50:.0f} {p99:.0f}", flush=True)


anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
