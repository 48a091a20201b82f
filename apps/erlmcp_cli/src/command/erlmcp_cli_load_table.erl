-module(erlmcp_cli_load_table).
-moduledoc "Formats the outcome of a load for people. Pure.".

-export([report/2, second/1, failure/1, name/1]).

-doc "Returns the table that `erlmcp load` prints at its end.".
-spec report(erlmcp_load:plan(), erlmcp_load:report()) -> unicode:chardata().
report(Plan, Report) ->
    #{sent := Sent, answered := Answered, answered_per_s := PerSecond, refused := Refused,
      failed := Failed, wrong := Wrong, wrong_by := WrongBy, latency := Latency,
      refusal_latency := RefusalLatency, lateness := Lateness, bytes_in := In,
      bytes_out := Out, duration_s := Seconds, windows := Windows} = Report,
    Rows = [{"sent", number(Sent)},
            {"answered", [number(Answered), ", ", number(PerSecond), " a second"]},
            {"refused", erlmcp_cli_errors:reasons(Refused)},
            {"failed", erlmcp_cli_errors:reasons(Failed)},
            {"wrong", [erlmcp_cli_errors:reasons(WrongBy) || Wrong > 0]},
            {"unsent", some(unsent, Report, " were due, and no connection was free")},
            {"late", some(late, Report, " replies came after their time")},
            {"strays", some(strays, Report, " replies were to no request")},
            {"lost", some(lost, Report, " connections")},
            {"latency", times(Latency)}, {"of refusals", times(RefusalLatency)},
            {"lateness", times(Lateness)},
            {"processor", processor(Report)}, {"memory", memory(Report)},
            {"bytes", [number(round(In / Seconds)), " in and ", number(round(Out / Seconds)),
                       " out a second"]}],
    [title(Plan, Report), $\n,
     [[string:pad(Name, 12), Text, $\n] || {Name, Text} <- Rows, not string:is_empty(Text)],
     erlmcp_cli_errors:windows(Windows)].

title(#{target := Target, connections := Connections, era := Era, loop := Loop} = Plan,
      #{duration_s := Seconds, opened := Opened}) ->
    lists:join(", ", [name(Target)]
               ++ [atom_to_list(Protocol) || #{protocol := Protocol} <- [Plan]]
               ++ [case Era of
                       stateless -> "stateless";
                       {session, Revision} -> ["sessions of ", Revision]
                   end,
                   [number(Opened), " of ", number(Connections), " connections"],
                   case Loop of
                       {closed, Window} -> ["a closed loop of ", number(Window)];
                       {open, Rate, Arrivals} ->
                           ["an open loop of ", number(Rate), " a second (",
                            atom_to_list(Arrivals), ")"]
                   end,
                   [number(Seconds), " s"]]).

-doc "Returns the text by which messages name the server: its URL, address or program.".
-spec name(erlmcp_load_target:target()) -> binary().
name({http, Url}) -> iolist_to_binary(Url);
name({tcp, Host, Port}) when is_tuple(Host) ->
    <<"tcp://", (erlmcp_host:authority(Host, Port))/binary>>;
name({tcp, Host, Port}) -> iolist_to_binary(["tcp://", Host, $:, integer_to_list(Port)]);
name({stdio, Words}) -> iolist_to_binary(lists:join($\s, Words)).

some(Key, Report, Words) ->
    case maps:get(Key, Report) of
        0 -> "";
        Count -> [number(Count), Words]
    end.

times(Histogram) ->
    case erlmcp_bench_histogram:count(Histogram) of
        0 -> "";
        _ ->
            Percentiles = [["p", Name, " ", time(erlmcp_bench_histogram:percentile(Histogram, P))]
                           || {Name, P} <- [{"50", 50}, {"95", 95}, {"99", 99}, {"99.9", 99.9}]],
            lists:join("  ", Percentiles
                       ++ [["max ", time(erlmcp_bench_histogram:max(Histogram))],
                           ["deviation ", time(erlmcp_bench_histogram:deviation(Histogram))]])
    end.

time(Us) when Us < 1000 -> [number(Us), " us"];
time(Us) when Us < 1_000_000 -> [number(Us / 1000), " ms"];
time(Us) -> [number(Us / 1_000_000), " s"].

processor(#{answered := 0}) ->
    "";
processor(#{answered := Answered} = Report) ->
    lists:join(", ", [[Name, " ", number(Us / Answered), " us an answer"]
                      || {Key, Name} <- [{server_cpu_us, "server"},
                                         {generator_cpu_us, "generator"}],
                         #{Key := Us} <- [Report]]).

memory(#{server_rss_max_bytes := Bytes}) -> ["server ", number(Bytes / 1_048_576), " MiB at most"];
memory(_) -> "".

%% Three significant digits, and all digits before the point.
number(Number) when is_integer(Number) -> grouped(integer_to_list(Number));
number(Number) when Number >= 100 -> grouped(integer_to_list(round(Number)));
number(Number) when Number >= 10 -> float_to_list(Number, [{decimals, 1}]);
number(Number) -> float_to_list(Number, [{decimals, 2}]).

grouped(Digits) when length(Digits) =< 3 -> Digits;
grouped(Digits) ->
    {Front, Last} = lists:split(length(Digits) - 3, Digits),
    grouped(Front) ++ [$, | Last].

-doc "Returns the figures of one second of the load as a line.".
-spec second(erlmcp_load:sample()) -> binary().
second(#{throughput_msg_per_s := PerSecond, connections := Connections} = Sample) ->
    Troubles = [[number(Count), Word]
                || {Key, Word} <- [{refused_count, " refused"}, {failed_count, " failed"},
                                   {wrong_count, " wrong"}, {unsent_count, " unsent"}],
                   Count <- [maps:get(Key, Sample)], Count > 0],
    Parts = [[number(PerSecond), "/s"]]
        ++ [["p99 ", time(P99)] || #{latency_p99_us := P99} <- [Sample]]
        ++ [[number(Connections), " connections"] | Troubles],
    iolist_to_binary(lists:join(", ", Parts)).

-doc "Says in one line why there was no load. The reason is that of `erlmcp_load:run/1`.".
-spec failure(term()) -> unicode:chardata().
failure({bad_option, target}) -> "the target is invalid";
failure({bad_option, sessions_per_connection}) ->
    "--sessions: more than one session is for HTTP alone";
failure({bad_option, requests}) -> "--mix: the _meta of a request must be an object";
failure({bad_option, Option}) -> [erlmcp_cli_errors:reason(Option), ": not with this target"];
failure({host, Reason}) -> ["unknown host: ", inet:format_error(Reason)];
failure({open, {refused, Code}}) ->
    ["no session could be opened: refused with ", erlmcp_cli_errors:reason(Code)];
failure({open, Reason}) when is_atom(Reason) ->
    ["no connection could be opened: ", erlmcp_cli_text:connection(Reason)];
failure({open, Reason}) ->
    ["no connection could be opened: ", io_lib:format("~0tp", [Reason])].
