#!/bin/sh
# Prints the path of libfaketime.so.1, and installs it first, once. Loaded by LD_PRELOAD, it gives a
# program another clock, which may jump; see erlmcp_test_faked_clock.
#
# It is Debian's package in a folder of the cache; see scripts/debian.sh. Nothing is installed into
# the system. The package is that of the machine's own Debian release, since the machine's shell
# loads the library, too.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
. "$root/scripts/debian.sh"
suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)

prefix=$(debian_prefix "faketime-$suite" "$0" "$root/scripts/debian.sh")
if [ ! -e "$prefix/complete" ]; then
    debian_possible || { say 'libfaketime is not to be had here.'; exit 1; }
    debian_lock
    if [ ! -e "$prefix/complete" ]; then
        say "installing libfaketime in $prefix (once)"
        debian_install "$prefix" libfaketime
        mv "$prefix"/usr/lib/*/faketime/libfaketime.so.1 "$prefix/"
        touch "$prefix/complete"
    fi
fi
echo "$prefix/libfaketime.so.1"
