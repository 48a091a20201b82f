-module(erlmcp_test_port).
-moduledoc """
A port of 127.0.0.1 at which no process listens. The port stays taken as long as the calling process
lives, so that no other program of the machine comes to listen there.
""".

-compile(nowarn_missing_spec_documented).

-export([unused/0, taken/0, give_back/1]).

unused() ->
    {Port, _} = taken(),
    Port.

taken() ->
    {ok, Socket} = socket:open(inet, stream, tcp),
    ok = socket:bind(Socket, #{family => inet, addr => {127, 0, 0, 1}, port => 0}),
    {ok, #{port := Port}} = socket:sockname(Socket),
    {Port, Socket}.

%% From now on somebody may listen there.
give_back(Socket) ->
    ok = socket:close(Socket).
