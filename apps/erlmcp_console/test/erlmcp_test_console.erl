-module(erlmcp_test_console).
-moduledoc """
Servers with a console, and requests to it as bytes on a socket: the headers are those that a case
gives, and nothing follows a redirect.
""".

-compile(nowarn_missing_spec_documented).

-export([start/1, start/2, get/2, get/3, post/3, post/4]).
-export([open/2, open_post/3, events/2, next_event/1]).

%% A server with the console at /console, and what a listener has besides.
start(Options) ->
    start(Options, #{}).

start(Options, Console) ->
    Pages = #{~"/console" => erlmcp_console:page(Console)},
    erlmcp_test_http:start(Options#{listen => [{http, #{port => 0, pages => Pages}}]}).

get(Path, Server) ->
    get(Path, [], Server).

get(Path, Headers, Server) ->
    ask(~"GET", Path, Headers, <<>>, Server).

%% A request of the page itself.
post(Path, Term, Server) ->
    post(Path, [{~"Origin", origin(Server)}], Term, Server).

post(Path, Headers, Term, Server) when is_map(Term) ->
    post(Path, [{~"Content-Type", ~"application/json"} | Headers], json:encode(Term), Server);
post(Path, Headers, Body, Server) ->
    ask(~"POST", Path, Headers, iolist_to_binary(Body), Server).

origin(#{port := Port}) -> <<"http://127.0.0.1:", (integer_to_binary(Port))/binary>>.

%% {Status, Headers, Body}
ask(Method, Path, Headers, Body, Server) ->
    Socket = sent(Method, Path, Headers, Body, Server),
    {Status, Received} = erlmcp_test_http:head(Socket),
    Reply = {Status, Received, erlmcp_test_http:body(Socket, Received)},
    ok = erlmcp_test_http:close(Socket),
    Reply.

sent(Method, Path, Headers, Body, #{port := Port} = Server) ->
    Socket = erlmcp_test_http:connect(Server),
    Own = [{~"Host", [~"127.0.0.1:", integer_to_binary(Port)]}
           || not lists:keymember(~"Host", 1, Headers)],
    ok = erlmcp_test_http:write(Socket, [
        Method, ~" ", Path, ~" HTTP/1.1\r\n",
        [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Own ++ Headers],
        ~"Content-Length: ", integer_to_binary(byte_size(Body)), ~"\r\n\r\n", Body]),
    Socket.

%% A connection on which a GET was sent.
open(Path, Server) ->
    sent(~"GET", Path, [], <<>>, Server).

%% One on which an action was sent.
open_post(Path, Term, Server) ->
    sent(~"POST", Path, [{~"Origin", origin(Server)}], iolist_to_binary(json:encode(Term)),
         Server).

%% An open stream of events.
events(Path, Server) ->
    Socket = open(Path, Server),
    {200, #{~"content-type" := ~"text/event-stream"}} = erlmcp_test_http:head(Socket),
    Socket.

%% {Name, Data}
next_event(Socket) ->
    <<"event: ", Rest/binary>> = erlmcp_test_http:chunk(Socket),
    [Name, <<"data: ", Data/binary>>] = binary:split(Rest, ~"\n"),
    {Name, json:decode(Data)}.
