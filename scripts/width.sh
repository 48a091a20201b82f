#!/bin/sh
# Fails on a line of code that is longer than 100 columns, in files that git has or would add.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/.."
git ls-files -z --cached --others --exclude-standard -- '*.erl' '*.hrl' '*.src' '*.config' \
    '*.script' '*.escript' '*.sh' '*.mjs' '*.cjs' '*.js' '*.ts' '*.py' '*.go' '*.rs' \
    Makefile bin .ci test/conformance/client |
    LC_ALL=C xargs -0 awk '
        # A character of UTF-8 counts once, with its first byte.
        { gsub(/[\200-\277]/, "") }
        length($0) > 100 {
            printf "%s:%d: %d columns, the limit is 100\n", FILENAME, FNR, length($0)
            found = 1
        }
        END { exit found }' >&2
