-module(erlmcp_bench_result).
-moduledoc """
Makes, writes and reads results of measurements: the JSON object of a result file. Results are
validated before they are written (`m:erlmcp_metrology_validator`).
""".

-export([new/1, from_load/2, latency/1, latency/2, windows/1, reasons/1]).
-export([write/2, read/1, read_all/1, files/1, format_error/1]).
-export([identity/1, in_order/1, label/1, measured_at/1]).

-export_type([result/0, fields/0, reason/0]).

-doc "A result of a measurement, as decoded JSON.".
-type result() :: #{binary() => term()}.

-doc """
The members of a result: the measurement (`workload_id`, `benchmark`, `transport`, `scope`),
`duration_s`, `sample_count` and all figures. `load_generator` (`in_node` or `out_of_node`) and
`command_line` go into the environment. A `command_line` that is not given is that of this node.
""".
-type fields() :: #{atom() | binary() => json:encode_value()}.

-type reason() ::
    [erlmcp_metrology_validator:violation(), ...]
    | {invalid, [{file:filename(), [erlmcp_metrology_validator:violation(), ...]}, ...]}
    | {no_results, [file:filename()]}
    | {file:posix() | badarg | terminated | system_limit, file:filename()}.

%% The members that identify a measurement.
-define(IDENTITY, [~"benchmark", ~"workload_id", ~"transport", ~"component", ~"era", ~"connections",
                   ~"payload_bytes", ~"workers", ~"clients", ~"profile", ~"mix", ~"nodes",
                   ~"against", ~"shortened"]).
%% Those of a result that says how its requests followed each other.
-define(LOOP, [~"loop", ~"arrivals", ~"offered_msg_per_s", ~"in_flight_requests", ~"sessions"]).
-define(MIB, 1_048_576).

-doc """
Returns a result with the members `Fields`. The time, the precision (`microsecond`) and the
environment are added unless `Fields` has them. `load_generator` is `out_of_node` by default, or
`in_node` for the transport `in_process`.
""".
-spec new(Fields :: fields()) -> result().
new(Fields) ->
    completed(decoded(Fields)).

completed(Given) ->
    Generator = case Given of
        #{~"transport" := ~"in_process"} -> ~"in_node";
        #{} -> ~"out_of_node"
    end,
    OfEnvironment = [~"load_generator", ~"command_line"],
    Environment = (decoded(erlmcp_bench_environment:read()))#{~"load_generator" => Generator},
    maps:merge(#{~"timestamp" => now_as_text(),
                 ~"precision" => ~"microsecond",
                 ~"environment" => maps:merge(Environment, maps:with(OfEnvironment, Given))},
               maps:without(OfEnvironment, Given)).

decoded(Fields) -> json:decode(iolist_to_binary(json:encode(Fields))).

now_as_text() ->
    list_to_binary(calendar:system_time_to_rfc3339(erlang:system_time(second),
                                                   [{offset, "Z"}])).

-doc """
Returns a result with the figures of the load generator's report, and with the additions of `new/1`.
`Base` says what was measured. A member of `Base` replaces that of the report with the same name.
""".
-spec from_load(Base :: fields(), Report :: erlmcp_load_report:report()) -> result().
from_load(Base, #{answered := Answered, duration_s := Seconds, latency := Latency} = Report) ->
    Figures = [#{sample_count => Answered, duration_s => Seconds,
                 throughput_msg_per_s => Answered / Seconds},
               latency(Latency),
               counts(Report),
               per_message(Report),
               prefixed(~"refusal_latency", refusal_latency, Report),
               prefixed(~"lateness", lateness, Report),
               #{Name => Bytes / ?MIB
                 || {Key, Name} <- [{server_rss_bytes, memory_rss_mib_per_node},
                                    {server_rss_max_bytes, memory_rss_max_mib_per_node}],
                    #{Key := Bytes} <- [Report], Bytes > 0},
               #{opened_connections_per_s => Rate || #{opened_per_s := Rate} <- [Report]},
               #{windows => windows(Windows) || #{windows := [_ | _] = Windows} <- [Report]},
               #{seconds => Samples || #{seconds := [_ | _] = Samples} <- [Report]}],
    completed(lists:foldl(fun(Fields, Others) -> maps:merge(Others, decoded(Fields)) end, #{},
                          Figures ++ [Base])).

counts(Report) ->
    Numbers = [{sent, sent_count}, {wrong, wrong_count}, {unsent, unsent_count},
               {late, late_count}, {strays, strays_count}, {connections, connections},
               {opened, opened_count}, {open_failed, open_failed_count}, {lost, lost_count},
               {bytes_in, received_bytes}, {bytes_out, sent_bytes}],
    Maps = [{refused, refused_count}, {failed, failed_count}],
    maps:from_list(
        [{Name, Number} || {Key, Name} <- Numbers, #{Key := Number} <- [Report]]
        ++ [{Name, reasons(Counts)}
            || {Key, Name} <- Maps, #{Key := #{} = Counts} <- [Report]]).

-doc "Returns counts with each code or reason as text.".
-spec reasons(#{integer() | atom() | term() => Count}) -> #{binary() => Count} when
    Count :: non_neg_integer().
reasons(Counts) -> #{text(Of) => Count || Of := Count <- Counts}.

text(Code) when is_integer(Code) -> integer_to_binary(Code);
text(Reason) when is_atom(Reason) -> atom_to_binary(Reason);
text({Kind, Reason}) when is_atom(Kind), is_integer(Reason) orelse is_atom(Reason) ->
    <<(text(Kind))/binary, $\s, (text(Reason))/binary>>;
text(Reason) -> unicode:characters_to_binary(io_lib:format("~0tp", [Reason])).

-doc """
Returns the windows of a load or a scenario in the form that a result has. `errors_count` of a
window is the number of its errors of each kind. A kind is a text, such as `failed timeout`.
""".
-spec windows([erlmcp_load_course:window()]) -> [#{atom() => term()}].
windows(Windows) ->
    [(maps:remove(errors, Window))#{errors_count => reasons(Errors)}
     || #{errors := Errors} = Window <- Windows].

per_message(#{answered := Answered} = Report) when Answered > 0 ->
    #{Name => Us / Answered
      || {Key, Name} <- [{server_cpu_us, cpu_us_per_msg},
                         {generator_cpu_us, generator_cpu_us_per_msg}],
         #{Key := Us} <- [Report], Us > 0};
per_message(_) ->
    #{}.

prefixed(Prefix, Key, Report) ->
    case Report of
        #{Key := Histogram} -> latency(Prefix, Histogram);
        #{} -> #{}
    end.

-doc """
Returns the latencies of a histogram as `latency/2` does, under names that begin with `latency`.
""".
-spec latency(erlmcp_bench_histogram:histogram()) -> #{binary() => term()}.
latency(Histogram) -> latency(~"latency", Histogram).

-doc """
Returns the latencies of a histogram in microseconds, under names that begin with `Prefix`. They are
percentiles, the maximum, the counts of the histogram's buckets, and the standard deviation if the
times differ. The map is empty for an empty histogram.
""".
-spec latency(Prefix :: binary(), erlmcp_bench_histogram:histogram()) -> #{binary() => term()}.
latency(Prefix, Histogram) ->
    case erlmcp_bench_histogram:count(Histogram) of
        0 -> #{};
        _ ->
            Percentiles = [{~"p50", 50.0}, {~"p95", 95.0}, {~"p99", 99.0}, {~"p999", 99.9}],
            Entries = [[UpTo, Count]
                       || {UpTo, Count} <- erlmcp_bench_histogram:to_list(Histogram)],
            Values = [{~"max", erlmcp_bench_histogram:max(Histogram)}, {~"histogram", Entries}
                      | [{Name, erlmcp_bench_histogram:percentile(Histogram, Percent)}
                         || {Name, Percent} <- Percentiles]],
            Deviation = [{~"deviation", Us} || Us <- [erlmcp_bench_histogram:deviation(Histogram)],
                                               Us > 0],
            #{<<Prefix/binary, $_, Name/binary, "_us">> => Value
              || {Name, Value} <- Deviation ++ Values}
    end.

-doc """
Checks a result, writes it into `Folder` as `BENCHMARK_WORKLOAD_UNIX.json`, and returns the file. A
missing folder is made. `UNIX` is the time of the result in seconds, or the first later second for
which no file exists. Readers of the folder see all of the file or nothing. The error has the rules
that the result breaks, or says why the file cannot be written.
""".
-spec write(result(), Folder :: file:filename()) -> {ok, file:filename()} | {error, reason()}.
write(Result, Folder) ->
    maybe
        ok ?= erlmcp_metrology_validator:validate(Result),
        #{~"benchmark" := Benchmark, ~"workload_id" := Workload} = Result,
        ok ?= written(filelib:ensure_path(Folder), Folder),
        Name = <<Benchmark/binary, $_, Workload/binary, $_>>,
        {ok, File} ?= reserved(filename:join(Folder, binary_to_list(Name)), measured_at(Result)),
        ok ?= written(file:write_file(part(File), erlmcp_bench_json:lines(Result)), part(File)),
        ok ?= written(file:rename(part(File), File), File),
        {ok, File}
    end.

%% The name of a file belongs to the process that has made its part. Whoever has finished the file
%% before has renamed its part.
reserved(Start, Seconds) ->
    File = Start ++ integer_to_list(Seconds) ++ ".json",
    case file:open(part(File), [write, exclusive, raw]) of
        {ok, Device} ->
            ok = file:close(Device),
            case filelib:is_file(File) of
                true ->
                    ok = file:delete(part(File)),
                    reserved(Start, Seconds + 1);
                false ->
                    {ok, File}
            end;
        {error, eexist} ->
            reserved(Start, Seconds + 1);
        {error, Posix} ->
            {error, {Posix, File}}
    end.

part(File) -> File ++ ".part".

written(ok, _) -> ok;
written({error, Posix}, File) -> {error, {Posix, File}}.

-doc """
Reads a result from a file. The error has the violations of the rules for results. A file that
cannot be read violates the rule `json`.
""".
-spec read(file:filename()) ->
    {ok, result()} | {error, [erlmcp_metrology_validator:violation(), ...]}.
read(File) ->
    erlmcp_metrology_validator:read_file(File).

-doc """
Reads all results of files and folders. The error `no_results` means that there are none. If a
result is not valid, the error `invalid` has the violations of each such file.
""".
-spec read_all([file:filename()]) -> {ok, [result(), ...]} | {error, reason()}.
read_all(Paths) ->
    Read = [{File, read(File)} || Path <- Paths, File <- files(Path)],
    case {[Result || {_, {ok, Result}} <- Read],
          [{File, Violations} || {File, {error, Violations}} <- Read]} of
        {[], []} -> {error, {no_results, Paths}};
        {Results, []} -> {ok, Results};
        {_, Invalid} -> {error, {invalid, Invalid}}
    end.

-doc """
Returns the files of a folder with names that end in `.json`, in the order of the names. For any
other path, it returns the path alone.
""".
-spec files(file:filename()) -> [file:filename()].
files(Path) ->
    case filelib:is_dir(Path) of
        true -> [filename:join(Path, Name) || Name <- lists:sort(filelib:wildcard("*.json", Path))];
        false -> [Path]
    end.

-doc """
Returns those members of a result that identify its measurement. A result with a `loop`, such as one
of `erlmcp load`, is also identified by the members that describe the loop.
""".
-spec identity(#{binary() => term()}) -> #{binary() => term()}.
identity(#{~"loop" := _} = Result) -> maps:with(?IDENTITY ++ ?LOOP, Result);
identity(Result) -> maps:with(?IDENTITY, Result).

-doc "Sorts results, or their identities, in the order in which they are shown.".
-spec in_order([#{binary() => term()}]) -> [#{binary() => term()}].
in_order(Results) ->
    Key = fun(Identity) -> [maps:get(Name, Identity, ~"") || Name <- ?IDENTITY ++ ?LOOP] end,
    {_, Ordered} = lists:unzip(lists:sort([{Key(identity(Result)), Result} || Result <- Results])),
    Ordered.

-doc "Returns the time of a result, in seconds of system time.".
-spec measured_at(result()) -> integer().
measured_at(#{~"timestamp" := Seconds}) when is_integer(Seconds) -> Seconds;
measured_at(#{~"timestamp" := Text}) -> calendar:rfc3339_to_system_time(binary_to_list(Text)).

-doc """
Returns an identity as text: the workload, and the other members except the benchmark and those that
are `false`.
""".
-spec label(#{binary() => term()}) -> unicode:chardata().
label(#{~"workload_id" := Workload} = Result) ->
    Identity = maps:without([~"benchmark", ~"workload_id"], identity(Result)),
    [Workload | [[$\s, label(Name, map_get(Name, Identity))]
                 || Name <- ?IDENTITY ++ ?LOOP, is_map_key(Name, Identity),
                    map_get(Name, Identity) =/= false]].

label(_, Text) when is_binary(Text) -> Text;
label(Name, true) -> Name;
label(Name, Value) -> [Name, $=, json:encode(Value)].

-doc "Says why results could not be read or written, in lines of text.".
-spec format_error(reason()) -> unicode:chardata().
format_error({invalid, Files}) ->
    lists:join($\n, [[File, ": ", erlmcp_metrology_validator:format(Violation)]
                     || {File, Violations} <- Files, Violation <- Violations]);
format_error({no_results, Paths}) ->
    ["no results in ", lists:join(", ", Paths)];
format_error({Posix, File}) when is_atom(Posix) ->
    [File, ": ", file:format_error(Posix)];
format_error([_ | _] = Violations) ->
    lists:join($\n, [erlmcp_metrology_validator:format(Violation) || Violation <- Violations]).
