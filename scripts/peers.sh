#!/bin/sh
# Installs the official MCP programs that erlmcp is tried against and prints their folder.
#
#   scripts/peers.sh [node | typescript | python2 | python1 | go | rust | oidc | conformance |
#                     frameworks | bridges | agents | contextforge ...]
#
# They come, once, from the registries that this machine's npm, pip, go and cargo are set up for, at
# the versions locked under test/interop and test/conformance, into the user's cache folder. What is
# there already is used as it is: then nothing is asked of any network. The default is all of them
# but the last four, which `make test` does not run.
#
#   FOLDER/bin/node                     Node 22 or later: the machine's own, or one from npm
#   FOLDER/typescript/node_modules      @modelcontextprotocol/client, server, server-everything
#   FOLDER/conformance/node_modules     @modelcontextprotocol/conformance
#   FOLDER/oidc/node_modules            oidc-provider
#   FOLDER/frameworks/bin/python        frameworks that agents are written in, mcp-proxy
#   FOLDER/bridges/node_modules         the Inspector, mcp-remote, supergateway
#   FOLDER/agents/node_modules          Claude Code, Codex, Gemini CLI
#   FOLDER/contextforge/bin/python      a gateway, mcp-contextforge-gateway (Python 3.11 to 3.13)
#   FOLDER/python2/bin/python           PyPI mcp 2.x; python1: mcp 1.x
#   FOLDER/go/client, server            test/interop/go, built with github.com/.../go-sdk
#   FOLDER/rust/client, server          test/interop/rust, built with the crate rmcp
#
#   ERLMCP_CACHE     where it goes (default: $XDG_CACHE_HOME/erlmcp or ~/.cache/erlmcp)
#   ERLMCP_PYTHON    the Python (3.10 or later) to make the virtual environments with
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cache=${ERLMCP_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/erlmcp}
python=${ERLMCP_PYTHON:-python3}

say() { printf 'peers: %s\n' "$*" >&2; }

refuse() {
    say "$@"
    exit 1
}

# made_of LOCK: what stands for a part of test/interop/hosts.
made_of() { sha256sum <"$root/test/interop/hosts/$1"; }

# One file per part names what it was made with; a part is whole when the file is there.
fits() {
    case $1 in
        python?) made_with=$(readlink -f "$(command -v "$python")") || made_with='' ;;
        frameworks) made_with=$(made_of requirements.txt)$(command -v "$python") ;;
        contextforge) made_with=$(made_of contextforge.txt)$(command -v "$python") ;;
        bridges) made_with=$(made_of package-lock.json) ;;
        agents) made_with=$(made_of agents/package-lock.json) ;;
        # These are built of our own source too.
        go | rust) made_with=$(cd "$root/test/interop/$1" &&
            find . -type f ! -path './target/*' | LC_ALL=C sort | xargs cat | sha256sum) ;;
        *) made_with=lock ;;
    esac
    [ -e "$folder/$1.complete" ] || return 1
    read -r made <"$folder/$1.complete" || return 1
    case $1 in
        node) [ -x "$folder/bin/node" ] ;;
        go | rust) [ -x "$folder/$1/server" ] && [ "$made" = "$made_with" ] ;;
        bridges | agents) [ "$made" = "$made_with" ] ;;
        # A Python that is gone, or is another one now, takes its environments with it.
        python? | frameworks | contextforge)
            [ -x "$folder/$1/bin/python" ] && [ "$made" = "$made_with" ]
            ;;
    esac
}

# npm_ci PART LOCK_FOLDER
npm_ci() {
    command -v npm >/dev/null 2>&1 ||
        refuse "$1 needs npm; there is none here. Install Node.js with npm (https://nodejs.org)."
    rm -rf "${folder:?}/$1"
    mkdir -p "$folder/$1"
    cp "$root/$2/package.json" "$root/$2/package-lock.json" "$folder/$1/"
    (cd "$folder/$1" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error \
        --fetch-retries=3 --fetch-retry-mintimeout=1000 --fetch-retry-maxtimeout=5000) \
        >"$folder/$1.log" 2>&1 || failed "$1" 'npm could not install the packages of' "$2"
}

# pip_install PART REQUIREMENTS
pip_install() {
    command -v "$python" >/dev/null 2>&1 ||
        refuse "$1 needs Python 3.10 or later, and there is no $python here (ERLMCP_PYTHON)."
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        refuse "$1 needs Python 3.10 or later; $python is $("$python" --version) (ERLMCP_PYTHON)."
    rm -rf "${folder:?}/$1"
    "$python" -m venv "$folder/$1" >"$folder/$1.log" 2>&1 ||
        failed "$1" "$python has no working venv module (Debian: python3-venv); wanted for" "$1"
    list=$2
    "$folder/$1/bin/python" -m pip install --quiet --no-input --disable-pip-version-check \
        --retries 3 --timeout 30 -r "$root/$list" \
        >"$folder/$1.log" 2>&1 || failed "$1" 'pip could not install the packages of' "$list"
}

# program PART TOOL: what the part is built with.
program() {
    command -v "$2" >/dev/null 2>&1 ||
        refuse "$1 needs $2, and there is none here. ERLMCP_PEERS leaves one out; see" \
            'test/interop/run.sh.'
    rm -rf "${folder:?}/$1"
    mkdir -p "$folder/$1"
}

go_build() {
    program go go
    (cd "$root/test/interop/go" &&
        export CGO_ENABLED=0 GOFLAGS='-mod=readonly -trimpath -buildvcs=false' &&
        go build -o "$folder/go/client" . && go build -o "$folder/go/server" ./server) \
        >"$folder/go.log" 2>&1 || failed go 'go (1.25 or later) could not build' test/interop/go
}

cargo_build() {
    program rust cargo
    (cd "$root/test/interop/rust" &&
        cargo build --locked --quiet --target-dir "$folder/rust/target") \
        >"$folder/rust.log" 2>&1 ||
        failed rust 'cargo (Rust 1.88 or later) could not build' test/interop/rust
    mv "$folder/rust/target/debug/erlmcp-interop" "$folder/rust/client"
    mv "$folder/rust/target/debug/erlmcp-catalogue" "$folder/rust/server"
    rm -rf "$folder/rust/target"
}

# failed PART WHAT OF
failed() {
    tail -n 5 "$folder/$1.log" >&2
    refuse "$2 $3. The whole log: $folder/$1.log. The rest of what is installed stays; run again."
}

node_22() {
    own=$(command -v node) && [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 22 ]
}

build() {
    say "installing $1 into $folder (once)"
    rm -f "$folder/$1.complete"
    case $1 in
        node)
            if node_22; then
                node=$own
            else
                npm_ci node test/interop/node
                # They are optional to npm, one per machine: what it could not get, it leaves out.
                node=$(ls "$folder"/node/node_modules/node-*/bin/node 2>/dev/null) ||
                    refuse "no Node 22 here, and npm could not get one for $(uname -sm) from its" \
                        'registry. Install Node 22 or later (https://nodejs.org) and run again.'
            fi
            mkdir -p "$folder/bin"
            ln -sfn "$node" "$folder/bin/node"
            "$folder/bin/node" --version >/dev/null || refuse "$node does not start."
            ;;
        typescript) npm_ci typescript test/interop/typescript ;;
        oidc) npm_ci oidc test/interop/oidc ;;
        conformance) npm_ci conformance test/conformance ;;
        python?) pip_install "$1" "test/interop/python/requirements-$1.txt" ;;
        frameworks) pip_install "$1" test/interop/hosts/requirements.txt ;;
        contextforge) pip_install "$1" test/interop/hosts/contextforge.txt ;;
        bridges) npm_ci bridges test/interop/hosts ;;
        agents) npm_ci agents test/interop/hosts/agents ;;
        go) go_build ;;
        rust) cargo_build ;;
    esac
    echo "$made_with" >"$folder/$1.complete"
}

# What `make test` runs.
all='node typescript python2 python1 go rust oidc conformance'
[ $# -gt 0 ] || set -- $all
for part in "$@"; do
    case $part in
        # Programs of Node come with the Node that runs them.
        typescript | oidc | conformance | agents) parts="${parts:-} node $part" ;;
        # One of the bridges is a program of Python, and comes with the frameworks.
        bridges) parts="${parts:-} node frameworks bridges" ;;
        node | python1 | python2 | frameworks | contextforge | go | rust)
            parts="${parts:-} $part"
            ;;
        *) refuse "$part is none of: $all frameworks bridges agents contextforge" ;;
    esac
done

folder=$cache/peers-$(cd "$root" && cat scripts/peers.sh test/interop/node/package-lock.json \
    test/interop/typescript/package-lock.json test/interop/oidc/package-lock.json \
    test/conformance/package-lock.json \
    test/interop/python/requirements-python?.txt test/interop/go/go.sum \
    test/interop/rust/Cargo.lock | sha256sum | cut -c 1-16)
for part in $parts; do
    fits "$part" && continue
    command -v flock >/dev/null 2>&1 || refuse 'installing needs flock (util-linux).'
    mkdir -p "$folder"
    exec 9>"$cache/peers.lock"
    flock 9
    fits "$part" || build "$part"
    exec 9>&-
done
echo "$folder"
