-module(envelopes_SUITE).
-moduledoc "Envelopes: the limits that a server has by its plan, or by what its machine has.".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([plans_are_held_to/1, plans_say_when_to_come_back/1,
         single_limits_win/1, unknown_envelopes_are_refused/1,
         plans_name_limits_that_there_are/1, a_machine_is_measured/1,
         a_small_machine_is_measured_small/1, a_silent_machine_has_the_defaults/1,
         measured_is_the_default/1]).

-define(MIB, 1_048_576).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [plans_are_held_to, plans_say_when_to_come_back, single_limits_win,
     unknown_envelopes_are_refused,
     plans_name_limits_that_there_are, a_machine_is_measured, a_small_machine_is_measured_small,
     a_silent_machine_has_the_defaults, measured_is_the_default].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% At the limit, and one over it: bytes of a message, and requests of one connection.
plans_are_held_to(_) ->
    [begin
         Server = erlmcp_test_line:serve(#{envelope => Plan, limits => #{queue_per_connection => 0},
                                          tools => [erlmcp_test_line:echo_tool(),
                                                    erlmcp_test_line:waiting_tool(~"wait")]}),
         Socket = erlmcp_test_line:connect(Server),
         ok = erlmcp_test_line:send(Socket, padded(plan(message_bytes, Plan))),
         #{~"id" := 1, ~"result" := #{}} = erlmcp_test_line:recv(Socket),
         ok = erlmcp_test_line:send(Socket, padded(plan(message_bytes, Plan) + 1)),
         #{~"error" := #{~"data" := #{~"refusal" := 1068}}} = erlmcp_test_line:recv(Socket),
         InFlight = plan(calls_per_connection, Plan),
         [ok = erlmcp_test_line:send(Socket, waiting(Id)) || Id <- lists:seq(1, InFlight)],
         Calls = [erlmcp_test_line:await_call() || _ <- lists:seq(1, InFlight)],
         ok = erlmcp_test_line:send(Socket, waiting(~"over")),
         #{~"id" := ~"over", ~"error" := #{~"code" := 1060,
                                           ~"data" := #{~"limit" := InFlight}}} =
             erlmcp_test_line:recv(Socket),
         InFlight = length(Calls),
         ok = erlmcp_test_line:close(Socket),
         ok = erlmcp:stop_server(Server)
     end || Plan <- [team, gov]],
    ok.

%% Too much in a second, in both eras, and more than run and wait.
plans_say_when_to_come_back(_) ->
    [begin
         Limits = #{messages_per_second => 3},
         Server = erlmcp_test_http:start(#{envelope => Plan, limits => Limits}),
         Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
         {1056, 200, none, Milliseconds} = refused_rate(Server, #{session => Session}),
         RetryAfter = integer_to_binary(Milliseconds div 1000),
         {1056, 429, RetryAfter, Milliseconds} = refused_rate(Server, #{}),
         erlmcp_test_http:stop(Server)
     end || {Plan, Milliseconds} <- [{team, 60_000}, {enterprise, 30_000}, {gov, 45_000}]],
    [begin
         Limits = #{in_flight => 1, queue => 1},
         Tools = [erlmcp_test_line:waiting_tool(~"wait")],
         Server = erlmcp_test_line:serve(#{envelope => Plan, limits => Limits, tools => Tools}),
         Socket = erlmcp_test_line:connect(Server),
         ok = erlmcp_test_line:send(Socket, waiting(1)),
         _ = erlmcp_test_line:await_call(),
         [ok = erlmcp_test_line:send(Socket, waiting(Id)) || Id <- [2, 3]],
         #{~"error" := #{~"code" := 1001, ~"data" := #{~"retryAfterMs" := RetryMs}}} =
             erlmcp_test_line:recv(Socket),
         ok = erlmcp_test_line:close(Socket),
         ok = erlmcp:stop_server(Server)
     end || {Plan, RetryMs} <- [{team, 30_000}, {enterprise, 10_000}, {gov, 15_000}]],
    ok.

%% Until one is: in a slow second there is time for more.
refused_rate(Server, Options) ->
    case erlmcp_test_http:call(Server, ~"tools/list", #{}, Options) of
        #{status := Status, headers := Headers,
          messages := [#{~"error" := #{~"code" := Code, ~"data" := Data}}]} ->
            #{~"retryAfterMs" := Milliseconds} = Data,
            {Code, Status, maps:get(~"retry-after", Headers, none), Milliseconds};
        #{messages := [#{~"result" := _}]} ->
            refused_rate(Server, Options)
    end.

plan(Limit, Plan) ->
    maps:get(Limit, erlmcp_envelope:limits(Plan, #{})).

waiting(Id) ->
    erlmcp_test_line:stateless(Id, ~"tools/call", #{name => ~"wait"}).

%% A line of a request of so many bytes: JSON may have spaces.
padded(Size) ->
    Bytes = iolist_to_binary(json:encode(erlmcp_test_line:stateless(1, ~"tools/list", #{}))),
    <<Bytes/binary, (binary:copy(~" ", Size - byte_size(Bytes)))/binary, $\n>>.

single_limits_win(_) ->
    #{message_bytes := 1000, calls_per_connection := 128} =
        limits(#{envelope => enterprise, limits => #{message_bytes => 1000}}),
    #{message_bytes := 1000} = limits(#{limits => #{message_bytes => 1000}}).

unknown_envelopes_are_refused(_) ->
    [{error, {bad_option, envelope, ~"measured, team, enterprise or gov"}} =
         erlmcp:start_server(#{name => ~"n", version => ~"1", envelope => Wrong})
     || Wrong <- [none, ~"team", #{}]],
    ok.

%% Only those, and each with a positive integer for each plan.
plans_name_limits_that_there_are(_) ->
    Known = [Name || {Name, _, _} <- erlmcp_server_options:limits()],
    [] = [Name || {Name, _} <- erlmcp_envelope:plans()] -- Known,
    [] = [Name || {Name, _, _} <- erlmcp_envelope:measured()] -- Known,
    [[enterprise, gov, team] = [Plan || Plan := Value <- maps:iterator(Values, ordered),
                                        is_integer(Value), Value > 0]
     || {_, Values} <- erlmcp_envelope:plans()],
    ok.

a_machine_is_measured(_) ->
    Facts = #{descriptors => 65_536, ports => 65_536, processes => 1_048_576, schedulers => 8,
              memory => 16 * 1024 * ?MIB},
    %% What is least of: 64,512 descriptors, as many ports, 262,144 processes, 65,536 of memory.
    #{connections := 64_512, message_bytes := 4_194_304, unread_bytes := 16_777_216,
      call_heap_bytes := 134_217_728, cache_bytes := 67_108_864, task_bytes := 268_435_456,
      task_bytes_per_principal := 67_108_864} =
        erlmcp_envelope:limits(measured, Facts),
    Connections = fun(Changed) ->
        map_get(connections, erlmcp_envelope:limits(measured, maps:merge(Facts, Changed)))
    end,
    %% Of few descriptors half are left to others; each of the others may be the least.
    [128, 744, 64_512, 1_000, 4_096, 100_000] =
        [Connections(Changed)
         || Changed <- [#{descriptors => 256}, #{descriptors => 1000}, #{descriptors => 1_000_000},
                        #{processes => 4_000}, #{group_memory => 1024 * ?MIB},
                        #{descriptors => 1_000_000, ports => 1_000_000,
                          memory => 1_000_000 * ?MIB}]],
    ok.

a_small_machine_is_measured_small(_) ->
    Facts = #{descriptors => 1024, ports => 65_536, processes => 262_144, schedulers => 1,
              memory => 16 * 1024 * ?MIB, group_memory => 256 * ?MIB},
    #{connections := 768, message_bytes := ?MIB, unread_bytes := 4_194_304,
      call_heap_bytes := 16_777_216, cache_bytes := 16_777_216, task_bytes := 33_554_432,
      task_bytes_per_principal := 8_388_608} =
        erlmcp_envelope:limits(measured, Facts).

a_silent_machine_has_the_defaults(_) ->
    Facts = #{ports => 65_536, processes => 1_048_576, schedulers => 1},
    #{connections := 64_512} = Limits = erlmcp_envelope:limits(measured, Facts),
    [connections] = maps:keys(Limits).

measured_is_the_default(_) ->
    Measured = limits(#{envelope => measured}),
    Measured = limits(#{}),
    Facts = erlmcp_machine:facts("/"),
    Measured = maps:merge(Measured, erlmcp_envelope:limits(measured, Facts)).

limits(Options) ->
    {ok, #{limits := Limits}} =
        erlmcp_server_options:check(maps:merge(#{name => ~"n", version => ~"1"}, Options)),
    Limits.
