-module(erlmcp_bench_scrape).
-moduledoc """
Serves metrics to Prometheus: `GET /metrics` on a port of the loopback interface, answered by a fun
that is called for each request.
""".

-behaviour(cowboy_handler).

-export([start/3, stop/1, url/1]).
-export([init/2]).

%% Few clients scrape.
-define(CONNECTIONS, 16).

-doc """
Listens on `Port` of the loopback interface, or on a free port if `Port` is 0, until `stop/1` with
the same `Name`. Calls `Families` for each GET or HEAD, in a process of the request. Returns the
port, or the reason why the listener cannot start.
""".
-spec start(Name :: term(), Port :: inet:port_number(),
            Families :: fun(() -> [erlmcp_bench_prometheus:family()])) ->
    {ok, inet:port_number()} | {error, term()}.
start(Name, Port, Families) ->
    Dispatch = cowboy_router:compile([{'_', [{"/metrics", ?MODULE, Families}]}]),
    maybe
        {ok, _} ?= application:ensure_all_started(cowboy),
        {ok, _} ?= cowboy:start_clear({?MODULE, Name},
                                      #{socket_opts => [{ip, {127, 0, 0, 1}}, {port, Port}],
                                        num_acceptors => 1, max_connections => ?CONNECTIONS},
                                      #{env => #{dispatch => Dispatch}}),
        {ok, ranch:get_port({?MODULE, Name})}
    end.

-doc "Returns the URL of the metrics on `Port`.".
-spec url(Port :: inet:port_number()) -> binary().
url(Port) ->
    <<"http://127.0.0.1:", (integer_to_binary(Port))/binary, "/metrics">>.

-doc "Stops the listener `Name`. The error is `not_found` if there is no such listener.".
-spec stop(Name :: term()) -> ok | {error, not_found}.
stop(Name) ->
    cowboy:stop_listener({?MODULE, Name}).

-doc false.
init(#{method := Method} = Request, Families) when Method =:= ~"GET"; Method =:= ~"HEAD" ->
    Headers = #{~"content-type" => erlmcp_bench_prometheus:content_type()},
    {ok, cowboy_req:reply(200, Headers, erlmcp_bench_prometheus:text(Families()), Request),
     Families};
init(Request, Families) ->
    {ok, cowboy_req:reply(405, #{~"allow" => ~"GET, HEAD"}, Request), Families}.
