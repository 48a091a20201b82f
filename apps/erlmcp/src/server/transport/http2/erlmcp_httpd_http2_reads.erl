-module(erlmcp_httpd_http2_reads).
-moduledoc """
What an HTTP/2 connection hears, in cowboy's process of it, before cowboy does. Most requests have
a head that the connection has had before, which cowlib would check again, name by name. They are
taken out (`m:erlmcp_httpd_http2_heads`), and cowboy is told that there is a request
(`m:erlmcp_httpd_http2_request`).

Cowboy waits for messages with the names that its transport says. These are not those of the socket:
what the socket says is a message that cowboy does not know, which it gives to its logger
(`m:erlmcp_httpd_log`), and that gives it here. What is left of it is sent to the process itself,
under the name that cowboy waits for, and so in its order.

Internal.
""".

-export([start/1, messages/0, came/1, take/1, learn/3]).

-type messages() :: {Data :: atom(), Closed :: atom(), Error :: atom(), Passive :: atom()}.

-record(reads, {
    %% as the socket says them
    messages :: messages(),
    known = erlmcp_httpd_http2_heads:new() :: erlmcp_httpd_http2_heads:state(),
    requests = queue:new() ::
        queue:queue({cowboy_stream:streamid(), erlmcp_httpd_http2_heads:head(), Body :: binary()})
}).

-doc "The calling process is that of such a connection, whose socket has messages of these names.".
-spec start(messages()) -> ok.
start(Messages) ->
    keep(#reads{messages = Messages}).

-doc "The names of those that cowboy is sent.".
-spec messages() -> messages().
messages() ->
    {erlmcp_http2_data, erlmcp_http2_closed, erlmcp_http2_error, erlmcp_http2_passive}.

-doc "What came to a process of cowboy's, and cowboy knows nothing of: whether it is of a socket.".
-spec came(term()) -> boolean().
came(Message) ->
    case get(?MODULE) of
        undefined -> false;
        Reads -> heard(Message, Reads)
    end.

heard({Tag, Socket, Bytes}, #reads{messages = {Tag, _, _, _}, known = Known} = Reads) ->
    #reads{requests = Before} = Reads,
    {Left, Requests, Next} = erlmcp_httpd_http2_heads:read(Bytes, Known),
    ok = keep(Reads#reads{known = Next, requests = queue:join(Before, queue:from_list(Requests))}),
    ok = open_window(lists:sum([byte_size(Body) || {_, _, Body} <- Requests])),
    case iolist_to_binary(Left) of
        <<>> -> ok;
        Data -> tell({erlmcp_http2_data, Socket, Data})
    end,
    true;
heard({Tag, Socket}, #reads{messages = {_, Tag, _, _}}) ->
    ok = tell({erlmcp_http2_closed, Socket}),
    true;
heard({Tag, Socket, Reason}, #reads{messages = {_, _, Tag, _}}) ->
    ok = tell({erlmcp_http2_error, Socket, Reason}),
    true;
heard(_, _) ->
    false.

%% Cowboy does not see those octets. So the client is told here that it may send as many again: at
%% once, since what waits to be handled has a bound of its own.
open_window(0) -> ok;
open_window(Octets) -> erlmcp_httpd_http2_writes:write(cow_http2:window_update(Octets)).

tell(Message) ->
    _ = self() ! Message,
    ok.

-doc "The head and the body of a request, if it is one that was taken out.".
-spec take(cowboy_stream:streamid()) -> {erlmcp_httpd_http2_heads:head(), Body :: binary()} | none.
take(StreamId) ->
    #reads{requests = Requests} = Reads = get(?MODULE),
    case queue:out(Requests) of
        {{value, {StreamId, Head, Body}}, Rest} ->
            ok = keep(taken(Body, Rest, Reads)),
            {Head, Body};
        %% Cowboy has refused that one.
        {{value, {Passed, _, Body}}, Rest} when Passed < StreamId ->
            ok = keep(taken(Body, Rest, Reads)),
            take(StreamId);
        _ ->
            none
    end.

taken(Body, Rest, #reads{known = Known} = Reads) ->
    Reads#reads{requests = Rest, known = erlmcp_httpd_http2_heads:handled(byte_size(Body), Known)}.

-doc """
What the head of a request comes to that was not taken out and has a body of that length: it is
asked for where the connection may have the head again.
""".
-spec learn(cowboy_stream:streamid(), Length :: non_neg_integer(),
            fun(() -> erlmcp_httpd_http2_heads:head())) -> ok.
learn(StreamId, Length, Head) ->
    #reads{known = Known} = Reads = get(?MODULE),
    case erlmcp_httpd_http2_heads:is_candidate(StreamId, Known) of
        true -> keep(Reads#reads{known = erlmcp_httpd_http2_heads:learn(Length, Head(), Known)});
        false -> ok
    end.

keep(Reads) ->
    _ = put(?MODULE, Reads),
    ok.
