-module(http_channel_SUITE).
-moduledoc """
The client's channel on HTTP, `m:erlmcp_http_channel`: against a server of erlmcp's own, and against
sockets that answer byte by byte what a case says.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([answers_with_json/1, answers_with_events/1, session/1, session_stream/1]).

all() ->
    [answers_with_json, answers_with_events, session, session_stream].

suite() ->
    [{timetrap, {seconds, 30}}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

answers_with_json(_) ->
    with_server(fun(Channel) ->
        X = send(Channel, ~"tools/call", #{name => ~"echo", arguments => #{text => ~"hi"}}, #{}),
        [{headers, #{~"content-type" := ~"application/json"}},
         {message, {response, 1, {ok, #{~"content" := [#{~"text" := ~"hi"}]}}}}] = events(X),
        ok
    end).

answers_with_events(_) ->
    with_server(fun(Channel) ->
        X = send(Channel, ~"tools/call",
                 #{name => ~"progress", '_meta' => #{progressToken => 1}}, #{}),
        [{headers, #{~"content-type" := ~"text/event-stream"}} | Messages] = events(X),
        ?assertMatch([{message, {notification, ~"notifications/progress", #{~"progress" := 1}}},
                      {message, {notification, ~"notifications/progress", #{~"progress" := 2}}},
                      {message, {notification, ~"notifications/progress", #{~"progress" := 3}}},
                      {message, {response, 1, {ok, #{}}}}], Messages)
    end).

session(_) ->
    with_server(fun(Channel) ->
        Session = initialize(Channel),
        X = send(Channel, ~"tools/call", #{name => ~"echo", arguments => #{text => ~"hi"}},
                 #{session => Session}),
        [_, {message, {response, 1, {ok, #{}}}}] = events(X),
        ok = leave(Channel, Session),
        Lost = send(Channel, ~"tools/list", #{}, #{session => Session}),
        [{failed, session_lost}] = events(Lost)
    end).

session_stream(_) ->
    with_server(fun(Channel) ->
        Session = initialize(Channel),
        {ok, X} = erlmcp_http_channel:send(outgoing(#{kind => stream, id => none, message => ~"",
                                                      session => Session}), Channel),
        {[{headers, #{~"content-type" := ~"text/event-stream"}}], Open} = next(X),
        _ = erlmcp_http_channel:abort(Open)
    end).

%% A server, and a channel to it.
with_server(Fun) ->
    Server = #{url := Url} = erlmcp_test_http:start(erlmcp_test_http:definitions(self())),
    with_channel(Url, #{}, Fun),
    erlmcp_test_http:stop(Server).

with_channel(Url, Options, Fun) ->
    Settings = #{limits => #{message_bytes => 1_000_000, depth => 64, members => 10_000},
                 connect_timeout => 5000, options => Options},
    {ok, Pid, Handle} = erlmcp_http_channel:open(Url, Settings),
    Fun(Handle),
    ok = erlmcp_http_channel:close(Pid).

initialize(Channel) ->
    Params = #{protocolVersion => ~"2025-11-25", capabilities => #{},
               clientInfo => #{name => ~"suite", version => ~"1"}},
    X = send(Channel, ~"initialize", Params, #{headers => []}),
    [{headers, #{~"mcp-session-id" := Session}}, {message, {response, 1, {ok, _}}}] = events(X),
    {ok, Told} = erlmcp_http_channel:send(
        outgoing(#{kind => notification, id => none, session => Session, headers => [],
                   message => erlmcp_message:notification(~"notifications/initialized", #{})}),
        Channel),
    [sent] = events(Told),
    Session.

leave(Channel, Session) ->
    erlmcp_http_channel:leave(Session, [], erlang:monotonic_time(millisecond) + 5000, Channel).

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
    {ok, X} = erlmcp_http_channel:send(outgoing(Options#{message => Message}), Channel),
    X.

outgoing(Options) ->
    maps:merge(#{kind => request, id => 1, headers => [], session => none,
                 deadline => erlang:monotonic_time(millisecond) + 10_000}, Options).

%% All events until it is over.
events(X) ->
    {Events, Next} = next(X),
    case lists:any(fun is_last/1, Events) of
        true -> Events;
        false -> Events ++ events(Next)
    end.

is_last({message, {response, _, _}}) -> true;
is_last({failed, _}) -> true;
is_last(sent) -> true;
is_last(_) -> false.

%% The events of the next message that brings some.
next(X) ->
    receive
        Message ->
            case erlmcp_http_channel:received(Message, X) of
                {[], Next} -> next(Next);
                {Events, Next} -> {Events, Next};
                other -> error({unexpected, Message})
            end
    after 10_000 ->
        error({silent, X})
    end.
