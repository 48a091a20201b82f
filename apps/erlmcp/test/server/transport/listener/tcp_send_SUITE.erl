-module(tcp_send_SUITE).
-moduledoc """
What is sent on a socket arrives, and who sends hears of it what `gen_tcp:send/2` says; but where
the way of this release is known, it keeps its turn.
""".

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([what_is_sent_arrives/1, who_sends_keeps_its_turn/1, who_reads_late_gets_all/1,
         who_does_not_read_in_time_is_given_up/1, a_closed_socket_takes_nothing/1,
         a_socket_that_is_closed_meanwhile_says_so/1]).

%% More than two sockets take without being read.
-define(PIECE, 1_048_576).
-define(PIECES, 128).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [what_is_sent_arrives, who_sends_keeps_its_turn, who_reads_late_gets_all,
     who_does_not_read_in_time_is_given_up, a_closed_socket_takes_nothing,
     a_socket_that_is_closed_meanwhile_says_so].

init_per_testcase(Case, Config) ->
    Timeout = case Case of
        who_does_not_read_in_time_is_given_up -> [{send_timeout, 100}];
        _ -> []
    end,
    {ok, Listening} = gen_tcp:listen(0, [binary, {active, false}, {nodelay, true},
                                         {ip, {127, 0, 0, 1}} | Timeout]),
    {ok, Port} = inet:port(Listening),
    [{listening, Listening}, {port, Port} | Config].

end_per_testcase(_, Config) ->
    gen_tcp:close(proplists:get_value(listening, Config)).

what_is_sent_arrives(Config) ->
    {Server, Client} = sockets(Config),
    ok = erlmcp_tcp_send:send(Server, [~"one ", [$t, "wo"], <<>>]),
    ok = erlmcp_tcp_send:send(Server, ~" three"),
    {ok, ~"one two three"} = gen_tcp:recv(Client, 13),
    no_message().

who_sends_keeps_its_turn(Config) ->
    Known = erlmcp_tcp_send:keeps_its_turn(),
    %% It is to be found out of each new release.
    true = Known orelse erlang:system_info(otp_release) =/= "29",
    case Known of
        true -> keeps_its_turn(sockets(Config));
        false -> {skip, "needs OTP 29"}
    end.

keeps_its_turn({Server, Client}) ->
    Self = self(),
    Tracer = spawn_link(fun() -> left([]) end),
    %% With all the reductions of a new turn.
    true = erlang:yield(),
    1 = erlang:trace(Self, true, [running, {tracer, Tracer}]),
    ok = erlmcp_tcp_send:send(Server, ~"a"),
    1 = erlang:trace(Self, false, [running]),
    Delivered = erlang:trace_delivered(Self),
    receive {trace_delivered, Self, Delivered} -> ok end,
    Tracer ! {said, Self},
    receive {left, Left} -> [] = Left end,
    {ok, ~"a"} = gen_tcp:recv(Client, 1).

left(Left) ->
    receive
        {trace, _, out, Where} -> left([Where | Left]);
        {trace, _, in, _} -> left(Left);
        {said, Pid} -> Pid ! {left, Left}
    end.

who_reads_late_gets_all(Config) ->
    {Server, Client} = sockets(Config),
    {Sender, Monitor} = sender(Server, ?PIECES),
    ok = waits(Sender),
    ok = read(Client, ?PIECES * ?PIECE),
    receive {'DOWN', Monitor, process, Sender, Said} -> [ok] = lists:usort(Said) end.

who_does_not_read_in_time_is_given_up(Config) ->
    {Server, _Client} = sockets(Config),
    {Sender, Monitor} = sender(Server, ?PIECES),
    receive {'DOWN', Monitor, process, Sender, Said} -> {error, timeout} = hd(Said) end.

a_closed_socket_takes_nothing(Config) ->
    {Server, _Client} = sockets(Config),
    ok = gen_tcp:close(Server),
    {error, closed} = erlmcp_tcp_send:send(Server, ~"a"),
    no_message().

a_socket_that_is_closed_meanwhile_says_so(Config) ->
    {Server, _Client} = sockets(Config),
    {Sender, Monitor} = sender(Server, ?PIECES),
    ok = waits(Sender),
    true = erlang:port_close(Server),
    receive {'DOWN', Monitor, process, Sender, Said} -> {error, closed} = hd(Said) end.

sockets(Config) ->
    {ok, Client} = gen_tcp:connect({127, 0, 0, 1}, proplists:get_value(port, Config),
                                   [binary, {active, false}]),
    {ok, Server} = gen_tcp:accept(proplists:get_value(listening, Config)),
    {Server, Client}.

%% Ends with what it was told of each piece, the last one first.
sender(Socket, Pieces) ->
    {Pid, _} = Sender = spawn_monitor(fun() ->
        receive begin_to_send -> exit(sent(Socket, Pieces, [])) end
    end),
    ok = gen_tcp:controlling_process(Socket, Pid),
    Pid ! begin_to_send,
    Sender.

sent(_, 0, Said) ->
    Said;
sent(Socket, Left, Said) ->
    case erlmcp_tcp_send:send(Socket, binary:copy(~"x", ?PIECE)) of
        ok -> sent(Socket, Left - 1, [ok | Said]);
        {error, _} = Error -> [Error | Said]
    end.

%% Until it waits for its client to read.
waits(Sender) ->
    case process_info(Sender, [status, current_stacktrace]) of
        [{status, waiting}, {current_stacktrace, [{Module, _, _, _} | _]}] when
            Module =:= erlmcp_tcp_send; Module =:= prim_inet
        ->
            ok;
        _ ->
            receive after 1 -> waits(Sender) end
    end.

read(_, 0) ->
    ok;
read(Client, Left) ->
    {ok, Bytes} = gen_tcp:recv(Client, 0),
    read(Client, Left - byte_size(Bytes)).

no_message() ->
    receive Message -> error({unexpected, Message}) after 0 -> ok end.
