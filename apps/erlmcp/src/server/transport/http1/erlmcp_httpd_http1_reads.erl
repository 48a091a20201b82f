-module(erlmcp_httpd_http1_reads).
-moduledoc """
What an HTTP/1.1 connection of cowboy's hears, in its process, before cowboy does: the transport
that cowboy is given. Cowboy keeps a head until it is whole, and, without a bound, what its client
sends behind a request that is served. Here both are counted (`m:erlmcp_unfinished_messages`), and
what lies behind a request is kept until that is answered: a message's worth of it at most.

As with `m:erlmcp_httpd_http2_reads` cowboy waits for messages with names that are not those of the
socket. Those of the socket it gives to its logger (`m:erlmcp_httpd_log`), and that gives them here.
Bodies go on at once: they are counted by those that read them (`m:erlmcp_httpd_body`).

Internal.
""".

-export([init/6, came/1, began/2, whole/0, over/0]).
-export([name/0, secure/0, messages/0, peername/1, sockname/1, setopts/2, send/2, sendfile/4,
         shutdown/2]).

%% Bytes that may wait behind a request that is served, beside the next one's message.
-define(BEHIND, 65_536).
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
    %% bytes of a head that are with cowboy, or of what lies behind
    size = 0 :: non_neg_integer(),
    counted = 0 :: non_neg_integer(),
    behind = <<>> :: binary(),
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

heard({Tag, Socket, Bytes}, {Tag, _, _, _}, Reads) ->
    ok = keep(data(Bytes, Socket, Reads)),
    true;
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

data(Bytes, Socket, #reads{phase = head, size = Size} = Reads) ->
    true = tell({?DATA, Socket, Bytes}),
    Read = Reads#reads{size = Size + byte_size(Bytes)},
    %% What is there in one read is not counted.
    case Size of
        0 -> Read;
        _ -> counted(Read)
    end;
data(Bytes, Socket, #reads{phase = behind, behind = Behind, most = Most} = Reads) ->
    case byte_size(Behind) + byte_size(Bytes) of
        Size when Size > Most ->
            true = tell({?ERROR, Socket, enobufs}),
            (uncounted(Reads))#reads{phase = over, behind = <<>>};
        Size ->
            counted(Reads#reads{behind = <<Behind/binary, Bytes/binary>>, size = Size})
    end;
data(_, _, #reads{phase = over} = Reads) ->
    Reads;
data(Bytes, Socket, Reads) ->
    true = tell({?DATA, Socket, Bytes}),
    Reads.

counted(#reads{size = Size, counted = Before, paused = Paused} = Reads) ->
    Counted = Reads#reads{counted = Size},
    case erlmcp_unfinished_messages:count(owner(), Before, Size) of
        wait when not Paused -> paused(Counted);
        _ -> Counted
    end.

uncounted(#reads{counted = 0} = Reads) ->
    Reads#reads{size = 0};
uncounted(#reads{counted = Before} = Reads) ->
    ok = erlmcp_unfinished_messages:count(owner(), Before, 0),
    resumed(Reads#reads{counted = 0, size = 0}).

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
    ok = keep((uncounted(Reads))#reads{phase = over, behind = <<>>}),
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
        undefined -> ok;
        Reads when Version =:= 'HTTP/2' -> keep((uncounted(Reads))#reads{phase = other});
        Reads when HasBody -> keep((uncounted(Reads))#reads{phase = body});
        Reads -> keep((uncounted(Reads))#reads{phase = behind})
    end.

-doc "Its body is there.".
-spec whole() -> ok.
whole() ->
    case get(?MODULE) of
        #reads{phase = body} = Reads -> keep(Reads#reads{phase = behind});
        _ -> ok
    end.

-doc "Ends the request: what lies behind it is the next one's.".
-spec over() -> ok.
over() ->
    case get(?MODULE) of
        #reads{phase = behind, behind = <<>>} = Reads ->
            keep(Reads#reads{phase = head});
        #reads{phase = behind, socket = Socket, behind = Behind} = Reads ->
            true = tell({?DATA, Socket, Behind}),
            keep(resumed(Reads#reads{phase = head, behind = <<>>}));
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
    ok = keep((uncounted(Reads))#reads{lingers = true}),
    Transport:shutdown(Socket, How).

keep(Reads) ->
    _ = put(?MODULE, Reads),
    ok.
