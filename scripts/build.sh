#!/bin/sh
# Compiles the project, one build at a time, makes the boot scripts of the command, and leaves a
# stamp with the time. With the word `test` it also compiles the test suites for scripts/suites.sh.
# Needs scripts/env.sh.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/.."
build=${REBAR_BASE_DIR:-$PWD/_build}
case $build in /*) ;; *) build=$PWD/$build ;; esac
mkdir -p "$build/default"
if command -v flock >/dev/null 2>&1; then
    exec 9>"$build/default/build.lock"
    flock 9
fi
# The stamp has the time before the compiler reads: files that change meanwhile are newer.
touch "$build/default/building"
rebar3 compile
# What draws the console's plots comes from npm, and is part of no commit. Without it the console
# has figures, but no plots.
plots=apps/erlmcp_console/priv/console/uplot
if uplot=$(sh apps/erlmcp_bench/priv/report/uplot.sh); then
    mkdir -p "$plots"
    for file in dist/uPlot.iife.min.js dist/uPlot.min.css LICENSE; do
        cmp -s "$uplot/$file" "$plots/${file##*/}" || cp "$uplot/$file" "$plots/"
    done
fi
ERL_CRASH_DUMP_SECONDS=0 erl -noinput -boot no_dot_erlang -pa "$build"/default/lib/*/ebin \
    -run erlmcp_cli_boot make -extra "$build/default" </dev/null
mv "$build/default/building" "$build/default/built"
[ "${1:-}" != test ] || rebar3 as test compile
