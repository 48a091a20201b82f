-module(erlmcp_test_cluster_client).
-moduledoc """
A plain client on HTTP/1.1, which repeats nothing on its own: each operation is one request, and
says what its client has seen of it.

The outcome `{ok, Result}` or `not_found` is an answer of the cluster. Anything else is `unknown`:
the operation may have had its effect, or not.
""".

-compile(nowarn_missing_spec_documented).

-export([new/1, close/1]).
-export([open/1, call/4, set_level/3, level/2, delete/2]).
-export([subscribe/3, stream/3, more/1]).
-export([create_task/4, get_task/3, cancel_task/3]).

-export_type([client/0, outcome/0]).

-type client() :: #{host := string(), port := inet:port_number(), path := binary(),
                    connection := pid() | none, timeout := pos_integer()}.
-type outcome() :: {ok, map(), Node :: binary()} | {not_found, Node :: binary()}
                 | {unknown, Why :: term(), Node :: binary() | none}.
-doc "The session of a request, or 2026-07-28.".
-type era() :: stateless | {session, Id :: binary()}.

-define(SESSION, ~"2025-11-25").
-define(STATELESS, ~"2026-07-28").
-define(META, "io.modelcontextprotocol/").
-define(INFO, #{~"name" => ~"cluster", ~"version" => ~"1"}).
%% A request may wait for the new home of its session.
-define(TIMEOUT_MS, 5_000).

new(Url) ->
    #{host := Host, port := Port, path := Path} = uri_string:parse(Url),
    #{host => binary_to_list(Host), port => Port, path => Path, connection => none,
      timeout => ?TIMEOUT_MS}.

close(#{connection := none} = Client) ->
    Client;
close(#{connection := Connection} = Client) ->
    ok = gun:close(Connection),
    ok = gun:flush(Connection),
    Client#{connection := none}.

%% Sessions.

-spec open(client()) -> {outcome(), client()}.
open(Client) ->
    Params = #{~"protocolVersion" => ?SESSION, ~"capabilities" => #{}, ~"clientInfo" => ?INFO},
    case ask(~"POST", [], message(~"initialize", Params), Client) of
        {{200, #{~"mcp-session-id" := Id, ~"served-by" := Node}, _}, Next} ->
            {{ok, #{id => Id}, Node}, Next};
        {Other, Next} ->
            {outcome(Other), Next}
    end.

-spec call(Tool :: binary(), Arguments :: map(), era(), client()) -> {outcome(), client()}.
call(Tool, Arguments, Era, Client) ->
    request(~"tools/call", #{~"name" => Tool, ~"arguments" => Arguments}, Era, Client).

set_level(Level, Era, Client) ->
    request(~"logging/setLevel", #{~"level" => Level}, Era, Client).

%% The session's log level, as its messages show it.
level(Era, Client) ->
    case call(~"levels", #{}, Era, Client) of
        {{ok, #{logged := [Level | _]} = Result, Node}, Next} ->
            {{ok, Result#{level => Level}, Node}, Next};
        {{ok, _, Node}, Next} ->
            {{unknown, nothing_logged, Node}, Next};
        Other ->
            Other
    end.

delete(Id, Client) ->
    {Answer, Next} = ask(~"DELETE", headers(~"", #{}, {session, Id}), ~"", Client),
    {outcome(Answer), Next}.

subscribe(Uri, Era, Client) ->
    request(~"resources/subscribe", #{~"uri" => Uri}, Era, Client).

%% Opens the session's own stream, behind the event `Last`. The client is of no other use until the
%% stream has ended.
stream(Id, Last, #{path := Path, timeout := Milliseconds} = Client) ->
    case connected(close(Client)) of
        {ok, #{connection := Connection} = Connected} ->
            Headers = [{~"accept", ~"text/event-stream"} | headers(~"", #{}, {session, Id})]
                ++ [{~"last-event-id", Last} || Last =/= none],
            Stream = gun:get(Connection, Path, Headers),
            case gun:await(Connection, Stream, Milliseconds) of
                {response, _, Status, _} -> {{Status, {Connection, Stream}}, Connected};
                {error, Reason} -> {{error, reason(Reason)}, close(Connected)}
            end;
        {error, _} = Error ->
            {Error, Client}
    end.

%% The next bytes of a stream.
more({Connection, Stream}) ->
    case gun:await(Connection, Stream, infinity) of
        {data, nofin, Data} -> {ok, Data};
        _ -> ended
    end.

%% Tasks.

create_task(Tool, Milliseconds, Era, Client) ->
    Params = #{~"name" => Tool, ~"arguments" => #{~"ms" => Milliseconds}},
    {Outcome, Next} = case Era of
        stateless -> request(~"tools/call", Params, Era, Client);
        _ -> request(~"tools/call", Params#{~"task" => #{}}, Era, Client)
    end,
    case Outcome of
        {ok, #{~"taskId" := Id}, Node} -> {{ok, #{id => Id}, Node}, Next};
        {ok, #{~"task" := #{~"taskId" := Id}}, Node} -> {{ok, #{id => Id}, Node}, Next};
        {ok, Other, Node} -> {{unknown, {no_task, Other}, Node}, Next};
        _ -> {Outcome, Next}
    end.

get_task(Id, Era, Client) ->
    request(~"tasks/get", #{~"taskId" => Id}, Era, Client).

cancel_task(Id, Era, Client) ->
    request(~"tasks/cancel", #{~"taskId" => Id}, Era, Client).

%% Messages.

request(Method, Params, Era, Client) ->
    Body = message(Method, with_meta(Params, Era)),
    {Answer, Next} = ask(~"POST", headers(Method, Params, Era), Body, Client),
    {outcome(Answer), Next}.

message(Method, Params) ->
    json:encode(#{~"jsonrpc" => ~"2.0", ~"id" => erlang:unique_integer([positive]),
                  ~"method" => Method, ~"params" => Params}).

with_meta(Params, stateless) ->
    Tasks = #{~"extensions" => #{<<?META "tasks">> => #{}}},
    Params#{~"_meta" => #{<<?META "protocolVersion">> => ?STATELESS,
                          <<?META "clientInfo">> => ?INFO,
                          <<?META "clientCapabilities">> => Tasks}};
with_meta(Params, _) ->
    Params.

headers(Method, Params, stateless) ->
    [{~"mcp-protocol-version", ?STATELESS} | erlmcp_request_header:request(Method, Params)];
headers(_, _, {session, Id}) ->
    [{~"mcp-protocol-version", ?SESSION}, {~"mcp-session-id", Id}].

%% An id that is not known any more gets 404 with 1016 if it is a session's, and -32602 if it is a
%% task's. A call whose session ends meanwhile gets 1016, too. An answer of the proxy itself has no
%% node.
outcome({error, Why}) ->
    {unknown, Why, none};
outcome({Status, Headers, Body}) ->
    outcome(Status, maps:get(~"served-by", Headers, ~""), Body).

outcome(404, Node, _) ->
    {not_found, Node};
outcome(Status, Node, ~"") when Status =:= 202; Status =:= 204 ->
    {ok, #{}, Node};
outcome(Status, Node, Body) ->
    %% A refusal of a DELETE has no id.
    IsAnswer = fun(Message) -> not is_map_key(~"method", Message) end,
    case lists:partition(IsAnswer, messages(Body)) of
        {[#{~"result" := Result}], Logged} -> {ok, Result#{logged => logged(Logged)}, Node};
        {[#{~"error" := #{~"code" := Code}}], _} when Code =:= -32602; Code =:= 1016 ->
            {not_found, Node};
        {[#{~"error" := #{~"code" := Code}}], _} -> {unknown, Code, Node};
        _ -> {unknown, {no_answer, Status, Body}, Node}
    end.

logged(Messages) ->
    [Level || #{~"method" := ~"notifications/message", ~"params" := #{~"level" := Level}}
                  <- Messages].

%% HTTP.

ask(Method, Headers, Body, #{path := Path, timeout := Milliseconds} = Client) ->
    case connected(Client) of
        {ok, #{connection := Connection} = Connected} ->
            Type = [{~"accept", ~"application/json, text/event-stream"},
                    {~"content-type", ~"application/json"}],
            Stream = gun:request(Connection, Method, Path, Type ++ Headers, Body),
            case answer(Connection, Stream, Milliseconds) of
                {error, _} = Error -> {Error, close(Connected)};
                Answer -> {Answer, Connected}
            end;
        {error, _} = Error ->
            {Error, Client}
    end.

connected(#{connection := none, host := Host, port := Port, timeout := Milliseconds} = Client) ->
    {ok, Connection} = gun:open(Host, Port, #{protocols => [http], retry => 0}),
    case gun:await_up(Connection, Milliseconds) of
        {ok, http} ->
            {ok, Client#{connection := Connection}};
        {error, Reason} ->
            _ = close(Client#{connection := Connection}),
            {error, {not_connected, reason(Reason)}}
    end;
connected(Client) ->
    {ok, Client}.

answer(Connection, Stream, Milliseconds) ->
    maybe
        {response, IsEnd, Status, Headers} ?= gun:await(Connection, Stream, Milliseconds),
        {ok, Body} ?= body(IsEnd, Connection, Stream, Milliseconds),
        {Status, maps:from_list(Headers), Body}
    else
        {error, Reason} -> {error, reason(Reason)}
    end.

body(fin, _, _, _) -> {ok, ~""};
body(nofin, Connection, Stream, Milliseconds) -> gun:await_body(Connection, Stream, Milliseconds).

reason({stream_error, _}) -> closed;
reason({connection_error, _}) -> closed;
reason({down, _}) -> closed;
reason(Reason) -> Reason.

%% The JSON of a body: one message, or those of its events.
messages(<<"{", _/binary>> = Body) ->
    [json:decode(Body)];
messages(Body) ->
    [json:decode(Data) || <<"data: ", Data/binary>> <- binary:split(Body, ~"\n", [global]),
                          Data =/= ~""].
