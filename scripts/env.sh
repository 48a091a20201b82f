# Sourced by a POSIX shell in the repository's root: puts the toolchain first on the PATH.
# ERLMCP_PROVIDED tells rebar.config.script where the toolchain's own libraries are. Sourcing it
# again does nothing.
if [ -z "${ERLMCP_PROVIDED+set}" ]; then
    toolchain=$(scripts/toolchain.sh) || exit 1
    if [ "$toolchain" = system ]; then
        ERLMCP_PROVIDED=''
    else
        ERLMCP_PROVIDED=$toolchain/usr/lib/erlang/lib
        PATH=$toolchain/usr/lib/erlang/bin:$PATH
    fi
    export PATH ERLMCP_PROVIDED
fi
