-module(erlmcp_envelope).
-moduledoc """
Named sets of limits: the plans `team`, `enterprise` and `gov` (`plans/0`), and `measured`, the
default, which is computed from the machine (`measured/0`). Limits that an envelope does not name
have their own defaults. Pure.

Internal.
""".

-export([limits/2, names/0, plans/0, measured/0, carried/1]).

-export_type([name/0]).

-type name() :: measured | team | enterprise | gov.

-define(MIB, 1_048_576).

%% Bytes of memory that a connection may cost while a message of it is handled.
-define(CONNECTION, 65_536).
%% The most connections of the measured envelope.
-define(MOST, 100_000).

-doc "Returns the names of the envelopes.".
-spec names() -> [name(), ...].
names() ->
    [measured, team, enterprise, gov].

-doc """
Returns the limits of an envelope on a machine with the facts `Facts`. In `measured`, the limits
that are shares of the memory are absent if the memory is not known.
""".
-spec limits(name(), erlmcp_machine:facts()) -> #{atom() => pos_integer()}.
limits(measured, Facts) ->
    #{Name => max(1, Value) || {Name, Measure, _} <- measured(),
                               Value <- [Measure(Facts)], is_integer(Value)};
limits(Plan, _) ->
    #{Name => map_get(Plan, Values) || {Name, Values} <- plans()}.

-doc "Returns each limit that the plans set, with its value in each plan.".
-spec plans() -> [{Limit :: atom(), #{team | enterprise | gov => pos_integer()}}].
plans() ->
    [plan(messages_per_second, 900, 3_000, 1_800),
     plan(connections, 25_000, 100_000, 50_000),
     %% One principal may fill half of the queue. Each request may have a KiB, up to the highest
     %% number that a gate can count.
     plan(queue, 100_000, 500_000, 300_000),
     plan(queue_per_principal, 50_000, 250_000, 150_000),
     plan(queue_bytes, 102_400_000, 268_435_455, 268_435_455),
     plan(calls_per_connection, 32, 128, 64),
     plan(message_bytes, 1 * ?MIB, 10 * ?MIB, 5 * ?MIB),
     plan(unread_bytes, 8 * ?MIB, 64 * ?MIB, 32 * ?MIB),
     plan(receive_timeout_ms, 60_000, 120_000, 90_000),
     plan(send_timeout_ms, 60_000, 120_000, 90_000),
     plan(rate_retry_ms, 60_000, 30_000, 45_000),
     plan(queue_retry_ms, 30_000, 10_000, 15_000)].

plan(Limit, Team, Enterprise, Gov) ->
    {Limit, #{team => Team, enterprise => Enterprise, gov => Gov}}.

-doc """
Returns the measured limits, each with a function that computes it from the facts, and with a
description. The function returns `default` if the limit is a share of the memory, and the memory is
not known.
""".
-spec measured() ->
    [{Limit :: atom(), fun((erlmcp_machine:facts()) -> integer() | default), How :: binary()}].
measured() ->
    [{connections, fun connections/1,
      <<"the least of these, 100,000 at most: three fourths of the descriptors and of the ports "
        "(or all except 1,024 of many, half of few), a fourth of the processes, and a fourth of "
        "the memory at 64 KiB each">>},
     {message_bytes, share(256, 4 * ?MIB), ~"1/256 of the memory, 4 MiB at most"},
     {unread_bytes, share(64, 16 * ?MIB), ~"1/64 of the memory, 16 MiB at most"},
     {queue_bytes_per_connection, share(64, 16 * ?MIB), ~"1/64 of the memory, 16 MiB at most"},
     {call_heap_bytes, share(16, 128 * ?MIB), ~"1/16 of the memory, 128 MiB at most"},
     {cache_bytes, share(16, 64 * ?MIB), ~"1/16 of the memory, 64 MiB at most"},
     {task_bytes, share(8, 256 * ?MIB), ~"1/8 of the memory, 256 MiB at most"},
     {task_bytes_per_principal, share(32, 64 * ?MIB), ~"1/32 of the memory, 64 MiB at most"}].

connections(Facts) ->
    lists:min([?MOST | maps:values(carried(Facts))]).

-doc "Returns how many connections each known resource of a machine allows.".
-spec carried(erlmcp_machine:facts()) ->
    #{descriptors | ports | processes | memory | group_memory => non_neg_integer()}.
carried(Facts) ->
    #{Name => carried(Name, Value)
      || Name := Value <- maps:with([descriptors, ports, processes, memory, group_memory], Facts)}.

carried(processes, Processes) -> Processes div 4;
carried(Memory, Bytes) when Memory =:= memory; Memory =:= group_memory ->
    Bytes div 4 div ?CONNECTION;
carried(_, Number) -> Number - erlmcp_descriptors:spare(Number).

share(Part, Most) ->
    fun(Facts) ->
        case memory(Facts) of
            [] -> default;
            [Bytes] -> min(Bytes div Part, Most)
        end
    end.

%% The memory of the machine, or of the control group if that is less.
memory(Facts) ->
    case maps:values(maps:with([memory, group_memory], Facts)) of
        [] -> [];
        Known -> [lists:min(Known)]
    end.
