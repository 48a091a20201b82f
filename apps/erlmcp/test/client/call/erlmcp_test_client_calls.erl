-module(erlmcp_test_client_calls).
-moduledoc "Clients of servers that are scripts on sockets, for the suites of their calls.".

-export([visit/3, era/1, complete/1, page/3, page/4, counted/1, tool/1, mirrored/1]).

-import(erlmcp_test_peer, [result/2]).

-doc """
Returns a client of a server of the group's era. `Methods` has a fun for each method that the server
answers, and the fun `resumed` for streams that are resumed. The calling process hears of the
headers of each message, and of streams that the client has closed.
""".
-spec visit([tuple()], map(), map()) -> erlmcp_client:client().
visit(Config, Options, Methods) ->
    Test = self(),
    #{url := Url} = erlmcp_test_peer:http(fun(#{message := Message, headers := Headers}) ->
        Test ! {headers, Message, Headers},
        answer(Message, Headers, Methods, Test)
    end),
    {ok, Client} = erlmcp_client:start_link({http, Url, Options#{era => era(Config)}}),
    %% What is short in a case is the call's time alone.
    {ok, _} = erlmcp_client:server(Client),
    Client.

-doc "Returns the era of the group.".
-spec era([tuple()]) -> session | stateless.
era(Config) -> proplists:get_value(era, Config).

answer(none, #{~"last-event-id" := _}, #{resumed := Resumed}, Test) ->
    Test ! {resumed, self()},
    Resumed();
answer(none, _, _, _) ->
    {405, [], none};
answer(#{~"method" := ~"initialize"} = Message, _, _, _) ->
    {200, [], result(Message, #{protocolVersion => ~"2025-11-25", capabilities => offered(),
                                serverInfo => #{name => ~"peer", version => ~"1"}})};
answer(#{~"method" := ~"server/discover"} = Message, _, _, _) ->
    {200, [], result(Message, #{resultType => complete, supportedVersions => [~"2026-07-28"],
                                capabilities => offered(), ttlMs => 0, cacheScope => public})};
answer(#{~"method" := Method} = Message, _, Methods, Test) ->
    case Methods of
        #{Method := Answer} -> watched(Answer(Message), Test);
        #{} -> {202, [], none}
    end.

offered() ->
    #{tools => #{}, resources => #{}}.

%% The test hears of a stream that its client closed.
watched({events, [follow]} = Answer, Test) ->
    Connection = self(),
    _ = spawn(fun() ->
        Monitor = monitor(process, Connection),
        receive {'DOWN', Monitor, process, _, _} -> Test ! closed end
    end),
    Answer;
watched(Answer, _) ->
    Answer.

-doc "Returns a result of 2026-07-28 that is complete.".
-spec complete(map()) -> map().
complete(Result) ->
    Result#{resultType => complete}.

-doc "Returns a page of tools, which is the last one if the cursor is `none`.".
-spec page(map(), [map()], binary() | none) -> {200, [], iodata()}.
page(Call, Tools, Cursor) ->
    page(Call, Tools, Cursor, 0).

-doc "Returns a page as `page/3` does, which may be kept for these milliseconds.".
-spec page(map(), [map()], binary() | none, non_neg_integer()) -> {200, [], iodata()}.
page(Call, Tools, none, Ttl) ->
    {200, [], result(Call, complete(#{tools => Tools, ttlMs => Ttl, cacheScope => private}))};
page(Call, Tools, Cursor, Ttl) ->
    {200, [], result(Call, complete(#{tools => Tools, nextCursor => Cursor, ttlMs => Ttl,
                                      cacheScope => private}))}.

-doc """
Returns an answer that has its number, from 1 on, and a fun that returns how many there were.
""".
-spec counted(fun((map(), pos_integer()) -> term())) ->
    {fun((map()) -> term()), fun(() -> non_neg_integer())}.
counted(Answer) ->
    Counter = counters:new(1, []),
    {fun(Call) ->
         ok = counters:add(Counter, 1, 1),
         Answer(Call, counters:get(Counter, 1))
     end,
     fun() -> counters:get(Counter, 1) end}.

-doc "Returns a tool with this number as its name.".
-spec tool(integer()) -> map().
tool(N) ->
    #{name => integer_to_binary(N), inputSchema => #{type => object}}.

-doc "Returns a tool with an argument that also stands in this header.".
-spec mirrored(term()) -> map().
mirrored(Header) ->
    #{name => ~"mirrored",
      inputSchema => #{type => object,
                       properties => #{region => #{type => string, 'x-mcp-header' => Header}}}}.
