-module(erlmcp_bench_machine).
-moduledoc """
Describes a result's environment in one line: the machine, the versions, the commit. Pure.
""".

-export([describe/1]).

-doc "Returns an environment as one line of text. Unknown fields are left out, except the commit.".
-spec describe(Environment :: #{binary() => term()}) -> iodata().
describe(Environment) ->
    lists:join(", ", [[Before, text(Value), After]
                      || {Field, Before, After} <- fields(),
                         #{Field := Value} <- [Environment],
                         is_binary(Value) orelse is_number(Value),
                         Value =/= ~"unknown" orelse Field =:= ~"erlmcp_commit"]).

fields() ->
    [{~"cpu", "", ""}, {~"cores", "", " cores"}, {~"memory_total_mib", "", " MiB of memory"},
     {~"kernel", "", ""}, {~"otp", "OTP ", ""}, {~"erlmcp_version", "erlmcp ", ""},
     {~"erlmcp_commit", "commit ", ""}].

text(Value) when is_binary(Value) -> Value;
text(Value) -> erlmcp_bench_text:number(Value).
