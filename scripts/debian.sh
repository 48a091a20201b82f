# Sourced: programs of a newer Debian suite in a folder of their own, with the C library they were
# linked to, side by side with the system and not into it. No root, no change to the machine.
#
#   debian_prefix NAME FILE...     a folder in the cache, keyed by the contents of the files
#   debian_install PREFIX PACKAGE...   downloads and unpacks there; packages are named one by one
#   debian_relocate PREFIX FILE... makes programs and libraries there find the prefix's libraries
#
# The packages are those of the Debian suite in $suite, which a script may set after it has sourced
# this one. ERLMCP_CACHE is where it goes (default: $XDG_CACHE_HOME/erlmcp or ~/.cache/erlmcp), and
# ERLMCP_DEBIAN_MIRROR a Debian archive, where the machine's own apt names none.

suite=forky
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
cache=${ERLMCP_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/erlmcp}
# What every program of the suite needs beside itself.
native='libc6 libgcc-s1 libstdc++6 zlib1g libzstd1 libssl3t64 patchelf'

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; }

debian_prefix() {
    name=$1
    shift
    echo "$cache/$name-$(cat "$@" | sha256sum | cut -c 1-16)"
}

# One at a time, over all clones: they share the folder that packages are downloaded to.
debian_lock() {
    mkdir -p "$cache"
    exec 9>"$cache/debian.lock"
    flock 9
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
}

# Says what is missing, and fails, where this machine cannot.
debian_possible() {
    for tool in apt-get dpkg flock sha256sum; do
        command -v "$tool" >/dev/null 2>&1 || { say "there is no $tool here."; return 1; }
    done
    [ -r "$keyring" ] || { say "there is no $keyring to check packages with."; return 1; }
    [ -n "$(archive)" ] && return
    say 'apt names no Debian archive here (set ERLMCP_DEBIAN_MIRROR).'
    return 1
}

debian_install() {
    prefix=$1
    shift
    apt=$prefix.apt
    rm -rf "$prefix" "$apt"
    mkdir -p "$prefix"
    configure_apt "$(archive)"
    APT_CONFIG=$apt/apt.conf apt-get -qq update >&2
    # apt resumes what a broken run left in the folder, and fetches nothing that is whole.
    (cd "$cache/debs" && APT_CONFIG=$apt/apt.conf apt-get -qq download "$@" >&2)
    # The folder also has other versions, of other suites or days.
    debs=$(APT_CONFIG=$apt/apt.conf apt-get -qq download --print-uris "$@" | cut -d ' ' -f 2)
    for deb in $debs; do
        dpkg -x "$cache/debs/$deb" "$prefix"
        echo "$deb" >>"$prefix/packages.txt"
    done
    rm -rf "$apt" "$prefix/usr/share/doc" "$prefix/usr/share/man"
}

# An rpath and not a runpath: it holds for the libraries of the libraries too.
debian_relocate() {
    libs=$(dirname "$(ls "$1"/usr/lib/*/ld-linux-*.so.*)")
    loader=$(ls "$libs"/ld-linux-*.so.*)
    patchelf="$loader --library-path $libs $1/usr/bin/patchelf --force-rpath --set-rpath $libs"
    shift
    for file in "$@"; do
        [ "$(head -c 4 "$file" | tail -c 3)" = ELF ] || continue
        case $file in
            *.so) $patchelf "$file" ;;
            *) $patchelf --set-interpreter "$loader" "$file" ;;
        esac
    done
}
