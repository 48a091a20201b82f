-module(erlmcp_httpd_http1_reads).
-moduledoc """
What an HTTP/1.1 connection of cowboy's hears, in its process, before cowboy does: the transport
that cowboy is given. Cowboy keeps a head until it is whole, and, without a bound, what its client
sends behind a request that is served. Here both are counted (`m:erlmcp_unfinished_messages`), and
what lies behind a request is kept until that is answered: a message's worth of it at most. Then
cowboy is given it in pieces: the next one when cowboy has read the one before and awaits more of a
head or of a body. So what lies behind that request, too, is kept here, all but a piece of it.

As with `m:erlmcp_httpd_http2_reads` cowboy waits for messages with names that are not those of the
socket. Those of the socket it gives to its logger (`m:erlmcp_httpd_log`), and that gives them here.
Bodies are counted by those that read them (`m:erlmcp_httpd_body`).

Internal.
""".

-export([init/6, came/1, began/2, whole/0, over/0]).
-export([name/0, secure/0, messages/0, peername/1, sockname/1, setopts/2, send/2, sendfile/4,
         shutdown/2]).

%% Bytes that may wait behind a request that is served, beside the next one's message.
-define(BEHIND, 65_536).
%% Bytes that cowboy is given at once; few reads are more.
-define(PIECE, 16_384).
%% Packets until a socket is asked for again.
-define(ACTIVE, 4).
%% Milliseconds in which a client is to have read what it was told last.
-define(LINGER, 1000).

-define(DATA, erlmcp_http1_data).
-define(ERROR, erlmcp_http1_error).
-define(MESSAGES, {?DATA, erlmcp_http1_closed, ?ERROR, erlmcp_http1_passive}).

-record(reads, {
    socket :: erlmcp_httpd_socket:socket(),
    transport :: module(),
    %% bytes that may wait behind a request
    most :: pos_integer(),
    %% what comes next: a head, a body, what lies behind a request; or another protocol, or nothing
    phase = head :: head | body | behind | other | over,
    %% bytes of a head that are with cowboy
    size = 0 :: non_neg_integer(),
    %% what is kept: a piece is taken from the one, and what comes is added to the other
    first = <<>> :: binary(),
    behind = <<>> :: binary(),
    %% whether the process is about to hear that the next piece has its turn
    gives = false :: boolean(),
    counted = 0 :: non_neg_integer(),
    paused = false :: boolean(),
    %% whether cowboy has said all, and waits for nothing but the end
    lingers = false :: boolean()
}).

-doc "A connection that is cowboy's from here on.".
-spec init(pid(), ranch:ref(), erlmcp_httpd_socket:socket(), module(),
           ranch_proxy_header:proxy_info(), cowboy:opts()) -> no_return().
init(Parent, Ref, Socket, Transport, ProxyHeader, Options) ->
    #{erlmcp := #{message_bytes := Max}} = Options,
    ok = keep(#reads{socket = Socket, transport = Transport, most = Max + ?BEHIND}),
    cowboy_http:init(Parent, Ref, Socket, ?MODULE, ProxyHeader, Options).

-doc "Returns `true` if a message that cowboy does not know came from the socket, and takes it.".
-spec came(term()) -> boolean().
came(Message) ->
    case get(?MODULE) of
        #reads{transport = Transport} = Reads -> heard(Message, Transport:messages(), Reads);
        %% One that came for what the connection was before (`m:erlmcp_httpd_http1`).
        undefined -> is_tuple(Message) andalso element(1, Message) =:= erlmcp_unfinished_messages
    end.

heard({Tag, _, Bytes}, {Tag, _, _, _}, Reads) ->
    ok = keep(data(Bytes, Reads)),
    true;
heard({?MODULE, give}, _, Reads) ->
    ok = keep(given(Reads#reads{gives = false})),
    true;
%% What came before is for cowboy to hear before.
heard({Tag, _} = Closed, {_, Tag, _, _}, #reads{gives = true}) ->
    tell(Closed);
heard({Tag, _, _} = Error, {_, _, Tag, _}, #reads{gives = true}) ->
    tell(Error);
heard({Tag, Socket}, {_, Tag, _, _}, _) ->
    tell({erlmcp_http1_closed, Socket});
heard({Tag, Socket, Reason}, {_, _, Tag, _}, _) ->
    tell({?ERROR, Socket, Reason});
heard({erlmcp_unfinished_messages, {unfinished, go_on}}, _, Reads) ->
    ok = keep(resumed(Reads)),
    true;
heard({erlmcp_unfinished_messages, {unfinished, refused}}, _, #reads{counted = Before} = Reads) ->
    %% Another message may have begun since.
    _ = case erlmcp_unfinished_messages:is_refused(owner()) of
        true when Before > 0 -> refused(Reads);
        _ -> ok
    end,
    true;
heard(_, _, _) ->
    false.

tell(Message) ->
    _ = self() ! Message,
    true.

data(_, #reads{phase = over} = Reads) ->
    Reads;
data(Bytes, #reads{phase = behind, most = Most, socket = Socket} = Reads) ->
    Kept = kept(Bytes, Reads),
    case kept_size(Kept) > Most of
        true ->
            true = tell({?ERROR, Socket, enobufs}),
            dropped(Kept);
        false ->
            counted(Kept)
    end;
data(Bytes, #reads{phase = Phase, size = Size, first = <<>>, behind = <<>>} = Reads) when
    Phase =:= other; byte_size(Bytes) =< ?PIECE
->
    Told = told(Bytes, Reads),
    %% What is there in one read is not counted.
    case Phase of
        head when Size > 0 -> counted(Told);
        _ -> Told
    end;
data(Bytes, Reads) ->
    counted(giving(kept(Bytes, Reads))).

kept(Bytes, #reads{behind = Behind} = Reads) ->
    Reads#reads{behind = <<Behind/binary, Bytes/binary>>}.

kept_size(#reads{first = First, behind = Behind}) ->
    byte_size(First) + byte_size(Behind).

told(<<>>, Reads) ->
    Reads;
told(Bytes, #reads{socket = Socket, phase = Phase, size = Size} = Reads) ->
    true = tell({?DATA, Socket, Bytes}),
    case Phase of
        head -> Reads#reads{size = Size + byte_size(Bytes)};
        _ -> Reads
    end.

%% When the process hears of this, cowboy has read what it was given before.
giving(#reads{gives = false} = Reads) ->
    true = tell({?MODULE, give}),
    Reads#reads{gives = true};
giving(Reads) ->
    Reads.

given(#reads{first = <<>>, behind = <<>>} = Reads) ->
    Reads;
given(#reads{first = <<>>, behind = Behind} = Reads) ->
    given(Reads#reads{first = Behind, behind = <<>>});
given(#reads{phase = Phase, first = First} = Reads) when Phase =:= head; Phase =:= body ->
    Size = min(?PIECE, byte_size(First)),
    <<Piece:Size/binary, Rest/binary>> = First,
    counted(giving(told(binary:copy(Piece), Reads#reads{first = erlmcp_httpd_socket:own(Rest)})));
given(Reads) ->
    Reads.

%% A body is read as it has room (`m:erlmcp_httpd_body`), and nothing else holds it up.
counted(#reads{size = Head, counted = Before, paused = Paused, phase = Phase} = Reads) ->
    Size = Head + kept_size(Reads),
    Counted = Reads#reads{counted = Size},
    case erlmcp_unfinished_messages:count(owner(), Before, Size) of
        wait when not Paused, Phase =/= body -> paused(Counted);
        ok when Size =:= 0 -> resumed(Counted);
        _ -> Counted
    end.

%% Nothing more is heard.
dropped(Reads) ->
    counted(Reads#reads{phase = over, size = 0, first = <<>>, behind = <<>>}).

owner() ->
    {self(), erlmcp_unfinished_messages}.

%% That its client has gone is not heard meanwhile.
paused(Reads) ->
    active(false, Reads#reads{paused = true}).

resumed(#reads{paused = false} = Reads) -> Reads;
resumed(Reads) -> active(?ACTIVE, Reads#reads{paused = false}).

active(Active, #reads{socket = Socket, transport = Transport} = Reads) ->
    case Transport:setopts(Socket, [{active, Active}]) of
        ok -> ok;
        {error, Reason} -> true = tell({?ERROR, Socket, Reason})
    end,
    Reads.

%% Behind a request there is nobody to be answered yet.
refused(#reads{phase = Phase, socket = Socket, transport = Transport} = Reads) ->
    ok = keep(dropped(Reads)),
    _ = case Phase of
        head ->
            Commands = erlmcp_httpd_response:refuse(erlmcp_unfinished_messages:refusal(), undefined,
                                                    erlmcp_httpd_body:closing('HTTP/1.1')),
            [{response, Status, Headers, Body}, stop] = Commands,
            _ = Transport:send(Socket, [erlmcp_httpd_http1_reply:head(Status, Headers), Body]),
            _ = Transport:shutdown(Socket, write),
            erlmcp_httpd_socket:linger(Transport, Socket, ?LINGER);
        _ ->
            ok
    end,
    tell({?ERROR, Socket, enobufs}).

-doc "A request of this version has a head that is whole, and has a body or not.".
-spec began(cowboy:http_version(), HasBody :: boolean()) -> ok.
began(Version, HasBody) ->
    case get(?MODULE) of
        undefined ->
            ok;
        #reads{first = First, behind = Behind} = Reads when Version =:= 'HTTP/2' ->
            keep((dropped(told(<<First/binary, Behind/binary>>, Reads)))#reads{phase = other});
        Reads when HasBody ->
            keep(resumed(counted(Reads#reads{phase = body, size = 0})));
        Reads ->
            keep(counted(Reads#reads{phase = behind, size = 0}))
    end.

-doc "Its body is there.".
-spec whole() -> ok.
whole() ->
    case get(?MODULE) of
        #reads{phase = body} = Reads -> keep(counted(Reads#reads{phase = behind}));
        _ -> ok
    end.

-doc "Ends the request: what lies behind it is the next one's.".
-spec over() -> ok.
over() ->
    case get(?MODULE) of
        #reads{phase = behind, first = <<>>, behind = <<>>} = Reads ->
            keep(Reads#reads{phase = head});
        #reads{phase = behind} = Reads ->
            keep(giving(Reads#reads{phase = head}));
        _ ->
            ok
    end.

%% The transport.

-doc false.
-spec name() -> atom().
name() ->
    #reads{transport = Transport} = get(?MODULE),
    Transport:name().

-doc false.
-spec secure() -> boolean().
secure() ->
    #reads{transport = Transport} = get(?MODULE),
    Transport:secure().

-doc false.
-spec messages() -> {atom(), atom(), atom(), atom()}.
messages() ->
    case get(?MODULE) of
        #reads{lingers = true, transport = Transport} -> Transport:messages();
        _ -> ?MESSAGES
    end.

-doc false.
-spec peername(erlmcp_httpd_socket:socket()) ->
    {ok, {inet:ip_address(), inet:port_number()}} | {error, atom()}.
peername(Socket) ->
    #reads{transport = Transport} = get(?MODULE),
    Transport:peername(Socket).

-doc false.
-spec sockname(erlmcp_httpd_socket:socket()) ->
    {ok, {inet:ip_address(), inet:port_number()}} | {error, atom()}.
sockname(Socket) ->
    #reads{transport = Transport} = get(?MODULE),
    Transport:sockname(Socket).

%% What is not to be read now is asked for later.
-doc false.
-spec setopts(erlmcp_httpd_socket:socket(), [term()]) -> ok | {error, atom()}.
setopts(Socket, Options) ->
    case get(?MODULE) of
        #reads{paused = true, lingers = false} -> ok;
        #reads{transport = Transport} -> Transport:setopts(Socket, Options)
    end.

-doc false.
-spec send(erlmcp_httpd_socket:socket(), iodata()) -> ok | {error, term()}.
send(Socket, Data) ->
    #reads{transport = Transport} = get(?MODULE),
    Transport:send(Socket, Data).

-doc false.
-spec sendfile(erlmcp_httpd_socket:socket(), file:name_all(), non_neg_integer(),
               non_neg_integer()) -> {ok, non_neg_integer()} | {error, atom()}.
sendfile(Socket, Name, Offset, Bytes) ->
    #reads{transport = Transport} = get(?MODULE),
    Transport:sendfile(Socket, Name, Offset, Bytes).

-doc false.
-spec shutdown(erlmcp_httpd_socket:socket(), read | write | read_write) -> ok | {error, term()}.
shutdown(Socket, How) ->
    #reads{transport = Transport} = Reads = get(?MODULE),
    ok = keep((dropped(Reads))#reads{lingers = true}),
    Transport:shutdown(Socket, How).

keep(Reads) ->
    _ = put(?MODULE, Reads),
    ok.
