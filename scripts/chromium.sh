#!/bin/sh
# Prints the path of a Chromium: what a web page can do is tried with a real browser. That is
# `chromium` on the PATH; or else Debian's headless one, which is installed first, once.
#
# It is Debian's packages in a folder of the cache, with the libraries they were linked to; see
# scripts/debian.sh. Nothing is installed into the system.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
. "$root/scripts/debian.sh"
# A page in a window, its sound and its graphics card want more than twice as many; this is what the
# program is linked to, and what its cryptography (libnss3) loads.
packages='chromium-common chromium-headless-shell libasound2t64 libasyncns0 libatk1.0-0t64
    libatomic1 libatspi2.0-0t64 libblkid1 libbrotli1 libbz2-1.0 libdav1d7 libdbus-1-3
    libdouble-conversion3 libdrm2 libexpat1 libffi8 libflac14 libfontconfig1 libfreetype6 libgbm1
    libglib2.0-0t64 libgraphite2-3 libharfbuzz-subset0 libharfbuzz0b libjpeg62-turbo liblcms2-2
    libminizip1t64 libmount1 libmp3lame0 libmpg123-0t64 libnspr4 libnss3 libogg0 libopenh264-8
    libopenjp2-7 libopus0 libpcre2-8-0 libpng16-16t64 libpulse0 libselinux1 libsndfile1
    libsqlite3-0 libsystemd0 libudev1 libvorbis0a libvorbisenc2 libx11-6 libx11-xcb1 libxau6
    libxcb1 libxcomposite1 libxdamage1 libxdmcp6 libxext6 libxfixes3 libxi6 libxkbcommon0
    libxnvctrl0 libxrandr2 libxrender1 libxres1'

if command -v chromium; then exit; fi
prefix=$(debian_prefix chromium "$0" "$root/scripts/debian.sh")
if [ ! -e "$prefix/complete" ]; then
    debian_possible || { say 'Chromium is not to be had here.'; exit 1; }
    debian_lock
    if [ ! -e "$prefix/complete" ]; then
        say "installing Chromium in $prefix (once)"
        debian_install "$prefix" $native $packages
        shell=$prefix/usr/lib/chromium/chromium-headless-shell
        debian_relocate "$prefix" "$shell"
        libs=$(dirname "$(ls "$prefix"/usr/lib/*/ld-linux-*.so.*)")
        # libpulse names a folder of the system's for a library of its own.
        cat >"$prefix/chromium" <<RUN
#!/bin/sh
LD_LIBRARY_PATH='$libs:$libs/pulseaudio' exec '$shell' "\$@"
RUN
        chmod +x "$prefix/chromium"
        "$prefix/chromium" --version >"$prefix/chromium.version" 2>&1 || {
            cat "$prefix/chromium.version" >&2
            say 'Chromium does not start.'
            exit 1
        }
        touch "$prefix/complete"
    fi
fi
echo "$prefix/chromium"
