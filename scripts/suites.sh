#!/bin/sh
# Runs test suites in one node, as compiled by `scripts/build.sh test`. (`rebar3 ct --suite` also
# compiles, but again for each new list of suites.) Needs scripts/env.sh.
#
#   scripts/suites.sh [--coverage] LOGS SUITE...     SUITE: apps/APP/test/.../NAME_SUITE
#
# With --coverage it leaves in LOGS which lines of apps/erlmcp the suites have run; see
# erlmcp_test_coverage, whose report adds up what several runs have left.
#
# Exits with 1 if a case failed or was skipped, or if none ran. A case may be skipped if it needs
# what this machine lacks; see scripts/left_out.sh.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/.."
# These paths are absolute, since a test node runs in the folder of logs.
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
# The node writes this file at its end. If a case ends the node early, the file is missing.
ended=$logs/ended
rm -f "$ended"
# rebar3 puts everything in an application's test folder into one folder.
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
        {Passed, 0, {Skipped, 0}} when Passed > 0 ->
            ok = file:write_file(Ended, integer_to_list(Skipped)),
            halt(0);
        _ ->
            halt(1)
    end.' -extra "$logs" "$ended" "$@"
[ -e "$ended" ] || exit 1
# The end of a suite and the description of its groups are not cases, and are not counted.
newest=$(find "$logs" -maxdepth 1 -name 'ct_run.*' | LC_ALL=C sort | tail -n 1)
[ "$(cat "$ended")" -eq "$(scripts/left_out.sh "$newest" | wc -l)" ] || exit 1
! find "$newest" -name suite.log -exec cat {} + | grep -q '^=result *failed'
