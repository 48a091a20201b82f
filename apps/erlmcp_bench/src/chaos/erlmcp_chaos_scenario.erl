-module(erlmcp_chaos_scenario).
-moduledoc """
What a fault is: a module that says who it is, what it needs, what is promised of a server that
meets it, and that injects it for real. `m:erlmcp_chaos_run` does the rest: it starts the server in
a process of its own, keeps a load on it from outside, accounts for every request, and judges.

A scenario calls `m:erlmcp_chaos_context`: `inject/1` right before it does the harm, `heal/1` right
after it has ended it; as often as it likes, each pair a round, of which the worst counts.
""".

-export_type([bounds/0, need/0, options/0, setup/0, context/0, source/0]).

-doc """
What is promised: the code, `none` where a fault has none, how many milliseconds from the injection
to the first counted event or refusal, and how many from the end of the fault to the first good
reply at the earlier latency. `load` is what may become of the requests of those that are not at
fault: all answered (`undisturbed`), some refused with the code (`refused`), some reported failed
too (`failed`), or some of them for want of any answer in their time (`unreachable`). Where
`detect_ms` is `none`, there is nothing to be noticed.
""".
-type bounds() :: #{
    code := 1001..1089 | none, detect_ms := pos_integer() | none,
    recover_ms := non_neg_integer(), load := undisturbed | refused | failed | unreachable
}.

-doc "What a machine must have: the rights of root, or a program of this name in the path.".
-type need() :: root | {program, string()}.

-doc "`short` where seconds are to do: the same fault, and less of it.".
-type options() :: #{short := boolean(), atom() => term()}.

-doc """
What a scenario wants before its fault:

- `server`: options of the server, over those of the fixture on HTTP and TCP;
- `target`: the others of `t:erlmcp_bench_target:options/0`;
- `load`: what differs from the usual plan of `m:erlmcp_load`, or a fun that says it of the target,
  or `none`;
- `private`: what `run/1` finds in its context, and what `teardown/1` is given;
- `restarts`: whether what is supervised is meant to end, and to be started anew: `none` (so it is
  unless this is given), `children` of the server, or the `server` itself.
""".
-type setup() :: #{
    server => map(),
    target => erlmcp_bench_target:options(),
    load => map() | fun((erlmcp_bench_target:target()) -> map()) | none,
    private => term(),
    restarts => none | children | server
}.

-doc """
What a fault is run with. `target` and `options` may be read; for the rest there are functions.
""".
-type context() :: #{
    target := erlmcp_bench_target:target(), options := options(), private := term(),
    journal := pid(), bounds := bounds(), tell := fun((term()) -> term())
}.

-doc """
Whose a request is: of the load that goes on beside the fault, of the fault itself, or of a probe,
which is good, and looks at what the load does not. All are accounted for; where there are probes
after the fault, the server has recovered when both have had their good reply.
""".
-type source() :: load | fault | probe.

-doc "Its name, such as `chaos_message_flood`.".
-callback id() -> binary().
-doc "The real fault, in a few words.".
-callback title() -> binary().
-callback needs() -> [need()].
-callback bounds() -> bounds().
-doc "What has to be there before the server is; a reason if that cannot be had on this machine.".
-callback setup(options()) -> {ok, setup()} | {not_run, Reason :: binary()}.
-doc """
Injects the fault and ends it. An error, or a crash, says that something was not as it should have
been; that the fault could not be injected here is `not_run`.
""".
-callback run(context()) -> ok | {error, term()} | {not_run, Reason :: binary()}.
-doc "Undoes what `setup/1` did; called whatever happened since.".
-callback teardown(Private :: term()) -> ok.

-optional_callbacks([setup/1, teardown/1]).
