-module(bench_peers_server).
-moduledoc """
Serves the tools of `bench/peers/tools.json` with erlmcp. `erlmcp serve` does so in the clear, on
lines and on stdio, and `tls/1` over TLS 1.3. `echo` is marked quick.
""".

-behaviour(erlmcp_server).

-export([server/0, tools/0, call_tool/3, tls/1]).

-doc false.
server() ->
    #{name => ~"erlmcp", version => ~"0.1.0"}.

-doc false.
tools() ->
    {ok, Bytes} = file:read_file(os:getenv("TOOLS")),
    [#{name => Name, description => Description, input_schema => Schema, quick => Name =:= ~"echo"}
     || #{~"name" := Name, ~"description" := Description, ~"inputSchema" := Schema}
            <- json:decode(Bytes)].

-doc false.
call_tool(~"echo", #{~"text" := Text}, _) -> Text;
call_tool(~"sleep", #{~"ms" := Milliseconds}, _) -> receive after Milliseconds -> ~"done" end.

-doc "Serves until its node ends. The certificate and its key are files.".
-spec tls([string()]) -> no_return().
tls([Port, Certificate, Key]) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    Tls = [{certfile, Certificate}, {keyfile, Key}, {versions, ['tlsv1.3']}],
    {ok, _} = erlmcp:start_server(
        #{handler => ?MODULE,
          listen => [{http, #{port => list_to_integer(Port), tls => Tls}}]}),
    receive after infinity -> ok end.
