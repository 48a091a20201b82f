-module(http1_repeated_heads_SUITE).
-moduledoc """
What a connection knows of the requests before (`erlmcp_httpd_http1`) is nothing to the next one:
each is answered as if it came first, whoever sends it and whichever session it names.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([each_is_answered_as_the_first/1, line_feed_in_the_id/1,
         each_text_is_read_as_the_first/1, sessions_end_in_between/1]).

-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [connect/1, write/2, close/1, response/1, message/3]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, nobody_is_asked}, {group, authenticated}].

groups() ->
    Cases = [each_is_answered_as_the_first, line_feed_in_the_id, each_text_is_read_as_the_first,
             sessions_end_in_between],
    [{nobody_is_asked, Cases}, {authenticated, Cases}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(nobody_is_asked, Config) -> [{listener, #{}} | Config];
init_per_group(authenticated, Config) -> [{listener, #{authenticate => fun by_token/1}} | Config].

end_per_group(_, _) ->
    ok.

by_token(#{headers := #{~"authorization" := <<"Bearer ", Name/binary>>}}) -> {ok, {user, Name}};
by_token(_) -> {error, ~"a bearer token is required"}.

init_per_testcase(_, Config) ->
    Server = erlmcp_test_http:start(#{
        listen => [{http, proplists:get_value(listener, Config)}],
        tools => [#{name => ~"whoami", quick => true, handler => fun(_, Context) ->
            #{principal := Principal} = Context,
            iolist_to_binary(io_lib:format("~0p", [Principal]))
        end}]}),
    [{server, Server} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

session(Name, Config) ->
    #{status := 200, headers := #{~"mcp-session-id" := Id}} =
        erlmcp_test_http:initialize(server(Config), ~"2025-11-25",
                                    #{~"authorization" => <<"Bearer ", Name/binary>>}),
    Id.

%% Sessions of two users, one that is over, and some that never were. Of two with the same length
%% the requests' heads differ in nothing else.
each_is_answered_as_the_first(Config) ->
    [Ada, Bob, Over] = [session(Name, Config) || Name <- [~"ada", ~"bob", ~"ada"]],
    204 = ended(Over, ~"ada", Config),
    Never = binary:copy(~"x", byte_size(Ada)),
    Asked = {oneof([none, ~"ada", ~"bob", ~"eve"]),
             oneof([none, Ada, Bob, Over, Never, ~"x", ~"", [Ada, Bob], [Ada, Ada]]),
             oneof([~"mcp-session-id", ~"Mcp-Session-Id", ~"MCP-SESSION-ID"]),
             %% How it is written: as one, in two parts, or with the next one.
             oneof([whole, parts, with_next])},
    Alone = ets:new(?MODULE, []),
    true = proper:quickcheck(
        ?FORALL(Requests, vector(12, or_again(Asked)),
                as_alone(Requests, Alone, Config)),
        [{numtests, 60}, {to_file, user}]).

%% Some are the same as the one before.
or_again(Asked) -> ?LET(One, Asked, oneof([One, again])).

as_alone(Drawn, Alone, Config) ->
    Requests = repeated(Drawn, {none, none, ~"mcp-session-id", whole}),
    Socket = connect(server(Config)),
    written(Requests, Socket, []),
    Answers = [answer(Socket) || _ <- Requests],
    close(Socket),
    Expected = [alone(Request, Alone, Config) || Request <- Requests],
    ?WHENFAIL(ct:pal("~p~n~p~n~p", [Requests, Answers, Expected]), Answers =:= Expected).

repeated([again | Requests], Before) -> [Before | repeated(Requests, Before)];
repeated([Request | Requests], _) -> [Request | repeated(Requests, Request)];
repeated([], _) -> [].

written([], Socket, Kept) ->
    write(Socket, Kept);
written([{_, _, _, How} = Request | Requests], Socket, Kept) ->
    Bytes = iolist_to_binary([Kept, bytes(Request)]),
    case How of
        with_next ->
            written(Requests, Socket, Bytes);
        whole ->
            write(Socket, Bytes),
            written(Requests, Socket, []);
        parts ->
            {First, Second} = split_binary(Bytes, byte_size(Bytes) div 3),
            write(Socket, First),
            write(Socket, Second),
            written(Requests, Socket, [])
    end.

alone({Name, Session, Spelt, _}, Alone, Config) ->
    case ets:lookup(Alone, {Name, Session, Spelt}) of
        [{_, Answer}] ->
            Answer;
        [] ->
            Socket = connect(server(Config)),
            write(Socket, bytes({Name, Session, Spelt, whole})),
            Answer = answer(Socket),
            close(Socket),
            true = ets:insert(Alone, {{Name, Session, Spelt}, Answer}),
            Answer
    end.

answer(Socket) ->
    #{status := Status, messages := Messages} = response(Socket),
    {Status, Messages}.

bytes({Name, Session, Spelt, _}) ->
    Revision = #{session => {~"", ~"2025-11-25"}},
    {Headers, Body} = message(~"tools/call", #{name => ~"whoami"},
                              case Session of none -> #{}; _ -> Revision end),
    Lines = [[Header, ~": ", Value] || {Header, Value} <- Headers, Header =/= ~"mcp-session-id"]
        ++ [[Spelt, ~": ", Id] || Session =/= none, Id <- lists:flatten([Session])]
        ++ [[~"Authorization: Bearer ", Name] || Name =/= none],
    iolist_to_binary([~"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: ",
                      integer_to_binary(byte_size(Body)), ~"\r\n",
                      [[Line, ~"\r\n"] || Line <- Lines], ~"\r\n", Body]).

%% A line that ends in the place of an id ends its header, wherever in the id it is.
line_feed_in_the_id(Config) ->
    Ada = session(~"ada", Config),
    Status = fun(Id) ->
        Socket = connect(server(Config)),
        [begin
             write(Socket, bytes({~"ada", Ada, ~"mcp-session-id", whole})),
             {200, _} = answer(Socket)
         end || _ <- [1, 2]],
        write(Socket, bytes({~"ada", Id, ~"mcp-session-id", whole})),
        {Answered, _} = answer(Socket),
        close(Socket),
        Answered
    end,
    ?assertEqual(404, Status(binary:copy(~"x", byte_size(Ada)))),
    [begin
         <<Before:Place/binary, _, Behind/binary>> = Ada,
         ?assertEqual({Place, 400}, {Place, Status(<<Before/binary, $\n, Behind/binary>>)})
     end || Place <- lists:seq(0, byte_size(Ada) - 1)].

%% What is read behind its id, once the `_meta` of its client is known, is answered as by a
%% connection that knows nothing; and so is what is no such request, or has another `_meta`.
each_text_is_read_as_the_first(Config) ->
    Known = meta(#{}),
    Usual = request(Known),
    Socket = connect(server(Config)),
    Answers = [begin
                   [{200, [#{~"result" := _}]} = written(Usual, Socket) || _ <- [1, 2, 3]],
                   {Name, written(Body, Socket)}
               end || {Name, Body} <- texts(Known)],
    close(Socket),
    Alone = [begin
                 New = connect(server(Config)),
                 Answer = written(Body, New),
                 close(New),
                 {Name, Answer}
             end || {Name, Body} <- texts(Known)],
    ?assertEqual(Alone, Answers),
    %% Not all of them are the same.
    ?assertMatch([200, 400 | _], lists:usort([Status || {_, {Status, _}} <- Alone])).

texts(Known) ->
    Begin = ~B'{"jsonrpc":"2.0","id":1,',
    Method = ~B'"method":"tools/call",',
    Params = [~B'"params":', params(Known)],
    [{other_id, string:replace(request(Known), ~B'"id":1', ~B'"id":22')},
     {string_id, string:replace(request(Known), ~B'"id":1', ~B'"id":"1"')},
     {other_order, [Begin, Params, $,, string:trim(Method, trailing, ","), $}]},
     {space, [request(Known), $\n]},
     {bytes_behind, [request(Known), $}]},
     {cut, string:slice(request(Known), 0, string:length(request(Known)) - 1)},
     {id_again, [Begin, Method, Params, ~B',"id":2}']},
     {member_behind, [Begin, Method, Params, ~B',"other":2}']},
     {other_method, [Begin, ~B'"method":"tools/list",', Params, $}]},
     {no_method, [Begin, Params, $}]},
     {other_name, [Begin, Method, ~B'"params":{"name":"who","_meta":', Known, ~"}}"]},
     {no_name, [Begin, Method, ~B'"params":{"_meta":', Known, ~"}}"]},
     {no_meta, [Begin, Method, ~B'"params":{"name":"whoami"}}']},
     {no_params, [~B'{"jsonrpc":"2.0","id":1,', string:trim(Method, trailing, ","), $}]},
     {params_array, [Begin, Method, ~B'"params":[]}']},
     {params_null, [Begin, Method, ~B'"params":null}']},
     {name_again, [Begin, Method, ~B'"params":{"name":"whoami","name":"whoami","_meta":', Known,
                   ~"}}"]}]
        ++ [{{meta, Changed}, request(meta(Changed))}
            || Changed <- [#{~"io.modelcontextprotocol/protocolVersion" => ~"2025-11-25"},
                           #{~"io.modelcontextprotocol/protocolVersion" => 1},
                           #{~"io.modelcontextprotocol/clientCapabilities" => []},
                           #{~"io.modelcontextprotocol/clientInfo" => ~"me"},
                           #{~"progressToken" => 1}, #{~"progressToken" => []},
                           #{~"io.modelcontextprotocol/logLevel" => ~"loud"}]].

meta(Changed) -> json:encode(maps:merge(erlmcp_test_http:meta(), Changed)).

params(Meta) -> [~B'{"name":"whoami","_meta":', Meta, $}].

request(Meta) ->
    iolist_to_binary([~B'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":', params(Meta),
                      $}]).

%% The answer to a request for `whoami` with this body.
written(Body, Socket) ->
    {Headers, _} = message(~"tools/call", #{name => ~"whoami"},
                           #{headers => #{~"authorization" => ~"Bearer ada"}}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, iolist_to_binary(Body)),
    answer(Socket).

ended(Id, Name, Config) ->
    Socket = connect(server(Config)),
    write(Socket, deletion(Id, Name)),
    #{status := Status} = response(Socket),
    close(Socket),
    Status.

deletion(Id, Name) ->
    [~"DELETE /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nMcp-Session-Id: ", Id,
     ~"\r\nAuthorization: Bearer ", Name, ~"\r\n\r\n"].

%% On the connection that knows it, and on another one.
sessions_end_in_between(Config) ->
    [One, Other] = [session(~"ada", Config) || _ <- [1, 2]],
    Socket = connect(server(Config)),
    [First, Second] = [bytes({~"ada", Id, ~"Mcp-Session-Id", whole}) || Id <- [One, Other]],
    write(Socket, [First, Second]),
    [200, 200] = [map_get(status, response(Socket)) || _ <- [1, 2]],
    204 = ended(Other, ~"ada", Config),
    write(Socket, [Second, First, Second, First, deletion(One, ~"ada"), First]),
    [404, 200, 404, 200, 204, 404] = [map_get(status, response(Socket)) || _ <- lists:seq(1, 6)],
    close(Socket).
