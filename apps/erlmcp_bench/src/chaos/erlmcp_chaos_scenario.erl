-module(erlmcp_chaos_scenario).
-moduledoc """
The behaviour of a fault. A module says what the fault needs, and what a server must do when it
meets the fault, and injects the fault. `m:erlmcp_chaos_run` starts the server and its load, and
judges.

A scenario calls `erlmcp_chaos_context:inject/1` right before it does the harm, and
`erlmcp_chaos_context:heal/1` right after the harm has ended. Each pair of calls is a round, and the
worst round counts.

A scenario does each harm through `erlmcp_chaos_context:harm/4`, and then records a figure that
shows it (`erlmcp_chaos_context:seen/5`). The figure is measured where the harm is felt, and not
where it is done. A scenario has failed if one of its harms was not seen.
""".

-export_type([bounds/0, need/0, options/0, setup/0, context/0, way/0, source/0]).

-doc """
The promises for a fault.

- `code`: the code of its refusals, or `none`.
- `detect_ms`: the most milliseconds from the injection until the fault is detected
  (`m:erlmcp_chaos_journal`), or `none` if the fault need not be detected.
- `recover_ms`: the most milliseconds from the end of the fault until the load is served as before
  the fault (`m:erlmcp_chaos_journal`).
- `load`: what may happen to the requests of the load. `undisturbed`: all are answered. `refused`:
  some are refused with the code. `failed`: some are refused with any code, or fail. `unreachable`:
  some may also get no answer in their time.
- `pauses`: `own` if the fault itself takes the machine's processors. Then only the longest pause of
  the machine moves a bound, by the length of this pause (`m:erlmcp_chaos_verdict`).
""".
-type bounds() :: #{
    code := 1001..1089 | none, detect_ms := pos_integer() | none,
    recover_ms := non_neg_integer(), load := undisturbed | refused | failed | unreachable,
    pauses => own
}.

-doc """
A requirement on the machine. `root` stands for the rights of root, including the rights to
administer networks and to mount file systems. `{program, Name}` stands for a program `Name` on the
path.
""".
-type need() :: root | {program, string()}.

-doc "`short` asks for a shorter run of the same fault.".
-type options() :: #{short := boolean(), atom() => term()}.

-doc """
The preparation of a scenario:

- `server`: options of the server. They replace the usual options of the same name, which offer the
  fixture on HTTP and TCP;
- `target`: the other members of `t:erlmcp_bench_target:options/0`;
- `load`: changes to the usual plan of `m:erlmcp_load`, a fun from the target to these changes, or
  `none` for a scenario without a load;
- `private`: a term for `run/1`, which finds it in its context, and for `teardown/1`;
- `restarts`: which supervised processes are meant to restart: `none` (default), `children` of the
  server, or the `server` itself.
""".
-type setup() :: #{
    server => map(),
    target => erlmcp_bench_target:options(),
    load => map() | fun((erlmcp_bench_target:target()) -> map()) | none,
    private => term(),
    restarts => none | children | server
}.

-doc """
The context of a running fault. A scenario may read `target` and `options`. The functions of
`m:erlmcp_chaos_context` need the rest.
""".
-type context() :: #{
    target := erlmcp_bench_target:target(), options := options(), private := term(),
    journal := pid(), bounds := bounds(), tell := fun((term()) -> term()),
    load := erlmcp_load:load() | none, harm := way()
}.
-doc """
A fun that does the harm `Harm` by calling `Do`, and returns the value of `Do`. In a test suite, the
fun may instead do no harm and return `Unharmed`.
""".
-type way() :: fun((Harm :: atom(), Unharmed :: term(), Do :: fun(() -> term())) -> term()).

-doc """
The source of a request: `load` runs during the fault, `fault` belongs to the fault itself, and
`probe` is a good request that checks what the load does not.

In a round with probes, the server has recovered when two things have happened after the end of the
fault: the load has recovered, and a probe has had a good reply.
""".
-type source() :: load | fault | probe.

-doc "Returns the name of the fault, such as `chaos_message_flood`.".
-callback id() -> binary().
-doc "Describes the fault in a few words.".
-callback title() -> binary().
-doc "Returns the fault's requirements on the machine.".
-callback needs() -> [need()].
-doc "Returns the promises for the fault.".
-callback bounds() -> bounds().
-doc """
Returns the names of the fault's harms. `run/1` must record each of them with
`erlmcp_chaos_context:seen/5`. The scenario has failed if a harm has no figure, or one that is out
of its bound.
""".
-callback harms() -> [atom(), ...].
-doc """
Prepares the scenario before the server starts, or returns why this machine cannot run the scenario.
`teardown/1` is called in the same process, `run/1` in another one.
""".
-callback setup(options()) -> {ok, setup()} | {not_run, Reason :: binary()}.
-doc """
Injects the fault and ends it. `ok` says that the scenario came to its end, and
`m:erlmcp_chaos_verdict` judges the server. The scenario has failed after an error or a crash, and
after `unseen`, which says that a harm was not seen. `not_run` says that the fault cannot be
injected on this machine.
""".
-callback run(context()) -> ok | unseen | {error, term()} | {not_run, Reason :: binary()}.
-doc """
Undoes a `setup/1` that returned `ok`, even if the scenario failed or was killed. `Private` is the
term `private` of the setup, or `none` if the setup has no such term.
""".
-callback teardown(Private :: term()) -> ok.

-optional_callbacks([setup/1, teardown/1]).
