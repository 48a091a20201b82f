#!/bin/sh
# Runs h2spec, which tests servers of HTTP/2, against one at URL. Each case that fails has to be
# named in test/h2spec/expected.txt, with the reason, and each that is named has to fail. It is
# built first, once (scripts/go_tool.sh).
#
#   scripts/h2spec.sh URL
#
# The last line says `N passed, N failed`.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
url=$1
folder=$("$root/scripts/go_tool.sh" h2spec h2spec)

said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
address=${url#http://}
path=/${address#*/}
address=${address%%/*}
# It ends with 1 where a case fails: which ones did is in its report.
"$folder/h2spec" -h "${address%:*}" -p "${address##*:}" -P "$path" -o 5 -j "$said/report.xml" \
    >"$said/output" || :
[ -s "$said/report.xml" ] || { cat "$said/output" - <<'END' >&2; exit 1; }
h2spec: there is no report.
END

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
