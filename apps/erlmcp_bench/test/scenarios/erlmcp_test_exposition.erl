-module(erlmcp_test_exposition).
-moduledoc """
A strict reader of the text exposition format of Prometheus, version 0.0.4. It crashes on text that
is not in this format.

Source: Prometheus documentation, "Exposition formats".
""".

-compile(nowarn_missing_spec_documented).

-include_lib("stdlib/include/assert.hrl").

-export([parse/1, value/3]).

%% The series of all families: `[{Name, Labels, Value}]`.
parse(Text) ->
    {match, _} = re:run(Text, ~"\n$"),
    Lines = binary:split(binary:part(Text, 0, byte_size(Text) - 1), ~"\n", [global]),
    Families = families(Lines, []),
    Names = [Name || {Name, _, _} <- Families],
    %% All lines of a family are one group.
    ?assertEqual(lists:sort(Names), lists:usort(Names)),
    lists:append([family(Family) || Family <- Families]).

%% `Labels` is all that a series has.
value(Name, Labels, Series) ->
    [Value] = [Of || {Found, Has, Of} <- Series, Found =:= Name,
                     lists:sort(Has) =:= lists:sort(Labels)],
    Value.

families([], Families) ->
    lists:reverse(Families);
families([<<"# HELP ", Help/binary>>, <<"# TYPE ", TypeLine/binary>> | Lines], Families) ->
    [Name, Explained] = binary:split(Help, ~" "),
    ?assertNotEqual(~"", Explained),
    %% A backslash is followed by another one or by an n.
    match(Explained, ~"^([^\\\\\n]|\\\\\\\\|\\\\n)*$"),
    match(Name, ~"^[a-zA-Z_:][a-zA-Z0-9_:]*$"),
    [Name, Type] = binary:split(TypeLine, ~" ", [global]),
    true = lists:member(Type, [~"counter", ~"gauge", ~"histogram"]),
    {Samples, Rest} = lists:splitwith(fun(<<"#", _/binary>>) -> false; (_) -> true end, Lines),
    families(Rest, [{Name, Type, [sample(Sample) || Sample <- Samples]} | Families]).

sample(Line) ->
    {match, [Name, Braced, Number]} =
        re:run(Line, ~"^([a-zA-Z_:][a-zA-Z0-9_:]*)((?:\\{.*\\})?) ([^ ]+)$",
               [{capture, all_but_first, binary}]),
    {Name, labels(Braced), number(Number)}.

labels(~"") -> [];
labels(<<"{", Rest/binary>>) -> label(Rest, []).

label(Text, Labels) ->
    {match, [Name, Value, Rest]} =
        re:run(Text, ~"^([a-zA-Z_][a-zA-Z0-9_]*)=\"((?:[^\\\\\"\n]|\\\\\\\\|\\\\\"|\\\\n)*)\"(.*)$",
               [{capture, all_but_first, binary}]),
    false = lists:keymember(Name, 1, Labels),
    case Rest of
        ~"}" -> [{Name, Value} | Labels];
        <<",", More/binary>> -> label(More, [{Name, Value} | Labels])
    end.

number(~"+Inf") -> infinity;
number(Text) ->
    match(Text, ~"^[+-]?[0-9]+(\\.[0-9]+)?([eE][+-]?[0-9]+)?$"),
    try binary_to_integer(Text)
    catch error:badarg -> binary_to_float(Text)
    end.

family({Name, ~"histogram", Samples}) ->
    Rows = lists:usort([lists:keydelete(~"le", 1, Labels) || {_, Labels, _} <- Samples]),
    lists:foreach(fun(Labels) -> ok = histogram(Name, Labels, Samples) end, Rows),
    Samples;
family({Name, Type, Samples}) ->
    lists:foreach(fun({Found, _, Value}) ->
        ?assertEqual(Name, Found),
        ?assert(Type =:= ~"gauge" orelse Value >= 0)
    end, Samples),
    Keys = [lists:sort(Labels) || {_, Labels, _} <- Samples],
    ?assertEqual(lists:sort(Keys), lists:usort(Keys)),
    match(Name, case Type of
                    ~"counter" -> ~"_total$";
                    ~"gauge" -> ~"(?<!_total)$"
                end),
    Samples.

%% Buckets that go up, in their order, to one without a bound, which is as much as the count.
histogram(Name, Labels, Samples) ->
    Bucket = <<Name/binary, "_bucket">>,
    Buckets = [{number(Le), Count} || {Of, Has, Count} <- Samples, Of =:= Bucket,
                                      {_, Le} <- [lists:keyfind(~"le", 1, Has)],
                                      lists:keydelete(~"le", 1, Has) =:= Labels],
    {Bounds, Counts} = lists:unzip(Buckets),
    ?assertEqual(lists:usort(Bounds), Bounds),
    ?assertEqual(lists:sort(Counts), Counts),
    ?assertEqual(infinity, lists:last(Bounds)),
    Count = value(<<Name/binary, "_count">>, Labels, Samples),
    ?assertEqual(Count, lists:last(Counts)),
    ?assert(value(<<Name/binary, "_sum">>, Labels, Samples) >= 0),
    Own = [Sample || {_, Has, _} = Sample <- Samples, lists:keydelete(~"le", 1, Has) =:= Labels],
    ?assertEqual(length(Own), length(Buckets) + 2),
    ok.

match(Text, Pattern) -> {match, _} = re:run(Text, Pattern, [dollar_endonly]).
