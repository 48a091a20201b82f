-module(erlmcp_test_collecting_fixture).
-moduledoc "A server whose quick tool `echo` collects the garbage of its process three times.".

-behaviour(erlmcp_server).

-export([server/0, tools/0, call_tool/3]).

server() -> erlmcp_bench_fixture:server().

tools() -> [Tool#{quick => true} || #{name := ~"echo"} = Tool <- erlmcp_bench_fixture:tools()].

call_tool(~"echo", #{~"text" := Text}, _) ->
    _ = [true = garbage_collect() || _ <- lists:seq(1, 3)],
    Text.
