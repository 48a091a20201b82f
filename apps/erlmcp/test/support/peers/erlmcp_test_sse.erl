-module(erlmcp_test_sse).
-moduledoc """
A client of HTTP+SSE on `m:gun`: a GET stream on one connection, and POST requests on another, or on
the same one with HTTP/2. A function that waits fails after 30 seconds.
""".

-export([open/1, open/2, get/4, close/1]).
-export([event/1, message/1, over/1, is_quiet/1]).
-export([post/2, post/3, post/4, send/2, ask/4, initialize/2, initialize/3]).

-export_type([client/0]).

-type client() :: #{
    reading := pid(), posting := pid(), stream := gun:stream_ref(), endpoint := binary(),
    server := erlmcp_test_http:server(), headers := [{binary(), binary()}]
}.

-define(TIMEOUT, 30_000).

-doc "Opens a client over HTTP/1.1, whose stream has named the endpoint.".
-spec open(erlmcp_test_http:server()) -> client().
open(Server) ->
    open(Server, #{}).

-doc """
Opens a client as `open/1` does, with these options: a `protocol` (`http` or `http2`), `headers` of
each request, the `path` of the stream, and the `flow` of gun. The flow is how many pieces are read
before the client asks for more. The windows of HTTP/2 have 65,535 bytes.
""".
-spec open(erlmcp_test_http:server(), map()) -> client().
open(Server, Options) ->
    Protocol = maps:get(protocol, Options, http),
    Headers = maps:get(headers, Options, []),
    Reading = connect(Server, Protocol),
    Posting = case Protocol of
        http -> connect(Server, http);
        http2 -> Reading
    end,
    Stream = gun:get(Reading, maps:get(path, Options, ~"/sse"),
                     [{~"accept", ~"text/event-stream"} | Headers],
                     maps:with([flow], Options)),
    {response, nofin, 200, Got} = gun:await(Reading, Stream, ?TIMEOUT),
    {_, ~"text/event-stream"} = lists:keyfind(~"content-type", 1, Got),
    Client = #{reading => Reading, posting => Posting, stream => Stream, server => Server,
               headers => Headers},
    {~"endpoint", Endpoint} = event(Client),
    Client#{endpoint => Endpoint}.

connect(#{port := Port}, Protocol) ->
    Windows = #{initial_connection_window_size => 65_535, initial_stream_window_size => 65_535},
    {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [Protocol], retry => 0,
                                                     http2_opts => Windows}),
    {ok, Protocol} = gun:await_up(Connection, ?TIMEOUT),
    put({open, Connection}, true),
    Connection.

-doc """
Sends a request of any method on a connection of its own. Returns the status, the headers and the
body. In place of the body of a response with the status 200, returns `stream`.
""".
-spec get(erlmcp_test_http:server(), Method :: binary(), Path :: binary(),
          [{binary(), binary()}]) ->
    {100..599, #{binary() => binary()}, binary() | stream}.
get(Server, Method, Path, Headers) ->
    Connection = connect(Server, http),
    Stream = gun:request(Connection, Method, Path, Headers, <<>>),
    Response = case gun:await(Connection, Stream, ?TIMEOUT) of
        {response, nofin, 200, Got} -> {200, maps:from_list(Got), stream};
        Head -> response(Connection, Stream, Head)
    end,
    gun:close(Connection),
    Response.

response(_, _, {response, fin, Status, Headers}) ->
    {Status, maps:from_list(Headers), <<>>};
response(Connection, Stream, {response, nofin, Status, Headers}) ->
    {ok, Body} = gun:await_body(Connection, Stream, ?TIMEOUT),
    {Status, maps:from_list(Headers), Body}.

-doc "Closes the connections of a client.".
-spec close(client()) -> ok.
close(#{reading := Reading, posting := Posting}) ->
    lists:foreach(fun(Connection) -> gun:close(Connection) end, lists:usort([Reading, Posting])).

-doc "Reads the next event of the stream. Returns `fin` at its end.".
-spec event(client()) -> {Name :: binary(), Data :: binary()} | fin.
event(#{stream := Stream} = Client) ->
    case get({events, Stream}) of
        [Event | Events] ->
            put({events, Stream}, Events),
            Event;
        _ ->
            read(Client)
    end.

read(#{reading := Connection, stream := Stream} = Client) ->
    Held = case get({held, Stream}) of
        undefined -> <<>>;
        Begun -> Begun
    end,
    case get({ended, Stream}) of
        true ->
            <<>> = Held,
            fin;
        undefined ->
            {data, IsFin, Data} = gun:await(Connection, Stream, ?TIMEOUT),
            Blocks = binary:split(<<Held/binary, Data/binary>>, ~"\n\n", [global]),
            put({held, Stream}, lists:last(Blocks)),
            put({events, Stream}, lists:append([block(Block) || Block <- lists:droplast(Blocks)])),
            _ = IsFin =:= fin andalso put({ended, Stream}, true),
            event(Client)
    end.

%% Only what the server is to write: a name and one line of data, or a comment.
block(<<"event: ", Block/binary>>) ->
    [Name, <<"data: ", Data/binary>>] = binary:split(Block, ~"\n"),
    nomatch = binary:match(Data, ~"\n"),
    [{Name, Data}];
block(<<":", _/binary>>) ->
    [].

-doc "Reads the next message of the stream. Returns `fin` at its end.".
-spec message(client()) -> term().
message(Client) ->
    case event(Client) of
        {~"message", Data} -> json:decode(Data);
        fin -> fin
    end.

-doc """
Waits for the end of a stream that the server cuts. HTTP/2 resets the stream, so that nothing is
held for a client that does not read. The end may have come with the last event.
""".
-spec over(client()) -> cut.
over(#{reading := Connection, stream := Stream} = Client) ->
    case get({ended, Stream}) =:= true orelse gun:await(Connection, Stream, ?TIMEOUT) of
        true -> cut;
        {data, nofin, _} -> over(Client);
        {data, fin, _} -> cut;
        {error, Reason} when Reason =/= timeout -> cut
    end.

-doc "Returns `true` if nothing was sent before the answer to a ping that is sent now.".
-spec is_quiet(client()) -> boolean().
is_quiet(Client) ->
    Id = <<"quiet-", (integer_to_binary(erlang:unique_integer([positive])))/binary>>,
    ok = send(Client, #{jsonrpc => ~"2.0", id => Id, method => ~"ping"}),
    message(Client) =:= #{~"jsonrpc" => ~"2.0", ~"id" => Id, ~"result" => #{}}.

-doc "Posts these bytes to the endpoint that the stream named, and returns the response.".
-spec post(client(), iodata()) -> {100..599, #{binary() => binary()}, binary()}.
post(#{endpoint := Endpoint} = Client, Body) ->
    post(Client, Endpoint, Body).

-doc "Posts these bytes to another path, and returns the response.".
-spec post(client(), Path :: binary(), iodata()) -> {100..599, #{binary() => binary()}, binary()}.
post(#{headers := Headers} = Client, Path, Body) ->
    post(Client, Path, [{~"content-type", ~"application/json"} | Headers], Body).

-doc "Posts these bytes to a path with these headers, and returns the response.".
-spec post(client(), Path :: binary(), [{binary(), binary()}], iodata()) ->
    {100..599, #{binary() => binary()}, binary()}.
post(#{posting := Connection}, Path, Headers, Body) ->
    Stream = gun:post(Connection, Path, Headers, Body),
    response(Connection, Stream, gun:await(Connection, Stream, ?TIMEOUT)).

-doc "Sends a message, which must be accepted.".
-spec send(client(), Message :: map() | [map()]) -> ok.
send(Client, Message) ->
    {202, _, <<>>} = post(Client, json:encode(Message)),
    ok.

-doc "Sends a request, and returns its answer, which must be the next message.".
-spec ask(client(), Id :: term(), Method :: binary(), Params :: map()) -> map().
ask(Client, Id, Method, Params) ->
    ok = send(Client, erlmcp_test_line:request(Id, Method, Params)),
    #{~"id" := Id} = message(Client).

-doc "Opens a session of a revision, and returns the result of `initialize`.".
-spec initialize(client(), Revision :: binary()) -> map().
initialize(Client, Revision) ->
    initialize(Client, Revision, #{}).

-doc "Opens a session as `initialize/2` does, with these capabilities.".
-spec initialize(client(), Revision :: binary(), Capabilities :: map()) -> map().
initialize(Client, Revision, Capabilities) ->
    Params = #{protocolVersion => Revision, capabilities => Capabilities,
               clientInfo => #{name => ~"suite", version => ~"1"}},
    #{~"result" := #{~"protocolVersion" := Revision} = Result} =
        ask(Client, ~"initialize", ~"initialize", Params),
    ok = send(Client, erlmcp_test_line:notification(~"notifications/initialized", #{})),
    Result.
