-module(erlmcp_cli_values).
-moduledoc """
The values of options that `argparse` has no type for, and what a wrong one is told: the option,
what came, and what was expected. A value that is none is `badarg`, as `argparse` wants it. Pure.
""".

-export([positive/1, seconds/1, part/1, address/1, mix/1]).
-export([refused/2]).

-doc "A number above 0, and a million at most.".
-spec positive(string()) -> number().
positive(Text) -> above(0, seconds(Text)).

-doc "The same, or 0.".
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

-doc "The same as `positive/1`, as a float.".
-spec part(string()) -> float().
part(Text) -> float(positive(Text)).

above(Least, Number) when Number > Least -> Number;
above(_, _) -> error(badarg).

-doc "An IP address.".
-spec address(string()) -> inet:ip_address().
address(Text) ->
    case inet:parse_strict_address(Text) of
        {ok, Address} -> Address;
        {error, _} -> error(badarg)
    end.

-doc "The requests of `--mix`.".
-spec mix(string()) -> erlmcp_cli_load_mix:mix().
mix(Text) ->
    case erlmcp_cli_load_mix:read(unicode:characters_to_binary(Text)) of
        {ok, Mix} -> Mix;
        {error, _} -> error(badarg)
    end.

-doc "Why a value of an argument is refused, where its type says it; `none` where not.".
-spec refused(argparse:argument(), Given :: term()) -> {ok, unicode:chardata()} | none.
refused(#{type := Type} = Argument, Given) ->
    case expected(Type) of
        none -> none;
        Expected -> {ok, [name(Argument), $\s, shown(Given), " is not ", Expected]}
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
    Known = [{fun ?MODULE:positive/1, "a number above 0, at most 1000000"},
             {fun ?MODULE:part/1, "a number above 0, at most 1000000"},
             {fun ?MODULE:seconds/1, "a number from 0 to 1000000"},
             {fun ?MODULE:address/1, "an IP address"},
             {fun ?MODULE:mix/1, "requests such as 'tools/call echo=9,tools/list=1'"}],
    proplists:get_value(Fun, Known, none).
