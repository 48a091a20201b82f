# Sourced by bench/overload.sh and bench/slow.sh, in the repository's root: builds the server and
# the load generator. Defines start_server, stop_server, and load MODE ARGUMENT...
. scripts/env.sh
. bench/ports.sh
scripts/build.sh >&2
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT
erlc -o "$work" bench/overload/overload_server.erl
sources=("$PWD"/bench/overload/*.go)
(cd test/interop/go && CGO_ENABLED=0 go build -mod=readonly -o "$work/load" "${sources[@]}")
# Each side has up to 10,000 connections.
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
    port=$(free_port)
    # The flags of bin/erlmcp.
    ERL_LIBS=${REBAR_BASE_DIR:-_build}/default/lib "${pin_server[@]}" erl +sbwt none \
        +sbwtdcpu none +sbwtdio none -noinput -pa "$work" \
        -eval "overload_server:main([\"$port\"])." &
    server=$!
    await_port "$port"
}

stop_server() {
    # An orderly stop would only print messages.
    kill -KILL "$server"
    wait "$server" 2>/dev/null || true
}

load() {
    "${pin_load[@]}" "$work/load" "$1" "127.0.0.1:$port" "$server" "${@:2}"
}
