#!/bin/sh
# Prints a folder with `prometheus` and `promtool`, which read our metrics and our rules of alerts,
# and installs them there first, once.
#
# They are Debian's package in a folder of the cache, with the C library it was linked to; see
# scripts/debian.sh. Nothing is installed into the system.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
. "$root/scripts/debian.sh"

prefix=$(debian_prefix prometheus "$0" "$root/scripts/debian.sh")
if [ ! -e "$prefix/complete" ]; then
    debian_possible || { say 'Prometheus is not to be had here.'; exit 1; }
    debian_lock
    if [ ! -e "$prefix/complete" ]; then
        say "installing Prometheus in $prefix (once)"
        debian_install "$prefix" $native prometheus promtool
        debian_relocate "$prefix" "$prefix/usr/bin/prometheus" "$prefix/usr/bin/promtool"
        for program in prometheus promtool; do
            mv "$prefix/usr/bin/$program" "$prefix/"
            "$prefix/$program" --version >"$prefix/$program.version" 2>&1 || {
                cat "$prefix/$program.version" >&2
                say "$program does not start."
                exit 1
            }
        done
        touch "$prefix/complete"
    fi
fi
echo "$prefix"
