# Sourced by the scripts that test the spans of `erlmcp serve` with a program that receives them.
# `receiver` is its name.
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
trace=4bf92f3577b34da6a3ce929d0e0e4736
work=$(mktemp -d)
programs=''
stop() {
    for program in $programs; do
        kill "$program" 2>/dev/null || :
        wait "$program" 2>/dev/null || :
    done
    programs=''
}
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
port=$(erl -noinput -eval '
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Socket),
    io:format("~b", [Port]), halt().')

# start NAME TEXT COMMAND...: starts a program, and waits until it has printed TEXT.
start() {
    name=$1
    text=$2
    shift 2
    : >"$work/$name"
    "$@" >"$work/$name" 2>&1 </dev/null &
    programs="$! $programs"
    tries=0
    until grep -q "$text" "$work/$name"; do
        kill -0 "${programs%% *}" 2>/dev/null && [ "$tries" -lt 300 ] || {
            sed "s/^/# $name: /" "$work/$name" | tail -n 20 >&2
            echo "not ok - $receiver: $name did not start"
            echo '0 passed, 1 failed'
            exit 1
        }
        tries=$((tries + 1))
        sleep 0.1
    done
}

# serve SERVICE: starts a server whose spans go to the port, and calls it in the trace.
serve() {
    OTEL_SERVICE_NAME=$1
    export OTEL_SERVICE_NAME
    start server 'Stop it: ' "$root/bin/erlmcp" serve everything --port 0 \
        --otlp "http://127.0.0.1:$port"
    url=$(sed -n 's|^ *\(http://[^ ]*\)$|\1|p' "$work/server")
    "$root/bin/erlmcp" call "$url" echo text=secret-7 \
        --header "traceparent: 00-$trace-00f067aa0ba902b7-01" >/dev/null
}

passed=0
failed=0
# check WHAT COMMAND...: a line of the result.
check() {
    what=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
        echo "ok - $receiver: $what"
    else
        failed=$((failed + 1))
        echo "not ok - $receiver: $what"
    fi
}

not() { ! "$@"; }
