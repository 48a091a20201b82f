-module(bench_peers).
-moduledoc """
Measures erlmcp and the servers of other SDKs: the same requests, from the same generators, in turn.
`bench/peers.sh` starts the servers and calls this module once a round.
""".

-export([measure/1, drop_incomplete/1, table/1]).

%% Seconds of use of the connections before counting begins, and seconds of a whole measurement. A
%% shorter one is marked, and reaches no goal.
-define(WARMUP_S, 1.0).
-define(WHOLE_S, 8.0).

-define(SDKS, [erlmcp, rmcp, rmcp_mimalloc, go_gogc_off, typescript, python]).
%% Servers with several processes serve no sessions, and have another server for these.
-define(SESSIONS, [erlmcp, rmcp, rmcp_mimalloc, rmcp_sessionless, go_gogc_off,
                   {typescript, typescript_sessions}, {python, python_sessions}]).

%% The workloads: the generator, the request, and the servers, by their own name or with another
%% one.
workloads() ->
    [#{id => peers_echo_64, how => wrk, connections => 64, request => {echo, 5},
       servers => [nginx, bare, go | ?SDKS]},
     #{id => peers_echo_1000, how => wrk, connections => 1_000, request => {echo, 5},
       servers => [nginx, bare | ?SDKS]},
     %% wrk's percentiles include the start of its connections.
     #{id => peers_echo_1000_warm, how => h2load, connections => 1_000, streams => 1,
       request => {echo, 5}, servers => [nginx, bare | ?SDKS]},
     #{id => peers_session_64, how => wrk, connections => 64, request => {echo, 5},
       era => session, servers => ?SESSIONS},
     #{id => peers_list_64, how => wrk, connections => 64, request => list,
       servers => [nginx, bare | ?SDKS]},
     #{id => peers_echo_1kib_64, how => wrk, connections => 64, request => {echo, 1_024},
       servers => [nginx | ?SDKS]},
     #{id => peers_sleep_1000, how => wrk, connections => 1_000, request => {sleep, 5},
       servers => ?SDKS},
     #{id => peers_quick_alone, how => quick, connections => 16, request => {echo, 5},
       servers => [erlmcp, rmcp]},
     #{id => peers_quick_beside_slow, how => quick, connections => 16, request => {echo, 5},
       slow => 64, servers => [erlmcp, rmcp]},
     #{id => peers_tls_64, how => wrk, transport => http1_tls, connections => 64,
       request => {echo, 5}, servers => [{erlmcp, erlmcp_tls}]},
     #{id => peers_http2_100, how => h2load, transport => http2, connections => 100,
       streams => 10, request => {echo, 5}, servers => [nginx, erlmcp]},
     #{id => peers_stdio_1, how => lines, transport => stdio, connections => 1, window => 1,
       request => {echo, 5}, servers => [go | ?SDKS]},
     #{id => peers_stdio_64, how => lines, transport => stdio, connections => 1, window => 64,
       request => {echo, 5}, servers => [go | ?SDKS]},
     #{id => peers_tcp_1, how => lines, transport => tcp, connections => 1, window => 1,
       request => {echo, 5}, servers => [erlmcp]},
     #{id => peers_tcp_64, how => lines, transport => tcp, connections => 1, window => 64,
       request => {echo, 5}, servers => [erlmcp]}].

-doc """
Runs one round: every workload, or the named ones, for every running server. The results go into a
folder.

The file of the servers has `{Name, Url, Pid}`. Servers on lines have `{{stdio, Name}, Arguments}`
and `{{tcp, Name}, Arguments}`, for `bench/peers/rust/src/bin/lines.rs`.
""".
-spec measure([string()]) -> no_return().
measure([File, Folder, Lasting, Only]) ->
    Seconds = list_to_float(Lasting),
    {ok, _} = application:ensure_all_started(ssl),
    {ok, Terms} = file:consult(File),
    Servers = #{element(1, Term) => Term || Term <- Terms},
    Wanted = string:lexemes(Only, " "),
    _ = [warmed(Server, Seconds) || {Name, _, _} = Server <- Terms,
                                    Name =/= nginx, Name =/= bare, Name =/= erlmcp_tls],
    Outcomes = [measured(Workload, Name, Server, Folder, Seconds, 2)
                || #{id := Id, servers := Named} = Workload <- workloads(),
                   Wanted =:= [] orelse lists:member(atom_to_list(Id), Wanted),
                   {Name, Key} <- [named(One) || One <- Named],
                   #{Key := Server} <- [keyed(Workload, Servers)]],
    halt(length([Failed || error = Failed <- Outcomes])).

named({Name, Key}) -> {Name, Key};
named(Name) -> {Name, Name}.

keyed(#{how := lines, transport := Transport}, Servers) ->
    #{Name => Server || {Of, Name} := Server <- Servers, Of =:= Transport};
keyed(_, Servers) ->
    Servers.

%% Some code is compiled while it runs (in Node after 10,000 requests), and some memory is allocated
%% once. A server is measured even if its warm-up fails.
warmed({Name, _, _} = Server, Seconds) ->
    Era = case lists:member(Name, [rmcp_sessionless, typescript_sessions, python_sessions]) of
              true -> session;
              false -> stateless
          end,
    Workload = #{how => wrk, connections => 64, request => {echo, 5}, era => Era},
    tried(fun() -> figures(Workload, Server, Seconds) end, [~"warm-up of ", atom_to_list(Name)]).

measured(#{id := Id} = Workload, Name, Server, Folder, Seconds, Tries) ->
    case tried(fun() -> figures(Workload, Server, Seconds) end,
               [atom_to_list(Id), ~" of ", atom_to_list(Name)]) of
        {ok, Figures} ->
            Fields = (fields(Workload, Name))#{shortened => Seconds < ?WHOLE_S},
            Result = erlmcp_bench_result:new(maps:merge(Fields, Figures)),
            {ok, _} = erlmcp_bench_result:write(Result, Folder),
            print(Result);
        error when Tries > 1 ->
            measured(Workload, Name, Server, Folder, Seconds, Tries - 1);
        error ->
            error
    end.

%% A failure of one server does not stop the measurement of others.
tried(Measure, What) ->
    try
        {ok, Measure()}
    catch
        Class:Reason:Stack ->
            io:format(standard_error, "~ts: ~0tp~n", [What, {Class, Reason, Stack}]),
            error
    end.

figures(#{how := How} = Workload, Server, Seconds) ->
    bench_peers_tools:How(Workload, Server, ?WARMUP_S, Seconds).

fields(#{id := Id, connections := Connections} = Workload, Name) ->
    maps:from_list(
        [{workload_id, Id}, {benchmark, peers}, {scope, per_node}, {connections, Connections},
         {transport, maps:get(transport, Workload, http1)}, {load_generator, out_of_node},
         {era, maps:get(era, Workload, stateless)},
         {command_line, list_to_binary(os:getenv("PEERS_COMMAND"))}]
        ++ [{payload_bytes, Bytes} || #{request := {echo, Bytes}} <- [Workload]]
        ++ [{against, Name} || Name =/= erlmcp]).

print(#{~"workload_id" := Id, ~"throughput_msg_per_s" := Rate} = Result) ->
    io:format("~-24ts ~-17ts ~8b/s ~9ts us ~10ts us p99~n",
              [Id, maps:get(~"against", Result, ~"erlmcp"), round(Rate)
               | [case Result of
                      #{Field := Value} -> erlmcp_bench_text:number(Value);
                      #{} -> ~"-"
                  end || Field <- [~"cpu_us_per_msg", ~"latency_p99_us"]]]).

-doc "Deletes results that are missing in some rounds: a baseline needs all rounds.".
-spec drop_incomplete([string()]) -> ok.
drop_incomplete([Folder, Rounds]) ->
    Fewest = list_to_integer(Rounds),
    Files = [{erlmcp_bench_result:identity(Result), File}
             || File <- erlmcp_bench_result:files(Folder),
                {ok, Result} <- [erlmcp_bench_result:read(File)]],
    maps:foreach(
        fun(Identity, Of) when length(Of) < Fewest ->
                io:format(standard_error, "~ts: ~b results; left out~n",
                          [erlmcp_bench_result:label(Identity), length(Of)]),
                lists:foreach(fun({_, File}) -> ok = file:delete(File) end, Of);
           (_, _) ->
                ok
        end, maps:groups_from_list(fun({Identity, _}) -> Identity end, Files)).

-doc "Prints the table of the performance page from the results in a folder.".
-spec table([string()]) -> ok.
table([Folder]) ->
    {ok, Results} = erlmcp_bench_result:read_all([Folder]),
    Groups = maps:groups_from_list(fun erlmcp_bench_result:identity/1, Results),
    Workloads = [Identity#{~"figures" => figures(lists:map(fun erlmcp_bench_compare:figures/1,
                                                           Runs)),
                           ~"runs_count" => length(Runs), ~"environment" => Environment}
                 || Identity := [#{~"environment" := Environment} | _] = Runs <- Groups],
    Sources = erlmcp_bench_sources:new(Workloads, #{}),
    io:put_chars(erlmcp_bench_peers:section(Workloads, Sources)).

%% The shape of a baseline's figures.
figures([First | _] = Figures) ->
    #{Name => #{~"median" => erlmcp_bench_compare:median(Values), ~"min" => lists:min(Values),
                ~"max" => lists:max(Values), ~"values" => Values}
      || Name := _ <- First, Values <- [[Value || #{Name := Value} <- Figures]],
         length(Values) =:= length(Figures)}.
