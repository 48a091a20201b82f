-module(erlmcp_httpc_pool_connections).
-moduledoc """
The connections of a pool, from their opening to their end. A value of the pool's process, which
owns the processes of gun and the sockets, and passes their messages to this module.

A connection is `opening` until it can be used; on HTTP/2 that is when the server's settings, with
the number of streams, have come. Then it is `open`. It is `draining` when it has leases, but can no
longer be leased, and `closing` while HTTP/2 closes in order.

Gun opens a connection, except for HTTP/1.1 in the clear, which is a mere socket
(`m:erlmcp_httpc_socket`). If a host name has addresses of both families, one family is tried after
the other. `localhost` means both loopback addresses, whatever the system's resolver says (RFC 6761,
6.3).

Internal.
""".

-export([new/2, range/2, size/1, opening/1]).
-export([grow/3, received/2, drain/2, sweep/2, stop/1]).

-export_type([fleet/0, reached/0]).

-doc "A fun that is called with the address of each new connection, in the process that opens it.".
-type reached() :: fun((inet:ip_address()) -> ok).
-type family() :: inet | inet6.
%% The data for opening connections, computed once for a pool.
-type target() :: #{host := erlmcp_tls:host(), port := inet:port_number(), gun := gun:opts(),
                    secure := boolean(), tls := [ssl:tls_client_option()],
                    protocols := [http | http2], reached := reached()}.

-record(connection, {
    id :: integer(),
    place :: erlmcp_httpc_pool_table:slot(),
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
-record(fleet, {
    slots :: erlmcp_httpc_pool_table:slots(),
    target :: target(),
    calls :: pos_integer(),
    streams :: pos_integer(),
    idle_ms :: pos_integer(),
    connect_timeout :: pos_integer(),
    %% The protocol of the newest connection, which decides how connections are shared.
    protocol :: http | http2 | unknown,
    connections = #{} :: #{erlmcp_httpc_pool_table:connection() => #connection{}}
}).

-opaque fleet() :: #fleet{}.

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

-doc "Returns the connections of a new pool, which has none yet.".
-spec new(map(), erlmcp_httpc_pool_table:slots()) -> fleet().
new(#{connections := Calls, streams := Streams, idle_ms := Idle,
      connect_timeout := Timeout} = Settings, Slots) ->
    Reached = fun(Address) ->
        erlmcp_httpc_pool_table:reached(erlmcp_outbound_hosts:inwards(Address), Slots)
    end,
    #{protocols := Protocols} = Target = target(Settings, Reached),
    Protocol = case Protocols of
        [One] -> One;
        _ -> unknown
    end,
    #fleet{slots = Slots, target = Target, calls = Calls, streams = Streams, idle_ms = Idle,
           connect_timeout = Timeout, protocol = Protocol}.

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
               http2_opts => #{notify_settings_changed => true,
                               %% The client refuses server push.
                               max_concurrent_streams => 0,
                               %% A server that accepts no more requests may finish the ones that it
                               %% has.
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
Returns the range of slots in which a call or a stream finds a connection, for
`erlmcp_httpc_pool_table:claim/3`.
""".
-spec range(call | stream, fleet()) -> call | stream | shared.
range(stream, #fleet{protocol = http}) -> stream;
range(stream, _) -> shared;
range(call, _) -> call.

-doc "Returns the number of all connections, in whatever stage.".
-spec size(fleet()) -> non_neg_integer().
size(#fleet{connections = Connections}) ->
    map_size(Connections).

-doc "Returns the number of connections that are being opened.".
-spec opening(fleet()) -> non_neg_integer().
opening(Fleet) ->
    length(opening_places(Fleet)).

opening_places(#fleet{connections = Connections}) ->
    [Place || _ := #connection{stage = opening, place = Place} <- Connections].

-doc """
Begins to open connections for the given numbers of waiting calls and streams. HTTP/1.1 needs one
for each; on HTTP/2 one is opened at a time, since it may serve all of them. At most `Most`
connections are being opened at the same time. `failed` means that one could not even be begun.
""".
-spec grow(#{call := non_neg_integer(), stream := non_neg_integer()},
           Most :: pos_integer() | infinity, fleet()) ->
    {ok, fleet()} | {failed, Why :: term(), fleet()}.
grow(#{call := Calls, stream := Streams}, Most, Fleet) ->
    #fleet{calls = ForCalls, streams = ForStreams, protocol = Protocol} = Fleet,
    Wanted = case Protocol of
        http -> [{1, ForCalls, Calls}, {ForCalls + 1, ForCalls + ForStreams, Streams}];
        _ -> [{1, ForCalls, min(1, Calls + Streams)}]
    end,
    Places = lists:append([places(Range, Fleet) || Range <- Wanted]),
    Limit = case Most of
        infinity -> length(Places);
        _ -> max(0, Most - opening(Fleet))
    end,
    begin_all(lists:sublist(Places, Limit), Fleet).

places({First, Last, Wanted}, #fleet{connections = Connections} = Fleet) ->
    Opening = [Place || Place <- opening_places(Fleet), Place >= First, Place =< Last],
    %% A closing connection no longer has leases.
    Taken = [Place || _ := #connection{place = Place, stage = Stage} <- Connections,
                      Stage =/= closing],
    Free = lists:seq(First, Last) -- Taken,
    lists:sublist(Free, max(0, Wanted - length(Opening))).

begin_all([], Fleet) ->
    {ok, Fleet};
begin_all([Place | Rest], #fleet{target = Target, connect_timeout = Timeout} = Fleet) ->
    Id = erlang:unique_integer(),
    Connection = #connection{id = Id, place = Place, families = families(Target),
                             timer = erlang:send_after(Timeout, self(), {slow, Id}),
                             since = erlmcp_clock:now_ms()},
    case begin_next(Connection, Fleet) of
        {changed, Begun} -> begin_all(Rest, Begun);
        {failed, _, _} = Failed -> Failed
    end.

begin_next(#connection{families = [Family | Families]} = Connection,
           #fleet{target = Target} = Fleet) ->
    case open(Target, Family) of
        {ok, Gun} -> {changed, put(Gun, Connection#connection{families = Families}, Fleet)};
        {error, Why} -> cancel(Connection), {failed, Why, Fleet}
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
    %% Gun starts with the node's first client, since a node that only serves does not need it.
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

put(Gun, Connection, #fleet{connections = Connections} = Fleet) ->
    Fleet#fleet{connections = Connections#{Gun => Connection}}.

remove(Gun, #fleet{connections = Connections, slots = Slots} = Fleet) ->
    {#connection{id = Id} = Connection, Rest} = maps:take(Gun, Connections),
    cancel(Connection),
    ok = erlmcp_httpc_pool_table:forget(Id, Slots),
    Fleet#fleet{connections = Rest}.

cancel(#connection{timer = none}) -> ok;
cancel(#connection{timer = Timer}) ->
    _ = erlang:cancel_timer(Timer),
    ok.

-doc """
Interprets a message of a connection. A connection can be leased now (`opened`), another state has
`changed`, or the server could not be reached (`failed`). `other` is a message that belongs to no
connection.
""".
-spec received(term(), fleet()) ->
    {opened, fleet()} | {changed, fleet()} | {failed, Why :: term(), fleet()} | other.
received({gun_up, Gun, http}, Fleet) ->
    find(Gun, Fleet, fun(Connection) -> opened(Gun, Connection, http, 1, Fleet) end);
received({socket_up, Opener, Socket}, #fleet{connections = Connections} = Fleet) ->
    case maps:take(Opener, Connections) of
        {Connection, Rest} -> joined(Socket, Connection, Fleet#fleet{connections = Rest});
        error -> ok = erlmcp_httpc_socket:close(Socket), other
    end;
received({tcp_passive, Socket}, Fleet) ->
    find(Socket, Fleet, fun(_) ->
        _ = erlmcp_httpc_socket:read_on(Socket),
        {changed, Fleet}
    end);
%% Bytes that came without a request: the connection is closed.
received({tcp, Socket, _}, Fleet) ->
    find(Socket, Fleet, fun(_) ->
        ok = erlmcp_httpc_socket:close(Socket),
        {changed, Fleet}
    end);
received({gun_notify, Gun, settings_changed, Settings}, Fleet) ->
    find(Gun, Fleet, fun
        (#connection{stage = opening} = Connection) ->
            opened(Gun, Connection, http2, seats(Settings), Fleet);
        (Connection) ->
            rated(Gun, Connection, seats(Settings), Fleet)
    end);
received({gun_down, Gun, _, Why, _}, Fleet) ->
    find(Gun, Fleet, fun(Connection) -> ended(Gun, Connection, Why, Fleet) end);
%% The end of a socket is reported by a message, and the end of gun's process by an exit message.
received({tcp_closed, Socket}, Fleet) ->
    find(Socket, Fleet, fun(Connection) -> ended(Socket, Connection, closed, Fleet) end);
received({'EXIT', Gun, Reason}, Fleet) ->
    find(Gun, Fleet, fun(Connection) -> ended(Gun, Connection, why(Reason), Fleet) end);
received({slow, Id}, #fleet{connections = Connections} = Fleet) ->
    case [Gun || Gun := #connection{id = Other, stage = opening} <- Connections, Other =:= Id] of
        [Gun] ->
            true = exit(Gun, kill),
            {failed, timeout, remove(Gun, Fleet)};
        [] ->
            other
    end;
received(_, _) ->
    other.

find(Gun, #fleet{connections = Connections}, Then) ->
    case Connections of
        #{Gun := Connection} -> Then(Connection);
        #{} -> other
    end.

seats(Settings) ->
    case maps:get(max_concurrent_streams, Settings, infinity) of
        infinity -> ?STREAMS;
        Count -> min(Count, ?MOST_STREAMS)
    end.

joined(Socket, Connection, Fleet) ->
    case erlmcp_httpc_socket:read_on(Socket) of
        ok -> opened(Socket, Connection, plain, 1, Fleet);
        {error, _} -> {failed, closed, remove(Socket, put(Socket, Connection, Fleet))}
    end.

opened(Gun, #connection{id = Id, place = Place} = Connection, Protocol, Seats, Fleet) ->
    cancel(Connection),
    ok = erlmcp_httpc_pool_table:publish(Place, Id, Gun, Seats, Protocol, Fleet#fleet.slots),
    Opened = Connection#connection{stage = open, protocol = Protocol, seats = Seats,
                                   timer = none, since = erlmcp_clock:now_ms()},
    {opened, put(Gun, Opened, Fleet#fleet{protocol = spoken(Protocol)})}.

spoken(plain) -> http;
spoken(Protocol) -> Protocol.

rated(Gun, #connection{id = Id, place = Place} = Connection, Seats, Fleet) ->
    ok = erlmcp_httpc_pool_table:set_seats(Place, Id, Seats, Fleet#fleet.slots),
    {changed, put(Gun, Connection#connection{seats = Seats}, Fleet)}.

ended(Gun, #connection{stage = opening} = Connection, Why, Fleet) ->
    #connection{families = Families, why = Before} = Connection,
    Reason = worse(Before, Why),
    case Families =/= [] andalso lists:member(Why, ?OTHERWISE) of
        true ->
            #fleet{connections = Connections} = Fleet,
            begin_next(Connection#connection{why = Reason},
                       Fleet#fleet{connections = maps:remove(Gun, Connections)});
        false ->
            {failed, Reason, remove(Gun, Fleet)}
    end;
ended(Gun, #connection{id = Id, place = Place}, _, Fleet) ->
    ok = erlmcp_httpc_pool_table:withdraw(Place, Id, Fleet#fleet.slots),
    {changed, remove(Gun, Fleet)}.

%% Returns the reason that says more, of two.
worse(none, Why) -> Why;
worse(nxdomain, Why) -> Why;
worse(Before, _) -> Before.

why({shutdown, Why}) -> Why;
why(normal) -> closed;
why(killed) -> killed;
why(_) -> crashed.

-doc "Withdraws a connection, so that it gets no new requests. It is closed when it has no leases.".
-spec drain(erlmcp_httpc_pool_table:connection(), fleet()) -> fleet().
drain(Gun, #fleet{connections = Connections} = Fleet) ->
    case Connections of
        #{Gun := #connection{stage = Stage} = Connection} when Stage =:= open;
                                                               Stage =:= draining ->
            drain(Gun, Connection, Fleet);
        #{} ->
            Fleet
    end.

drain(Gun, #connection{id = Id, place = Place} = Connection, #fleet{slots = Slots} = Fleet) ->
    ok = erlmcp_httpc_pool_table:withdraw(Place, Id, Slots),
    case erlmcp_httpc_pool_table:held(Id, Slots) of
        0 -> close(Gun, Connection, Fleet);
        _ -> put(Gun, Connection#connection{stage = draining}, Fleet)
    end.

close(Gun, #connection{protocol = Protocol}, Fleet) when Protocol =/= http2 ->
    ok = cut(Gun),
    remove(Gun, Fleet);
close(Gun, #connection{protocol = http2} = Connection, Fleet) ->
    ok = gun:shutdown(Gun),
    put(Gun, Connection#connection{stage = closing, since = erlmcp_clock:now_ms()}, Fleet).

-doc """
Finds changes that no message reports: leases of dead holders, and connections that are idle or must
be closed. Acts on them. `Now` is in monotonic milliseconds.
""".
-spec sweep(Now :: integer(), fleet()) -> fleet().
sweep(Now, #fleet{slots = Slots, connections = Connections} = Fleet) ->
    ById = #{Id => {Gun, Connection}
             || Gun := #connection{id = Id} = Connection <- Connections},
    Held = lists:foldl(fun(Row, Counts) -> visit(Row, ById, Slots, Counts) end, #{},
                       erlmcp_httpc_pool_table:leases(Slots)),
    maps:fold(fun(Gun, #connection{id = Id} = Connection, Acc) ->
                  tend(Gun, Connection, maps:get(Id, Held, {0, 0}), Now, Acc)
              end, Fleet, Connections).

%% Counts the leases of living and of dead holders for each connection. On HTTP/2 the stream of a
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

tend(_, #connection{stage = opening}, _, _, Fleet) ->
    Fleet;
tend(Gun, #connection{stage = closing, since = Since}, _, Now, Fleet) ->
    case Now - Since >= ?GOODBYE of
        true -> true = exit(Gun, kill), remove(Gun, Fleet);
        false -> Fleet
    end;
tend(Gun, #connection{id = Id, place = Place} = Connection, {0, Dead}, _, Fleet) when Dead > 0 ->
    ok = erlmcp_httpc_pool_table:withdraw(Place, Id, Fleet#fleet.slots),
    case erlmcp_httpc_pool_table:held(Id, Fleet#fleet.slots) of
        Dead -> ok = cut(Gun), remove(Gun, Fleet);
        _ -> put(Gun, Connection#connection{stage = draining}, Fleet)
    end;
tend(Gun, #connection{seats = Seats} = Connection, {_, Dead}, _, Fleet) when Dead * 2 > Seats ->
    drain(Gun, Connection, Fleet);
tend(Gun, #connection{stage = draining} = Connection, _, _, Fleet) ->
    drain(Gun, Connection, Fleet);
tend(Gun, #connection{place = Place, since = Since} = Connection, {0, 0}, Now, Fleet) ->
    ok = erlmcp_httpc_pool_table:settle(Place, 0, Fleet#fleet.slots),
    Used = case erlmcp_httpc_pool_table:last_used(Place, Fleet#fleet.slots) of
        never -> Since;
        At -> At
    end,
    case Now - Used >= Fleet#fleet.idle_ms of
        true -> drain(Gun, Connection, Fleet);
        false -> Fleet
    end;
tend(_, #connection{place = Place}, {Living, Dead}, _, Fleet) ->
    ok = erlmcp_httpc_pool_table:settle(Place, Living + Dead, Fleet#fleet.slots),
    Fleet.

-doc "Closes all connections at once.".
-spec stop(fleet()) -> ok.
stop(#fleet{connections = Connections}) ->
    lists:foreach(fun cut/1, maps:keys(Connections)).

cut(Socket) when is_port(Socket) ->
    erlmcp_httpc_socket:close(Socket);
cut(Gun) ->
    true = exit(Gun, shutdown),
    ok.
