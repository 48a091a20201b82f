-module(bench_traces).
-moduledoc """
Servers with the tool `echo`, traced, scraped or neither, and a collector that reads spans and
forgets them. The tool of kind `working` hashes its text 100 times before it returns it.
""".

-export([main/1]).
-export([init/2]).

-doc """
`serve COLLECTOR SIGNALS...`: a server of each kind, `quick`, `ordinary` and `working`, with each of
`SIGNALS`: `off` or `again` without any, `metrics` for a page that is scraped, or the part of traces
to record. Prints in one line for each server `KIND SIGNALS URL`. `collect`: the collector, which
prints its URL. Both run until they are killed.
""".
-spec main([string()]) -> no_return().
main(["serve", Collector | Signals]) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    io:format("~ts", [[[Kind, $\s, Signal, $\s, serve(Kind, Signal, Collector), $\n]
                       || Kind <- ["quick", "ordinary", "working"], Signal <- Signals]]),
    receive after infinity -> ok end;
main(["collect"]) ->
    {ok, _} = application:ensure_all_started(cowboy),
    Routes = cowboy_router:compile([{'_', [{'_', ?MODULE, none}]}]),
    {ok, _} = cowboy:start_clear(collector, [{port, 0}, {ip, {127, 0, 0, 1}}],
                                 #{env => #{dispatch => Routes}}),
    io:format("http://127.0.0.1:~b/v1/traces~n", [ranch:get_port(collector)]),
    receive after infinity -> ok end.

serve(Kind, Signal, Collector) ->
    Echo = #{name => ~"echo", description => ~"Echoes", quick => Kind =:= "quick",
             input_schema => #{text => string},
             handler => fun(#{~"text" := Text}, _) -> worked(Kind, Text) end},
    {ok, Server} = erlmcp:start_server(
        (signals(Signal, Collector))#{name => ~"bench", version => ~"1", tools => [Echo],
                                      listen => [{http, #{metrics => Signal =:= "metrics"}}]}),
    [#{url := Url}] = erlmcp:listeners(Server),
    Url.

worked("working", Text) ->
    _ = lists:foldl(fun(_, Hash) -> crypto:hash(sha256, Hash) end, Text, lists:seq(1, 100)),
    Text;
worked(_, Text) ->
    Text.

signals(Signal, _) when Signal =:= "off"; Signal =:= "again"; Signal =:= "metrics" ->
    #{};
signals(Ratio, Collector) ->
    #{trace => #{endpoint => list_to_binary(Collector), ratio => list_to_float(Ratio)}}.

-doc false.
init(Request, State) ->
    {ok, read(cowboy_req:read_body(Request)), State}.

read({more, _, Request}) -> read(cowboy_req:read_body(Request));
read({ok, _, Request}) ->
    cowboy_req:reply(200, #{~"content-type" => ~"application/json"}, ~"{}", Request).
