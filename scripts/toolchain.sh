#!/bin/sh
# Prints the toolchain to build with, and builds one first where the machine has none.
#
#   scripts/toolchain.sh            one line: "system", or the path of the private toolchain
#   . scripts/env.sh                the same, applied to the calling shell's environment
#
# A machine with OTP 27+, rebar3 and a package index that answers uses its own. Any other machine
# with Debian's apt gets a private one under the user's cache folder (see scripts/debian.sh).
#
#   ERLMCP_TOOLCHAIN      system | private: take this one and do not look for the other
set -eu

CDPATH='' cd -- "$(dirname -- "$0")/.."
root=$PWD
. "$root/scripts/debian.sh"

# Named one by one: the dependency closure of dialyzer or reltool brings wx and a browser engine.
otp='erlang-base erlang-asn1 erlang-common-test erlang-crypto erlang-debugger erlang-dev
     erlang-dialyzer erlang-edoc erlang-eunit erlang-ftp erlang-inets erlang-os-mon
     erlang-parsetools erlang-public-key erlang-reltool erlang-runtime-tools erlang-snmp
     erlang-ssh erlang-ssl erlang-syntax-tools erlang-tools erlang-xmerl
     libtinfo6 libsctp1 libsystemd0 libcap2 libjs-jquery libjs-jquery-tablesorter'
libraries='rebar3 erlang-cowboy erlang-cowlib erlang-ranch erlang-jose erlang-proper
     erlang-proper-dev rabbitmq-server'
# Carried, compiled, by rabbitmq-server.
plugins='gun khepri ra aten gen_batch_server horus seshat prometheus ddskerl recon'

refuse() {
    say "$1"
    say 'erlmcp needs Erlang/OTP 27 or later and rebar3 3.24 or later on the PATH, with a hex'
    say 'index that answers; or a Debian-based Linux with apt, from which it builds its own.'
    say 'Install Erlang from https://www.erlang.org/downloads and rebar3 from https://rebar3.org'
    exit 1
}

system_fits() {
    command -v erl >/dev/null 2>&1 && command -v rebar3 >/dev/null 2>&1 || return 1
    release=$(erl -noshell -eval 'io:put_chars(erlang:system_info(otp_release)), halt().') ||
        return 1
    [ "$release" -ge 27 ] 2>/dev/null || return 1
    # Fetched dependencies need no index; the first fetch asks it, once, and not for ever.
    [ -d "$root/_build/default/lib/cowboy" ] ||
        ERLMCP_PROVIDED='' timeout 60 rebar3 get-deps >/dev/null 2>&1
}

build() {
    debian_possible || refuse 'no Erlang here, and none can be built.'
    say "building a private Erlang/OTP in $prefix (once; about a minute)"
    debian_install "$prefix" $native $otp $libraries
    erlang=$prefix/usr/lib/erlang
    for plugin in $plugins; do
        mv "$prefix"/usr/lib/rabbitmq/lib/*/plugins/"$plugin"-[0-9]* "$erlang/lib/"
    done
    mv "$prefix/usr/bin/rebar3" "$erlang/bin/rebar3"
    rm -rf "$prefix/usr/lib/rabbitmq" "$prefix/etc" "$prefix/var"
    # Header-only remains of applications that were not asked for: no ebin, no application.
    for app in "$erlang"/lib/*; do
        [ -d "$app/ebin" ] || rm -rf "$app"
    done
    debian_relocate "$prefix" $(find "$erlang" -type f \( -perm -u+x -o -name '*.so' \))
    for script in $(grep -lIr '^ *ROOTDIR=/usr/lib/erlang' "$erlang/bin" "$erlang"/erts-*/bin); do
        sed -i "s|ROOTDIR=/usr/lib/erlang|ROOTDIR=$erlang|" "$script"
    done
    "$erlang/bin/erl" -noshell -eval 'halt(0).' || refuse 'the private Erlang does not start.'
    touch "$prefix/complete"
}

case ${ERLMCP_TOOLCHAIN:-} in
    system) echo system && exit 0 ;;
    private) ;;
    *) if system_fits; then echo system && exit 0; fi ;;
esac
prefix=$(debian_prefix toolchain scripts/toolchain.sh scripts/debian.sh)
if [ ! -e "$prefix/complete" ]; then
    debian_lock
    [ -e "$prefix/complete" ] || build
fi
echo "$prefix"
