#!/bin/sh
# Prints the folder of playwright-core, with which test/console drives a browser. It comes, once,
# from the registry that npm is set up for, at the locked version, into the user's cache folder.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
exec sh "$root/apps/erlmcp_bench/priv/report/uplot.sh" "$root/test/console" playwright-core
