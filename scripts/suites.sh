#!/bin/sh
# Runs test suites in one node, as `scripts/build.sh test` compiled them. (`rebar3 ct --suite` does
# both, but compiles anew whenever the list of suites is another one.) Needs scripts/env.sh.
#
#   scripts/suites.sh LOGS SUITE...     SUITE: apps/APP/test/.../NAME_SUITE
#
# Exits 1 where a case failed or was skipped, or none ran.
set -eu
cd "$(dirname -- "$0")/.."
# Absolute, since a test node runs in its folder of logs.
built=${REBAR_BASE_DIR:-_build}
case $built in /*) ;; *) built=$PWD/$built ;; esac
built=$built/test/lib
logs=$1
shift
mkdir -p "$logs"
# rebar3 puts all that an application's test folder has into one folder.
for suite in "$@"; do
    shift
    app=${suite#*/}
    set -- "$@" "$built/${app%%/*}/test/${suite##*/}"
done
exec erl -noinput -pa "$built"/*/ebin "$built"/*/test -eval '
    ok = logger:remove_handler(default),
    [Logs | Suites] = init:get_plain_arguments(),
    case ct:run_test([{suite, Suites}, {logdir, Logs}, {auto_compile, false}]) of
        {Passed, 0, {0, 0}} when Passed > 0 -> halt(0);
        _ -> halt(1)
    end.' -extra "$logs" "$@"
