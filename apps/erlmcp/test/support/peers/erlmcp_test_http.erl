-module(erlmcp_test_http).
-moduledoc """
A server for the HTTP suites, with one tool for each thing that a call can do, and an HTTP/1.1
client. The client writes exactly the bytes that it is given, and reads one response or one event at
a time. A function that waits fails after 30 seconds, except `session_process/0`.
""".

-export([start/1, stop/1, shown/0, definitions/1, catalog/0, finish/2, running/0, ended/1]).
-export([connect/1, write/2, send/4, close/1, other_side/1, until_refused/2]).
-export([response/1, head/1, body/2, event/1, next_events/1, events/1, read_events/1, chunk/1]).
-export([closed/1]).
-export([call/3, call/4, post/3, message/3, meta/0]).
-export([initialize/2, initialize/3, session_process/0, delete/2]).
-export([start_call/4, get_stream/2, get_stream/3]).

-export_type([server/0, socket/0, reply/0, options/0, headers/0]).

-type socket() :: gen_tcp:socket() | ssl:sslsocket().
-type server() :: #{pid := pid(), port := inet:port_number(), url := binary(), atom() => term()}.
-type headers() :: [{iodata(), iodata()}].
-doc """
A whole response. `messages` are the JSON values in it: that of a JSON body, those of all events of
a stream, or none of an empty body.
""".
-type reply() :: #{
    status := 100..599, headers := #{binary() => binary()}, body := binary(), messages := [term()]
}.
-doc """
The way in which a message is sent. `id` is the id of the request (1), or `none` for a notification.
`session` is a session of `initialize/2`; without one the message is stateless, and `meta` is merged
into its `_meta`. `headers` replace those of the same name, and `none` removes one.
""".
-type options() :: #{
    id => term(), meta => map(), headers => #{binary() => binary() | none}, session => session()
}.
-type session() :: {Id :: binary(), Revision :: binary()}.

-define(TIMEOUT, 30_000).
-define(MODERN, ~"2026-07-28").

%% Servers.

-doc """
Starts a server, linked to the calling process. It listens on HTTP, on a free port, unless the
options say otherwise. Returns its first listener with its `pid`.
""".
-spec start(map()) -> server().
start(Options) ->
    Defaults = #{name => ~"test", version => ~"1.0.0", listen => [{http, #{}}]},
    {ok, Pid} = erlmcp:start_server(maps:merge(Defaults, Options)),
    [Listener | _] = erlmcp:listeners(Pid),
    Listener#{pid => Pid}.

-doc "Stops a server, if it still runs.".
-spec stop(server()) -> ok.
stop(#{pid := Pid}) ->
    case erlmcp:stop_server(Pid) of
        ok -> ok;
        {error, not_found} -> ok
    end.

-doc "Returns a value of the option `tls` of a listener, with a new certificate.".
-spec shown() -> [ssl:tls_server_option()].
shown() ->
    Made = [{digest, sha256}, {key, {namedCurve, secp256r1}}],
    Chain = #{root => Made, intermediates => [], peer => Made},
    #{server_config := Shown} =
        public_key:pkix_test_data(#{server_chain => Chain, client_chain => Chain}),
    Shown.

-doc """
Returns definitions whose tools do what their names say:

- `echo`: returns its `text`
- `add`: returns structured content
- `wait`: tells `Test` that it runs (`running/0`), and returns the term of `finish/2`
- `stream`: reports progress and a log message, and goes on as `wait`
- `progress`: reports 1, 2, 2, 1, 3 of 3
- `log`: logs in each level
- `crash`, `hog`, `slow`: fail, take memory without end, and run past their deadline
""".
-spec definitions(Test :: pid()) -> map().
definitions(Test) ->
    #{tools => [tool(~"echo", fun(#{~"text" := Text}, _) -> Text end),
                tool(~"add", fun(#{~"a" := A, ~"b" := B}, _) -> #{sum => A + B} end),
                tool(~"wait", fun(Arguments, _) -> wait(Test, Arguments) end),
                tool(~"stream", fun(Arguments, Context) ->
                    ok = erlmcp:progress(Context, 1, #{}),
                    ok = erlmcp:log(Context, error, ~"streaming"),
                    wait(Test, Arguments)
                end),
                tool(~"progress", fun(_, Context) ->
                    [ok = erlmcp:progress(Context, N, #{total => 3, message => ~"step"})
                     || N <- [1, 2, 2, 1, 3]],
                    ~"done"
                end),
                tool(~"log", fun(_, Context) ->
                    [ok = erlmcp:log(Context, Level, #{level => Level})
                     || Level <- [debug, info, notice, warning, error, critical, alert, emergency]],
                    ~"logged"
                end),
                tool(~"crash", fun(_, _) -> error(on_purpose) end),
                tool(~"hog", fun(_, _) -> integer_to_binary(length(hog([]))) end),
                (tool(~"slow", fun(Arguments, _) -> wait(Test, Arguments) end))
                    #{timeout_ms => 200}],
      resources => [#{uri => ~"test://text", name => ~"text", mime_type => ~"text/plain",
                      handler => fun(_, _) -> ~"some text" end}],
      resource_templates => [#{uri_template => ~"test://item/{id}", name => ~"item",
                               handler => fun(#{~"id" := Id}, _) -> Id end}],
      prompts => [#{name => ~"hello", handler => fun(_, _) -> ~"Say hello" end}]}.

tool(Name, Handler) ->
    #{name => Name, description => Name, handler => Handler}.

hog(List) ->
    hog([make_ref() | List]).

wait(Test, Arguments) ->
    Test ! {running, self(), Arguments},
    receive
        {finish, Return} -> Return
    end.

-doc """
Returns options with everything that a definition and a content can have. They show what becomes of
it for a client of each revision.
""".
-spec catalog() -> map().
catalog() ->
    Icons = [#{src => ~"data:image/png;base64,AA==", mimeType => ~"image/png", sizes => [~"1x1"]}],
    Shown = #{title => ~"A title", description => ~"A description", icons => Icons,
              meta => #{~"com.example/key" => 1}},
    Annotations = #{audience => [user], priority => 0.5},
    Schema = #{type => object, properties => #{a => #{type => string}}, required => [a]},
    #{title => ~"The test", description => ~"A server to test", icons => Icons,
      website_url => ~"https://example.com", instructions => ~"Call the tools.",
      tools => [Shown#{name => ~"contents", annotations => #{readOnlyHint => true},
                       input_schema => Schema, handler => fun(_, _) -> contents() end},
                Shown#{name => ~"structured",
                       output_schema => #{type => object, properties => #{n => #{type => integer}}},
                       handler => fun(_, _) -> #{n => 1} end},
                #{name => ~"list", output_schema => #{type => array},
                  handler => fun(_, _) -> {structured, [1, ~"two", null]} end},
                #{name => ~"number", handler => fun(_, _) -> {structured, 1.5} end},
                #{name => ~"fails", handler => fun(_, _) -> {error, ~"on purpose"} end},
                #{name => ~"fails_richly", handler => fun(_, _) -> {error, contents()} end},
                #{name => ~"context", handler => fun(_, Context) ->
                    Known = [client_info, client_capabilities, revision, name, method],
                    maps:with(Known, Context)
                  end}],
      resources => [Shown#{uri => ~"test://text", name => ~"text", mime_type => ~"text/plain",
                           size => 9, annotations => Annotations, ttl_ms => 5000,
                           cache_scope => public, handler => fun(_, _) -> ~"some text" end},
                    #{uri => ~"test://blob", name => ~"blob", mime_type => ~"image/png",
                      handler => fun(_, _) -> {blob, <<0, 255, 1>>} end},
                    #{uri => ~"test://both", name => ~"both", handler => fun(_, #{uri := Uri}) ->
                        [#{uri => Uri, text => ~"1"}, #{uri => Uri, blob => ~"AA=="}]
                      end},
                    #{uri => ~"test://empty", name => ~"empty", handler => fun(_, _) -> [] end},
                    #{uri => ~"test://gone", name => ~"gone",
                      handler => fun(_, _) -> {error, not_found} end},
                    #{uri => ~"test://broken", name => ~"broken",
                      handler => fun(_, _) -> {error, ~"disk on fire"} end},
                    #{uri => ~"test://item/direct", name => ~"direct",
                      handler => fun(_, _) -> ~"direct" end}],
      resource_templates => [Shown#{uri_template => ~"test://item/{id}", name => ~"item",
                                    mime_type => ~"text/plain", annotations => Annotations,
                                    handler => fun(#{~"id" := ~"none"}, _) -> {error, not_found};
                                                  (#{~"id" := Id}, _) -> Id
                                               end}],
      prompts => [Shown#{name => ~"greet",
                         arguments => [#{name => ~"who", title => ~"Who", required => true,
                                         description => ~"Whom to greet"},
                                       #{name => ~"how"}],
                         handler => fun(#{~"who" := Who} = Arguments, _) ->
                             How = maps:get(~"how", Arguments, ~"Hello"),
                             <<How/binary, " ", Who/binary>>
                         end},
                  #{name => ~"talk", handler => fun(_, _) ->
                      #{description => ~"Made for you",
                        messages => [#{role => user, content => erlmcp_content:text(~"Hi")}
                                     | [#{role => assistant, content => Content}
                                        || Content <- contents()]]}
                    end},
                  #{name => ~"fails", handler => fun(_, _) -> {error, ~"on purpose"} end}]}.

contents() ->
    [~"plain", erlmcp_content:text(~"text", #{annotations => #{priority => 1}}),
     erlmcp_content:image(<<1, 2>>, ~"image/png"), erlmcp_content:audio(<<3, 4>>, ~"audio/wav"),
     erlmcp_content:resource_link(~"test://text", ~"text", #{mimeType => ~"text/plain"}),
     erlmcp_content:embedded(~"test://text", ~"text/plain", ~"some text"),
     erlmcp_content:embedded(~"test://blob", ~"image/png", {blob, <<0, 255, 1>>})].

-doc "Waits until a tool that waits runs. Returns the process of its handler, and its arguments.".
-spec running() -> {pid(), Arguments :: map()}.
running() ->
    receive
        {running, Pid, Arguments} -> {Pid, Arguments}
    after ?TIMEOUT ->
        error(no_call_runs)
    end.

-doc "Lets a tool that waits return this term.".
-spec finish(pid(), term()) -> ok.
finish(Pid, Return) ->
    Pid ! {finish, Return},
    ok.

-doc "Waits for the end of a process or a port, and returns the exit reason.".
-spec ended(pid() | port()) -> Reason :: term().
ended(Pid) ->
    Monitor = case is_pid(Pid) of
        true -> monitor(process, Pid);
        false -> monitor(port, Pid)
    end,
    receive
        {'DOWN', Monitor, _, Pid, Reason} -> Reason
    after ?TIMEOUT ->
        error({still_alive, Pid})
    end.

%% The client.

-doc """
Connects to a server, in passive mode: over TLS if it has that, and at its own loopback address if
it has one. With a member `from`, the connection comes from that loopback address.
""".
-spec connect(server()) -> socket().
connect(#{port := Port} = Server) ->
    To = case Server of
        #{ip := {127, _, _, _} = Ip} -> Ip;
        #{} -> {127, 0, 0, 1}
    end,
    From = [{ip, Own} || #{from := Own} <- [Server]],
    Options = [binary, {active, false}, {nodelay, true} | From],
    {ok, Socket} = case Server of
        #{url := <<"https:", _/binary>>} ->
            ssl:connect(To, Port, [{verify, verify_none} | Options], ?TIMEOUT);
        #{} ->
            gen_tcp:connect(To, Port, Options, ?TIMEOUT)
    end,
    Socket.

received(Socket, Size) when is_port(Socket) -> gen_tcp:recv(Socket, Size, ?TIMEOUT);
received(Socket, Size) -> ssl:recv(Socket, Size, ?TIMEOUT).

packets(Socket, Type) when is_port(Socket) -> ok = inet:setopts(Socket, [{packet, Type}]);
packets(Socket, Type) -> ok = ssl:setopts(Socket, [{packet, Type}]).

-doc "Writes bytes as they are.".
-spec write(socket(), iodata()) -> ok.
write(Socket, Bytes) ->
    ok = case is_port(Socket) of
        true -> gen_tcp:send(Socket, Bytes);
        false -> ssl:send(Socket, Bytes)
    end.

-doc """
Writes a request to `/mcp`. Adds `Host` and `Content-Length` if the headers lack them. A header with
the value `none` is left out.
""".
-spec send(socket(), Method :: iodata(), [{iodata(), iodata() | none}], Body :: iodata()) ->
    ok.
send(Socket, Method, Headers, Body) ->
    Names = [string:lowercase(iolist_to_binary(Name)) || {Name, _} <- Headers],
    Added = [{Name, Value}
             || {Name, Value} <- [{~"host", ~"127.0.0.1"},
                                  {~"content-length", integer_to_binary(iolist_size(Body))}],
                not lists:member(Name, Names)],
    ok = erlmcp_test_wire:sent(Socket, #{string:lowercase(iolist_to_binary(Name)) =>
                                             iolist_to_binary([Value])
                                         || {Name, Value} <- Headers, Value =/= none},
                               iolist_to_binary(Body)),
    write(Socket, [Method, ~" /mcp HTTP/1.1\r\n",
                   [[Name, ~": ", Value, ~"\r\n"]
                    || {Name, Value} <- Added ++ Headers, Value =/= none],
                   ~"\r\n", Body]).

-doc "Sends a POST on a connection of its own, and returns the response.".
-spec post(server(), headers(), iodata()) -> reply().
post(Server, Headers, Body) ->
    Socket = connect(Server),
    ok = send(Socket, ~"POST", Headers, Body),
    Reply = response(Socket),
    ok = close(Socket),
    Reply.

-doc "Closes the connection.".
-spec close(socket()) -> ok.
close(Socket) when is_port(Socket) -> gen_tcp:close(Socket);
close(Socket) -> ssl:close(Socket).

-doc "Returns the socket of this node that is the other end of this one.".
-spec other_side(gen_tcp:socket()) -> port().
other_side(Socket) ->
    {ok, Own} = inet:sockname(Socket),
    [Found] = [Port || Port <- erlang:ports(), Port =/= Socket,
                       erlang:port_info(Port, name) =:= {name, "tcp_inet"},
                       inet:peername(Port) =:= {ok, Own}],
    Found.

-doc """
Waits until no process listens on a port. The system closes a listening socket a moment after its
process has said so. At the address, no other process should take a free port.
""".
-spec until_refused(inet:ip_address(), inet:port_number()) -> ok.
until_refused(Ip, Port) ->
    erlmcp_test_servers:await(fun() ->
        case gen_tcp:connect(Ip, Port, []) of
            {error, econnrefused} ->
                {ok, ok};
            {error, econnreset} ->
                again;
            {ok, Socket} ->
                ok = gen_tcp:close(Socket),
                again
        end
    end).

-doc "Reads a whole response.".
-spec response(socket()) -> reply().
response(Socket) ->
    {Status, Headers} = head(Socket),
    Body = body(Socket, Headers),
    Messages = erlmcp_test_wire:received(Socket, messages(Headers, Body)),
    #{status => Status, headers => Headers, body => Body, messages => Messages}.

-doc "Reads the status line and the headers of a response.".
-spec head(socket()) -> {Status :: 100..599, #{binary() => binary()}}.
head(Socket) ->
    ok = packets(Socket, http_bin),
    {ok, {http_response, _, Status, _}} = received(Socket, 0),
    Headers = headers(Socket, #{}),
    ok = packets(Socket, raw),
    {Status, Headers}.

headers(Socket, Known) ->
    case received(Socket, 0) of
        {ok, {http_header, _, _, Name, Value}} ->
            headers(Socket, Known#{string:lowercase(Name) => Value});
        {ok, http_eoh} ->
            Known
    end.

-doc "Reads the body that follows these headers.".
-spec body(socket(), #{binary() => binary()}) -> binary().
body(Socket, #{~"transfer-encoding" := ~"chunked"}) ->
    iolist_to_binary(chunks(Socket));
body(Socket, #{~"content-length" := Length}) ->
    read(Socket, binary_to_integer(Length));
body(_, _) ->
    <<>>.

chunks(Socket) ->
    case chunk(Socket) of
        <<>> -> [];
        Chunk -> [Chunk | chunks(Socket)]
    end.

-doc "Reads the next chunk of a chunked body; the last one is empty.".
-spec chunk(socket()) -> binary().
chunk(Socket) ->
    ok = packets(Socket, line),
    {ok, Line} = received(Socket, 0),
    ok = packets(Socket, raw),
    Size = binary_to_integer(string:trim(Line), 16),
    Chunk = read(Socket, Size),
    ~"\r\n" = read(Socket, 2),
    Chunk.

read(_, 0) ->
    <<>>;
read(Socket, Size) ->
    {ok, Bytes} = received(Socket, Size),
    Bytes.

messages(_, <<>>) ->
    [];
messages(#{~"content-type" := ~"application/json"}, Body) ->
    [json:decode(Body)];
messages(#{~"content-type" := ~"text/event-stream"}, Body) ->
    [Message || {_, Message} <- events(Body)].

-doc "Returns the events in the bytes of a stream, which are those from its beginning.".
-spec read_events(binary()) -> [erlmcp_sse_reader:event()].
read_events(Bytes) ->
    %% No event is larger than all of them.
    {Events, _} = erlmcp_sse_reader:push(Bytes, erlmcp_sse_reader:new(byte_size(Bytes) + 1)),
    Events.

-doc """
Returns the messages of the events in these bytes, each with its id. Accepts only what the server is
to write: one line of data for each event, and comments.
""".
-spec events(binary()) -> [{Id :: binary() | none, Message :: term()}].
events(Bytes) ->
    Parts = binary:split(Bytes, ~"\n\n", [global]),
    ~"" = lists:last(Parts),
    lists:append([data(Part, none) || Part <- lists:droplast(Parts)]).

data(<<"id: ", Rest/binary>>, none) ->
    [Id, Event] = binary:split(Rest, ~"\n"),
    data(Event, Id);
data(<<"retry: ", Rest/binary>>, Id) ->
    [_, Event] = binary:split(Rest, ~"\n"),
    data(Event, Id);
%% What has an id alone says where to come back to.
data(<<"data: ">>, Id) when Id =/= none -> [];
data(<<"data: ", Data/binary>>, Id) -> [{Id, json:decode(Data)}];
data(<<":", _/binary>>, none) -> [].

-doc "Reads the next event of a stream whose head was read. Returns `fin` at its end.".
-spec event(socket()) -> {event, Message :: term()} | fin.
event(Socket) ->
    case next_events(Socket) of
        {events, [Message]} -> {event, Message};
        fin -> fin
    end.

-doc """
Reads the next events of a stream, of which a chunk may have several. Returns `fin` at its end.
""".
-spec next_events(socket()) -> {events, Messages :: [term(), ...]} | fin.
next_events(Socket) ->
    case chunk(Socket) of
        <<>> ->
            fin;
        Chunk ->
            case events(Chunk) of
                [] -> next_events(Socket);
                Events -> {events, [erlmcp_test_wire:received(Socket, Message)
                                    || {_, Message} <- Events]}
            end
    end.

-doc "Waits until the peer has closed the connection. Drops what the peer still sends.".
-spec closed(socket()) -> ok.
closed(Socket) ->
    case received(Socket, 0) of
        {ok, _} -> closed(Socket);
        {error, Reason} when Reason =:= closed; Reason =:= econnreset -> ok
    end.

%% Messages.

-doc "Returns the protocol fields of a stateless request.".
-spec meta() -> map().
meta() ->
    #{~"io.modelcontextprotocol/protocolVersion" => ?MODERN,
      ~"io.modelcontextprotocol/clientInfo" => #{name => ~"suite", version => ~"1"},
      ~"io.modelcontextprotocol/clientCapabilities" => #{}}.

-doc "Returns the headers and the body of a request, or of a notification if its `id` is `none`.".
-spec message(Method :: binary(), Params :: map(), options()) -> {headers(), binary()}.
message(Method, Params, #{session := {Id, Revision}} = Options) ->
    ok = erlmcp_test_wire:session(Id, Revision),
    Version = case Revision >= ~"2025-06-18" of
        true -> Revision;
        false -> none
    end,
    Headers = #{~"mcp-session-id" => Id, ~"mcp-protocol-version" => Version},
    {headers_of(Headers, Options), encoded(Method, Params, Options)};
message(Method, Params, Options) ->
    Meta = maps:merge(meta(), maps:get(meta, Options, #{})),
    [Name | _] = [Value || Key <- [name, uri, taskId], #{Key := Value} <- [Params],
                           is_binary(Value)] ++ [none],
    Headers = #{~"mcp-protocol-version" => ?MODERN, ~"mcp-method" => Method, ~"mcp-name" => Name},
    {headers_of(Headers, Options), encoded(Method, Params#{'_meta' => Meta}, Options)}.

headers_of(Headers, Options) ->
    All = maps:merge(Headers#{~"content-type" => ~"application/json",
                              ~"accept" => ~"application/json, text/event-stream"},
                     maps:get(headers, Options, #{})),
    [{Name, Value} || Name := Value <- All, Value =/= none].

encoded(Method, Params, Options) ->
    Message = #{jsonrpc => ~"2.0", method => Method, params => Params},
    iolist_to_binary(json:encode(case maps:get(id, Options, 1) of
        none -> Message;
        Id -> Message#{id => Id}
    end)).

-doc "Sends a stateless request on a connection of its own, and returns the response.".
-spec call(server(), Method :: binary(), Params :: map()) -> reply().
call(Server, Method, Params) ->
    call(Server, Method, Params, #{}).

-doc "Sends a request as `call/3` does, with options.".
-spec call(server(), Method :: binary(), Params :: map(), options()) -> reply().
call(Server, Method, Params, Options) ->
    {Headers, Body} = message(Method, Params, Options),
    post(Server, Headers, Body).

-doc "Opens a session of a revision by `initialize` and `notifications/initialized`.".
-spec initialize(server(), Revision :: binary()) -> session().
initialize(Server, Revision) ->
    #{status := 200, headers := #{~"mcp-session-id" := Id}, messages := [#{~"result" := Result}]} =
        initialize(Server, Revision, #{}),
    #{~"protocolVersion" := Revision} = Result,
    Session = {Id, Revision},
    #{status := 202} =
        call(Server, ~"notifications/initialized", #{}, #{id => none, session => Session}),
    Session.

-doc "Sends `initialize` alone, with headers that replace the usual ones.".
-spec initialize(server(), Revision :: binary(), #{binary() => binary() | none}) -> reply().
initialize(Server, Revision, Headers) ->
    Params = #{protocolVersion => Revision, capabilities => #{},
               clientInfo => #{name => ~"suite", version => ~"1"}},
    None = #{~"mcp-session-id" => none, ~"mcp-protocol-version" => none},
    call(Server, ~"initialize", Params,
         #{session => {~"", Revision}, headers => maps:merge(None, Headers)}).

-doc "Waits until the node has exactly one process of a session, and returns it.".
-spec session_process() -> pid().
session_process() ->
    case [P || P <- processes(),
               proc_lib:translate_initial_call(P) =:= {erlmcp_session, init, 1}] of
        [Pid] -> Pid;
        _ -> receive after 5 -> session_process() end
    end.

-doc "Ends a session by DELETE, and returns the response.".
-spec delete(server(), session()) -> reply().
delete(Server, {Id, _}) ->
    Socket = connect(Server),
    ok = send(Socket, ~"DELETE", [{~"mcp-session-id", Id}], ~""),
    Reply = response(Socket),
    ok = close(Socket),
    Reply.

-doc "Calls a tool that waits, in a session. Returns the connection and the handler's process.".
-spec start_call(server(), session(), Tool :: binary(), Id :: binary() | integer()) ->
    {socket(), pid()}.
start_call(Server, Session, Tool, Id) ->
    Socket = connect(Server),
    {Headers, Body} = message(~"tools/call", #{name => Tool, '_meta' => #{progressToken => 1}},
                              #{session => Session, id => Id}),
    ok = send(Socket, ~"POST", Headers, Body),
    {Call, _} = running(),
    {Socket, Call}.

-doc "Opens a session's stream by GET. Returns the connection and the head of the response.".
-spec get_stream(server(), session()) -> {socket(), {100..599, map()}}.
get_stream(Server, Session) ->
    get_stream(Server, Session, [{~"accept", ~"text/event-stream"}]).

-doc "Opens a session's stream as `get_stream/2` does, with these headers.".
-spec get_stream(server(), session(), headers()) -> {socket(), {100..599, map()}}.
get_stream(Server, {Id, Revision}, Headers) ->
    Socket = connect(Server),
    ok = erlmcp_test_wire:session(Id, Revision),
    ok = send(Socket, ~"GET", [{~"mcp-session-id", Id} | Headers], ~""),
    {Socket, head(Socket)}.
