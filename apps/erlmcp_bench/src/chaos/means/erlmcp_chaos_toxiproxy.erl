-module(erlmcp_chaos_toxiproxy).
-moduledoc """
Runs Toxiproxy, a TCP proxy that slows connections down on request. The environment variable
`ERLMCP_TOXIPROXY` may have the path or the name of the program; by default it is `toxiproxy-server`
on the path. `scripts/go_tool.sh` builds the program and prints its folder.
`erlmcp_chaos_program:reason/1` words the errors.
""".

-export([program/0, start/0, stop/1, proxy/2, add/3, remove/2]).

-export_type([toxiproxy/0, proxy/0]).

-opaque toxiproxy() :: #{keeper := erlmcp_chaos_keeper:keeper(), gun := pid()}.
-opaque proxy() :: binary().

-define(ASK_MS, 5_000).
-define(START_MS, 10_000).

-define(MAKE, "
    \"$1\" -host 127.0.0.1 -port \"$2\" </dev/null >/dev/null 2>&1 &
    proxy=$!").
-define(UNMAKE, "
    kill -KILL \"$proxy\"
    wait").

-doc "Returns the path of Toxiproxy's program, or an error if it is not installed.".
-spec program() -> {ok, file:filename()} | {error, {no_program, string()}}.
program() ->
    Name = os:getenv("ERLMCP_TOXIPROXY", "toxiproxy-server"),
    case erlmcp_load_program:executable(Name) of
        false -> {error, {no_program, Name}};
        File -> {ok, File}
    end.

-doc """
Starts Toxiproxy without proxies, on a free port. It ends with the calling process, or with
`stop/1`.
""".
-spec start() -> {ok, toxiproxy()} | {error, term()}.
start() ->
    maybe
        {ok, Program} ?= program(),
        {ok, _} ?= application:ensure_all_started(gun),
        {ok, Port} ?= free_port(),
        {ok, Keeper} ?= erlmcp_chaos_keeper:keep(?MAKE, ?UNMAKE,
                                                 [Program, integer_to_list(Port)]),
        reached(Keeper, Port)
    end.

%% Toxiproxy does not report a port that it chose itself.
free_port() ->
    maybe
        {ok, Socket} ?= gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
        {ok, Port} = inet:port(Socket),
        ok = gen_tcp:close(Socket),
        {ok, Port}
    end.

%% gun retries until Toxiproxy listens.
reached(Keeper, Port) ->
    {ok, Gun} = gun:open({127, 0, 0, 1}, Port, #{protocols => [http], retry => 200,
                                                 retry_timeout => ?START_MS div 200}),
    case gun:await_up(Gun, ?START_MS) of
        {ok, _} ->
            {ok, #{keeper => Keeper, gun => Gun}};
        {error, Reason} ->
            ok = gun:close(Gun),
            _ = erlmcp_chaos_keeper:release(Keeper),
            {error, {toxiproxy, Reason}}
    end.

-doc """
Ends Toxiproxy, and with it all connections through it. Only the process that started Toxiproxy may
do so.
""".
-spec stop(toxiproxy()) -> ok | {error, term()}.
stop(#{keeper := Keeper, gun := Gun}) ->
    ok = gun:close(Gun),
    erlmcp_chaos_keeper:release(Keeper).

-doc """
Adds a proxy that forwards its connections to the given address. Returns the proxy, and the local
address at which the proxy listens.
""".
-spec proxy(toxiproxy(), {inet:ip_address(), inet:port_number()}) ->
    {ok, proxy(), {inet:ip_address(), inet:port_number()}} | {error, term()}.
proxy(Toxiproxy, {Ip, Port}) ->
    Name = <<"proxy-", (integer_to_binary(erlang:unique_integer([positive])))/binary>>,
    maybe
        {ok, #{~"listen" := Listen}} ?=
            ask(Toxiproxy, ~"POST", ~"/proxies",
                #{name => Name, listen => ~"127.0.0.1:0", enabled => true,
                  upstream => iolist_to_binary([host(Ip), $:, integer_to_list(Port)])}),
        [_, Listens] = binary:split(Listen, ~":"),
        {ok, Name, {{127, 0, 0, 1}, binary_to_integer(Listens)}}
    end.

host(Ip) when tuple_size(Ip) =:= 4 -> inet:ntoa(Ip);
host(Ip) -> [$[, inet:ntoa(Ip), $]].

-doc """
Delays the data that a proxy sends to its clients by `Milliseconds`, also on open connections. It is
an error if the proxy already has a latency.
""".
-spec add(toxiproxy(), proxy(), {latency, Milliseconds :: pos_integer()}) -> ok | {error, term()}.
add(Toxiproxy, Proxy, {latency, Milliseconds}) ->
    maybe
        {ok, _} ?= ask(Toxiproxy, ~"POST", <<"/proxies/", Proxy/binary, "/toxics">>,
                       #{name => ~"latency", type => ~"latency", stream => ~"downstream",
                         toxicity => 1, attributes => #{latency => Milliseconds, jitter => 0}}),
        ok
    end.

-doc "Removes the latency of a proxy. It is an error if the proxy has none.".
-spec remove(toxiproxy(), proxy()) -> ok | {error, term()}.
remove(Toxiproxy, Proxy) ->
    maybe
        {ok, _} ?= ask(Toxiproxy, ~"DELETE", <<"/proxies/", Proxy/binary, "/toxics/latency">>,
                       none),
        ok
    end.

ask(#{gun := Gun}, Method, Path, Body) ->
    Stream = case Body of
        none -> gun:request(Gun, Method, Path, [], ~"");
        #{} -> gun:request(Gun, Method, Path, [{~"content-type", ~"application/json"}],
                           json:encode(Body))
    end,
    case gun:await(Gun, Stream, ?ASK_MS) of
        {response, fin, Status, _} when Status < 300 ->
            {ok, #{}};
        {response, nofin, Status, _} ->
            maybe
                {ok, Answer} ?= gun:await_body(Gun, Stream, ?ASK_MS),
                answered(Status, Answer)
            end;
        {response, fin, Status, _} ->
            {error, {toxiproxy, Status, ~""}};
        {error, Reason} ->
            {error, {toxiproxy, Reason}}
    end.

answered(Status, Answer) when Status < 300 -> {ok, json:decode(Answer)};
answered(Status, Answer) -> {error, {toxiproxy, Status, Answer}}.
