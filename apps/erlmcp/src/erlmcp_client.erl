-module(erlmcp_client).
-moduledoc """
An MCP client: a process under your supervisor for one server, and functions that call that server.

```erlang
{ok, Client} = erlmcp_client:start_link({http, ~"http://127.0.0.1:8080/mcp", #{}}),
{ok, Tools} = erlmcp_client:list_tools(Client),
{ok, #{~"content" := Content}} = erlmcp_client:call_tool(Client, ~"echo", #{text => ~"hello"}).
```

A client finds out which of the five revisions its server speaks. If the revision has sessions, the
client opens one, and another one if the server forgets it.

While the server cannot be reached, the client stays, and calls fail with `{connect, Why}`. On
Streamable HTTP a call makes the next attempt, unless it comes in the pause after a failed one.
Elsewhere the client tries again by itself, after a pause, and calls wait for the attempt. If their
time ends before, they fail with `{timeout, Milliseconds}`. A client with subscriptions always tries
again by itself.

Every call has a deadline of its own: `timeout`, which reports of progress extend up to
`max_timeout`. A call returns `{ok, Result}`, with JSON as maps with binary keys, or an error, see
`t:reason/0`. If a tool fails, its result has `isError`.

Every call runs in a process of its own. If the process that waits for the call ends, the call ends
too, and the client tells the server that the request is cancelled.

To write a client:

- `t:target/0`: where the server is.
- `t:options/0`, `t:call_options/0`: options of the client, and of one call.
- `m:erlmcp_oauth`: logins.
- `m:erlmcp_pool`: several clients as one.
- `m:erlmcp_skills`: skills.
""".

-export([start_link/1, start_link/2, child_spec/1, stop/1]).
-export([server/1, server/2, info/1, metrics/0]).
-export([list_tools/1, list_tools/2, call_tool/3, call_tool/4]).
-export([list_resources/1, list_resources/2, list_resource_templates/1, list_resource_templates/2]).
-export([read_resource/2, read_resource/3]).
-export([list_prompts/1, list_prompts/2, get_prompt/3, get_prompt/4]).
-export([list_skills/1, list_skills/2]).
-export([complete/3, complete/4, ping/1, ping/2, request/3, request/4, notify/3]).
-export([async/2, async/3, cancel/2]).
-export([task/2, task/3, await_task/2, await_task/3, cancel_task/2, cancel_task/3]).
-export([subscribe/2, unsubscribe/2]).
-export([format_error/1]).

-export_type([client/0, target/0, options/0, http_options/0, stdio_options/0, server_options/0]).
-export_type([inputs/0, info/0, metrics/0, call_options/0, operation/0, list_kind/0, reason/0]).
-export_type([result/0, items/0, filter/0, event/0]).

-doc "A client, or a pool of them (`m:erlmcp_pool`): its pid, or the name it was started with.".
-type client() :: pid() | atom().

-doc """
The address of a server, with the client's options.

- `http`: a URL. Its own options are `t:http_options/0`.
- `stdio`: a program to start: its path or name, or a list of the path or name and the first
  arguments. Its own options are `t:stdio_options/0`.
- `tcp`: a host and a port. This transport has no options of its own.
- `server`: a server of this node, without a socket. Its own options are `t:server_options/0`.

Options of a transport stand in the same map as those of every client, `t:options/0`.
""".
-type target() ::
    {http, Url :: binary(), options()}
    | {stdio, Command :: binary() | [binary(), ...], options()}
    | {tcp, Host :: binary() | inet:ip_address(), inet:port_number(), options()}
    | {server, erlmcp:server(), options()}.

-doc """
The options of every client. A value in parentheses is the default.

- `name`, `version`, `title`: what the client calls itself (`erlmcp`, and its version).
- `era`: the revisions that the client speaks. `auto`, the default, finds out what the server
  speaks. `stateless` is 2026-07-28, and `session` the newest revision before it that the server
  has. A revision, such as `'2025-06-18'`, is only that one.
- `inputs`: funs that answer what servers ask, see `t:inputs/0`.
- `capabilities`: further capabilities of the client, such as `extensions`, as they are on the wire.
  A member given here replaces that of `inputs`.
- `tasks`: `true` if calls of tools may become tasks (`false`). Such a call waits for its task, or
  returns it (`task` of `t:call_options/0`).
- `log_level`: the lowest level of log messages that the client asks the server for (none).
- `trace`: the tracer of the client's spans, see `t:erlmcp_tracer:options/0`. Without this option a
  call has a span only if its context has a tracer, as in a handler of a server with a tracer.
- `cache`: `false` keeps no results. A map bounds their `entries` (1,000) and `bytes` (8,388,608).
- `timeout`: milliseconds until the answer to a call, or its next report of progress (60,000). All
  pages of a list share this time.
- `max_timeout`: milliseconds of a whole call, whatever progress it reports (600,000), at least
  `timeout`. Neither time runs while the client answers a question of the server.
- `connect_timeout`: milliseconds to open a connection (10,000).
- `input_timeout`: milliseconds to answer a question of the server (600,000).
- `calls`, `subscriptions`: the most at once (1,000 and 100).
- `limits`: bounds of what a server sends: `message_bytes` (4,194,304), `depth` of its JSON (64),
  `members` of its JSON (100,000), `pages` of a list (1,000) and `list_bytes` (16,777,216). In
  addition `call_heap_bytes`, the heap of a call's process (50,331,648).
""".
-type options() :: #{
    name => binary(), version => binary(), title => binary(),
    era => auto | stateless | session | erlmcp:revision(),
    inputs => inputs(),
    capabilities => map(),
    tasks => boolean(),
    log_level => erlmcp:level(),
    trace => erlmcp_tracer:options(),
    cache => false | #{entries => pos_integer(), bytes => pos_integer()},
    timeout => pos_integer(), max_timeout => pos_integer(), connect_timeout => pos_integer(),
    input_timeout => pos_integer(), calls => pos_integer(), subscriptions => pos_integer(),
    limits => #{message_bytes | depth | members | pages | list_bytes | call_heap_bytes =>
                    pos_integer()},
    atom() => term()
}.

-doc """
A client's own options on HTTP.

- `headers`: names and values that every request has. Names that the client sets itself are refused.
- `token`: the token of `Authorization: Bearer`, or a fun that returns `{ok, Token}` or
  `{error, Reason}`. The fun is called once, when the client starts. With an error the client does
  not start: `{error, {secret, Reason}}`.
- `auth`: OAuth, see `t:erlmcp_oauth:options/0`. A client has at most one of `auth`, `token` and an
  `authorization` header.
- `transport`: `sse` for a server of HTTP+SSE whose stream is at the URL. By default the client
  finds out which transport the server has.
- `connections`: the most connections for calls (8). `streams`: the most streams of subscriptions
  and sessions (100). Each is 10,000 at most. Two more connections are for notifications, and for
  answers to the server's questions, while those for calls are taken.
- `idle_ms`: milliseconds until an unused connection is closed (30,000).
- `tls`: options of `ssl:connect/3`, which override the client's own.
- `protocols`: the versions of HTTP that the client offers over TLS (`[http2, http]`). Without TLS
  the client speaks HTTP/1.1, or HTTP/2 if the value is `[http2]`.
""".
-type http_options() :: #{
    headers => [{binary(), binary()}],
    token => erlmcp_oauth:secret(),
    auth => erlmcp_oauth:options(),
    transport => sse,
    connections => pos_integer(), streams => pos_integer(), idle_ms => pos_integer(),
    tls => [ssl:tls_client_option()],
    protocols => [http2 | http]
}.

-doc """
A client's own options on stdio.

- `args`: arguments of the program, after those in the `t:target/0`.
- `env`: environment variables of the program; `false` removes one.
- `inherit`: `safe`, the default, passes a few harmless variables of the node's environment to the
  program, such as `PATH` and `HOME`. `all` passes every variable.
- `cd`: the folder that the program runs in (the node's).
- `stop_ms`: milliseconds that the program has to end after its input is closed (2,000), and again
  after SIGTERM, before SIGKILL.
""".
-type stdio_options() :: #{
    args => [binary()],
    env => #{binary() => binary() | false},
    inherit => safe | all,
    cd => binary(),
    stop_ms => pos_integer()
}.

-doc """
A client's own option for a server of the same node: the principal of the client at the server
(`anonymous`).
""".
-type server_options() :: #{principal => erlmcp:principal()}.

-doc """
Funs that answer what servers ask. A client declares the capabilities of the funs that it has. Each
question has a process of its own, and several may be answered at the same time.

- `elicit` gets the parameters of a form. Members that `Content` leaves out get their defaults, and
  `Content` must fit the form's schema.
- `elicit_url` gets the parameters of a URL to visit.
- `sample` gets the parameters of `sampling/createMessage`, and returns its result.
- `roots` is the list of the roots, or a fun that returns it.

If a fun crashes, takes longer than `input_timeout`, or returns an error or content that does not
fit, the question is answered with an error. In 2026-07-28 the call fails with `{input, Name, Why}`
instead.
""".
-type inputs() :: #{
    elicit => fun((map()) -> {accept, Content :: map()} | decline | cancel),
    elicit_url => fun((map()) -> accept | decline | cancel),
    sample => fun((map()) -> {ok, map()} | {error, binary()}),
    roots => [map()] | fun(() -> [map()])
}.

-doc """
The state and the counts of a client, as `info/1` returns them.

- `revision`: the revision that the client and the server agreed on. `session`: whether the server
  has given the id of a session, as only Streamable HTTP does. Both are absent before the client has
  reached the server, and while it reconnects.
- `calls`: calls that run.
- `dropped_notifications`: notifications that were lost because they arrived faster than the client
  could pass them on. Only Streamable HTTP counts them; elsewhere they are logged.
- `cache`: how many results the client's cache has, and their bytes.
""".
-type info() :: #{
    revision => erlmcp:revision(), session => boolean(),
    calls := non_neg_integer(), dropped_notifications := non_neg_integer(),
    cache := #{entries := non_neg_integer(), bytes := non_neg_integer()}
}.

-doc """
The figures of all clients of the node whose requests go to the same server and have the same
revision, as `metrics/0` returns them.

- `server`, `port`, `network`: the server's host and port, with the network `tcp`. On stdio `server`
  is the name of the program, and in the same node the server's `id`. Both have the network `pipe`,
  and `none` as their port. At most 20 servers have figures of their own. `other` has those of all
  others, with `none` as port and network. The figures of a server without clients end when another
  server needs their place.
- `revision`: `none` for calls that ended before a revision was agreed on, and for those that the
  client or its pool refused.
- `clients`, `calls`, `connections`: how many there are now. `waiting`: requests that wait for a
  connection.
- `sessions`: those of revisions that have sessions, on all transports. `duration` is that of the
  sessions that have ended.
- `methods`, `tools`, `prompts`: requests that have ended, as in `t:erlmcp:metrics/0`, in the
  client's view. `bytes_out` are those of the requests. `refusals` are the requests without a
  result, except cancelled ones. The errors among their `failures` are the names of `t:reason/0`:
  `rpc`, with its `code`, for an error that the server answered. At most 200 tools and prompts, of
  all servers together, have figures of their own. `other` has those of all others.
- `removed`: requests for tools and prompts that no longer have figures of their own. When room is
  short, tools and prompts without a recent request lose theirs.
""".
-type metrics() :: #{
    server := binary() | other, port := inet:port_number() | none, network := tcp | pipe | none,
    revision := erlmcp:revision() | none,
    clients := non_neg_integer(), calls := non_neg_integer(),
    connections := non_neg_integer(), waiting := non_neg_integer(),
    sessions := #{open := non_neg_integer(), opened := non_neg_integer(),
                  ended := non_neg_integer(), duration := erlmcp:latency()},
    methods := #{binary() => erlmcp:metrics_row()},
    tools := [erlmcp:definition_metrics()], prompts := [erlmcp:definition_metrics()],
    removed := #{tools | prompts => erlmcp:metrics_row()}
}.

-doc """
The options of one call.

- `timeout`: milliseconds until the answer or the next report of progress. The server is asked for
  reports if `progress` is given, and by `async/3` always.
- `max_timeout`: milliseconds of the whole call, at least `timeout`. The defaults of both are the
  client's options.
- `progress`, `log`: funs that get the parameters of each notification of progress, or log message.
  They run in the call's process. Only Streamable HTTP shows which call a log message belongs to.
  Elsewhere `log` gets none, and subscriptions get them (`logs` of `t:filter/0`).
- `log_level`: the lowest level of log messages for this call, in place of the client's; only in
  2026-07-28.
- `meta`: members for the request's `_meta`.
- `trace`: the context of the span that the call belongs to (`m:erlmcp_tracer`). By default the
  context is the current one of the calling process: in a handler, that of the running request.
- `fresh`: `true` asks the server even if the cache has a result.
- `task`: if the call becomes a task, `await`, the default, waits for its result, and `handle`
  returns the task. Needs the client's option `tasks`.
- `key`, `repeatable`: how a pool routes and repeats the call, see `m:erlmcp_pool`.
""".
-type call_options() :: #{
    timeout => pos_integer(), max_timeout => pos_integer(),
    progress => fun((map()) -> term()), log => fun((map()) -> term()),
    log_level => erlmcp:level(), meta => map(), trace => erlmcp_tracer:context(),
    fresh => boolean(),
    task => await | handle, key => term(), repeatable => boolean()
}.

-doc "An operation of `async/3`. A function such as `call_tool/3` has the same result, and waits.".
-type operation() ::
    ping
    | {list, list_kind()}
    | {call_tool, Name :: binary(), Arguments :: map()}
    | {read_resource, Uri :: binary()}
    | {get_prompt, Name :: binary(), Arguments :: map()}
    | {complete, {prompt, Name :: binary()} | {resource, UriTemplate :: binary()},
       {Argument :: binary(), Value :: binary()}, Arguments :: map()}
    | {request, Method :: binary(), Params :: map()}
    | {task, get | await | cancel, Task :: map()}.
-doc "The kinds of lists.".
-type list_kind() :: tools | resources | resource_templates | prompts | skills.

-doc """
The reason why a call failed; `format_error/1` makes a sentence of it.

- `{connect, Why}`: the server could not be reached, and the request was not sent.
- `{closed, Why}`: the connection ended before the answer, or a later request of the call was not
  served, such as a poll of its task. Unless `Why` is `unprocessed`, the server may have done the
  work.
- `{http, Status, Headers, Body}`: an HTTP error without a JSON-RPC message. `Body` has at most its
  first 4,096 bytes.
- `session_lost`: the server does not know the session any more; nothing was done.
- `{redirect, Location}`: the server redirects to a URL that the client does not follow. The client
  follows 307 and 308 within the origin, three times at most.
- `{unauthorized, Why}`: the server requires authorization, and the client has none or it failed.
- `{protocol, What}`: the answer is not MCP, or does not fit the tool's output schema. `What` says
  where, and what was expected. A request that cannot be sent has this reason, too.
- `{rpc, Error}`: the server answered with this error.
- `{timeout, Milliseconds}`: the server did not answer in time, which was the `timeout` of the call,
  or its `max_timeout` if the call met that. If the request was sent, the server was told that the
  call is cancelled. `timeout`: the client itself did not answer `subscribe/2`.
- `{too_large, Limit}`: a message is larger than `message_bytes`, or a list than `list_bytes`.
  `{too_large, heap}`: the answer takes more memory than a call may use.
- `{overload, Limit}`: a limit of the client is reached: its calls, subscriptions, streams, waiting
  requests or unsent bytes. The request was not sent.
- `{unsupported_version, Theirs}`: the client and the server have no revision in common. `Theirs`
  are those of the server.
- `{cursor_loop, Cursor}`, `{too_many_pages, Limit}`: a list does not end.
- `{too_many_rounds, Limit}`: the server asks for input again and again.
- `{input, Name, Why}`: the client could not answer the server's question `Name`.
- `{unavailable, Milliseconds}`: no member of the pool works now. Try again after `Milliseconds`.
- `cancelled`: the call, or the task that it waited for, was cancelled.
- `stopped`: the client has ended, or was never started.
- `{crashed, Reason}`: the call crashed, as when a fun among its options does.
- `{bad_option, Key, Expected}`: an option of the call, or a key of a filter, is unknown or of the
  wrong type. The request was not sent.
""".
-type reason() ::
    {connect, term()}
    | {closed, term()}
    | {http, Status :: pos_integer(), #{binary() => binary()}, Body :: binary()}
    | session_lost
    | {redirect, Location :: binary()}
    | {unauthorized, term()}
    | {protocol, What :: binary()}
    | {too_large, Limit :: pos_integer() | heap}
    | {overload, Limit :: pos_integer()}
    | {rpc, #{code := integer(), message := binary(), data => term()}}
    | timeout
    | {timeout, Milliseconds :: pos_integer()}
    | {unsupported_version, Theirs :: [binary()]}
    | {cursor_loop, Cursor :: binary()}
    | {too_many_pages, pos_integer()}
    | {too_many_rounds, pos_integer()}
    | {input, Name :: binary(), Why :: term()}
    | {unavailable, Milliseconds :: non_neg_integer()}
    | {crashed, term()}
    | {bad_option, Key :: term(), Expected :: binary()}
    | cancelled
    | stopped.

-doc "The outcome of a request: the result's JSON as a map with binary keys, or the reason.".
-type result() :: {ok, map()} | {error, reason()}.
-doc "The outcome of a list: its items as maps with binary keys, or the reason.".
-type items() :: {ok, [map()]} | {error, reason()}.

-doc """
The events that a subscription asks for.

- `tools_changed`, `prompts_changed`, `resources_changed`: changes of these lists.
- `resources`: URIs of resources, for changes of their contents.
- `logs`: log messages, except those that a call passes to its own caller (`log` of
  `t:call_options/0`, and the messages of `async/2`).
- `elicitations`: notifications that a user has finished at a URL; only in 2025-11-25.
""".
-type filter() :: #{
    tools_changed => boolean(), prompts_changed => boolean(), resources_changed => boolean(),
    resources => [binary()],
    logs => boolean(),
    elicitations => boolean()
}.
-doc """
An event of a subscription, sent as `{erlmcp, Reference, Event}`. After `subscribed` no change is
missed, except in two cases. The client may have to drop notifications (`t:info/0`), or an HTTP
server with sessions may not have opened its stream of notifications. Another `subscribed` means
that changes may have been missed before it.

The last event is `{ended, Reason}`, except after `unsubscribe/2`. `Reason` is `slow_consumer` if
more than 1,000 messages wait for the process. `Reason` is the same if their number, times the size
of the event, is more than 8 MiB. Otherwise `Reason` is `stopped`, or the `t:reason/0` of the
failure.
""".
-type event() ::
    subscribed | tools_changed | prompts_changed | resources_changed
    | {resource_updated, Uri :: binary()} | {log, map()}
    | {elicitation_complete, Id :: binary()} | {ended, Reason :: term()}.

-doc """
Starts a client, linked to the calling process. The client connects to the server in the background.

## Errors

- `{bad_option, Key, Expected}`: the target is wrong, or an option is unknown or of the wrong type.
  For a member of an option, `Key` is a pair such as `{limits, depth}`.
- `{secret, Reason}`: the fun of the option `token` returned `{error, Reason}`.
- `{store, Reason}`: the store of the option `auth` cannot be opened.
- `{not_started, erlmcp}`: the application does not run (`application:ensure_all_started/1`).

Some errors are found only while the client starts, such as a wrong option of the transport. The
caller then also receives an exit signal, as from any failed `start_link`.
""".
-spec start_link(target()) -> {ok, pid()} | {error, term()}.
start_link(Target) ->
    start(none, Target).

-doc """
Starts a client as `start_link/1` does, and registers it locally under a name. Returns `{error,
{already_started, Pid}}` if a process has that name.
""".
-spec start_link({local, atom()}, target()) -> {ok, pid()} | {error, term()}.
start_link(Name, Target) ->
    start(Name, Target).

start(Name, Target) ->
    maybe
        {ok, Settings} ?= erlmcp_client_options:settings(Target),
        {ok, Pid} ?= erlmcp_client_connection:start_link({Name, Settings}),
        {ok, Pid}
    else
        {error, {shutdown, Reason}} -> {error, Reason};
        {error, _} = Error -> Error
    end.

-doc """
Returns the child specification of a client. Its id contains the client's name or, if it has none,
the target without the options.

## Examples

```erlang
1> #{id := {erlmcp_client, weather}} = erlmcp_client:child_spec(
       {{local, weather}, {http, ~"http://127.0.0.1:8080/mcp", #{}}}), ok.
ok
```
""".
-spec child_spec(target() | {{local, atom()}, target()}) -> supervisor:child_spec().
child_spec({{local, Name}, Target}) ->
    #{id => {?MODULE, Name}, start => {?MODULE, start_link, [{local, Name}, Target]}};
child_spec(Target) ->
    #{id => {?MODULE, erlmcp_client_options:without_options(Target)},
      start => {?MODULE, start_link, [Target]}}.

-doc """
Stops a client or a pool that was started outside a supervisor, and waits for its end. Calls and
subscriptions end with `stopped`, and the session and the connections are closed. Does nothing if
the client has ended already.
""".
-spec stop(client()) -> ok.
stop(Client) ->
    case erlmcp_client_table:find(Client) of
        {ok, #{peer := Peer}} -> erlmcp_client_connection:stop(Peer);
        {ok, #{pool := Pool}} -> erlmcp_pool_sup:stop(Pool);
        {error, stopped} -> ok
    end.

-doc """
Returns what the server says about itself: `server_info`, `capabilities` and, if it gives any,
`instructions`. `revision` is the revision that both agreed on. Waits until the client has reached
the server, or has failed to reach it (`t:reason/0`). If this wait takes longer than the client's
option `timeout`, the error is `{timeout, Milliseconds}`. In a pool one member is asked.
""".
-spec server(client()) -> {ok, map()} | {error, reason()}.
server(Client) ->
    server(Client, #{}).

-doc "Returns what `server/1` returns. Waits for at most `timeout` milliseconds.".
-spec server(client(), #{timeout => pos_integer()}) -> {ok, map()} | {error, reason()}.
server(Client, Options) ->
    case erlmcp_client_call:check(Options) of
        ok -> with_client(Client, fun(Found) -> live_server(Found, Options) end);
        {error, _} = Error -> Error
    end.

live_server(#{settings := #{timeout := Default}} = Client, Options) ->
    Timeout = maps:get(timeout, Options, Default),
    case erlmcp_client_connection:live(Client, erlmcp_clock:now_ms() + Timeout) of
        {ok, Live} -> {ok, maps:without([epoch, session, generation], Live)};
        {error, timeout} -> {error, {timeout, Timeout}};
        {error, _} = Error -> Error
    end.

-doc """
Returns the state and the counts of a client, without a request to its server. For a pool, returns
those of one member; `erlmcp_pool:info/1` lists all members. Returns `{error, stopped}` if the
client does not run, and `{error, {unavailable, Milliseconds}}` if no member of the pool works now.
""".
-spec info(client()) -> info() | {error, reason()}.
info(Client) ->
    with_client(Client, fun erlmcp_client_connection:info/1).

-doc """
Returns the figures of all clients of this node, by server and revision. Each request is counted
once, when it ends: with its response, without one, or before it was sent. Calls no process, so it
never waits. Returns `[]` if the application does not run.

## Examples

```erlang
1> Echo = #{name => ~"echo", handler => fun(_, _) -> ~"hello" end}.
2> {ok, Server} = erlmcp:start_server(#{id => ~"upstream", name => ~"upstream",
                                        version => ~"1.0.0", tools => [Echo]}).
3> {ok, Client} = erlmcp_client:start_link({server, ~"upstream", #{}}).
4> {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}).
5> [Echoes] = [Tool || #{server := ~"upstream", tools := [Tool]} <- erlmcp_client:metrics()].
6> #{name := ~"echo", count := 1, latency := #{p95_us := _}} = Echoes, ok.
ok
```
""".
-spec metrics() -> [metrics()].
metrics() ->
    erlmcp_client_metrics:report().

-doc """
Returns all tools of the server, from all pages of the list. Pages may come from the client's cache.
A list over the limit `pages` is the error `{too_many_pages, Limit}`, and one over `list_bytes` is
`{too_large, Limit}`. On HTTP in 2026-07-28, a tool that declares an invalid header is left out,
with a warning in the log.
""".
-spec list_tools(client()) -> items().
list_tools(Client) -> list_tools(Client, #{}).

-doc "Returns the tools as `list_tools/1` does, with options.".
-spec list_tools(client(), call_options()) -> items().
list_tools(Client, Options) -> run({list, tools}, Client, Options).

-doc """
Calls a tool and returns its result, a map with `content` and, perhaps, `structuredContent`. If the
client has listed the tool before, structured content that does not fit the tool's output schema is
the error `{protocol, What}`.
""".
-spec call_tool(client(), Name :: binary(), Arguments :: map()) -> result().
call_tool(Client, Name, Arguments) -> call_tool(Client, Name, Arguments, #{}).

-doc "Calls a tool as `call_tool/3` does, with options.".
-spec call_tool(client(), Name :: binary(), Arguments :: map(), call_options()) -> result().
call_tool(Client, Name, Arguments, Options) ->
    run({call_tool, Name, Arguments}, Client, Options).

-doc "Returns all resources of the server. The bounds of the list are those of `list_tools/1`.".
-spec list_resources(client()) -> items().
list_resources(Client) -> list_resources(Client, #{}).

-doc "Returns the resources as `list_resources/1` does, with options.".
-spec list_resources(client(), call_options()) -> items().
list_resources(Client, Options) -> run({list, resources}, Client, Options).

-doc """
Returns all resource templates of the server. The bounds of the list are those of `list_tools/1`.
""".
-spec list_resource_templates(client()) -> items().
list_resource_templates(Client) -> list_resource_templates(Client, #{}).

-doc "Returns the resource templates as `list_resource_templates/1` does, with options.".
-spec list_resource_templates(client(), call_options()) -> items().
list_resource_templates(Client, Options) -> run({list, resource_templates}, Client, Options).

-doc """
Reads the resource at `Uri`, or returns what the client's cache has of it. The result has its
`contents`, a list of maps.
""".
-spec read_resource(client(), Uri :: binary()) -> result().
read_resource(Client, Uri) -> read_resource(Client, Uri, #{}).

-doc "Reads a resource as `read_resource/2` does, with options.".
-spec read_resource(client(), Uri :: binary(), call_options()) -> result().
read_resource(Client, Uri, Options) -> run({read_resource, Uri}, Client, Options).

-doc "Returns all prompts of the server. The bounds of the list are those of `list_tools/1`.".
-spec list_prompts(client()) -> items().
list_prompts(Client) -> list_prompts(Client, #{}).

-doc "Returns the prompts as `list_prompts/1` does, with options.".
-spec list_prompts(client(), call_options()) -> items().
list_prompts(Client, Options) -> run({list, prompts}, Client, Options).

-doc """
Returns the entries of all skills of the server. The bounds of the list are those of `list_tools/1`.
`m:erlmcp_skills` reads their files.
""".
-spec list_skills(client()) -> items().
list_skills(Client) -> list_skills(Client, #{}).

-doc "Returns the skills as `list_skills/1` does, with options.".
-spec list_skills(client(), call_options()) -> items().
list_skills(Client, Options) -> run({list, skills}, Client, Options).

-doc "Returns the prompt `Name`, made with `Arguments`. The result has its `messages`.".
-spec get_prompt(client(), Name :: binary(), Arguments :: #{binary() | atom() => binary()}) ->
    result().
get_prompt(Client, Name, Arguments) -> get_prompt(Client, Name, Arguments, #{}).

-doc "Returns a prompt as `get_prompt/3` does, with options.".
-spec get_prompt(client(), Name :: binary(), Arguments :: #{binary() | atom() => binary()},
                 call_options()) -> result().
get_prompt(Client, Name, Arguments, Options) ->
    run({get_prompt, Name, Arguments}, Client, Options).

-doc """
Returns completions of an argument of `{prompt, Name}`, or of a variable of
`{resource, UriTemplate}`. `Argument` is the name of that argument or variable, and `Value` the text
typed so far. The result has `completion`, a map with the list `values`.
""".
-spec complete(client(), {prompt, Name :: binary()} | {resource, UriTemplate :: binary()},
               {Argument :: binary(), Value :: binary()}) -> result().
complete(Client, Of, Argument) -> complete(Client, Of, Argument, #{}).

-doc """
Returns completions as `complete/3` does, with options. `arguments` has the values that were already
chosen for the other arguments. Servers of revisions before 2025-06-18 ignore them.
""".
-spec complete(client(), {prompt, Name :: binary()} | {resource, UriTemplate :: binary()},
               {Argument :: binary(), Value :: binary()},
               call_options() | #{arguments => #{binary() => binary()}}) -> result().
complete(Client, Of, Argument, Options) ->
    run({complete, Of, Argument, maps:get(arguments, Options, #{})}, Client,
        maps:remove(arguments, Options)).

-doc """
Sends a ping and waits for its answer. In 2026-07-28, which has no ping, sends `server/discover`.
The errors are those of every call (`t:reason/0`).
""".
-spec ping(client()) -> {ok, pong} | {error, reason()}.
ping(Client) -> ping(Client, #{}).

-doc "Pings the server as `ping/1` does, with options.".
-spec ping(client(), call_options()) -> {ok, pong} | {error, reason()}.
ping(Client, Options) -> run(ping, Client, Options).

-doc """
Sends a request of any `Method`, such as one of an extension, and returns its result. The result may
come from the cache. If the result of one of MCP's own methods does not have the form that it must
have, the error is `{protocol, What}`.
""".
-spec request(client(), Method :: binary(), Params :: map()) -> result().
request(Client, Method, Params) -> request(Client, Method, Params, #{}).

-doc "Sends a request as `request/3` does, with options.".
-spec request(client(), Method :: binary(), Params :: map(), call_options()) -> result().
request(Client, Method, Params, Options) -> run({request, Method, Params}, Client, Options).

-doc """
Sends a notification, such as `notifications/roots/list_changed` in a session. Waits for the server
as `server/1` does. After that, waits for at most five seconds until the server has accepted the
notification on HTTP, or until it is written on another transport. In a pool one member sends it.
The errors are those of a call (`t:reason/0`).
""".
-spec notify(client(), Method :: binary(), Params :: map()) -> ok | {error, reason()}.
notify(Client, Method, Params) ->
    with_client(Client, fun(Found) -> erlmcp_client_call:notify(Method, Params, Found) end).

run(Operation, Client, Options) ->
    maybe
        ok ?= erlmcp_client_call:check(Options),
        {ok, Found} ?= erlmcp_client_table:find(Client),
        case Found of
            #{peer := _} -> erlmcp_client_call:run(Operation, Found, traced(Options));
            #{pool := _} -> erlmcp_pool_members:run(Operation, Found, traced(Options))
        end
    end.

traced(#{trace := _} = Options) ->
    Options;
traced(Options) ->
    case erlmcp_tracer:current() of
        none -> Options;
        Context -> Options#{trace => Context}
    end.

%% An operation that concerns one connection is done by one member of a pool.
with_client(Client, Do) ->
    case erlmcp_client_table:find(Client) of
        {ok, #{peer := _} = Found} ->
            Do(Found);
        {ok, #{pool := _} = Pool} ->
            case erlmcp_pool_members:member(Pool) of
                {ok, Member} -> Do(Member);
                {error, _} = Error -> Error
            end;
        {error, stopped} = Error ->
            Error
    end.

-doc """
Starts an operation, such as `{call_tool, Name, Arguments}`, and does not wait for it. While the
operation runs, the calling process is sent `{erlmcp, Reference, {progress | log, Params}}`. Such
messages are left out while too many wait for the process, as with `slow_consumer` of `t:event/0`.
At the end the process is sent `{erlmcp, Reference, {ok, Result} | {error, Reason}}` once, however
many messages wait. Returns `{error, stopped}` if the client does not run.
""".
-spec async(client(), operation()) -> {ok, reference()} | {error, reason()}.
async(Client, Operation) ->
    async(Client, Operation, #{}).

-doc """
Starts an operation as `async/2` does, with options. The funs `progress` and `log`, if given, are
called in place of the messages to the calling process. A wrong option is the error
`{bad_option, Key, Expected}`.
""".
-spec async(client(), operation(), call_options()) ->
    {ok, reference()} | {error, reason()}.
async(Client, Operation, Options) ->
    maybe
        ok ?= erlmcp_client_call:check(Options),
        {ok, Found} ?= erlmcp_client_table:find(Client),
        {ok, case Found of
            #{peer := _} -> erlmcp_client_call:start(Operation, Found, traced(Options), self());
            #{pool := _} -> erlmcp_pool_members:start(Operation, Found, traced(Options), self())
        end}
    end.

-doc """
Cancels an operation that `async/2` or `async/3` has started at this client. Tells the server, if
the request has been sent. Does not wait: the outcome comes as a message, and is
`{error, cancelled}` unless another outcome is already on its way. Has no effect on an operation
that has ended.
""".
-spec cancel(client(), reference()) -> ok.
cancel(Client, Reference) ->
    case erlmcp_client_table:find(Client) of
        {ok, #{peer := _} = Found} -> erlmcp_client_call:cancel(Reference, Found);
        {ok, #{pool := _} = Pool} -> erlmcp_pool_members:cancel(Reference, Pool);
        {error, stopped} -> ok
    end.

-doc """
Returns the current state of a task of the server, a map with its `status`. `Task` is the map that a
call with the option `task => handle` returned, or `#{~"taskId" => Id}`.
""".
-spec task(client(), Task :: map()) -> result().
task(Client, Task) -> task(Client, Task, #{}).

-doc "Returns a task as `task/2` does, with options.".
-spec task(client(), Task :: map(), call_options()) -> result().
task(Client, Task, Options) -> run({task, get, Task}, Client, Options).

-doc """
Waits for a task of the server, given as in `task/2`, and returns the result of its call. Meanwhile
the client answers the task's questions. Returns `{error, cancelled}` if the task was cancelled. The
task is cancelled if the wait fails with `{timeout, Milliseconds}` or is cancelled, or if the caller
ends.
""".
-spec await_task(client(), Task :: map()) -> result().
await_task(Client, Task) -> await_task(Client, Task, #{}).

-doc """
Waits for a task as `await_task/2` does, with options. `timeout` bounds each poll of the task, and
two late polls in a row end the wait. `max_timeout` bounds the wait.
""".
-spec await_task(client(), Task :: map(), call_options()) -> result().
await_task(Client, Task, Options) -> run({task, await, Task}, Client, Options).

-doc """
Asks the server to cancel a task, given as in `task/2`, and returns the answer of the server.
""".
-spec cancel_task(client(), Task :: map()) -> result().
cancel_task(Client, Task) -> cancel_task(Client, Task, #{}).

-doc "Cancels a task as `cancel_task/2` does, with options.".
-spec cancel_task(client(), Task :: map(), call_options()) -> result().
cancel_task(Client, Task, Options) -> run({task, cancel, Task}, Client, Options).

-doc """
Subscribes the calling process to changes, see `t:filter/0`, until `unsubscribe/2` or the end of the
process. The process is sent `{erlmcp, Reference, Event}`, see `t:event/0`. In a pool one member
subscribes.

## Errors

- `stopped`, `timeout`: the client has ended, or has not answered within five seconds.
- `{unavailable, Milliseconds}`: no member of the pool works now.
- `{overload, Limit}`: the client has as many subscriptions as its option `subscriptions` allows.
- `{bad_option, Key, Expected}`: the filter has a key that does not exist, or a wrong value.
""".
-spec subscribe(client(), filter()) ->
    {ok, reference()} | {error, reason()}.
subscribe(Client, Filter) ->
    case erlmcp_client_subscriptions:check(Filter) of
        ok ->
            with_client(Client, fun(Found) ->
                erlmcp_client_connection:subscribe(Found, self(), Filter)
            end);
        {error, _} = Error -> Error
    end.

-doc "Ends a subscription. Events that were sent before this call may still arrive.".
-spec unsubscribe(client(), reference()) -> ok.
unsubscribe(Client, Reference) ->
    case erlmcp_client_table:find(Client) of
        {ok, #{peer := _} = Found} ->
            erlmcp_client_connection:unsubscribe(Found, Reference);
        {ok, #{pool := _} = Pool} ->
            lists:foreach(fun(Member) -> unsubscribe(Member, Reference) end,
                          erlmcp_pool_members:pids(Pool));
        {error, stopped} ->
            ok
    end.

-doc """
Returns a reason as a sentence.

## Examples

```erlang
1> erlmcp_client:format_error({timeout, 5000}).
~"the server did not answer within 5000 ms"
2> erlmcp_client:format_error({rpc, #{code => -32601, message => ~"no such method"}}).
~"the server answered with error -32601: no such method"
3> erlmcp_client:format_error({unauthorized, {http, 401, #{}, ~""}}).
~"the server requires authorization: the server answered with HTTP status 401"
```
""".
-spec format_error(reason()) -> binary().
format_error(Reason) ->
    erlmcp_client_error:text(Reason).
