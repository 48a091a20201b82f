-module(erlmcp_test_cluster_node).
-moduledoc """
What suites run on the nodes of a cluster: servers, and calls that wait until a suite ends them.
""".

-compile(nowarn_missing_spec_documented).

-export([serve/2, answered/1, initialize/2, get_stream/3, await_waiting/2, is_waiting/2,
         finish/3]).
-export([hold_sessions/2, await_held/2, release/2]).
-export([fill/2]).
%% On the nodes.
-export([start/1, wait/1, finish_here/2, supervisor/1, fill_here/1]).

%% Starts a server on a node, and returns it with its listeners.
serve(Member, Options) ->
    erlmcp_test_cluster:call(Member, ?MODULE, start, [Options]).

%% A server ends with the process that has started it.
start(Options) ->
    Caller = self(),
    {Keeper, Monitor} = spawn_monitor(fun() ->
        {ok, Server} = erlmcp:start_server(Options),
        Caller ! {self(), Server, erlmcp:listeners(Server)},
        receive never -> ok end
    end),
    receive
        {Keeper, Server, Listeners} ->
            true = demonitor(Monitor, [flush]),
            {Server, Listeners};
        {'DOWN', Monitor, process, Keeper, Reason} ->
            error(Reason)
    end.

%% A busy machine may let a lease end for a moment, and requests are refused with 1080 until it is
%% back. Asks until a response, or a message, is none of these.
answered(Ask) ->
    {Response, _} = erlmcp_test_cluster:await(fun() ->
        case Ask() of
            #{messages := [#{~"error" := #{~"data" := #{~"refusal" := 1080}}}]} -> false;
            #{~"error" := #{~"code" := 1080}} -> false;
            Response -> Response
        end
    end, 30_000),
    Response.

%% Opens a session, as `erlmcp_test_http:initialize/2`.
initialize(Server, Revision) ->
    #{status := 200, headers := #{~"mcp-session-id" := Id}, messages := [#{~"result" := Result}]} =
        answered(fun() -> erlmcp_test_http:initialize(Server, Revision, #{}) end),
    #{~"protocolVersion" := Revision} = Result,
    Session = {Id, Revision},
    #{status := 202} =
        answered(fun() ->
            erlmcp_test_http:call(Server, ~"notifications/initialized", #{},
                                  #{session => Session, id => none})
        end),
    Session.

%% Opens a stream, as `erlmcp_test_http:get_stream/3`. Opens it again while it is refused with 503.
get_stream(Server, Session, Headers) ->
    {Opened, _} = erlmcp_test_cluster:await(fun() ->
        case erlmcp_test_http:get_stream(Server, Session, Headers) of
            {Socket, {503, _}} ->
                ok = erlmcp_test_http:close(Socket),
                false;
            Other ->
                Other
        end
    end, 30_000),
    Opened.

%% For handlers: waits under a name for its return.
wait(Name) ->
    true = register(registered(Name), self()),
    receive {finish, Return} -> Return end.

registered(Name) ->
    binary_to_atom(<<"waiting as ", Name/binary>>).

is_waiting(Member, Name) ->
    is_pid(erlmcp_test_cluster:call(Member, erlang, whereis, [registered(Name)])).

%% Returns the process of the handler that waits under a name.
await_waiting(Member, Name) ->
    {_, _} = erlmcp_test_cluster:await(fun() -> is_waiting(Member, Name) end, 30_000),
    erlmcp_test_cluster:call(Member, erlang, whereis, [registered(Name)]).

finish(Member, Name, Return) ->
    erlmcp_test_cluster:call(Member, ?MODULE, finish_here, [Name, Return]).

finish_here(Name, Return) ->
    _ = registered(Name) ! {finish, Return},
    ok.

%% Lets requests of a server wait that need the process of a session, until they are released.
hold_sessions(Member, Server) ->
    Supervisor = erlmcp_test_cluster:call(Member, ?MODULE, supervisor, [Server]),
    ok = erlmcp_test_cluster:call(Member, sys, suspend, [Supervisor]),
    Supervisor.

%% Returns when a request waits.
await_held(Member, Supervisor) ->
    erlmcp_test_cluster:call(Member, erlmcp_test_servers, await_messages, [1, Supervisor]).

release(Member, Supervisor) ->
    erlmcp_test_cluster:call(Member, sys, resume, [Supervisor]).

supervisor(Server) ->
    {ok, _, Instance} = erlmcp_registry:whereis(Server),
    erlmcp_instance:supervisor(sessions, Instance).

%% Returns when the connection of a node to another one, which stands still, has no more room. It
%% may have been closed for that meanwhile.
fill(Member, #{node := Node}) ->
    erlmcp_test_cluster:call(Member, ?MODULE, fill_here, [Node]).

fill_here(Node) ->
    Nobody = {?MODULE, Node},
    %% This process waits for room until the connection is closed.
    Filler = spawn(fun() -> Nobody ! binary:copy(<<0>>, 67_108_864) end),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        not is_process_alive(Filler)
            orelse erlang:send(Nobody, message, [nosuspend, noconnect]) =:= nosuspend
    end, 30_000),
    ok.
