-module(erlmcp_test_sse_server).
-moduledoc """
A server of HTTP+SSE for its suites, its clients, and functions that look at its sessions.
""".

-export([start/1, start/2]).
-export([client/1, client/2, session/1, session/2, open_post/1, json_headers/0]).
-export([call/2, call/3, text/1, code/1]).
-export([sessions/1, count/1, settled/2, stream/1, untaken/4]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_line, [request/3]).
-import(erlmcp_test_sse, [open/2, initialize/2]).

-define(TIMEOUT, 30_000).

-doc "Starts a server of HTTP+SSE with these limits.".
-spec start(map()) -> erlmcp_test_http:server().
start(Limits) ->
    start(Limits, #{sse => #{}}).

-doc "Starts a server with these limits, and with these options of its listener.".
-spec start(map(), map()) -> erlmcp_test_http:server().
start(Limits, Listener) ->
    #{tools := Tools} = Definitions = erlmcp_test_http:definitions(self()),
    Test = self(),
    Flood = #{name => ~"flood", handler => fun(#{~"count" := Count} = Arguments, Context) ->
        Test ! {running, self(), Arguments},
        Text = binary:copy(~"x", 10_000),
        [ok = erlmcp:log(Context, error, Text) || _ <- lists:seq(1, Count)],
        receive never -> ok end
    end},
    erlmcp_test_http:start(Definitions#{tools := [Flood | Tools], limits => Limits,
                                        listen => [{http, Listener}]}).

-doc "Opens a client of the suite's server, over the protocol of the case.".
-spec client([tuple()]) -> map().
client(Config) ->
    client(server(Config), Config).

-doc "Opens a client of this server, over the protocol of the case.".
-spec client(erlmcp_test_http:server(), [tuple()]) -> map().
client(Server, Config) ->
    open(Server, #{protocol => proplists:get_value(protocol, Config, http)}).

-doc "Opens a client of the suite's server, and its session.".
-spec session([tuple()]) -> map().
session(Config) ->
    session(server(Config), Config).

-doc "Opens a client of this server, and its session.".
-spec session(erlmcp_test_http:server(), [tuple()]) -> map().
session(Server, Config) ->
    Client = client(Server, Config),
    _ = initialize(Client, ~"2024-11-05"),
    Client.

-doc "Opens another connection to post on, since on HTTP/1.1 one request waits for the other.".
-spec open_post(erlmcp_test_http:server()) -> map().
open_post(#{port := Port}) ->
    {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http], retry => 0}),
    {ok, http} = gun:await_up(Connection, ?TIMEOUT),
    #{posting => Connection}.

-doc "Returns the headers of a message that is posted.".
-spec json_headers() -> [{binary(), binary()}].
json_headers() ->
    [{~"content-type", ~"application/json"}].

-doc "Returns a request that calls a tool.".
-spec call(Id :: term(), Tool :: binary()) -> map().
call(Id, Tool) ->
    call(Id, Tool, #{}).

-doc "Returns a request that calls a tool with arguments.".
-spec call(Id :: term(), Tool :: binary(), map()) -> map().
call(Id, Tool, Arguments) ->
    request(Id, ~"tools/call", #{name => Tool, arguments => Arguments}).

-doc "Returns the text of a result.".
-spec text(map()) -> binary().
text(#{~"result" := #{~"content" := [#{~"text" := Text}]}}) -> Text.

-doc "Returns the code of an error.".
-spec code(map()) -> integer().
code(#{~"error" := #{~"code" := Code}}) -> Code.

instance(#{pid := Pid}) ->
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    Instance.

-doc "Returns the processes of the open sessions.".
-spec sessions(erlmcp_test_http:server()) -> [pid()].
sessions(Server) ->
    Supervisor = erlmcp_instance:supervisor(sse_sessions, instance(Server)),
    [Pid || {_, Pid, _, _} <- supervisor:which_children(Supervisor)].

-doc "Returns how many sessions are open.".
-spec count(erlmcp_test_http:server()) -> non_neg_integer().
count(Server) ->
    erlmcp_session_table:count(instance(Server)).

-doc "Waits until `Count` sessions are open, and have as many processes.".
-spec settled(erlmcp_test_http:server(), Count :: non_neg_integer()) -> ok.
settled(Server, Count) ->
    settled(Server, Count, 3000).

%% Nothing tells when a server has seen that its client is gone, so it is looked up again.
settled(Server, Count, Tries) when Tries > 0 ->
    %% The row of a session goes before its process.
    case {count(Server), length(sessions(Server))} of
        {Count, Count} -> ok;
        _ -> receive after 10 -> settled(Server, Count, Tries - 1) end
    end.

-doc "Returns the process that writes the stream of a session.".
-spec stream(pid()) -> pid().
stream(Session) ->
    {Pid, _} = element(4, sys:get_state(Session)),
    Pid.

-doc """
Waits until this many messages have been posted to an endpoint, and are not taken. Looks `Tries`
times at most, ten milliseconds apart.
""".
-spec untaken(non_neg_integer(), Endpoint :: binary(), erlmcp_test_http:server(),
              Tries :: integer()) -> ok.
untaken(Count, <<"/messages?sessionId=", Id/binary>> = Endpoint, Server, Tries) when Tries > 0 ->
    %% More than one below it, and no more than it.
    AtMost = fun(Max) ->
        erlmcp_session_table:take_calls({sse, Id}, 0, Max, instance(Server)) =:= ok
    end,
    case AtMost(Count) andalso not AtMost(Count - 1) of
        true -> ok;
        false -> receive after 10 -> untaken(Count, Endpoint, Server, Tries - 1) end
    end.
