-module(bench_schema).
-moduledoc "Prints `CASE KIND VALIDATIONS_PER_SECOND` for erlmcp_schema; see ../schema.sh.".

-export([main/1]).

-doc "Measures the cases of a file. The arguments are the file and the seconds of a measurement.".
-spec main([string()]) -> ok.
main([File, Seconds]) ->
    {ok, Text} = file:read_file(File),
    Least = round(list_to_float(Seconds) * 1000),
    lists:foreach(fun(#{~"name" := Name, ~"schema" := Schema} = Case) ->
        {ok, Compiled} = erlmcp_schema:compile(Schema, #{formats => assert}),
        lists:foreach(fun({Kind, Of, Ask}) ->
            Speed = measure(map_get(Of, Case), fun(V) -> Ask(V, Compiled) end, Least, 1000),
            io:format("~s ~s ~b~n", [Name, Kind, Speed])
        end, [{~"valid", ~"valid", fun valid/2}, {~"refused", ~"invalid", fun refused/2},
              {~"errors", ~"invalid", fun errors/2}, {~"sentences", ~"invalid", fun sentences/2}])
    end, json:decode(Text)).

valid(Instance, Compiled) ->
    ok = erlmcp_schema:validate(Instance, Compiled).

refused(Instance, Compiled) ->
    false = erlmcp_schema:is_valid(Instance, Compiled).

errors(Instance, Compiled) ->
    {error, [_ | _]} = erlmcp_schema:validate(Instance, Compiled).

sentences(Instance, Compiled) ->
    {error, Errors} = erlmcp_schema:validate(Instance, Compiled),
    [_ | _] = erlmcp_schema:explain(Errors).

measure(Instances, Ask, Least, Times) ->
    {Before, _} = statistics(runtime),
    turn(Times, Instances, Ask),
    {After, _} = statistics(runtime),
    case After - Before of
        Took when Took >= Least ->
            round(Times * length(Instances) * 1000 / Took);
        Took ->
            More = ceil(Times * max(1.2, 1.2 * Least / max(Took, 1))),
            measure(Instances, Ask, Least, More)
    end.

turn(0, _, _) ->
    ok;
turn(Times, Instances, Ask) ->
    each(Instances, Ask),
    turn(Times - 1, Instances, Ask).

each([Instance | Instances], Ask) ->
    _ = Ask(Instance),
    each(Instances, Ask);
each([], _) ->
    ok.
