-module(erlmcp_test_bounds_calls).
-moduledoc "Calls that are held at a bound and what is refused there, in the suites of bounds.".

-export([definitions/0, wait/1, handler/1, finish/2, refused/4, status/1, number/1]).
-export([held/2, gate/1, until/1, over/1, served_on/1, authenticate/1]).

-import(erlmcp_test_bounds_client, [send/3, call/3]).
-import(erlmcp_test_http, [running/0]).

-define(TIMEOUT, 60_000).

-doc """
The refusal as its era and its transport have it: the number, its name and its bound everywhere,
when to come back where that helps; of HTTP the status, and the same in seconds.
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

-doc "Its number.".
-spec number(atom()) -> pos_integer().
number(Refusal) ->
    #{number := Number} = row(Refusal),
    Number.

row(Refusal) ->
    [Row] = [Row || #{name := Name} = Row <- erlmcp_refusal:table(), Name =:= Refusal],
    Row.

-doc "The HTTP status of a refusal.".
-spec status(atom()) -> 100..599.
status(Refusal) ->
    #{status := Status} = row(Refusal),
    Status.

-doc "A call that waits, and who runs it.".
-spec wait(erlmcp_test_bounds_client:client()) -> {erlmcp_test_bounds_client:exchange(), term()}.
wait(Client) ->
    Exchange = send(Client, ~"tools/call", #{name => ~"wait"}),
    {Exchange, handler(Client)}.

-doc "Who runs the latest call that waits.".
-spec handler(erlmcp_test_bounds_client:client()) -> term().
handler(#{server := {stdio, Node}}) ->
    {erlmcp_test_bounds_stdio:running(Node), Node};
handler(_) ->
    {Handler, _} = running(),
    Handler.

-doc "Lets it return this.".
-spec finish(term(), term()) -> term().
finish({Handler, Node}, Return) -> erlmcp_test_bounds_stdio:finish(Handler, Return, Node);
finish(Handler, Return) -> erlmcp_test_http:finish(Handler, Return).

-doc "How many places are held for this.".
-spec held(erlmcp_test_bounds_client:server(), term()) -> non_neg_integer().
held({stdio, Node}, Key) -> erlmcp_test_bounds_stdio:held(Key, Node);
held(Server, Key) -> erlmcp_gate:held(gate(Server), Key).

-doc "A server's gate.".
-spec gate(pid()) -> erlmcp_gate:gate().
gate(Server) ->
    {ok, _, #{gate := Gate}} = erlmcp_registry:whereis(Server),
    Gate.

-doc "A tool that answers, and one that waits and tells the calling process of it.".
-spec definitions() -> map().
definitions() ->
    Test = self(),
    #{tools => [#{name => ~"echo", handler => fun(_, _) -> ~"echo" end},
                #{name => ~"wait", handler => fun(Arguments, _) ->
                    Test ! {running, self(), Arguments},
                    receive {finish, Return} -> Return end
                end}]}.

-doc "Awaits that it comes true.".
-spec until(fun(() -> boolean())) -> ok.
until(Holds) -> until(Holds, ?TIMEOUT).

until(Holds, Left) ->
    case Holds() of
        true -> ok;
        false when Left > 0 -> receive after 10 -> until(Holds, Left - 10) end
    end.

-doc "Awaits that the server has closed it.".
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

-doc "A connection that is served.".
-spec served_on(erlmcp_test_bounds_client:client()) -> ok.
served_on(Connection) ->
    #{message := #{~"result" := #{}}} = call(Connection, ~"tools/list", #{}),
    ok.

-doc "The principal that a request names.".
-spec authenticate(map()) -> {ok, binary()}.
authenticate(#{headers := #{~"authorization" := Name}}) -> {ok, Name}.
