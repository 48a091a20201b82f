-module(erlmcp_test_planted).
-moduledoc """
A server with planted behaviour for the suites of the load generator: `planted_server.mjs`, which
runs in Node and shares no code with erlmcp. It writes a journal of what it did to each request, by
its own clock.
""".

-compile(nowarn_missing_spec_documented).

-export([init/1, start/3, target/1, journal/1, count/2, services/1, client/4, h2load/5, near/1]).

-export_type([planted/0, journal/0]).

-type planted() :: #{target := term(), journal := pid(), wire := atom(), atom() => term()}.
-type journal() :: #{requests := [map()], ends := [map()]}.

-define(WAIT, 30_000).
%% The ratio of a figure and the truth, and the runs that it may take to come as near.
-define(NEAR, 1.5).
-define(TRIES, 8).
%% Milliseconds of a pause of the machine for which what a run asserts does not count.
-define(PAUSE_MS, 100).
%% Milliseconds to wait, in all, until the machine is as quick as before the first run, and between
%% two looks.
-define(QUICK_MS, 60_000).
-define(LOOK_MS, 500).
%% Numbers that are hashed to find how quick it is.
-define(HASHED, 100_000).

%% Finds Node, and makes a certificate for the wires with TLS.
init(Config) ->
    Root = root(here()),
    Node = filename:join(output([filename:join([Root, "scripts", "peers.sh"]), "node"]),
                         "bin/node"),
    Priv = proplists:get_value(priv_dir, Config),
    Ec = [{digest, sha256}, {key, {namedCurve, secp256r1}}],
    San = {extensions, [{'Extension', {2, 5, 29, 17}, false, [{iPAddress, <<127, 0, 0, 1>>}]}]},
    #{server_config := Server, client_config := Client} = public_key:pkix_test_data(#{
        server_chain => #{root => Ec, intermediates => [], peer => [San | Ec]},
        client_chain => #{root => Ec, intermediates => [], peer => Ec}}),
    {Type, Key} = proplists:get_value(key, Server),
    Files = [begin
                 File = filename:join(Priv, Name),
                 ok = file:write_file(File, public_key:pem_encode([{Of, Der, not_encrypted}])),
                 list_to_binary(File)
             end || {Name, Of, Der} <- [{"key.pem", Type, Key},
                                        {"cert.pem", 'Certificate',
                                         proplists:get_value(cert, Server)}]],
    [{root, Root}, {planted_node, Node}, {planted_tls, Files},
     {planted_roots, [lists:keyfind(cacerts, 1, Client)]} | Config].

%% A server of a wire. The calling process owns it.
-spec start(atom(), Plan :: map(), [tuple()]) -> planted().
start(Wire, Plan, Config) ->
    Journal = spawn_link(fun() -> opened(self()) end),
    Port = asked(port, Journal),
    [Key, Cert] = proplists:get_value(planted_tls, Config),
    Words = [proplists:get_value(planted_node, Config),
             filename:join(here(), "planted_server.mjs"), atom_to_list(Wire),
             integer_to_list(Port),
             unicode:characters_to_list(json:encode(Plan#{key => Key, cert => Cert}))],
    Planted = #{wire => Wire, journal => Journal},
    case Wire of
        stdio ->
            Planted#{target => {stdio, Words}};
        _ ->
            Planted#{os_pid => program(Words), target => address(Wire, asked(server, Journal)),
                     tls => proplists:get_value(planted_roots, Config)}
    end.

%% A server that crashes fails its case.
program([Program | Arguments]) ->
    Test = self(),
    Keeper = spawn_link(fun() ->
        Port = open_port({spawn_executable, Program}, [{args, Arguments}, exit_status, hide]),
        Test ! {self(), erlang:port_info(Port, os_pid)},
        receive {Port, {exit_status, 0}} -> ok; {Port, {exit_status, Status}} -> exit(Status) end
    end),
    receive {Keeper, {os_pid, OsPid}} -> OsPid end.

address(tcp, Port) -> {tcp, {127, 0, 0, 1}, Port};
address(Wire, Port) when Wire =:= http1; Wire =:= http2 -> {http, url("http", Port)};
address(_, Port) -> {http, url("https", Port)}.

url(Scheme, Port) -> iolist_to_binary([Scheme, "://127.0.0.1:", integer_to_list(Port), "/mcp"]).

%% The options of a load that reaches the server.
-spec target(planted()) -> map().
target(#{target := Target, wire := Wire} = Planted) ->
    maps:merge(#{target => Target},
               case Wire of
                   http1_tls -> maps:with([tls], Planted);
                   http2_tls -> (maps:with([tls], Planted))#{protocol => http2};
                   http2 -> #{protocol => http2};
                   _ -> #{}
               end).

%% Ends the server. Returns what it did to each request, in order, and what each of its processes
%% says of itself.
-spec journal(planted()) -> journal().
journal(#{journal := Journal}) ->
    Lines = asked(lines, Journal),
    #{requests => lists:sort(fun(#{~"n" := One}, #{~"n" := Other}) -> One =< Other end,
                             [Line || #{~"n" := _} = Line <- Lines]),
      ends => [Line || #{~"end" := true} = Line <- Lines]}.

%% Returns to how many requests the server did this.
-spec count(binary(), journal()) -> non_neg_integer().
count(Does, #{requests := Requests}) ->
    length([Does || #{~"does" := Did} <- Requests, Did =:= Does]).

%% The microseconds that the server took for each request, from the shortest.
-spec services(journal()) -> [pos_integer()].
services(#{requests := Requests}) ->
    lists:sort([Until - From || #{~"from" := From, ~"until" := Until} <- Requests]).

%% The microseconds of each call of a client in Python, from the shortest.
-spec client(Connections :: pos_integer(), Seconds :: number(), Message :: binary(), planted()) ->
    [pos_integer()].
client(Connections, Seconds, Message, #{target := Target}) ->
    To = case Target of
        {tcp, _, Port} -> [integer_to_list(Port)];
        {stdio, Words} -> Words
    end,
    Output = output(["python3", filename:join(here(), "planted_client.py"),
                     integer_to_list(Connections), io_lib:format("~w", [Seconds]), Message | To]),
    lists:sort([list_to_integer(Line) || Line <- string:lexemes(Output, "\n")]).

%% The microseconds of each request of h2load, from the shortest.
-spec h2load(Connections :: pos_integer(), Seconds :: pos_integer(), Message :: binary(),
             planted(), [tuple()]) -> [pos_integer()].
h2load(Connections, Seconds, Message, #{target := {http, Url}, wire := Wire}, Config) ->
    Tools = output([filename:join([proplists:get_value(root, Config), "bench", "tools.sh"])]),
    Own = filename:join(proplists:get_value(priv_dir, Config),
                        "h2load" ++ integer_to_list(erlang:unique_integer([positive]))),
    ok = file:write_file(Own ++ ".json", Message),
    _ = output([filename:join(Tools, "usr/bin/h2load"), "-t", "1", "-m", "1",
                "-c", integer_to_list(Connections), "-D", integer_to_list(Seconds),
                "-d", Own ++ ".json", "-H", "Content-Type: application/json",
                "--log-file", Own ++ ".log"] ++ ["--h1" || Wire =:= http1] ++ [Url]),
    {ok, Log} = file:read_file(Own ++ ".log"),
    lists:sort([begin
                    [_, ~"200", Us] = binary:split(Line, ~"\t", [global]),
                    binary_to_integer(Us)
                end || Line <- binary:split(Log, ~"\n", [global, trim])]).

%% Repeats a run until each of its figures is near the truth. It waits meanwhile for a machine that
%% has become slower.
-spec near(fun(() -> [{Name :: atom(), Found :: number(), Truth :: number()}])) -> ok.
near(Run) ->
    near(Run, ?TRIES, hashing_us(), ?QUICK_MS).

near(Run, Tries, Quick, Patience) ->
    Figures = erlmcp_test_pauses:undisturbed(?PAUSE_MS, Run),
    case [Figure || {_, Found, Truth} = Figure <- Figures,
                    Found > Truth * ?NEAR orelse Found < Truth / ?NEAR] of
        [] ->
            ct:log("~tp", [Figures]);
        Off when Tries =:= 1 ->
            ct:fail({off, Off});
        Off ->
            ct:log("off: ~tp~nof ~tp", [Off, Figures]),
            near(Run, Tries - 1, Quick, await_quick(Quick, Patience))
    end.

%% Returns the rest of the patience.
await_quick(Quick, Patience) ->
    case Patience =< 0 orelse hashing_us() =< ?NEAR * Quick of
        true -> Patience;
        false -> receive after ?LOOK_MS -> await_quick(Quick, Patience - ?LOOK_MS) end
    end.

hashing_us() ->
    {Us, _} = timer:tc(fun() ->
        lists:foldl(fun(Number, Hash) -> erlang:phash2({Number, Hash}) end, 0,
                    lists:seq(1, ?HASHED))
    end),
    Us.

%% The output of a program that ends well, without its last end of line.
output([Program | Arguments]) ->
    Path = case filename:pathtype(Program) of
        absolute -> Program;
        _ -> os:find_executable(Program)
    end,
    Port = open_port({spawn_executable, Path},
                     [{args, [unicode:characters_to_binary(Argument) || Argument <- Arguments]},
                      exit_status, use_stdio, hide]),
    output(Port, []).

output(Port, Read) ->
    receive
        {Port, {data, More}} -> output(Port, [Read | More]);
        {Port, {exit_status, 0}} -> string:trim(lists:flatten(Read), trailing, "\n");
        {Port, {exit_status, Status}} -> error({ended, Status, lists:flatten(Read)})
    end.

here() -> filename:dirname(proplists:get_value(source, module_info(compile))).

root(Folder) ->
    case filelib:is_regular(filename:join([Folder, "bin", "erlmcp"])) of
        true -> Folder;
        false -> root(filename:dirname(Folder))
    end.

%% The journal: a process that the server's processes connect to.

asked(What, Journal) ->
    Monitor = monitor(process, Journal),
    Journal ! {What, self()},
    receive
        {Journal, Answer} ->
            true = demonitor(Monitor, [flush]),
            Answer;
        {'DOWN', Monitor, process, _, Reason} ->
            error({journal, Reason})
    after ?WAIT ->
        error({no_answer, What})
    end.

opened(Self) ->
    {ok, Listener} = gen_tcp:listen(0, [binary, {packet, line}, {ip, {127, 0, 0, 1}},
                                        {recbuf, 65_536}, {buffer, 65_536}, {active, false}]),
    {ok, Port} = inet:port(Listener),
    _ = spawn_link(fun() -> accepting(Listener, Self) end),
    kept(#{listener => Listener, port => Port, sockets => [], lines => [], waiting => none}).

accepting(Listener, Journal) ->
    case gen_tcp:accept(Listener) of
        {ok, Socket} ->
            ok = gen_tcp:controlling_process(Socket, Journal),
            Journal ! {accepted, Socket},
            accepting(Listener, Journal);
        {error, closed} ->
            ok
    end.

kept(#{sockets := Sockets, lines := Lines, port := Port} = State) ->
    receive
        {accepted, Socket} ->
            ok = inet:setopts(Socket, [{active, true}]),
            kept(State#{sockets := [Socket | Sockets]});
        {tcp, _, Line} ->
            told(json:decode(Line), State);
        {tcp_closed, Socket} ->
            kept(State#{sockets := lists:delete(Socket, Sockets)});
        {port, From} ->
            From ! {self(), Port},
            kept(State);
        {server, From} ->
            case [Found || #{~"port" := Found} <- Lines] of
                [Found] ->
                    From ! {self(), Found},
                    kept(State);
                [] ->
                    kept(State#{waiting := From})
            end;
        {lines, From} ->
            _ = [gen_tcp:shutdown(Socket, write) || Socket <- Sockets],
            From ! {self(), ended(Sockets, Lines)}
    end.

told(#{~"port" := Found} = Line, #{waiting := From, lines := Lines} = State) ->
    _ = [From ! {self(), Found} || From =/= none],
    kept(State#{lines := [Line | Lines]});
told(Line, #{lines := Lines} = State) ->
    kept(State#{lines := [Line | Lines]}).

ended([], Lines) ->
    Lines;
ended(Sockets, Lines) ->
    receive
        {tcp, _, Line} -> ended(Sockets, [json:decode(Line) | Lines]);
        {tcp_closed, Socket} -> ended(lists:delete(Socket, Sockets), Lines)
    after ?WAIT ->
        error(still_open)
    end.
