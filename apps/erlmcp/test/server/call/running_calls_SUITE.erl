-module(running_calls_SUITE).
-moduledoc """
The running calls of a server, as its operator sees them (`erlmcp:calls/1`) and ends them
(`erlmcp:cancel/2`), on each transport that has calls.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([calls_are_listed_on_every_transport/1, a_cancelled_call_is_answered/1,
         a_cancelled_call_is_no_fault/1, a_cancelled_call_of_a_batch_is_answered/1,
         calls_that_wait_are_listed/1, the_hundred_oldest_are_listed/1,
         quick_calls_are_not_listed/1, only_calls_are_cancelled/1,
         a_server_that_is_gone_has_none/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [calls_are_listed_on_every_transport, a_cancelled_call_is_answered,
     a_cancelled_call_is_no_fault, a_cancelled_call_of_a_batch_is_answered,
     calls_that_wait_are_listed, the_hundred_oldest_are_listed, quick_calls_are_not_listed,
     only_calls_are_cancelled, a_server_that_is_gone_has_none].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

calls_are_listed_on_every_transport(_) ->
    Server = server(#{}),
    [begin
         {Pid, _} = call(~"wait", Client),
         [#{pid := Pid, method := ~"tools/call", target := ~"wait", principal := anonymous,
            age_ms := Age, stack := [{?MODULE, _, _, _} | _]}] = listed(1, Server),
         true = is_integer(Age) andalso Age >= 0,
         Pid ! go_on,
         answered(Client)
     end || Client <- clients(Server)],
    [] = erlmcp:calls(Server),
    ok = erlmcp:stop_server(Server).

a_cancelled_call_is_answered(_) ->
    Server = server(#{}),
    [begin
         {Pid, Reference} = call(Tool, Client),
         [#{id := Id}] = listed(1, Server),
         Monitor = monitor(process, Pid),
         ok = erlmcp:cancel(Server, Id),
         receive {'DOWN', Monitor, process, Pid, _} -> ok after 0 -> ct:fail(still_runs) end,
         #{code := -32603, message := ~"an operator has ended the call"} = refused(Reference),
         {error, not_found} = erlmcp:cancel(Server, Id)
     end || Client <- clients(Server), Tool <- [~"wait", ~"stubborn"]],
    ok = erlmcp:stop_server(Server).

a_cancelled_call_is_no_fault(_) ->
    Server = server(#{}),
    [Client | _] = clients(Server),
    [begin
         {_, Reference} = call(Tool, Client),
         [#{id := Id}] = listed(1, Server),
         ok = erlmcp:cancel(Server, Id),
         #{} = refused(Reference)
     end || Tool <- [~"wait", ~"stubborn"]],
    #{error_budget := #{faults := 0}} = erlmcp:info(Server),
    ok = erlmcp:stop_server(Server).

%% The owner of a call of a batch is the batch.
a_cancelled_call_of_a_batch_is_answered(_) ->
    Server = server(#{}),
    Socket = erlmcp_test_line:connect(Server),
    _ = erlmcp_test_line:initialize(Socket, ~"2025-03-26"),
    ok = erlmcp_test_line:send(Socket, [
        erlmcp_test_line:request(Id, ~"tools/call", #{~"name" => ~"stubborn"}) || Id <- [7, 8]]),
    [First, Second] = [begun() || _ <- [1, 2]],
    [Id] = [Id || #{id := Id, pid := Pid} <- listed(2, Server), Pid =:= First],
    ok = erlmcp:cancel(Server, Id),
    Second ! go_on,
    Answers = erlmcp_test_line:recv(Socket),
    [~"an operator has ended the call"] =
        [Message || #{~"error" := #{~"message" := Message}} <- Answers],
    [~"done"] = [Text || #{~"result" := #{~"content" := [#{~"text" := Text}]}} <- Answers],
    ok = erlmcp:stop_server(Server).

calls_that_wait_are_listed(_) ->
    Server = server(#{limits => #{in_flight => 1, queue => 10, queue_ms => 60_000}}),
    [Client | _] = clients(Server),
    {Runs, _} = call(~"wait", Client),
    {ok, Second} = erlmcp_client:async(Client, {call_tool, ~"wait", #{}}),
    %% Both may have begun in the same millisecond.
    Calls = listed(2, Server),
    [#{age_ms := First}] = [Call || #{pid := Pid} = Call <- Calls, Pid =:= Runs],
    [#{id := Id, age_ms := Later}] = [Call || #{pid := Pid} = Call <- Calls, Pid =/= Runs],
    true = First >= Later,
    ok = erlmcp:cancel(Server, Id),
    #{code := -32603} = refused(Second),
    [#{pid := Runs}] = listed(1, Server),
    ok = erlmcp:stop_server(Server).

the_hundred_oldest_are_listed(_) ->
    Server = server(#{limits => #{calls_per_connection => 1000}}),
    [_, Client | _] = clients(Server),
    Pids = [Pid || _ <- lists:seq(1, 101), {Pid, _} <- [call(~"wait", Client)]],
    Calls = listed(100, Server),
    Ages = [Age || #{age_ms := Age} <- Calls],
    Ages = lists:reverse(lists:sort(Ages)),
    [] = [Pid || #{pid := Pid} <- Calls] -- Pids,
    %% One that is not listed can be ended all the same, once it is among the oldest.
    [ok = erlmcp:cancel(Server, Id) || #{id := Id} <- Calls],
    [#{id := Last}] = listed(1, Server),
    ok = erlmcp:cancel(Server, Last),
    ok = erlmcp:stop_server(Server).

%% Such a call runs in its connection, which must not end with it.
quick_calls_are_not_listed(_) ->
    Server = server(#{}),
    [_, Client | _] = clients(Server),
    Test = self(),
    %% Such a call reports no progress, which a client that does not wait asks for.
    _ = spawn_link(fun() ->
        Test ! {erlmcp, quick, erlmcp_client:call_tool(Client, ~"quick", #{})}
    end),
    Connection = begun(),
    [] = erlmcp:calls(Server),
    Connection ! go_on,
    {ok, _} = outcome(quick),
    ok = erlmcp:stop_server(Server).

only_calls_are_cancelled(_) ->
    Server = server(#{}),
    [{error, not_found} = erlmcp:cancel(Server, Id)
     || Id <- [~"", ~"1", ~"-1", ~"<0.1.0>", binary:copy(~"9", 100_000)]],
    ok = erlmcp:stop_server(Server).

a_server_that_is_gone_has_none(_) ->
    Server = server(#{}),
    ok = erlmcp:stop_server(Server),
    {error, not_found} = erlmcp:calls(Server),
    {error, not_found} = erlmcp:cancel(Server, ~"1").

server(Options) ->
    Test = self(),
    Wait = fun(_, _) -> Test ! {begun, self()}, receive go_on -> ~"done" end end,
    Stubborn = fun(Arguments, Context) ->
        process_flag(trap_exit, true),
        Wait(Arguments, Context)
    end,
    Defaults = #{name => ~"test", version => ~"1.0.0",
                 listen => [{http, #{port => 0}}, {tcp, #{port => 0}}],
                 tools => [#{name => ~"wait", handler => Wait},
                           #{name => ~"stubborn", handler => Stubborn},
                           #{name => ~"quick", handler => Wait, quick => true}]},
    {ok, Server} = erlmcp:start_server(maps:merge(Defaults, Options)),
    Server.

%% Stateless on HTTP and on TCP, a session on HTTP and on TCP, and in memory.
clients(Server) ->
    [#{url := Url}, #{port := Port}] = erlmcp:listeners(Server),
    [begin
         {ok, Client} = erlmcp_client:start_link(Target),
         {ok, _} = erlmcp_client:list_tools(Client),
         Client
     end || Target <- [{http, Url, #{era => stateless}}, {tcp, ~"127.0.0.1", Port, #{}},
                       {http, Url, #{era => session}},
                       {tcp, ~"127.0.0.1", Port, #{era => session}}, {server, Server, #{}}]].

call(Tool, Client) ->
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, Tool, #{}}),
    put(reference, Reference),
    {begun(), Reference}.

begun() ->
    receive {begun, Pid} -> Pid after 10_000 -> ct:fail(not_begun) end.

answered(_) ->
    {ok, #{~"content" := [#{~"text" := ~"done"}]}} = outcome(get(reference)).

refused(Reference) ->
    {error, {rpc, Error}} = outcome(Reference),
    Error.

outcome(Reference) ->
    receive {erlmcp, Reference, Outcome} -> Outcome after 10_000 -> ct:fail(no_answer) end.

%% A call that has just begun is listed as soon as its connection has given it its permit.
listed(Count, Server) ->
    case erlmcp:calls(Server) of
        Calls when length(Calls) =:= Count -> Calls;
        _ -> receive after 10 -> listed(Count, Server) end
    end.
