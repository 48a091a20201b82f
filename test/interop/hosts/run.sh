#!/bin/sh
# Tries a server with its usual users: frameworks for agents, the Inspector, bridges between
# transports, coding agents, and a gateway. All of them list its tools, or call `echo`.
#
#   test/interop/hosts/run.sh URL SSE_URL 'STDIO COMMAND'
#
# SSE_URL is the stream of HTTP+SSE of 2024-11-05. Each check is a line, and the last line is `N
# passed, N failed`. The versions are pinned next to this file, and scripts/peers.sh installs them.
#
#   ERLMCP_HOSTS    the kinds to try (default: frameworks bridges agents contextforge)
set -eu

[ $# -eq 3 ] || { echo "usage: $0 URL SSE_URL 'STDIO COMMAND'" >&2; exit 2; }
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../../.." && pwd)
url=$1
sse=$2
command=$3
hosts=${ERLMCP_HOSTS:-frameworks bridges agents contextforge}
peers=$("$root/scripts/peers.sh" node $hosts)
erlmcp=$root/bin/erlmcp
PATH=$peers/bridges/node_modules/.bin:$peers/agents/node_modules/.bin:$peers/bin:$PATH
work=$(mktemp -d)
helper=''
trap 'ended; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# started PATTERN COMMAND...: starts a program, and waits until its output has the pattern.
started() {
    pattern=$1
    shift
    # The output of the program before must not be mistaken for this one's.
    : >"$work/helper"
    "$@" >"$work/helper" 2>&1 </dev/null &
    helper=$!
    tries=0
    until grep -q -i -e "$pattern" "$work/helper"; do
        tries=$((tries + 1))
        if [ "$tries" -ge 600 ] || ! kill -0 "$helper" 2>/dev/null; then
            # The next check fails, and this is why.
            sed "s/^/# /" "$work/helper" | tail -n 20
            return
        fi
        sleep 0.1
    done
}

# Ends the program that was started, if there is one, with all its children.
ended() {
    [ -z "$helper" ] || { kill "$helper" && wait "$helper"; } 2>/dev/null || :
    helper=''
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

# Prints a free port.
free_port() {
    "$peers/bin/node" -e '
        const server = require("net").createServer();
        server.listen(0, "127.0.0.1", () => {
            console.log(server.address().port);
            server.close();
        });'
}

# bridged BRIDGE PATH COMMAND...: starts a bridge, and uses it as two clients, one after the other.
# Its server is one program for both.
bridged() {
    between=$1
    path=$2
    shift 2
    started 'listening\|running' "$@"
    for client in first second; do
        check "$between, the $client client" hello \
            "$erlmcp" call "http://127.0.0.1:$port$path" echo text=hello
    done
    ended
}

frameworks() {
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
}

bridges() {
    check 'inspector http, list' '"echo"' mcp-inspector --cli "$url" --transport http \
        --method tools/list
    check 'inspector http, call' hello mcp-inspector --cli "$url" --transport http \
        --method tools/call --tool-name echo --tool-arg text=hello
    check 'inspector stdio, list' '"echo"' mcp-inspector --cli /bin/sh -c "exec $command" \
        --method tools/list

    check 'mcp-remote: a URL as a program' hello "$erlmcp" call --env PATH \
        --stdio "mcp-remote $url --allow-http" echo text=hello
    mcp_proxy=$peers/frameworks/bin/mcp-proxy
    line=$("$root/scripts/quoted.sh" "$mcp_proxy" --transport streamablehttp "$url")
    check 'mcp-proxy: a URL as a program' hello "$erlmcp" call --stdio "$line" echo text=hello

    port=$(free_port)
    bridged 'mcp-proxy: a program as a URL' /mcp \
        "$mcp_proxy" --port "$port" -- /bin/sh -c "exec $command"
    port=$(free_port)
    bridged 'supergateway: a program as a URL' /sse supergateway --stdio "$command" --port "$port"
}

# An agent's model runs at its maker, and needs an account. Here a program plays the model: it calls
# `echo`, and repeats the answer. Everything else is the agent's own.
agents() {
    # One word, which every agent takes for a program.
    printf '#!/bin/sh\nexec %s\n' "$command" >"$work/server"
    chmod +x "$work/server"
    started '^http' node "$here/agents/model.mjs"
    model=$(cat "$work/helper")
    for way in http sse stdio; do
        case $way in
            http) target=$url ;;
            sse) target=$sse ;;
            stdio) target=$work/server ;;
        esac
        for agent in claude_code gemini codex; do
            # The agent sees no settings of this machine, and no key.
            home=$work/$agent-$way
            mkdir -p "$home/project"
            "$agent" env -C "$home/project" -i HOME="$home" PATH="$PATH"
        done
    done
    ended
}

# The agent's install script, which does not run here, would install its binary; the wrapper finds
# it.
claude_code() {
    set -- "$@" ANTHROPIC_BASE_URL="$model" ANTHROPIC_API_KEY=none ENABLE_TOOL_SEARCH=false \
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_AUTOUPDATER=1 \
        node "$peers/agents/node_modules/@anthropic-ai/claude-code/cli-wrapper.cjs"
    check "claude code $way, add" Added "$@" mcp add --transport "$way" mine "$target"
    check "claude code $way, list" 'Connected' "$@" mcp list
    check "claude code $way, call" "$hello" "$@" -p 'Say hello.' --allowedTools mcp__mine__echo
}

gemini() {
    mkdir "$home/.gemini"
    cp "$here/agents/gemini.json" "$home/.gemini/settings.json"
    set -- "$@" GOOGLE_GEMINI_BASE_URL="$model" GEMINI_API_KEY=none \
        GEMINI_CLI_TRUST_WORKSPACE=true sh -c 'exec gemini "$@" 2>&1' -
    check "gemini $way, add" added \
        "$@" mcp add --scope user --trust --transport "$way" mine "$target"
    check "gemini $way, list" Connected "$@" mcp list
    check "gemini $way, call" "$hello" "$@" --model gemini-2.5-flash --prompt 'Say hello.'
}

codex() {
    case $way in
        http) check 'codex http, add' Added "$@" codex mcp add mine --url "$target" ;;
        stdio) check 'codex stdio, add' Added "$@" codex mcp add mine -- "$target" ;;
        # This agent has no HTTP+SSE.
        sse) return ;;
    esac
    set -- "$@" codex exec --skip-git-repo-check --config analytics.enabled=false \
        --config model=played --config model_provider=played \
        --config "model_providers.played={name=\"played\", base_url=\"$model/v1\"}"
    check "codex $way, call" "$hello" "$@" 'Say hello.'
}

# 32 random octets.
secret() { od -An -v -N 32 -t x1 /dev/urandom | tr -d ' \n'; }

# The gateway has its own users and database for the time of the test.
contextforge() {
    home=$work/contextforge
    mkdir "$home"
    port=$(free_port)
    gateway=http://127.0.0.1:$port
    set -- env -C "$home" -i HOME="$home" PATH="$PATH" CACHE_TYPE=memory \
        DATABASE_URL="sqlite:///$home/mcp.db" SSRF_ALLOW_LOCALHOST=true LOG_LEVEL=INFO \
        JWT_SECRET_KEY="$(secret)" AUTH_ENCRYPTION_SECRET="$(secret)" \
        BASIC_AUTH_PASSWORD="$(secret)" PLATFORM_ADMIN_PASSWORD="$(secret)"
    started "running on $gateway" "$@" "$peers/contextforge/bin/mcpgateway" --port "$port"
    python=$peers/contextforge/bin/python
    ERLMCP_TOKEN=$("$@" "$python" -m mcpgateway.utils.create_jwt_token --admin \
        --username admin@example.com --exp 60 2>"$work/err" | tail -n 1)
    export ERLMCP_TOKEN
    for way in streamablehttp sse; do
        case $way in
            streamablehttp) target=$url ;;
            sse) target=$sse ;;
        esac
        check "contextforge $way, register" 'tools' \
            "$python" "$here/contextforge.py" "$gateway" "$way" "$target"
        check "contextforge $way, call" "$hello" \
            "$erlmcp" call "$gateway/mcp" "$way-echo" "text=$hello"
    done
    unset ERLMCP_TOKEN
    ended
}

# The text that identifies an answer of `echo`.
hello='hello from a host'
for kind in $hosts; do "$kind"; done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
