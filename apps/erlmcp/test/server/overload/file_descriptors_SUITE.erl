-module(file_descriptors_SUITE).
-moduledoc """
A node that may open few files. For any number of connections, listeners and servers, a descriptor
is left for files that must be opened. Admitted clients are answered, others are refused or closed,
and the log says so once.

The node is another one, started under `ulimit -n`.
""".

-compile(nowarn_missing_spec_documented).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([bounds_leave_room_for_each_other/1, a_flood_is_told_or_closed/1,
         refusals_are_of_the_node/1, without_descriptors_who_is_in_is_answered/1,
         a_handshake_needs_no_descriptor/1,
         acceptors_wait_for_descriptors/1]).
%% In the node.
-export([serve/2, collect/1, logged/0, log/2, open_files/2, spend/0]).

-define(TIMEOUT, 30_000).
-define(DESCRIPTORS, 300).
%% More than twice what the node can have.
-define(FLOOD, 700).
%% Times that no descriptor is free, 10 ms apart, until none will be.
-define(TRIES, 30).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [bounds_leave_room_for_each_other, a_flood_is_told_or_closed, refusals_are_of_the_node,
     without_descriptors_who_is_in_is_answered, a_handshake_needs_no_descriptor,
     acceptors_wait_for_descriptors].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, ssl], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(bounds_leave_room_for_each_other, Config) ->
    Config;
init_per_testcase(_, Config) ->
    Paths = [Path || Path <- code:get_path(), not lists:prefix(code:lib_dir(), Path), Path =/= "."],
    Limit = "ulimit -n " ++ integer_to_list(?DESCRIPTORS) ++ "; exec \"$0\" \"$@\"",
    {ok, Peer, _} = peer:start_link(#{
        connection => standard_io,
        wait_boot => ?TIMEOUT,
        exec => {"/bin/sh", ["-c", Limit, os:find_executable("erl")]},
        args => lists:append([["-pa", Path] || Path <- Paths])}),
    {ok, _} = peer:call(Peer, application, ensure_all_started, [erlmcp], ?TIMEOUT),
    Collector = peer:call(Peer, erlang, spawn, [?MODULE, collect, [[]]], ?TIMEOUT),
    true = peer:call(Peer, erlang, register, [?MODULE, Collector], ?TIMEOUT),
    ok = peer:call(Peer, logger, set_handler_config, [default, level, none], ?TIMEOUT),
    ok = peer:call(Peer, logger, add_handler, [?MODULE, ?MODULE, #{}], ?TIMEOUT),
    [{peer, Peer} | Config].

end_per_testcase(bounds_leave_room_for_each_other, _) ->
    ok;
end_per_testcase(_, Config) ->
    peer:stop(proplists:get_value(peer, Config)).

%% In the node.

-doc false.
serve(Id, Listen) ->
    Definitions = erlmcp_test_http:definitions(whereis(?MODULE)),
    {ok, Pid} = supervisor:start_child(kernel_safe_sup, erlmcp:child_spec(
        Definitions#{id => Id, name => ~"few", version => ~"1", listen => Listen})),
    [Port || #{port := Port} <- erlmcp:listeners(Pid)].

-doc false.
log(#{level := Level, msg := Message}, _) ->
    ?MODULE ! {logged, Level, Message},
    ok.

-doc false.
collect(Logged) ->
    receive
        {logged, Level, Message} ->
            collect([{Level, Message} | Logged]);
        {say, From} ->
            From ! {said, lists:reverse(Logged)},
            collect(Logged);
        {open, From, Number} ->
            From ! opened,
            hold(opened(Number, ?TRIES), Logged)
    end.

%% A guard may have a file open for a moment, so another descriptor may be free soon.
opened(Number, Tries) when Number > 0, Tries > 0 ->
    case file:open("/dev/null", [read, raw]) of
        {ok, File} -> [File | opened(Number - 1, Tries)];
        {error, emfile} -> receive after 10 -> opened(Number, Tries - 1) end
    end;
opened(_, _) ->
    [].

hold(Files, Logged) ->
    receive
        {logged, Level, Message} ->
            hold(Files, [{Level, Message} | Logged]);
        {say, From} ->
            From ! {said, lists:reverse(Logged)},
            hold(Files, Logged);
        {close, From} ->
            _ = [file:close(File) || File <- Files],
            From ! closed,
            collect(Logged)
    end.

-doc false.
logged() ->
    ?MODULE ! {say, self()},
    receive {said, Logged} -> Logged end.

%% As many as there are, and no more than that.
-doc false.
spend() ->
    open_files(open, ?DESCRIPTORS).

-doc false.
open_files(open, Number) ->
    ?MODULE ! {open, self(), Number},
    receive opened -> logged(), ok end;
open_files(close, _) ->
    ?MODULE ! {close, self()},
    receive closed -> ok end.

call(Config, Function, Arguments) ->
    peer:call(proplists:get_value(peer, Config), ?MODULE, Function, Arguments, ?TIMEOUT).

%% The reports of erlmcp and ranch in the log, of every level.
complaints(Config) ->
    [Message || {Level, Message} <- call(Config, logged, []),
                logger:compare_levels(Level, notice) =:= gt].

%% Clients.

connect(Port) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}, {nodelay, true}],
                                   ?TIMEOUT),
    Socket.

list() ->
    [json:encode(erlmcp_test_line:stateless(1, ~"tools/list", #{})), $\n].

on_http(Socket) ->
    {Headers, Body} = erlmcp_test_http:message(~"tools/list", #{}, #{}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    #{status := Status} = erlmcp_test_http:response(Socket),
    Status.

on_lines(Socket) ->
    ok = gen_tcp:send(Socket, list()),
    line(Socket).

line(Socket) ->
    ok = inet:setopts(Socket, [{packet, line}, {buffer, 1_000_000}]),
    {ok, Line} = gen_tcp:recv(Socket, 0, ?TIMEOUT),
    case json:decode(Line) of
        #{~"result" := _} -> 200;
        #{~"error" := #{~"code" := Code}} -> Code
    end.

%% Returns the outcome of a request on a connection: its answer, its refusal, or its end.
fate({http, Socket}) ->
    {Headers, Body} = erlmcp_test_http:message(~"tools/list", #{}, #{}),
    Head = [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Headers],
    _ = gen_tcp:send(Socket, [~"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: ",
                              integer_to_binary(iolist_size(Body)), ~"\r\n", Head, ~"\r\n", Body]),
    case gen_tcp:recv(Socket, 12, ?TIMEOUT) of
        {ok, ~"HTTP/1.1 200"} -> served;
        {ok, <<"HTTP/1.1 ", Status/binary>>} when Status =:= ~"429"; Status =:= ~"503" -> told;
        {error, closed} -> closed;
        {error, econnreset} -> closed
    end;
fate({tcp, Socket}) ->
    _ = gen_tcp:send(Socket, list()),
    ok = inet:setopts(Socket, [{packet, line}, {buffer, 1_000_000}]),
    case gen_tcp:recv(Socket, 0, ?TIMEOUT) of
        {ok, <<"{", _/binary>> = Line} ->
            case json:decode(Line) of
                #{~"result" := _} -> served;
                #{~"error" := #{~"code" := Code}} when Code =:= 1060; Code =:= 1089 -> told
            end;
        {error, closed} -> closed;
        {error, econnreset} -> closed
    end.

%% All descriptors of the node: of the admitted connections, of those that are being refused, of
%% those that the acceptors of a few listeners have, and some more.
bounds_leave_room_for_each_other(_) ->
    [begin
         Spare = erlmcp_descriptors:spare(Number),
         Acceptors = erlmcp_descriptors:acceptors(Number),
         #{descriptors := Connections} = erlmcp_envelope:carried(#{descriptors => Number}),
         true = Connections + Spare =:= Number,
         true = Acceptors >= 1 andalso Acceptors =< 100,
         true = 5 * Acceptors < Spare div 2 + 1 orelse Number < 20
     end || Number <- lists:seq(1, 5_000) ++ [65_536, 1_048_576]],
    100 = erlmcp_descriptors:acceptors(65_536).

a_flood_is_told_or_closed(Config) ->
    Listen = [{http, #{}}, {tcp, #{}}],
    Ports = [Http, Lines | _] = lists:append([call(Config, serve, [Id, Listen]) || Id <- [a, b]]),
    In = connect(Http),
    200 = on_http(In),
    Kinds = lists:zip([http, tcp, http, tcp], Ports),
    Flood = [begin
                 {Kind, Port} = lists:nth(Number rem 4 + 1, Kinds),
                 {Kind, connect(Port)}
             end || Number <- lists:seq(1, ?FLOOD)],
    %% All are there, and a file can be opened.
    Peer = proplists:get_value(peer, Config),
    {ok, _} = peer:call(Peer, file, read_file, ["/proc/self/status"], ?TIMEOUT),
    true = open_descriptors(Peer) < ?DESCRIPTORS,
    200 = on_http(In),
    Fates = [fate(Connection) || Connection <- Flood],
    [true = lists:member(Fate, Fates) || Fate <- [served, told, closed]],
    [gen_tcp:close(Socket) || {_, Socket} <- Flood],
    [{report, #{what := descriptors_exhausted, limit := ?DESCRIPTORS, advice := _}}] =
        complaints(Config),
    %% It is over.
    200 = on_http(In),
    until(fun() ->
        Socket = connect(Lines),
        Fate = fate({tcp, Socket}),
        gen_tcp:close(Socket),
        Fate =:= served
    end).

%% Of all its servers together, where each would let in more.
refusals_are_of_the_node(Config) ->
    [Port] = call(Config, serve, [a, [{tcp, #{}}]]),
    Peer = proplists:get_value(peer, Config),
    %% Others of the node's own.
    [Own] = call(Config, serve, [b, [{tcp, #{}}]]),
    Sockets = [connect(Own) || _ <- lists:seq(1, 130)],
    [200 = on_lines(Socket) || Socket <- Sockets],
    #{connections := 130} = peer:call(Peer, erlmcp, info, [b], ?TIMEOUT),
    More = [connect(Port) || _ <- lists:seq(1, 65)],
    Answers = [line_or_asked(Socket) || Socket <- More],
    [200, 1089] = lists:usort(Answers),
    [gen_tcp:close(Socket) || Socket <- Sockets ++ More].

line_or_asked(Socket) ->
    _ = gen_tcp:send(Socket, list()),
    line(Socket).

%% All of them are files of the node's own; nothing can be read from the disk.
without_descriptors_who_is_in_is_answered(Config) ->
    [Http, Lines] = call(Config, serve, [a, [{http, #{}}, {tcp, #{}}]]),
    Peer = proplists:get_value(peer, Config),
    InHttp = connect(Http),
    InLines = connect(Lines),
    until(fun() ->
        map_get(connections, peer:call(Peer, erlmcp, info, [a], ?TIMEOUT)) =:= 2
    end),
    ok = call(Config, spend, []),
    {error, emfile} = peer:call(Peer, file, read_file, ["/proc/self/status"], ?TIMEOUT),
    200 = on_http(InHttp),
    200 = on_lines(InLines),
    ok = call(Config, open_files, [close, 0]).

%% The first of TLS in the node.
a_handshake_needs_no_descriptor(Config) ->
    [Https] = call(Config, serve, [a, [{http, #{tls => erlmcp_test_http:shown()}}]]),
    Peer = proplists:get_value(peer, Config),
    Before = open_descriptors(Peer),
    Socket = connect(Https),
    until(fun() -> open_descriptors(Peer) > Before end),
    ok = call(Config, spend, []),
    {ok, Secure} = ssl:connect(Socket, [{verify, verify_none}, {active, false}], ?TIMEOUT),
    200 = on_http(Secure),
    ok = call(Config, open_files, [close, 0]).

open_descriptors(Peer) ->
    OsPid = peer:call(Peer, os, getpid, [], ?TIMEOUT),
    {ok, Descriptors} = file:list_dir(["/proc/", OsPid, "/fd"]),
    length(Descriptors).

acceptors_wait_for_descriptors(Config) ->
    Tls = fun() -> erlmcp_test_http:shown() end,
    [Lines, Https] = call(Config, serve, [a, [{tcp, #{}}, {http, #{tls => Tls()}}]]),
    {ok, First} = ssl:connect("127.0.0.1", Https, [{verify, verify_none}, {active, false}, binary]),
    200 = on_http(First),
    ok = call(Config, spend, []),
    %% They are in the system's queue; the node cannot take them out of it.
    Waiting = [connect(Lines) || _ <- [1, 2, 3]],
    [ok = gen_tcp:send(Socket, list()) || Socket <- Waiting],
    Secure = connect(Https),
    200 = on_http(First),
    [{error, timeout} = gen_tcp:recv(Socket, 0, 300) || Socket <- Waiting],
    ok = call(Config, open_files, [close, 0]),
    [200 = line(Socket) || Socket <- Waiting],
    {ok, Second} = ssl:connect(Secure, [{verify, verify_none}], ?TIMEOUT),
    200 = on_http(Second),
    [{report, #{what := descriptors_exhausted}}] = complaints(Config).

%% Looked at again and again until it is so.
until(Condition) ->
    until(Condition, 600).

until(Condition, Left) ->
    case Condition() of
        true -> ok;
        false when Left > 0 ->
            receive after 50 -> until(Condition, Left - 1) end
    end.
