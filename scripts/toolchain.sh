#!/bin/sh
# Prints the toolchain to build with, and builds one first where the machine has none.
#
#   scripts/toolchain.sh            one line: "system", or the path of the private toolchain
#   . scripts/env.sh                the same, applied to the calling shell's environment
#
# A machine with OTP 27+, rebar3 and a package index that answers uses its own. Any other machine
# with Debian's apt gets a private one under the user's cache folder: Erlang/OTP and the Erlang
# libraries of a newer Debian suite with the C library they were linked to, unpacked side by side
# with the system and not into it. No root, no change to the machine.
#
#   ERLMCP_CACHE          where it goes (default: $XDG_CACHE_HOME/erlmcp or ~/.cache/erlmcp)
#   ERLMCP_TOOLCHAIN      system | private: take this one and do not look for the other
#   ERLMCP_DEBIAN_MIRROR  a Debian archive, where the machine's own apt names none
set -eu

suite=forky
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cache=${ERLMCP_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/erlmcp}

# Named one by one: the dependency closure of dialyzer or reltool brings wx and a browser engine.
otp='erlang-base erlang-asn1 erlang-common-test erlang-crypto erlang-debugger erlang-dev
     erlang-dialyzer erlang-edoc erlang-eunit erlang-ftp erlang-inets erlang-os-mon
     erlang-parsetools erlang-public-key erlang-reltool erlang-runtime-tools erlang-snmp
     erlang-ssh erlang-ssl erlang-syntax-tools erlang-tools erlang-xmerl'
libraries='rebar3 erlang-cowboy erlang-cowlib erlang-ranch erlang-jose erlang-proper
     erlang-proper-dev rabbitmq-server'
native='libc6 libgcc-s1 libstdc++6 libtinfo6 zlib1g libzstd1 libssl3t64 libsctp1 libsystemd0
     libcap2 patchelf libjs-jquery libjs-jquery-tablesorter'
# Carried, compiled, by rabbitmq-server.
plugins='gun khepri ra aten gen_batch_server horus seshat prometheus ddskerl recon'

say() { printf 'toolchain: %s\n' "$*" >&2; }

refuse() {
    say "$1"
    say 'erlmcp needs Erlang/OTP 27 or later and rebar3 3.24 or later on the PATH, with a hex'
    say 'index that answers; or a Debian-based Linux with apt, from which it builds its own.'
    say 'Install Erlang from https://www.erlang.org/downloads and rebar3 from https://rebar3.org'
    exit 1
}

system_fits() {
    command -v erl >/dev/null 2>&1 && command -v rebar3 >/dev/null 2>&1 || return 1
    release=$(erl -noshell -eval 'io:put_chars(erlang:system_info(otp_release)), halt().') || return 1
    [ "$release" -ge 27 ] 2>/dev/null || return 1
    # Fetched dependencies need no index; the first fetch asks it, once, and not for ever.
    [ -d "$root/_build/default/lib/cowboy" ] ||
        (cd "$root" && ERLMCP_PROVIDED='' timeout 60 rebar3 get-deps) >/dev/null 2>&1
}

# The archive that this machine's apt already trusts and reaches, whatever its name.
archive() {
    if [ -n "${ERLMCP_DEBIAN_MIRROR:-}" ]; then
        echo "$ERLMCP_DEBIAN_MIRROR"
    else
        release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
        apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 2>/dev/null |
            awk -v r="$release" '$1 == r && $2 == "main" {print $3; exit}'
    fi
}

configure_apt() {
    mkdir -p "$apt/lists/partial" "$cache/debs/partial"
    : >"$apt/status"
    echo "deb [signed-by=$keyring] $1 $suite main" >"$apt/sources.list"
    # A mirror may lag behind the date in its Release file; the signature is checked all the same.
    cat >"$apt/apt.conf" <<CONF
Dir::State "$apt";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt";
Dir::Cache::archives "$cache/debs";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Acquire::Check-Valid-Until "false";
Acquire::Languages "none";
Acquire::Retries "5";
APT::Sandbox::User "";
Debug::NoLocking "true";
CONF
    export APT_CONFIG="$apt/apt.conf"
}

unpack() {
    for plugin in $otp $libraries $native; do
        deb=$(ls -t "$cache/debs/${plugin}"_*.deb | head -n 1)
        dpkg -x "$deb" "$prefix"
    done
    for plugin in $plugins; do
        mv "$prefix"/usr/lib/rabbitmq/lib/*/plugins/"$plugin"-[0-9]* "$prefix/usr/lib/erlang/lib/"
    done
    mv "$prefix/usr/bin/rebar3" "$prefix/usr/lib/erlang/bin/rebar3"
    rm -rf "$prefix/usr/lib/rabbitmq" "$prefix/usr/share/doc" "$prefix/usr/share/man" \
        "$prefix/etc" "$prefix/var"
    # Header-only remains of applications that were not asked for: no ebin, no application.
    for app in "$prefix"/usr/lib/erlang/lib/*; do
        [ -d "$app/ebin" ] || rm -rf "$app"
    done
}

# Every program and library of the prefix finds the prefix's own C library and nothing else. An
# rpath and not a runpath: it holds for the libraries of the libraries too.
relocate() {
    libs=$(dirname "$(ls "$prefix"/usr/lib/*/ld-linux-*.so.*)")
    loader=$(ls "$libs"/ld-linux-*.so.*)
    for file in $(find "$prefix/usr/lib/erlang" -type f \( -perm -u+x -o -name '*.so' \)); do
        [ "$(head -c 4 "$file" | tail -c 3)" = ELF ] || continue
        case $file in
            *.so) "$loader" --library-path "$libs" "$prefix/usr/bin/patchelf" \
                --force-rpath --set-rpath "$libs" "$file" ;;
            *) "$loader" --library-path "$libs" "$prefix/usr/bin/patchelf" \
                --force-rpath --set-rpath "$libs" --set-interpreter "$loader" "$file" ;;
        esac
    done
    grep -lIr '^ *ROOTDIR=/usr/lib/erlang' "$prefix/usr/lib/erlang/bin" \
        "$prefix/usr/lib/erlang"/erts-*/bin | while read -r script; do
        sed -i "s|ROOTDIR=/usr/lib/erlang|ROOTDIR=$prefix/usr/lib/erlang|" "$script"
    done
}

build() {
    for tool in apt-get dpkg flock; do
        command -v "$tool" >/dev/null 2>&1 || refuse "no Erlang here, and no $tool to build one with."
    done
    [ -r "$keyring" ] || refuse "no Erlang here, and no $keyring to check packages with."
    mirror=$(archive)
    [ -n "$mirror" ] || refuse 'no Erlang here, and apt names no Debian archive (ERLMCP_DEBIAN_MIRROR).'
    apt=$prefix.apt
    say "building a private Erlang/OTP in $prefix (once; about a minute)"
    rm -rf "$prefix" "$apt"
    mkdir -p "$prefix"
    configure_apt "$mirror"
    apt-get -qq update >&2
    # apt resumes what a broken run left in the folder, and fetches nothing that is whole.
    (cd "$cache/debs" && apt-get -qq download $otp $libraries $native >&2)
    unpack
    relocate
    (cd "$cache/debs" && ls) >"$prefix/packages.txt"
    rm -rf "$apt"
    "$prefix/usr/lib/erlang/bin/erl" -noshell -eval 'halt(0).' || refuse 'the private Erlang does not start.'
    touch "$prefix/complete"
}

case ${ERLMCP_TOOLCHAIN:-} in
    system) echo system && exit 0 ;;
    private) ;;
    *) if system_fits; then echo system && exit 0; fi ;;
esac
prefix=$cache/toolchain-$(sha256sum "$0" | cut -c 1-16)
if [ ! -e "$prefix/complete" ]; then
    mkdir -p "$cache"
    exec 9>"$cache/toolchain.lock"
    flock 9
    [ -e "$prefix/complete" ] || build
fi
echo "$prefix"
