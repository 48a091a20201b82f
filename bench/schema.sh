#!/usr/bin/env bash
# Compares validators by validations per second of CPU time: erlmcp_schema, PyPI jsonschema and Ajv
# (compiled JavaScript), with the same schemas and instances (bench/schema/cases.json). They take
# turns on one machine. It prints the medians of the rounds, and their ratios.
#
#   valid      a valid value: yes or no
#   refused    an invalid value, up to the first error: is_valid/2, is_valid, and Ajv's default
#   errors     all errors (ours: the first ten), in each validator's own form: the terms of
#              validate/2, the objects of Ajv's allErrors and of iter_errors
#   sentences  the same, with a text for each error that has its place and its reason (explain/1)
#
# The goals of ours: at least ten times PyPI's in each row, and at least a quarter of Ajv's in the
# first two rows. In the other two Ajv continues after an error; ours searches again from the root
# once a check has failed.
#
#   bench/schema.sh [SECONDS [ROUNDS]]     default: 0.5 seconds a measurement, 5 rounds
#
# npm and pip install the other two once, from the machine's registries, at the versions locked in
# bench/schema, into the user's cache (ERLMCP_CACHE).
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-0.5}
rounds=${2:-5}
[[ $seconds == *.* ]] || seconds=$seconds.0

cache=${ERLMCP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/erlmcp}
locks=(bench/schema/package-lock.json bench/schema/requirements.txt)
peers=$cache/bench-schema-$(cat "${locks[@]}" | sha256sum | cut -c 1-16)
if [ ! -e "$peers/complete" ]; then
    echo "installing Ajv and PyPI jsonschema into $peers (once)" >&2
    rm -rf "$peers"
    mkdir -p "$peers"
    cp bench/schema/package.json bench/schema/package-lock.json "$peers/"
    (cd "$peers" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
    "${ERLMCP_PYTHON:-python3}" -m venv "$peers/python"
    "$peers/python/bin/python" -m pip install --quiet --no-input --disable-pip-version-check \
        -r bench/schema/requirements.txt >&2
    touch "$peers/complete"
fi

. scripts/env.sh
scripts/build.sh >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
erlc -o "$work" bench/schema/bench_schema.erl

cases=bench/schema/cases.json
for _ in $(seq "$rounds"); do
    erl +S 1 +sbwt none +sbwtdcpu none +sbwtdio none -noinput -pa "$work" \
        -pa "${REBAR_BASE_DIR:-_build}"/default/lib/erlmcp/ebin \
        -eval "bench_schema:main([\"$cases\", \"$seconds\"]), halt()." | sed 's/^/erlmcp /'
    node bench/schema/ajv.mjs "$peers" "$cases" "$seconds" | sed 's/^/ajv /'
    "$peers/python/bin/python" bench/schema/pypi.py "$cases" "$seconds" | sed 's/^/pypi /'
done >"$work/output"

awk '
    { speeds[$2 " " $3, $1] = speeds[$2 " " $3, $1] " " $4
      if (!(($2 " " $3) in seen)) { seen[$2 " " $3]; order[++n] = $2 " " $3 } }
    function median(text,    list, count, i, j, swap) {
        count = split(text, list, " ")
        for (i = 2; i <= count; i++)
            for (j = i; j > 1 && list[j - 1] + 0 > list[j] + 0; j--) {
                swap = list[j]; list[j] = list[j - 1]; list[j - 1] = swap
            }
        return list[int((count + 1) / 2)]
    }
    END {
        printf "%-18s %12s %12s %12s %14s %14s\n", "validations/s", "erlmcp", "PyPI", "Ajv", \
            "erlmcp/PyPI", "Ajv/erlmcp"
        for (i = 1; i <= n; i++) {
            ours = median(speeds[order[i], "erlmcp"])
            pypi = median(speeds[order[i], "pypi"])
            ajv = median(speeds[order[i], "ajv"])
            printf "%-18s %12d %12d %12d %14.1f %14.2f\n", order[i], ours, pypi, ajv, \
                ours / pypi, ajv / ours
        }
    }' "$work/output"
