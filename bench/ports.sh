# Sourced by scripts of bash.
# free_port: prints a port of this machine that no process listens on.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'
}

# await_port PORT [LOG]: waits until a process listens on the port, for 30 seconds. Then it shows
# the log, and exits.
await_port() {
    for _ in $(seq 300); do
        (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return
        sleep 0.1
    done
    echo "nothing listens on port $1${2:+: see $2}" >&2
    [ -z "${2:-}" ] || cat "$2" >&2
    exit 1
}
