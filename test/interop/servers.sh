#!/bin/sh
# Visits servers with erlmcp's client: those of the official SDKs, which serve one catalogue, npm's
# server-everything, and our own everything server, if its addresses are given.
#
#   test/interop/servers.sh [http=URL sse=URL 'stdio=COMMAND']
#
# Every check is a line. A table of features and servers follows, and the last line is
# `N passed, N failed`. The exit status is 1 if a check failed, or a visit made another number of
# checks than test/interop/servers.eterm says. Needs a built project and scripts/env.sh.
#
#   ERLMCP_PEERS    the SDKs (default: typescript python2 python1 go rust); npm's server comes with
#                   typescript
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$here/../..
# Erlang looks for modules in its current folder.
cd "$root"
sdks=${ERLMCP_PEERS:-typescript python2 python1 go rust}
peers=$("$root/scripts/peers.sh" node $sdks)
export CATALOGUE="$here/catalogue.json"
work=$(mktemp -d)
server=''
stop() {
    [ -z "$server" ] || { kill "$server" 2>/dev/null || :; wait "$server" 2>/dev/null || :; }
    server=''
}
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# Node resolves the server's imports from its folder.
ln -s "$peers/typescript/node_modules" "$work/node_modules"
cp "$here/typescript/server.mjs" "$work/server.mjs"
erlc -o "$work" "$here"/visit/*.erl

passed=0
failed=0
: >"$work/all"
: >"$work/log"
# visit SERVER TARGET...
visit() {
    visited=$1
    shift
    status=0
    timeout -k 5 300 erl -noinput -pa "$work" -pa "$root"/_build/default/lib/*/ebin \
        -eval 'visit:main(init:get_plain_arguments()).' -extra \
        "$visited" "$here/servers.eterm" "$@" >"$work/out" 2>"$work/err" || status=$?
    sed '$d' "$work/out" | tee -a "$work/all"
    count=$(tail -n 1 "$work/out")
    case $count in
        *' passed, '*' failed') ;;
        # The visit died early, which is a failure whatever it printed before.
        *)
            echo "$count"
            echo "not ok - $visited: ended with status $status before its last line"
            count="$(grep -c '^ok - ' "$work/out") passed, $(($(grep -c '^not ok - ' \
                "$work/out") + 1)) failed" || :
            ;;
    esac
    now=${count##*passed, }
    now=${now% failed}
    passed=$((passed + ${count%% passed*}))
    failed=$((failed + now))
    [ "$now" -eq 0 ] ||
        awk -v name="$visited" '{ print "# " name ": " $0 }' "$work/err" "$work/log" |
        tail -n 40
}

# listens PATTERN: waits for a line of the server's output with this pattern.
listens() {
    tries=0
    until grep -q "$1" "$work/output" "$work/log"; do
        kill -0 "$server" 2>/dev/null || break
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || break
        sleep 0.1
    done
}

# sdk NAME COMMAND...: visits the SDK's server over HTTP, stdio, and HTTP+SSE if the plan has it.
sdk() {
    name=$1
    shift
    : >"$work/output"
    "$@" --http >"$work/output" 2>"$work/log" </dev/null &
    server=$!
    listens '^http:'
    url=$(head -n 1 "$work/output")
    visit "$name" "http=$url" "sse=${url%/mcp}/sse" "stdio=$("$root/scripts/quoted.sh" "$@")"
    stop
}

# The server takes its port as an argument and does not print it: a port that was just free.
server_everything() {
    program=$peers/typescript/node_modules/@modelcontextprotocol/server-everything/dist/index.js
    port=$("$peers/bin/node" -e 'require("net").createServer().listen(0, "127.0.0.1", function () {
        console.log(this.address().port); process.exit(); })')
    : >"$work/output"
    PORT=$port "$peers/bin/node" "$program" streamableHttp \
        >"$work/output" 2>"$work/log" </dev/null &
    server=$!
    listens 'listening on port'
    visit server-everything "http=http://127.0.0.1:$port/mcp" \
        "stdio=$("$root/scripts/quoted.sh" "$peers/bin/node" "$program" stdio)"
    stop
}

for sdk in $sdks; do
    case $sdk in
        typescript)
            sdk "$sdk" "$peers/bin/node" "$work/server.mjs"
            server_everything
            ;;
        python?) sdk "$sdk" "$peers/$sdk/bin/python" "$here/python/server${sdk#python}.py" ;;
        *) sdk "$sdk" "$peers/$sdk/server" ;;
    esac
done
: >"$work/log"
[ $# -eq 0 ] || visit erlmcp "$@"

# A cell is the outcome in all revisions and over all transports with this check.
awk '
    {
        line = $0
        verdict = substr(line, 1, index(line, " - ") - 1)
        line = substr(line, index(line, " - ") + 3)
        split(line, words, " ")
        server = words[1]
        feature = substr(line, index(line, ": ") + 2)
        if (verdict != "ok") {
            # The reason follows the feature.
            for (known in order) if (index(feature, known ": ") == 1) feature = known
        }
        if (!(server in columns)) { columns[server] = ++width; names[width] = server }
        if (!(feature in order)) { order[feature] = ++height; rows[height] = feature }
        cell = verdict == "ok" ? "yes" : verdict == "fault" ? "fault" : "FAILED"
        was = cells[feature, server]
        if (was == "" || was == "yes" || cell == "FAILED") cells[feature, server] = cell
    }
    END {
        printf "# | feature |"
        for (column = 1; column <= width; column++) printf " %s |", names[column]
        printf "\n# | --- |"
        for (column = 1; column <= width; column++) printf " --- |"
        printf "\n"
        for (row = 1; row <= height; row++) {
            printf "# | %s |", rows[row]
            for (column = 1; column <= width; column++) {
                cell = cells[rows[row], names[column]]
                printf " %s |", cell == "" ? "-" : cell
            }
            printf "\n"
        }
    }' "$work/all"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
