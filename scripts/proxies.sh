#!/bin/sh
# Prints a folder with the proxies that erlmcp is tried behind, and installs them there first, once.
#
#   FOLDER/haproxy    HAProxy 3.2 or later
#   FOLDER/nginx      nginx 1.29.4 or later, which speaks HTTP/2 to the server behind it
#
# They are Debian's packages in a folder of the cache, with the libraries they were linked to; see
# scripts/debian.sh. Nothing is installed into the system.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
. "$root/scripts/debian.sh"
packages='haproxy libcrypt1 libjemalloc2 liblua5.4-0 libnginx-mod-stream
    libopentracing-c-wrapper0t64 libopentracing1 libpcre2-8-0 nginx'

prefix=$(debian_prefix proxies "$0" "$root/scripts/debian.sh")
if [ ! -e "$prefix/complete" ]; then
    debian_possible || { say 'the proxies are not to be had here.'; exit 1; }
    debian_lock
    if [ ! -e "$prefix/complete" ]; then
        say "installing HAProxy and nginx in $prefix (once)"
        debian_install "$prefix" $native $packages
        mv "$prefix/usr/sbin/haproxy" "$prefix/usr/sbin/nginx" "$prefix/"
        debian_relocate "$prefix" "$prefix/haproxy" "$prefix/nginx"
        for proxy in haproxy nginx; do
            "$prefix/$proxy" -v >"$prefix/$proxy.version" 2>&1 || {
                cat "$prefix/$proxy.version" >&2
                say "$proxy does not start."
                exit 1
            }
        done
        touch "$prefix/complete"
    fi
fi
echo "$prefix"
