-module(bench_schema).
-moduledoc "Prints `CASE KIND VALIDATIONS_PER_SECOND` for erlmcp_schema; see ../schema.sh.".

-export([main/1]).

-doc "The arguments are the file of the cases and the seconds of a measurement.".
-spec main([string()]) -> ok.
main([File, Seconds]) ->
    {ok, Text} = file:read_file(File),
    Least = round(list_to_float(Seconds) * 1000),
    lists:foreach(fun(#{~"name" := Name, ~"schema" := Schema} = Case) ->
        {ok, Compiled} = erlmcp_schema:compile(Schema, #{formats => assert}),
        lists:foreach(fun({Kind, Expected}) ->
            Speed = measure(map_get(Kind, Case), Compiled, Expected, Least, 1000),
            io:format("~s ~s ~b~n", [Name, Kind, Speed])
        end, [{~"valid", ok}, {~"invalid", error}])
    end, json:decode(Text)).

measure(Instances, Compiled, Expected, Least, Times) ->
    {Before, _} = statistics(runtime),
    turn(Times, Instances, Compiled, Expected),
    {After, _} = statistics(runtime),
    case After - Before of
        Took when Took >= Least ->
            round(Times * length(Instances) * 1000 / Took);
        Took ->
            More = ceil(Times * max(1.2, 1.2 * Least / max(Took, 1))),
            measure(Instances, Compiled, Expected, Least, More)
    end.

turn(0, _, _, _) ->
    ok;
turn(Times, Instances, Compiled, Expected) ->
    each(Instances, Compiled, Expected),
    turn(Times - 1, Instances, Compiled, Expected).

each([Instance | Instances], Compiled, Expected) ->
    case erlmcp_schema:validate(Instance, Compiled) of
        ok when Expected =:= ok -> ok;
        {error, [_ | _]} when Expected =:= error -> ok
    end,
    each(Instances, Compiled, Expected);
each([], _, _) ->
    ok.
