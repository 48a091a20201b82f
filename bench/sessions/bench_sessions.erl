-module(bench_sessions).
-moduledoc "Compares the rates at which servers open sessions; see ../sessions.sh.".

-export([main/6]).
-export([serve/1]).

-define(REVISION, ~"2025-11-25").

-doc """
Runs `Rounds` rounds for each way, in which `Clients` clients open sessions at each server for
`Seconds`. Each client opens a connection for each session (`own`), or has one (`kept`). The cluster
has `Nodes` nodes, and keeps its files in `Folder`. Writes the figures to `File`, unless that is "".
""".
-spec main(file:filename(), pos_integer(), number(), pos_integer(), pos_integer(),
           file:filename()) -> ok.
main(Folder, Rounds, Seconds, Nodes, Clients, File) ->
    Servers = [{without, alone()}, {again, alone()}, {cluster, cluster(Folder, Nodes)}],
    Before = load(),
    Ways = #{Way => measured(Way, Servers, Rounds, Seconds, Clients) || Way <- [own, kept]},
    Result = Ways#{rounds => Rounds, seconds => Seconds, nodes => Nodes, clients => Clients,
                   load => [Before, load()]},
    File =:= "" orelse
        begin
            ok = file:write_file(File, [json:encode(Result), $\n]),
            io:format("written: ~ts~n", [File])
        end,
    ok.

measured(Way, Servers, Rounds, Seconds, Clients) ->
    io:format("connections: ~p~n", [Way]),
    %% The first round warms up. Each round begins with another server.
    [_ | Measured] = [maps:from_list([{Name, opened(Peer, Seconds, Clients, Way)}
                                      || {Name, Peer} <- rotated(Round, Servers)])
                      || Round <- lists:seq(0, Rounds)],
    maps:from_list([{Name, figures(Name, Measured)} || {Name, _} <- Servers]).

rotated(Round, Servers) ->
    {Front, Behind} = lists:split(Round rem length(Servers), Servers),
    Behind ++ Front.

%% The machine's load of the last minute.
load() ->
    {ok, Bytes} = file:read_file("/proc/loadavg"),
    [Load | _] = binary:split(Bytes, ~" "),
    binary_to_float(Load).

figures(Name, Rounds) ->
    Figures = [{Figure, spread([of_round(Figure, Name, Round) || Round <- Rounds])}
               || Figure <- [sessions_per_s, us_per_session, rate, cpu]],
    io:format("~-8s~ts~n", [Name, [io_lib:format("  ~s ~.2f (~.2f to ~.2f)",
                                                 [Figure, Median, Least, Most])
                                   || {Figure, #{median := Median, least := Least,
                                                 most := Most}} <- Figures]]),
    maps:from_list(Figures).

%% The last two are relative to the server without a cluster in the same round.
of_round(sessions_per_s, Name, Round) -> element(1, map_get(Name, Round));
of_round(us_per_session, Name, Round) -> element(2, map_get(Name, Round));
of_round(rate, Name, Round) -> relative(sessions_per_s, Name, Round);
of_round(cpu, Name, Round) -> relative(us_per_session, Name, Round).

relative(Figure, Name, Round) ->
    of_round(Figure, Name, Round) / of_round(Figure, without, Round).

spread(Values) ->
    Sorted = lists:sort(Values),
    #{median => lists:nth((length(Sorted) + 1) div 2, Sorted), least => hd(Sorted),
      most => lists:last(Sorted)}.

%% Servers, in nodes of their own. None has a name server: those of a cluster listen at one port,
%% each at an address of its own.

alone() ->
    started(#{}, []).

cluster(Folder, Number) ->
    Port = integer_to_list(unused()),
    Hosts = ["127.0.0." ++ integer_to_list(1 + Host) || Host <- lists:seq(1, Number)],
    Seeds = [list_to_atom("bench_sessions@" ++ Host) || Host <- Hosts],
    Secret = binary_to_list(binary:encode_hex(crypto:strong_rand_bytes(32))),
    Peers = [started(#{name => bench_sessions, host => Host, longnames => true,
                       env => [{"BENCH_SESSIONS_SECRET", Secret}]},
                     ["-setcookie", Secret, "-start_epmd", "false", "-erl_epmd_port", Port,
                      "-kernel", "inet_dist_use_interface", address(Host),
                      "-kernel", "prevent_overlapping_partitions", "false"])
             || Host <- Hosts],
    Join = fun(Host, Peer) ->
        {ok, _} = peer:call(Peer, application, ensure_all_started, [erlmcp_cluster]),
        ok = peer:call(Peer, erlmcp_cluster, join,
                       [#{data_dir => filename:join(Folder, Host), discovery => {seeds, Seeds},
                          secret => {env, "BENCH_SESSIONS_SECRET"}}], 90_000)
    end,
    Joining = [spawn_monitor(fun() -> Join(Host, Peer) end)
               || {Host, Peer} <- lists:zip(Hosts, Peers)],
    [normal = receive {'DOWN', Monitor, process, _, Reason} -> Reason end
     || {_, Monitor} <- Joining],
    hd(Peers).

started(Options, Arguments) ->
    {ok, Peer, _} = peer:start_link(maps:merge(Options, #{
        connection => standard_io, wait_boot => 60_000,
        args => ["+S", "1:1", "+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none",
                 "-kernel", "logger_level", "error"
                 | Arguments ++ ["-pa", filename:dirname(code:which(?MODULE))]]})),
    {ok, _} = peer:call(Peer, application, ensure_all_started, [erlmcp]),
    Peer.

unused() ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Socket),
    ok = gen_tcp:close(Socket),
    Port.

address(Host) ->
    {ok, Address} = inet:parse_address(Host),
    lists:flatten(io_lib:format("~w", [Address])).

-doc "Starts a server in the calling node. Returns its port, too.".
-spec serve(Options :: map()) -> {erlmcp:server(), inet:port_number()}.
serve(Options) ->
    {ok, Server} = erlmcp:start_server(Options#{
        id => ?MODULE, name => ~"bench", version => ~"1", listen => [{http, #{}}],
        limits => #{sessions => 100_000_000, sessions_per_principal => 100_000_000}}),
    %% It outlives the calling process.
    true = unlink(Server),
    [#{port := Port}] = erlmcp:listeners(Server),
    {Server, Port}.

%% Sessions.

%% A new server has no sessions yet.
opened(Peer, Seconds, Clients, Way) ->
    Options = case peer:call(Peer, erlang, is_alive, []) of
        true -> #{cluster => erlmcp_cluster};
        false -> #{}
    end,
    {Server, Port} = peer:call(Peer, ?MODULE, serve, [Options]),
    Before = cpu(Peer),
    Began = erlang:monotonic_time(),
    Until = Began + erlang:convert_time_unit(round(Seconds * 1000), millisecond, native),
    Running = [spawn_monitor(fun() -> exit({opened, client(Way, Port, Until)}) end)
               || _ <- lists:seq(1, Clients)],
    Count = lists:sum([begin
        {opened, Opened} = receive {'DOWN', Monitor, process, _, Reason} -> Reason end,
        Opened
    end || {_, Monitor} <- Running]),
    Taken = erlang:convert_time_unit(erlang:monotonic_time() - Began, native, microsecond),
    Used = cpu(Peer) - Before,
    ok = peer:call(Peer, erlmcp, stop_server, [Server], 60_000),
    {1_000_000 * Count / Taken, Used / Count}.

%% The processor time of all threads of a node, in microseconds.
cpu(Peer) ->
    Threads = filelib:wildcard("/proc/" ++ peer:call(Peer, os, getpid, []) ++ "/task/*/schedstat"),
    lists:sum([begin
        {ok, Times} = file:read_file(Thread),
        [Nanoseconds | _] = binary:split(Times, ~" "),
        binary_to_integer(Nanoseconds)
    end || Thread <- Threads]) / 1_000.

%% Opens sessions until it is time, on one connection or each on a connection of its own.
client(Way, Port, Until) ->
    Host = [~"host: 127.0.0.1:", integer_to_list(Port), ~"\r\n"],
    Opening = request(Host, json:encode(#{
        jsonrpc => ~"2.0", id => 1, method => initialize,
        params => #{protocolVersion => ?REVISION, capabilities => #{sampling => #{}},
                    clientInfo => #{name => ~"bench_sessions", version => ~"1"}}})),
    Ready = ~B'{"jsonrpc":"2.0","method":"notifications/initialized"}',
    Open = fun(Socket) ->
        <<"HTTP/1.1 200 ", _/binary>> = Answer = asked(Opening, Socket),
        [_, Named] = binary:split(Answer, ~"mcp-session-id: "),
        [Id, _] = binary:split(Named, ~"\r\n"),
        InSession = [~"mcp-protocol-version: ", ?REVISION, ~"\r\nmcp-session-id: ", Id, ~"\r\n"],
        <<"HTTP/1.1 202 ", _/binary>> = asked(request([Host | InSession], Ready), Socket),
        Socket
    end,
    case Way of
        own -> repeated(0, Until, fun(_) -> gen_tcp:close(Open(connected(Port))) end, none);
        kept -> repeated(0, Until, Open, connected(Port))
    end.

repeated(Count, Until, Open, State) ->
    case erlang:monotonic_time() < Until of
        true -> repeated(Count + 1, Until, Open, Open(State));
        false -> Count
    end.

connected(Port) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false},
                                                          {nodelay, true}]),
    Socket.

request(Headers, Body) ->
    iolist_to_binary([~"POST /mcp HTTP/1.1\r\n", Headers,
                      ~"accept: application/json, text/event-stream\r\n",
                      ~"content-type: application/json\r\ncontent-length: ",
                      integer_to_list(iolist_size(Body)), ~"\r\n\r\n", Body]).

%% Each answer is small, and comes as one packet.
asked(Request, Socket) ->
    ok = gen_tcp:send(Socket, Request),
    {ok, Answer} = gen_tcp:recv(Socket, 0, 60_000),
    Answer.
