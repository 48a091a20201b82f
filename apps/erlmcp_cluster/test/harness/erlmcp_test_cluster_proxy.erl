-module(erlmcp_test_cluster_proxy).
-moduledoc """
HAProxy in front of the nodes, at 127.0.0.1 of the caller's machine, as `ops/cluster/haproxy.cfg`
configures it: each request goes to the next node that is ready. In addition, an answer says which
node gave it (`served-by`).
""".

-compile(nowarn_missing_spec_documented).

-export([start/4, up/1]).

-export_type([proxy/0]).

-opaque proxy() :: file:filename().

-define(START_MS, 10_000).

%% `Servers` are the names and addresses of the nodes, which listen at the same port.
start(Program, Port, Servers, Folder) ->
    [Configuration, Log, Socket] =
        [filename:join(Folder, lists:concat(["haproxy-", Port, Extension]))
         || Extension <- [".cfg", ".log", ".socket"]],
    ok = file:write_file(Configuration, configuration(Port, Servers, Socket)),
    _ = open_port({spawn_executable, "/bin/sh"},
                  [{args, ["-c", "exec \"$0\" -db -f \"$1\" >\"$2\" 2>&1", Program, Configuration,
                           Log]}]),
    {_, _} = erlmcp_test_cluster:await(fun() -> is_listening(Socket) end, ?START_MS),
    Socket.

is_listening(Path) ->
    case gen_tcp:connect({local, Path}, 0, [local]) of
        {ok, Socket} -> gen_tcp:close(Socket) =:= ok;
        {error, _} -> false
    end.

%% The nodes to which it sends requests.
up(Path) ->
    {ok, Socket} = gen_tcp:connect({local, Path}, 0, [local, binary, {active, false}]),
    ok = gen_tcp:send(Socket, "show stat\n"),
    [Head | Lines] = [binary:split(Line, ~",", [global])
                      || Line <- binary:split(read(Socket, ~""), ~"\n", [global, trim_all])],
    [Name || Line <- Lines,
             #{~"# pxname" := ~"nodes", ~"svname" := Name, ~"status" := ~"UP"}
                 <- [maps:from_list(lists:zip(Head, Line))],
             Name =/= ~"BACKEND"].

read(Socket, Read) ->
    case gen_tcp:recv(Socket, 0, ?START_MS) of
        {ok, More} -> read(Socket, <<Read/binary, More/binary>>);
        {error, closed} -> Read
    end.

configuration(Port, Servers, Socket) ->
    {ok, Shipped} = file:read_file("ops/cluster/haproxy.cfg"),
    Line = fun(Format, Arguments) -> iolist_to_binary(io_lib:format(Format, Arguments)) end,
    Nodes = [Line("    server ~ts ~ts:~b\n", [Name, Address, Port]) || {Name, Address} <- Servers],
    lists:foldl(
        fun({Part, Replacement}, Text) ->
            re:replace(Text, Part, Replacement, [global, multiline, {return, binary}])
        end, Shipped,
        [%% The machine may have no descriptors for more.
         {"maxconn 20000", ~"maxconn 2000"},
         {"^global$", Line("&\n    log stdout format raw local0\n    stats socket ~ts", [Socket])},
         {"^defaults$", ~"&\n    log global\n    option httplog\n    option dontlog-normal"},
         {"^    bind :80$", Line("    bind 127.0.0.1:~b", [Port])},
         {"^backend nodes$", ~"&\n    http-after-response set-header served-by %[srv_name]"},
         {"(^    server .*\n)+", iolist_to_binary(Nodes)}]).
