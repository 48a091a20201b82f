-module(erlmcp_metrology_validator).
-moduledoc """
Checks the form of a result. It finds every violation of the rules of `m:erlmcp_metrology_rules`,
with its place (a JSON pointer), the expectation, the actual value and a suggestion.
""".

-export([validate_file/1, validate/1, validate_lines/1, read_file/1, read_bytes/1, format/1]).

-export_type([violation/0]).

-type violation() :: #{
    place := binary(), rule := erlmcp_metrology_rules:rule(), expected := binary(),
    came := binary(), suggestion := binary()
}.

-define(FILE_BYTES, 67_108_864).
%% The most bytes of a value in `came`.
-define(SHOWN_BYTES, 60).

-doc """
Checks that a file has a valid result. The error has every violation of the rules. A file that
cannot be read violates the rule `json`.
""".
-spec validate_file(file:name_all()) -> ok | {error, [violation()]}.
validate_file(File) ->
    maybe
        {ok, _} ?= read_file(File),
        ok
    end.

-doc "Reads the result in a file. The errors are those of `validate_file/1`.".
-spec read_file(file:name_all()) -> {ok, map()} | {error, [violation()]}.
read_file(File) ->
    maybe
        {ok, Bytes} ?= bytes(File),
        {ok, Decoded} ?= decoded(Bytes),
        ok ?= validate(Decoded),
        {ok, Decoded}
    end.

bytes(File) ->
    case read_bytes(File) of
        {ok, Bytes} -> {ok, Bytes};
        too_large -> no_json(~"more than 64 MiB", ~"shorten its series");
        eof -> no_json(~"an empty file", ~"write the file again");
        {error, Posix} -> no_json(file:format_error(Posix), ~"give the path of a result")
    end.

-doc """
Reads a file of at most 64 MiB. Returns `too_large` for a larger file, and `eof` for an empty one.
""".
-spec read_bytes(file:name_all()) ->
    {ok, binary()} | eof | too_large
    | {error, file:posix() | badarg | terminated | system_limit}.
read_bytes(File) ->
    maybe
        {ok, Device} ?= file:open(File, [read, raw, binary]),
        Read = file:read(Device, ?FILE_BYTES + 1),
        ok = file:close(Device),
        case Read of
            {ok, Bytes} when byte_size(Bytes) > ?FILE_BYTES -> too_large;
            _ -> Read
        end
    end.

decoded(Bytes) ->
    try
        {ok, json:decode(Bytes)}
    catch
        error:unexpected_end -> no_json(~"the end of the file", ~"write the file again");
        error:system_limit -> no_json(~"a number of too many digits", ~"write fewer digits");
        error:{invalid_byte, Byte} ->
            no_json(io_lib:format("the byte ~b", [Byte]), ~"write it with a JSON library");
        error:{unexpected_sequence, _} ->
            no_json(~"a sequence that is not JSON", ~"write it with a JSON library")
    end.

no_json(Came, Suggestion) ->
    {error, [violation(~"", json, ~"one JSON object", unicode:characters_to_binary(Came),
                       Suggestion)]}.

-doc """
Checks that a term is a valid result. The term is decoded JSON, or can be encoded as JSON. The error
has every violation of the rules.
""".
-spec validate(json:encode_value()) -> ok | {error, [violation(), ...]}.
validate(Term) ->
    case json:decode(iolist_to_binary(json:encode(Term))) of
        #{} = Result ->
            Found = required(~"", erlmcp_metrology_rules:fields(), Result)
                ++ [Violation || #{~"environment" := #{} = Environment} <- [Result],
                                 Violation <- required(~"/environment",
                                                       erlmcp_metrology_rules:environment(),
                                                       Environment)]
                ++ object(~"", none, Result),
            case Found of
                [] -> ok;
                [_ | _] -> {error, Found}
            end;
        Other ->
            {error, [violation(~"", json, ~"one JSON object", shown(Other),
                               ~"write one file for each result")]}
    end.

-doc """
Checks the lines of a series that belongs to a result. Each line must be one JSON object. The rules
are those of a result, but no field is required. The error has every violation of the rules. The
first part of a violation's place is the number of the line, counted from 1.
""".
-spec validate_lines([json:encode_value()]) -> ok | {error, [violation(), ...]}.
validate_lines(Lines) ->
    Found = [Violation || {Number, Line} <- lists:enumerate(Lines),
                          Violation <- line(<<$/, (integer_to_binary(Number))/binary>>,
                                            json:decode(iolist_to_binary(json:encode(Line))))],
    case Found of
        [] -> ok;
        [_ | _] -> {error, Found}
    end.

line(Place, #{} = Object) ->
    object(Place, none, Object);
line(Place, Other) ->
    [violation(Place, json, ~"one JSON object", shown(Other), ~"write one object in each line")].

%% Required fields.

required(Place, Fields, Object) ->
    lists:append([field(<<Place/binary, $/, Name/binary>>, Type, Object, Name)
                  || {Name, Type} <- Fields]).

field(Place, Type, Object, Name) ->
    case Object of
        #{Name := Value} ->
            case is_of(Type, Value) of
                true -> [];
                false -> [violation(Place, field, erlmcp_metrology_rules:expected(Type),
                                    shown(Value), suggested(Type))]
            end;
        #{} ->
            [violation(Place, field, erlmcp_metrology_rules:expected(Type), ~"nothing",
                       <<"add ", Name/binary>>)]
    end.

is_of({matching, Regex}, Value) ->
    is_binary(Value) andalso re:run(Value, Regex, [{capture, none}, dollar_endonly]) =:= match;
is_of({one_of, Values}, Value) -> lists:member(Value, Values);
is_of(text, Value) -> is_binary(Value) andalso Value =/= ~"";
is_of(boolean, Value) -> is_boolean(Value);
is_of(number, Value) -> is_number(Value);
is_of(count, Value) -> is_integer(Value) andalso Value > 0;
is_of(object, Value) -> is_map(Value);
is_of(timestamp, Value) when is_integer(Value) -> Value > 0;
is_of(timestamp, Value) when is_binary(Value) ->
    try calendar:rfc3339_to_system_time(binary_to_list(Value)) of
        Seconds -> Seconds > 0
    catch
        error:_ -> false
    end;
is_of(timestamp, _) -> false.

suggested({matching, _}) -> ~"use small letters, digits and underscores";
suggested({one_of, [First | _]}) -> <<"for example ", First/binary>>;
suggested(text) -> ~"write \"unknown\" if it cannot be determined";
suggested(boolean) -> ~"write it without quotes";
suggested(number) -> ~"write it without quotes";
suggested(count) -> ~"a run without a sample has no result";
suggested(object) -> ~"see erlmcp_bench_environment:read/0";
suggested(timestamp) -> ~"for example 2026-11-21T22:13:00Z".

%% Rules for every object and member, at any depth. A number takes the unit of the object around it,
%% unless it has its own.

object(Place, Unit, Object) ->
    lists:append([member(<<Place/binary, $/, (escaped(Name))/binary>>, Name, Unit, Value)
                  || Name := Value <- Object])
        ++ percentiles(Place, Object) ++ throughput(Place, Object).

member(Place, Name, Around, Value) ->
    case erlmcp_metrology_rules:rejection(Name) of
        {rejected, Instead} ->
            %% A rejected name is not reported again for its unit.
            [violation(Place, rejected_name, ~"a name with what it measures and its unit", Name,
                       Instead) | value(Place, counted, Value)];
        fine ->
            Own = erlmcp_metrology_rules:unit(Name),
            memory_of(Place, Name) ++ number(Place, Own, Value)
                ++ value(Place, case Own of none -> Around; _ -> Own end, Value)
    end.

memory_of(Place, Name) ->
    case erlmcp_metrology_rules:memory_of(Name) of
        true -> [];
        false -> [violation(Place, memory_of, ~"memory_WHAT_mib_per_node", Name,
                            ~"name what has it: heap, rss or base")]
    end.

number(Place, Unit, Value) when is_binary(Value), Unit =:= time orelse Unit =:= measured;
                                Value =:= null, Unit =:= time orelse Unit =:= measured ->
    [violation(Place, number, ~"a number", shown(Value), ~"leave out what was not measured")];
number(_, _, _) ->
    [].

value(Place, Unit, Value) when is_number(Value) ->
    case erlmcp_metrology_rules:is_in_range(Value) of
        true -> in_unit(Place, Unit, Value);
        false -> [violation(Place, range, ~"0, or a number from 1e-30 to 1e30 in size",
                            shown(Value), ~"leave out what was not measured")]
    end;
value(Place, none, [First | _] = Values) when is_number(First) -> [without_unit(Place, Values)];
value(Place, _, Value) when is_binary(Value) ->
    case erlmcp_metrology_rules:is_amount_in_decimal(Value) of
        true -> [violation(Place, number, ~"a number, and its unit in its name", shown(Value),
                           ~"write kib, mib or gib: units of 1,024")];
        false -> []
    end;
value(Place, Unit, #{} = Object) ->
    object(Place, Unit, Object);
value(Place, Unit, Items) when is_list(Items) ->
    lists:append([value(<<Place/binary, $/, (integer_to_binary(Index))/binary>>, Unit, Item)
                  || {Index, Item} <- lists:enumerate(0, Items)]);
value(_, _, _) ->
    [].

in_unit(Place, none, Number) ->
    [without_unit(Place, Number)];
in_unit(Place, time, Number) when Number =< 0 ->
    [violation(Place, time_of_zero, ~"a time of more than 0", shown(Number),
               ~"leave out what was not measured, or measure it finer")];
in_unit(_, _, _) ->
    [].

without_unit(Place, Value) ->
    violation(Place, unit, ~"a unit in the name of a number", shown(Value),
              ~"end it in _us, _mib, _count, _percent, _ratio or _per_s").

%% Percentiles of one family, in ascending order.
percentiles(Place, Object) ->
    Families = maps:groups_from_list(
        fun({Family, _, _, _}) -> Family end,
        [{Family, Share, Name, Value}
         || Name := Value <- Object, is_number(Value),
            {Family, Share} <- [erlmcp_metrology_rules:percentile(Name)]]),
    lists:append([above(Place, lists:keysort(2, Members)) || _ := Members <- Families]).

above(Place, [{_, _, Name, Value}, {_, _, Higher, Bound} = Next | Rest]) when Value > Bound ->
    [violation(<<Place/binary, $/, Name/binary>>, percentiles,
               iolist_to_binary(["at most ", shown(Bound), ", which is ", Higher]), shown(Value),
               ~"take both from the same samples")
     | above(Place, [Next | Rest])];
above(Place, [_ | Rest]) -> above(Place, Rest);
above(_, []) -> [].

throughput(Place, #{~"sample_count" := Count, ~"duration_s" := Seconds} = Object)
  when is_number(Count), is_number(Seconds), Seconds > 0 ->
    [violation(<<Place/binary, $/, Name/binary>>, throughput,
               iolist_to_binary(["about ", about(Rate), ", sample_count / duration_s"]),
               shown(Value), ~"count each answered request once")
     || Name <- erlmcp_metrology_rules:throughputs(), #{Name := Value} <- [Object],
        is_number(Value),
        %% A number that is out of range is a violation itself.
        lists:all(fun erlmcp_metrology_rules:is_in_range/1, [Count, Seconds, Value]),
        Rate <- [Count / Seconds],
        abs(Value - Rate) > erlmcp_metrology_rules:tolerance() * Rate];
throughput(_, _) ->
    [].

about(Rate) when Rate >= 100 -> integer_to_binary(round(Rate));
about(Rate) -> float_to_binary(Rate, [short]).

%% Violations.

violation(Place, Rule, Expected, Came, Suggestion) ->
    #{place => Place, rule => Rule, expected => Expected, came => Came, suggestion => Suggestion}.

-doc "Returns a violation as one line.".
-spec format(violation()) -> unicode:chardata().
format(#{place := Place, expected := Expected, came := Came, suggestion := Suggestion}) ->
    [case Place of
         ~"" -> [];
         _ -> [Place, ": "]
     end, "expected ", Expected, ", not ", Came, "; ", Suggestion].

shown(Value) ->
    case iolist_to_binary(json:encode(Value)) of
        <<Start:?SHOWN_BYTES/binary, _, _/binary>> ->
            <<(whole_characters(Start))/binary, "...">>;
        Text ->
            Text
    end.

whole_characters(Bytes) ->
    case unicode:characters_to_binary(Bytes) of
        {incomplete, Whole, _} -> Whole;
        Whole -> Whole
    end.

%% Escaping of RFC 6901.
escaped(Name) ->
    binary:replace(binary:replace(Name, ~"~", ~"~0", [global]), ~"/", ~"~1", [global]).
