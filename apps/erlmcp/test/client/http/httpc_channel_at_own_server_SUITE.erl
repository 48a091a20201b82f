-module(httpc_channel_at_own_server_SUITE).
-moduledoc """
The client's channel on HTTP, `m:erlmcp_httpc_channel`, against a server of erlmcp's own: over
HTTP/1.1, HTTP/2 and TLS.
""".

-include_lib("stdlib/include/assert.hrl").
-include_lib("public_key/include/public_key.hrl").

-export([all/0, groups/0, suite/0]).
-export([init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2]).
-export([answers_with_json/1, answers_with_events/1, session/1, session_stream/1, aborts_alone/1]).

-import(erlmcp_test_httpc_channel, [with_channel/3, outgoing/1, next/1, events/1]).

all() ->
    [{group, http}, {group, http2}, {group, tls}].

groups() ->
    Both = [answers_with_json, answers_with_events, session, session_stream, aborts_alone],
    [{http, Both}, {http2, Both}, {tls, Both}].

suite() ->
    [{timetrap, {minutes, 4}}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, ssl, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(tls, Config) ->
    Made = [{digest, sha256}, {key, {namedCurve, secp256r1}}],
    Names = #'Extension'{extnID = ?'id-ce-subjectAltName', critical = false,
                         extnValue = [{iPAddress, <<127, 0, 0, 1>>}]},
    Chain = #{root => Made, intermediates => [], peer => Made},
    #{server_config := Server, client_config := Client} = public_key:pkix_test_data(
        #{server_chain => Chain#{peer => [{extensions, [Names]} | Made]},
          client_chain => Chain}),
    [{protocols, [http]}, {server_tls, Server},
     {client_tls, [{cacerts, proplists:get_value(cacerts, Client)}]} | Config];
init_per_group(Protocol, Config) -> [{protocols, [Protocol]} | Config].

end_per_group(_, _) ->
    ok.

protocols(Config) ->
    proplists:get_value(protocols, Config).

answers_with_json(Config) ->
    with_server(Config, fun(Channel) ->
        X = send(Channel, ~"tools/call", #{name => ~"echo", arguments => #{text => ~"hi"}}, #{}),
        [{headers, #{~"content-type" := ~"application/json"}},
         {message, {response, 1, {ok, #{~"content" := [#{~"text" := ~"hi"}]}}}}] = events(X),
        ok
    end).

answers_with_events(Config) ->
    with_server(Config, fun(Channel) ->
        X = send(Channel, ~"tools/call",
                 #{name => ~"progress", '_meta' => #{progressToken => 1}}, #{}),
        [{headers, #{~"content-type" := ~"text/event-stream"}} | Messages] = events(X),
        ?assertMatch([{message, {notification, ~"notifications/progress", #{~"progress" := 1}}},
                      {message, {notification, ~"notifications/progress", #{~"progress" := 2}}},
                      {message, {notification, ~"notifications/progress", #{~"progress" := 3}}},
                      {message, {response, 1, {ok, #{}}}}], Messages)
    end).

session(Config) ->
    with_server(Config, fun(Channel) ->
        Session = initialize(Channel),
        X = send(Channel, ~"tools/call", #{name => ~"echo", arguments => #{text => ~"hi"}},
                 #{session => Session}),
        [_, {message, {response, 1, {ok, #{}}}}] = events(X),
        ok = leave(Channel, Session),
        Lost = send(Channel, ~"tools/list", #{}, #{session => Session}),
        [{failed, session_lost}] = events(Lost)
    end).

session_stream(Config) ->
    with_server(Config, fun(Channel) ->
        Session = initialize(Channel),
        {ok, X} = erlmcp_httpc_channel:send(outgoing(#{kind => stream, id => none, message => ~"",
                                                       session => Session}), Channel),
        {[{headers, #{~"content-type" := ~"text/event-stream"}} | _], Open} = next(X),
        _ = erlmcp_httpc_channel:abort(Open)
    end).

%% Closing a stream of HTTP/2 leaves the others beside it; one of HTTP/1.1 has its connection alone.
aborts_alone(Config) ->
    with_server(Config, fun(#{pool := Pool} = Channel) ->
        X = send(Channel, ~"tools/call", #{name => ~"wait"}, #{}),
        {Tool, _} = erlmcp_test_http:running(),
        Monitor = monitor(process, Tool),
        ?assert(erlmcp_httpc_channel:abort(X)),
        receive {'DOWN', Monitor, process, _, _} -> ok end,
        Open = case protocols(Config) of
            [http2] -> 1;
            [http] -> 0
        end,
        ?assertMatch(#{open := Open, busy := 0}, erlmcp_httpc_pool:info(Pool)),
        Echo = send(Channel, ~"tools/call", #{name => ~"echo", arguments => #{text => ~"hi"}}, #{}),
        [{headers, _}, {message, {response, 1, {ok, _}}}] = events(Echo)
    end).

%% A server, and a channel to it.
with_server(Config, Fun) ->
    Definitions = erlmcp_test_http:definitions(self()),
    Protocols = #{protocols => protocols(Config)},
    {Listen, Scheme, Options} = case proplists:get_value(server_tls, Config) of
        undefined ->
            {#{}, ~"http", Protocols};
        Own ->
            {#{listen => [{http, #{tls => Own}}]}, ~"https",
             Protocols#{tls => proplists:get_value(client_tls, Config)}}
    end,
    Server = #{port := Port} = erlmcp_test_http:start(maps:merge(Definitions, Listen)),
    Url = <<Scheme/binary, "://127.0.0.1:", (integer_to_binary(Port))/binary, "/mcp">>,
    with_channel(Url, Options, Fun),
    erlmcp_test_http:stop(Server).

initialize(Channel) ->
    Params = #{protocolVersion => ~"2025-11-25", capabilities => #{},
               clientInfo => #{name => ~"suite", version => ~"1"}},
    X = send(Channel, ~"initialize", Params, #{headers => []}),
    [{headers, #{~"mcp-session-id" := Session}}, {message, {response, 1, {ok, _}}}] = events(X),
    {ok, Told} = erlmcp_httpc_channel:send(
        outgoing(#{kind => notification, id => none, session => Session, headers => [],
                   message => erlmcp_message:notification(~"notifications/initialized", #{})}),
        Channel),
    [sent] = events(Told),
    Session.

leave(Channel, Session) ->
    erlmcp_httpc_channel:leave(Session, [], erlang:monotonic_time(millisecond) + 5000, Channel).

send(Channel, Method, Params, #{session := _} = Options) ->
    sent(Channel, Method, Params, maps:merge(#{headers => []}, Options));
send(Channel, ~"initialize", Params, Options) ->
    sent(Channel, ~"initialize", Params, Options);
send(Channel, Method, Params, Options) ->
    Headers = erlmcp_request_header:version('2026-07-28')
        ++ erlmcp_request_header:request(Method, #{~"name" => maps:get(name, Params, none)}),
    Meta = maps:merge(erlmcp_test_http:meta(), maps:get('_meta', Params, #{})),
    sent(Channel, Method, Params#{'_meta' => Meta}, maps:merge(#{headers => Headers}, Options)).

sent(Channel, Method, Params, Options) ->
    Message = erlmcp_message:request(1, Method, Params),
    {ok, X} = erlmcp_httpc_channel:send(outgoing(Options#{message => Message}), Channel),
    X.
