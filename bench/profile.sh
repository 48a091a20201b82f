#!/usr/bin/env bash
# Where the processors' time goes while a command runs: of each process, and of an Erlang node by
# what it does. With Linux's `perf`, which has to be there and to be allowed.
#
#   bench/profile.sh AFTER SECONDS COMMAND...   from so many seconds after its start, for so many
#
#   bench/profile.sh 14 4 bin/erlmcp bench tcp_sustained_10k_1kib --duration 20
#   ERLMCP_BENCH=peers_list_64 ERLMCP_SERVERS=erlmcp bench/profile.sh 7 4 bench/peers.sh 8 1
#
# In percent of all time that the processors were not idle:
#   send, receive, poll, futex   the system's calls, and what these do in the kernel: on one machine
#                                sending has most of the other side's receiving in it
#   kernel                       the rest of it: interrupts, switches of threads, memory
#   emulator                     the runtime's own code: scheduling, ports, memory, BIFs
#   erlang                       compiled Erlang code, and then the modules that have most of it
#   library                      the C library and others
# What has less than one percent is left out, and modules with less than half of one. Names of
# Erlang functions come from the emulator (`+JPperf map`), and cost it some percent.
set -euo pipefail
after=$1
seconds=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v perf >/dev/null || { echo 'there is no perf here' >&2; exit 1; }
ERL_FLAGS="${ERL_FLAGS-} +JPperf map" "$@" >"$work/said" 2>&1 &
running=$!
sleep "$after"
ps -e -o pid=,args= >"$work/processes"
if ! perf record -a -g -F 2000 -o "$work/perf" -- sleep "$seconds" >"$work/perf.log" 2>&1; then
    cat "$work/perf.log" >&2
    kill "$running"
    exit 1
fi

perf script -i "$work/perf" -F pid,ip,sym,dso 2>"$work/perf.log" >"$work/samples"
wait "$running" || { cat "$work/said" >&2; exit 1; }
cat "$work/said"
python3 - "$work/processes" "$work/samples" <<'PY'
import collections, re, sys

KERNEL = [("idle", {"default_idle_call", "cpuidle_idle_call", "pv_native_safe_halt"}),
          ("send", {"do_writev", "__x64_sys_writev", "__x64_sys_write", "__x64_sys_sendto",
                    "__x64_sys_sendmsg"}),
          ("receive", {"__x64_sys_recvfrom", "__x64_sys_recvmsg", "__x64_sys_read",
                       "__x64_sys_readv"}),
          ("poll", {"__x64_sys_epoll_wait", "__x64_sys_epoll_pwait", "__x64_sys_epoll_ctl",
                    "__x64_sys_ppoll", "__x64_sys_poll", "__x64_sys_timerfd_settime"}),
          ("futex", {"__x64_sys_futex"})]

processes = {}
for line in open(sys.argv[1]):
    pid, args = line.split(None, 1)
    # Of a node what it was started for, of any other program its name and what comes first.
    words = args.split(" -extra ", 1)[-1].split()
    processes[int(pid)] = " ".join([words[0].rsplit("/", 1)[-1]] + words[1:4])[:60]

def part(frames):
    names = {name for name, _ in frames}
    name, place = frames[0]
    if "kernel" in place:
        return next((part for part, known in KERNEL if names & known), "kernel")
    if name.startswith("$") and not name.startswith("$global::"):
        return "erlang"
    return "emulator" if "beam" in place or name.startswith("$") else "library"

spent = collections.defaultdict(collections.Counter)
modules = collections.defaultdict(collections.Counter)
for sample in open(sys.argv[2]).read().split("\n\n"):
    lines = sample.strip("\n").split("\n")
    if len(lines) < 2:
        continue
    frames = [re.match(r"\s*[0-9a-f]+ (.*) \((.*)\)$", line) for line in lines[1:]]
    frames = [found.groups() for found in frames if found]
    if frames:
        pid, of = int(lines[0].split()[0]), part(frames)
        spent[pid][of] += 1
        if of == "erlang":
            modules[pid][frames[0][0][1:].split(":")[0]] += 1

total = sum(sum(parts.values()) - parts["idle"] for parts in spent.values())
for pid, parts in sorted(spent.items(), key=lambda of: -sum(of[1].values())):
    all_of_it = sum(parts.values()) - parts.pop("idle", 0)
    if all_of_it * 100 >= total:
        print("\n%5.1f %%  %s" % (100 * all_of_it / total, processes.get(pid, "?")))
        for name, count in parts.most_common():
            if count * 100 >= total:
                print("  %5.1f %%  %s" % (100 * count / total, name))
        for name, count in modules[pid].most_common():
            if count * 200 >= total:
                print("     %5.1f %%  %s" % (100 * count / total, name))
PY
