#!/bin/sh
# Prints the cases that were skipped in a run of suites because this machine lacks what they need,
# one a line. Such a case is skipped with `needs X`; what is asked for here must be missing. Needs
# scripts/env.sh.
#
#   scripts/left_out.sh LOGS        as scripts/suites.sh has written them
set -eu
lacks() {
    [ "$(erl -noinput -eval 'io:put_chars(erlang:system_info(otp_release)), halt().')" -ge 29 ] ||
        echo 'needs OTP 29'
    [ "$(id -u)" -eq 0 ] || echo 'needs root'
    command -v systemd-analyze >/dev/null || echo 'needs systemd'
    grep -q '^0\{31\}1 ' /proc/net/if_inet6 2>/dev/null || echo 'needs IPv6'
    ! cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
        grep -q '^ *[0-9]*: [0-9A-F]*:0050 [0-9A-F]*:0000 0A ' || echo 'needs port 80'
}
lacks=$(lacks | tr '\n' '|')
find "$1" -name suite.log -exec cat {} + | awk -v lacks="|$lacks" '
    $1 == "=case" { name = $2 }
    # The reason stands in quotes, except where a whole group is skipped.
    sub(/^=result *skipped: "?/, "") {
        sub(/"$/, "")
        if (name !~ /:(init|end)_per_group$/ && index(lacks, "|" $0 "|")) print name, $0
    }'
