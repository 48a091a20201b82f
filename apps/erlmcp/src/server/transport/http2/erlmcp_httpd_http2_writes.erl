-module(erlmcp_httpd_http2_writes).
-moduledoc """
What an HTTP/2 connection says, written together: the transport that cowboy's process of such a
connection is given. Cowboy writes each frame of its own, and each reply. Here what it has written
waits until nothing more is to be done at once, for as long as the process has messages; then all of
it is one write, and over TLS one record.

Cowboy asks a transport for the names of its messages whenever it is about to wait for one: that is
when its writes are made. What waits is bounded, and belongs to the process.

Cowboy answers every PING and every SETTINGS of a client, and counts them as frames alone, of which
a busy proxy sends many. So their answers are counted here: over their rate the connection ends with
GOAWAY, ENHANCE_YOUR_CALM.

Internal.
""".

-export([init/6, max_answers/0, write/1, waits_since/0]).
-export([name/0, messages/0, peername/1, sockname/1, setopts/2, send/2, sendfile/4, shutdown/2]).

%% Writes, and bytes of them, that wait for others.
-define(WRITES, 32).
-define(BYTES, 16_384).
%% Bytes that are read at once, at least and at most.
-define(BUFFER, {16_384, 131_072}).

%% Answers to PING and SETTINGS in so many milliseconds: far more than a client sends that measures
%% its connection.
-define(MAX_ANSWERS, {10_000, 10_000}).
%% The highest number of a stream: which streams were read is for cowboy to say.
-define(ANY_STREAM, 16#7fffffff).

-define(SETTINGS, 4).
-define(PING, 6).

-record(writes, {
    socket :: erlmcp_httpd_socket:socket(),
    transport :: module(),
    %% the last first
    waiting = [] :: [iodata()],
    count = 0 :: non_neg_integer(),
    bytes = 0 :: non_neg_integer(),
    %% reductions of the process when the first of them began to wait
    since = 0 :: non_neg_integer(),
    %% answers to PING and SETTINGS, in the period that ends then
    answers = 0 :: non_neg_integer(),
    period_end = erlang:monotonic_time(millisecond) :: integer(),
    %% whether cowboy has said all, and waits for nothing but the end
    lingers = false :: boolean()
}).

-doc "A connection that is HTTP/2 from here on.".
-spec init(pid(), ranch:ref(), erlmcp_httpd_socket:socket(), module(), undefined, cowboy:opts()) ->
    no_return().
init(Parent, Ref, Socket, Transport, undefined, Options) ->
    ok = keep(#writes{socket = Socket, transport = Transport}),
    %% It never hibernates, and what a collection finds old on its heap is mostly of requests that
    %% were under way at the one before: kept for long it is as much again as the rest.
    ok = erlmcp_heap:slow_connection(true),
    ok = erlmcp_httpd_http2_reads:start(Transport:messages()),
    cowboy_http2:init(Parent, Ref, Socket, ?MODULE, undefined, with_known(Options)).

with_known(#{stream_handlers := [erlmcp_httpd_backpressure | Handlers]} = Options) ->
    Options#{stream_handlers := [erlmcp_httpd_backpressure, erlmcp_httpd_http2_request | Handlers],
             %% It sees less than was read.
             dynamic_buffer => ?BUFFER};
with_known(Options) ->
    Options.

-doc """
Returns how many PING and SETTINGS a client may send in how many milliseconds. One more ends its
connection.
""".
-spec max_answers() -> {pos_integer(), Milliseconds :: pos_integer()}.
max_answers() ->
    ?MAX_ANSWERS.

-doc "Writes what is not cowboy's.".
-spec write(iodata()) -> ok.
write(Data) ->
    #writes{socket = Socket} = Writes = kept(),
    settle(send(Socket, Data), Writes).

-doc "The reductions of the calling process, such a connection's, when what waits began to.".
-spec waits_since() -> non_neg_integer() | none | unknown.
waits_since() ->
    case kept() of
        #writes{count = 0} -> none;
        #writes{since = Since} -> Since;
        undefined -> unknown
    end.

-doc false.
-spec name() -> atom().
name() ->
    #writes{transport = Transport} = kept(),
    Transport:name().

-doc false.
-spec messages() -> {atom(), atom(), atom(), atom()}.
messages() ->
    case kept() of
        #writes{lingers = true, transport = Transport} ->
            Transport:messages();
        #writes{count = 0} ->
            erlmcp_httpd_http2_reads:messages();
        Writes ->
            case process_info(self(), message_queue_len) of
                {message_queue_len, 0} -> ok = settle(written(Writes), Writes);
                _ -> ok
            end,
            erlmcp_httpd_http2_reads:messages()
    end.

%% The process reads of it what it reads of any other end of its socket.
settle(ok, _) ->
    ok;
settle({error, Reason}, #writes{socket = Socket}) ->
    {_, _, Error, _} = erlmcp_httpd_http2_reads:messages(),
    self() ! {Error, Socket, Reason},
    ok.

-doc false.
-spec send(erlmcp_httpd_socket:socket(), iodata()) -> ok | {error, term()}.
send(_, <<_:24, Type, 1, 0:32, _/binary>> = Answer) when Type =:= ?SETTINGS; Type =:= ?PING ->
    answered(Answer, kept());
send(_, Data) ->
    waits(Data, kept()).

answered(Answer, #writes{answers = Answers, period_end = End} = Writes) ->
    {Max, Period} = ?MAX_ANSWERS,
    case erlang:monotonic_time(millisecond) of
        Now when Now >= End ->
            waits(Answer, Writes#writes{answers = 1, period_end = Now + Period});
        _ when Answers < Max ->
            waits(Answer, Writes#writes{answers = Answers + 1});
        _ ->
            _ = waits(cow_http2:goaway(?ANY_STREAM, enhance_your_calm, ~"PING, SETTINGS"), Writes),
            {error, enhance_your_calm}
    end.

waits(Data, Kept) ->
    #writes{waiting = Waiting, count = Count, bytes = Bytes} = Writes = begun(Kept),
    More = Writes#writes{waiting = [Data | Waiting], count = Count + 1,
                         bytes = Bytes + iolist_size(Data)},
    case Data of
        %% GOAWAY: calls that take their time to end may follow.
        [<<_:24, 7, _/bits>> | _] -> written(More);
        _ when More#writes.count =:= ?WRITES; More#writes.bytes >= ?BYTES -> written(More);
        _ -> keep(More)
    end.

begun(#writes{count = 0} = Writes) ->
    {reductions, Now} = process_info(self(), reductions),
    Writes#writes{since = Now};
begun(Writes) ->
    Writes.

written(#writes{socket = Socket, transport = Transport, waiting = Waiting} = Writes) ->
    ok = keep(Writes#writes{waiting = [], count = 0, bytes = 0}),
    erlmcp_httpd_socket:send(Transport, Socket, lists:reverse(Waiting)).

-doc false.
-spec sendfile(erlmcp_httpd_socket:socket(), file:name_all(), non_neg_integer(),
               non_neg_integer()) -> {ok, non_neg_integer()} | {error, atom()}.
sendfile(Socket, Name, Offset, Bytes) ->
    #writes{transport = Transport} = Writes = kept(),
    case written(Writes) of
        ok -> Transport:sendfile(Socket, Name, Offset, Bytes);
        {error, _} = Error -> Error
    end.

-doc false.
-spec shutdown(erlmcp_httpd_socket:socket(), read | write | read_write) -> ok | {error, term()}.
shutdown(Socket, How) ->
    #writes{transport = Transport} = Writes = kept(),
    case written(Writes#writes{lingers = true}) of
        ok -> Transport:shutdown(Socket, How);
        {error, _} = Error -> Error
    end.

-doc false.
-spec peername(erlmcp_httpd_socket:socket()) ->
    {ok, {inet:ip_address(), inet:port_number()}} | {error, atom()}.
peername(Socket) ->
    #writes{transport = Transport} = kept(),
    Transport:peername(Socket).

-doc false.
-spec sockname(erlmcp_httpd_socket:socket()) ->
    {ok, {inet:ip_address(), inet:port_number()}} | {error, atom()}.
sockname(Socket) ->
    #writes{transport = Transport} = kept(),
    Transport:sockname(Socket).

-doc false.
-spec setopts(erlmcp_httpd_socket:socket(), [term()]) -> ok | {error, atom()}.
setopts(Socket, Options) ->
    #writes{transport = Transport} = kept(),
    Transport:setopts(Socket, Options).

kept() ->
    get(?MODULE).

keep(Writes) ->
    _ = put(?MODULE, Writes),
    ok.
