#!/bin/sh
# Runs test suites in one node, as `scripts/build.sh test` compiled them. (`rebar3 ct --suite` does
# both, but compiles anew whenever the list of suites is another one.) Needs scripts/env.sh.
#
#   scripts/suites.sh [--coverage] LOGS SUITE...     SUITE: apps/APP/test/.../NAME_SUITE
#
# With --coverage it leaves in LOGS which lines of apps/erlmcp the suites have run; see
# erlmcp_test_coverage, whose report adds up what several runs have left.
#
# Exits 1 where a case failed or was skipped, or none ran.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/.."
# Absolute, as the folder of logs is, since a test node runs there.
built=${REBAR_BASE_DIR:-_build}
case $built in /*) ;; *) built=$PWD/$built ;; esac
built=$built/test/lib
begin=true
finish=true
if [ "$1" = --coverage ]; then
    shift
    begin='erlmcp_test_coverage:start()'
    finish='erlmcp_test_coverage:write(Logs)'
fi
logs=$1
shift
mkdir -p "$logs"
logs=$(CDPATH='' cd -- "$logs" && pwd)
# The node writes this file at its end: one that a case has ended has not run them all.
ended=$logs/ended
rm -f "$ended"
# rebar3 puts all that an application's test folder has into one folder.
for suite in "$@"; do
    shift
    app=${suite#*/}
    set -- "$@" "$built/${app%%/*}/test/${suite##*/}"
done
erl -noinput -pa "$built"/*/ebin "$built"/*/test -eval '
    ok = logger:remove_handler(default),
    [Logs, Ended | Suites] = init:get_plain_arguments(),
    '"$begin"',
    Outcome = ct:run_test([{suite, Suites}, {logdir, Logs}, {auto_compile, false}]),
    '"$finish"',
    case Outcome of
        {Passed, 0, {0, 0}} when Passed > 0 -> ok = file:write_file(Ended, <<>>), halt(0);
        _ -> halt(1)
    end.' -extra "$logs" "$ended" "$@"
[ -e "$ended" ] || exit 1
# What is no case is in no sum: the end of a suite, or what it says of its groups.
newest=$(find "$logs" -maxdepth 1 -name 'ct_run.*' | LC_ALL=C sort | tail -n 1)
! find "$newest" -name suite.log -exec cat {} + | grep -q '^=result *failed'
