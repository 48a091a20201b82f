#!/bin/sh
# The programs around a server that the client of erlmcp starts (erlmcp_stdio_channel). A port has
# one way in and one way out, and closes both at once; a server has three streams, and its input has
# to be closed first. So its output and its errors go through named pipes, in a folder of their own,
# to ports of their own:
#
#   make DIR                    makes the folder and the pipes, and says so; without a word that
#                               there is a guard it takes them away again
#   run DIR COMMAND [ARGUMENT]  runs the server, with the port's input, and says with which status
#                               it ended. It keeps that input open until the port is closed: a
#                               write to a pipe without a reader would end the port
#   read DIR out|err RECORDS    its output, or its errors, to the port: as many records for each
#                               line of its input, for a port reads ahead without a bound
#   tell DIR                    a line for each time that a reader has done so
#   guard DIR STOP_MS READER... ends the server when it is told to, or when its own input ends: then
#                               the node is dead, however it died; the readers are process ids
#
# The runtime makes each port's program the leader of a process group: the server's is that of
# `run`. On Linux, where there is a perl to ask for it, `run` is also a child subreaper (prctl(2)):
# the system makes it the parent of every process of the server whose own parent has ended, in
# whatever group or session that is. It then stays until it has no child any more. POSIX only: dash,
# bash, busybox, ksh93, mksh, yash and zsh run it.
set -u
role=$1
dir=$2
shift 2

# Whether "--" has to stand before a group: the kill of a shell that has none of its own may be one
# that takes "-123" for "-1", which is everybody. Those of dash and busybox do not know it there.
dashes=''
if kill -0 -- "$$" 2>/dev/null; then dashes=--; fi

# Waits up to $1 milliseconds for the end of the whole group, and of the server's own if it has one.
group_ends() {
    left=$(($1 / tick_ms))
    while kill -0 $dashes "-$server" 2>/dev/null || kill -0 $dashes "-$own" 2>/dev/null; do
        if [ "$left" -le 0 ]; then return 1; fi
        left=$((left - 1))
        sleep "$tick"
    done
}

# Sends a signal to both groups and to the strays, to each process once.
group_hears() {
    for pid in $(strays); do kill -s "$1" "$pid" 2>/dev/null; done
    kill "-$1" $dashes "-$server" 2>/dev/null
    kill "-$1" $dashes "-$own" 2>/dev/null
}

# The processes below `run` that are in neither group.
strays() {
    for pid in $(descendants "$server"); do
        { read -r stat <"/proc/$pid/stat"; } 2>/dev/null || continue
        # After the name, which may have anything in it: state, parent, group.
        set -- ${stat##*) }
        case $3 in "$server" | "$own") ;; *) echo "$pid" ;; esac
    done
}

# The processes below process $1, as far as the system lists them. A subshell, since each level has
# variables of its own.
descendants() (
    for list in /proc/"$1"/task/*/children; do
        children=''
        # The list has no newline at its end, so read fails.
        { read -r children <"$list"; } 2>/dev/null
        for child in $children; do
            echo "$child"
            descendants "$child"
        done
    done
)

# Kills what is below `run` before `run` itself, whose children would then be another's. What is
# forked meanwhile is found by the next look.
all_are_killed() {
    looks=50
    while [ "$looks" -gt 0 ] && below=$(descendants "$server") && [ -n "$below" ]; do
        for pid in $below; do kill -s KILL "$pid" 2>/dev/null; done
        looks=$((looks - 1))
        sleep "$tick"
    done
    group_hears KILL
}

case $role in
make)
    umask 077
    mkdir "$dir" && mkfifo "$dir/out" "$dir/err" "$dir/told" || exit 1
    echo made 2>/dev/null
    read -r taken || rm -rf "$dir"
    ;;
run | adopt)
    children=/proc/$$/task/$$/children
    if [ "$role" = run ] && [ -e "$children" ] && [ -z "${PERL5OPT:-}" ] &&
        /usr/bin/perl -e 1 2>/dev/null
    then
        # The number of prctl. What it sets is kept over exec.
        case $(uname -m) in
            x86_64) prctl=157 ;;
            aarch64 | riscv64 | loongarch64) prctl=167 ;;
            ppc64le) prctl=171 ;;
            s390x) prctl=172 ;;
            *) prctl='' ;;
        esac
        [ -z "$prctl" ] || exec /usr/bin/perl -e '
            syscall 0 + shift, 36, 1, 0, 0, 0;
            exec { $ARGV[0] } @ARGV' "$prctl" /bin/sh "$0" adopt "$dir" "$@"
    fi
    # Before anything can go wrong the guard must know whom to end; it may look at any moment.
    { echo $$ >"$dir/new" && mv "$dir/new" "$dir/server"; } 2>/dev/null || exit 126
    # What ends the server has to leave us to say so. It has its own signals again: only those that
    # are ignored are inherited.
    trap : HUP INT QUIT TERM USR1 USR2 ALRM
    exec 2>/dev/null
    # It may make a group of its own; the guard must know that one too. ksh93 has no process for
    # what stands in parentheses.
    /bin/sh -c 'dir=$1
        shift
        echo $$ >"$dir/own"
        exec >"$dir/out" 2>"$dir/err" || exit 126
        exec "$@"' "$0" "$dir" "$@"
    status=$?
    rm -f "$dir/own"
    echo "$status"
    [ "$role" = adopt ] || exec cat >/dev/null
    cat >/dev/null
    # The guard waits for the end of this process, and so of all that the server has left behind.
    while left='' && { read -r left <"$children" || [ -n "$left" ]; }; do
        sleep 0.1 || sleep 1
    done
    ;;
read)
    # What one read gives is a record, even if it is short; dd says how many there were, after
    # warnings that they were short. Fewer than it was to read is the end.
    exec 3<&0 4>&1 5>"$dir/told" <"$dir/$1" || exit 1
    while read -r more <&3; do
        said=$(LC_ALL=C dd bs=2048 count="$2" 2>&1 >&4 3<&- 4>&- 5>&-)
        said=${said%% records in*}
        said=${said##*[!0-9+]}
        case $said in
            [0-9]*+[0-9]*) ;;
            *) exit 1 ;;
        esac
        if [ $((${said%+*} + ${said#*+})) -lt "$2" ]; then exit 0; fi
        echo "$1" >&5
    done
    ;;
tell)
    exec cat "$dir/told" 2>/dev/null
    ;;
guard)
    stop_ms=$1
    shift
    # Nobody but the client ends the guard, and what ends the client must not end it before.
    trap '' HUP INT TERM
    while read -r order; do
        if [ "$order" = end ]; then break; fi
    done
    # POSIX sleeps for whole seconds; most can do better.
    if sleep 0.02 2>/dev/null; then tick=0.02 tick_ms=20; else tick=1 tick_ms=1000; fi
    # It may have been started in this moment.
    if [ ! -e "$dir/server" ]; then sleep 1; fi
    # Later it is not: it does not find its folder any more.
    if [ ! -e "$dir/server" ] && mv "$dir" "$dir.end" 2>/dev/null; then dir=$dir.end; fi
    if [ -e "$dir/server" ]; then
        read -r server <"$dir/server"
        { read -r own <"$dir/own"; } 2>/dev/null || own=none
        if ! group_ends "$stop_ms"; then
            group_hears TERM
            group_hears CONT
            group_ends "$stop_ms" || all_are_killed
        fi
    fi
    # What a dead server has said still arrives; what others of its pipes hold open is left.
    left=10
    while [ "$left" -gt 0 ] && kill -s 0 "$@" 2>/dev/null; do
        left=$((left - 1))
        sleep "$tick"
    done
    for reader in "$@"; do kill -KILL $dashes "-$reader" 2>/dev/null; done
    rm -rf "$dir"
    ;;
esac
