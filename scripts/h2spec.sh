#!/bin/sh
# Runs h2spec, which tests servers of HTTP/2, against the server at URL. test/h2spec/expected.txt
# names the cases that fail, with the reasons: no other case may fail, and each of them must. h2spec
# is built first, once (scripts/go_tool.sh).
#
#   scripts/h2spec.sh URL
#
# The last line is `N passed, N failed`.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
url=$1
folder=$("$root/scripts/go_tool.sh" h2spec h2spec)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
address=${url#http://}
path=/${address#*/}
address=${address%%/*}
# h2spec exits with 1 if a case fails. Its report names the failed cases.
"$folder/h2spec" -h "${address%:*}" -p "${address##*:}" -P "$path" -o 5 -j "$work/report.xml" \
    >"$work/output" || :
[ -s "$work/report.xml" ] || { cat "$work/output" - <<'END' >&2; exit 1; }
h2spec: there is no report.
END

# A line of the report begins each case, and its error is below.
awk -F '"' '
    /<testcase / { case_ = $2 " | " $4; gsub(/&#34;/, "\"", case_); total++ }
    /<(error|failure)>/ { print case_ }
    END { print total >"'"$work/total"'" }' "$work/report.xml" | LC_ALL=C sort >"$work/failed"
sed -n '/^#/d; s/ | [^|]*$//p' "$root/test/h2spec/expected.txt" | LC_ALL=C sort >"$work/expected"
LC_ALL=C comm -23 "$work/failed" "$work/expected" | sed 's/^/not ok /' >"$work/wrong"
LC_ALL=C comm -13 "$work/failed" "$work/expected" | sed 's/^/not ok (it passes) /' >>"$work/wrong"
cat "$work/wrong"
wrong=$(wc -l <"$work/wrong")
total=$(cat "$work/total")
echo "# $(wc -l <"$work/expected") of $total cases are expected to fail: test/h2spec/expected.txt"
echo "$((total - wrong)) passed, $((wrong)) failed"
[ "$total" -gt 0 ] && [ "$wrong" -eq 0 ]
