-module(http1_beside_cowboy_SUITE).
-moduledoc """
Our HTTP/1.1 beside cowboy's: the same bytes, whole or broken, are the same requests for both, or
are refused by both with the same status. Where they differ ours is so by choice; `choice/3` names
each of these.

This module is the stream handler of both listeners: it answers with what it was given.
""".

-behaviour(cowboy_stream).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([same_bytes_are_the_same_requests/1, one_fault_has_one_status/1, each_choice_is_one/1]).
-export([init/3, data/4, info/3, terminate/3, early_error/5]).

-import(erlmcp_test_suite, [server/1]).

-include_lib("proper/include/proper.hrl").

%% Milliseconds in which an answer comes, and much more than that.
-define(SOON, 200).
-define(LATE, 3_000).
%% What ends a connection, whatever came before it.
-define(LAST, ~"\r\n\r\nGET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [same_bytes_are_the_same_requests, one_fault_has_one_status, each_choice_is_one].

init_per_suite(Config) ->
    Started = erlmcp_test_applications:start([erlmcp], Config),
    Handlers = #{stream_handlers => [?MODULE]},
    {ok, _} = cowboy:start_clear(?MODULE, [{port, 0}], Handlers#{max_keepalive => infinity}),
    Test = self(),
    Server = spawn(fun() ->
        #{pid := Pid, port := Port} = erlmcp_test_http:start(#{}),
        %% What its connections have in common, with this module in place of ours.
        [Ref] = [Id || {{listener, Id}, _, _, _} <- supervisor:which_children(Pid)],
        {ok, {Ref, Options}} = erlmcp_instance:find(Ref),
        _ = erlmcp_instance:share(Ref, {Ref, maps:merge(Options, Handlers)}),
        Test ! {self(), Port},
        receive stop -> erlmcp_test_http:stop(#{pid => Pid}) end
    end),
    Ours = receive {Server, Port} -> Port end,
    [{server, Server}, {ports, {Ours, ranch:get_port(?MODULE)}} | Started].

end_per_suite(Config) ->
    ok = cowboy:stop_listener(?MODULE),
    Server = server(Config),
    Server ! stop,
    _ = erlmcp_test_http:ended(Server),
    erlmcp_test_applications:stop(Config).

%% The stream handler.

-doc false.
init(_, #{body := Body} = Request, _) -> {answer(Request, Body), none};
init(_, #{has_body := false} = Request, _) -> {answer(Request, <<>>), none};
init(_, Request, _) -> {[], {Request, <<>>}}.

-doc false.
data(_, fin, Data, {Request, Body}) ->
    {answer(Request, <<Body/binary, Data/binary>>), none};
data(_, nofin, Data, {Request, Body}) ->
    {[{flow, byte_size(Data)}], {Request, <<Body/binary, Data/binary>>}}.

-doc false.
%% Cowboy has its handler say that a body is broken.
info(_, {response, 400, _, _} = Response, State) -> {[Response], State};
info(_, _, State) -> {[], State}.

-doc false.
terminate(_, _, _) -> ok.

-doc false.
early_error(_, _, _, Response, _) -> Response.

answer(Request, Body) ->
    Read = (maps:with([method, path, qs, version, host, port, headers], Request))#{body => Body},
    Bytes = term_to_binary(Read, [deterministic]),
    [{response, 200, #{~"content-length" => integer_to_binary(byte_size(Bytes))}, Bytes}, stop].

%% What comes of some bytes, written in parts: the requests that were read, and a refusal.

outcomes(Parts, Port, Wait) ->
    Options = [binary, {active, false}, {nodelay, true}],
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, Options),
    _ = [gen_tcp:send(Socket, Part) || Part <- Parts],
    Bytes = until_closed(Socket, <<>>, Wait),
    ok = gen_tcp:close(Socket),
    responses(Bytes).

%% A body that goes on is waited for: nothing comes then.
until_closed(Socket, Bytes, Wait) ->
    case gen_tcp:recv(Socket, 0, Wait) of
        {ok, More} -> until_closed(Socket, <<Bytes/binary, More/binary>>, Wait);
        {error, _} -> Bytes
    end.

responses(<<>>) ->
    [];
responses(Bytes) ->
    [Head, Behind] = binary:split(Bytes, ~"\r\n\r\n"),
    <<"HTTP/1.1 ", Digits:3/binary, _/binary>> = Head,
    case {binary_to_integer(Digits), re:run(Head, "content-length: (\\d+)",
                                            [{capture, all_but_first, binary}])} of
        {200, {match, [Length]}} ->
            Size = binary_to_integer(Length),
            <<Body:Size/binary, Rest/binary>> = Behind,
            [binary_to_term(Body) | responses(Rest)];
        {Status, _} ->
            %% Nothing follows a refusal.
            [Status]
    end.

%% Most requests are as they should be, but for one thing.

requests() ->
    ?LET({Requests, Change},
         {non_empty(resize(3, list(request()))), frequency([{2, none}, {3, change()}])},
         iolist_to_binary([changed(iolist_to_binary(Requests), Change), ?LAST])).

change() ->
    {oneof([other, missing, more]), non_neg_integer(), oneof([byte(), oneof("\r\n: \t,;0")])}.

changed(Bytes, none) ->
    Bytes;
changed(Bytes, {How, Drawn, Byte}) ->
    <<Before:(Drawn * 7 rem byte_size(Bytes))/binary, Same, After/binary>> = Bytes,
    case How of
        other -> [Before, Byte, After];
        missing -> [Before, After];
        more -> [Before, Same, Byte, After]
    end.

request() ->
    ?LET({Method, Target, Version, Host, Framed, Fields},
         {mostly(~"POST", [~"GET", ~"DELETE", ~"OPTIONS", ~"post", ~"BREW", ~"CONNECT", ~"TRACE",
                           ~"A(B", ~"", binary:copy(~"M", 33)]),
          mostly(~"/mcp", [~"/mcp?a=b", ~"/", ~"*", ~"http://localhost/mcp", ~"HTTP://localhost?a",
                           ~"http://other.example:81/x", ~"http:///x", ~"http://a@b/", ~"mcp",
                           ~"/a#b", ~"/a b", ~"//x", ~"/%00", ~"", <<"/", 255>>]),
          mostly(~"HTTP/1.1", [~"HTTP/1.0", ~"HTTP/1.2", ~"HTTP/2.0", ~"http/1.1", ~"HTTP/1",
                               ~"HTTP/1.1 ", ~""]),
          mostly([~"Host: localhost"],
                 [[], [~"Host: a", ~"Host: b"], [~"Host:"], [~"host: [::1]:80"],
                  [~"Host: localhost:0"], [~"Host: localhost:99999"], [~"Host: a b"],
                  [~"Host: other.example:81"]]),
          framed(),
          resize(3, list(field()))},
         begin
             {Framing, Body} = Framed,
             [[Method, $\s, Target, $\s, Version, ~"\r\n"],
              [[Line, ~"\r\n"] || Line <- Host ++ Framing ++ Fields], ~"\r\n", Body]
         end).

mostly(Usual, Others) -> frequency([{8, Usual}, {3, oneof(Others)}]).

framed() ->
    Chunks = [~"5\r\nhello\r\n0\r\n\r\n", ~"5;a=b\r\nhello\r\n00\r\n\r\n", ~"0\r\n\r\n",
              ~"2\r\nhe\r\n3\r\nllo\r\n0\r\nX: y\r\nZ: z\r\n\r\n", ~"5 \r\nhello\r\n0\r\n\r\n",
              ~"6\r\nhello\r\n0\r\n\r\n", ~"x\r\n", ~"4\r\nhello\r\n0\r\n\r\n"],
    oneof([{[~"Content-Length: 5"], ~"hello"}, {[], ~""}, {[~"Content-Length: 0"], ~""},
           {[~"Content-Length: 05"], ~"hello"}, {[~"Content-Length: -1"], ~"hello"},
           {[~"Content-Length: 5, 5"], ~"hello"}, {[~"Content-Length: 5x"], ~"hello"},
           {[~"Content-Length: 5", ~"Content-Length: 5"], ~"hello"}, {[~"Content-Length:"], ~""},
           {[~"Content-Length: 5", ~"Transfer-Encoding: chunked"], ~"hello"},
           ?LET({Coding, Body}, {mostly(~"chunked", [~"Chunked", ~"gzip, chunked", ~"chunked, gzip",
                                                     ~"identity", ~"chunked, chunked", ~""]),
                                 oneof(Chunks)},
                {[[~"Transfer-Encoding: ", Coding]], Body})]).

field() ->
    oneof([~"Accept: application/json", ~"X-Mine:\t  a b \t", ~"X-Mine: 2", ~"x-empty:",
           ~"Cookie: a", ~"cookie: b", ~"Connection: close", ~"Connection: Keep-Alive",
           ~"Connection: x, CLOSE", ~"Connection:", ~"Connection: ;", ~"Expect: 100-continue",
           ~"Expect: 100-Continue", ~"Expect: more", ~" folded", ~"\tfolded", ~"No-Colon",
           ~"Space : x", ~": no name", ~"x(y): 1", <<"X-Bytes: ", 255, 128>>, <<"X-Zero: ", 0>>,
           <<"X-Control: ", 1, 127>>, ~"X-Return: a\rb", ~"X-Feed: a\nb",
           [~"X-Long: ", binary:copy(~"x", 4096)], [~"X-Longer: ", binary:copy(~"x", 4097)],
           [binary:copy(~"n", 64), ~": x"], [binary:copy(~"n", 65), ~": x"],
           [[~"X-", integer_to_binary(N), ~": x\r\n"] || N <- lists:seq(1, 99)],
           [[~"X-", integer_to_binary(N), ~": x\r\n"] || N <- lists:seq(1, 101)]]).

%% The cases are the same each time, unless ERLMCP_SEED is another number. So a difference that is
%% found is found again.
same_bytes_are_the_same_requests(Config) ->
    Seed = list_to_integer(os:getenv("ERLMCP_SEED", "1")),
    Generated = {requests(), resize(3, list(non_neg_integer()))},
    [] = lists:append([begin
                           {ok, {Bytes, Cuts}} =
                               proper_gen:pick(Generated, 1 + N rem 60, {Seed, 0, N}),
                           differences(Bytes, parts(Bytes, Cuts), Config)
                       end || N <- lists:seq(1, 2_000)]).

differences(Bytes, Parts, Config) ->
    {Here, There} = both(Parts, Bytes, ?SOON, Config),
    [{Parts, {ours, Here}, {cowboys, There}} || not is_same(Bytes, Here, There)].

%% On a busy machine an answer may take its time.
both(Parts, Bytes, Wait, Config) ->
    {Ours, Cowboys} = proplists:get_value(ports, Config),
    Here = outcomes(Parts, Ours, Wait),
    There = outcomes(Parts, Cowboys, Wait),
    case is_same(Bytes, Here, There) of
        false when Wait < ?LATE -> both(Parts, Bytes, ?LATE, Config);
        _ -> {Here, There}
    end.

parts(Bytes, [Drawn | Cuts]) when byte_size(Bytes) > 1 ->
    {Part, Rest} = split_binary(Bytes, 1 + Drawn * 13 rem (byte_size(Bytes) - 1)),
    [Part | parts(Rest, Cuts)];
parts(Bytes, _) ->
    [Bytes].

is_same(Bytes, Here, There) ->
    compared(Bytes, Here, There) =/= differs.

compared(_, Same, Same) -> same;
compared(Bytes, [Same | Here], [Same | There]) -> compared(Bytes, Here, There);
compared(Bytes, Here, There) -> choice(first(Here), first(There), Bytes).

first([]) -> none;
first([First | _]) -> First.

%% Where ours differs by choice. RFC 9112 and 9110 are the reason if nothing else is said.

%% 5.1: a field's name is a token.
choice(400, #{headers := Headers} = There, Bytes) ->
    case [Name || Name := _ <- Headers, not is_token(Name)] of
        [_ | _] -> name_is_no_token;
        [] -> choice_of_line(There, Bytes)
    end;
%% RFC 9110, 10.1.1: an expectation that is not met MAY be refused with 417.
choice(417, #{headers := #{~"expect" := _}}, _) -> expectation_is_unknown;
%% Bounds hold however the bytes come; cowboy's hold for what it waits for.
choice(Here, #{headers := _}, _) when Here =:= 414; Here =:= 431 -> bound_holds_always;
%% 3.2.2: of an absolute target's host and another in Host the first counts. Nothing comes of it
%% where its body goes on.
choice(Here, 400, Bytes) when Here =:= none; is_map_key(host, Here) ->
    case re:run(Bytes, "https?://", [caseless]) of
        {match, _} -> host_of_target_counts;
        nomatch -> differs
    end;
choice(#{version := 'HTTP/1.0'}, #{host := <<>>}, _) -> host_of_target_counts;
%% 9.3: the option close counts, whatever stands beside it. Cowboy does not look for it in HTTP/1.0.
choice(none, #{headers := _}, Bytes) ->
    case [re:run(Bytes, Each, [caseless]) || Each <- ["HTTP/1\\.0", "connection:[^\r]*close",
                                                      "connection:[^\r]*keep-alive"]] of
        [{match, _}, {match, _}, {match, _}] -> close_counts_in_http_1_0;
        _ -> differs
    end;
%% 6.1: a coding that is not known SHOULD be refused with 501.
choice(501, 400, Bytes) ->
    case re:run(Bytes, "transfer-encoding:", [caseless]) of
        {match, _} -> coding_is_unknown;
        nomatch -> differs
    end;
%% 3: a line that is none SHOULD be refused with 400. Cowboy says 505 of all behind the target.
choice(400, 505, _) -> line_is_invalid;
%% Cowboy waits for the body of a request whose head is refused by one of these choices.
choice(Here, none, _) when Here =:= 400; Here =:= 414; Here =:= 417; Here =:= 431 ->
    body_is_not_awaited;
%% A head with two faults is refused for either; `one_fault_has_one_status/1` has one each.
choice(Here, There, _) when is_integer(Here), is_integer(There), Here =/= 505, There =/= 505 ->
    other_fault;
choice(_, _, _) -> differs.

choice_of_line(#{path := Path, qs := Query, version := Version, headers := Headers}, Bytes) ->
    Control = re:run([Path, Query], "[\\x00-\\x20\\x7f]"),
    Other = re:run(Bytes, "(?<! http)(?<! https)://", [caseless]),
    Lengths = binary:split(maps:get(~"content-length", Headers, ~"0"), ~",", [global]),
    Coded = re:run(Bytes, "transfer-encoding", [caseless]),
    if
        %% 3.2.2: the scheme is http or https, and cowboy looks at one letter of it.
        Other =/= nomatch -> scheme_is_unknown;
        %% 3.2: no whitespace in a target.
        Control =/= nomatch -> target_has_control_characters;
        %% 6.1: "MUST treat the message as if the framing is faulty".
        Version =:= 'HTTP/1.0', Coded =/= nomatch -> coding_in_http_1_0;
        %% 7.1.2: fields behind a body in chunks are of its message. Ours are bounded before it is
        %% served.
        Coded =/= nomatch, byte_size(Bytes) > 4_096 -> trailers_are_too_long;
        %% 8.6 of RFC 9110: a length is digits.
        Lengths =/= [~"0"] -> case re:run(Lengths, "[^0-9]") of
                                  nomatch -> differs;
                                  _ -> length_is_no_number
                              end;
        true -> differs
    end.

is_token(Name) ->
    re:run(Name, "^[-!#$%&'*+.^_`|~0-9a-zA-Z]+$") =/= nomatch.

one_fault_has_one_status(Config) ->
    Head = fun(Line, Lines) ->
        iolist_to_binary([[[Each, ~"\r\n"] || Each <- [Line, ~"Host: localhost" | Lines]], ~"\r\n"])
    end,
    Get = ~"GET /mcp HTTP/1.1",
    Post = ~"POST /mcp HTTP/1.1",
    [begin
         Whole = iolist_to_binary([Bytes, ?LAST]),
         {Here, There} = both([Whole], Whole, ?SOON, Config),
         {Bytes, [Status], [Status]} = {Bytes, Here, There}
     end || {Status, Bytes} <- [
         {400, Head(~"GET", [])},
         {400, Head(~"GET ", [])},
         {400, Head(~" GET /mcp HTTP/1.1", [])},
         {400, Head(~"G(T /mcp HTTP/1.1", [])},
         {400, Head(~"GET mcp HTTP/1.1", [])},
         {400, Head(~"GET /mcp#a HTTP/1.1", [])},
         {400, Head(~"GET * HTTP/1.1", [])},
         {400, Head(~"GET http:///mcp HTTP/1.1", [])},
         {400, Head(~"GET http://a@localhost/mcp HTTP/1.1", [])},
         {400, Head(~"GET ftp://localhost/mcp HTTP/1.1", [])},
         {400, Head(~"GET /mcp HTTP/1.1 ", [])},
         {400, Head(~"GET /mcp\nHTTP/1.1", [])},
         {414, Head([~"GET http://", binary:copy(~"a", 256), ~"/ HTTP/1.1"], [])},
         {501, Head([binary:copy(~"M", 32), ~" /mcp HTTP/1.1"], [])},
         {501, Head(~"CONNECT localhost:80 HTTP/1.1", [])},
         {501, Head(~"TRACE /mcp HTTP/1.1", [])},
         {505, Head(~"GET /mcp HTTP/1.2", [])},
         {505, Head(~"GET /mcp HTTP/3.0", [])},
         {400, ~"GET /mcp HTTP/1.1\r\nAccept: a\r\n\r\n"},
         {414, [~"GET /mcp HTTP/1.1\r\nHost: ", binary:copy(~"h", 256), ~"\r\n\r\n"]},
         {400, Head(Get, [~"Host: localhost"])},
         {400, ~"GET /mcp HTTP/1.1\r\nHost: a b\r\n\r\n"},
         {400, ~"GET /mcp HTTP/1.1\r\nHost: a:99999\r\n\r\n"},
         {400, Head(Get, [~"Space : x"])},
         {400, Head(Get, [~" folded"])},
         {400, Head(Get, [~"No-Colon"])},
         {400, Head(Get, [<<"Zero: ", 0>>])},
         {400, Head(Get, [~"Return: a\rb"])},
         {400, Head(Get, [~"Feed: a\nb"])},
         {400, Head(Get, [~"Connection:"])},
         {431, Head(Get, [[~"X-", integer_to_binary(N), ~": x"] || N <- lists:seq(1, 100)])},
         {400, Head(Post, [~"Content-Length: -1"])},
         {400, Head(Post, [~"Content-Length:"])},
         {400, Head(Post, [~"Content-Length: 5, 5"])},
         {400, Head(Post, [~"Content-Length: 5", ~"Content-Length: 6"])},
         {400, Head(Post, [~"Content-Length: 5", ~"Transfer-Encoding: chunked"])},
         {400, Head(Post, [~"Transfer-Encoding: chunked, gzip"])},
         {400, Head(Post, [~"Transfer-Encoding: chunked, chunked"])},
         {400, Head(Post, [~"Transfer-Encoding:"])},
         {400, [Head(Post, [~"Transfer-Encoding: chunked"]), ~"x\r\n"]},
         {400, [Head(Post, [~"Transfer-Encoding: chunked"]), ~"1\r\nab\r\n0\r\n\r\n"]},
         {400, binary:copy(~"\r\n", 6)}]].

%% Each is made once, so that none of them is there in vain.
each_choice_is_one(Config) ->
    Post = fun(Lines, Body) ->
        iolist_to_binary([~"POST /mcp HTTP/1.1\r\nHost: localhost\r\n",
                          [[Line, ~"\r\n"] || Line <- Lines], ~"\r\n", Body])
    end,
    [begin
         Whole = iolist_to_binary([Bytes, ?LAST]),
         {Here, There} = both([Whole], Whole, ?SOON, Config),
         {Choice, Choice, _, _} = {Choice, compared(Bytes, Here, There), Here, There}
     end || {Choice, Bytes} <- [
         {name_is_no_token, Post([~"x(y): 1"], ~"")},
         {expectation_is_unknown, Post([~"Expect: more"], ~"")},
         {bound_holds_always, Post([[~"X-Longer: ", binary:copy(~"x", 4097)]], ~"")},
         {bound_holds_always, [~"GET /", binary:copy(~"a", 8_000),
                               ~" HTTP/1.1\r\nHost: localhost\r\n\r\n"]},
         {host_of_target_counts,
          ~"GET http://other.example/mcp HTTP/1.1\r\nHost: localhost\r\n\r\n"},
         {coding_is_unknown, Post([~"Transfer-Encoding: gzip, chunked"], ~"0\r\n\r\n")},
         {line_is_invalid, ~"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n"},
         {target_has_control_characters, ~"GET /a\tb HTTP/1.1\r\nHost: localhost\r\n\r\n"},
         {coding_in_http_1_0, [~"POST /mcp HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
                               ~"0\r\n\r\n"]},
         {close_counts_in_http_1_0,
          ~"GET /mcp HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n"}]].
