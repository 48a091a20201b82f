-module(bench_composition).
-moduledoc """
Measures the cost of composition: the CPU time of one call, client and server, tool by tool.
""".

-export([main/1]).

%% Microseconds of one tool in each turn.
-define(TURN, 50_000).

-doc """
Measures each tool for this many seconds, in turns. Prints its cost, and the ratio to the plain
tool.
""".
-spec main([string()]) -> ok.
main([Seconds]) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    {ok, Server} = erlmcp:start_server(server()),
    [#{port := Port}] = erlmcp:listeners(Server),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port,
                                   [binary, {active, false}, {packet, line}, {nodelay, true},
                                    {buffer, 65536}]),
    Turns = ceil(list_to_float(Seconds) * 1_000_000 / ?TURN),
    Tools = [{~"echo", ~"direct"}, {~"a_b_c_echo", ~"through three mounts"},
             {~"wrapped", ~"through one middleware"}, {~"missed", ~"with a cache, missed"},
             {~"kept", ~"with a cache, kept"}, {~"work", ~"a handler with work"},
             {~"kept_work", ~"a handler with work, kept"}],
    _ = turns(5, Tools, Socket, #{}),
    Costs = turns(Turns, Tools, Socket, #{}),
    #{~"echo" := {Direct, Count}} = Costs,
    lists:foreach(fun({Name, What}) ->
                      #{Name := {Took, Calls}} = Costs,
                      io:format("~-26s ~8.2f us of CPU a call, ~.3f of direct~n",
                                [What, Took / Calls, Took / Calls / (Direct / Count)])
                  end, Tools).

%% The next turn begins with another tool, so that other work of the machine affects all of them.
turns(0, _, _, Costs) ->
    Costs;
turns(More, [First | Rest] = Tools, Socket, Costs) ->
    turns(More - 1, Rest ++ [First], Socket, lists:foldl(
        fun({Name, _}, Sum) ->
            {Took, Calls} = maps:get(Name, Sum, {0, 0}),
            {Cost, Count} = cost(Socket, Name),
            Sum#{Name => {Took + Cost, Calls + Count}}
        end, Costs, Tools)).

server() ->
    Echo = fun(Name) ->
        #{name => Name, handler => fun(#{~"text" := Text}, _) -> Text end}
    end,
    Work = fun(Name) -> #{name => Name, handler => fun(_, _) -> work(20_000), ~"done" end} end,
    Through = fun(Arguments, Context, Next) -> Next(Arguments, Context) end,
    Inside = lists:foldl(
        fun(Prefix, Inner) ->
            #{name => Prefix, version => ~"1", mounts => [{Prefix, Inner}]}
        end, #{name => ~"inmost", version => ~"1", tools => [Echo(~"echo")]}, [~"c", ~"b"]),
    Kept = #{ttl_ms => 3_600_000},
    #{name => ~"bench", version => ~"1", listen => [{tcp, #{}}], mounts => [{~"a", Inside}],
      limits => #{cache_entries => 1000},
      tools => [Echo(~"echo"), (Echo(~"wrapped"))#{middleware => [Through]},
                (Echo(~"missed"))#{cache => Kept}, (Echo(~"kept"))#{cache => Kept},
                Work(~"work"), (Work(~"kept_work"))#{cache => Kept}]}.

work(0) -> ok;
work(N) -> _ = erlang:phash2({work, N}), work(N - 1).

%% CPU time, since the machine may have other work.
cost(Socket, Name) ->
    {Before, _} = statistics(runtime),
    Count = calls(Socket, Name, erlang:monotonic_time(microsecond) + ?TURN, 0),
    {After, _} = statistics(runtime),
    {(After - Before) * 1000, Count}.

calls(Socket, Name, End, Count) ->
    case erlang:monotonic_time(microsecond) < End of
        true ->
            Text = case Name of
                ~"missed" -> integer_to_binary(erlang:unique_integer([positive]));
                _ -> ~"0123456789abcdef"
            end,
            ok = gen_tcp:send(Socket, [
                ~'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"', Name,
                ~'","arguments":{"text":"', Text, ~'"},"_meta":{',
                ~'"io.modelcontextprotocol/protocolVersion":"2026-07-28",',
                ~'"io.modelcontextprotocol/clientCapabilities":{}}}}', $\n]),
            {ok, Line} = gen_tcp:recv(Socket, 0, 5000),
            {_, _} = binary:match(Line, ~'"content"'),
            calls(Socket, Name, End, Count + 1);
        false ->
            Count
    end.
