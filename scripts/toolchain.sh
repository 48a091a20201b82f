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
#   ERLMCP_OTP            27: take Erlang/OTP 27, the oldest that erlmcp supports, and no other
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
libraries='erlang-cowboy erlang-cowlib erlang-ranch erlang-jose erlang-proper erlang-proper-dev
     rabbitmq-server'
# Carried, compiled, by rabbitmq-server.
plugins='gun khepri ra aten gen_batch_server horus seshat prometheus ddskerl recon'

refuse() {
    say "$1"
    say "erlmcp needs Erlang/OTP $wanted and rebar3 3.24 or later on the PATH, with a hex"
    say 'index that answers; or a Debian-based Linux with apt, from which it builds its own.'
    say 'Install Erlang from https://www.erlang.org/downloads and rebar3 from https://rebar3.org'
    exit 1
}

system_fits() {
    command -v erl >/dev/null 2>&1 && command -v rebar3 >/dev/null 2>&1 || return 1
    release=$(erl -noshell -eval 'io:put_chars(erlang:system_info(otp_release)), halt().') ||
        return 1
    case $release in
        27) ;;
        *) [ -z "$only" ] && [ "$release" -gt 27 ] 2>/dev/null || return 1 ;;
    esac
    # Fetched dependencies need no index; the first fetch asks it, once, and not for ever.
    [ -d "${REBAR_BASE_DIR:-$root/_build}/default/lib/cowboy" ] ||
        ERLMCP_PROVIDED='' timeout 60 rebar3 get-deps >/dev/null 2>&1
}

# move_libraries FROM ERLANG: out of where Debian's packages put them.
move_libraries() {
    for plugin in $plugins; do
        mv "$1"/usr/lib/rabbitmq/lib/*/plugins/"$plugin"-[0-9]* "$2/lib/"
    done
    rm -rf "$1/usr/lib/rabbitmq"
}

# compile_libraries ERLANG FOLDER: what a newer OTP has compiled does not load in an older one,
# which cannot even list its atoms. The code is also in the debug information of these beams.
compile_libraries() {
    ERL_CRASH_DUMP_SECONDS=0 "$1/bin/erl" -noinput -eval '
        Info = fun Info(<<"Dbgi", Size:32, Chunk:Size/binary, _/binary>>) ->
                       binary_to_term(Chunk);
                   Info(<<_:4/binary, Size:32, Rest/binary>>) ->
                       <<_:((Size + 3) band -4)/binary, Next/binary>> = Rest,
                       Info(Next)
               end,
        Compile = fun(File) ->
            {ok, <<"FOR1", _:32, "BEAM", Chunks/binary>>} = file:read_file(File),
            {debug_info_v1, Backend, Code} = Info(Chunks),
            Module = list_to_atom(filename:basename(File, ".beam")),
            {ok, Forms} = Backend:debug_info(erlang_v1, Module, Code, []),
            {ok, Module, Beam} = compile:forms(Forms, [debug_info, report_errors]),
            ok = file:write_file(File, Beam)
        end,
        [Libraries] = init:get_plain_arguments(),
        lists:foreach(Compile, filelib:wildcard(Libraries ++ "/*/ebin/*.beam")),
        halt(0).' -extra "$2"
}

build() {
    debian_possible || refuse 'no Erlang here, and none can be built.'
    say "building a private Erlang/OTP in $prefix (once; about a minute)"
    erlang=$prefix/usr/lib/erlang
    if [ -z "$only" ]; then
        debian_install "$prefix" $native $otp rebar3 $libraries
        move_libraries "$prefix" "$erlang"
    else
        newer=$prefix.newer
        (debian_install "$newer" $libraries)
        move_libraries "$newer" "$newer/usr/lib/erlang"
        suite=trixie
        debian_install "$prefix" $native $otp rebar3
    fi
    mv "$prefix/usr/bin/rebar3" "$erlang/bin/rebar3"
    rm -rf "$prefix/etc" "$prefix/var"
    # Header-only remains of applications that were not asked for: no ebin, no application.
    for app in "$erlang"/lib/*; do
        [ -d "$app/ebin" ] || rm -rf "$app"
    done
    debian_relocate "$prefix" $(find "$erlang" -type f \( -perm -u+x -o -name '*.so' \))
    for script in $(grep -lIr '^ *ROOTDIR=/usr/lib/erlang' "$erlang/bin" "$erlang"/erts-*/bin); do
        sed -i "s|ROOTDIR=/usr/lib/erlang|ROOTDIR=$erlang|" "$script"
    done
    "$erlang/bin/erl" -noshell -eval 'halt(0).' || refuse 'the private Erlang does not start.'
    if [ -n "$only" ]; then
        compile_libraries "$erlang" "$newer/usr/lib/erlang/lib" ||
            refuse 'the libraries of the private Erlang do not compile.'
        mv "$newer"/usr/lib/erlang/lib/* "$erlang/lib/"
        cat "$newer/packages.txt" >>"$prefix/packages.txt"
        rm -rf "$newer"
    fi
    touch "$prefix/complete"
}

only=${ERLMCP_OTP:-}
case $only in
    '') wanted='27 or later' name=toolchain ;;
    27) wanted=27 name=toolchain-27 ;;
    *) echo "toolchain: ERLMCP_OTP is 27 or empty, not $only" >&2 && exit 1 ;;
esac
case ${ERLMCP_TOOLCHAIN:-} in
    system) echo system && exit 0 ;;
    private) ;;
    *) if system_fits; then echo system && exit 0; fi ;;
esac
prefix=$(debian_prefix "$name" scripts/toolchain.sh scripts/debian.sh)
if [ ! -e "$prefix/complete" ]; then
    debian_lock
    [ -e "$prefix/complete" ] || build
fi
echo "$prefix"
