-module(erlmcp_bench_program).
-moduledoc """
The server under test as a program that speaks MCP on its standard input and output. A client starts
one for each connection.
""".

-export([words/0]).

%% The flags of bin/erlmcp for a server, without compilation and the search for terminals.
-define(FLAGS, ["+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none", "-noinput"]).
-define(START, "{ok, _} = erlmcp_bench_host:start(#{handler => "
               "erlmcp_bench_quick_fixture, "
               "listen => [{stdio, #{}}]}).").

-doc "Returns the command that starts the server: the program and its arguments.".
-spec words() -> [string(), ...].
words() ->
    Own = [filename:dirname(filename:absname(Beam))
           || Module <- [erlmcp, erlmcp_bench_host, cowboy, cow_http, ranch, gun, jose],
              Beam <- [code:which(Module)], is_list(Beam)],
    erlmcp_bench_node:words(?FLAGS ++ ["-pa" | lists:usort(Own)] ++ ["-eval", ?START]).
