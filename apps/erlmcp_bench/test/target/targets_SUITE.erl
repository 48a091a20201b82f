-module(targets_SUITE).
-moduledoc """
Tests for the server under test: its node, its address, and the meter of its functions.
""".

-export([suite/0, all/0]).
-export([a_server_that_does_not_start_leaves_no_node/1, a_node_ends_with_its_caller/1,
         a_caller_goes_on_without_its_node/1, ipv6_stands_in_brackets/1,
         what_raises_is_not_counted_around_it/1]).
%% Functions that are measured in the server's node.
-export([around/0]).

-define(LOCAL, {0, 0, 0, 0, 0, 0, 0, 1}).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [a_server_that_does_not_start_leaves_no_node, a_node_ends_with_its_caller,
     a_caller_goes_on_without_its_node, ipv6_stands_in_brackets,
     what_raises_is_not_counted_around_it].

a_server_that_does_not_start_leaves_no_node(_) ->
    {ok, Taken} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Taken),
    Programs = programs(),
    {error, unprepared} =
        erlmcp_bench_target:start(#{prepare => {erlang, list_to_tuple, [[error, unprepared]]}}),
    Programs = programs(),
    {error, _} = erlmcp_bench_target:start(
        #{server => #{handler => erlmcp_bench_fixture,
                      listen => [{tcp, #{port => Port, ip => {127, 0, 0, 1}}}]}}),
    Programs = programs(),
    ok = gen_tcp:close(Taken).

%% The programs that this node runs, of which each server's node is one.
programs() ->
    lists:sort([OsPid || Port <- erlang:ports(),
                         {os_pid, OsPid} <- [erlang:port_info(Port, os_pid)], is_integer(OsPid)]).

a_node_ends_with_its_caller(_) ->
    Programs = programs(),
    Test = self(),
    Caller = spawn(fun() ->
        {ok, #{peer := Peer}} = erlmcp_bench_target:start(#{}),
        Test ! {started, Peer},
        receive after infinity -> ok end
    end),
    Monitor = receive {started, Peer} -> monitor(process, Peer) end,
    true = exit(Caller, kill),
    receive {'DOWN', Monitor, process, _, _} -> ok end,
    Programs = programs().

%% The call comes when the node has ended, and `peer` does not know of that yet.
a_caller_goes_on_without_its_node(_) ->
    {ok, #{peer := Peer, os_pid := OsPid} = Target} = erlmcp_bench_target:start(#{}),
    [Port] = [Port || Port <- erlang:ports(), {os_pid, OsPid} =:= erlang:port_info(Port, os_pid)],
    Monitor = monitor(process, Peer),
    ok = sys:suspend(Peer),
    {Call, Called} = spawn_monitor(fun() -> erlmcp_bench_target:call(Target, os, getpid, []) end),
    ok = erlmcp_test_servers:await_messages(1, Peer),
    Ended = monitor(port, Port),
    "" = os:cmd("kill -9 " ++ integer_to_list(OsPid)),
    receive {'DOWN', Ended, port, Port, _} -> ok end,
    ok = sys:resume(Peer),
    receive {'DOWN', Monitor, process, Peer, Reason} -> true = Reason =/= normal end,
    receive {'DOWN', Called, process, Call, _} -> ok end,
    ok = erlmcp_bench_target:stop(Target).

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
