#!/bin/sh
# Builds a server of another SDK that erlmcp is measured beside, and prints its folder.
#
#   bench/peers/build.sh rust|go|typescript|python
#
# They come, once, from the registries that this machine's cargo, go, npm and pip are set up for, at
# the versions locked here, into the user's cache folder; Node is that of scripts/peers.sh. What is
# there already is used as it is.
#
#   rust         FOLDER/rmcp, rmcp-mimalloc, lines; for release, with link-time optimization
#   go           FOLDER/server
#   typescript   FOLDER/node, server.mjs and node_modules
#   python       FOLDER/bin/python and uvicorn; FOLDER/server.py
#
#   ERLMCP_CACHE, ERLMCP_PYTHON     as of scripts/peers.sh
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
cache=${ERLMCP_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/erlmcp}
python=${ERLMCP_PYTHON:-python3}

refuse() {
    printf 'bench peers: %s\n' "$*" >&2
    exit 1
}

needs() {
    for tool in "$@"; do
        command -v "$tool" >/dev/null 2>&1 || refuse "$part needs $tool, and there is none here."
    done
}

# run COMMAND...: what it says is shown where it fails.
run() {
    "$@" >>"$folder/build.log" 2>&1 && return
    tail -n 20 "$folder/build.log" >&2
    refuse "$part could not be built. The whole log: $folder/build.log"
}

rust() {
    needs cargo
    run cargo build --locked --release --manifest-path "$source/Cargo.toml" \
        --target-dir "$folder/target"
    for program in rmcp rmcp-mimalloc lines; do
        mv "$folder/target/release/$program" "$folder/$program"
    done
    rm -rf "$folder/target"
}

go_server() {
    needs go
    run env CGO_ENABLED=0 GOFLAGS='-mod=readonly -trimpath -buildvcs=false' \
        go build -C "$source" -o "$folder/server" .
}

typescript() {
    needs npm
    ln -sfn "$(readlink -f "$("$root/scripts/peers.sh" node)/bin/node")" "$folder/node"
    cp "$source/package.json" "$source/package-lock.json" "$source/server.mjs" "$folder/"
    run npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund --loglevel=error
}

python() {
    needs "$python"
    run "$python" -m venv "$folder"
    run "$folder/bin/python" -m pip install --quiet --no-input --disable-pip-version-check \
        -r "$source/requirements.txt"
    cp "$source/server.py" "$folder/"
}

part=${1:-}
case $part in
    go) build=go_server ;;
    rust | typescript | python) build=$part ;;
    *) refuse "${part:-nothing} is none of: rust go typescript python" ;;
esac
source=$root/bench/peers/$part
key=$(cd "$source" && find . -type f ! -path '*/target/*' ! -path '*/node_modules/*' \
    ! -path '*/__pycache__/*' | LC_ALL=C sort | xargs cat ../build.sh | sha256sum | cut -c 1-16)
folder=$cache/bench-peers-$part-$key
if [ ! -e "$folder/complete" ]; then
    needs flock
    mkdir -p "$folder"
    exec 9>"$cache/bench-peers.lock"
    flock 9
    if [ ! -e "$folder/complete" ]; then
        echo "bench peers: building $part into $folder (once)" >&2
        $build
        touch "$folder/complete"
    fi
    exec 9>&-
fi
echo "$folder"
