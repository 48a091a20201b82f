-module(erlmcp_httpd_http2).
-moduledoc """
An HTTP/2 connection. Cowboy serves it: this module starts `m:cowboy_http2` in the calling process,
and is the transport through which cowboy reads and writes. It passes everything on to the transport
of the socket.

A client that sends too many PING and SETTINGS frames (`max_answers/0`) loses its connection, with
GOAWAY and ENHANCE_YOUR_CALM. When the server ends, the streams that do not end by themselves are
told so (`stream_lasts/1`). A connection over TLS ends with a closure alert, which cowboy does not
send. The scheme of a request is that of the connection (`with_scheme/1`).

Sources: RFC 9113, sections 8.3.1 and 10.5; RFC 8446, section 6.1.

Internal.
""".

-export([init/6, max_answers/0, with_scheme/1]).
-export([call_began/0, call_ended/0, has_calls/0]).
-export([stream_lasts/1, stream_ended/1, count_body/2, refuse_largest_body/0]).
%% The transport.
-export([name/0, messages/0, peername/1, sockname/1, setopts/2, send/2, shutdown/2]).

%% The most answers to PING and SETTINGS, and the milliseconds of this rate. A client that measures
%% its connection needs far fewer. Cowboy bounds their rate only together with that of all other
%% frames, of which a busy proxy sends many.
-define(MAX_ANSWERS, {10_000, 10_000}).
%% The highest number of a stream, since only cowboy knows which streams it has handled. Cowboy also
%% sends this number when it begins to close the connection.
-define(ANY_STREAM, 16#7fffffff).

%% Milliseconds in which a client over TLS may end the connection too.
-define(LINGER, 1_000).

-define(SETTINGS, 4).
-define(PING, 6).
-define(GOAWAY, 7).

%% The state is in the process dictionary, since cowboy passes only the socket to a transport.
-record(connection, {
    transport :: module(),
    %% running calls that have processes of their own
    calls = 0 :: non_neg_integer(),
    %% streams that end when the connection begins to close
    lasting = [] :: [{pid(), cowboy_stream:streamid()}],
    %% bytes of the bodies that are not complete, by their requests, and their sum
    bodies = #{} :: #{erlmcp_call:owner() => pos_integer() | refused},
    bytes = 0 :: non_neg_integer(),
    %% answers in the period that ends at this time
    answers = 0 :: non_neg_integer(),
    period_end = erlmcp_clock:now_ms() :: integer()
}).

-doc "Serves an HTTP/2 connection in the calling process, which ends with the connection.".
-spec init(pid(), ranch:ref(), erlmcp_httpd_connection:socket(), module(), undefined,
           cowboy:opts()) -> no_return().
init(Parent, Ref, Socket, Transport, undefined, Options) ->
    _ = put(?MODULE, #connection{transport = Transport}),
    ok = erlmcp_heap:slow_connection(true),
    cowboy_http2:init(Parent, Ref, Socket, ?MODULE, undefined, Options).

-doc """
Returns how many PING and SETTINGS frames a client may send in how many milliseconds. One more ends
its connection.
""".
-spec max_answers() -> {pos_integer(), Milliseconds :: pos_integer()}.
max_answers() ->
    ?MAX_ANSWERS.

-doc """
Returns a request with the scheme of the connection: `https` over TLS, and otherwise `http`.
Cowboy's requests have the scheme that the client has written in `:scheme`, which may be any. A
default port changes with the scheme. The calling process must be an HTTP/2 connection.
""".
-spec with_scheme(cowboy_req:req()) -> cowboy_req:req().
with_scheme(#{scheme := Written, port := Port} = Request) ->
    case scheme(transport()) of
        Written -> Request;
        Own -> Request#{scheme := Own, port := port(Port, Written, Own)}
    end.

scheme(ranch_ssl) -> ~"https";
scheme(ranch_tcp) -> ~"http".

%% Where the client has written no port, cowboy takes the default of the written scheme.
port(443, ~"https", ~"http") -> 80;
port(80, ~"http", ~"https") -> 443;
port(undefined, _, ~"http") -> 80;
port(undefined, _, ~"https") -> 443;
port(Port, _, _) -> Port.

-doc """
Counts a call of the calling process, which must be an HTTP/2 connection. The call begins to run in
a process of its own, and would end with the connection.
""".
-spec call_began() -> ok.
call_began() ->
    count_calls(1).

-doc "Counts the end of a call that `call_began/0` has counted.".
-spec call_ended() -> ok.
call_ended() ->
    count_calls(-1).

count_calls(More) ->
    #connection{calls = Calls} = Connection = get(?MODULE),
    _ = put(?MODULE, Connection#connection{calls = Calls + More}),
    ok.

-doc """
Returns `true` if calls of the calling process, which must be an HTTP/2 connection, run in processes
of their own. Then no quick call may run in the connection's process (`m:erlmcp_inline_call`). A
quick call that did not end in time would end the connection, and these calls with it.
""".
-spec has_calls() -> boolean().
has_calls() ->
    #connection{calls = Calls} = get(?MODULE),
    Calls > 0.

-doc """
Registers a stream of the calling process. The process is sent `{Stream, closing}` when its
connection begins to close. Has no effect in a connection of HTTP/1.1, which sends that message
itself.
""".
-spec stream_lasts(Stream :: {pid(), cowboy_stream:streamid()}) -> ok.
stream_lasts(Stream) ->
    change_lasting(fun(Lasting) -> [Stream | Lasting] end).

-doc """
Undoes `stream_lasts/1` for a stream that has ended. Has no effect if the stream is not registered.
""".
-spec stream_ended(Stream :: {pid(), cowboy_stream:streamid()}) -> ok.
stream_ended(Stream) ->
    change_lasting(fun(Lasting) -> lists:delete(Stream, Lasting) end).

change_lasting(Change) ->
    case get(?MODULE) of
        #connection{lasting = Lasting} = Connection ->
            _ = put(?MODULE, Connection#connection{lasting = Change(Lasting)}),
            ok;
        undefined ->
            ok
    end.

-doc """
Counts the bytes of the unfinished body of the owner's request, in place of those that were counted
before. A body with 0 bytes is no longer counted. Further bytes of a body that was refused
(`refuse_largest_body/0`) are not counted. Returns the bytes of all unfinished bodies of the calling
process, which must be an HTTP/2 connection.
""".
-spec count_body(erlmcp_call:owner(), non_neg_integer()) -> Sum :: non_neg_integer().
count_body(Owner, Bytes) ->
    #connection{bodies = Bodies, bytes = Sum} = get(?MODULE),
    case {Bodies, Bytes} of
        {#{Owner := refused}, 0} -> change_bodies(maps:remove(Owner, Bodies), Sum);
        {#{Owner := refused}, _} -> Sum;
        {#{Owner := Before}, 0} -> change_bodies(maps:remove(Owner, Bodies), Sum - Before);
        {#{Owner := Before}, _} -> change_bodies(Bodies#{Owner := Bytes}, Sum - Before + Bytes);
        {_, 0} -> Sum;
        {_, _} -> change_bodies(Bodies#{Owner => Bytes}, Sum + Bytes)
    end.

change_bodies(Bodies, Sum) ->
    _ = put(?MODULE, (get(?MODULE))#connection{bodies = Bodies, bytes = Sum}),
    Sum.

-doc """
Refuses the largest unfinished body that the calling process counts (`count_body/2`), and returns
the owner of its request. The body is no longer counted. At least one body must be counted.
""".
-spec refuse_largest_body() -> erlmcp_call:owner().
refuse_largest_body() ->
    #connection{bodies = Bodies, bytes = Sum} = get(?MODULE),
    {Largest, Owner} = lists:max([{Bytes, Of} || Of := Bytes <- Bodies, Bytes =/= refused]),
    _ = change_bodies(Bodies#{Owner := refused}, Sum - Largest),
    Owner.

-doc false.
-spec send(erlmcp_httpd_connection:socket(), iodata()) -> ok | {error, term()}.
send(Socket, [<<_:24, ?GOAWAY, 0:41, ?ANY_STREAM:31, _:32>> | _] = Announcement) ->
    #connection{transport = Transport, lasting = Lasting} = get(?MODULE),
    ok = lists:foreach(fun(Stream) -> self() ! {Stream, closing} end, Lasting),
    Transport:send(Socket, Announcement);
send(Socket, <<_:24, Type, 1, 0:32, _/binary>> = Answer) when Type =:= ?SETTINGS; Type =:= ?PING ->
    #connection{transport = Transport, answers = Answers, period_end = End} = Counted =
        get(?MODULE),
    {Max, Period} = ?MAX_ANSWERS,
    case erlmcp_clock:now_ms() of
        Now when Now >= End ->
            _ = put(?MODULE, Counted#connection{answers = 1, period_end = Now + Period}),
            Transport:send(Socket, Answer);
        _ when Answers < Max ->
            _ = put(?MODULE, Counted#connection{answers = Answers + 1}),
            Transport:send(Socket, Answer);
        _ ->
            _ = Transport:send(Socket, cow_http2:goaway(?ANY_STREAM, enhance_your_calm,
                                                        ~"PING, SETTINGS")),
            {error, enhance_your_calm}
    end;
send(Socket, Data) ->
    (transport()):send(Socket, Data).

-doc false.
-spec name() -> atom().
name() ->
    (transport()):name().

-doc false.
-spec messages() -> {atom(), atom(), atom(), atom()}.
messages() ->
    (transport()):messages().

-doc false.
-spec peername(erlmcp_httpd_connection:socket()) ->
    {ok, {inet:ip_address(), inet:port_number()}} | {error, atom()}.
peername(Socket) ->
    (transport()):peername(Socket).

-doc false.
-spec sockname(erlmcp_httpd_connection:socket()) ->
    {ok, {inet:ip_address(), inet:port_number()}} | {error, atom()}.
sockname(Socket) ->
    (transport()):sockname(Socket).

-doc false.
-spec setopts(erlmcp_httpd_connection:socket(), [term()]) -> ok | {error, atom()}.
setopts(Socket, Options) ->
    (transport()):setopts(Socket, Options).

-doc false.
-spec shutdown(erlmcp_httpd_connection:socket(), write) -> ok | {error, term()}.
shutdown(Socket, write) ->
    case transport() of
        %% An error tells cowboy that there is nothing left to wait for.
        ranch_ssl ->
            ok = erlmcp_tls_accept:finish(Socket, ?LINGER),
            {error, closed};
        Transport ->
            Transport:shutdown(Socket, write)
    end.

transport() ->
    #connection{transport = Transport} = get(?MODULE),
    Transport.
