-module(bench_traces).
-moduledoc """
A server with the tool `echo`, traced or not, and a collector that reads spans and forgets them.
""".

-export([main/1]).
-export([init/2]).

-doc """
`serve RATIO COLLECTOR KIND`: `RATIO` is `off` or the part of traces to record, and `KIND` is
`quick` or `ordinary`. `collect`: the collector. Both print their URL, and run until they
are killed.
""".
-spec main([string()]) -> no_return().
main(["serve", Ratio, Collector, Kind]) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    Echo = #{name => ~"echo", description => ~"Echoes", quick => Kind =:= "quick",
             input_schema => #{text => string},
             handler => fun(#{~"text" := Text}, _) -> Text end},
    {ok, _} = erlmcp:start_server(
        (trace(Ratio, Collector))#{id => bench, name => ~"bench", version => ~"1",
                                   tools => [Echo], listen => [{http, #{}}]}),
    [#{url := Url}] = erlmcp:listeners(bench),
    io:format("~ts~n", [Url]),
    receive after infinity -> ok end;
main(["collect"]) ->
    {ok, _} = application:ensure_all_started(cowboy),
    Routes = cowboy_router:compile([{'_', [{'_', ?MODULE, none}]}]),
    {ok, _} = cowboy:start_clear(collector, [{port, 0}, {ip, {127, 0, 0, 1}}],
                                 #{env => #{dispatch => Routes}}),
    io:format("http://127.0.0.1:~b/v1/traces~n", [ranch:get_port(collector)]),
    receive after infinity -> ok end.

trace("off", _) ->
    #{};
trace(Ratio, Collector) ->
    #{trace => #{endpoint => list_to_binary(Collector), ratio => list_to_float(Ratio)}}.

-doc false.
init(Request, State) ->
    {ok, read(cowboy_req:read_body(Request)), State}.

read({more, _, Request}) -> read(cowboy_req:read_body(Request));
read({ok, _, Request}) ->
    cowboy_req:reply(200, #{~"content-type" => ~"application/json"}, ~"{}", Request).
