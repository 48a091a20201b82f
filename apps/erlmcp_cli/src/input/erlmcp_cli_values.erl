-module(erlmcp_cli_values).
-moduledoc """
Parses the values of options for which `argparse` has no type, and makes the errors for wrong
values. An error has the option, its value, and what was expected. The parsing functions raise
`badarg` for an invalid value, as `argparse` requires. Pure.
""".

-export([positive/1, seconds/1, part/1, address/1, mix/1, workload/1, fault/1, failure/1]).
-export([refused/2, choices/1, services/0]).

-doc "Parses a number above 0, at most 1,000,000.".
-spec positive(string()) -> number().
positive(Text) -> above(0, seconds(Text)).

-doc "Parses a number from 0 to 1,000,000.".
-spec seconds(string()) -> number().
seconds(Text) ->
    Number = try
                 list_to_float(Text)
             catch
                 error:badarg -> list_to_integer(Text)
             end,
    case Number >= 0 andalso Number =< 1_000_000 of
        true -> Number;
        false -> error(badarg)
    end.

-doc "Parses a number as `positive/1` does, and returns it as a float.".
-spec part(string()) -> float().
part(Text) -> float(positive(Text)).

above(Least, Number) when Number > Least -> Number;
above(_, _) -> error(badarg).

-doc "Parses an IP address.".
-spec address(string()) -> inet:ip_address().
address(Text) ->
    case inet:parse_strict_address(Text) of
        {ok, Address} -> Address;
        {error, _} -> error(badarg)
    end.

-doc "Parses the requests of `--mix`.".
-spec mix(string()) -> erlmcp_cli_load_mix:mix().
mix(Text) ->
    case erlmcp_cli_load_mix:read(unicode:characters_to_binary(Text)) of
        {ok, Mix} -> Mix;
        {error, _} -> error(badarg)
    end.

-doc "Checks the name of a workload or a benchmark, or `all`, and returns it as a binary.".
-spec workload(string()) -> binary().
workload(Text) -> one_of(workloads(), Text).

-doc "Checks the name of a fault, or `all`, and returns it as a binary.".
-spec fault(string()) -> binary().
fault(Text) -> one_of(faults(), Text).

-doc "Parses a service and the second at which it fails, such as `server@10`.".
-spec failure(string()) -> {erlmcp_bench_failure:service(), Seconds :: number()}.
failure(Text) ->
    case string:split(Text, "@") of
        [Name, Seconds] -> {service(Name), positive(Seconds)};
        [_] -> error(badarg)
    end.

service(Name) ->
    case [Service || Service <- erlmcp_bench_failure:services(),
                     atom_to_list(Service) =:= Name] of
        [Service] -> Service;
        [] -> error(badarg)
    end.

-doc "Returns the names of the services that can fail, separated by commas.".
-spec services() -> unicode:chardata().
services() ->
    lists:join(", ", [atom_to_list(Service) || Service <- erlmcp_bench_failure:services()]).

one_of(Names, Text) ->
    case [Name || Name <- Names, Name =:= unicode:characters_to_binary(Text)] of
        [Name | _] -> Name;
        [] -> error(badarg)
    end.

workloads() ->
    [Id || #{id := Id} <- erlmcp_bench_workloads:all()]
        ++ [atom_to_binary(Benchmark) || Benchmark <- erlmcp_bench_workloads:benchmarks()]
        ++ [~"all"].

faults() -> [Id || #{id := Id} <- erlmcp_bench_chaos:scenarios()] ++ [~"all"].

-doc """
Returns the words of which an argument's value must be one, or an empty list if there are no such
words.
""".
-spec choices(argparse:argument()) -> [unicode:chardata()].
choices(#{type := {atom, Choices}}) when is_list(Choices) ->
    [atom_to_list(Each) || Each <- Choices];
choices(#{type := {string, [[_ | _] | _] = Choices}}) -> Choices;
choices(#{type := {custom, Fun}}) ->
    Named = [{fun ?MODULE:workload/1, fun workloads/0}, {fun ?MODULE:fault/1, fun faults/0}],
    [Choice || {Type, Names} <- Named, Type =:= Fun, Choice <- Names()];
choices(_) -> [].

-doc """
Returns a sentence with the reason why the value `Given` of an argument is refused, or `none` if its
type has no such sentence.
""".
-spec refused(Argument :: map(), Given :: term()) -> {ok, unicode:chardata()} | none.
%% When `argparse` refuses a word of a list, it reports the type `{list, Type}`.
refused(#{type := {list, Type}} = Argument, Given) ->
    refused(Argument#{type := Type}, Given);
refused(#{type := Type} = Argument, Given) ->
    case expected(Type) of
        none -> none;
        Expected ->
            Meant = case erlmcp_cli_suggestion:closest(shown(Given), choices(Argument)) of
                {ok, Name} -> ["; did you mean `", Name, "`?"];
                none -> ""
            end,
            {ok, [name(Argument), $\s, shown(Given), " is not ", Expected, Meant]}
    end;
refused(_, _) ->
    none.

name(#{long := [$- | _] = Long}) -> [$- | Long];
name(#{name := Name}) -> atom_to_list(Name).

shown(Given) when is_list(Given) -> io_lib:format("~ts", [Given]);
shown(Given) -> io_lib:format("~0tp", [Given]).

expected(integer) -> "a whole number";
expected({integer, Bounds}) when is_list(Bounds) ->
    case {lists:keyfind(min, 1, Bounds), lists:keyfind(max, 1, Bounds)} of
        {{min, Min}, {max, Max}} -> io_lib:format("a whole number from ~b to ~b", [Min, Max]);
        {{min, Min}, false} -> io_lib:format("a whole number of at least ~b", [Min]);
        _ -> none
    end;
expected({Type, [First | _] = Choices}) when Type =:= atom; Type =:= string, is_list(First) ->
    ["one of the choices: ",
     lists:join(", ", [io_lib:format("~ts", [Choice]) || Choice <- Choices])];
expected({string, "^[a-z0-9_]{3,64}$"}) -> "3 to 64 of a-z, 0-9 and _";
expected({custom, Fun}) -> custom(Fun);
expected(_) -> none.

custom(Fun) ->
    Types = [{fun ?MODULE:positive/1, "a number above 0, at most 1000000"},
             {fun ?MODULE:part/1, "a number above 0, at most 1000000"},
             {fun ?MODULE:seconds/1, "a number from 0 to 1000000"},
             {fun ?MODULE:address/1, "an IP address"},
             {fun ?MODULE:mix/1, "requests such as 'tools/call echo=9,tools/list=1'"},
             {fun ?MODULE:workload/1, "one of those that `erlmcp bench` lists"},
             {fun ?MODULE:fault/1, "one of those that `erlmcp chaos` lists"},
             {fun ?MODULE:failure/1, ["a service and a second, such as server@10; services: ",
                                      services()]}],
    proplists:get_value(Fun, Types, none).
