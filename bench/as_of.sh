#!/usr/bin/env bash
# Writes bench/baselines/as_of.json: this commit, its day, and how many commits it is ahead of each
# commit that has figures in bench/baselines. docs/performance.md takes the ages of figures from it.
#
#   bench/as_of.sh
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."

file=bench/baselines/as_of.json
commits=$(sed -n 's/.*"erlmcp_commit": "\([0-9a-f]\{40\}\)".*/\1/p' bench/baselines/*-core-*.json |
    sort -u)
{
    printf '{\n  "commit": "%s",\n' "$(git rev-parse HEAD)"
    printf '  "day": "%s",\n' "$(git log -1 --format=%cd --date=format:%Y-%m-%d)"
    printf '  "commits_since": {'
    separator=''
    for commit in $commits; do
        # A commit of a branch that did not land is not known everywhere.
        if count=$(git rev-list --count "$commit..HEAD" 2>/dev/null); then
            printf '%s\n    "%s": %s' "$separator" "$commit" "$count"
            separator=,
        fi
    done
    printf '\n  }\n}\n'
} >"$file.new"
mv "$file.new" "$file"
