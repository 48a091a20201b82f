-module(erlmcp_httpc_sse_exchange).
-moduledoc """
The exchange of a message by HTTP+SSE. The sending process makes a POST request, and gets its
messages from the stream's process (`m:erlmcp_httpc_sse_process`). No process stands between the
sender and the connection of the POST.

Internal.
""".

-export([start/2, received/2, abort/1]).

-export_type([exchange/0, handle/0]).

-record(exchange, {
    process :: pid(),
    ref :: erlmcp_line_exchanges:ref(),
    generation :: pos_integer(),
    %% The request that carries the message, until the server has taken it.
    post = taken :: taken | erlmcp_httpc_exchange:exchange(),
    %% A response that came before the POST was answered, which keeps its connection until then.
    response = none :: none | erlmcp_channel:event()
}).

-opaque exchange() :: #exchange{}.
-type handle() :: {pid(), erlmcp_httpc_exchange:route()}.

-doc "Sends on the stream of the message's generation. Its events come to the calling process.".
-spec start(erlmcp_channel:outgoing(), handle()) ->
    {ok, exchange()} | {error, erlmcp_channel:reason()}.
start(#{kind := Kind, id := Id, deadline := Deadline, generation := Generation} = Outgoing,
      {Pid, Route}) ->
    Ref = monitor(process, Pid, [{alias, explicit_unalias}]),
    Exchange = #{pid => self(), kind => Kind, id => Id, token => maps:get(token, Outgoing, none),
                 deadline => Deadline},
    Pid ! {open, Ref, Exchange, Generation},
    receive
        {Ref, {opened, Path}} ->
            post(Outgoing, Route#{path := Path},
                 #exchange{process = Pid, ref = Ref, generation = Generation});
        {Ref, {failed, Reason}} ->
            ok = over(Ref),
            {error, Reason};
        {'DOWN', Ref, process, _, _} ->
            ok = over(Ref),
            {error, {closed, unprocessed}}
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        ok = leave(Pid, Ref),
        {error, timeout}
    end.

%% The POST's own response only acknowledges the message; the answer comes on the stream.
post(#{message := Message, headers := Headers, deadline := Deadline, kind := Kind}, Route,
     #exchange{process = Pid, ref = Ref} = X) ->
    Taken = #{kind => notification, id => none, session => none, message => Message,
              headers => Headers, deadline => Deadline},
    case erlmcp_httpc_exchange:start(Taken, Route) of
        {ok, Post} when Kind =:= request; Kind =:= stream ->
            {ok, X#exchange{post = Post}};
        {ok, Post} ->
            ok = over(Ref),
            {ok, X#exchange{post = Post}};
        {error, _} = Error ->
            ok = leave(Pid, Ref),
            Error
    end.

over(Ref) ->
    _ = unalias(Ref),
    true = demonitor(Ref, [flush]),
    ok.

leave(Pid, Ref) ->
    ok = over(Ref),
    ok = forget(Ref),
    Pid ! {abort, Ref},
    ok.

forget(Ref) ->
    receive
        {Ref, _} -> forget(Ref)
    after 0 ->
        ok
    end.

-doc "Returns the events in a message of the mailbox; `other` for a message of something else.".
-spec received(term(), exchange()) -> {[erlmcp_channel:event()], exchange()} | other.
received({Ref, Event}, #exchange{ref = Ref} = X) ->
    stream_event(Event, X);
received({'DOWN', Ref, process, _, Why}, #exchange{ref = Ref} = X) ->
    stream_event({failed, {closed, Why}}, X);
received(_, #exchange{post = taken}) ->
    other;
received(Message, #exchange{post = Post} = X) ->
    case erlmcp_httpc_exchange:received(Message, Post) of
        {Events, Next} -> posted(Events, X#exchange{post = Next});
        other -> other
    end.

stream_event({message, {response, _, _}} = Event, #exchange{ref = Ref, post = Post} = X) ->
    ok = over(Ref),
    case Post of
        taken -> {[Event], X};
        _ -> {[], X#exchange{response = Event}}
    end;
stream_event({message, _} = Event, X) ->
    {[Event], X};
stream_event({failed, _} = Event, #exchange{ref = Ref} = X) ->
    ok = over(Ref),
    {[Event], unposted(X)}.

unposted(#exchange{post = taken} = X) ->
    X;
unposted(#exchange{post = Post} = X) ->
    _ = erlmcp_httpc_exchange:abort(Post),
    X#exchange{post = taken}.

posted([], X) ->
    {[], X};
posted([sent | _], #exchange{response = none} = X) ->
    {[sent], X#exchange{post = taken}};
posted([Event | _], #exchange{response = Response} = X) when
    Response =/= none, Event =:= sent orelse element(1, Event) =:= failed
->
    {[Response], X#exchange{post = taken, response = none}};
posted([{failed, {http, 404, _, _}} | _], #exchange{process = Pid, generation = G} = X) ->
    %% The session of the stream has ended, so the stream is useless.
    Pid ! {lost, G},
    failed({closed, unprocessed}, X);
posted([{failed, Reason} | _], X) ->
    failed(Reason, X);
posted([_ | Events], X) ->
    posted(Events, X).

failed(Reason, #exchange{process = Pid, ref = Ref} = X) ->
    ok = leave(Pid, Ref),
    {[{failed, Reason}], X#exchange{post = taken}}.

-doc "Ends it; `false`, for the server does not learn of it.".
-spec abort(exchange()) -> false.
abort(#exchange{process = Pid, ref = Ref} = X) ->
    _ = unposted(X),
    ok = leave(Pid, Ref),
    false.
