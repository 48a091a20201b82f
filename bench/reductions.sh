#!/usr/bin/env bash
# Measures the reductions of requests and records them in bench/reductions.json. A test compares the
# server with them, within 5 %. Run it after an intended change of the reductions.
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/env.sh
scripts/build.sh >&2
erl -noinput -pa "${REBAR_BASE_DIR:-_build}"/default/lib/*/ebin \
    -eval '{ok, Figures} = erlmcp_bench_reductions:record("bench/reductions.json"),
           [io:format("~-20ts ~.1f~n", [Name, Of])
            || Name := Of <- maps:iterator(Figures, ordered)],
           halt().'
