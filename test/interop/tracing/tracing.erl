%% A server of a chain, and the visitor of its first one: each has the trace of the whole.
-module(tracing).
-export([main/1]).

%% `serve NAME COLLECTOR UPSTREAM` serves the tool `count`, which calls that of the upstream, until
%% its input ends. Its URL is the first line of its output.
main(["serve", Name, Collector, Upstream]) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    {ok, Client} = erlmcp_client:start_link({http, list_to_binary(Upstream), #{}}),
    {ok, _} = erlmcp:start_server(#{
        id => chain, name => list_to_binary(Name), version => ~"1.0.0", trace => trace(Collector),
        tools => [#{name => ~"count", description => ~"Asks the next one",
                    input_schema => #{item => string},
                    handler => fun(Arguments, _) -> count(Client, Arguments) end}],
        listen => [{http, #{}}]}),
    [#{url := Url}] = erlmcp:listeners(chain),
    io:format("~ts~n", [Url]),
    _ = io:get_line(""),
    ok = erlmcp:stop_server(chain),
    ok = application:stop(erlmcp),
    halt(0);
%% `visit COLLECTOR URL` calls the tool.
main(["visit", Collector, Url]) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    {ok, Client} = erlmcp_client:start_link({http, list_to_binary(Url),
                                             #{name => ~"visitor", trace => trace(Collector)}}),
    ~"7" = count(Client, #{~"item" => ~"secret-7"}),
    ok = erlmcp_client:stop(Client),
    ok = application:stop(erlmcp),
    halt(0).

trace(Collector) ->
    #{endpoint => list_to_binary(Collector)}.

count(Client, Arguments) ->
    {ok, #{~"content" := [#{~"text" := Text}]}} =
        erlmcp_client:call_tool(Client, ~"count", Arguments),
    Text.
