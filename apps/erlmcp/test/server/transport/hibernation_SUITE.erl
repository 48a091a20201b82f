-module(hibernation_SUITE).
-moduledoc "The time until a quiet connection hibernates, and its memory then.".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1]).
-export([who_comes_back_soon_is_waited_for/1, who_is_long_away_is_not/1, it_is_never_long/1,
         connections_of_http_learn_it/1, connections_of_lines_learn_it/1,
         connections_of_lines_keep_nothing_of_their_requests/1]).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [who_comes_back_soon_is_waited_for, who_is_long_away_is_not, it_is_never_long,
     {group, connections}].

groups() ->
    [{connections, [parallel], [connections_of_http_learn_it, connections_of_lines_learn_it,
                                connections_of_lines_keep_nothing_of_their_requests]}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

who_comes_back_soon_is_waited_for(_) ->
    First = erlmcp_hibernate_delay:first_ms(),
    [true = erlmcp_hibernate_delay:next_ms(First, Pause - First) > Pause
     || Pause <- [1_001, 2_000, 6_000]],
    ok.

who_is_long_away_is_not(_) ->
    First = erlmcp_hibernate_delay:first_ms(),
    Learnt = erlmcp_hibernate_delay:next_ms(First, 2_000),
    [First = erlmcp_hibernate_delay:next_ms(Waited, 60_000) || Waited <- [First, Learnt]],
    ok.

it_is_never_long(_) ->
    ok = erlmcp_test_property:holds(?FORALL(Pauses, list(non_neg_integer()),
        begin
            Last =
                lists:foldl(fun(Slept, Waited) -> erlmcp_hibernate_delay:next_ms(Waited, Slept) end,
                            erlmcp_hibernate_delay:first_ms(), Pauses),
            Last >= erlmcp_hibernate_delay:first_ms() andalso Last =< 9_000
        end), 100).

connections_of_http_learn_it(_) ->
    Server = serve(),
    Socket = erlmcp_test_http:connect(Server),
    {Headers, Body} = erlmcp_test_http:message(~"tools/call", #{name => ~"who"}, #{}),
    learns(fun() ->
        ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
        #{messages := [Answer]} = erlmcp_test_http:response(Socket),
        Answer
    end),
    stop(Server, Socket).

connections_of_lines_learn_it(_) ->
    #{pid := Pid} = Server = serve(),
    {_, Socket} = Client = erlmcp_test_two_eras:open(~"2026-07-28", Pid),
    learns(fun() -> erlmcp_test_two_eras:call(Client, ~"who", #{}) end),
    stop(Server, Socket).

%% Its caches come back with the next request.
connections_of_lines_keep_nothing_of_their_requests(_) ->
    #{pid := Pid} = Server = serve(),
    {_, Socket} = Client = erlmcp_test_two_eras:open(~"2026-07-28", Pid),
    Ask = fun() -> erlmcp_test_two_eras:call(Client, ~"who", #{}) end,
    Connection = answers(Ask),
    [begin
         Keys = kept(Client),
         hibernated(Connection),
         Gone = Keys -- keys(process_info(Connection, dictionary)),
         [erlmcp_connection_cache] = Gone,
         {binary, []} = process_info(Connection, binary)
     end || _ <- [1, 2]],
    Connection = answers(Ask),
    stop(Server, Socket).

%% The state of a connection while it serves a request.
kept(Client) ->
    Answer = erlmcp_test_two_eras:call(Client, ~"kept", #{}),
    binary_to_term(base64:decode(erlmcp_test_two_eras:text(Answer))).

keys({dictionary, Dictionary}) ->
    [Key || {Key, _} <- Dictionary, is_atom(Key)].

%% A quick call is answered by the process of its connection.
serve() ->
    Kept = fun(_, _) -> base64:encode(term_to_binary(keys({dictionary, get()}))) end,
    Who = fun(_, _) -> list_to_binary(pid_to_list(self())) end,
    erlmcp_test_http:start(#{tools => [#{name => ~"who", quick => true, handler => Who},
                                       #{name => ~"kept", quick => true, handler => Kept}],
                             listen => [{http, #{}}, {tcp, #{}}]}).

stop(Server, Socket) ->
    ok = gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

learns(Ask) ->
    Connection = answers(Ask),
    hibernated(Connection),
    learns(Ask, Connection, 10).

%% If a client comes back just after the connection hibernated, the connection waits half as long
%% again from then on. On a busy machine the client may come too late for that, and tries again.
learns(Ask, Connection, Tries) ->
    Begin = erlang:monotonic_time(millisecond),
    Connection = answers(Ask),
    hibernated(Connection),
    Waited = erlang:monotonic_time(millisecond) - Begin,
    case Waited >= erlmcp_hibernate_delay:first_ms() * 3 div 2 of
        true -> ok;
        false when Tries > 1 -> learns(Ask, Connection, Tries - 1)
    end.

answers(Ask) ->
    list_to_pid(binary_to_list(erlmcp_test_two_eras:text(Ask()))).

hibernated(Connection) ->
    erlmcp_test_two_eras:await(fun() ->
        {current_function, {erlang, hibernate, 3}} =:= process_info(Connection, current_function)
    end).
