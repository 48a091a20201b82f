-module(everything_almanac).
-moduledoc """
A separate server, which the everything server mounts as `almanac`. Its tool is called
`almanac_weekday` there, its results are cached, and a middleware reports invalid dates.
""".

-behaviour(erlmcp_server).

-export([server/0, tools/0, resources/0, call_tool/3, read_resource/3]).

-doc false.
server() ->
    #{name => ~"almanac", version => ~"0.1.0", middleware => [fun dated/3]}.

-doc false.
tools() ->
    [#{name => ~"weekday",
       description => ~"The day of the week of a date",
       input_schema => #{type => object, required => [date],
                         properties => #{date => #{type => string, format => date}}},
       annotations => #{readOnlyHint => true, idempotentHint => true},
       cache => #{ttl_ms => 3_600_000, scope => public}}].

-doc false.
resources() ->
    [#{uri => ~"almanac://weekdays", name => ~"weekdays", mime_type => ~"text/plain",
       description => ~"The names of the days of the week", ttl_ms => 3_600_000,
       cache_scope => public}].

-doc false.
call_tool(~"weekday", Arguments, _) ->
    lists:nth(calendar:day_of_the_week(date(Arguments)), weekdays()).

date(#{~"date" := <<Year:4/binary, $-, Month:2/binary, $-, Day:2/binary>>}) ->
    Date = list_to_tuple([digits(Part) || Part <- [Year, Month, Day]]),
    calendar:valid_date(Date) orelse throw(no_date),
    Date;
date(_) ->
    throw(no_date).

digits(Text) ->
    case string:to_integer(Text) of
        {Number, ~""} when Number >= 0 -> Number;
        _ -> throw(no_date)
    end.

-doc false.
read_resource(~"almanac://weekdays", _, _) ->
    iolist_to_binary(lists:join(~"\n", weekdays())).

weekdays() ->
    [~"Monday", ~"Tuesday", ~"Wednesday", ~"Thursday", ~"Friday", ~"Saturday", ~"Sunday"].

dated(Arguments, Context, Next) ->
    try
        Next(Arguments, Context)
    catch
        throw:no_date -> {error, ~"date: expected a date like 2026-07-28"}
    end.
