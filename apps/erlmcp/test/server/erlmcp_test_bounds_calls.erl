-module(erlmcp_test_bounds_calls).
-moduledoc "Calls that are held at a bound, and refusals there, for the suites of bounds.".

-export([definitions/0, wait/1, handler/1, finish/2, refused/4, status/1, number/1]).
-export([held/2, gate/1, until/1, over/1, served_on/1, authenticate/1]).

-import(erlmcp_test_bounds_client, [send/3, call/3]).
-import(erlmcp_test_http, [running/0]).

-define(TIMEOUT, 60_000).

-doc """
Checks that a reply is a refusal with these details, as its era and transport have it. Each has the
refusal's number, its name, and the time to come back. On HTTP a stateless client gets the refusal's
status, and the same time in seconds.
""".
-spec refused(atom(), map(), erlmcp_test_bounds_client:reply(), map()) -> ok.
refused(Refusal, Details, #{message := #{~"error" := Error}} = Reply, Client) ->
    Number = number(Refusal),
    Name = atom_to_binary(Refusal),
    #{~"code" := Number, ~"data" := #{~"refusal" := Number, ~"name" := Name,
                                      ~"retryAfterMs" := Milliseconds} = Data} = Error,
    true = Milliseconds > 0,
    Details = #{Key => maps:get(atom_to_binary(Key), Data) || Key := _ <- Details},
    {Status, RetryAfter} = case Client of
        #{transport := Lines} when Lines =:= tcp; Lines =:= stdio -> {none, none};
        %% To some clients another status means that the session is gone.
        #{session := _} -> {200, none};
        #{} -> {status(Refusal), (Milliseconds + 999) div 1000}
    end,
    #{status := Status, retry_after := RetryAfter} = Reply,
    ok.

-doc "Returns the number of a refusal.".
-spec number(atom()) -> pos_integer().
number(Refusal) ->
    #{number := Number} = row(Refusal),
    Number.

row(Refusal) ->
    [Row] = [Row || #{name := Name} = Row <- erlmcp_refusal:table(), Name =:= Refusal],
    Row.

-doc "Returns the HTTP status of a refusal.".
-spec status(atom()) -> 100..599.
status(Refusal) ->
    #{status := Status} = row(Refusal),
    Status.

-doc "Calls the tool that waits. Returns the exchange, and what `handler/1` returns.".
-spec wait(erlmcp_test_bounds_client:client()) -> {erlmcp_test_bounds_client:exchange(), term()}.
wait(Client) ->
    Exchange = send(Client, ~"tools/call", #{name => ~"wait"}),
    {Exchange, handler(Client)}.

-doc "Waits until a call of the tool that waits runs, and returns its handler for `finish/2`.".
-spec handler(erlmcp_test_bounds_client:client()) -> term().
handler(#{server := {stdio, Node}}) ->
    {erlmcp_test_bounds_stdio:running(Node), Node};
handler(_) ->
    {Handler, _} = running(),
    Handler.

-doc "Lets the handler return this term.".
-spec finish(term(), term()) -> term().
finish({Handler, Node}, Return) -> erlmcp_test_bounds_stdio:finish(Handler, Return, Node);
finish(Handler, Return) -> erlmcp_test_http:finish(Handler, Return).

-doc "Returns how many permits of this kind are held.".
-spec held(erlmcp_test_bounds_client:server(), term()) -> non_neg_integer().
held({stdio, Node}, Key) -> erlmcp_test_bounds_stdio:held(Key, Node);
held(Server, Key) -> erlmcp_gate:held(gate(Server), Key).

-doc "Returns the gate of a server.".
-spec gate(pid()) -> erlmcp_gate:gate().
gate(Server) ->
    {ok, _, #{gate := Gate}} = erlmcp_registry:whereis(Server),
    Gate.

-doc "Returns a tool that answers, and one that waits and tells the calling process of each call.".
-spec definitions() -> map().
definitions() ->
    Test = self(),
    #{tools => [#{name => ~"echo", handler => fun(_, _) -> ~"echo" end},
                #{name => ~"wait", handler => fun(Arguments, _) ->
                    Test ! {running, self(), Arguments},
                    receive {finish, Return} -> Return end
                end}]}.

-doc "Waits until a condition holds, for 60 seconds at most.".
-spec until(fun(() -> boolean())) -> ok.
until(Holds) -> until(Holds, ?TIMEOUT).

until(Holds, Left) ->
    case Holds() of
        true -> ok;
        false when Left > 0 -> receive after 10 -> until(Holds, Left - 10) end
    end.

-doc "Waits until the server has closed a client's connection.".
-spec over(erlmcp_test_bounds_client:client()) -> ok.
over(#{transport := http2, connection := Connection}) ->
    Monitor = monitor(process, Connection),
    receive
        {'DOWN', Monitor, process, Connection, _} -> ok
    after ?TIMEOUT ->
        error(still_open)
    end;
over(#{connection := Socket}) ->
    ok = erlmcp_test_http:closed(Socket),
    gen_tcp:close(Socket).

-doc "Checks that a client is served.".
-spec served_on(erlmcp_test_bounds_client:client()) -> ok.
served_on(Connection) ->
    #{message := #{~"result" := #{}}} = call(Connection, ~"tools/list", #{}),
    ok.

-doc "Returns the principal that a request names.".
-spec authenticate(map()) -> {ok, binary()}.
authenticate(#{headers := #{~"authorization" := Name}}) -> {ok, Name}.
