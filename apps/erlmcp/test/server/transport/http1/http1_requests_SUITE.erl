-module(http1_requests_SUITE).
-moduledoc """
RFC 9112: requests of all kinds on a new connection, and on one that has had others before
(`erlmcp_httpd_http1`), in the clear and over TLS.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([others_are_treated_as_ever/1, others_may_follow_and_be_followed/1,
         portions_are_put_together/1, slow_ones_are_waited_for/1, idle_connections_end/1,
         idle_connections_hibernate/1, lasting_requests_hibernate/1,
         what_rests_keeps_nothing_of_its_requests/1,
         a_connection_that_is_to_close_does/1,
         sessions_share_a_connection/1, what_is_read_is_what_stands_there/1]).

-include_lib("proper/include/proper.hrl").

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [connect/1, write/2, close/1, response/1, closed/1, start/1, message/3,
                           definitions/1]).

-define(BODY, ~"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}").
%% Longer than a plain request is waited for.
-define(SLOW, 1_300).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, clear}, {group, tls} | pure()].

pure() ->
    [what_is_read_is_what_stands_there].

groups() ->
    Connections = [others_are_treated_as_ever, others_may_follow_and_be_followed,
                   portions_are_put_together, slow_ones_are_waited_for, idle_connections_end,
                   idle_connections_hibernate, lasting_requests_hibernate,
                   what_rests_keeps_nothing_of_its_requests,
                   a_connection_that_is_to_close_does, sessions_share_a_connection],
    [{clear, Connections}, {tls, Connections}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, ssl], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(clear, Config) -> [{listener, #{}} | Config];
init_per_group(tls, Config) -> [{listener, #{tls => erlmcp_test_http:shown()}} | Config].

end_per_group(_, _) ->
    ok.

init_per_testcase(Case, Config) ->
    case lists:member(Case, pure()) of
        true -> Config;
        false -> [{server, started(#{}, Config)} | Config]
    end.

started(Limits, Config) ->
    start((definitions(self()))#{limits => Limits,
                                 listen => [{http, proplists:get_value(listener, Config)}]}).

end_per_testcase(Case, Config) ->
    case lists:member(Case, pure()) of
        true -> ok;
        false -> erlmcp_test_http:stop(server(Config))
    end.

%% A whole plain request, with other lines of its head or another body.
request() -> request([]).

request(Lines) -> request(~"POST /mcp HTTP/1.1", lines() ++ Lines, body()).

request(First, Lines, Body) ->
    iolist_to_binary([[Line, ~"\r\n"] || Line <- [First | Lines]] ++ [~"\r\n", Body]).

lines() ->
    {Headers, Body} = message(~"tools/list", #{}, #{}),
    [~"Host: 127.0.0.1", [~"Content-Length: ", integer_to_binary(iolist_size(Body))]
     | [[Name, ~": ", Value] || {Name, Value} <- Headers]].

body() ->
    {_, Body} = message(~"tools/list", #{}, #{}),
    iolist_to_binary(Body).

without(Name) ->
    [Line || Line <- lines(), string:prefix(iolist_to_binary(Line), Name) =:= nomatch].

first(Line) -> request(Line, lines(), body()).

others() ->
    Length = integer_to_binary(byte_size(body())),
    Chunk = [integer_to_binary(byte_size(body()), 16), ~"\r\n", body(), ~"\r\n0\r\n\r\n"],
    Post = ~"POST /mcp HTTP/1.1",
    #{
        %% "A sender MUST NOT send a Content-Length header field in any message that contains a
        %% Transfer-Encoding header field."
        both_lengths => {400, request([~"Transfer-Encoding: chunked"])},
        two_lengths => {400, request([[~"Content-Length: ", Length]])},
        two_lengths_that_differ => {400, request([~"Content-Length: 1"])},
        no_number => {400, request(Post, [~"Content-Length: +5" | without("Content-Length")],
                                   body())},
        %% "A server MUST respond with a 400 (Bad Request) status code to any HTTP/1.1 request
        %% message that lacks a Host header field and to any request message that contains more
        %% than one Host header field line".
        no_host => {400, request(Post, without("Host"), body())},
        two_hosts => {400, request([~"Host: 127.0.0.1, evil.example.com"])},
        space_before_the_colon => {400, request([~"X-Mine : x"])},
        folded => {400, request([~"X-Mine: a", ~" b"])},
        bare_newline => {400, request([~"X-Mine: a\nX-Other: b"])},
        bare_return => {400, request([~"X-Mine: a\rb"])},
        zero => {400, request([~"X-Mine:", <<"X-Zero: a", 0, "b">>])},
        many => {431, request([[~"X-", integer_to_binary(N), ~": x"] || N <- lists:seq(1, 101)])},
        another_version => {505, first(~"POST /mcp HTTP/1.2")},
        another_path => {404, first(~"POST /other HTTP/1.1")},
        a_query => {200, first(~"POST /mcp?a=b HTTP/1.1")},
        another_method => {405, first(~"PUT /mcp HTTP/1.1")},
        older => {200, first(~"POST /mcp HTTP/1.0")},
        whole_address => {200, first(~"POST http://127.0.0.1/mcp HTTP/1.1")},
        chunked => {200, request(Post, [~"Transfer-Encoding: chunked"
                                        | without("Content-Length")], Chunk)},
        an_empty_line_before => {200, [~"\r\n", request()]},
        to_close => {200, request([~"Connection: close"])},
        plain => {200, request()},
        to_be_kept => {200, request([~"Connection: keep-alive"])}
    }.

others_are_treated_as_ever(Config) ->
    [{Name, Status, Status} = {Name, Status, status(Bytes, Before, Config)}
     || Name := {Status, Bytes} <- others(), Before <- [[], [request()], [request(), request()]]].

status(Bytes, Before, Config) ->
    Socket = connect(server(Config)),
    [begin
         write(Socket, Plain),
         #{status := 200} = response(Socket)
     end || Plain <- Before],
    write(Socket, Bytes),
    #{status := Status} = response(Socket),
    close(Socket),
    Status.

%% All in one write: none is lost, and they are answered in their order.
others_may_follow_and_be_followed(Config) ->
    #{a_query := {200, Other}, another_method := {405, Refused}} = others(),
    Socket = connect(server(Config)),
    write(Socket, [request(), request(), Other, request(), Refused, request()]),
    [200, 200, 200, 200, 405, 200] = [map_get(status, response(Socket)) || _ <- lists:seq(1, 6)],
    close(Socket).

portions_are_put_together(Config) ->
    Socket = connect(server(Config)),
    Request = request(),
    [begin
         {First, Second} = split_binary(Request, At),
         write(Socket, First),
         write(Socket, Second),
         #{status := 200} = response(Socket)
     end || At <- lists:seq(1, byte_size(Request) - 1, 7)],
    close(Socket).

slow_ones_are_waited_for(Config) ->
    [begin
         Socket = connect(server(Config)),
         write(Socket, request()),
         #{status := 200} = response(Socket),
         {First, Second} = split_binary(request(), At),
         write(Socket, First),
         %% That it takes its time is what is tried.
         receive after ?SLOW -> ok end,
         write(Socket, [Second, request()]),
         #{status := 200} = response(Socket),
         #{status := 200} = response(Socket),
         close(Socket)
     end || At <- [3, byte_size(request()) - 3]].

idle_connections_end(Config) ->
    Server = started(#{receive_timeout_ms => 2_500}, Config),
    [Asking, Silent] = [connect(Server) || _ <- [1, 2]],
    write(Asking, request()),
    #{status := 200} = response(Asking),
    [closed(Socket) || Socket <- [Silent, Asking]],
    erlmcp_test_http:stop(Server).

%% What hibernates has forgotten what it was in, and still serves, with little memory as long as it
%% is not asked often, leaves the server's gate, and ends when its time is over.
idle_connections_hibernate(Config) ->
    Short = started(#{receive_timeout_ms => 1_500}, Config),
    Forgotten = connect(Short),
    write(Forgotten, request()),
    #{status := 200} = response(Forgotten),
    #{pid := Supervisor} = Server = server(Config),
    {Socket, Pid} = opened(Server),
    hibernated(Pid),
    asked(Socket),
    0 = sweeps_after(Pid),
    #{another_method := {405, Refused}} = others(),
    hibernated(Pid),
    write(Socket, Refused),
    #{status := 405} = response(Socket),
    asked_often(Socket, Pid),
    Monitor = monitor(process, Pid),
    {ok, _, #{gate := Gate}} = erlmcp_registry:whereis(Supervisor),
    1 = erlmcp_gate:held(Gate, connections),
    ok = close(Socket),
    receive {'DOWN', Monitor, process, _, _} -> ok end,
    0 = erlmcp_gate:held(Gate, connections),
    closed(Forgotten),
    erlmcp_test_http:stop(Short).

%% A connection whose stream says nothing has little memory, and is awake when there is something to
%% say.
lasting_requests_hibernate(Config) ->
    #{pid := Supervisor} = Server = server(Config),
    Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    {Stream, {200, _}} = erlmcp_test_http:get_stream(Server, Session),
    Listening = connect(Server),
    {Headers, Body} = message(~"subscriptions/listen",
                              #{notifications => #{toolsListChanged => true}}, #{}),
    ok = erlmcp_test_http:send(Listening, ~"POST", Headers, Body),
    {200, _} = erlmcp_test_http:head(Listening),
    {event, #{~"method" := ~"notifications/subscriptions/acknowledged"}} =
        erlmcp_test_http:event(Listening),
    Connections = two_connections(Supervisor),
    [begin
         hibernated(Connection),
         {memory, Bytes} = process_info(Connection, memory),
         {Bytes, true} = {Bytes, Bytes < 4_096}
     end || Connection <- Connections],
    ok = erlmcp:add(Supervisor, tool, #{name => ~"new", handler => fun(_, _) -> ~"" end}),
    [{event, #{~"method" := ~"notifications/tools/list_changed"}} = erlmcp_test_http:event(Client)
     || Client <- [Stream, Listening]],
    [ok = close(Client) || Client <- [Stream, Listening]].

%% Those that opened the session end a moment after their client has closed them.
two_connections(Supervisor) ->
    case connections(Supervisor) of
        [_, _] = Both -> Both;
        [_, _ | _] -> receive after 5 -> two_connections(Supervisor) end
    end.

opened(#{pid := Supervisor} = Server) ->
    Socket = connect(Server),
    asked(Socket),
    [Pid] = connections(Supervisor),
    {Socket, Pid}.

%% Until its connection knows that it is: it may have slept again on a busy machine.
asked_often(Socket, Pid) ->
    asked(Socket),
    sweeps_after(Pid) > 0 orelse asked_often(Socket, Pid).

asked(Socket) ->
    write(Socket, request()),
    #{status := 200} = response(Socket).

sweeps_after(Pid) ->
    {garbage_collection, Settings} = process_info(Pid, garbage_collection),
    proplists:get_value(fullsweep_after, Settings).

connections(Supervisor) ->
    [Ref] = [Id || {{listener, Id}, _, _, _} <- supervisor:which_children(Supervisor)],
    ranch:procs(Ref, connections).

hibernated(Pid) ->
    case process_info(Pid, current_function) of
        {current_function, {erlang, hibernate, 3}} -> ok;
        {current_function, _} -> receive after 20 -> hibernated(Pid) end
    end.

%% What it found out of its client, and what it has for the next request, it has again with that.
what_rests_keeps_nothing_of_its_requests(Config) ->
    Quick = #{name => ~"quick", quick => true, handler => fun(_, _) -> ~"done" end},
    #{pid := Supervisor} = Server =
        start(#{tools => [Quick], listen => [{http, proplists:get_value(listener, Config)}]}),
    Socket = connect(Server),
    {Pid, Keys} = called_lately(Socket, Supervisor),
    ok = hibernated(Pid),
    Left = keys(Pid),
    [erlmcp_connection_cache] = Keys -- Left,
    {binary, []} = process_info(Pid, binary),
    called(Socket),
    close(Socket),
    erlmcp_test_http:stop(Server).

%% It may sleep before it is looked at.
called_lately(Socket, Supervisor) ->
    called(Socket),
    [Pid] = connections(Supervisor),
    Keys = keys(Pid),
    case lists:member(erlmcp_connection_cache, Keys) of
        true -> {Pid, Keys};
        false -> called_lately(Socket, Supervisor)
    end.

called(Socket) ->
    {Headers, Body} = message(~"tools/call", #{name => ~"quick", arguments => #{}}, #{}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    #{status := 200, messages := [#{~"result" := #{~"content" := [_]}}]} = response(Socket).

keys(Pid) ->
    {dictionary, Dictionary} = process_info(Pid, dictionary),
    [Key || {Key, _} <- Dictionary, is_atom(Key)].

a_connection_that_is_to_close_does(Config) ->
    Socket = connect(server(Config)),
    write(Socket, [request(), request([~"Connection: close"]), request()]),
    #{status := 200} = response(Socket),
    #{status := 200, headers := #{~"connection" := ~"close"}} = response(Socket),
    closed(Socket).

%% Their requests have heads that differ in the session's id alone.
sessions_share_a_connection(Config) ->
    #{pid := Pid} = Server = server(Config),
    [One, Other, Ended] = [erlmcp_test_http:initialize(Server, ~"2025-11-25") || _ <- [1, 2, 3]],
    #{status := 204} = erlmcp_test_http:delete(Server, Ended),
    Socket = connect(Server),
    Asked = fun({Id, _} = Session, Method, Params) ->
        {Headers, Body} = message(Method, Params, #{session => Session, id => Id}),
        ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
        response(Socket)
    end,
    [{Session, Status} = {Session, map_get(status, Asked(Session, ~"ping", #{}))}
     || _ <- [1, 2],
        {Session, Status} <- [{One, 200}, {Other, 200}, {One, 200}, {Ended, 404}, {Other, 200}]],
    %% What one asks for is not done for the other.
    Uri = #{~"uri" => ~"test://text"},
    #{status := 200} = Asked(One, ~"ping", #{}),
    #{status := 200} = Asked(Other, ~"resources/subscribe", Uri),
    #{status := 200} = Asked(One, ~"resources/unsubscribe", Uri),
    {Stream, {200, _}} = erlmcp_test_http:get_stream(Server, Other),
    ok = erlmcp:resource_updated(Pid, ~"test://text"),
    {event, #{~"method" := ~"notifications/resources/updated"}} = erlmcp_test_http:event(Stream),
    close(Stream),
    close(Socket).

%% Where one byte of a request is another, or missing, or too many: what is read is what OTP's own
%% parser reads in it, and no byte is lost.
what_is_read_is_what_stands_there(_) ->
    true = proper:quickcheck(
        ?FORALL({At, Change, Byte, Rest}, {non_neg_integer(), oneof([other, missing, more]),
                                           oneof([byte(), oneof("\r\n: \t,;POST")]), binary()},
                read_as(changed(request(), At, Change, Byte), Rest)),
        [{numtests, 1000}, {to_file, user}]).

changed(Bytes, At, Change, Byte) ->
    <<Before:(At rem byte_size(Bytes))/binary, _, After/binary>> = Bytes,
    <<_:(byte_size(Before))/binary, Same, _/binary>> = Bytes,
    case Change of
        other -> <<Before/binary, Byte, After/binary>>;
        missing -> <<Before/binary, After/binary>>;
        more -> <<Before/binary, Same, Byte, After/binary>>
    end.

read_as(Request, Rest) ->
    Bytes = <<Request/binary, Rest/binary>>,
    Patterns = erlmcp_httpd_http1_message:patterns(),
    maybe
        {ok, Head, Behind} ?= erlmcp_httpd_http1_message:split({Bytes, 0}, Patterns),
        {ok, Read} ?= erlmcp_httpd_http1_message:parse(Head, Patterns),
        #{method := Method, path := Path, version := Version, headers := Headers} = Read,
        {At, _} = binary:match(Bytes, Head),
        Empty = binary:copy(~"\r\n", At div 2),
        <<Empty:At/binary, Head:(byte_size(Head))/binary, "\r\n\r\n", Behind/binary>> = Bytes,
        <<_:At/binary, Same/binary>> = Bytes,
        {ok, {http_request, Known, Target, {1, Minor}}, Lines} =
            erlang:decode_packet(http_bin, Same, []),
        true = Version =:= maps:get(Minor, #{0 => 'HTTP/1.0', 1 => 'HTTP/1.1'}),
        true = Method =:= as_text(Known),
        true = is_same(Target, Path, Read),
        Headers =:= parsed(Lines, #{})
            andalso map_get(body_length, Read)
                =:= binary_to_integer(maps:get(~"content-length", Headers, ~"0"))
    else
        {more, _} -> true;
        {error, _} -> true
    end.

as_text(Method) when is_atom(Method) -> atom_to_binary(Method);
as_text(Method) -> Method.

is_same({abs_path, Target}, Path, #{qs := Query}) ->
    Target =:= Path orelse Target =:= <<Path/binary, "?", Query/binary>>;
is_same('*', ~"*", _) ->
    true;
is_same({absoluteURI, _, _, _, Target}, Path, Read) ->
    is_same({abs_path, Target}, Path, Read).

parsed(Bytes, Headers) ->
    case erlang:decode_packet(httph_bin, Bytes, []) of
        {ok, {http_header, _, _, Name, Value}, Rest} ->
            Lower = string:lowercase(Name),
            %% They are bytes, and not text.
            Trimmed = re:replace(Value, "^[ \t]+|[ \t]+$", "", [global, {return, binary}]),
            parsed(Rest, maps:update_with(Lower, fun(Before) ->
                <<Before/binary, ", ", Trimmed/binary>>
            end, Trimmed, Headers));
        {ok, http_eoh, _} ->
            Headers
    end.
