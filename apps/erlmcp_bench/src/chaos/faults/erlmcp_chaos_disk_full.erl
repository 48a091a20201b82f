-module(erlmcp_chaos_disk_full).
-moduledoc """
A fault: the file system with a tool's token store and the node's log is full. Calls that need the
disk are refused, and everything else is served as before. Data that was stored before the fault is
still there after it.

The evidence: a program outside the node cannot write to the file system either.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1, teardown/1]).

-define(BYTES, 4_194_304).
%% Calls of the tool a second.
-define(RATE, 50).
-define(CALLERS, 2).
-define(FULL_MS, 4_000).
-define(SHORT_FULL_MS, 500).
-define(LONGEST_MS, 60_000).
%% Attempts to write, at the same intervals, while the file system is full.
-define(ATTEMPTS, 10).

-doc false.
id() -> ~"chaos_disk_full".

-doc false.
title() -> ~"a small tmpfs under the store and the log fills up".

-doc false.
needs() -> [root, {program, "mount"}].

-doc false.
bounds() -> #{code => 1079, detect_ms => 200, recover_ms => 500, load => undisturbed}.

-doc false.
harms() -> [disk].

-doc false.
setup(_) ->
    case erlmcp_chaos_tmpfs:start(?BYTES) of
        {ok, Tmpfs} -> {ok, #{private => Tmpfs}};
        {error, Reason} -> {not_run, erlmcp_chaos_program:reason(Reason)}
    end.

-doc false.
run(#{target := Target} = Context) ->
    Tmpfs = erlmcp_chaos_context:private(Context),
    maybe
        ok ?= erlmcp_chaos_context:call(Context, erlmcp_chaos_disk, start,
                                        [erlmcp_chaos_tmpfs:folder(Tmpfs)]),
        {ok, Keeping} ?= erlmcp_load:start(
            #{target => {http, erlmcp_bench_target:url(Target)}, connections => ?CALLERS,
              requests => [{1, {~"tools/call", #{~"name" => ~"keep", ~"arguments" => #{}}}}],
              loop => {open, ?RATE, even}, warmup_ms => 0, duration_ms => ?LONGEST_MS,
              timeout_ms => ?LONGEST_MS,
              observer => erlmcp_chaos_context:observer(Context, probe)}),
        ok = erlmcp_chaos_context:until(fun() ->
            erlmcp_chaos_context:call(Context, erlmcp_chaos_disk, kept, []) >= ?CALLERS
        end),
        Filled = while_full(Tmpfs, Context),
        _ = erlmcp_load:stop(Keeping),
        ok ?= Filled,
        erlmcp_chaos_context:call(Context, erlmcp_chaos_disk, check, [])
    end.

while_full(Tmpfs, Context) ->
    FullMs = case erlmcp_chaos_context:is_short(Context) of
        true -> ?SHORT_FULL_MS;
        false -> ?FULL_MS
    end,
    maybe
        _ = erlmcp_chaos_context:inject(Context),
        ok ?= erlmcp_chaos_context:harm(Context, disk, ok, fun() ->
            erlmcp_chaos_tmpfs:fill(Tmpfs)
        end),
        Refused = length([enospc || _ <- lists:seq(1, ?ATTEMPTS),
                                    {error, enospc} <- [write(FullMs div ?ATTEMPTS, Tmpfs)]]),
        ok ?= erlmcp_chaos_context:seen(Context, disk, refused_writes_count, Refused,
                                        {at_least, ?ATTEMPTS}),
        _ = erlmcp_chaos_context:await_detected(Context),
        ok ?= erlmcp_chaos_tmpfs:free(Tmpfs),
        _ = erlmcp_chaos_context:heal(Context),
        _ = erlmcp_chaos_context:await_recovered(Context),
        ok
    end.

%% An attempt writes more bytes than calls of the tool can set free meanwhile.
write(PauseMs, Tmpfs) ->
    receive after PauseMs -> erlmcp_chaos_tmpfs:attempt(Tmpfs, 65_536) end.

-doc false.
teardown(Tmpfs) ->
    ok = erlmcp_chaos_tmpfs:stop(Tmpfs).
