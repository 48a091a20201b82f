-module(unfinished_messages_SUITE).
-moduledoc """
Messages that begin and never end. Their bytes are counted on every transport, and the node stays
within its bound. The largest and slowest are refused, and good clients are served meanwhile. The
server is in a node of its own. The fault `chaos_unfinished_bodies` measures that node's memory.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([bodies_with_a_length/1, bodies_in_chunks/1, bodies_over_tls/1, bodies_of_http2/1,
         tiny_frames_of_http2/1, messages_of_sse/1, lines_of_tcp/1, heads_of_http1/1]).
-export([behind_a_plain_request/1, behind_another_request/1, behind_the_next_request/1,
         what_lies_behind_is_answered/1, what_is_answered_is_not_kept/1, line_of_a_parent/1,
         what_waits_on_a_connection/1, those_who_are_killed_give_back/1,
         what_is_announced_costs_nothing/1,
         a_share_of_the_memory_is_the_default/1,
         wrong_bounds_do_not_start/1, room_is_made_by_size_and_age/1,
         looks_take_a_part_of_the_time/1]).
%% In the server's node.
-export([serve/2, kill_holders/0]).

-import(erlmcp_test_http, [message/3]).
-import(erlmcp_test_servers, [await/1]).

-include_lib("proper/include/proper.hrl").

-define(MIB, 1_048_576).
-define(BOUND, (8 * ?MIB)).
-define(ATTACKERS, 40).
-define(TIMEOUT, 60_000).
%% The most bytes that are counted: those already read, or allowed to be sent, may exceed the bound.
-define(COUNTED, (2 * ?BOUND)).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    Started = erlmcp_test_applications:start([erlmcp, ssl, gun], Config),
    {ok, Peer, _} = peer:start_link(#{
        connection => standard_io, wait_boot => ?TIMEOUT,
        args => ["-erlmcp", "unfinished_bytes", integer_to_list(?BOUND), "-pa" | code:get_path()]}),
    Listen = [{http, #{sse => #{}}}, {tcp, #{}}, {http, #{tls => erlmcp_test_http:shown()}}],
    Listeners = peer:call(Peer, ?MODULE, serve, [Listen, #{}], ?TIMEOUT),
    true = unlink(Peer),
    [{peer, Peer}, {listeners, Listeners} | Started].

end_per_suite(Config) ->
    ok = peer:stop(peer(Config)),
    erlmcp_test_applications:stop(Config).

serve(Listen, Limits) ->
    {ok, _} = application:ensure_all_started([erlmcp, ssl]),
    Self = self(),
    _ = spawn(fun() ->
        Server = erlmcp_test_http:start((erlmcp_test_http:definitions(self()))#{
            listen => Listen, limits => Limits}),
        Self ! {self(), erlmcp:listeners(map_get(pid, Server))},
        receive stop -> ok end
    end),
    receive {_, Listeners} -> Listeners end.

peer(Config) -> proplists:get_value(peer, Config).

call(Config, Module, Function, Arguments) ->
    peer:call(peer(Config), Module, Function, Arguments, ?TIMEOUT).

sum(Config) -> call(Config, erlmcp_unfinished_messages, sum, []).

memory(Config) -> call(Config, erlang, memory, [total]).

listener(Number, Config) -> lists:nth(Number, proplists:get_value(listeners, Config)).

%% The attacks.

bodies_with_a_length(Config) ->
    {Head, Text} = endless(),
    attack(fun() ->
        plain(listener(1, Config), [Head(~"content-length: 1048577")], Text)
    end, Config).

bodies_in_chunks(Config) ->
    {Head, Text} = endless(),
    Size = integer_to_binary(byte_size(Text) + 1, 16),
    attack(fun() ->
        plain(listener(1, Config), [Head(~"transfer-encoding: chunked"), Size, ~"\r\n"], Text)
    end, Config).

bodies_over_tls(Config) ->
    {Head, Text} = endless(),
    attack(fun() ->
        plain(listener(3, Config), [Head(~"content-length: 1048577")], Text)
    end, Config).

messages_of_sse(Config) ->
    #{endpoint := Endpoint} = Client = erlmcp_test_sse:open(listener(1, Config)),
    Head = [~"POST ", Endpoint, ~" HTTP/1.1\r\nhost: localhost\r\n",
            ~"content-type: application/json\r\ncontent-length: 1048577\r\n\r\n"],
    {_, Text} = endless(),
    ok = attack(fun() -> plain(listener(1, Config), Head, Text) end, Config),
    erlmcp_test_sse:close(Client).

lines_of_tcp(Config) ->
    {_, Text} = endless(),
    #{port := Port} = listener(2, Config),
    attack(fun() -> plain(#{port => Port, url => ~""}, ~"", Text) end, Config).

%% Whole messages, which wait for a place among the calls of their connection. Each is refused.
what_waits_on_a_connection(Config) ->
    ok = none_left(Config),
    [#{port := Port}] = call(Config, ?MODULE, serve, [[{tcp, #{}}],
                                                      #{calls_per_connection => 1}]),
    Socket = erlmcp_test_http:connect(#{port => Port, url => ~""}),
    Call = fun(Id, Tool, Arguments) ->
        Params = #{~"name" => Tool, ~"arguments" => Arguments},
        [json:encode(erlmcp_test_line:stateless(Id, ~"tools/call", Params)), $\n]
    end,
    Text = binary:copy(~"x", 65_536),
    _ = spawn_link(fun() ->
        _ = [gen_tcp:send(Socket, Call(Id, ~"echo", #{~"text" => Text}))
             || Id <- lists:seq(1, 2 * ?BOUND div byte_size(Text))]
    end),
    ok = gen_tcp:send(Socket, Call(0, ~"wait", #{})),
    Refused = refused_ids(Socket, <<>>),
    Refused = lists:seq(hd(Refused), lists:last(Refused)),
    true = length(Refused) >= ?BOUND div byte_size(Text) - 1,
    none_left(Config).

refused_ids(Socket, Bytes) ->
    case gen_tcp:recv(Socket, 0, ?TIMEOUT) of
        {ok, More} ->
            refused_ids(Socket, <<Bytes/binary, More/binary>>);
        {error, closed} ->
            [Id || Line <- binary:split(Bytes, ~"\n", [global, trim]),
                   #{~"id" := Id, ~"error" := #{~"code" := 1089}} <- [json:decode(Line)]]
    end.

%% Ninety-nine fields of four thousand bytes, and no end: within the bounds of a head.
heads_of_http1(Config) ->
    Fields = [[~"x-", integer_to_binary(N), ~": ", binary:copy(~"x", 4000), ~"\r\n"]
              || N <- lists:seq(1, 99)],
    Head = iolist_to_binary([~"POST /mcp HTTP/1.1\r\nhost: localhost\r\n", Fields]),
    attack(fun() -> plain(listener(1, Config), ~"", Head) end,
           ?ATTACKERS - ?BOUND div byte_size(Head), Config).

%% The others on its connection are not at fault, nor is the connection. A stream that waits keeps
%% the window of its connection, so that fewer of these get over the bound.
bodies_of_http2(Config) ->
    {_, Text} = endless(),
    attack(fun(Told) -> streams(listener(1, Config), Text, Told) end, ?ATTACKERS div 4, Config).

%% Kept of a frame are its octets: not what was read with it, nor a term for each.
tiny_frames_of_http2(Config) ->
    Before = memory(Config),
    #{port := Port} = listener(1, Config),
    {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http2], retry => 0}),
    {ok, http2} = gun:await_up(Connection, ?TIMEOUT),
    {Headers, _} = message(~"tools/list", #{}, #{}),
    Stream = gun:headers(Connection, "POST", "/mcp", Headers),
    _ = [ok = gun:data(Connection, Stream, nofin, ~" ") || _ <- lists:seq(1, 60_000)],
    ok = until(fun() -> sum(Config) =:= 60_000 end),
    %% What was read before may be garbage for a moment.
    ok = until(fun() -> memory(Config) - Before < 2 * ?MIB end),
    gun:close(Connection),
    none_left(Config).

%% A head, and nearly a mebibyte behind it.
endless() ->
    {Headers, _} = message(~"tools/list", #{}, #{}),
    Lines = [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Headers],
    {fun(Framing) ->
         [~"POST /mcp HTTP/1.1\r\nhost: localhost\r\n", Lines, Framing, ~"\r\n\r\n"]
     end, <<"{", (binary:copy(~" ", ?MIB - 2))/binary>>}.

attack(Do, Config) ->
    attack(Do, ?ATTACKERS - ?BOUND div ?MIB - 1, Config).

%% Many do this at once, and a good client's large messages are answered meanwhile. At least this
%% many do not fit within the bound.
attack(Do, Least, Config) ->
    ok = none_left(Config),
    Test = self(),
    Told = fun(What) -> Test ! {told, What}, ok end,
    Attackers = case is_function(Do, 1) of
        %% Five streams each.
        true -> [spawn_link(fun() -> Do(Told) end) || _ <- lists:seq(1, ?ATTACKERS div 5)];
        false -> [spawn_link(fun() -> Told(Do()) end) || _ <- lists:seq(1, ?ATTACKERS)]
    end,
    %% Some are told, and the others do not stop.
    First = watched(1, 0, Config),
    Good = spawn_link(fun() -> good(listener(1, Config), Test) end),
    Most = watched(Least - 1, First, Config),
    Good ! stop,
    Served = receive {served, Count} -> Count end,
    ct:log("~b KiB counted, ~b large messages served", [Most div 1024, Served]),
    true = Most =< ?COUNTED,
    true = Served > 0,
    ok = until(fun() -> sum(Config) =< ?BOUND end),
    _ = [begin
             true = unlink(Pid),
             Pid ! stop,
             is_function(Do, 1) orelse exit(Pid, kill)
         end || Pid <- Attackers],
    none_left(Config).

%% Each that is told something is told that.
watched(0, Most, _) ->
    Most;
watched(Left, Most, Config) ->
    receive
        {told, refused} -> watched(Left - 1, Most, Config);
        {told, Other} -> ct:fail(Other)
    after 10 ->
        watched(Left, max(Most, sum(Config)), Config)
    end.

until(Is) ->
    await(fun() ->
        case Is() of
            true -> {ok, ok};
            false -> again
        end
    end).

none_left(Config) ->
    until(fun() -> sum(Config) =:= 0 end).

%% Until it is told something.
plain(Listener, Head, Text) ->
    Socket = erlmcp_test_http:connect(Listener),
    _ = spawn_link(fun() ->
        _ = [sent(Socket, Piece) || Piece <- [Head | pieces(Text)]],
        receive never -> ok end
    end),
    {ok, Bytes} = received(Socket),
    said(Bytes).

pieces(<<Piece:65_536/binary, Rest/binary>>) -> [Piece | pieces(Rest)];
pieces(Rest) -> [Rest].

sent(Socket, Bytes) when is_port(Socket) -> gen_tcp:send(Socket, Bytes);
sent(Socket, Bytes) -> ssl:send(Socket, Bytes).

received(Socket) when is_port(Socket) -> gen_tcp:recv(Socket, 0);
received(Socket) -> ssl:recv(Socket, 0).

said(Bytes) ->
    case {binary:match(Bytes, ~"1089"), Bytes} of
        {{_, _}, <<"HTTP/1.1 503 ", _/binary>>} -> refused;
        {{_, _}, <<"{", _/binary>>} -> refused;
        _ -> Bytes
    end.

streams(#{port := Port}, Text, Told) ->
    {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http2], retry => 0}),
    {ok, http2} = gun:await_up(Connection, ?TIMEOUT),
    {Headers, _} = message(~"tools/list", #{}, #{}),
    _ = [ok = gun:data(Connection, gun:headers(Connection, "POST", "/mcp", Headers), nofin, Text)
         || _ <- lists:seq(1, 5)],
    answers(Connection, Told).

answers(Connection, Told) ->
    receive
        {gun_response, Connection, _, nofin, 503, _} ->
            answers(Connection, Told);
        {gun_data, Connection, _, fin, Body} ->
            ok = Told(said(Body)),
            answers(Connection, Told);
        %% The server reads no more of it.
        {gun_error, Connection, _, {stream_error, no_error, _}} ->
            answers(Connection, Told);
        stop ->
            gun:close(Connection);
        Other ->
            Told(Other)
    end.

%% Its text is as large as an attacker's.
good(Listener, Test) ->
    Text = binary:copy(~"x", ?MIB),
    Test ! {served, good(Listener, Text, {0, 0})}.

%% A message as large as those of the attack, and older than some, may be refused as it begins. Its
%% client comes again, and is served soon.
good(Listener, Text, {Served, Refused}) ->
    Call = #{name => ~"echo", arguments => #{text => Text}},
    Now = case erlmcp_test_http:call(Listener, ~"tools/call", Call) of
        #{status := 200, messages := [#{~"result" := _}]} ->
            {Served + 1, 0};
        #{status := 503, messages := [#{~"error" := #{~"code" := 1089}}]} when Refused < 5 ->
            {Served, Refused + 1}
    end,
    #{status := 200} = erlmcp_test_http:call(Listener, ~"tools/list", #{}),
    receive
        stop when element(1, Now) > 0 -> element(1, Now)
    after 0 ->
        good(Listener, Text, Now)
    end.

%% Bytes that follow a request which is served.

behind_a_plain_request(Config) ->
    {Headers, Body} = message(~"tools/call", #{name => ~"wait"}, #{}),
    behind(Headers, Body, Config).

behind_another_request(Config) ->
    {Headers, Body} = message(~"tools/call", #{name => ~"wait"}, #{}),
    Size = integer_to_binary(byte_size(Body), 16),
    behind([{~"transfer-encoding", ~"chunked"} | Headers],
           iolist_to_binary([Size, ~"\r\n", Body, ~"\r\n0\r\n\r\n"]), Config).

behind(Headers, Body, Config) ->
    Listener = listener(1, Config),
    Sockets = [begin
                   Socket = erlmcp_test_http:connect(Listener),
                   Lines = [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Headers],
                   Length = [[~"content-length: ", integer_to_binary(byte_size(Body)), ~"\r\n"]
                             || not lists:keymember(~"transfer-encoding", 1, Headers)],
                   ok = gen_tcp:send(Socket, [~"POST /mcp HTTP/1.1\r\nhost: localhost\r\n",
                                              Lines, Length, ~"\r\n", Body]),
                   Socket
               end || _ <- lists:seq(1, 10)],
    ok = none_left(Config),
    Behind = binary:copy(~"x", 400_000),
    _ = [ok = gen_tcp:send(Socket, Behind) || Socket <- Sockets],
    ok = until(fun() -> sum(Config) > 3_900_000 end),
    %% Of 2 MB each there is no room for all: some are cut, and others wait.
    _ = [spawn(fun() -> gen_tcp:send(Socket, binary:copy(Behind, 4)) end) || Socket <- Sockets],
    ok = until(fun() ->
        [] =/= [cut || Socket <- Sockets, {error, closed} <- [gen_tcp:recv(Socket, 0, 0)]]
    end),
    ok = until(fun() -> sum(Config) =< ?BOUND end),
    _ = [gen_tcp:close(Socket) || Socket <- Sockets],
    none_left(Config).

%% Bytes that follow two requests are still held, and counted, when the first one is answered. A
%% request in chunks is cowboy's, and so are the bytes that follow it.
behind_the_next_request(Config) ->
    [begin
         ok = none_left(Config),
         Socket = erlmcp_test_http:connect(listener(1, Config)),
         ok = sent(Socket, [call_of(~"slow", #{}, First), call_of(~"wait", #{}, Next),
                            binary:copy(~"x", ?MIB)]),
         %% The deadline of the first.
         #{status := 503} = erlmcp_test_http:response(Socket),
         %% Except for a piece that cowboy has.
         ok = until(fun() -> sum(Config) >= ?MIB - 65_536 end),
         ok = erlmcp_test_http:close(Socket)
     end || First <- [plain, chunks], Next <- [plain, chunks]],
    none_left(Config).

%% In its order, and whole.
what_lies_behind_is_answered(Config) ->
    ok = none_left(Config),
    Texts = [binary:copy(<<C>>, Size) || C <- lists:seq($a, $z), Size <- [1, 100_000]],
    [begin
         Socket = erlmcp_test_http:connect(listener(1, Config)),
         ok = sent(Socket, [call_of(~"slow", #{}, Framing)
                            | [call_of(~"echo", #{text => Text}, Framing) || Text <- Texts]]),
         #{status := 503} = erlmcp_test_http:response(Socket),
         Texts = [begin
                      #{messages := [#{~"result" := #{~"content" := [#{~"text" := Text}]}}]} =
                          erlmcp_test_http:response(Socket),
                      Text
                  end || _ <- Texts],
         ok = none_left(Config),
         ok = erlmcp_test_http:close(Socket)
     end || Framing <- [plain, chunks]],
    ok.

%% A few bytes behind a request were read together with all that came before it.
what_is_answered_is_not_kept(Config) ->
    ok = none_left(Config),
    Before = call(Config, erlang, memory, [binary]),
    Text = binary:copy(~"x", 60_000),
    Sockets = [begin
                   Socket = erlmcp_test_http:connect(listener(1, Config)),
                   Echoes = [call_of(~"echo", #{text => Text}, Framing) || _ <- lists:seq(1, 50)],
                   ok = sent(Socket, [call_of(~"slow", #{}, Framing), Echoes,
                                      call_of(~"wait", #{}, Framing), binary:copy(~"x", 200)]),
                   #{status := 503} = erlmcp_test_http:response(Socket),
                   _ = [#{status := 200} = erlmcp_test_http:response(Socket) || _ <- Echoes],
                   Socket
               end || Framing <- [plain, chunks], _ <- lists:seq(1, 8)],
    %% A connection may still be busy, and what a scheduler frees for another counts as used until
    %% the other has run.
    ok = until(fun() ->
        _ = [call(Config, erlang, garbage_collect, [Pid])
             || Pid <- call(Config, erlang, processes, [])],
        call(Config, erlang, memory, [binary]) - Before < 8 * ?MIB
    end),
    %% They are served yet.
    _ = [{error, timeout} = gen_tcp:recv(Socket, 0, 0) || Socket <- Sockets],
    _ = [ok = erlmcp_test_http:close(Socket) || Socket <- Sockets],
    none_left(Config).

call_of(Tool, Arguments, Framing) ->
    {Headers, Body} = message(~"tools/call", #{name => Tool, arguments => Arguments}, #{}),
    Size = iolist_size(Body),
    Framed = case Framing of
        plain ->
            [~"content-length: ", integer_to_binary(Size), ~"\r\n\r\n", Body];
        chunks ->
            [~"transfer-encoding: chunked\r\n\r\n", integer_to_binary(Size, 16), ~"\r\n", Body,
             ~"\r\n0\r\n\r\n"]
    end,
    [~"POST /mcp HTTP/1.1\r\nhost: localhost\r\n",
     [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Headers], Framed].

%% The client of a pipe is the parent: its line is given up, and the next one is answered.
line_of_a_parent(_) ->
    Server = erlmcp_test_http:start(#{}),
    {ok, _, Instance} = erlmcp_registry:whereis(map_get(pid, Server)),
    Parent = erlmcp_memory:start(map_get(pid, Server), Instance, anonymous),
    Say = fun(Bytes) ->
        Parent ! {erlmcp_memory, self(), Bytes},
        receive {erlmcp_memory, Parent, taken} -> ok end
    end,
    ok = Say(~"{\"jsonrpc\":"),
    ok = until(fun() -> erlmcp_unfinished_messages:sum() =:= 11 end),
    ok = application:set_env(erlmcp, unfinished_bytes, 10),
    Refusal = receive {erlmcp_memory, Parent, Bytes} when is_binary(Bytes) -> Bytes end,
    #{~"error" := #{~"code" := 1089}} = json:decode(Refusal),
    Parent ! {erlmcp_memory, self(), taken},
    ok = application:unset_env(erlmcp, unfinished_bytes),
    Ping = json:encode(erlmcp_test_line:stateless(7, ~"tools/list", #{})),
    ok = Say(iolist_to_binary([~"\"2.0\",\"id\":1}\n", Ping, ~"\n"])),
    Answer = receive {erlmcp_memory, Parent, Answered} when is_binary(Answered) -> Answered end,
    #{~"id" := 7, ~"result" := _} = json:decode(Answer),
    0 = erlmcp_unfinished_messages:sum(),
    erlmcp_test_http:stop(Server).

those_who_are_killed_give_back(Config) ->
    {Head, Text} = endless(),
    #{port := Port} = listener(2, Config),
    Sockets = [begin
                   Socket = erlmcp_test_http:connect(Listener),
                   ok = gen_tcp:send(Socket, Bytes),
                   Socket
               end || {Listener, Bytes} <- [{listener(1, Config),
                                             [Head(~"content-length: 1048577"), Text]},
                                            {#{port => Port, url => ~""}, Text}]],
    ok = until(fun() -> sum(Config) =:= 2 * (?MIB - 1) end),
    2 = call(Config, ?MODULE, kill_holders, []),
    ok = none_left(Config),
    _ = [gen_tcp:close(Socket) || Socket <- Sockets],
    ok.

kill_holders() ->
    length([exit(Pid, kill) || {{Pid, _}, _, _, _} <- ets:tab2list(erlmcp_unfinished_messages)]).

what_is_announced_costs_nothing(Config) ->
    {Head, _} = endless(),
    ok = none_left(Config),
    Sockets = [begin
                   Socket = erlmcp_test_http:connect(listener(1, Config)),
                   ok = gen_tcp:send(Socket, Head(~"content-length: 4194304")),
                   Socket
               end || _ <- lists:seq(1, 100)],
    #{status := 200} = erlmcp_test_http:call(listener(1, Config), ~"tools/list", #{}),
    0 = sum(Config),
    _ = [gen_tcp:close(Socket) || Socket <- Sockets],
    ok.

a_share_of_the_memory_is_the_default(_) ->
    ok = application:set_env(erlmcp, memory_bytes, 1_000_000_000),
    120_000_000 = await_bound(120_000_000),
    ok = application:set_env(erlmcp, unfinished_percent, 20),
    200_000_000 = await_bound(200_000_000),
    ok = application:set_env(erlmcp, unfinished_bytes, 50_000_000),
    50_000_000 = await_bound(50_000_000),
    %% A wrong value changes nothing.
    ok = application:set_env(erlmcp, unfinished_bytes, none),
    ok = application:set_env(erlmcp, unfinished_percent, 5),
    50_000_000 = await_bound(50_000_000),
    ok = application:unset_env(erlmcp, memory_bytes),
    [ok = application:unset_env(erlmcp, Name)
     || {Name, _, _} <- erlmcp_unfinished_messages:bounds()],
    ok.

await_bound(Bound) ->
    await(fun() ->
        case erlmcp_unfinished_messages:bound() of
            Bound -> {ok, Bound};
            _ -> again
        end
    end).

wrong_bounds_do_not_start(_) ->
    [begin
         ok = application:set_env(erlmcp, Name, Wrong),
         {Pid, Monitor} = spawn_monitor(fun() ->
             exit({result, gen_server:start(erlmcp_unfinished_messages, [], [])})
         end),
         receive
             {'DOWN', Monitor, process, Pid, {result, Result}} ->
                 {error, {bad_option, Name, <<_/binary>>}} = Result
         end,
         ok = application:unset_env(erlmcp, Name)
     end || {Name, Wrong} <- [{unfinished_bytes, 0}, {unfinished_bytes, none},
                              {unfinished_percent, 0}, {unfinished_percent, 101}]],
    ok.

%% However many messages there are, and however often room is asked for. The process has a high
%% priority.
looks_take_a_part_of_the_time(_) ->
    Test = self(),
    Holders = [spawn_link(fun() ->
                   _ = [erlmcp_unfinished_messages:count({self(), Tag}, 0, 1)
                        || Tag <- lists:seq(1, 500)],
                   Test ! {self(), holds},
                   receive stop -> ok end
               end) || _ <- lists:seq(1, 100)],
    _ = [receive {Holder, holds} -> ok end || Holder <- Holders],
    Looks = whereis(erlmcp_unfinished_messages),
    Waits = [process_info(Looks, status) || _ <- lists:seq(1, 400), asked_again(Looks)],
    ct:log("of 400 times ~b", [length([waits || {status, waiting} <- Waits])]),
    true = length([waits || {status, waiting} <- Waits]) > 100,
    _ = [Holder ! stop || Holder <- Holders],
    until(fun() -> erlmcp_unfinished_messages:sum() =:= 0 end).

asked_again(Looks) ->
    ok = gen_server:cast(Looks, make_room),
    receive after 5 -> true end.

%% Pure: who is refused, and who goes on.
room_is_made_by_size_and_age(_) ->
    erlmcp_test_property:holds(?FORALL(
        {Rows, Bound}, {rows(), range(1, 5_000)},
        begin
            Now = 10_000,
            Sum = lists:sum([Bytes || {_, Bytes, _, _} <- Rows]),
            {Refused, GoOn} = erlmcp_unfinished_messages:choose(Rows, #{sum => Sum, bound => Bound,
                                                                        now => Now}),
            Score = fun(Owner) ->
                {{Holder, _}, _, Since, _} = lists:keyfind(Owner, 1, Rows),
                Of = lists:sum([Bytes || {{Same, _}, Bytes, _, _} <- Rows, Same =:= Holder]),
                Of * (Now - Since + 10) * (Now - Since + 10)
            end,
            Free = [Owner || {Owner, _, _, State} <- Rows, State =/= {refused, 0}],
            Spared = Free -- Refused,
            Left = lists:sum([Bytes || {Owner, Bytes, _, _} <- Rows, lists:member(Owner, Spared)]),
            Waits = [Owner || {Owner, _, _, waiting} <- Rows],
            Scores = fun(Owners) -> lists:map(Score, Owners) end,
            conjunction([
                {nobody_twice, Refused -- Free =:= [] andalso GoOn -- (Waits -- Refused) =:= []},
                {within_the_bound, Left =< Bound},
                {nobody_in_vain, Refused =:= [] orelse Waits =/= []
                     orelse lists:sum([Bytes || {_, Bytes, _, State} <- Rows,
                                                State =/= {refused, 0}]) > Bound},
                {the_largest_and_slowest, Refused =:= [] orelse Spared =:= []
                     orelse lists:min(Scores(Refused)) >= lists:max(Scores(Spared))},
                {one_at_least, GoOn =/= [] orelse Waits -- Refused =:= [] orelse Sum >= Bound},
                {none_without_room, GoOn =:= [] orelse Sum < Bound}])
        end), 2_000).

rows() ->
    ?LET(Rows, list({range(1, 1_000), range(0, 10_000), oneof([reading, waiting, {refused, 0}])}),
         [{{N rem 7, N}, Bytes, Since, State}
          || {N, {Bytes, Since, State}} <- lists:enumerate(Rows)]).

