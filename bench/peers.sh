#!/usr/bin/env bash
# erlmcp beside the official SDKs' servers and nginx, on one machine in one run, with the same tools
# and the same requests: over HTTP/1.1 and TLS (wrk), HTTP/2 (h2load), stdio and TCP (`lines` of
# bench/peers/rust). In turn, in several rounds; servers are started anew for each.
#
#   bench/peers.sh [SECONDS [ROUNDS]]     default: 4 seconds a measurement, 3 rounds
#
# The servers of bench/peers are built into the user's cache the first time, at the versions locked
# there, with their fastest settings. They share no file with those of test/interop, which do what
# these do too: what is measured changes with the benchmark alone.
#
#   rmcp, rmcp_mimalloc   for release, with link-time optimization; tokio, a thread a core; hyper;
#                         on stdio tokio's pipes, several times as fast as what the SDK has there
#   go, go_gogc_off       as it is; GOGC=off with GOMEMLIMIT=4GiB
#   typescript            Node's cluster with a process a core (sessions: one process)
#   python                uvicorn with uvloop and httptools, a worker a core (sessions: one worker)
#   nginx                 `return 200` with the bytes that ours answers: the machine's ceiling
#   bare                  the same from a process for each socket, which does nothing else
#                         (bench/peers/bench_peers_bare.erl): the runtime's ceiling
#
# All answer in JSON. Ours is `erlmcp serve` as it is, with an echo that says it is quick. Answers
# are looked at before a server is measured, and their status and size are checked while it is.
# Connections are in use for a second before what they do counts, but for the percentiles of wrk;
# where these are to be of many connections h2load asks instead. CPU time is what the system says
# of the server's processes.
#
# The results are in bench/results/peers, and a table of them is printed. Those of three rounds or
# more go into bench/baselines, of which docs/performance.md is made. They have to be of one commit:
# nothing may be committed or changed meanwhile.
#
#   ERLMCP_BENCH     the workloads of bench/peers/bench_peers.erl to measure (default: all)
#   ERLMCP_SERVERS   the servers to measure (default: erlmcp rmcp go typescript python nginx bare)
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-4}
rounds=${2:-3}
export PEERS_COMMAND="bench/peers.sh $seconds $rounds"
[[ $seconds == *.* ]] || seconds=$seconds.0
servers=${ERLMCP_SERVERS:-erlmcp rmcp go typescript python nginx bare}

. scripts/env.sh
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
# Our server's module is found as any other.
mkdir -p "$WORK/lib/bench_peers/ebin"
erlc -pa _build/default/lib/erlmcp/ebin -o "$WORK/lib/bench_peers/ebin" bench/peers/*.erl
export ERL_LIBS=$WORK/lib
libs=${REBAR_BASE_DIR:-_build}/default/lib
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -batch \
    -subj /CN=127.0.0.1 -keyout "$WORK/key.pem" -out "$WORK/certificate.pem" 2>/dev/null

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0));
print(s.getsockname()[1])'; }
await() { for _ in $(seq 300); do
        (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return; sleep 0.1
    done
    echo "nothing listens on port $1: see $WORK/$2.log" >&2; cat "$WORK/$2.log" >&2; exit 1; }
# No function: what is started in the background is to be the node itself.
node=(erl +sbwt none +sbwtdcpu none +sbwtdio none -noinput -pa "$libs"/*/ebin)
call() { "${node[@]}" -run "$@" -run init stop; }

# runs NAME: the last one that was started, in the background.
runs() { started+=("$!"); last=$!; }
# at NAME URL, of the last one
at() { printf '{%s, "%s", %s}.\n' "$1" "$2" "$last" >>"$WORK/servers"; }
# Those that say their URL first.
says() {
    for _ in $(seq 300); do
        read -r url 2>/dev/null <"$WORK/$1.log" && break
        sleep 0.1
    done
    [ -n "${url:-}" ] || { echo "$1 did not start" >&2; exit 1; }
    at "$1" "$url"
    url=''
}
# lines KIND NAME PROGRAM ARGUMENT...
lines() {
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
    runs
    await "$http" erlmcp
    at erlmcp "http://127.0.0.1:$http/mcp"
    lines tcp erlmcp "127.0.0.1:$tcp" "$last"
    tls=$(free_port)
    "${node[@]}" -run bench_peers_server tls "$tls" "$WORK/certificate.pem" "$WORK/key.pem" \
        >"$WORK/erlmcp_tls.log" 2>&1 &
    runs
    await "$tls" erlmcp_tls
    at erlmcp_tls "https://127.0.0.1:$tls/mcp"
    lines stdio erlmcp "$PEERS_ERLMCP" serve bench_peers_server --stdio
}
start_rmcp() {
    "$rust/rmcp" --http >"$WORK/rmcp.log" & runs; says rmcp
    "$rust/rmcp-mimalloc" --http >"$WORK/rmcp_mimalloc.log" & runs; says rmcp_mimalloc
    "$rust/rmcp" --http --sessionless >"$WORK/rmcp_sessionless.log" & runs
    says rmcp_sessionless
    lines stdio rmcp "$rust/rmcp"
    lines stdio rmcp_mimalloc "$rust/rmcp-mimalloc"
}
start_go() {
    "$go/server" --http >"$WORK/go.log" & runs; says go
    GOGC=off GOMEMLIMIT=4GiB "$go/server" --http >"$WORK/go_gogc_off.log" & runs
    says go_gogc_off
    lines stdio go "$go/server"
    lines stdio go_gogc_off env GOGC=off GOMEMLIMIT=4GiB "$go/server"
}
start_typescript() {
    local server=("$typescript/node" "$typescript/server.mjs")
    export NODE_ENV=production
    "${server[@]}" --http "$(nproc)" >"$WORK/typescript.log" 2>/dev/null & runs
    says typescript
    "${server[@]}" --http >"$WORK/typescript_sessions.log" 2>/dev/null & runs
    says typescript_sessions
    lines stdio typescript "${server[@]}"
}
start_python() {
    local name port
    for name in python python_sessions; do
        port=$(free_port)
        "$python/bin/python" -m uvicorn --app-dir "$python" server:app --port "$port" \
            --loop uvloop --http httptools --no-access-log --log-level warning \
            --workers "$([ $name = python ] && nproc || echo 1)" >"$WORK/$name.log" 2>&1 &
        runs
        await "$port" "$name"
        at "$name" "http://127.0.0.1:$port/mcp"
    done
    lines stdio python "$python/bin/python" "$python/server.py"
}
# It says what ours says.
start_nginx() {
    local port
    port=$(free_port)
    call bench_peers_http nginx "$(sed -n 's/^{erlmcp, "\([^"]*\)".*/\1/p' "$WORK/servers")" \
        "$port" "$WORK"
    "$tools/usr/sbin/nginx" -c "$WORK/nginx.conf" -p "$WORK" 2>"$WORK/nginx.log" & runs
    await "$port" nginx
    at nginx "http://127.0.0.1:$port/"
}
start_bare() {
    local port
    port=$(free_port)
    "${node[@]}" -run bench_peers_bare serve \
        "$(sed -n 's/^{erlmcp, "\([^"]*\)".*/\1/p' "$WORK/servers")" "$port" \
        >"$WORK/bare.log" 2>&1 &
    runs
    await "$port" bare
    at bare "http://127.0.0.1:$port/"
}

results=bench/results/peers
rm -rf "$results"
echo "$rounds rounds, $seconds s a measurement; $(nproc) cores;" \
    "load before: $(cut -d ' ' -f 1 /proc/loadavg)"
status=0
for round in $(seq "$rounds"); do
    echo "round $round"
    : >"$WORK/servers"
    # What a server of the round before said is not taken for this one's.
    rm -f "$WORK"/*.log
    for server in $servers; do "start_$server"; done
    "${node[@]}" -run bench_peers measure "$WORK/servers" "$results" "$seconds" \
        "${ERLMCP_BENCH:-}" || { status=1; tail -n 5 "$WORK"/*.log >&2; }
    stop
done
call bench_peers kept "$results" "$rounds"
echo "load after: $(cut -d ' ' -f 1 /proc/loadavg)"
call bench_peers table "$results"
if [ "$rounds" -ge 3 ]; then
    bin/erlmcp baseline "$results"
    bin/erlmcp report bench/baselines --page performance --output docs/performance.md
fi
exit "$status"
