# Sourced by a POSIX shell in the repository's root: puts the toolchain first on the PATH.
# ERLMCP_PROVIDED tells rebar.config.script where the toolchain's own libraries are. Sourcing it
# again does nothing. With ERLMCP_OTP (see scripts/toolchain.sh), what is built stands apart.
if [ "${ERLMCP_PROVIDED_OTP-none}" != "${ERLMCP_OTP:-}" ]; then
    ERLMCP_PROVIDED_OTP=${ERLMCP_OTP:-}
    if [ -n "$ERLMCP_PROVIDED_OTP" ]; then
        export REBAR_BASE_DIR="${REBAR_BASE_DIR:-$PWD/_build}/otp$ERLMCP_PROVIDED_OTP"
    fi
    # Not `exit`: it would end the shell of a person, who may try again.
    toolchain=$(scripts/toolchain.sh) || {
        if [ -n "$ERLMCP_PROVIDED_OTP" ]; then REBAR_BASE_DIR=${REBAR_BASE_DIR%/otp*}; fi
        unset ERLMCP_PROVIDED_OTP
        return 1
    }
    if [ "$toolchain" = system ]; then
        ERLMCP_PROVIDED=''
    else
        ERLMCP_PROVIDED=$toolchain/usr/lib/erlang/lib
        PATH=$toolchain/usr/lib/erlang/bin:$PATH
    fi
    export PATH ERLMCP_PROVIDED ERLMCP_PROVIDED_OTP
fi
