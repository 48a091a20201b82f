-module(targets_SUITE).
-moduledoc """
Tests for the server under test: its node, its address, and the meter of its functions.
""".

-export([suite/0, all/0]).
-export([a_server_that_does_not_start_leaves_no_node/1, ipv6_stands_in_brackets/1,
         what_raises_is_not_counted_around_it/1]).
%% Functions that are measured in the server's node.
-export([around/0]).

-define(LOCAL, {0, 0, 0, 0, 0, 0, 0, 1}).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [a_server_that_does_not_start_leaves_no_node, ipv6_stands_in_brackets,
     what_raises_is_not_counted_around_it].

%% A node is linked to the process that has started it.
a_server_that_does_not_start_leaves_no_node(_) ->
    {ok, Taken} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Taken),
    {links, Links} = process_info(self(), links),
    {error, unprepared} =
        erlmcp_bench_target:start(#{prepare => {erlang, list_to_tuple, [[error, unprepared]]}}),
    {links, Links} = process_info(self(), links),
    {error, _} = erlmcp_bench_target:start(
        #{server => #{handler => erlmcp_bench_fixture,
                      listen => [{tcp, #{port => Port, ip => {127, 0, 0, 1}}}]}}),
    {links, Links} = process_info(self(), links),
    ok = gen_tcp:close(Taken).

ipv6_stands_in_brackets(_) ->
    case gen_tcp:listen(0, [inet6, {ip, ?LOCAL}]) of
        {ok, Socket} ->
            ok = gen_tcp:close(Socket),
            {ok, Target} = erlmcp_bench_target:start(#{host => ?LOCAL}),
            {ok, #{failed := Failed, answered := Answered}} =
                erlmcp_load:run(#{target => {http, erlmcp_bench_target:url(Target)},
                                  duration_ms => 200}),
            {0, true} = {map_size(Failed), Answered > 0},
            ok = erlmcp_bench_target:stop(Target);
        {error, _} ->
            {skip, "needs IPv6"}
    end.

%% The work before it is not counted, either.
what_raises_is_not_counted_around_it(_) ->
    Measured = [{?MODULE, Function, 0} || Function <- [around, works, works_and_raises]],
    {ok, Target} = erlmcp_bench_target:start(
        #{prepare => {erlmcp_bench_meter, install, [reductions, Measured]}}),
    raised = erlmcp_bench_target:call(Target, ?MODULE, around, []),
    #{{?MODULE, around, 0} := [{Own, 1}], {?MODULE, works, 0} := [{Work, 1}],
      {?MODULE, works_and_raises, 0} := []} =
        erlmcp_bench_target:call(Target, erlmcp_bench_meter, read, []),
    true = Own < Work / 10 orelse error({Own, Work}),
    ok = erlmcp_bench_target:stop(Target).

around() ->
    _ = works(),
    try works_and_raises() catch throw:raised -> raised end.

works() ->
    lists:foldl(fun(Number, Sum) -> Number + Sum end, 0, lists:seq(1, 100_000)).

works_and_raises() ->
    _ = lists:foldl(fun(Number, Sum) -> Number + Sum end, 0, lists:seq(1, 100_000)),
    throw(raised).
