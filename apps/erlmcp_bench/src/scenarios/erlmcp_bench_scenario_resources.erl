-module(erlmcp_bench_scenario_resources).
-moduledoc """
Reads the processor time and the memory of each process of a scenario, as the system reports them.
With the bytes of its clients, the readings become figures for each second and each phase.
""".

-export([read/3, seconds/2, phases/2, used/1]).

-export_type([reading/0, second/0, phase/0, node_figures/0]).

-doc "The bytes that a node has received from its clients so far, and those that it has sent.".
-type bytes() :: {Received :: non_neg_integer(), Sent :: non_neg_integer()}.

-doc """
A reading of all processes at `at_us`, in monotonic microseconds. `phase` is the phase that has
lasted until then. A process that does not run has no processor time and no memory.
""".
-type reading() :: #{
    at_us := integer(), phase := atom(),
    nodes := #{Name :: binary() => #{os_pid => pos_integer(), cpu_us => non_neg_integer(),
                                     rss_bytes => non_neg_integer(), bytes => bytes()}}
}.

-doc """
The figures of one process over several readings. A figure that is not known is missing.

`cpu_percent` is the processor time as a percentage of one processor, so two busy processors are
200. The time between two readings does not count if the process was replaced in between.
`memory_rss_mib_per_node` is the memory in the last reading. `memory_rss_max_mib_per_node` is the
most in all readings except the first. `received_bytes` and `sent_bytes` are those between the first
and the last reading.
""".
-type node_figures() :: #{
    node := binary(), cpu_percent => float(), memory_rss_mib_per_node => float(),
    memory_rss_max_mib_per_node => float(), received_bytes => non_neg_integer(),
    sent_bytes => non_neg_integer()
}.

-doc """
The figures of one process in a second, or in the rest of one, that ended `at_s` seconds after the
beginning.
""".
-type second() :: #{phase := atom(), at_s := float(), duration_s := float(), node := binary(),
                    atom() => term()}.

-doc "The figures of all processes in a phase that ended `at_s` seconds after the beginning.".
-type phase() :: #{phase := atom(), at_s := float(), duration_s := float(),
                   nodes := [node_figures()]}.

-define(MIB, 1_048_576).

-doc """
Reads what the processes use now. A process has a name, and its process id in the operating system
or `none`. `Bytes` has the bytes of each process that has clients, under its name.
""".
-spec read(Phase :: atom(), [{Name :: binary(), pos_integer() | none}],
           Bytes :: #{Name :: binary() => bytes()}) -> reading().
read(Phase, Processes, Bytes) ->
    #{at_us => erlang:monotonic_time(microsecond), phase => Phase,
      nodes => #{Name => maps:merge(of_process(OsPid), #{bytes => Of || #{Name := Of} <- [Bytes]})
                 || {Name, OsPid} <- Processes}}.

of_process(none) ->
    #{};
of_process(OsPid) ->
    case {erlmcp_bench_process:cpu_us(OsPid), erlmcp_bench_process:rss_bytes(OsPid)} of
        {Cpu, Rss} when is_integer(Cpu), is_integer(Rss) ->
            #{os_pid => OsPid, cpu_us => Cpu, rss_bytes => Rss};
        _ ->
            #{}
    end.

-doc """
Returns the figures of each process between each two readings that follow each other. The scenario
began at `BeganUs`, in monotonic microseconds.
""".
-spec seconds(BeganUs :: integer(), [reading()]) -> [second()].
seconds(BeganUs, [From | [#{at_us := At, phase := Phase} = To | _] = Rest]) ->
    #{at_us := Before} = From,
    [(maps:remove(memory_rss_max_mib_per_node, Figures))#{
         phase => Phase, at_s => (At - BeganUs) / 1_000_000,
         duration_s => (At - Before) / 1_000_000}
     || At > Before, Figures <- figures([From, To])] ++ seconds(BeganUs, Rest);
seconds(_, _) ->
    [].

-doc """
Returns the figures of each process in each phase. The scenario began at `BeganUs`, in monotonic
microseconds.
""".
-spec phases(BeganUs :: integer(), [reading()]) -> [phase()].
phases(BeganUs, [#{at_us := Start} = Before | [#{phase := Phase} | _] = Rest]) ->
    {Of, Later} = lists:splitwith(fun(#{phase := Name}) -> Name =:= Phase end, Rest),
    #{at_us := At} = Last = lists:last(Of),
    [#{phase => Phase, at_s => (At - BeganUs) / 1_000_000, duration_s => (At - Start) / 1_000_000,
       nodes => figures([Before | Of])} | phases(BeganUs, [Last | Later])];
phases(_, _) ->
    [].

%% Of each process over several readings that follow each other.
figures([#{nodes := Nodes} | _] = Readings) ->
    [lists:foldl(fun maps:merge/2, #{node => Name},
                 [processor(Name, Readings), memory(Name, Readings), network(Name, Readings)])
     || Name <- lists:sort(maps:keys(Nodes))].

processor(Name, Readings) ->
    case lists:unzip(same(Name, Readings)) of
        {[], []} -> #{};
        {Cpu, Us} -> #{cpu_percent => 100 * lists:sum(Cpu) / lists:sum(Us)}
    end.

%% The processor time and the time between two readings of the same process.
same(Name, [#{at_us := From, nodes := Before} | [#{at_us := To, nodes := After} | _] = Rest]) ->
    [{Later - Earlier, To - From}
     || #{Name := #{os_pid := OsPid, cpu_us := Earlier}} <- [Before],
        #{Name := #{os_pid := Same, cpu_us := Later}} <- [After], Same =:= OsPid, To > From]
        ++ same(Name, Rest);
same(_, _) ->
    [].

memory(Name, Readings) ->
    Rss = [Bytes || #{nodes := #{Name := #{rss_bytes := Bytes}}} <- tl(Readings)],
    maps:from_list([{memory_rss_max_mib_per_node, lists:max(Rss) / ?MIB} || Rss =/= []]
                   ++ [{memory_rss_mib_per_node, Bytes / ?MIB}
                       || #{nodes := #{Name := #{rss_bytes := Bytes}}} <- [lists:last(Readings)]]).

network(Name, Readings) ->
    case {hd(Readings), lists:last(Readings)} of
        {#{nodes := #{Name := #{bytes := {Received, Sent}}}},
         #{nodes := #{Name := #{bytes := {ReceivedThen, SentThen}}}}} ->
            #{received_bytes => ReceivedThen - Received, sent_bytes => SentThen - Sent};
        _ ->
            #{}
    end.

-doc """
Returns the processor time of each process from the beginning to the end of the peak, and its memory
at the end of the peak. A name is left out if it did not have the same process at both times. The
map is empty if there was no peak.
""".
-spec used([reading()]) ->
    #{Name :: binary() => #{cpu_us := non_neg_integer(), rss_bytes := non_neg_integer()}}.
used(Readings) ->
    case lists:splitwith(fun({_, #{phase := Phase}}) -> Phase =/= peak end, pairs(Readings)) of
        {_, []} ->
            #{};
        {_, [{#{nodes := Before}, _} | _] = FromPeak} ->
            OfPeak = [Nodes || {_, #{phase := peak, nodes := Nodes}} <- FromPeak],
            After = lists:last(OfPeak),
            #{Name => #{cpu_us => Later - Earlier, rss_bytes => Rss}
              || Name := #{os_pid := OsPid, cpu_us := Earlier} <- Before,
                 #{Name := #{os_pid := Same, cpu_us := Later, rss_bytes := Rss}} <- [After],
                 Same =:= OsPid}
    end.

pairs([From | [To | _] = Rest]) -> [{From, To} | pairs(Rest)];
pairs(_) -> [].
