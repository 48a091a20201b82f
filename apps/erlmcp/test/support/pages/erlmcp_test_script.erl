-module(erlmcp_test_script).
-moduledoc """
Runs the protocol blocks of a page (`m:erlmcp_test_page`) against a server, as a client over HTTP
would. In 2026-07-28 each request has the fields and headers of that revision. An older revision has
a session, whose GET stream is read beside the requests.

What a page shows of an object is a part of it: members that it leaves out may be there. Arrays are
equal in length, and element by element; `"..."` stands for any string. `"$name"` is the member of
that name in the newest result that has it, and `"$task.id"` that member's member. `"$cursor"` is
`nextCursor`, and `"$id"` the id of the latest request.

A page shows the stream of a call as a whole: a message on it that is not shown fails the page. Of
the streams that stay open (`subscriptions/listen`, GET) a page shows what it likes. It may leave
out notifications of the same method that come before the one that it shows, and all that comes
after it.
""".

-export([run/2]).

-record(stream, {
    reader :: pid(),
    id :: integer() | none,
    method :: binary(),
    came = [] :: [map()],
    %% the status of a response that has ended
    ended = open :: open | 100..599,
    answered = false :: boolean()
}).

-record(client, {
    server :: erlmcp_test_http:server(),
    revision :: binary(),
    session = none :: none | {binary(), binary()},
    next = 1 :: pos_integer(),
    %% the newest first
    streams = [] :: [#stream{}],
    results = [] :: [map()],
    %% ids of the server's requests, the oldest first
    asked = [] :: [term()]
}).

-define(TIMEOUT, 30_000).
-define(MODERN, ~"2026-07-28").

-doc "Runs a block, and fails with the line that is not true.".
-spec run(erlmcp_test_page:block(), erlmcp_test_http:server()) -> ok.
run({Revision, Steps}, Server) ->
    Client = opened(Steps, #client{server = Server, revision = Revision}),
    ended(lists:foldl(fun step/2, Client, Steps)).

%% A session begins with what the block begins with, if that is `initialize`.
opened(_, #client{revision = ?MODERN} = Client) ->
    Client;
opened([{_, {send, ~"initialize", _}} | _], Client) ->
    Client;
opened(_, #client{revision = Revision} = Client) ->
    Params = #{protocolVersion => Revision, capabilities => capabilities(),
               clientInfo => #{name => ~"page", version => ~"1"}},
    Steps = [{0, {send, ~"initialize", Params}},
             {0, {expect, result, #{~"protocolVersion" => Revision}}}],
    lists:foldl(fun step/2, Client, Steps).

capabilities() ->
    #{sampling => #{}, elicitation => #{form => #{}, url => #{}}, roots => #{},
      extensions => #{~"io.modelcontextprotocol/tasks" => #{}}}.

step({Line, {send, Method, Params}}, Client) ->
    send(Method, filled(Params, Line, Client), Client);
step({Line, {answer, Result}}, #client{asked = [Id | Asked]} = Client) ->
    message(#{jsonrpc => ~"2.0", id => Id, result => filled(Result, Line, Client)},
            Client#client{asked = Asked});
step({Line, {answer, _}}, _) ->
    error({nothing_was_asked, Line});
step({Line, {expect, {method, Method}, Params}}, Client) ->
    told(Line, Method, filled(Params, Line, Client), Client, deadline());
step({Line, {expect, What, Expected}}, Client) ->
    case lists:search(fun(Stream) -> is_unanswered(Stream) end, Client#client.streams) of
        {value, #stream{id = Id}} ->
            answered(Line, What, filled(Expected, Line, Client), Id, Client, deadline());
        false ->
            error({nothing_was_requested, Line})
    end.

is_unanswered(#stream{id = Id, answered = Answered}) ->
    Id =/= none andalso not Answered.

deadline() ->
    erlang:monotonic_time(millisecond) + ?TIMEOUT.

%% Sending.

%% On HTTP a client of 2026-07-28 cancels a request by closing its stream.
send(~"notifications/cancelled", #{~"requestId" := Id},
     #client{revision = ?MODERN, streams = Streams} = Client) ->
    #stream{reader = Reader} = Stream = lists:keyfind(Id, #stream.id, Streams),
    stopped(Reader),
    update(Stream#stream{ended = 499}, Client);
send(<<"notifications/", _/binary>> = Method, Params, Client) ->
    message(#{jsonrpc => ~"2.0", method => Method, params => Params}, Client);
send(Method, Params, #client{next = Id, streams = Streams, server = Server} = Client) ->
    {Headers, Body} = erlmcp_test_http:message(Method, plain(Params, Client),
                                               options(Method, Params, Client)),
    Reader = reader(fun() ->
        Socket = erlmcp_test_http:connect(Server),
        ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
        {Socket, erlmcp_test_http:head(Socket)}
    end),
    Stream = #stream{reader = Reader, id = Id, method = Method},
    Sent = Client#client{next = Id + 1, streams = [Stream | Streams]},
    case Method of
        ~"initialize" -> entered(Reader, Sent, deadline());
        _ -> Sent
    end.

%% `_meta` is merged into the client's own.
plain(Params, #client{revision = ?MODERN}) -> maps:remove(~"_meta", Params);
plain(Params, _) -> Params.

options(Method, Params, #client{revision = ?MODERN, next = Id}) ->
    Capabilities = #{~"io.modelcontextprotocol/clientCapabilities" => capabilities()},
    #{id => Id, meta => maps:merge(Capabilities, maps:get(~"_meta", Params, #{})),
      headers => #{~"mcp-method" => Method, ~"mcp-name" => mirrored(Params)}};
options(~"initialize", _, #client{next = Id, revision = Revision}) ->
    #{id => Id, session => {~"", Revision},
      headers => #{~"mcp-session-id" => none, ~"mcp-protocol-version" => none}};
options(_, _, #client{next = Id, session = Session}) ->
    #{id => Id, session => Session}.

mirrored(Params) ->
    case [Name || Key <- [~"name", ~"uri", ~"taskId"], #{Key := Name} <- [Params]] of
        [Name | _] ->
            case re:run(Name, ~"^[!-~]([ -~]*[!-~])?$", [{capture, none}, dollar_endonly]) of
                match -> Name;
                nomatch -> [~"=?base64?", base64:encode(Name), ~"?="]
            end;
        [] ->
            none
    end.

%% What has no answer.
message(Message, #client{server = Server, revision = Revision, session = Session} = Client) ->
    Options = case Revision of
        ?MODERN -> #{};
        _ -> #{session => Session}
    end,
    {Headers, _} = erlmcp_test_http:message(maps:get(method, Message, ~""), #{}, Options),
    #{status := 202} = erlmcp_test_http:post(Server, Headers, json:encode(Message)),
    Client.

%% The session's id comes with the response; then its stream is asked for.
entered(Reader, #client{server = Server, revision = Revision} = Client, Deadline) ->
    receive
        {Reader, {head, Status, #{~"mcp-session-id" := Id}}} when Status =:= 200 ->
            Session = {Id, Revision},
            Entered = message(#{jsonrpc => ~"2.0", method => ~"notifications/initialized"},
                              Client#client{session = Session}),
            Listener = reader(fun() -> erlmcp_test_http:get_stream(Server, Session) end),
            Stream = #stream{reader = Listener, id = none, method = ~"GET"},
            listening(Listener, Deadline),
            Entered#client{streams = Entered#client.streams ++ [Stream]};
        {Reader, {head, _, _}} ->
            Client
    after left(Deadline) ->
        error(no_session)
    end.

listening(Listener, Deadline) ->
    receive
        {Listener, {head, 200, _}} -> ok
    after left(Deadline) ->
        error(no_get_stream)
    end.

%% Reading: one process for each stream, which tells its head, its messages and its end.

reader(Open) ->
    Client = self(),
    spawn_link(fun() ->
        {Socket, {Status, Headers}} = Open(),
        Client ! {self(), {head, Status, Headers}},
        read(Client, Socket, Headers),
        Client ! {self(), {ended, Status}}
    end).

read(Client, Socket, #{~"transfer-encoding" := ~"chunked"} = Headers) ->
    case erlmcp_test_http:next_events(Socket) of
        {events, Messages} ->
            _ = [Client ! {self(), {message, Message}} || Message <- Messages],
            read(Client, Socket, Headers);
        fin ->
            ok
    end;
read(Client, Socket, Headers) ->
    case erlmcp_test_http:body(Socket, Headers) of
        <<>> -> ok;
        Body -> Client ! {self(), {message, json:decode(Body)}}
    end.

%% What came next on any stream; `Late` says what is missing if nothing does.
more(#client{streams = Streams} = Client, Deadline, Late) ->
    receive
        {Reader, Event} when is_pid(Reader) ->
            Read = [case Stream of
                        #stream{reader = Reader} -> heard(Event, Stream);
                        _ -> Stream
                    end || Stream <- Streams],
            Client#client{streams = Read}
    after left(Deadline) ->
        error(Late)
    end.

heard({head, _, _}, Stream) -> Stream;
heard({message, Message}, #stream{came = Came} = Stream) -> Stream#stream{came = Came ++ [Message]};
heard({ended, Status}, Stream) -> Stream#stream{ended = Status}.

left(Deadline) ->
    max(0, Deadline - erlang:monotonic_time(millisecond)).

%% Expecting.

answered(Line, What, Expected, Id, #client{streams = Streams, results = Results} = Client,
         Deadline) ->
    case lists:keyfind(Id, #stream.id, Streams) of
        #stream{came = [Message | Came]} = Stream ->
            case {What, Message} of
                {result, #{~"result" := #{} = Result}} ->
                    shown(Line, Expected, Result),
                    Known = [Result | Results],
                    update(Stream#stream{came = Came, answered = true},
                           Client#client{results = Known});
                {{error, Code}, #{~"error" := #{~"code" := Code} = Error}} ->
                    shown(Line, Expected, maps:get(~"data", Error, #{})),
                    update(Stream#stream{came = Came, answered = true}, Client);
                {_, _} ->
                    error({line, Line, {expected, What, Expected}, {came, Message}})
            end;
        #stream{came = [], ended = open} ->
            Late = {line, Line, {expected, What, Expected}, nothing_came},
            answered(Line, What, Expected, Id, more(Client, Deadline, Late), Deadline);
        #stream{came = [], ended = Status} ->
            error({line, Line, {expected, What, Expected}, {ended_with_status, Status}})
    end.

%% On whichever stream it comes: a page does not say on which.
told(Line, Method, Params, #client{streams = Streams, asked = Asked} = Client, Deadline) ->
    Heads = [{Message, Stream#stream{came = Came}}
             || Stream <- Streams, [Message | Came] <- [came(Method, Params, Stream)]],
    case [Head || {#{~"method" := Named}, _} = Head <- Heads, Named =:= Method] of
        [{Message, Stream} | _] ->
            shown(Line, Params, maps:get(~"params", Message, #{})),
            Ids = [Id || #{~"id" := Id} <- [Message]],
            update(Stream, Client#client{asked = Asked ++ Ids});
        [] ->
            Late = {line, Line, {expected, Method, Params}, {came, [Came || {Came, _} <- Heads]}},
            %% Nothing more comes where all have ended.
            lists:keymember(open, #stream.ended, Streams) orelse error(Late),
            told(Line, Method, Params, more(Client, Deadline, Late), Deadline)
    end.

%% A task may say that it works before it says that it has ended.
came(Method, Params, #stream{came = Came, method = Of}) when
    Of =:= ~"GET"; Of =:= ~"subscriptions/listen"
->
    lists:dropwhile(fun(#{~"method" := Named} = Message) ->
                           Named =:= Method
                               andalso not is_part(Params, maps:get(~"params", Message, #{}));
                       (#{}) ->
                           false
                    end, Came);
came(_, _, #stream{came = Came}) ->
    Came.

update(#stream{reader = Reader} = Stream, #client{streams = Streams} = Client) ->
    Client#client{streams = lists:keyreplace(Reader, #stream.reader, Streams, Stream)}.

shown(Line, Expected, Came) ->
    case is_part(Expected, Came) of
        true -> ok;
        false -> error({line, Line, {expected, Expected}, {came, Came}})
    end.

is_part(#{} = Part, #{} = Whole) ->
    lists:all(fun({Key, Value}) ->
        case Whole of
            #{Key := Came} -> is_part(Value, Came);
            #{} -> false
        end
    end, maps:to_list(Part));
is_part([Part | Parts], [Item | Items]) ->
    is_part(Part, Item) andalso is_part(Parts, Items);
is_part(~"...", Text) ->
    is_binary(Text);
is_part(Value, Came) ->
    Value == Came.

%% Values that an earlier line gave.
filled(#{} = Object, Line, Client) ->
    #{Key => filled(Value, Line, Client) || Key := Value <- Object};
filled(Items, Line, Client) when is_list(Items) ->
    [filled(Item, Line, Client) || Item <- Items];
filled(~"$id", _, #client{next = Next}) ->
    Next - 1;
filled(~"$cursor", Line, Client) ->
    filled(~"$nextCursor", Line, Client);
filled(<<"$", Path/binary>>, Line, #client{results = Results}) ->
    Keys = binary:split(Path, ~".", [global]),
    case lists:append([member(Keys, Result) || Result <- Results]) of
        [Value | _] -> Value;
        [] -> error({no_such_value, Line, Path})
    end;
filled(Value, _, _) ->
    Value.

member([], Value) ->
    [Value];
member([Key | Keys], Value) ->
    case Value of
        #{Key := Member} -> member(Keys, Member);
        _ -> []
    end.

%% At the end of a block every call has ended, and all that it was sent was shown.

ended(#client{streams = Streams} = Client) ->
    Calls = [Stream || #stream{id = Id} = Stream <- Streams, Id =/= none, not is_listening(Stream)],
    case {[{Method, Message} || #stream{method = Method, came = [Message | _]} <- Calls],
          [Method || #stream{method = Method, ended = open} <- Calls]} of
        {[NotShown | _], _} -> error({not_shown, NotShown});
        {[], [Method | _]} -> ended(more(Client, deadline(), {has_not_ended, Method}));
        {[], []} -> closed(Client)
    end.

is_listening(#stream{method = Method, ended = Ended}) ->
    Method =:= ~"subscriptions/listen" andalso Ended =:= open.

closed(#client{streams = Streams, session = Session, server = Server}) ->
    lists:foreach(fun(#stream{reader = Reader}) -> stopped(Reader) end, Streams),
    case Session of
        none -> ok;
        _ -> #{status := 204} = erlmcp_test_http:delete(Server, Session), ok
    end.

stopped(Reader) ->
    unlink(Reader),
    exit(Reader, kill).
