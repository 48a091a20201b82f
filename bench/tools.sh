#!/bin/sh
# Prints the folder with the programs that the benchmarks use beside ours: nginx, wrk and h2load.
# Installs them there first, in the user's cache (see scripts/debian.sh), where it has not yet.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
. "$root/scripts/debian.sh"
packages='nginx wrk nghttp2-client libluajit-5.1-2 libpcre2-8-0 libcrypt1 libnghttp2-14
    libev4t64 libjansson4 libjemalloc2 libxml2-16'

prefix=$(debian_prefix bench "$0" "$root/scripts/debian.sh")
if [ ! -e "$prefix/complete" ]; then
    debian_possible
    debian_lock
    # Another process may have installed them meanwhile.
    if [ ! -e "$prefix/complete" ]; then
        debian_install "$prefix" $native $packages
        debian_relocate "$prefix" "$prefix"/usr/bin/wrk "$prefix"/usr/bin/h2load \
            "$prefix"/usr/sbin/nginx
        touch "$prefix/complete"
    fi
fi
echo "$prefix"
