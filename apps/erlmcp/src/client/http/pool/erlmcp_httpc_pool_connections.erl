-module(erlmcp_httpc_pool_connections).
-moduledoc """
The connections of a pool, from their opening to their end. A value of the pool's process, which
owns the processes of gun and the sockets, and passes their messages to this module.

Gun opens a connection, except for HTTP/1.1 in the clear, which is a mere socket
(`m:erlmcp_httpc_socket`). If a host name has no address of IPv4, or none at which the server can be
reached, IPv6 is tried. `localhost` means both loopback addresses (RFC 6761, 6.3).

Internal.
""".

-export([new/2, range/2, size/1, opening/1]).
-export([grow/3, received/2, drain/2, sweep/2, stop/1]).

-export_type([connections/0, reached/0]).

-doc "A fun that is called with the address of each new connection, in the process that opens it.".
-type reached() :: fun((inet:ip_address()) -> ok).
-type family() :: inet | inet6.
%% The data for opening connections, computed once for a pool.
-type target() :: #{host := erlmcp_tls:host(), port := inet:port_number(), gun := gun:opts(),
                    secure := boolean(), tls := [ssl:tls_client_option()],
                    protocols := [http | http2], reached := reached()}.

-record(connection, {
    id :: integer(),
    slot :: erlmcp_httpc_pool_table:slot(),
    %% A connection is `opening` until it can be used; on HTTP/2 that is when the server's settings,
    %% with the number of streams, have come. It is `draining` when it still has loans, but gets no
    %% more, and `closing` while HTTP/2 closes in order.
    stage = opening :: opening | open | draining | closing,
    protocol = http :: erlmcp_httpc_pool_table:protocol(),
    seats = 0 :: non_neg_integer(),
    %% The address families that are left to try, the reason of the first failure, and the timer of
    %% the attempt.
    families :: [family()],
    why = none :: term(),
    timer = none :: none | reference(),
    since :: integer()
}).
-record(connections, {
    slots :: erlmcp_httpc_pool_table:slots(),
    target :: target(),
    calls :: pos_integer(),
    messages :: pos_integer(),
    streams :: pos_integer(),
    idle_ms :: pos_integer(),
    connect_timeout :: pos_integer(),
    %% The protocol of the newest connection, which decides how connections are shared.
    protocol :: http | http2 | unknown,
    all = #{} :: #{erlmcp_httpc_pool_table:connection() => #connection{}}
}).

-opaque connections() :: #connections{}.

%% Streams on a connection of HTTP/2: the number if the server names none, and the most that are
%% used.
-define(STREAMS, 100).
-define(MOST_STREAMS, 1000).
%% Milliseconds within which a server must close its end of a connection.
-define(GOODBYE, 1000).
%% Errors after which the other address family is tried: a host may have an address, or a server at
%% it, in one family only.
-define(OTHERWISE, [nxdomain, econnrefused, ehostunreach, enetunreach, eaddrnotavail,
                    eafnosupport, einval, etimedout]).

%% The most bytes of memory that the process of a connection may take.
-define(HEAP_BYTES, 268_435_456).
%% The most bytes that gun reads at once and sends as one message.
-define(BUFFER, 16_384).
%% Milliseconds between the pings of HTTP/2, and the number of pings that may remain unanswered.
%% Without pings, a connection to a vanished peer would be used for calls forever.
-define(PING, 20_000).
-define(PINGS_UNANSWERED, 2).

-doc """
Returns the state of the connections of a new pool. None is open yet. The map has all the options of
the pool (`t:erlmcp_httpc_pool:options/0`), and `messages`, the number of slots for messages that
have no response.
""".
-spec new(map(), erlmcp_httpc_pool_table:slots()) -> connections().
new(#{connections := Calls, messages := Messages, streams := Streams, idle_ms := Idle,
      connect_timeout := Timeout} = Settings, Slots) ->
    Reached = fun(Address) ->
        erlmcp_httpc_pool_table:reached(erlmcp_outbound_hosts:inwards(Address), Slots)
    end,
    #{protocols := Protocols} = Target = target(Settings, Reached),
    Protocol = case Protocols of
        [One] -> One;
        _ -> unknown
    end,
    #connections{slots = Slots, target = Target, calls = Calls, messages = Messages,
                 streams = Streams, idle_ms = Idle, connect_timeout = Timeout,
                 protocol = Protocol}.

target(#{origin := {Scheme, Host, Port}, connect_timeout := Timeout, tls := Tls,
         protocols := Wanted}, Reached) ->
    Secure = Scheme =:= https,
    Protocols = offered(Secure, Wanted),
    #{host => host(Host), port => Port, secure => Secure, tls => Tls, protocols => Protocols,
      reached => Reached,
      gun => #{protocols => Protocols,
               %% No supervisor of gun: the process that opens the connection owns it and closes it.
               supervise => false,
               %% The pool decides when to try again.
               retry => 0,
               connect_timeout => Timeout,
               domain_lookup_timeout => Timeout,
               tls_handshake_timeout => Timeout,
               event_handler => {erlmcp_httpc_gun_bound, {?HEAP_BYTES, Reached}},
               %% A server that accepts no more requests may finish the ones that it has.
               http_opts => #{closing_timeout => infinity},
               http2_opts => #{notify_settings_changed => true,
                               %% The client refuses server push.
                               max_concurrent_streams => 0,
                               closing_timeout => infinity,
                               initial_connection_window_size => 8_000_000,
                               initial_stream_window_size => 1_000_000,
                               max_fragmented_header_block_size => 65_536,
                               keepalive => ?PING,
                               keepalive_tolerance => ?PINGS_UNANSWERED}}}.

%% Without TLS the protocol is not negotiated, so HTTP/2 is used only if the user knows that the
%% server has it (prior knowledge).
offered(true, Wanted) -> Wanted;
offered(false, [http2]) -> [http2];
offered(false, _) -> [http].

host(Host) when is_tuple(Host) ->
    Host;
host(Host) ->
    Text = unicode:characters_to_list(Host),
    case inet:parse_strict_address(string:trim(Text, both, "[]")) of
        {ok, Address} -> Address;
        {error, einval} -> Text
    end.

-doc """
Returns in which slots a loan of a kind finds a connection, as the first argument of
`erlmcp_httpc_pool_table:claim/3`. It is `shared` for a stream that uses a connection for calls.
""".
-spec range(erlmcp_httpc_pool_table:kind(), connections()) ->
    erlmcp_httpc_pool_table:kind() | shared.
range(stream, #connections{protocol = http}) -> stream;
range(stream, _) -> shared;
range(Kind, _) -> Kind.

-doc "Returns the number of all connections, including those that are being opened or closed.".
-spec size(connections()) -> non_neg_integer().
size(#connections{all = All}) ->
    map_size(All).

-doc "Returns the number of connections that are being opened.".
-spec opening(connections()) -> non_neg_integer().
opening(Connections) ->
    length(opening_slots(Connections)).

opening_slots(#connections{all = All}) ->
    [Slot || _ := #connection{stage = opening, slot = Slot} <- All].

-doc """
Begins to open connections for the given numbers of waiting calls, streams and messages. HTTP/1.1
needs one for each. On HTTP/2, and before the protocol is known, one is opened at a time, since it
may serve all of them. Messages use slots for calls, and their own ones if these do not suffice. At
most `Most` connections are being opened at the same time. `failed` means that the attempt to open
one could not even start.
""".
-spec grow(#{erlmcp_httpc_pool_table:kind() => non_neg_integer()},
           Most :: pos_integer() | infinity, connections()) ->
    {ok, connections()} | {failed, Why :: term(), connections()}.
grow(#{call := Calls, stream := Streams, message := Messages}, Most, Connections) ->
    #connections{calls = ForCalls, messages = ForMessages, streams = ForStreams,
                 protocol = Protocol} = Connections,
    {Shared, Own, Long} = case Protocol of
        http -> {Calls + Messages, Messages, Streams};
        _ -> {min(1, Calls + Streams + Messages), min(1, Messages), 0}
    end,
    Before = ForCalls + ForMessages,
    {InCalls, Missing} = free_slots({1, ForCalls, Shared}, Connections),
    {InOwn, _} = free_slots({ForCalls + 1, Before, min(Own, Missing)}, Connections),
    {InStreams, _} = free_slots({Before + 1, Before + ForStreams, Long}, Connections),
    Found = InCalls ++ InOwn ++ InStreams,
    Limit = case Most of
        infinity -> length(Found);
        _ -> max(0, Most - opening(Connections))
    end,
    begin_all(lists:sublist(Found, Limit), Connections).

%% Returns slots for as many connections as are wanted and are not being opened yet, and the number
%% of those for which there is no slot.
free_slots({First, Last, Wanted}, #connections{all = All} = Connections) ->
    Opening = [Slot || Slot <- opening_slots(Connections), Slot >= First, Slot =< Last],
    %% A closing connection no longer has loans.
    Taken = [Slot || _ := #connection{slot = Slot, stage = Stage} <- All,
                      Stage =/= closing],
    Count = max(0, Wanted - length(Opening)),
    Free = lists:sublist(lists:seq(First, Last) -- Taken, Count),
    {Free, Count - length(Free)}.

begin_all([], Connections) ->
    {ok, Connections};
begin_all([Slot | Rest], #connections{target = Target, connect_timeout = Timeout} = Connections) ->
    Id = erlang:unique_integer(),
    Connection = #connection{id = Id, slot = Slot, families = families(Target),
                             timer = erlang:send_after(Timeout, self(), {slow, Id}),
                             since = erlmcp_clock:now_ms()},
    case begin_next(Connection, Connections) of
        {changed, Begun} -> begin_all(Rest, Begun);
        {failed, _, _} = Failed -> Failed
    end.

begin_next(#connection{families = [Family | Families]} = Connection,
           #connections{target = Target} = Connections) ->
    case open(Target, Family) of
        {ok, Gun} -> {changed, put(Gun, Connection#connection{families = Families}, Connections)};
        {error, Why} -> cancel(Connection), {failed, Why, Connections}
    end.

families(#{host := Host}) when tuple_size(Host) =:= 4 -> [inet];
families(#{host := Host}) when tuple_size(Host) =:= 8 -> [inet6];
families(_) -> [inet, inet6].

%% The process that opens a connection is linked to this one. It reports success by `socket_up` or
%% `gun_up`, and for HTTP/2 then also the server's settings (`gun_notify`). It exits on failure.
open(#{host := Host} = Target, Family) ->
    maybe
        {ok, Transport} ?= transport(Target),
        Tcp = [Family, {buffer, ?BUFFER}, {send_timeout, 15_000}, {send_timeout_close, true},
               {nodelay, true}, {keepalive, true}],
        connect(address(Host, Family), Target, Tcp, Transport)
    end.

connect(Address, #{secure := false, protocols := [http]} = Target, Tcp, _) ->
    #{port := Port, gun := #{connect_timeout := Timeout}, reached := Reached} = Target,
    erlmcp_httpc_socket:open({Address, Port}, Tcp, Timeout, Reached);
connect(Address, #{port := Port, gun := Options}, Tcp, Transport) ->
    %% The command `erlmcp` starts a server without gun; here gun starts.
    {ok, _} = application:ensure_all_started(gun),
    gun:open(Address, Port, maps:merge(Options#{tcp_opts => Tcp}, Transport)).

address("localhost", inet) -> {127, 0, 0, 1};
address("localhost", inet6) -> {0, 0, 0, 0, 0, 0, 0, 1};
address(Host, _) -> Host.

transport(#{secure := false}) ->
    {ok, #{transport => tcp}};
transport(#{secure := true, host := Host, tls := Own}) ->
    maybe
        {ok, Options} ?= erlmcp_tls:client_options(Host, Own),
        {ok, #{transport => tls, tls_opts => without_system_roots(Own, Options)}}
    end.

%% Leaves the system's roots out, since gun uses them by default. Explicit ones would be copied into
%% the process of each connection, most of a megabyte, for its whole life.
without_system_roots(Own, Options) ->
    case lists:keymember(cacerts, 1, Own) of
        true -> Options;
        false -> lists:keydelete(cacerts, 1, Options)
    end.

put(Gun, Connection, #connections{all = All} = Connections) ->
    Connections#connections{all = All#{Gun => Connection}}.

remove(Gun, #connections{all = All, slots = Slots} = Connections) ->
    {#connection{id = Id} = Connection, Rest} = maps:take(Gun, All),
    cancel(Connection),
    ok = erlmcp_httpc_pool_table:forget(Id, Slots),
    Connections#connections{all = Rest}.

cancel(#connection{timer = none}) -> ok;
cancel(#connection{timer = Timer}) ->
    _ = erlang:cancel_timer(Timer),
    ok.

-doc """
Interprets a message of a connection. `opened` means that a connection can be lent now, and `failed`
that the server could not be reached. `changed` is anything else that happened to a connection.
`other` is a message that belongs to no connection.
""".
-spec received(term(), connections()) ->
    {opened | changed, connections()} | {failed, Why :: term(), connections()} | other.
received({gun_up, Gun, http}, Connections) ->
    find(Gun, Connections, fun(Connection) -> opened(Gun, Connection, http, 1, Connections) end);
received({socket_up, Opener, Socket}, #connections{all = All} = Connections) ->
    case maps:take(Opener, All) of
        {Connection, Rest} -> joined(Socket, Connection, Connections#connections{all = Rest});
        error -> ok = erlmcp_httpc_socket:close(Socket), other
    end;
received({tcp_passive, Socket}, Connections) ->
    find(Socket, Connections, fun(_) ->
        _ = erlmcp_httpc_socket:read_on(Socket),
        {changed, Connections}
    end);
%% Bytes that came without a request: the connection is closed.
received({tcp, Socket, _}, Connections) ->
    find(Socket, Connections, fun(_) ->
        ok = erlmcp_httpc_socket:close(Socket),
        {changed, Connections}
    end);
received({gun_notify, Gun, settings_changed, Settings}, Connections) ->
    find(Gun, Connections, fun
        (#connection{stage = opening} = Connection) ->
            opened(Gun, Connection, http2, seats(Settings), Connections);
        (Connection) ->
            rated(Gun, Connection, seats(Settings), Connections)
    end);
received({gun_down, Gun, _, Why, _}, Connections) ->
    find(Gun, Connections, fun(Connection) -> ended(Gun, Connection, Why, Connections) end);
%% The end of a socket is reported by a message, and the end of gun's process by an exit message.
received({tcp_closed, Socket}, Connections) ->
    find(Socket, Connections, fun(Connection) ->
        ended(Socket, Connection, closed, Connections)
    end);
received({'EXIT', Gun, Reason}, Connections) ->
    find(Gun, Connections, fun(Connection) -> ended(Gun, Connection, why(Reason), Connections) end);
received({slow, Id}, #connections{all = All} = Connections) ->
    case [Gun || Gun := #connection{id = Other, stage = opening} <- All, Other =:= Id] of
        [Gun] ->
            true = exit(Gun, kill),
            {failed, timeout, remove(Gun, Connections)};
        [] ->
            other
    end;
received(_, _) ->
    other.

find(Gun, #connections{all = All}, Then) ->
    case All of
        #{Gun := Connection} -> Then(Connection);
        #{} -> other
    end.

seats(Settings) ->
    case maps:get(max_concurrent_streams, Settings, infinity) of
        infinity -> ?STREAMS;
        Count -> min(Count, ?MOST_STREAMS)
    end.

joined(Socket, Connection, Connections) ->
    case erlmcp_httpc_socket:read_on(Socket) of
        ok -> opened(Socket, Connection, plain, 1, Connections);
        {error, _} -> {failed, closed, remove(Socket, put(Socket, Connection, Connections))}
    end.

opened(Gun, #connection{id = Id, slot = Slot} = Connection, Protocol, Seats, Connections) ->
    cancel(Connection),
    #connections{slots = Slots} = Connections,
    ok = erlmcp_httpc_pool_table:publish(Slot, Id, Gun, Seats, Protocol, Slots),
    Opened = Connection#connection{stage = open, protocol = Protocol, seats = Seats,
                                   timer = none, since = erlmcp_clock:now_ms()},
    {opened, put(Gun, Opened, Connections#connections{protocol = spoken(Protocol)})}.

spoken(plain) -> http;
spoken(Protocol) -> Protocol.

rated(Gun, #connection{id = Id, slot = Slot} = Connection, Seats, Connections) ->
    ok = erlmcp_httpc_pool_table:set_seats(Slot, Id, Seats, Connections#connections.slots),
    {changed, put(Gun, Connection#connection{seats = Seats}, Connections)}.

ended(Gun, #connection{stage = opening} = Connection, Why, Connections) ->
    #connection{families = Families, why = Before} = Connection,
    Reason = worse(Before, Why),
    case Families =/= [] andalso lists:member(Why, ?OTHERWISE) of
        true ->
            #connections{all = All} = Connections,
            begin_next(Connection#connection{why = Reason},
                       Connections#connections{all = maps:remove(Gun, All)});
        false ->
            {failed, Reason, remove(Gun, Connections)}
    end;
ended(Gun, #connection{id = Id, slot = Slot}, _, Connections) ->
    ok = erlmcp_httpc_pool_table:withdraw(Slot, Id, Connections#connections.slots),
    {changed, remove(Gun, Connections)}.

%% Returns the reason that says more, of two.
worse(none, Why) -> Why;
worse(nxdomain, Why) -> Why;
worse(Before, _) -> Before.

why({shutdown, Why}) -> Why;
why(normal) -> closed;
why(killed) -> killed;
why(_) -> crashed.

-doc """
Withdraws a connection, so that it gets no new requests. The connection is closed at once if it has
no loans, and otherwise after the last one has ended.
""".
-spec drain(erlmcp_httpc_pool_table:connection(), connections()) -> connections().
drain(Gun, #connections{all = All} = Connections) ->
    case All of
        #{Gun := #connection{stage = Stage} = Connection} when Stage =:= open;
                                                               Stage =:= draining ->
            drain(Gun, Connection, Connections);
        #{} ->
            Connections
    end.

drain(Gun, #connection{id = Id, slot = Slot} = Connection, Connections) ->
    #connections{slots = Slots} = Connections,
    ok = erlmcp_httpc_pool_table:withdraw(Slot, Id, Slots),
    case erlmcp_httpc_pool_table:held(Id, Slots) of
        0 -> close(Gun, Connection, Connections);
        _ -> put(Gun, Connection#connection{stage = draining}, Connections)
    end.

close(Gun, #connection{protocol = Protocol}, Connections) when Protocol =/= http2 ->
    ok = cut(Gun),
    remove(Gun, Connections);
close(Gun, #connection{protocol = http2} = Connection, Connections) ->
    ok = gun:shutdown(Gun),
    put(Gun, Connection#connection{stage = closing, since = erlmcp_clock:now_ms()}, Connections).

-doc """
Closes the connections that have been idle for `idle_ms`, that are drained and have no requests
left, or whose closing has taken a second. A connection that only dead processes hold is closed,
too. One with more than half of its seats held by dead processes is drained. `Now` is in
milliseconds of the monotonic clock.
""".
-spec sweep(Now :: integer(), connections()) -> connections().
sweep(Now, #connections{slots = Slots, all = All} = Connections) ->
    ById = #{Id => {Gun, Connection}
             || Gun := #connection{id = Id} = Connection <- All},
    Held = lists:foldl(fun(Row, Counts) -> visit(Row, ById, Slots, Counts) end, #{},
                       erlmcp_httpc_pool_table:loans(Slots)),
    maps:fold(fun(Gun, #connection{id = Id} = Connection, Acc) ->
                  tend(Gun, Connection, maps:get(Id, Held, {0, 0}), Now, Acc)
              end, Connections, All).

%% Counts the loans of living and of dead holders for each connection. On HTTP/2 the stream of a
%% dead holder cannot be ended alone, so it keeps its seat. On HTTP/1.1 the connection is closed.
visit({{Id, _}, Holder, _, _} = Row, ById, Slots, Counts) ->
    {Living, Dead} = maps:get(Id, Counts, {0, 0}),
    case Holder =/= orphan andalso is_process_alive(Holder) of
        true ->
            Counts#{Id => {Living + 1, Dead}};
        false when is_map_key(Id, ById) ->
            case erlmcp_httpc_pool_table:orphan(Row, Slots) of
                true -> Counts#{Id => {Living, Dead + 1}};
                false -> Counts
            end;
        false ->
            ok = erlmcp_httpc_pool_table:drop(Row, Slots),
            Counts
    end.

tend(_, #connection{stage = opening}, _, _, Connections) ->
    Connections;
tend(Gun, #connection{stage = closing, since = Since}, _, Now, Connections) ->
    case Now - Since >= ?GOODBYE of
        true -> true = exit(Gun, kill), remove(Gun, Connections);
        false -> Connections
    end;
tend(Gun, #connection{id = Id, slot = Slot} = Connection, {0, Dead}, _, Connections)
  when Dead > 0 ->
    ok = erlmcp_httpc_pool_table:withdraw(Slot, Id, Connections#connections.slots),
    case erlmcp_httpc_pool_table:held(Id, Connections#connections.slots) of
        Dead -> ok = cut(Gun), remove(Gun, Connections);
        _ -> put(Gun, Connection#connection{stage = draining}, Connections)
    end;
tend(Gun, #connection{seats = Seats} = Connection, {_, Dead}, _, Connections)
  when Dead * 2 > Seats ->
    drain(Gun, Connection, Connections);
tend(Gun, #connection{stage = draining} = Connection, _, _, Connections) ->
    drain(Gun, Connection, Connections);
tend(Gun, #connection{slot = Slot, since = Since} = Connection, {0, 0}, Now, Connections) ->
    ok = erlmcp_httpc_pool_table:settle(Slot, 0, Connections#connections.slots),
    Used = case erlmcp_httpc_pool_table:last_used(Slot, Connections#connections.slots) of
        never -> Since;
        At -> At
    end,
    case Now - Used >= Connections#connections.idle_ms of
        true -> drain(Gun, Connection, Connections);
        false -> Connections
    end;
tend(_, #connection{slot = Slot}, {Living, Dead}, _, Connections) ->
    ok = erlmcp_httpc_pool_table:settle(Slot, Living + Dead, Connections#connections.slots),
    Connections.

-doc "Closes all connections at once.".
-spec stop(connections()) -> ok.
stop(#connections{all = All}) ->
    lists:foreach(fun cut/1, maps:keys(All)).

cut(Socket) when is_port(Socket) ->
    erlmcp_httpc_socket:close(Socket);
cut(Gun) ->
    true = exit(Gun, shutdown),
    ok.
