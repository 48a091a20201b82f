#!/bin/sh
# What can be said about the code without running it: warnings, calls to nothing, types, the
# direction of calls between rooms, line width. Needs scripts/env.sh.
set -eu
cd "$(dirname -- "$0")/.."
scripts/width.sh
scripts/build.sh
rebar3 xref
# The types of OTP's own applications are the same for every clone.
REBAR_CACHE_DIR=${ERLMCP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/erlmcp}/rebar3 rebar3 dialyzer
rebar3 ct --suite apps/erlmcp/test/layers_SUITE
