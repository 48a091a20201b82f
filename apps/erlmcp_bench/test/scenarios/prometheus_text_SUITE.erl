-module(prometheus_text_SUITE).
-moduledoc """
The text exposition format of Prometheus, byte by byte. Source: Prometheus documentation,
"Exposition formats".
""".

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([text_is_exact/1, what_breaks_a_line_is_escaped/1, histograms_are_cumulative/1,
         a_family_may_have_no_series/1, it_is_served/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [text_is_exact, what_breaks_a_line_is_escaped, histograms_are_cumulative,
     a_family_may_have_no_series, it_is_served].

text_is_exact(_) ->
    Text = text([#{name => ~"a_total", type => counter, help => ~"All.",
                   series => [{[], 3}, {[{~"of", ~"b"}, {~"at", ~"c"}], 12}]},
                 #{name => ~"g", type => gauge, help => ~"Now.", series => [{[], 0.25}]}]),
    ?assertEqual(~"""
# HELP a_total All.
# TYPE a_total counter
a_total 3
a_total{of="b",at="c"} 12
# HELP g Now.
# TYPE g gauge
g 0.25

""", Text),
    [{~"a_total", [], 3}, _, {~"g", [], 0.25}] = erlmcp_test_exposition:parse(Text).

%% "label_value can be any sequence of UTF-8 characters, but the backslash, double-quote, and line
%% feed characters have to be escaped"; of HELP, the backslash and the line feed.
what_breaks_a_line_is_escaped(_) ->
    Text = text([#{name => ~"g", type => gauge, help => ~"a\\b\n\"c\"",
                   series => [{[{~"x", ~"a\\b\n\"c\""}], 1}]}]),
    ?assertEqual(~"""
# HELP g a\\b\n"c"
# TYPE g gauge
g{x="a\\b\n\"c\""} 1

""", Text),
    [{~"g", [{~"x", ~"a\\\\b\\n\\\"c\\\""}], 1}] = erlmcp_test_exposition:parse(Text).

%% Each bucket has those of the ones before it; one at a bound is in its bucket.
histograms_are_cumulative(_) ->
    Value = erlmcp_bench_prometheus:histogram([{100, 1}, {101, 2}, {1_000, 3}, {20_000_000, 4}],
                                              80_003_302),
    {histogram, Buckets, 80_003.302, 10} = Value,
    [{0.1, 1}, {0.25, 3}, {0.5, 3}, {1, 6} | Rest] = Buckets,
    [6] = lists:usort([Count || {_, Count} <- Rest]),
    Text = text([#{name => ~"d_ms", type => histogram, help => ~"Long.", series => [{[], Value}]}]),
    Series = erlmcp_test_exposition:parse(Text),
    10 = erlmcp_test_exposition:value(~"d_ms_bucket", [{~"le", ~"+Inf"}], Series),
    6 = erlmcp_test_exposition:value(~"d_ms_bucket", [{~"le", ~"2.5"}], Series).

a_family_may_have_no_series(_) ->
    [] = erlmcp_test_exposition:parse(text([#{name => ~"a_total", type => counter,
                                              help => ~"All.", series => []}])).

it_is_served(_) ->
    {ok, _} = application:ensure_all_started(inets),
    Families = [#{name => ~"g", type => gauge, help => ~"Now.", series => [{[], 1}]}],
    {ok, Port} = erlmcp_bench_scrape:start(?MODULE, 0, fun() -> Families end),
    Url = binary_to_list(erlmcp_bench_scrape:url(Port)),
    {ok, {{_, 200, _}, _, Body}} = httpc:request(get, {Url, []}, [], [{body_format, binary}]),
    ?assertEqual(text(Families), Body),
    {ok, {{_, 405, _}, _, _}} = httpc:request(post, {Url, [], "text/plain", ""}, [], []),
    {ok, {{_, 404, _}, _, _}} = httpc:request(get, {Url ++ "/more", []}, [], []),
    {error, {_, eaddrinuse}} = in_use(Port),
    ok = erlmcp_bench_scrape:stop(?MODULE),
    {error, _} = httpc:request(get, {Url, []}, [], []).

in_use(Port) ->
    case erlmcp_bench_scrape:start({?MODULE, other}, Port, fun() -> [] end) of
        {error, Reason} -> {error, {in_use, Reason}}
    end.

text(Families) -> iolist_to_binary(erlmcp_bench_prometheus:text(Families)).
