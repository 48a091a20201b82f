-module(erlmcp_httpd_http1).
-moduledoc """
The short way of an HTTP/1.1 request, in the clear or over TLS: the process of a connection on which
nothing but plain requests come (`m:erlmcp_httpd_http1_head`), each as a whole. They go to the same
stream handlers, and have their answers from them, as cowboy's, without what cowboy does for all of
HTTP.

What is not yet a request is counted (`m:erlmcp_unfinished_messages`), and so is what lies behind
one that is served, of which no more is read while there is no room.

With the first bytes that are anything else the connection becomes cowboy's, which is given them to
read, and stays with it: HTTP/2, other methods and paths, bodies in parts, errors, slow senders.
""".

-export([connection_process/4, init/5]).
-export([system_continue/3, system_terminate/4, system_code_change/4]).

%% Packets until the socket is asked for again: what it has delivered and is not looked at is
%% counted nowhere.
-define(ACTIVE, 16).
%% Times that it is asked until how often its client asks is found out anew.
-define(OFTEN, 6).
%% Bytes that may wait behind a request that is served, beside the next one's message.
-define(BEHIND, 65_536).
%% Milliseconds that a plain request may take to arrive. Who needs longer is cowboy's to wait for.
-define(WHOLE, 1000).
%% Milliseconds in which a client is to have read what it was told last.
-define(LINGER, 1000).
%% The number of the first stream: cowboy's own, if the connection becomes its, begin with 1.
-define(FIRST, (1 bsl 32)).

%% The process has nothing to do and hibernates, and this is what it does when it wakes.
-type rest() :: {idle, fun(() -> rest() | no_return())}.

-record(plain, {
    parent :: pid(),
    ref :: ranch:ref(),
    socket :: erlmcp_httpd_socket:socket(),
    transport :: module(),
    options :: cowboy:opts(),
    idle_ms :: pos_integer(),
    %% milliseconds in which nothing happens before the process hibernates
    quiet_ms = erlmcp_hibernate_delay:first_ms() :: pos_integer(),
    %% how often its socket was asked since that was found out
    asked = 0 :: non_neg_integer(),
    %% what all requests of the connection have in common
    request :: map(),
    %% of the last request, whose head the next one's often is
    head = none :: none | {erlmcp_httpd_http1_head:kept(), Length :: non_neg_integer(),
                           erlmcp_httpd_http1_request:asked()},
    buffer = <<>> :: binary(),
    %% bytes of it, as they are counted, and whether more of them are read
    counted = 0 :: non_neg_integer(),
    paused = false :: boolean(),
    %% milliseconds: when the first byte of an unfinished request came
    since = none :: none | integer(),
    children = cowboy_children:init() :: term(),
    number = ?FIRST :: pos_integer(),
    stream = none :: none | erlmcp_httpd_http1_stream:stream(),
    %% of the answer: nothing, its head (with its length, or in chunks), all
    sent = nothing :: nothing | length | chunks | all,
    closing = false :: boolean()
}).

%% In the clear there is no handshake, and so nothing to wait for.
-doc false.
-spec connection_process(pid(), erlmcp_httpd_connection:from(), module(), cowboy:opts()) ->
    rest() | no_return().
connection_process(Parent, {Ref, _} = From, Transport, Options) ->
    receive
        {handshake, Ref, _, Socket, _} ->
            _ = process_flag(trap_exit, true),
            init(Parent, From, Socket, Transport, Options)
    end.

-doc false.
-spec init(pid(), erlmcp_httpd_connection:from(), erlmcp_httpd_socket:socket(), module(),
           cowboy:opts()) -> rest() | no_return().
init(Parent, {Ref, Peer}, Socket, Transport, #{request_timeout := Idle} = Options) ->
    maybe
        {ok, Sock} ?= Transport:sockname(Socket),
        {ok, Scheme, Certificate} ?= erlmcp_httpd_socket:shown(Transport, Socket),
        ok ?= Transport:setopts(Socket, [{active, ?ACTIVE}]),
        #{erlmcp := #{path := Path}} = Options,
        loop(#plain{parent = Parent, ref = Ref, socket = Socket, transport = Transport,
                    options = Options, idle_ms = Idle,
                    request = erlmcp_httpd_http1_request:common(Ref, {Peer, Sock}, Scheme,
                                                                Certificate, Path)})
    else
        {error, _} -> exit({shutdown, closed})
    end.

loop(Plain) ->
    loop(patience(Plain), Plain).

loop(Patience, #plain{parent = Parent, socket = Socket, quiet_ms = Quiet} = Plain) ->
    receive
        {Tag, Socket, Bytes} when Tag =:= tcp; Tag =:= ssl -> arrived(Bytes, Plain);
        {{Pid, Id}, Message} when Pid =:= self() -> go_on(told(Id, Message, Plain));
        {Tag, Socket} when Tag =:= tcp_passive; Tag =:= ssl_passive ->
            loop(case Plain#plain.paused of
                     true -> Plain;
                     false -> read_on(Plain)
                 end);
        {Tag, Socket} when Tag =:= tcp_closed; Tag =:= ssl_closed ->
            ended({socket_error, closed, 'The socket has been closed.'}, Plain);
        {Tag, Socket, Why} when Tag =:= tcp_error; Tag =:= ssl_error ->
            ended(socket_error(Why), Plain);
        {'EXIT', Parent, shutdown} -> closing(Plain);
        {'EXIT', Parent, Reason} ->
            ended({stop, {exit, Reason}, 'Parent process terminated.'}, Plain);
        {'EXIT', Pid, _} = Exit -> go_on(down(Pid, Exit, Plain));
        {erlmcp_unfinished_messages, {unfinished, go_on}} -> loop(resumed(Plain));
        {erlmcp_unfinished_messages, {unfinished, refused}} -> refused(Plain);
        {timeout, Timer, {shutdown, Pid}} ->
            ok = cowboy_children:shutdown_timeout(Plain#plain.children, Timer, Pid),
            loop(Plain);
        {'$gen_call', From, Call} ->
            ok = cowboy_children:handle_supervisor_call(Call, From, Plain#plain.children, ?MODULE),
            loop(Plain);
        {system, From, Request} ->
            sys:handle_system_msg(Request, From, Parent, ?MODULE, [], Plain);
        _ -> loop(Plain)
    after min(Patience, Quiet) ->
        quiet(Patience, Plain)
    end.

%% The next request may be there already.
go_on(#plain{stream = none, paused = true} = Plain) -> go_on(resumed(Plain));
go_on(#plain{stream = none, buffer = Buffer} = Plain) when Buffer =/= <<>> -> next(Buffer, Plain);
go_on(Plain) -> loop(Plain).

patience(#plain{stream = {_, _, _}}) -> infinity;
patience(#plain{since = none, idle_ms = Idle}) -> Idle;
patience(#plain{since = Since}) -> max(0, Since + ?WHOLE - now_ms()).

quiet(Patience, #plain{quiet_ms = Quiet} = Plain) when Patience > Quiet -> rest(Patience, Plain);
quiet(_, Plain) -> late(Plain).

rest(infinity, Plain) ->
    Resting = resting(Plain),
    {idle, fun() -> loop(Resting) end};
rest(Patience, #plain{quiet_ms = Quiet} = Plain) ->
    Resting = resting(Plain),
    Timer = erlang:start_timer(Patience - Quiet, self(), idle),
    {idle, fun() -> woken(Timer, Patience - Quiet, Resting) end}.

%% What it does not need to go on is not kept: the next head is read anew.
resting(Plain) ->
    ok = erlmcp_connection_cache:forget(),
    Plain#plain{head = none}.

woken(Timer, Rest, #plain{quiet_ms = Quiet} = Plain) ->
    case erlang:cancel_timer(Timer) of
        false -> receive {timeout, Timer, idle} -> loop(0, Plain) end;
        Left ->
            ok = erlmcp_heap:slow_connection(true),
            loop(Plain#plain{quiet_ms = erlmcp_hibernate_delay:next_ms(Quiet, Rest - Left)})
    end.

%% Nobody asked for anything; or somebody did, slowly.
late(#plain{since = none} = Plain) ->
    ended({connection_error, timeout, 'No request-line received before timeout.'}, Plain);
late(Plain) ->
    hand_over(Plain).

%% Its requests.

arrived(Bytes, #plain{buffer = <<>>, stream = none} = Plain) ->
    next(Bytes, Plain);
arrived(Bytes, #plain{buffer = Buffer, stream = none} = Plain) ->
    next(<<Buffer/binary, Bytes/binary>>, Plain);
arrived(Bytes, #plain{buffer = Buffer} = Plain) ->
    #plain{options = #{erlmcp := #{message_bytes := Max}}} = Plain,
    Behind = <<Buffer/binary, Bytes/binary>>,
    case byte_size(Behind) > Max + ?BEHIND of
        true ->
            cut({connection_error, limit_reached, 'More than a request waits behind another.'},
                Plain);
        false ->
            loop(counted(Plain#plain{buffer = Behind}))
    end.

%% What has come of a message that is not there yet. One that is not alone on its connection may
%% wait; any other is here for a second at most.
counted(#plain{buffer = Buffer, counted = Before, paused = Paused, stream = Stream} = Plain) ->
    Size = byte_size(Buffer),
    Counted = Plain#plain{counted = Size},
    case erlmcp_unfinished_messages:count(owner(), Before, Size) of
        wait when Stream =/= none, not Paused -> paused(Counted);
        _ -> Counted
    end.

uncounted(#plain{counted = 0} = Plain) ->
    Plain;
uncounted(#plain{counted = Before} = Plain) ->
    ok = erlmcp_unfinished_messages:count(owner(), Before, 0),
    Plain#plain{counted = 0}.

owner() ->
    {self(), erlmcp_unfinished_messages}.

%% Its client waits with what it has to say. That it has gone is not heard meanwhile.
paused(#plain{socket = Socket, transport = Transport} = Plain) ->
    case Transport:setopts(Socket, [{active, false}]) of
        ok -> Plain#plain{paused = true};
        {error, Why} -> ended(socket_error(Why), Plain)
    end.

resumed(#plain{paused = false} = Plain) ->
    Plain;
resumed(#plain{socket = Socket, transport = Transport} = Plain) ->
    case Transport:setopts(Socket, [{active, ?ACTIVE}]) of
        ok -> Plain#plain{paused = false};
        {error, Why} -> ended(socket_error(Why), Plain)
    end.

%% Another message may have begun since. Behind a request there is nobody to be answered yet.
refused(#plain{stream = Stream} = Plain) ->
    case erlmcp_unfinished_messages:is_refused(owner()) of
        false ->
            loop(Plain);
        true when Stream =:= none ->
            Commands = erlmcp_httpd_response:refuse(erlmcp_unfinished_messages:refusal(), undefined,
                                                    erlmcp_httpd_body:closing('HTTP/1.1')),
            [{response, Status, Headers, Body}, stop] = Commands,
            Said = sent(Status, Headers, Body, Plain#plain{sent = nothing}),
            ended({connection_error, limit_reached, 'There is no room for the request.'}, Said);
        true ->
            cut({connection_error, limit_reached, 'There is no room behind the request.'}, Plain)
    end.

next(Bytes, #plain{head = {Head, Length, Request}} = Plain) ->
    case erlmcp_httpd_http1_head:again(Bytes, Head) of
        {Session, <<Body:Length/binary, Rest/binary>>} ->
            request(erlmcp_httpd_route:in_session(Session, Request), Body, Rest, Plain);
        _ ->
            read(Bytes, Plain)
    end;
next(Bytes, Plain) ->
    read(Bytes, Plain).

read(Bytes, #plain{request = Common, options = Options, number = Id} = Plain) ->
    #{erlmcp := #{plain := Patterns}} = Options,
    case erlmcp_httpd_http1_head:read(Bytes, Patterns) of
        {ok, #{length := Length, headers := Headers} = Read, Head, Behind} ->
            case Behind of
                <<Body:Length/binary, Rest/binary>> ->
                    Asked = erlmcp_httpd_http1_request:new(Id, Read, Common, Options),
                    Kept = erlmcp_httpd_http1_head:kept(Head, Headers),
                    request(Asked, Body, Rest, Plain#plain{head = {Kept, Length, Asked}});
                _ ->
                    unfinished(Bytes, Plain)
            end;
        more -> unfinished(Bytes, Plain);
        other -> others(Bytes, Plain#plain{buffer = Bytes})
    end.

%% Cowboy takes all that stands behind the path for a version, and would say 505.
others(Bytes, Plain) ->
    case erlmcp_httpd_http1_head:has_words_too_many(Bytes) of
        true ->
            _ = sent(400, #{~"content-length" => ~"0", ~"connection" => ~"close"}, <<>>, Plain),
            ended({connection_error, protocol_error, 'A request line has three words.'}, Plain);
        false ->
            hand_over(Plain)
    end.

unfinished(Bytes, #plain{since = none} = Plain) ->
    loop(counted(Plain#plain{buffer = Bytes, since = now_ms()}));
unfinished(Bytes, Plain) ->
    loop(counted(Plain#plain{buffer = Bytes})).

request(#{} = Request, Body, Rest, #plain{number = Id, options = Options} = Plain) ->
    Asked = Request#{streamid => Id, body => Body},
    begin_stream(cowboy_stream, Id, Asked, Options, Rest, Plain);
request(Ready, Body, Rest, #plain{number = Id} = Plain) ->
    begin_stream(erlmcp_httpd_route, Id, Body, Ready, Rest, Plain).

begin_stream(Module, Id, Asked, Known, Rest, Plain) ->
    try Module:init(Id, Asked, Known) of
        {[{response, Status, Headers, Body}, stop], Handler}
                when not Plain#plain.closing, not is_map_key(~"connection", Headers) ->
            at_once(Status, Headers, Body, {Id, Module, Handler}, Rest, Plain);
        {Commands, Handler} ->
            Begun = uncounted(Plain#plain{buffer = Rest, number = Id + 1, since = none,
                                          sent = nothing, stream = {Id, Module, Handler}}),
            go_on(commands(Commands, behind(Begun)))
    catch
        Class:Reason:Stacktrace ->
            ok = erlmcp_httpd_http1_stream:failed(init, [Id, Asked, Known],
                                                  {Class, Reason, Stacktrace}, Plain#plain.options),
            _ = sent(500, #{~"content-length" => ~"0"}, <<>>, Plain),
            ended({internal_error, {Class, Reason}, 'A stream handler failed.'}, Plain)
    end.

%% What lies behind the request was counted with the one before it, and is still held. A few small
%% requests that come together are not worth it.
behind(#plain{buffer = Buffer} = Plain) when byte_size(Buffer) > ?BEHIND -> counted(Plain);
behind(Plain) -> Plain.

%% The answer is there already, all of it: most are, and nothing is kept of them. Nobody knows of
%% the stream, so the next one may have its number.
at_once(Status, Headers, Body, Stream, Rest, Plain) ->
    #plain{socket = Socket, transport = Transport, options = Options} = Plain,
    Answer = [erlmcp_httpd_http1_reply:head(Status, Headers), Body],
    case erlmcp_httpd_socket:send(Transport, Socket, Answer) of
        ok ->
            ok = erlmcp_httpd_http1_stream:terminate(normal, Stream, Options),
            go_on(left(Rest, Plain));
        {error, Why} ->
            ended(socket_error(Why), Plain#plain{stream = Stream})
    end.

left(<<>>, #plain{buffer = <<>>, since = none} = Plain) -> Plain;
left(Rest, Plain) -> uncounted(Plain#plain{buffer = Rest, since = none}).

%% What is told to the stream.

told(Id, Message, #plain{stream = {Id, Module, Handler}, options = Options} = Plain) ->
    try Module:info(Id, Message, Handler) of
        {Commands, Next} -> commands(Commands, Plain#plain{stream = {Id, Module, Next}})
    catch
        Class:Reason:Stacktrace ->
            ok = erlmcp_httpd_http1_stream:failed(info, [Id, Message, Handler],
                                                  {Class, Reason, Stacktrace}, Options),
            commands([{internal_error, {Class, Reason}, 'A stream handler failed.'}], Plain)
    end;
told(_, _, Plain) ->
    Plain.

down(Pid, Exit, #plain{children = Children} = Plain) ->
    case cowboy_children:down(Children, Pid) of
        {ok, undefined, Left} -> Plain#plain{children = Left};
        {ok, Id, Left} -> told(Id, Exit, Plain#plain{children = Left});
        error -> Plain
    end.

%% What the handlers want.

commands([], Plain) ->
    Plain;
commands([{response, Status, Headers, Body} | Commands], #plain{sent = nothing} = Plain) ->
    commands(Commands, sent(Status, Headers, Body, Plain));
commands([stop | _], Plain) ->
    stopped(normal, Plain);
commands([{spawn, Pid, Shutdown} | Commands], #plain{stream = {Id, _, _}} = Plain) ->
    Children = cowboy_children:up(Plain#plain.children, Pid, Id, Shutdown),
    commands(Commands, Plain#plain{children = Children});
commands([{headers, Status, Headers} | Commands], #plain{sent = nothing} = Plain) ->
    {Framed, Sent} = erlmcp_httpd_http1_reply:framed(Headers),
    {Known, Next} = connection(Framed, Plain),
    ok = send(erlmcp_httpd_http1_reply:head(Status, Known), Next),
    commands(Commands, Next#plain{sent = Sent});
commands([{data, IsFin, Data} | Commands], Plain) ->
    ok = data(IsFin, Data, Plain),
    commands(Commands, case IsFin of
                           fin -> Plain#plain{sent = all};
                           nofin -> Plain
                       end);
commands([{internal_error, _, _} = Reason | _], Plain) ->
    stopped(Reason, Plain);
%% The body is there.
commands([{flow, _} | Commands], Plain) ->
    commands(Commands, Plain).

data(_, Data, #plain{sent = length} = Plain) -> send(Data, Plain);
data(IsFin, Data, #plain{sent = chunks} = Plain) -> chunk(IsFin, Data, Plain).

chunk(IsFin, Data, Plain) ->
    case erlmcp_httpd_http1_reply:chunk(IsFin, Data) of
        [] -> ok;
        Chunk -> send(Chunk, Plain)
    end.

sent(Status, Headers, Body, Plain) ->
    {Known, Next} = connection(Headers, Plain),
    ok = send([erlmcp_httpd_http1_reply:head(Status, Known), Body], Next),
    Next#plain{sent = all}.

connection(#{~"connection" := ~"close"} = Headers, Plain) ->
    {Headers, Plain#plain{closing = true}};
connection(Headers, #plain{closing = true} = Plain) ->
    {Headers#{~"connection" => ~"close"}, Plain};
connection(Headers, Plain) ->
    {Headers, Plain}.

send(Bytes, #plain{socket = Socket, transport = Transport} = Plain) ->
    case erlmcp_httpd_socket:send(Transport, Socket, Bytes) of
        ok -> ok;
        {error, Why} -> ended(socket_error(Why), Plain)
    end.

socket_error(Why) ->
    {socket_error, Why, 'An error has occurred on the socket.'}.

stopped(normal, #plain{sent = nothing} = Plain) ->
    stopped(normal, sent(204, #{}, <<>>, Plain));
stopped(Reason, #plain{sent = nothing} = Plain) ->
    stopped(Reason, sent(500, #{~"content-length" => ~"0"}, <<>>, Plain));
stopped(Reason, #plain{sent = chunks} = Plain) ->
    ok = chunk(fin, <<>>, Plain),
    stopped(Reason, Plain#plain{sent = all});
stopped(Reason, #plain{stream = {Id, _, _}, children = Children, closing = Closing} = Plain) ->
    ok = terminate_stream(Reason, Plain),
    Rested = Plain#plain{stream = none, children = cowboy_children:shutdown(Children, Id)},
    %% What has a length and less than that can only be cut.
    case Closing orelse Reason =/= normal orelse Plain#plain.sent =/= all of
        true -> ended(Reason, Rested);
        false -> Rested
    end.

terminate_stream(Reason, #plain{stream = Stream, options = Options}) ->
    erlmcp_httpd_http1_stream:terminate(Reason, Stream, Options).

read_on(#plain{socket = Socket, transport = Transport, asked = Asked} = Plain) ->
    case Transport:setopts(Socket, [{active, ?ACTIVE}]) of
        ok when Asked < ?OFTEN ->
            Plain#plain{asked = Asked + 1};
        ok ->
            ok = erlmcp_heap:slow_connection(false),
            Plain#plain{asked = 0, quiet_ms = erlmcp_hibernate_delay:first_ms()};
        {error, Why} ->
            ended(socket_error(Why), Plain)
    end.

%% Its end.

%% Whoever is being answered is answered; then it is over.
closing(#plain{stream = none} = Plain) ->
    ended({stop, {exit, shutdown}, 'Parent process requested shutdown.'}, Plain);
closing(Plain) ->
    loop(Plain#plain{closing = true}).

%% Nothing more is read.
-spec cut(term(), #plain{}) -> no_return().
cut(Reason, #plain{children = Children} = Plain) ->
    ok = terminate_stream(Reason, Plain),
    ok = cowboy_children:terminate(Children),
    _ = uncounted(Plain),
    exit({shutdown, Reason}).

-spec ended(term(), #plain{}) -> no_return().
ended(Reason, #plain{socket = Socket, transport = Transport, children = Children} = Plain) ->
    ok = terminate_stream(Reason, Plain),
    ok = cowboy_children:terminate(Children),
    _ = uncounted(Plain),
    case Transport:shutdown(Socket, write) of
        ok -> erlmcp_httpd_socket:linger(Transport, Socket, ?LINGER);
        {error, _} -> ok
    end,
    exit({shutdown, Reason}).

%% Cowboy reads what was read of the next request as if it came now.
hand_over(#plain{parent = Parent, ref = Ref, socket = Socket, transport = Transport,
                 options = Options, buffer = Buffer, children = Children} = Plain) ->
    ok = cowboy_children:terminate(Children),
    _ = uncounted(Plain),
    %% Whether it is slow is not looked at any more.
    ok = erlmcp_heap:slow_connection(false),
    _ = [self() ! Message || Message <- erlmcp_httpd_socket:unread(Transport, Socket, Buffer)],
    %% Over TLS, HTTP/2 is agreed on beforehand.
    Protocol = case Buffer of
        <<"PRI", _/binary>> when Transport =:= ranch_tcp -> erlmcp_httpd_http2_writes;
        _ -> erlmcp_httpd_http1_reads
    end,
    Protocol:init(Parent, Ref, Socket, Transport, undefined, Options).

now_ms() ->
    erlang:monotonic_time(millisecond).

-doc false.
-spec system_continue(pid(), list(), #plain{}) -> rest() | no_return().
system_continue(_, _, Plain) ->
    loop(Plain).

-doc false.
-spec system_terminate(term(), pid(), list(), #plain{}) -> no_return().
system_terminate(_, _, _, Plain) ->
    closing(Plain).

-doc false.
-spec system_code_change(#plain{}, module(), term(), term()) -> {ok, #plain{}}.
system_code_change(Plain, _, _, _) ->
    {ok, Plain}.
