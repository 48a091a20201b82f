-module(bench_peers_tools).
-moduledoc """
Runs the load generators and reads their output. wrk is for HTTP/1.1. h2load is for HTTP/2, and for
percentiles of connections that have been in use. `lines` is for stdio and TCP, and `erlmcp load`
for requests that are due at times. The processor time of a server is the system's figure of its
process and its children, between the same times.
""".

-export([wrk/4, h2load/4, lines/4, quick/4]).

%% How far an answer's size may be from the checked one. Dates have a fixed length.
-define(BYTES_PERCENT, 2).

wrk(#{connections := Connections, request := Request} = Workload, {Name, Url, Pid}, WarmUp,
    Seconds) ->
    Era = maps:get(era, Workload, stateless),
    Sessions = case Era of
        session when Name =/= rmcp_sessionless -> bench_peers_http:sessions(Url, Connections);
        _ -> []
    end,
    To = url(Name, Url, Request),
    Bytes = verified(Name, To, Request, Era, Sessions),
    Processes = processes(Pid),
    From = erlang:system_time(millisecond) + round(WarmUp * 1_000),
    Port = start(wrk, ["-t", "2", "-c", integer_to_list(Connections), "-d",
                       integer_to_list(ceil(WarmUp + Seconds)) ++ "s", "--timeout", "10s", "-s",
                       "bench/peers/wrk.lua", To],
                 [{"REQUEST", description(To, Request, Era, Sessions, From)}]),
    Before = spent(Processes, From),
    Line = line(Port, "measured "),
    After = spent(Processes),
    _ = ended(Port),
    ok = bench_peers_http:close(Url, Sessions),
    ["measured" | Values] = string:lexemes(Line, " "),
    [All, Sent, P50, P99, Refused, Size, Broken, Late] =
        [list_to_integer(Value) || Value <- Values, not lists:member($., Value)],
    [LastedS, OwnS] = [list_to_float(Value) || Value <- Values, lists:member($., Value)],
    {0, 0} = {Broken, Late},
    true = LastedS > 0,
    %% Refusals have another size, and the last answer of each connection may be incomplete.
    true = Refused > 0 orelse
        abs(Size - All * Bytes) =< All * Bytes * ?BYTES_PERCENT div 100 + Connections * Bytes,
    %% Requests in flight at the beginning count. wrk counts refusals only of its whole run.
    Answered = round((All - Sent + Connections) * (1 - Refused / All)),
    maps:merge(figures(Answered, LastedS, After - Before, OwnS * 1.0e6,
                       #{latency_p50_us => P50, latency_p99_us => P99}),
               refused(Refused, All)).

%% Answers that are not 2xx.
refused(0, _) -> #{};
refused(Refused, All) -> #{refused_percent => 100 * Refused / All}.

%% Servers with fixed answers choose them by the path.
url(Fixed, Url, {echo, Bytes}) when Fixed =:= nginx; Fixed =:= bare ->
    Url ++ integer_to_list(Bytes);
url(Fixed, Url, list) when Fixed =:= nginx; Fixed =:= bare ->
    Url ++ "list";
url(_, Url, _) -> Url.

verified(Name, Url, Request, Era, Sessions) ->
    Session = case Sessions of
        [First | _] -> First;
        [] -> none
    end,
    try
        bench_peers_http:verified(Url, Request, {Era, Session})
    catch
        error:Reason:Stack -> error({wrong_answer, Name, Reason, Stack})
    end.

%% A table of Lua. In sessions each request has its own id, also with servers without sessions.
description(Url, Request, Era, Sessions, From) ->
    {Headers, Body} = bench_peers_http:request(Request, Era),
    #{path := Path} = uri_string:parse(Url),
    Pairs = [[~"['", Header, ~"'] = '", Value, ~"', "]
             || Header := Value <- Headers#{
                    ~"Content-Type" => ~"application/json",
                    ~"Accept" => ~"application/json, text/event-stream"}],
    File = filename:join(os:getenv("WORK"), "request.lua"),
    ok = file:write_file(File, [~"return { path = '", Path, ~"', threads = 2, from = ",
                                float_to_binary(From / 1_000, [{decimals, 3}]),
                                ~", headers = { ", Pairs, ~"}, body = [[", Body,
                                ~"]], numbered = ", atom_to_list(Era =:= session),
                                ~", sessions = { ",
                                [[$', Session, ~"', "] || Session <- Sessions], ~"} }\n"]),
    File.

h2load(#{connections := Connections, streams := Streams, request := Request} = Workload,
       {Name, Url, Pid}, WarmUp, Seconds) ->
    To = url(Name, Url, Request),
    _ = verified(Name, To, Request, stateless, []),
    Processes = processes(Pid),
    {Headers, Body} = bench_peers_http:request(Request, stateless),
    File = filename:join(os:getenv("WORK"), "request.json"),
    ok = file:write_file(File, Body),
    From = erlang:system_time(millisecond) + round(WarmUp * 1_000),
    Port = start(h2load, ["-t", "2", "-c", integer_to_list(Connections), "-m",
                          integer_to_list(Streams), "--warm-up-time",
                          integer_to_list(round(WarmUp)), "-D",
                          integer_to_list(ceil(Seconds)), "-d", File,
                          "-H", "Content-Type: application/json",
                          "-H", "Accept: application/json, text/event-stream", To
                          | ["--h1" || maps:get(transport, Workload, http1) =:= http1]
                            ++ lists:append([["-H", binary_to_list(<<Header/binary, ": ",
                                                                    Value/binary>>)]
                                            || Header := Value <- Headers])], []),
    Before = spent(Processes, From),
    _ = line(Port, "finished in "),
    After = spent(Processes),
    Output = ended(Port),
    {match, Counts} =
        re:run(Output, "([0-9]+) succeeded, ([0-9]+) failed, ([0-9]+) errored, ([0-9]+) timeout",
               [{capture, all_but_first, list}]),
    [Answered, Refused, Broken, Late] = [list_to_integer(Count) || Count <- Counts],
    {0, 0} = {Broken, Late},
    maps:merge(figures(Answered, float(ceil(Seconds)), After - Before, 0, percentiles(Output)),
               refused(Refused, Answered + Refused)).

percentiles(Output) ->
    Time = "([0-9.]+)(us|ms|s)",
    Row = lists:append(["request +: +", lists:append(lists:join(" +", lists:duplicate(5, Time)))]),
    case re:run(Output, Row, [{capture, all_but_first, list}]) of
        {match, [_, _, _, _, P50, Unit50, _, _, P99, Unit99]} ->
            #{latency_p50_us => us(P50, Unit50), latency_p99_us => us(P99, Unit99)};
        nomatch ->
            #{}
    end.

us(Text, Unit) ->
    Value = case string:to_float(Text) of
        {error, no_float} -> list_to_integer(Text);
        {Float, _} -> Float
    end,
    Value * map_get(Unit, #{"us" => 1, "ms" => 1_000, "s" => 1_000_000}).

lines(#{window := Window, request := {echo, Bytes}}, {{Kind, _}, Arguments}, WarmUp, Seconds) ->
    Port = start(lines, [integer_to_list(Window), float_to_list(WarmUp, [short]),
                         float_to_list(Seconds, [short]), integer_to_list(Bytes),
                         atom_to_list(Kind) | Arguments], []),
    Figures = json:decode(list_to_binary(line(Port, "{"))),
    _ = ended(Port),
    #{~"sample_count" := Answered, ~"duration_s" := LastedS} = Figures,
    Figures#{~"throughput_msg_per_s" => Answered / LastedS}.

%% A thousand quick calls a second, next to connections with slow calls.
quick(#{connections := Connections, request := {echo, Bytes} = Request} = Workload,
      {Name, Url, Pid}, WarmUp, Seconds) ->
    _ = verified(Name, Url, Request, stateless, []),
    Folder = filename:join(os:getenv("WORK"), "quick"),
    Slow = [slow(Url, Count, WarmUp + Seconds + 5) || #{slow := Count} <- [Workload]],
    Port = start(erlmcp, ["load", "--url", Url, "--connections", integer_to_list(Connections),
                          "--rate", "1000", "--payload", integer_to_list(Bytes), "--warmup",
                          integer_to_list(round(WarmUp)), "--duration",
                          integer_to_list(ceil(Seconds)), "--server-pid", integer_to_list(Pid),
                          "--json", Folder], []),
    _ = ended(Port),
    lists:foreach(fun stopped/1, Slow),
    [File] = erlmcp_bench_result:files(Folder),
    {ok, #{~"sent_count" := Count, ~"sample_count" := Count} = Result} =
        erlmcp_bench_result:read(File),
    ok = file:delete(File),
    maps:with([~"sample_count", ~"duration_s", ~"throughput_msg_per_s", ~"latency_p50_us",
               ~"latency_p99_us"], Result).

slow(Url, Connections, Seconds) ->
    Request = {sleep, 5},
    _ = verified(slow, Url, Request, stateless, []),
    start(wrk, ["-t", "1", "-c", integer_to_list(Connections), "-d",
                integer_to_list(ceil(Seconds)) ++ "s", "-s", "bench/peers/wrk.lua", Url],
          [{"REQUEST", description(Url, Request, stateless, [], erlang:system_time(millisecond))}]).

stopped(Port) ->
    {os_pid, Pid} = erlang:port_info(Port, os_pid),
    _ = os:cmd("kill -INT " ++ integer_to_list(Pid)),
    _ = ended(Port),
    ok.

figures(Answered, LastedS, ServerUs, OwnUs, Others) ->
    maps:merge(Others,
               maps:from_list([{sample_count, Answered}, {duration_s, LastedS},
                               {throughput_msg_per_s, Answered / LastedS},
                               {cpu_us_per_msg, ServerUs / Answered}]
                              ++ [{generator_cpu_us_per_msg, OwnUs / Answered} || OwnUs > 0])).

%% Programs.

start(Tool, Arguments, Environment) ->
    Program = os:getenv("PEERS_" ++ string:uppercase(atom_to_list(Tool))),
    open_port({spawn_executable, Program},
              [{args, Arguments}, {env, Environment}, {line, 65_536}, exit_status,
               stderr_to_stdout]).

%% The first line that begins with `Start`.
line(Port, Start) ->
    receive
        {Port, {data, {_, Line}}} ->
            case lists:prefix(Start, Line) of
                true -> self() ! {Port, output, Line}, Line;
                false -> self() ! {Port, output, Line}, line(Port, Start)
            end;
        {Port, {exit_status, Status}} ->
            error({ended, Status, output(Port)})
    end.

%% The whole output of a program.
ended(Port) ->
    receive
        {Port, {data, {_, Line}}} -> self() ! {Port, output, Line}, ended(Port);
        {Port, {exit_status, 0}} -> output(Port);
        {Port, {exit_status, Status}} -> error({ended, Status, output(Port)})
    end.

output(Port) ->
    receive
        {Port, output, Line} -> Line ++ "\n" ++ output(Port)
    after 0 -> []
    end.

%% A process and all its children.
processes(Pid) ->
    Below = [list_to_integer(Child)
             || File <- filelib:wildcard("/proc/" ++ integer_to_list(Pid) ++ "/task/*/children"),
                {ok, Bytes} <- [file:read_file(File)],
                Child <- string:lexemes(binary_to_list(Bytes), " \n")],
    [Pid | lists:append([processes(Child) || Child <- Below])].

%% Microseconds of processor time, at a time in system milliseconds, or now.
spent(Processes, At) ->
    receive after max(0, At - erlang:system_time(millisecond)) -> spent(Processes) end.

spent(Processes) ->
    lists:sum([Us || Pid <- Processes, Us <- [erlmcp_bench_process:cpu_us(Pid)], is_integer(Us)]).
