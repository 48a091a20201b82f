#!/usr/bin/env bash
# Compares erlmcp with the official SDKs' servers and nginx on one machine, with the same tools and
# the same requests: over HTTP/1.1 and TLS (wrk), HTTP/2 (h2load), stdio and TCP (`lines` of
# bench/peers/rust). The servers take turns in several rounds, and start again for each round.
#
#   bench/peers.sh [SECONDS [ROUNDS]]     default: 8 seconds a measurement, 3 rounds
#
# This takes 50 minutes. A measurement of less than 8 seconds is marked as shortened.
#
# The servers of bench/peers are built into the user's cache the first time, at the versions locked
# there, with their fastest settings. They share no file with the similar servers of test/interop,
# so that only the benchmark itself changes the figures.
#
#   rmcp, rmcp_mimalloc   for release, with link-time optimization; tokio, a thread a core; hyper;
#                         on stdio tokio's pipes, several times as fast as the SDK's own stdio
#   go, go_gogc_off       unchanged; with GOGC=off and GOMEMLIMIT=4GiB
#   typescript            Node's cluster with a process a core (sessions: one process)
#   python                uvicorn with uvloop and httptools, a worker a core (sessions: one worker)
#   nginx                 `return 200` with the bytes of erlmcp's answer: the machine's ceiling
#   bare                  the same from a process for each socket, which does nothing else
#                         (bench/peers/bench_peers_bare.erl): the runtime's ceiling
#
# All answer in JSON. erlmcp is `erlmcp serve` unchanged, with an echo that is marked quick. Answers
# are checked before a server is measured, and their status and size during the measurement.
# Counting begins when the connections have been in use for a second, except for the percentiles of
# wrk. For percentiles of many connections h2load is used instead. CPU time is the system's figure
# of the server's processes.
#
# The results go into bench/results/peers, and a table of them is printed. Those of three rounds or
# more go into bench/baselines, from which docs/performance.md is made. They must have one commit:
# commit and change nothing meanwhile.
#
#   ERLMCP_BENCH     the workloads of bench/peers/bench_peers.erl to measure (default: all)
#   ERLMCP_SERVERS   the servers to measure (default: erlmcp rmcp go typescript python nginx bare)
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-8}
rounds=${2:-3}
export PEERS_COMMAND="bench/peers.sh $seconds $rounds"
[[ $seconds == *.* ]] || seconds=$seconds.0
servers=${ERLMCP_SERVERS:-erlmcp rmcp go typescript python nginx bare}

. scripts/env.sh
. bench/ports.sh
scripts/build.sh >&2
tools=$(bench/tools.sh)
for peer in rust go typescript python; do
    declare "$peer=$(bench/peers/build.sh "$peer")"
done
ulimit -n "$(ulimit -Hn)"
WORK=$(mktemp -d)
started=()
stop() {
    [ ${#started[@]} -eq 0 ] || kill "${started[@]}" 2>/dev/null || true
    wait "${started[@]}" 2>/dev/null || true
    started=()
}
trap 'stop; rm -rf "$WORK"' EXIT
export WORK TOOLS=$PWD/bench/peers/tools.json ERL_CRASH_DUMP_SECONDS=0
export PEERS_WRK=$tools/usr/bin/wrk PEERS_H2LOAD=$tools/usr/bin/h2load PEERS_LINES=$rust/lines
export PEERS_ERLMCP=$PWD/bin/erlmcp
# The module of our server is found through ERL_LIBS.
mkdir -p "$WORK/lib/bench_peers/ebin"
erlc -pa _build/default/lib/erlmcp/ebin -o "$WORK/lib/bench_peers/ebin" bench/peers/*.erl
export ERL_LIBS=$WORK/lib
libs=${REBAR_BASE_DIR:-_build}/default/lib
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -batch \
    -subj /CN=127.0.0.1 -keyout "$WORK/key.pem" -out "$WORK/certificate.pem" 2>/dev/null

# An array and not a function: the process in the background must be the node itself.
node=(erl +sbwt none +sbwtdcpu none +sbwtdio none -noinput -pa "$libs"/*/ebin)
call() { "${node[@]}" -run "$@" -run init stop; }

# track: remembers the process that was just started in the background.
track() { started+=("$!"); last=$!; }
# add_url NAME URL: adds the server of the last process.
add_url() { printf '{%s, "%s", %s}.\n' "$1" "$2" "$last" >>"$WORK/servers"; }
# await_url NAME: adds the server of the last process, which first prints its URL.
await_url() {
    for _ in $(seq 300); do
        read -r url 2>/dev/null <"$WORK/$1.log" && break
        sleep 0.1
    done
    [ -n "${url:-}" ] || { echo "$1 did not start" >&2; exit 1; }
    add_url "$1" "$url"
    url=''
}
# add_lines KIND NAME PROGRAM ARGUMENT...: adds a server that `lines` connects to or starts.
add_lines() {
    local kind=$1 name=$2 arguments
    shift 2
    arguments=$(printf ', "%s"' "$@")
    printf '{{%s, %s}, [%s]}.\n' "$kind" "$name" "${arguments#, }" >>"$WORK/servers"
}

start_erlmcp() {
    local http tcp tls
    http=$(free_port)
    tcp=$(free_port)
    bin/erlmcp serve bench_peers_server --port "$http" --tcp "$tcp" >"$WORK/erlmcp.log" 2>&1 &
    track
    await_port "$http" "$WORK/erlmcp.log"
    add_url erlmcp "http://127.0.0.1:$http/mcp"
    add_lines tcp erlmcp "127.0.0.1:$tcp" "$last"
    tls=$(free_port)
    "${node[@]}" -run bench_peers_server tls "$tls" "$WORK/certificate.pem" "$WORK/key.pem" \
        >"$WORK/erlmcp_tls.log" 2>&1 &
    track
    await_port "$tls" "$WORK/erlmcp_tls.log"
    add_url erlmcp_tls "https://127.0.0.1:$tls/mcp"
    add_lines stdio erlmcp "$PEERS_ERLMCP" serve bench_peers_server --stdio
}
start_rmcp() {
    "$rust/rmcp" --http >"$WORK/rmcp.log" & track; await_url rmcp
    "$rust/rmcp-mimalloc" --http >"$WORK/rmcp_mimalloc.log" & track; await_url rmcp_mimalloc
    "$rust/rmcp" --http --sessionless >"$WORK/rmcp_sessionless.log" & track
    await_url rmcp_sessionless
    add_lines stdio rmcp "$rust/rmcp"
    add_lines stdio rmcp_mimalloc "$rust/rmcp-mimalloc"
}
start_go() {
    "$go/server" --http >"$WORK/go.log" & track; await_url go
    GOGC=off GOMEMLIMIT=4GiB "$go/server" --http >"$WORK/go_gogc_off.log" & track
    await_url go_gogc_off
    add_lines stdio go "$go/server"
    add_lines stdio go_gogc_off env GOGC=off GOMEMLIMIT=4GiB "$go/server"
}
start_typescript() {
    local server=("$typescript/node" "$typescript/server.mjs")
    export NODE_ENV=production
    "${server[@]}" --http "$(nproc)" >"$WORK/typescript.log" 2>/dev/null & track
    await_url typescript
    "${server[@]}" --http >"$WORK/typescript_sessions.log" 2>/dev/null & track
    await_url typescript_sessions
    add_lines stdio typescript "${server[@]}"
}
start_python() {
    local name port
    for name in python python_sessions; do
        port=$(free_port)
        "$python/bin/python" -m uvicorn --app-dir "$python" server:app --port "$port" \
            --loop uvloop --http httptools --no-access-log --log-level warning \
            --workers "$([ $name = python ] && nproc || echo 1)" >"$WORK/$name.log" 2>&1 &
        track
        await_port "$port" "$WORK/$name.log"
        add_url "$name" "http://127.0.0.1:$port/mcp"
    done
    add_lines stdio python "$python/bin/python" "$python/server.py"
}
# nginx returns the bytes of our answer.
start_nginx() {
    local port
    port=$(free_port)
    call bench_peers_http nginx "$(sed -n 's/^{erlmcp, "\([^"]*\)".*/\1/p' "$WORK/servers")" \
        "$port" "$WORK"
    "$tools/usr/sbin/nginx" -c "$WORK/nginx.conf" -p "$WORK" 2>"$WORK/nginx.log" & track
    await_port "$port" "$WORK/nginx.log"
    add_url nginx "http://127.0.0.1:$port/"
}
start_bare() {
    local port
    port=$(free_port)
    "${node[@]}" -run bench_peers_bare serve \
        "$(sed -n 's/^{erlmcp, "\([^"]*\)".*/\1/p' "$WORK/servers")" "$port" \
        >"$WORK/bare.log" 2>&1 &
    track
    await_port "$port" "$WORK/bare.log"
    add_url bare "http://127.0.0.1:$port/"
}

results=bench/results/peers
rm -rf "$results"
echo "$rounds rounds, $seconds s a measurement; $(nproc) cores;" \
    "load before: $(cut -d ' ' -f 1 /proc/loadavg)"
status=0
for round in $(seq "$rounds"); do
    echo "round $round"
    : >"$WORK/servers"
    # A log of the round before must not be mistaken for this one.
    rm -f "$WORK"/*.log
    for server in $servers; do "start_$server"; done
    "${node[@]}" -run bench_peers measure "$WORK/servers" "$results" "$seconds" \
        "${ERLMCP_BENCH:-}" || { status=1; tail -n 5 "$WORK"/*.log >&2; }
    stop
done
call bench_peers drop_incomplete "$results" "$rounds"
echo "load after: $(cut -d ' ' -f 1 /proc/loadavg)"
call bench_peers table "$results"
if [ "$rounds" -ge 3 ]; then
    bin/erlmcp baseline "$results"
    bench/as_of.sh
    bin/erlmcp report bench/baselines --page performance --output docs/performance.md
fi
exit "$status"
