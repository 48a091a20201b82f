#!/bin/sh
# Prints the folder that uPlot stands in, the library that draws a report's plots. With arguments it
# is another package, which the lock in another folder names.
#
#   uplot.sh [FOLDER PACKAGE]
#
# It comes, once, from the registry that npm is set up for, at the version and with the contents
# that package-lock.json names, into the user's cache folder. What is there already is used as it
# is: then nothing is asked of any network, and npm is not needed.
#
#   ERLMCP_CACHE     where it goes (default: $XDG_CACHE_HOME/erlmcp or ~/.cache/erlmcp)
set -eu
exec </dev/null

here=$(CDPATH='' cd -- "${1:-$(dirname -- "$0")}" && pwd)
package=${2:-uplot}
cache=${ERLMCP_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/erlmcp}
folder=$cache/$(basename "$here")-$(sha256sum <"$here/package-lock.json" | cut -c 1-16)

if [ ! -e "$folder/complete" ]; then
    if ! command -v npm >/dev/null 2>&1; then
        echo "$package: npm is wanted, once; there is none here (https://nodejs.org)" >&2
        exit 1
    fi
    echo "$package: installing it into $folder (once)" >&2
    # Made beside and renamed: two at a time do not disturb each other.
    mkdir -p "$cache"
    made=$(mktemp -d "$folder.XXXXXX")
    trap 'rm -rf "$made"' EXIT
    cp "$here/package.json" "$here/package-lock.json" "$made/"
    (cd "$made" && timeout 100 npm ci --ignore-scripts --no-audit --no-fund --loglevel=error \
        --fetch-retries=3 --fetch-retry-mintimeout=1000 --fetch-retry-maxtimeout=5000) >&2
    touch "$made/complete"
    chmod 755 "$made"
    mv -T "$made" "$folder" 2>/dev/null || [ -e "$folder/complete" ]
fi
echo "$folder/node_modules/$package"
