-module(overload_server).
-moduledoc """
The server of `bench/overload.sh` and `bench/slow.sh`. Its tools cost almost nothing, 2 or 10 ms of
CPU time, or 20 ms of waiting, and one has a large answer. A bearer token is the name of its
principal.
""".

-export([main/1]).

-doc "Serves HTTP on this port until it is killed.".
-spec main([string()]) -> no_return().
main([Port]) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    Turns = turns(2_000),
    Large = binary:copy(~"0123456789abcdef", 16_384),
    {ok, _} = erlmcp:start_server(#{
        name => ~"overload", version => ~"1.0.0",
        tools => [tool(~"echo", fun(#{~"text" := Text}, _) -> Text end),
                  tool(~"burn", fun(_, _) -> burn(Turns), ~"done" end),
                  tool(~"burn10", fun(_, _) -> burn(5 * Turns), ~"done" end),
                  tool(~"sleep", fun(_, _) -> timer:sleep(20), ~"done" end),
                  tool(~"large", fun(_, _) -> Large end)],
        listen => [{http, #{port => list_to_integer(Port), authenticate => fun authenticate/1}}]}),
    receive
        stop -> halt()
    end.

tool(Name, Handler) ->
    #{name => Name, handler => Handler}.

authenticate(#{headers := #{~"authorization" := <<"Bearer ", Name/binary>>}}) -> {ok, Name};
authenticate(_) -> {ok, anonymous}.

%% The number of turns that take `Microseconds`, undisturbed.
turns(Microseconds) ->
    Turns = 10_000,
    Took = lists:min([element(1, timer:tc(fun() -> burn(Turns) end)) || _ <- lists:seq(1, 30)]),
    Turns * Microseconds div Took.

burn(0) -> ok;
burn(N) -> _ = erlang:phash2({burn, N}), burn(N - 1).
