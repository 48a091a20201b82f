#!/bin/sh
# Runs h2spec, which tests servers of HTTP/2, against one at URL. Each case that fails has to be
# named in test/h2spec/expected.txt, with the reason, and each that is named has to fail. It is
# built first, once: of the Go modules locked under test/h2spec, with this machine's go.
#
#   scripts/h2spec.sh URL
#
#   ERLMCP_CACHE     where it goes (default: $XDG_CACHE_HOME/erlmcp or ~/.cache/erlmcp)
#
# The last line says `N passed, N failed`.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cache=${ERLMCP_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/erlmcp}
url=$1

say() { printf 'h2spec: %s\n' "$*" >&2; }

folder=$cache/h2spec-$(cat "$0" "$root/test/h2spec/go.sum" | sha256sum | cut -c 1-16)
if [ ! -x "$folder/h2spec" ]; then
    for program in go flock; do
        command -v "$program" >/dev/null 2>&1 || { say "building it needs $program."; exit 1; }
    done
    mkdir -p "$folder"
    exec 9>"$cache/h2spec.lock"
    flock 9
    if [ ! -x "$folder/h2spec" ]; then
        say "building it in $folder (once)"
        (cd "$root/test/h2spec" &&
            export CGO_ENABLED=0 GOFLAGS='-mod=readonly -trimpath -buildvcs=false' &&
            go build -o "$folder/new" github.com/summerwind/h2spec/cmd/h2spec) \
            >"$folder/log" 2>&1 || {
            tail -n 5 "$folder/log" >&2
            say "go could not build it. The whole log: $folder/log"
            exit 1
        }
        mv "$folder/new" "$folder/h2spec"
    fi
    exec 9>&-
fi

said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
address=${url#http://}
path=/${address#*/}
address=${address%%/*}
# It ends with 1 where a case fails: which ones did is in its report.
"$folder/h2spec" -h "${address%:*}" -p "${address##*:}" -P "$path" -o 5 -j "$said/report.xml" \
    >"$said/output" || :
[ -s "$said/report.xml" ] || { cat "$said/output" >&2; say 'there is no report.'; exit 1; }

# A line of the report begins each case; what went wrong stands below.
awk -F '"' '
    /<testcase / { case_ = $2 " | " $4; gsub(/&#34;/, "\"", case_); total++ }
    /<(error|failure)>/ { print case_ }
    END { print total >"'"$said/total"'" }' "$said/report.xml" | LC_ALL=C sort >"$said/failed"
sed -n '/^#/d; s/ | [^|]*$//p' "$root/test/h2spec/expected.txt" | LC_ALL=C sort >"$said/expected"
LC_ALL=C comm -23 "$said/failed" "$said/expected" | sed 's/^/not ok /' >"$said/wrong"
LC_ALL=C comm -13 "$said/failed" "$said/expected" | sed 's/^/not ok (it passes) /' >>"$said/wrong"
cat "$said/wrong"
wrong=$(wc -l <"$said/wrong")
total=$(cat "$said/total")
echo "# $(wc -l <"$said/expected") of $total cases are expected to fail: test/h2spec/expected.txt"
echo "$((total - wrong)) passed, $((wrong)) failed"
[ "$total" -gt 0 ] && [ "$wrong" -eq 0 ]
