-module(erlmcp_test_bad_http_peer).
-moduledoc """
HTTP servers that misbehave, for their suites: what each of them writes, the client that calls it,
and what a call must end with.
""".

-export([each/4, is/1]).
-export([with_client/3, with_peer/3, flushed/0, now_ms/0]).
-export([session/1, discovered/1, complete/2, text/2, initialized/0]).
-export([json/1, typed/2, head/2, chunked/1, chunk/1, write/2, ending/2]).

-import(erlmcp_test_suite, [watch/1]).
-import(erlmcp_test_peer, [result/2]).

-define(WAIT, 30_000).
%% Milliseconds that a call may end later than it should.
-define(SLACK, 10_000).

-doc """
Calls a tool once for each kind of answer, under one watch (`m:erlmcp_test_watch`). Each call has a
client and a server of its own. Each outcome must be expected, and come at most ten seconds after
the call's deadline.
""".
-spec each(Config :: [tuple()], erlmcp_client:options(), fun((term()) -> boolean()),
           [{Kind :: atom(), Answer :: term()}]) -> [].
each(Config, Options, IsExpected, Kinds) ->
    Timeout = maps:get(timeout, Options, ?WAIT),
    {Took, Cost} = erlmcp_test_watch:run(fun() ->
        [{Name, one(Answer, Options#{timeout => Timeout}, IsExpected)} || {Name, Answer} <- Kinds]
    end, watch(Config)),
    ct:pal("milliseconds: ~p~n~p", [Took, Cost]),
    [] = [Wrong || {_, Milliseconds} = Wrong <- Took, not is_integer(Milliseconds)].

one(Answer, #{timeout := Timeout} = Options, IsExpected) ->
    with_client(fun(Message) -> answer(Answer, Message) end, maps:remove(timeout, Options),
                fun(Client) ->
        {ok, _} = erlmcp_client:server(Client),
        Began = now_ms(),
        Outcome = erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => Timeout}),
        Took = now_ms() - Began,
        case IsExpected(Outcome) of
            true when Took < Timeout + ?SLACK ->
                {error, Reason} = Outcome,
                _ = <<(erlmcp_client:format_error(Reason))/binary>>,
                Took;
            true -> {late, Took};
            false -> {unexpected, shown(Outcome)}
        end
    end).

shown(Outcome) ->
    string:slice(io_lib:format("~0tP", [Outcome, 20]), 0, 500).

answer({say, Say}, Message) ->
    Say(Message);
answer(Answer, _) ->
    Answer.

-doc """
Returns a fun that returns `true` for an error with this reason. With `{Kind}`, the reason must be a
tuple of that kind.
""".
-spec is(Reason :: term()) -> fun((term()) -> boolean()).
is(Expected) ->
    fun({error, Reason}) -> fits(Expected, Reason);
       (_) -> false
    end.

fits({Kind}, Reason) -> is_tuple(Reason) andalso element(1, Reason) =:= Kind;
fits(Reason, Reason) -> true;
fits(_, _) -> false.

-doc """
Calls a fun with a client of a server of 2026-07-28. The server answers `server/discover` and
cancellations itself, and other messages as it is told.
""".
-spec with_client(fun((map()) -> term()), map(), fun((pid()) -> Given)) -> Given.
with_client(Answer, Options, Do) ->
    with_peer(fun(#{message := #{~"method" := ~"server/discover"} = Message}) ->
                      discovered(Message);
                 (#{message := #{~"method" := ~"notifications/cancelled"}}) ->
                      {202, [], none};
                 (#{message := Message}) ->
                      Answer(Message)
              end, Options#{era => stateless}, Do).

-doc "Calls a fun with a client of a server that answers all messages as it is told.".
-spec with_peer(fun((map()) -> term()), map(), fun((pid()) -> Given)) -> Given.
with_peer(Answer, Options, Do) ->
    #{url := Url} = Peer = erlmcp_test_peer:http(Answer),
    {ok, Client} = erlmcp_client:start_link({http, Url, Options}),
    Given = Do(Client),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer),
    ok = flushed(),
    Given.

-doc "Drops what such a client and server have sent the calling process.".
-spec flushed() -> ok.
flushed() ->
    receive
        {peer, _} -> flushed();
        {erlmcp, _, _} -> flushed()
    after 0 ->
        ok
    end.

-doc "Returns a monotonic time in milliseconds.".
-spec now_ms() -> integer().
now_ms() ->
    erlang:monotonic_time(millisecond).

-doc "Returns the answer of a server with sessions to a request.".
-spec session(map()) -> term().
session(#{message := #{~"method" := ~"initialize"} = Message}) ->
    {200, [{~"mcp-session-id", ~"s-1"}], result(Message, initialized())};
session(#{message := #{~"method" := ~"resources/subscribe"} = Message}) ->
    {200, [], result(Message, #{})};
session(#{message := none}) ->
    {405, [], none};
session(_) ->
    {202, [], none}.

-doc "Returns the answer of a server of 2026-07-28 to `server/discover`.".
-spec discovered(map()) -> term().
discovered(Message) ->
    {200, [], complete(Message, #{supportedVersions => [~"2026-07-28"],
                                  capabilities => #{tools => #{}}})}.

-doc "Returns a response with a complete result of 2026-07-28.".
-spec complete(map(), map()) -> map().
complete(Message, Result) ->
    result(Message, maps:merge(#{resultType => complete, ttlMs => 0, cacheScope => public},
                               Result)).

-doc "Returns the answer to a call of a tool that returns this text.".
-spec text(map(), binary()) -> term().
text(Message, Text) ->
    {200, [], complete(Message, #{content => [#{type => text, text => Text}]})}.

-doc "Returns the result of `initialize`.".
-spec initialized() -> map().
initialized() ->
    #{protocolVersion => ~"2025-11-25", capabilities => #{tools => #{}, resources => #{}},
      serverInfo => #{name => ~"peer", version => ~"1"}}.

-doc "Returns an answer with this JSON.".
-spec json(term()) -> term().
json(Value) ->
    typed(json, json:encode(Value)).

-doc "Returns an answer with these bytes, which says that they are JSON.".
-spec typed(json, iodata()) -> term().
typed(json, Body) ->
    {200, [{~"content-type", ~"application/json"}], iolist_to_binary(Body)}.

-doc "Returns the head of a JSON response with a body of `Length` bytes.".
-spec head(json, non_neg_integer()) -> iodata().
head(json, Length) ->
    [~"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ",
     integer_to_binary(Length), ~"\r\n\r\n"].

-doc "Returns the head of a response in chunks.".
-spec chunked(json | events) -> iodata().
chunked(Type) ->
    [~"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: ",
     case Type of json -> ~"application/json"; events -> ~"text/event-stream" end, ~"\r\n\r\n"].

-doc "Returns a chunk with these bytes.".
-spec chunk(iodata()) -> iodata().
chunk(Bytes) ->
    [integer_to_binary(iolist_size(Bytes), 16), ~"\r\n", Bytes, ~"\r\n"].

-doc "Writes bytes. Returns `close` if the client has gone.".
-spec write(gen_tcp:socket(), iodata()) -> ok | close.
write(Socket, Bytes) ->
    case gen_tcp:send(Socket, Bytes) of
        ok -> ok;
        {error, _} -> close
    end.

-doc "Writes bytes, and returns `close`, which ends the connection.".
-spec ending(gen_tcp:socket(), iodata()) -> close.
ending(Socket, Bytes) ->
    _ = gen_tcp:send(Socket, Bytes),
    close.
