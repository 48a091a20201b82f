# Sourced by bench/overload.sh and bench/slow.sh, in the repository's root: builds the server and
# the load generator. start_server and stop_server; load MODE ARGUMENT...
. scripts/env.sh
scripts/build.sh >&2
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT
erlc -o "$work" bench/overload/overload_server.erl
sources=("$PWD"/bench/overload/*.go)
(cd test/interop/go && CGO_ENABLED=0 go build -mod=readonly -o "$work/load" "${sources[@]}")
# Some 10,000 connections on each side.
ulimit -n 16384 2>/dev/null || ulimit -n "$(ulimit -Hn)"

cores=$(nproc)
half=$((cores / 2))
if [ "$half" = 0 ] || [ "${ERLMCP_PIN:-}" = no ]; then
    pin_server=() pin_load=() shares="both have all $cores cores"
else
    pin_server=(taskset -c "0-$((half - 1))") pin_load=(taskset -c "$half-$((cores - 1))")
    shares="the server has $half of $cores cores, the load generator the others"
fi
echo "$seconds s a load; $shares; load before: $(cut -d ' ' -f 1 /proc/loadavg)"

start_server() {
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0));
print(s.getsockname()[1])')
    # As bin/erlmcp starts it.
    ERL_LIBS=${REBAR_BASE_DIR:-_build}/default/lib "${pin_server[@]}" erl +sbwt none \
        +sbwtdcpu none +sbwtdio none -noinput -pa "$work" \
        -eval "overload_server:main([\"$port\"])." &
    server=$!
    for _ in $(seq 100); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return
        sleep 0.1
    done
    echo "nothing listens on port $port" >&2
    exit 1
}

stop_server() {
    # Not in order: nobody wants to read of it.
    kill -KILL "$server"
    wait "$server" 2>/dev/null || true
}

load() {
    "${pin_load[@]}" "$work/load" "$1" "127.0.0.1:$port" "$server" "${@:2}"
}
