#!/usr/bin/env bash
# Shows where the processors' time goes while a command runs: for each process, and for an Erlang
# node by activity. Needs Linux's `perf`, and the right to use it.
#
#   bench/profile.sh AFTER SECONDS COMMAND...   profiles for SECONDS, from AFTER seconds on
#
#   bench/profile.sh 14 4 bin/erlmcp bench tcp_sustained_10k_1kib --duration 20
#   ERLMCP_BENCH=peers_list_64 ERLMCP_SERVERS=erlmcp bench/profile.sh 7 4 bench/peers.sh 8 1
#
# In percent of all time in which the processors were not idle:
#   send, receive, poll, futex   these system calls, with their time in the kernel. On one machine
#                                sending includes most of the peer's receiving
#   kernel                       other kernel time: interrupts, thread switches, memory
#   emulator                     the runtime's own code: scheduling, ports, memory, BIFs
#   erlang                       compiled Erlang code, and then its largest modules
#   library                      the C library and others
# Entries below one percent are left out, and modules below half a percent. Names of Erlang
# functions come from the emulator (`+JPperf map`), which costs it some percent.
set -euo pipefail
after=$1
seconds=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v perf >/dev/null || { echo 'there is no perf here' >&2; exit 1; }
ERL_FLAGS="${ERL_FLAGS-} +JPperf map" "$@" >"$work/output" 2>&1 &
running=$!
sleep "$after"
ps -e -o pid=,args= >"$work/processes"
if ! perf record -a -g -F 2000 -o "$work/perf" -- sleep "$seconds" >"$work/perf.log" 2>&1; then
    cat "$work/perf.log" >&2
    kill "$running"
    exit 1
fi

perf script -i "$work/perf" -F pid,ip,sym,dso 2>"$work/perf.log" >"$work/samples"
wait "$running" || { cat "$work/output" >&2; exit 1; }
cat "$work/output"
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
    # A node is shown by its own arguments, any other program by its name and first arguments.
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
