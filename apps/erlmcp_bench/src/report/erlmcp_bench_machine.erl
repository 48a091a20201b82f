-module(erlmcp_bench_machine).
-moduledoc "A result's environment in a line: the machine, the versions, the commit. Pure.".

-export([said/1]).

-doc "What is known of it, as text. A commit that is not known is told too.".
-spec said(Environment :: #{binary() => term()}) -> iodata().
said(Environment) ->
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
