#!/bin/sh
# Tests a login at a real authorization server, npm's oidc-provider. erlmcp's client gets tokens
# there and calls erlmcp's server with them.
#
#   test/interop/login.sh
#
# Every check is a line, and the last line is `N passed, N failed`. The exit status is 1 if a check
# failed, or if the number of checks is not that of test/interop/checks.txt. Needs a built project
# and scripts/env.sh.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$here/../..
# Erlang looks for modules in its current folder.
cd "$root"
peers=$("$root/scripts/peers.sh" node oidc)
work=$(mktemp -d)
provider=''
stop() {
    [ -z "$provider" ] || { kill "$provider" 2>/dev/null || :; wait "$provider" 2>/dev/null || :; }
    provider=''
}
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# Node resolves the provider's imports from its folder.
ln -s "$peers/oidc/node_modules" "$work/node_modules"
cp "$here/oidc/provider.mjs" "$work/provider.mjs"
erlc -o "$work" "$here/oidc/login.erl"

# Only this script holds the provider's input open, so it ends with this script at the latest.
mkfifo "$work/input"
"$peers/bin/node" "$work/provider.mjs" <"$work/input" >"$work/output" 2>"$work/log" &
provider=$!
exec 8>"$work/input"
tries=0
until [ -s "$work/output" ]; do
    kill -0 "$provider" 2>/dev/null || break
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || break
    sleep 0.1
done

wanted=$(awk '$1 " " $2 == "oidc login" { print $3 }' "$here/checks.txt")
status=0
timeout -k 5 120 erl -noinput -pa "$work" -pa "$root"/_build/default/lib/*/ebin \
    -eval 'login:main(init:get_plain_arguments()).' -extra "$(cat "$work/output")" "$wanted" \
    >"$work/out" 2>"$work/err" || status=$?
cat "$work/out"
case $(tail -n 1 "$work/out") in
    *' passed, '*' failed') ;;
    # The login died early, which is a failure whatever it printed before.
    *)
        echo "not ok - login: ended with status $status before its last line"
        echo "$(grep -c '^ok - ' "$work/out") passed, 1 failed" || :
        status=1
        ;;
esac
[ "$status" -eq 0 ] || awk '{ print "# login: " $0 }' "$work/err" "$work/log" | tail -n 40 >&2
exit "$status"
