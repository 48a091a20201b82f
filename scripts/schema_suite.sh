#!/bin/sh
# Prints the folder with JSON Schema's official test suite (tests/ and remotes/). The suite comes in
# the source distribution of PyPI jsonschema, which the machine's pip downloads once into the user's
# cache, at the version and hash below. Nothing of it is built or run.
#
#   ERLMCP_CACHE     the cache (default: $XDG_CACHE_HOME/erlmcp or ~/.cache/erlmcp)
#   ERLMCP_PYTHON    the Python whose pip downloads it
set -eu

version=4.26.0
sha256=0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326

cache=${ERLMCP_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/erlmcp}
python=${ERLMCP_PYTHON:-python3}
folder=$cache/schema-suite-$(printf %s "$sha256" | cut -c 1-16)

refuse() {
    printf 'schema_suite: %s\n' "$*" >&2
    exit 1
}

# pip asks a source distribution's build backend for its name before it keeps the file. This stands
# in for the backend, so that neither the backend nor its dependencies are downloaded and run.
backend() {
    mkdir -p "$1/hatchling"
    : >"$1/hatchling/__init__.py"
    cat >"$1/hatchling/build.py" <<PYTHON
import os


def get_requires_for_build_wheel(settings=None):
    return []


def prepare_metadata_for_build_wheel(folder, settings=None):
    name = "jsonschema-$version.dist-info"
    os.mkdir(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: jsonschema\\nVersion: $version\\n")
    return name
PYTHON
}

install() {
    "$python" -m pip --version >/dev/null 2>&1 ||
        refuse "the test suite needs a Python with pip, and $python is none (ERLMCP_PYTHON)."
    work=$(mktemp -d "$cache/schema-suite.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
    backend "$work/backend"
    echo "jsonschema==$version --hash=sha256:$sha256" >"$work/requirements.txt"
    PYTHONPATH=$work/backend "$python" -m pip download --quiet --no-input --no-deps \
        --disable-pip-version-check --retries 3 --timeout 30 --require-hashes \
        --no-binary :all: --no-build-isolation --dest "$work" -r "$work/requirements.txt" \
        >"$work/log" 2>&1 || {
        tail -n 5 "$work/log" >&2
        refuse "pip could not download the source distribution of jsonschema $version."
    }
    tar -xzf "$work/jsonschema-$version.tar.gz" -C "$work" "jsonschema-$version/json"
    rm -rf "$folder"
    mv "$work/jsonschema-$version/json" "$folder"
}

if [ ! -d "$folder" ]; then
    command -v flock >/dev/null 2>&1 || refuse 'installing needs flock (util-linux).'
    mkdir -p "$cache"
    exec 9>"$cache/schema-suite.lock"
    flock 9
    [ -d "$folder" ] || install
fi
echo "$folder"
