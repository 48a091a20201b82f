#!/bin/sh
# Tries a server with what people put it into: frameworks that agents are written in, the Inspector,
# and bridges between transports. All of them list its tools, or call `echo`.
#
#   test/interop/hosts/run.sh URL 'STDIO COMMAND'
#
# Each check is a line; the last line is `N passed, N failed`. Their versions are pinned beside this
# file, and come by scripts/peers.sh.
set -eu

[ $# -eq 2 ] || { echo "usage: $0 URL 'STDIO COMMAND'" >&2; exit 2; }
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../../.." && pwd)
url=$1
command=$2
peers=$("$root/scripts/peers.sh" node frameworks bridges)
PATH=$peers/bridges/node_modules/.bin:$peers/bin:$PATH
work=$(mktemp -d)
bridge=''
trap 'ended; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# Ends the bridge that runs, if one does, and all that it has started.
ended() {
    [ -z "$bridge" ] || { kill "$bridge" && wait "$bridge"; } 2>/dev/null || :
    bridge=''
}

passed=0
failed=0
# check NAME TEXT COMMAND...: the command ends with 0, and its output has the text.
check() {
    name=$1
    text=$2
    shift 2
    status=0
    timeout -k 5 120 "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
    if [ "$status" -eq 0 ] && grep -q -F -e "$text" "$work/out"; then
        passed=$((passed + 1))
        echo "ok - $name"
    else
        failed=$((failed + 1))
        echo "not ok - $name: ended with status $status"
        sed "s/^/# /" "$work/out" "$work/err" | tail -n 20
    fi
}

# A port that nobody has.
free_port() {
    "$peers/bin/node" -e '
        const server = require("net").createServer();
        server.listen(0, "127.0.0.1", () => {
            console.log(server.address().port);
            server.close();
        });'
}

# bridged BRIDGE PATH COMMAND...: starts a bridge, and asks it as two clients, one after the other.
# Its server is one program for both.
bridged() {
    between=$1
    path=$2
    shift 2
    "$@" >"$work/bridge" 2>&1 </dev/null &
    bridge=$!
    tries=0
    until grep -q -i -e listening -e running "$work/bridge"; do
        tries=$((tries + 1))
        if [ "$tries" -ge 600 ] || ! kill -0 "$bridge" 2>/dev/null; then break; fi
        sleep 0.1
    done
    for client in first second; do
        check "$between, the $client client" hello \
            "$root/bin/erlmcp" call "http://127.0.0.1:$port$path" echo text=hello
    done
    ended
}

for framework in langchain pydantic_ai openai_agents llama_index mcp_use smolagents; do
    for way in http stdio; do
        case $way in
            http) set -- "$url" ;;
            stdio) set -- stdio /bin/sh -c "exec $command" ;;
        esac
        check "$framework $way" 'echo answered' \
            "$peers/frameworks/bin/python" "$here/hosts.py" "$framework" "$@"
    done
done

check 'inspector http, list' '"echo"' mcp-inspector --cli "$url" --transport http \
    --method tools/list
check 'inspector http, call' hello mcp-inspector --cli "$url" --transport http \
    --method tools/call --tool-name echo --tool-arg text=hello
check 'inspector stdio, list' '"echo"' mcp-inspector --cli /bin/sh -c "exec $command" \
    --method tools/list

erlmcp=$root/bin/erlmcp
check 'mcp-remote: a URL as a program' hello "$erlmcp" call --env PATH \
    --stdio "mcp-remote $url --allow-http" echo text=hello
line=$("$root/scripts/quoted.sh" "$peers/frameworks/bin/mcp-proxy" \
    --transport streamablehttp "$url")
check 'mcp-proxy: a URL as a program' hello "$erlmcp" call --stdio "$line" echo text=hello

port=$(free_port)
bridged 'mcp-proxy: a program as a URL' /mcp \
    "$peers/frameworks/bin/mcp-proxy" --port "$port" -- /bin/sh -c "exec $command"
port=$(free_port)
bridged 'supergateway: a program as a URL' /sse supergateway --stdio "$command" --port "$port"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
