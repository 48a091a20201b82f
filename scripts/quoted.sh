#!/bin/sh
# Prints words as a line of a shell, whatever characters they have.
#
#   scripts/quoted.sh WORD...
set -eu
line=''
for word in "$@"; do
    line="$line '$(printf '%s\n' "$word" | sed "s/'/'\\\\''/g")'"
done
printf '%s\n' "${line# }"
