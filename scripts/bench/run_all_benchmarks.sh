#!/bin/sh
# Runs benchmarks and faults, one after the other, and checks their results.
#
#   scripts/bench/run_all_benchmarks.sh quick|standard|full|ci [FOLDER]
#
#   quick      every module, in its shortest useful form: 2 minutes
#   ci         the same, and all faults
#   standard   every workload for at most 30 seconds, all faults: half an hour
#   full       every workload, fault and scenario as described: 28 hours
#
# The results go into FOLDER of the project (bench/results). Everything runs, even after a failure.
# The exit code is that of the first failure: 1 failed, 2 wrong use, 3 metrology.
set -u
CDPATH='' cd -- "$(dirname -- "$0")/../.." || exit 1
results=${2:-bench/results}
ended=0

run() {
    bin/erlmcp "$@" || { status=$? && [ "$ended" -ne 0 ] || ended=$status; }
}

[ $# -eq 1 ] || [ $# -eq 2 ] || set -- usage
case $1 in
    quick)
        run bench all --quick --json "$results"
        run chaos chaos_process_crash chaos_invalid_payload --short --json "$results"
        ;;
    ci)
        run bench all --quick --json "$results"
        run chaos all --short --json "$results"
        ;;
    standard)
        run bench core_ops integration memory scaling stages growth --json "$results"
        run bench stress network_real --duration 30 --json "$results"
        run chaos all --json "$results"
        ;;
    full)
        run bench all --json "$results"
        run chaos all --json "$results"
        for scenario in baseline connection_flood message_bombing chaos hundredfold; do
            run scenario "$scenario" --json "$results"
        done
        ;;
    *)
        echo 'usage: scripts/bench/run_all_benchmarks.sh quick|standard|full|ci [FOLDER]' >&2
        exit 2
        ;;
esac
run metrology "$results"
exit "$ended"
