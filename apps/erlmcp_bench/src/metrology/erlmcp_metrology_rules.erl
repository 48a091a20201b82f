-module(erlmcp_metrology_rules).
-moduledoc """
The rules for results, as data. `m:erlmcp_metrology_validator` checks results against them, and
docs/benchmarks.md shows them. Pure.
""".

-export([rules/0, fields/0, environment/0, expected/1, rejected/0, rejection/1]).
-export([unit/1, is_in_range/1, is_amount_in_decimal/1, memory_of/1, percentile/1, throughputs/0,
         tolerance/0]).

-export_type([rule/0, type/0, unit/0]).

-type rule() :: json | field | rejected_name | unit | number | range | time_of_zero | memory_of
              | percentiles | throughput.
-type type() :: {matching, Regex :: binary()} | {one_of, [binary()]} | text | boolean
              | number | count | timestamp | object.
-type unit() :: time | measured | counted | identifier | none.

-doc "Returns every rule and its expectation.".
-spec rules() -> [{rule(), Expected :: binary()}].
rules() ->
    [{json, ~"a file is one JSON object, of at most 64 MiB"},
     {field, ~"required fields are there, with the required type"},
     {rejected_name, ~"every name, at any depth, says what it measures and in which unit"},
     {unit, ~"a number has its unit in its name, or in the name of the object around it"},
     {number, ~"a field with the name of a number has a number"},
     {range, ~"a number is 0, or from 1e-30 to 1e30 in size"},
     {time_of_zero, ~"a time is more than 0: a time that was not measured is left out"},
     {memory_of, ~"memory says what uses it: `memory_rss_mib_per_node`"},
     {percentiles, ~"no percentile is above the next higher one, or above the maximum"},
     {throughput, ~"a throughput is `sample_count` / `duration_s`, within 1 %"}].

-doc "Returns the required members of a result, each with its type.".
-spec fields() -> [{Name :: binary(), type()}].
fields() ->
    [{~"workload_id", {matching, ~"^[a-z0-9_]{3,64}$"}},
     %% The benchmark becomes part of the file's name.
     {~"benchmark", {matching, ~"^[a-z0-9_]{3,64}$"}},
     {~"transport", {one_of, [~"in_process", ~"stdio", ~"tcp", ~"http1", ~"http2", ~"http1_tls",
                              ~"http2_tls"]}},
     {~"duration_s", number},
     {~"scope", {one_of, [~"per_node", ~"per_cluster", ~"per_connection", ~"per_request"]}},
     {~"precision", {one_of, [~"microsecond", ~"nanosecond"]}},
     {~"sample_count", count},
     {~"timestamp", timestamp},
     {~"environment", object}].

-doc "Returns the required members of `environment`, each with its type.".
-spec environment() -> [{Name :: binary(), type()}].
environment() ->
    [{~"cores", count},
     {~"memory_total_mib", number},
     {~"kernel", text},
     {~"otp", text},
     {~"jit", boolean},
     {~"erlmcp_version", text},
     {~"erlmcp_commit", text},
     {~"command_line", text},
     {~"load_generator", {one_of, [~"in_node", ~"out_of_node"]}}].

-doc "Returns the expected values of a type in words.".
-spec expected(type()) -> binary().
expected({matching, Regex}) -> <<"a string that matches ", Regex/binary>>;
expected({one_of, Values}) -> iolist_to_binary(["one of ", lists:join(", ", Values)]);
expected(text) -> ~"a string that is not empty";
expected(boolean) -> ~"true or false";
expected(number) -> ~"a number";
expected(count) -> ~"a whole number of at least 1";
expected(object) -> ~"an object";
expected(timestamp) -> ~"an RFC 3339 time, or the seconds since 1970".

-doc """
Returns the kinds of rejected names. `Names` are examples of a kind. `Regex` is the pattern that all
names of the kind match, in lower case. `Instead` says what to use instead of such a name.
""".
-spec rejected() -> [{Names :: [binary()], Regex :: binary(), Instead :: binary()}].
rejected() ->
    [{[~"throughput", ~"req/s", ~"ops/s", ~"requests_per_second"],
      ~"^(throughput|.*(req|reqs|requests|ops|msg|msgs|messages)(/s|/sec|_per_sec|_per_second))$",
      ~"throughput_msg_per_s, the requests that were answered in one second"},
     {[~"latency", ~"latency_ms", ~"p50_ms", ~"p95_ms", ~"p99_ms"],
      ~"^(latency|latency_(.*_)?ms|(.*_)?p[0-9]+_ms|p[0-9]+)$",
      ~"latency_p50_us, latency_p95_us, latency_p99_us, latency_p999_us, latency_max_us"},
     {[~"memory", ~"mem", ~"memory_mb"],
      ~"^(memory|mem|(memory|mem)_mb)$",
      ~"memory_heap_mib_per_conn, memory_rss_mib_per_node or memory_base_mib_per_node"},
     {[~"size_kb", ~"heap_mb_per_conn"],
      ~"^(.*_)?(kb|mb|gb)(_.*)?$",
      ~"kib, mib or gib: units of 1,024"}].

-doc """
Returns what to use instead of `Name` if this name is rejected. Returns `fine` if it is not.
""".
-spec rejection(Name :: binary()) -> {rejected, Instead :: binary()} | fine.
rejection(Name) ->
    Lower = string:lowercase(Name),
    case [Instead || {_, Regex, Instead} <- rejected(), matches(Lower, Regex)] of
        [Instead | _] -> {rejected, Instead};
        [] -> fine
    end.

%% Units, as the last word of a name. Counted items are their own unit.
-define(TIMES, [~"ns", ~"us", ~"ms", ~"s"]).
-define(OTHERS, [~"bytes", ~"kib", ~"mib", ~"gib", ~"percent", ~"ratio", ~"count"]).
-define(COUNTED, [~"cores", ~"schedulers", ~"connections", ~"sessions", ~"workers", ~"clients",
                  ~"nodes", ~"requests", ~"messages", ~"operations", ~"workflows", ~"processes",
                  ~"files", ~"runs"]).
%% Numbers that are identifiers.
-define(IDENTIFIERS, [~"code", ~"timestamp"]).

-doc """
Returns the kind of the number called `Name`: a time, another measured quantity, a number of items
such as `connections`, or an identifier. `none` means that the name does not say. A number with the
word `per` in its name, or with `count` at its end, is a measured quantity.
""".
-spec unit(Name :: binary()) -> unit().
unit(Name) ->
    Words = binary:split(Name, ~"_", [global]),
    Last = lists:last(Words),
    Is = [Unit || {Unit, true} <- [{measured, lists:member(~"per", Words)},
                                   {time, lists:member(Last, ?TIMES)},
                                   {measured, lists:member(Last, ?OTHERS)},
                                   {counted, lists:member(Last, ?COUNTED)},
                                   {identifier, lists:member(Name, ?IDENTIFIERS)}]],
    case Is of
        [Unit | _] -> Unit;
        [] -> none
    end.

-doc """
Returns `true` if a number is 0, or if its absolute value is from 1e-30 to 1e30. No measurement
gives another number, and computations with such a number could fail.
""".
-spec is_in_range(number()) -> boolean().
is_in_range(Number) ->
    Number == 0 orelse abs(Number) >= 1.0e-30 andalso abs(Number) =< 1.0e30.

-doc "Returns `true` if a text is an amount of bytes in a decimal unit, such as `512 MB`.".
-spec is_amount_in_decimal(binary()) -> boolean().
is_amount_in_decimal(Text) ->
    matches(Text, ~"^[0-9][0-9.,]* ?([kKMG]B|kb|mb|gb)$").

-doc """
Returns `true` if `Name` says what uses the memory, and in which unit. Also returns `true` for every
name that does not begin with `memory_`.
""".
-spec memory_of(Name :: binary()) -> boolean().
memory_of(<<"memory_", _/binary>> = Name) ->
    matches(Name, ~"^memory_[a-z0-9_]+_(bytes|kib|mib|gib)(_per_[a-z_]+)?$");
memory_of(_) ->
    true.

-doc """
Returns the family and the share of the percentile with the name `Name`. The family is what stands
before and after the percentile in the name. For `latency_p95_us`, the result is
`{{~"latency_", ~"_us"}, 0.95}`. A maximum has the share 1.0. Returns `none` for other names.
""".
-spec percentile(Name :: binary()) -> {Family :: {binary(), binary()}, float()} | none.
percentile(Name) ->
    case re:run(Name, ~"^(.*?)(?:p([0-9]{2,6})|(max))(_(?:ns|us|ms|s))$",
                [{capture, all_but_first, binary}]) of
        {match, [Before, ~"", ~"max", Unit]} -> {{Before, Unit}, 1.0};
        {match, [Before, ~"100", ~"", Unit]} -> {{Before, Unit}, 1.0};
        {match, [Before, Digits, ~"", Unit]} ->
            {{Before, Unit}, binary_to_integer(Digits) / math:pow(10, byte_size(Digits))};
        nomatch -> none
    end.

-doc "Returns the names of the figures that must be `sample_count` over `duration_s`.".
-spec throughputs() -> [binary()].
throughputs() -> [~"throughput_msg_per_s", ~"throughput_workflows_per_s"].

-doc "Returns the share by which a throughput may differ from `sample_count` over `duration_s`.".
-spec tolerance() -> float().
tolerance() -> 0.01.

matches(Text, Regex) -> re:run(Text, Regex, [{capture, none}, dollar_endonly]) =:= match.
