-module(erlmcp_bench_marks).
-moduledoc """
The origins of the marks, which are figures that an earlier public erlmcp published. An origin says
what was really measured by the program that a mark is ascribed to. The marks themselves are in
`m:erlmcp_bench_workloads`. Pure.
""".

-export([all/0, is_for/2, compared/3, better/1]).

-export_type([mark/0, origin/0, verdict/0]).

-doc """
A published figure. `name` is the name of its workload or its component. A mark of all stress
workloads has the name `stress`.
""".
-type mark() :: #{name := binary(), benchmark := binary(), field := binary(), mark := number(),
                  origin := origin()}.

-doc """
The origin of a mark. `never`: no measurement gave it. `other`: something else was measured.
`unknown`: no program was found that could have given it.
""".
-type origin() :: {never | other, Why :: binary()} | unknown.

-type verdict() :: beaten | not_beaten | level.

-define(EXAMPLE, ~"an example in a comment").
-define(TARGET, ~"a target, written down before a run").

-doc "Returns every mark, each once.".
-spec all() -> [mark()].
all() ->
    Components = [{atom_to_binary(Component), #{~"component" => atom_to_binary(Component)},
                   core_ops, Marks}
                  || {Component, Marks} <- erlmcp_bench_workloads:components()],
    [#{marks := OfStress} | _] = erlmcp_bench_workloads:of_benchmark(stress),
    Workloads = [{Id, #{~"workload_id" => Id}, Benchmark, Marks}
                 || Benchmark <- [integration, network_real],
                    #{id := Id, marks := Marks} <- erlmcp_bench_workloads:of_benchmark(Benchmark)],
    [#{name => Name, benchmark => atom_to_binary(Benchmark), field => Field, mark => Mark,
       origin => origin(Result#{~"benchmark" => atom_to_binary(Benchmark)}, Field)}
     || {Name, Result, Benchmark, Marks} <- Components ++ [{~"stress", #{}, stress, OfStress}]
                                            ++ Workloads,
        {Field, Mark} <- Marks].

-doc """
Returns `true` if a mark is for a workload. The name of such a mark is the workload's component, or
the id of a workload without a component. A mark with the name `stress` is for every stress
workload. A mark for one core is not for a workload on several cores.
""".
-spec is_for(mark(), Workload :: #{binary() => term()}) -> boolean().
is_for(#{name := Name, benchmark := Benchmark, field := Field, mark := Mark},
       #{~"benchmark" := Of} = Workload) ->
    Of =:= Benchmark andalso lists:member({Field, Mark}, erlmcp_bench_workloads:marks(Workload))
        andalso case Workload of
                    #{~"component" := Component} -> Component =:= Name;
                    #{~"workload_id" := Id} -> Name =:= ~"stress" orelse Name =:= Id
                end.

%% The origin of the mark for a field of a result.
origin(#{~"benchmark" := ~"core_ops", ~"component" := Component}, _) ->
    component(Component);
origin(#{~"benchmark" := ~"stress"}, ~"throughput_msg_per_s") ->
    {never, ~"it claims 60 million operations in 30 s, which would be 2 million a second"};
origin(#{~"benchmark" := ~"stress"}, _) ->
    {never, ?EXAMPLE};
origin(#{~"benchmark" := ~"integration"}, _) ->
    {never, ~"no server was called: requests were encoded, decoded and dropped"};
origin(#{~"benchmark" := ~"network_real", ~"workload_id" := Id}, Field) ->
    network(Id, Field);
origin(#{}, _) ->
    unknown.

component(~"registry") -> {never, ~"random numbers"};
component(~"queue") -> {other, ~"a queue in one process, without waiting"};
component(~"pool") -> {other, ~"a table; there was no pool and no worker"};
component(~"session") -> {other, ~"an insert into a table and a lookup; there was no session"};
component(~"encode") -> {other, ~"making a map; no bytes were made"};
component(_) -> unknown.

network(<<"tcp_burst_", _/binary>>, ~"throughput_msg_per_s") -> {never, ?TARGET};
network(<<"http_burst_", _/binary>>, ~"throughput_msg_per_s") -> {never, ?TARGET};
network(<<"http1_sustained_", _/binary>>, ~"throughput_msg_per_s") -> {never, ?TARGET};
network(<<"tcp_", _/binary>>, ~"throughput_msg_per_s") ->
    {other, ~"messages that were sent; no reply was read"};
network(<<"tcp_", _/binary>>, <<"latency_", _/binary>>) ->
    {other, ~"sending, of the first 10,000; no reply was read"};
network(<<"http_", _/binary>>, ~"overhead_bytes_per_request") ->
    {never, ~"a constant"};
network(<<"http_", _/binary>>, ~"connection_reuse_percent") ->
    {never, ~"a constant, and a different one"};
network(<<"http_", _/binary>>, _) ->
    {other, ~"a handler that answers a constant; there was no MCP server"};
network(<<"connections_", _/binary>>, _) ->
    {other, ~"bare sockets, to a server that echoes"};
network(_, _) ->
    unknown.

-doc """
Returns `level` if the mark is between the least and the most of the runs. Otherwise returns
`beaten` if the median of the runs is better than the mark (`better/1`), and `not_beaten` if not.
""".
-spec compared(Field :: binary(), Mark :: number(),
               {Least :: number(), Median :: number(), Most :: number()}) -> verdict().
compared(_, Mark, {Least, _, Most}) when Mark >= Least, Mark =< Most -> level;
compared(Field, Mark, {_, Median, _}) ->
    case better(Field) of
        more when Median > Mark -> beaten;
        less when Median < Mark -> beaten;
        _ -> not_beaten
    end.

-doc """
Returns `more` if a higher figure is better, as for throughput and connections. Returns `less` for
others, such as times, memory and errors.
""".
-spec better(Field :: binary()) -> more | less.
better(<<"throughput_deviation_", _/binary>>) -> less;
better(<<"throughput_", _/binary>>) -> more;
better(~"connection_reuse_percent") -> more;
better(Field) ->
    case binary:match(Field, [~"connections"]) of
        nomatch -> less;
        _ -> more
    end.
