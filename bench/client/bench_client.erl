-module(bench_client).
-moduledoc "This project's client for `bench/client.sh`, which explains the output.".

-export([main/1, measure/3]).

-define(WARM_UP, 1500).

-doc "Measures the client. The arguments are `TARGET ERA CALLERS SECONDS`.".
-spec main([string(), ...]) -> ok.
main([Target, Era, Callers, Seconds]) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    Options = #{name => ~"bench", version => ~"1.0.0", era => list_to_existing_atom(Era),
                capabilities => #{}},
    {ok, Client} = erlmcp_client:start_link(target(Target, list_to_integer(Callers), Options)),
    {ok, _} = erlmcp_client:server(Client),
    ok = measure(Callers, Seconds, fun() -> fun() -> call(Client) end end),
    erlmcp_client:stop(Client).

call(Client) ->
    {ok, #{~"content" := [#{~"text" := ~"hello"}]}} =
        erlmcp_client:call_tool(Client, ~"echo", #{~"text" => ~"hello"}),
    ok.

-doc """
Measures the calls of `Callers` callers, each with its own fun from `Make`, and prints the figures.
""".
-spec measure(Callers :: string(), Seconds :: string(), fun(() -> fun(() -> ok))) -> ok.
measure(Callers, Seconds, Make) ->
    Number = list_to_integer(Callers),
    _ = run(Make, Number, ?WARM_UP),
    Start = erlang:monotonic_time(microsecond),
    Before = cpu(),
    Took = run(Make, Number, round(list_to_float(Seconds) * 1000)),
    Spent = cpu() - Before,
    Wall = (erlang:monotonic_time(microsecond) - Start) / 1.0e6,
    Count = length(Took),
    Sorted = lists:sort(Took),
    io:format("~b ~.3f ~b ~b ~b~n", [Count, Wall, Spent, lists:nth(Count div 2 + 1, Sorted),
                                     lists:nth(Count * 99 div 100 + 1, Sorted)]).

target("tcp://" ++ Address, _, Options) ->
    [Host, Port] = string:split(Address, ":"),
    {tcp, list_to_binary(Host), list_to_integer(Port), Options};
target("h2+" ++ Url, _, Options) ->
    {http, list_to_binary(Url), Options#{protocols => [http2]}};
target("http" ++ _ = Url, Callers, Options) ->
    {http, list_to_binary(Url), Options#{connections => Callers}};
target(Command, _, Options) ->
    {stdio, list_to_binary(Command), Options}.

%% Microseconds of CPU time of this process, user and system.
cpu() ->
    {ok, Stat} = file:read_file("/proc/self/stat"),
    [_, After] = string:split(Stat, ~") ", trailing),
    Fields = binary:split(After, ~" ", [global]),
    10_000 * lists:sum([binary_to_integer(lists:nth(N, Fields)) || N <- [12, 13]]).

%% The microseconds of each call.
run(Make, Callers, Milliseconds) ->
    Now = erlang:monotonic_time(microsecond),
    End = Now + 1000 * Milliseconds,
    Running = [spawn_monitor(fun() -> exit({took, calls(Make(), Now, End, [])}) end)
               || _ <- lists:seq(1, Callers)],
    lists:append([receive {'DOWN', Monitor, process, Pid, {took, Took}} -> Took end
                  || {Pid, Monitor} <- Running]).

calls(_, Start, End, Took) when Start >= End ->
    Took;
calls(Call, Start, End, Took) ->
    ok = Call(),
    Now = erlang:monotonic_time(microsecond),
    calls(Call, Now, End, [Now - Start | Took]).
