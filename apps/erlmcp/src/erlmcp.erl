-module(erlmcp).
-moduledoc """
Model Context Protocol for Erlang/OTP: starts servers, changes them while they run, and lets their
handlers report to clients.

```erlang
{ok, Server} = erlmcp:start_server(#{
    name => ~"greeter", version => ~"1.0.0",
    tools => [#{name => ~"greet", description => ~"Greets a person by name",
                input_schema => #{type => object, properties => #{name => #{type => string}}},
                handler => fun(#{~"name" := Name}, _Context) -> <<"Hello, ", Name/binary>> end}],
    listen => [{http, #{port => 8080}}]
}).
```

A server speaks all five revisions of the protocol, and answers each client in the client's own.

To write a server:

- `t:options/0`: its options.
- `t:tool/0`, `t:resource/0`, `t:resource_template/0`, `t:prompt/0`, `t:skill/0`: its definitions.
- `t:context/0`: what its handlers are given.
- `c:erlmcp_server:call_tool/3`, `m:erlmcp_content`: what they return.
- `m:erlmcp_input`: the questions that they can ask a client.
- `m:erlmcp_listen`: where it listens, and how it identifies clients.
- `m:erlmcp_server`: a module that is a server.

The client is `m:erlmcp_client`.
""".

-export([start_server/1, child_spec/1, drain/2, stop_server/1, listeners/1, servers/0]).
-export([add/3, remove/3, replace/2, reload/1, resource_updated/2]).
-export([info/1, health/1, metrics/1, sessions/1, calls/1, cancel/2]).
-export([progress/3, log/3, log/4, elicitation_complete/2, client_has/2, close_connection/1]).
-export([refusal/2, refusal/3, insufficient_scope/1]).

-export_type([server/0, options/0, limits/0, bound/0, access_log/0, mount/0, key_ring/0]).
-export_type([kind/0, definition/0, definitions/0, tool/0, resource/0, resource_template/0,
              prompt/0, skill/0]).
-export_type([handler/0, arguments/0, middleware/0, next/0, breaker/0, workers/0]).
-export_type([context/0, call_reference/0, principal/0, scope/0, scopes/0, revision/0, level/0]).
-export_type([refusal/0, refusal_name/0, refusal_details/0]).
-export_type([address/0, info/0, health/0, health_check/0, open_session/0, running_call/0]).
-export_type([cache_info/0, breaker_info/0, workers_info/0, forecast/0, reloaded/0]).
-export_type([error_budget/0, zone/0, event/0, drain_options/0]).
-export_type([metrics/0, metrics_row/0, definition_metrics/0, failure_metrics/0]).
-export_type([tool_info/0, latency/0]).

-doc "A server: its pid, or the `id` of its options.".
-type server() :: pid() | term().

-doc """
The options of `start_server/1`. A value in parentheses is the default.

- `name`, `version`: the server's name and version, required here or in `server/0` of the `handler`.
- `title`, `description`, `website_url`, `icons`: shown to clients whose revision has these fields.
- `instructions`: a text about the whole server, for the client's model.
- `tools`, `resources`, `resource_templates`, `prompts`: definitions, in the order of the lists. See
  `t:tool/0`, `t:resource/0`, `t:resource_template/0` and `t:prompt/0`.
- `skills`: the server's skills, which do not change while it runs. See `t:skill/0`.
- `handler`: a module with `-behaviour(erlmcp_server)`. Options given here override those of its
  `server/0`; its definitions come before those given here.
- `middleware`: funs around every handler, the first outermost, see `t:middleware/0`.
- `breakers`, `workers`: circuit breakers and pools of workers that definitions use by name. See
  `t:breaker/0` and `t:workers/0`.
- `mounts`: other servers, whose definitions are offered under a prefix, see `t:mount/0`.
- `page_size`: definitions in one page of a list (100).
- `list_ttl_ms`: milliseconds that a client may keep a list (60,000). A client that subscribes to
  changes of the list is notified of them before this time ends.
- `keys`: the keys that seal cursors and state, see `t:key_ring/0`, or a fun that returns them when
  the server starts. Prefer the fun: a list can appear in a supervisor's log. The default is the
  keys of the `cluster` or, without one, a new random key.
- `task_store`: keeps the records of tasks: `{Module, Options}` with a module of
  `-behaviour(erlmcp_task_store)`. The default keeps them in memory, or in the store of the server's
  `cluster`.
- `cluster`: a module with `-behaviour(erlmcp_server_cluster)`, such as `erlmcp_cluster`. The
  servers with the same `id` on the nodes of a cluster are one server for their clients. Needs an
  `id`.
- `on_event`: a fun that is called with each event, one after the other, in a process of its own.
  See `t:event/0`.
- `access_log`: logs the ends of requests, see `t:access_log/0`; none by default.
- `trace`: the tracer of the spans of requests, see `t:erlmcp_tracer:options/0`; none by default.
- `listen`: where the server listens, see `t:erlmcp_listen:listener/0`; nowhere by default.
- `envelope`: the name of a set of limits: `measured`, `team`, `enterprise` or `gov`. The default,
  `measured`, is computed from the memory, descriptors, ports and processes that the machine has.
- `limits`: single limits, see `t:limits/0`. They override those of the envelope.
- `id`: a term that names the server for the functions of this module, in addition to its pid. The
  default is a new reference.
""".
-type options() :: #{
    id => term(),
    name => binary(),
    version => binary(),
    title => binary(),
    description => binary(),
    website_url => binary(),
    icons => [map()],
    instructions => binary(),
    handler => module(),
    tools => [tool()],
    resources => [resource()],
    resource_templates => [resource_template()],
    prompts => [prompt()],
    middleware => [middleware()],
    breakers => #{atom() => breaker()},
    workers => #{atom() => workers()},
    mounts => [mount()],
    skills => [skill()],
    page_size => pos_integer(),
    list_ttl_ms => non_neg_integer(),
    keys => key_ring() | fun(() -> key_ring()),
    task_store => {module(), map()},
    cluster => module(),
    on_event => fun((event()) -> term()),
    access_log => access_log(),
    trace => erlmcp_tracer:options(),
    listen => [erlmcp_listen:listener()],
    envelope => measured | team | enterprise | gov,
    limits => limits()
}.

-doc """
The limits of a server. The page "Options and limits" has the default, the unit and the meaning of
each.
""".
-type limits() :: #{
    message_bytes => pos_integer(), depth => pos_integer(), members => pos_integer(),
    calls_per_connection => pos_integer(), queue_per_connection => non_neg_integer(),
    queue_bytes_per_connection => pos_integer(),
    sessions => pos_integer(), subscriptions => pos_integer(), session_idle_ms => pos_integer(),
    subscriptions_per_principal => pos_integer(),
    sessions_per_principal => pos_integer(), unused_session_ms => pos_integer(),
    stored_events => pos_integer(), stored_bytes => pos_integer(), stored_ms => pos_integer(),
    retry_ms => pos_integer(), reconnect_ms => pos_integer(),
    rate_retry_ms => pos_integer(), queue_retry_ms => pos_integer(),
    call_timeout_ms => pos_integer(), input_timeout_ms => pos_integer(),
    used_states => pos_integer(), used_states_per_principal => pos_integer(),
    call_heap_bytes => pos_integer(), reply_bytes => pos_integer(),
    unread_bytes => pos_integer(), unread_messages => pos_integer(),
    cache_entries => pos_integer(), cache_bytes => pos_integer(),
    skills_bytes => pos_integer(),
    tasks => pos_integer(), tasks_per_principal => pos_integer(), task_bytes => pos_integer(),
    task_bytes_per_principal => pos_integer(),
    task_ttl_ms => pos_integer(), task_timeout_ms => pos_integer(),
    authenticate_timeout_ms => pos_integer(),
    receive_timeout_ms => pos_integer(), send_timeout_ms => pos_integer(),
    keep_alive_ms => pos_integer(), error_budget_requests => pos_integer(),
    connections => bound(), connections_per_address => bound(),
    connections_per_principal => bound(), in_flight => bound(),
    in_flight_per_principal => bound(), queue => non_neg_integer(),
    queue_bytes => pos_integer(), queue_per_principal => pos_integer(), queue_ms => pos_integer(),
    messages_per_second => bound(), messages_per_minute => bound(), messages_per_day => bound(),
    principal_messages_per_second => bound(), principal_messages_per_minute => bound(),
    principal_messages_per_day => bound(), principals => pos_integer()
}.

-doc """
The options of the access log, which has entries for the ends of requests. One request in `sample`,
picked at random, has an entry. The default is 1: every request has one. While 1,000 entries wait
for the log, further ones are dropped. The first entry after that has the number of dropped ones as
`dropped`.
""".
-type access_log() :: #{sample => pos_integer()}.

-doc "A limit, or `infinity` for none.".
-type bound() :: pos_integer() | infinity.

-doc """
A server whose definitions another server offers under a prefix: under `shop`, the tool `buy` is
`shop_buy`, and the resource `data://prices` is `data://shop/prices`. The prefix is 1 to 64
characters of `a-z`, `0-9`, `_` and `-`, the first of them a letter or a digit.

A server that runs on this node is mounted by its pid or `id`. While it does not run, its
definitions are not offered. If it was named by its `id`, it is mounted again when it has started
again. A server that is given as options, or as a module with `-behaviour(erlmcp_server)`, runs
inside the server that mounts it. Skills of a mounted server are not offered. A definition whose
name or URI is taken or, with the prefix, too long is an error of `start_server/1`. Such a
definition that the mounted server adds later is not offered.
""".
-type mount() :: {Prefix :: binary(), server() | options() | module()}.

-doc """
Keys of 32 bytes that seal cursors and state. The first key seals, and every key opens. To replace a
key, put the new one in front of it. Nodes that share keys share cursors and state.
""".
-type key_ring() :: [<<_:256>>, ...].

-doc "The kinds of definitions.".
-type kind() :: tool | resource | resource_template | prompt.

-doc """
A definition: a tool, resource, resource template or prompt of a server. An unknown field, or one
of the wrong type, is an error that names the field. Definitions of every kind have these fields:

- `handler`: answers the requests, see `t:handler/0`. A definition of a module with
  `-behaviour(erlmcp_server)` may leave it to the module.
- `title`, `description`, `icons`, `meta`: shown to clients whose revision has these fields; `meta`
  becomes `_meta`.
- `visible`: a fun that returns `true` if a principal may see and use the definition. Connections
  call the fun for lists and requests, so it must not wait. The definition is hidden if the fun
  crashes, or returns neither `true` nor `false`.
- `scopes`: the scopes that a request needs to use the definition.
- `quick`: `true` runs the handler in the process of its connection if that is possible, which is
  faster. Then the handler must not wait, must end within a second, and must leave that process as
  it was. A call that does not end in time is ended with its connection. The default is `false`. Not
  allowed together with `workers`, `breaker`, `cache` or `task`.
- `middleware`: funs around the handler, see `t:middleware/0`.
- `cache`: keeps each result that is no error for `ttl_ms` milliseconds. Calls of the same principal
  with the same arguments get the kept result. With the `scope` `public`, so do such calls of every
  other principal.
- `max_calls`: the most calls that run at once; further ones are refused.
- `rates`: the most calls in a `second`, `minute` or `day`; further ones are refused. Each node of a
  cluster counts these calls, and those of `max_calls`, for itself.
- `breaker`: a circuit breaker, or the name of one of the server's `breakers`.
- `workers`: the name of one of the server's `workers`. The context has the call's worker as
  `worker`.
""".
-type definition() :: tool() | resource() | resource_template() | prompt().

-doc "Definitions by their kinds, in the order of their lists.".
-type definitions() :: #{
    tools => [tool()], resources => [resource()], resource_templates => [resource_template()],
    prompts => [prompt()]
}.

-doc """
A tool. Its fields in addition to those of every `t:definition/0`:

- `name`: the tool's name, unique among the server's tools; required.
- `input_schema`, `output_schema`: the schemas of the arguments and of the structured content.
  Without `input_schema`, the arguments may be any object.
- `annotations`: hints such as `readOnlyHint`, by their names on the wire.
- `timeout_ms`: milliseconds that one run of the handler may take, in place of the limit
  `call_timeout_ms`.
- `task`: whether calls may (`optional`), must (`required`) or cannot (`forbidden`) become tasks.
  The default is `forbidden`.
- `task_starts`: when a call becomes a task: `at_once`, the default, or `on_return`, when the
  handler returns `{task, Fun}`. Tasks of clients of 2025-11-25 always start at once.
- `task_timeout_ms`: milliseconds that one run of the handler may take in a task, in place of the
  limit `task_timeout_ms`.
- `repeatable`: `true` if a cluster may run a task again, from its beginning, when it has lost the
  node where the task ran. The handler must be idempotent. The default is `false`: the task fails.
  Only for tasks that start `at_once`.
- `ui`: the view that shows the results (MCP Apps).
""".
-type tool() :: #{
    name := binary(),
    handler => handler(),
    input_schema => erlmcp_schema:shorthand(),
    output_schema => erlmcp_schema:shorthand(),
    annotations => map(),
    timeout_ms => non_neg_integer(),
    task => forbidden | optional | required,
    task_starts => at_once | on_return,
    task_timeout_ms => non_neg_integer(),
    repeatable => boolean(),
    ui => map(),
    title => binary(), description => binary(), icons => [map()], meta => map(),
    visible => fun((principal()) -> boolean()),
    scopes => [scope()],
    quick => boolean(),
    middleware => [middleware()],
    cache => #{ttl_ms := pos_integer(), scope => public | private},
    max_calls => pos_integer(),
    rates => #{second | minute | day => pos_integer()},
    breaker => atom() | breaker(),
    workers => atom()
}.

-doc """
A resource. Its fields in addition to those of every `t:definition/0`:

- `uri`: the URI, unique among the server's resources; required.
- `name`: a name for programs; required.
- `mime_type`, `size`, `annotations`: the MIME type of the contents, their size in bytes, and hints
  about them.
- `ttl_ms`: milliseconds that a client may keep the contents (0).
- `cache_scope`: `public` if a cache may give the contents to other clients. The default is
  `private`. A resource with `visible` cannot be `public`.
- `ui`: the permissions and other settings of a view's sandbox (MCP Apps).
""".
-type resource() :: #{
    uri := binary(),
    name := binary(),
    handler => handler(),
    mime_type => binary(),
    size => non_neg_integer(),
    annotations => map(),
    ttl_ms => non_neg_integer(),
    cache_scope => public | private,
    ui => map(),
    title => binary(), description => binary(), icons => [map()], meta => map(),
    visible => fun((principal()) -> boolean()),
    scopes => [scope()],
    quick => boolean(),
    middleware => [middleware()],
    cache => #{ttl_ms := pos_integer(), scope => public | private},
    max_calls => pos_integer(),
    rates => #{second | minute | day => pos_integer()},
    breaker => atom() | breaker(),
    workers => atom()
}.

-doc """
A resource template. Its fields in addition to those of every `t:definition/0`:

- `uri_template`: an RFC 6570 template, unique among the server's resource templates; required.
- `name`, `mime_type`, `annotations`, `ttl_ms`, `cache_scope`, `ui`: as in `t:resource/0`.
- `complete`: completions of the variables, by their names. Each is a list of values, or a fun that
  gets the text typed so far and the context, and returns such a list (page "Completion").
""".
-type resource_template() :: #{
    uri_template := binary(),
    name := binary(),
    handler => handler(),
    mime_type => binary(),
    annotations => map(),
    ttl_ms => non_neg_integer(),
    cache_scope => public | private,
    ui => map(),
    complete => #{atom() | binary() => [binary()] | fun((binary(), context()) -> term())},
    title => binary(), description => binary(), icons => [map()], meta => map(),
    visible => fun((principal()) -> boolean()),
    scopes => [scope()],
    quick => boolean(),
    middleware => [middleware()],
    cache => #{ttl_ms := pos_integer(), scope => public | private},
    max_calls => pos_integer(),
    rates => #{second | minute | day => pos_integer()},
    breaker => atom() | breaker(),
    workers => atom()
}.

-doc """
A prompt. Its fields in addition to those of every `t:definition/0`:

- `name`: the prompt's name, unique among the server's prompts; required.
- `arguments`: maps with `name` and, perhaps, `title`, `description` and `required`.
- `complete`: completions of the arguments, as in `t:resource_template/0`.
""".
-type prompt() :: #{
    name := binary(),
    handler => handler(),
    arguments => [map()],
    complete => #{atom() | binary() => [binary()] | fun((binary(), context()) -> term())},
    title => binary(), description => binary(), icons => [map()], meta => map(),
    visible => fun((principal()) -> boolean()),
    scopes => [scope()],
    quick => boolean(),
    middleware => [middleware()],
    cache => #{ttl_ms := pos_integer(), scope => public | private},
    max_calls => pos_integer(),
    rates => #{second | minute | day => pos_integer()},
    breaker => atom() | breaker(),
    workers => atom()
}.

-doc """
A skill: instructions for agents, with their files. Files are named by their paths in the skill,
with `/` between folders. Give one of these:

- `files`, with a `SKILL.md` among them;
- `name` and `description`, of which `SKILL.md` is made. `body` is its text, and `license`,
  `compatibility`, `metadata` and `allowed_tools` are further fields of its frontmatter. `files` has
  the other files;
- `path`, the folder of the files, with a `SKILL.md` among them. The name of the folder must be that
  of the skill.

In addition, each of these forms may have a `prefix`, such as `~"acme/billing"`. The prefix stands
before the name in the skill's URIs. A skill has at most 512 files, of 16 MiB together.
""".
-type skill() :: #{
    path => file:name_all(),
    files => #{Path :: binary() => Bytes :: binary()},
    name => binary(), description => binary(), body => binary(), license => binary(),
    compatibility => binary(), metadata => #{binary() => binary()}, allowed_tools => [binary()],
    prefix => binary()
}.

-doc """
Answers a request. The callbacks `c:erlmcp_server:call_tool/3`, `c:erlmcp_server:read_resource/3`
and `c:erlmcp_server:get_prompt/3` say what may be returned.
""".
-type handler() :: fun((arguments(), context()) -> term()).

-doc """
The first argument of a handler: the arguments of a tool or prompt, the variables of a resource
template, or an empty map for a resource. The first argument of a fun of `complete` is the text to
complete. A middleware gets a map or a text; `method` in the context tells which.
""".
-type arguments() :: map() | binary().

-doc """
A fun around handlers, and around the funs of `complete`. `Next` calls the next middleware, or the
handler or fun itself, and returns its return value.

```erlang
fun(Arguments, Context, Next) -> Next(Arguments, Context) end
```

A middleware may call `Next` with other arguments or another context, several times or not at all,
and may return something else.
""".
-type middleware() :: fun((arguments(), context(), next()) -> term()).
-doc "The next middleware, or the handler.".
-type next() :: fun((arguments(), context()) -> term()).

-doc """
A circuit breaker, which refuses calls for a while after calls have failed. Then one call may run:
if that call fails, the breaker opens again, and otherwise it closes. A call fails if its handler
crashes, passes the deadline, or returns a refusal whose HTTP status is 500 or more.

- `failures`: calls that fail in a row until the breaker opens (5).
- `open_ms`: milliseconds that the breaker is open at first (1,000), doubled each time that it opens
  again.
- `longest_open_ms`: the most milliseconds that the breaker is open (30,000).

Each of these times is lengthened at random, by at most a tenth, or a millisecond if that is more.
""".
-type breaker() :: #{
    failures => pos_integer(), open_ms => pos_integer(), longest_open_ms => pos_integer()
}.

-doc """
A pool of workers, each of which serves one call at a time.

- `size`: workers in the pool; required.
- `start`: starts a worker, which is a process or any term; required. The fun runs in a process that
  the worker may be linked to. A worker that ends, or cannot be started, is started again, after
  pauses that grow from 100 milliseconds to ten seconds. A worker whose call has crashed, or was
  cancelled or killed, is stopped and replaced without a pause.
- `stop`: a fun that ends a worker, within five seconds. When a worker is replaced, the process of a
  fun that takes longer is killed. By default a worker that is a process gets the exit signal
  `shutdown`, and any other term needs no end.
- `queue`: calls that may wait for a worker (100); further ones are refused.
""".
-type workers() :: #{
    size := pos_integer(),
    start := fun(() -> {ok, Worker :: term()} | {error, Reason :: term()}),
    stop => fun((Worker :: term()) -> term()),
    queue => non_neg_integer()
}.

-doc """
The client of a request: any term that is the same, by `=:=`, each time the same client asks. It is
`anonymous` if the listener neither identifies clients nor has the option `principal`. A token or
its expiry is no principal, since it changes.
""".
-type principal() :: term().
-doc "A scope: printable ASCII without a space, a quotation mark or a backslash.".
-type scope() :: binary().
-doc "The scopes of a request; `all` if nothing limits what its principal may do.".
-type scopes() :: all | [scope()].
-doc "A revision of the protocol.".
-type revision() :: '2024-11-05' | '2025-03-26' | '2025-06-18' | '2025-11-25' | '2026-07-28'.

-doc """
The context of a call: the second argument of its handler, and the first of `progress/3`, `log/3`
and other functions here.

- `method`: the method of the request.
- `name`: the requested tool or prompt. `uri`: the requested resource or, for a completion, the
  resource template.
- `principal`: the client, see `t:principal/0`. `scopes`: the scopes of the request. `claims`: the
  claims of its token, if it has one.
- `revision`: the client's revision of the protocol.
- `client_info`, `client_capabilities`: what the client says about itself. `client_info` is
  `undefined` if the client has not named itself.
- `meta`: the `_meta` of the request.
- `progress_token`: the client's token for progress; `undefined` if it did not ask for progress.
- `log_level`: the lowest level of log messages that the client wants, from 7 (`debug`) to 0
  (`emergency`); `undefined` if it wants none. In a session it is 6 (`info`) until the client sets
  another one.
- `deadline`: when this run of the handler will be ended, in `erlang:monotonic_time(millisecond)`.
- `input`, `state`: the client's answers, and the handler's own state, after the handler asked for
  input.
- `arguments`: for a completion, the values that were already chosen for the other arguments.
- `task`: the id of the task that the call runs as, if it runs as one.
- `worker`: the worker of the call, if its definition has `workers`.
- `trace`: the context of the request's span, if the server has a tracer (`m:erlmcp_tracer`). This
  member is missing if the request has no parent and is not recorded. Then `erlmcp_tracer:current/0`
  makes a context.
- `call`: a reference to the call, for the functions of this module.

Middleware may add keys of its own.
""".
-type context() :: #{
    principal := principal(),
    scopes := scopes(),
    claims => map(),
    revision := revision(),
    method := binary(),
    name => binary(),
    uri => binary(),
    meta := map(),
    client_info := map() | undefined,
    client_capabilities := map(),
    progress_token := binary() | integer() | undefined,
    log_level := 0..7 | undefined,
    deadline => integer(),
    input => #{binary() => map()},
    state => term(),
    arguments => map(),
    task => binary(),
    worker => term(),
    trace => erlmcp_tracer:context(),
    call := call_reference(),
    atom() => term()
}.
-doc "A reference to a call, in the context. Do not rely on its form.".
-type call_reference() :: term().
-doc "The level of a log message, as in RFC 5424. The last one is the most severe.".
-type level() :: debug | info | notice | warning | error | critical | alert | emergency.

-doc "A refusal, which a handler returns as `{refuse, Refusal}`; see `refusal/2` and `refusal/3`.".
-type refusal() :: tuple().
-doc """
The name of a refusal, such as `dependency_unavailable`. The page "Errors and refusals" has all
names, with the number and the HTTP status of each.
""".
-type refusal_name() :: atom().
-doc """
Details of a refusal.

- `code`, `status`: the JSON-RPC code and the HTTP status, in place of those of the name.
- `retry_after_ms`: milliseconds after which the client may try again.
- `limit`, `observed`: a bound, and the value that exceeded it.
- `incident`: the id under which the log has the cause.
- `scopes`: the scopes that the request needs.
- `fault`: `false` for a refusal that does not count against the error budget.
- `data`: other members of the error's `data`.
""".
-type refusal_details() :: #{
    code => integer(),
    status => 200..599,
    retry_after_ms => non_neg_integer(),
    limit => number(),
    observed => number(),
    incident => binary(),
    scopes => [scope(), ...],
    fault => false,
    data => #{binary() => term()}
}.

-doc """
The address of a listener, as `listeners/1` returns it. The transports `http` and `tcp` have `ip`,
`port` and `url`. A listener with HTTP+SSE has `sse_url`, too. A listener with pages has the URLs of
these as `pages`. An `http` listener without an endpoint of Streamable HTTP has no `url`.
""".
-type address() :: #{
    transport := http | tcp | stdio,
    ip => inet:ip_address(),
    port => inet:port_number(),
    url => binary(),
    sse_url => binary(),
    pages => [binary(), ...]
}.

-doc """
The outcome of `reload/1`.

- `added`, `removed`: how many definitions came and went. `changed`: how many of the others look
  different to clients than before, or have another `visible`. A local fun of new code is another
  one than that of the old code.
- `modules`: the modules of which new code was loaded.
- `old_code`: those of `modules` whose replaced code a process still runs.
""".
-type reloaded() :: #{
    added := non_neg_integer(), removed := non_neg_integer(), changed := non_neg_integer(),
    modules := [module()], old_code := [module()]
}.

-doc """
The state and the counts of a server, as `info/1` returns them.

- `state`: `open`, or the name of the refusal of new requests: `server_shutting_down`,
  `resource_exhausted` or `service_unavailable`.
- `connections`: open connections of the listeners.
- `sessions`: open sessions on HTTP and HTTP+SSE.
- `in_flight`: requests that run. `concurrency_limit`: the most that may run at once now. `waiting`:
  requests that wait until they may run.
- `cache`: the cached results, see `t:cache_info/0`.
- `error_budget`: see `t:error_budget/0`.
- `tools`: the ended calls of each tool, by its name, see `t:tool_info/0`.
- `breakers`: the circuit breakers of the server's own definitions, see `t:breaker_info/0`.
- `workers`: the pools of workers, see `t:workers_info/0`.
- `mounts`: the mounted servers: their `prefix`, their pid or `id`, and whether they are `running`.
""".
-type info() :: #{
    state := open | refusal_name(),
    connections := non_neg_integer(), sessions := non_neg_integer(),
    in_flight := non_neg_integer(), concurrency_limit := pos_integer(),
    waiting := non_neg_integer(),
    cache := cache_info(), error_budget := error_budget(),
    tools := #{binary() | other => tool_info()},
    breakers := [breaker_info()], workers := [workers_info()],
    mounts := [#{prefix := binary(), server := server(), running := boolean()}]
}.
-doc """
A circuit breaker. `name` is that of the server's option `breakers`, or of the definition that has
the breaker for itself. `targets` are the definitions that use it: names, URIs and URI templates.
`failed` is the number of calls that have failed in a row. When its time is over, an `open` breaker
is `half_open`, until one call has shown whether calls succeed again.
""".
-type breaker_info() :: #{
    name := atom() | binary(), targets := [binary(), ...], state := closed | open | half_open,
    failed := non_neg_integer()
}.
-doc """
A pool of `size` workers, with its name in the option `workers`. Of these, `ready` have started, and
`taken` serve a call now. `waiting` is the number of calls that wait for a worker. All counts are 0
while the pool is started again.
""".
-type workers_info() :: #{
    name := atom(), size := non_neg_integer(), ready := non_neg_integer(),
    taken := non_neg_integer(), waiting := non_neg_integer()
}.
-doc """
The health of a server, as `health/1` returns it. The server is ready if all checks pass.

- `listeners`: all listeners are open (`limit` is how many there are). stdio does not count.
- `drain`: the server is not being drained, and is not about to be.
- `memory`: the node has memory for new work. The figures are in bytes.
- `processors`: the node has processor time for new work. The figures are the milliseconds that a
  process waits until it runs.
- `descriptors`: the node has descriptors for new connections.
- `connections`: the server has room for another connection.
- `cluster`: the node has its place in the cluster, and has not given its sessions up. `observed` is
  the milliseconds for which its place is certain. Only with the option `cluster`.
- `cluster_clock`: the node's clock is not `apart` from those of the other nodes
  (`t:erlmcp_server_cluster:clock/0`). `observed` is by how many seconds it differs from them, 0 if
  it is right. Only with the option `cluster`.
- `cluster_disk`: the node can write its part of what the cluster agrees on. Only with the option
  `cluster`.
""".
-type health() :: #{
    ready := boolean(),
    checks := #{listeners | drain | memory | processors | descriptors | connections | cluster
                    | cluster_clock | cluster_disk => health_check()}
}.
-doc "A check: whether it `passes`, and what was `observed` and its `limit`, where they are known.".
-type health_check() :: #{
    passes := boolean(), observed => non_neg_integer(), limit => non_neg_integer()
}.
-doc """
An open session of Streamable HTTP, as `sessions/1` returns it.

- `id`: 12 hexadecimal digits that name the session, a digest of its own id. The session's own id
  stays secret, since a client that has it may use the session.
- `revision`: the revision of the protocol. `principal`: the client, see `t:principal/0`.
- `client`: the name and the version that the client has given, if it has. At most 256 bytes.
- `idle_ms`: milliseconds since its last use, or up to a hundredth of `session_idle_ms` more;
  `unused` if it was never used.
- `calls`: its running calls.
""".
-type open_session() :: #{
    id := binary(), revision := revision(), principal := principal(), client => binary(),
    idle_ms := non_neg_integer() | unused, calls := non_neg_integer()
}.
-doc """
The ended calls of a tool, in `t:info/0`: `count` of them. Of these, `errors` had a result with
`isError`, and `refusals` ended with an error. `count` also has the calls that ended without an
answer, as when their client has cancelled them or has gone away. The times are those of the calls
with a result without `isError`, see `t:latency/0`. At most 200 tools, prompts and resources have
figures of their own. `other` has the figures of all other tools.
""".
-type tool_info() :: #{
    count := non_neg_integer(), errors := non_neg_integer(), refusals := non_neg_integer(),
    p50_us := number(), p95_us := number(), p99_us := number()
}.
-doc """
The figures of a server, as `metrics/1` returns them.

- `server`, `name`, `state`: the server's `id`, its name, and its state as in `t:info/0`.
- `at_ms`, `started_ms`: the system time of the figures, and of the server's start.
- `requests`, `faults`: the requests that have ended, in whatever way, and those of them that were
  the server's own faults. A message that could not be read counts as a request. So does the run of
  a task, in addition to the request that asked for it.
- `refusals`: how many requests ended with each refusal, by its number.
- `methods`: requests by their method. `_OTHER` are methods that MCP does not have. `_TASK` are the
  runs of tasks. `_UNREAD` are requests that were refused before their message was read, and
  messages without a method. There is room for a bounded number of different `failures`
  (`t:metrics_row/0`). A request whose failure finds no room counts as `_OTHER`, whatever its
  method.
- `tools`, `prompts`, `resources`: requests by the definition that they were for. At most 200
  definitions have figures of their own. `other` has those of all others.
- `removed`: requests for definitions that the server no longer has. While the room for failures is
  short, a failure that has not occurred for a minute is taken out of the figures of its definition.
  Its requests then count here, even if the server still has the definition.
- `connections`, `in_flight`, `waiting`: as in `t:info/0`. `tasks`: how many tasks are `running`.
- `cache`: the cached results, see `t:cache_info/0`.
- `refused_connections`: how many connections were refused when they opened, by the kind of their
  listener, and by their refusal. On HTTP, such a connection still answers requests for pages.
- `sessions`: how many sessions of HTTP are `open`, and how many were `opened` and have `ended` on
  all transports. `durations` has their durations by revision and `network`: `tcp` or, for stdio and
  clients of the same node, `pipe`. Durations have 15 coarse buckets.
- `streams`: how many streams of HTTP responses are `open`, and how many were `opened`.
- `bounds`: what is `used` now of each bound, its `limit`, and when the limit will be met, if there
  is a trend (`t:forecast/0`). In `tasks`, tasks that have ended still count until they expire. The
  bound `tasks` is absent if the server's `task_store` does not count
  (`c:erlmcp_task_store:count/1`).
- `cluster`: what the node knows of its cluster (`t:erlmcp_server_cluster:overview/0`). `forwarded`
  is how many requests this server has passed on to the homes of their sessions, and `inherited` how
  many sessions it has inherited. Only with the option `cluster`.
""".
-type metrics() :: #{
    server := term(), name := binary(), state := open | refusal_name(),
    at_ms := integer(), started_ms := integer(),
    requests := non_neg_integer(), faults := non_neg_integer(),
    refusals := #{1001..1089 => pos_integer()},
    methods := #{binary() => metrics_row()},
    tools := [definition_metrics()], prompts := [definition_metrics()],
    resources := [definition_metrics()],
    removed := #{tools | prompts | resources => metrics_row()},
    sessions := #{open := non_neg_integer(), opened := non_neg_integer(),
                  ended := non_neg_integer(),
                  durations := [#{revision := revision(), network := tcp | pipe,
                                  duration := latency()}]},
    streams := #{open := non_neg_integer(), opened := non_neg_integer()},
    connections := non_neg_integer(), in_flight := non_neg_integer(),
    waiting := non_neg_integer(), tasks := #{running := non_neg_integer()},
    refused_connections := [#{listener := http | tcp, refusal := refusal_name(),
                              number := 1001..1089, count := pos_integer()}],
    cache := cache_info(),
    bounds := #{connections | in_flight | waiting | sessions | tasks =>
                    #{used := non_neg_integer(), limit := non_neg_integer() | infinity,
                      forecast => forecast()}},
    cluster => #{forwarded := non_neg_integer(), inherited := non_neg_integer(),
                 lease_ms := non_neg_integer(), disk := ok | file:posix(),
                 clock := erlmcp_server_cluster:clock(), majority := pos_integer(),
                 nodes := [erlmcp_server_cluster:node_overview()]}
}.
-doc """
When a bound will be met if the trend of the last hour goes on, in milliseconds of the system time.
The trend is a straight line through the values of each minute. `earliest` and `latest` are two
standard errors of the line away from `at`, but `earliest` is not before the time of the last value.
`per_hour` is how much more is used after an hour.

There is no forecast from fewer than ten values, nor if the trend may be noise or does not grow.
There is none, too, if the bound is met already, or will be met later than in a day. At most 100
servers of a node have forecasts.
""".
-type forecast() :: #{at := integer(), earliest := integer(), latest := integer(),
                      per_hour := float()}.
-doc """
Requests that have ended: `count`. Of these, `errors` had a result with `isError`, and `refusals`
ended with an error. `cancelled` ended without an answer, as when their client has cancelled them or
has gone away. `latency` is that of all other requests. `bytes_in` are the bytes of the requests,
and `bytes_out` those of their answers. `failures` has the latency of each error with the JSON-RPC
code of its answers. The code is `none` if they have none, or if it is not known any more. A code
that is neither one of JSON-RPC or MCP nor the number of a refusal counts as `other`.
""".
-type metrics_row() :: #{
    count := non_neg_integer(), errors := non_neg_integer(), refusals := non_neg_integer(),
    cancelled := non_neg_integer(), bytes_in := non_neg_integer(), bytes_out := non_neg_integer(),
    latency := latency(),
    failures := [failure_metrics()]
}.
-doc "The requests that ended with the same error, see `t:metrics_row/0`.".
-type failure_metrics() :: #{
    error := tool_error | cancelled | refusal_name(), code := integer() | other | none,
    latency := latency()
}.
-doc """
The requests for a definition, with the members of `t:metrics_row/0`. `name` is the definition's
name, URI or URI template. In the entry `other`, `name` is `other`. This entry has the requests that
came while their definition had no figures of its own. The definition may have been removed since.
""".
-type definition_metrics() :: #{
    name := binary() | other,
    count := non_neg_integer(), errors := non_neg_integer(), refusals := non_neg_integer(),
    cancelled := non_neg_integer(), bytes_in := non_neg_integer(), bytes_out := non_neg_integer(),
    latency := latency(),
    failures := [failure_metrics()]
}.
-doc """
The times of `count` requests, or the durations of `count` sessions, in microseconds. The time of a
request is that from the arrival of its whole message to its answer. In the figures of a client, the
time is that from sending the request to its end. `sum_us` is the sum. `histogram` has the end of
each bucket that is not empty, and its count. The quantiles, such as `p95_us`, are those of the
histogram: wrong by less than 12 % up to 300 seconds. `max_us` is the end of the histogram's last
bucket, at most 300 seconds. Without requests or sessions all times are 0, and `histogram` is empty.
The latencies of failures, and the durations of sessions, have 15 coarse buckets, so their quantiles
are less exact.
""".
-type latency() :: #{
    count := non_neg_integer(), sum_us := non_neg_integer(), max_us := number(),
    p50_us := number(), p95_us := number(), p99_us := number(), p999_us := number(),
    histogram := [{UpToUs :: number() | infinity, pos_integer()}]
}.
-doc """
A call that runs, or waits until it may run, as `calls/1` returns it.

- `id`: names the call for `cancel/2`.
- `method`: the method of the request. `target`: the requested name or URI, or `undefined`.
- `principal`: the client, see `t:principal/0`.
- `age_ms`: milliseconds since the call began.
- `pid`, `stack`: the process of the call, and what that process executes now.
""".
-type running_call() :: #{
    id := binary(), method := binary(), target := binary() | undefined,
    principal := principal(), age_ms := non_neg_integer(),
    pid := pid(), stack := [tuple()]
}.
-doc """
The cache of a server's results: `entries` is how many it has now, and `bytes` their size. `hits`
are the calls that got a cached result, or the result of an equal call that ran at the same time.
`misses` are the calls that had to run.
""".
-type cache_info() :: #{
    entries := non_neg_integer(), bytes := non_neg_integer(),
    hits := non_neg_integer(), misses := non_neg_integer()
}.
-doc """
The requests that a server has ended (`requests`), and those of them that were its own faults
(`faults`). They are counted since the server started, and in sliding windows. `window` is the
length of a window in seconds. The `zone` of the budget is the worst of its windows.
""".
-type error_budget() :: #{
    zone := zone(), requests := non_neg_integer(), faults := non_neg_integer(),
    windows := [#{window := pos_integer(), zone := zone(), requests := non_neg_integer(),
                  faults := non_neg_integer()}]
}.
-doc """
The zones of an error budget, the best first. A window is `yellow` from 0.05 % of faults on,
`orange` from 0.1 %, and `red` from 1 %. A window without faults is `green`. A window with faults
and fewer requests than the limit `error_budget_requests` stays in its zone.
""".
-type zone() :: green | yellow | orange | red.
-doc """
An event, for the option `on_event`.

- `event`: the event's name.
- `server`: the `id` of the server's options.
- `at`: the system time in milliseconds.
- `dropped`: how many events were lost before this one, if any were. At most 1,000 events wait for
  the fun.

The page "Events" has the other fields of each.
""".
-type event() :: #{
    event := error_budget_changed | memory_full | memory_ok | processors_busy | processors_ok
        | incident | not_quick | slow_consumer | breaker_opened | breaker_closed
        | spans_dropped | reloaded | lame | draining | drained,
    server := term(),
    at := integer(),
    dropped => pos_integer(),
    atom() => term()
}.

-doc """
Starts a server, linked to the caller. The server is a supervisor that also runs the listeners; put
it into your own supervision tree with `child_spec/1`.

## Errors

- `{bad_option, Key, Expected}`: an option is unknown, missing or of the wrong type. For a part of
  an option, `Key` is a tuple such as `{limits, depth}` or `{http, port}`.
- `{bad_definition, Kind, Name, Field, Expected}`: a field of a definition is unknown, missing or of
  the wrong type.
- `{bad_skill, Skill, Place, Expected}`: a skill is wrong at `Place`: a file or folder, a line
  (`SKILL.md:3`) or field of the frontmatter, or a key of `t:skill/0`. `Place` is `skills` if the
  skill has none of the forms of `t:skill/0`.
- `{duplicate, Kind, Name}`: two definitions or skills have the same name, URI or URI template.
  `{duplicate, mount, Prefix}`: two `mounts` have the same prefix.
- `{listen, Transport, Reason}`: a listener cannot start. `Reason` is an `t:inet:posix/0`, or an
  error of `m:ssl`. The `Reason` `{file, Name, Why}` means that a file of `tls` cannot be used.
- `{already_started, Pid}`: a server with this `id` runs on this node.
- `{not_started, erlmcp}`: the application does not run (`application:ensure_all_started/1`).
- `{mount, Prefix, Reason}`: a server cannot be mounted under this prefix. `Reason` is one of these
  errors, `not_found`, or `{mount_loop, Servers}` for a server that would be mounted in itself. The
  `Reason` `{duplicate, mount, Id}` means that the server has the same `id` as a server that mounts
  it, or as another mounted one.

If the error is found only when the processes of the server start, the caller also receives an exit
signal, as from any failed `start_link`. `listen` and `already_started` are always found then, and
`not_started`, `mount` and `{bad_option, {http, tls, _}, Expected}` sometimes.

If a callback of the `handler`, the fun of `keys`, or that of a secret for JWTs
(`t:erlmcp_listen:token_source/0`) raises an error, so does this function. If the `task_store` or
the `cluster` raises one, the function returns `{error, {Reason, Stack}}`, and the caller receives
an exit signal, too.

## Examples

```erlang
1> {ok, Server} = erlmcp:start_server(#{name => ~"greeter", version => ~"1.0.0"}),
   erlmcp:stop_server(Server).
ok
2> erlmcp:start_server(#{name => ~"greeter", version => 1}).
{error, {bad_option, version, ~"a binary in UTF-8"}}
3> erlmcp:start_server(#{name => ~"greeter", version => ~"1.0.0", tools => [#{name => ~"greet"}]}).
{error, {bad_definition, tool, ~"greet", handler, ~"a fun of two arguments"}}
```
""".
-spec start_server(options()) -> {ok, pid()} | {error, term()}.
start_server(Options) ->
    maybe
        {ok, Settings, Catalog} ?= erlmcp_mounts:compose(Options),
        {ok, Pid} ?= erlmcp_server_sup:start_link(Settings, Catalog),
        {ok, Pid}
    else
        {error, {shutdown, {failed_to_start_child, {listener, {_, Transport, _}}, Reason}}} ->
            case erlmcp_listener:reason(Reason) of
                {bad_option, _, _} = Wrong -> {error, Wrong};
                Other -> {error, {listen, Transport, Other}}
            end;
        {error, {shutdown, {failed_to_start_child, {tls, {_, Transport, _}}, Reason}}} ->
            {error, {listen, Transport, Reason}};
        {error, {shutdown, {failed_to_start_child, {mounted, Prefix}, Reason}}} ->
            {error, {mount, Prefix, Reason}};
        {error, {shutdown, {What, _} = Reason}} when
            What =:= already_started; What =:= not_started
        ->
            {error, Reason};
        {error, _} = Error ->
            Error
    end.

-doc """
Returns the child specification of a server, for your own supervisor. Its id contains the first of
the options `id`, `name` and `handler` that is given. Wrong options are found when the supervisor
starts the server, with the errors of `start_server/1`.

## Examples

```erlang
1> erlmcp:child_spec(#{id => mine, handler => my_server}).
#{id => {erlmcp, mine}, type => supervisor,
  start => {erlmcp, start_server, [#{id => mine, handler => my_server}]}}
```
""".
-spec child_spec(options()) -> supervisor:child_spec().
child_spec(Options) ->
    %% The first of these keys tells servers of one supervisor apart.
    [Id | _] = [Value || Key <- [id, name, handler], {ok, Value} <- [maps:find(Key, Options)]]
        ++ [undefined],
    #{id => {?MODULE, Id},
      start => {?MODULE, start_server, [Options]},
      type => supervisor}.

-doc """
Stops a server that was started outside a supervisor, and waits for its end. Each process of the
server has a bounded time to end. Returns `{error, not_found}` if the server does not run.
""".
-spec stop_server(server()) -> ok | {error, not_found}.
stop_server(Server) ->
    with_server(Server, fun(Pid) ->
        unlink(Pid),
        proc_lib:stop(Pid, shutdown, infinity)
    end).

-doc """
Options of `drain/2`.

- `timeout_ms`: milliseconds that running calls and tasks have to end.
- `lame_ms`: milliseconds before `timeout_ms` begins, in which the server still serves but is not
  ready (0 by default). Take at least the time in which your load balancer notices that a server is
  not ready. For a load balancer that looks once a second, and acts after two failures, take 3,000.
""".
-type drain_options() :: #{timeout_ms := non_neg_integer(), lame_ms => non_neg_integer()}.

-doc """
Takes a server out of service before it is stopped. An integer stands for `timeout_ms` alone.

1. With `lame_ms`, the server still serves for that time, but fails its health check `drain`. Each
   response on HTTP/1.1 is the last of its connection. At the end of that time, each idle connection
   of HTTP ends if it has served a request, on HTTP/2 with GOAWAY. All open streams end, too, except
   those of running calls.
2. The server accepts no more connections, except those of a listener that has only pages. It
   refuses new requests with error 1077, and ends its open subscriptions.
3. As soon as no call or task runs, or when `timeout_ms` have passed, the server ends its sessions,
   and `drain/2` returns. Before that, each call that still runs is ended, and its client gets error
   1077. A call that waits for its client's input counts as running, unless `lame_ms` is more than 0
   or the server has a `cluster`. The last answers and the ends of the sessions can take two seconds
   more.

`calls` is the number of calls that were ended before they had answered, and `tasks` that of the
tasks which still run. The drained server refuses requests until it is stopped. Returns
`{error, not_found}` if the server does not run, or is stopped meanwhile.

## Examples

```erlang
1> {ok, Server} = erlmcp:start_server(#{name => ~"greeter", version => ~"1.0.0"}).
2> erlmcp:drain(Server, #{lame_ms => 100, timeout_ms => 10_000}).
{ok, #{calls => 0, tasks => 0}}
3> erlmcp:stop_server(Server).
ok
```
""".
-spec drain(server(), Milliseconds :: non_neg_integer() | drain_options()) ->
    {ok, #{calls := non_neg_integer(), tasks := non_neg_integer()}} | {error, not_found}.
drain(Server, Milliseconds) when is_integer(Milliseconds), Milliseconds >= 0 ->
    drain(Server, #{timeout_ms => Milliseconds});
drain(Server, #{timeout_ms := _} = How) when map_size(How) =:= 1 ->
    drain(Server, How#{lame_ms => 0});
drain(Server, #{timeout_ms := Timeout, lame_ms := Lame} = How) when
    map_size(How) =:= 2, is_integer(Timeout), Timeout >= 0, is_integer(Lame), Lame >= 0
->
    case erlmcp_registry:whereis(Server) of
        {ok, Pid, Instance} -> erlmcp_server_sup:drain(Pid, Instance, How);
        error -> {error, not_found}
    end.

-doc "Returns the ids of the servers that run on this node, including mounted ones.".
-spec servers() -> [server()].
servers() ->
    [Id || {Id, _, _} <- erlmcp_registry:servers()].

-doc """
Returns the addresses of a server's listeners, except those that `drain/2` has closed. Returns
`{error, not_found}` if the server does not run.

## Examples

```erlang
1> {ok, Server} = erlmcp:start_server(#{name => ~"greeter", version => ~"1.0.0",
                                      listen => [{http, #{port => 0}}]}).
2> [#{transport := http, ip := {127, 0, 0, 1}, url := <<"http://127.0.0.1:", _/binary>>}] =
       erlmcp:listeners(Server), ok.
ok
3> erlmcp:stop_server(Server).
ok
```
""".
-spec listeners(server()) -> [address()] | {error, not_found}.
listeners(Server) ->
    with_server(Server, fun erlmcp_server_sup:listeners/1).

-doc """
Adds a definition to a running server, at the end of its list. Notifies the clients that may see the
definition: every one with a session, and those of 2026-07-28 that subscribe to changes of this
list.

## Errors

`{bad_definition, Kind, Name, Field, Expected}` and `{duplicate, Kind, Name}` as in
`start_server/1`, and `not_found` if the server does not run.

## Examples

```erlang
1> {ok, Server} = erlmcp:start_server(#{name => ~"greeter", version => ~"1.0.0"}).
2> Wave = #{name => ~"wave", handler => fun(_, _) -> ~"o/" end}.
3> erlmcp:add(Server, tool, Wave).
ok
4> erlmcp:add(Server, tool, Wave).
{error, {duplicate, tool, ~"wave"}}
5> erlmcp:remove(Server, tool, ~"wave").
ok
6> erlmcp:remove(Server, tool, ~"wave").
{error, not_found}
7> erlmcp:stop_server(Server).
ok
```
""".
-spec add(server(), kind(), definition()) -> ok | {error, term()}.
add(Server, Kind, Definition) when
    Kind =:= tool; Kind =:= resource; Kind =:= resource_template; Kind =:= prompt
->
    change(Server, {add, Kind, Definition}).

-doc """
Removes a definition from a running server, and notifies clients as `add/3` does. `Key` is its name,
URI or URI template. Running calls of the definition are not interrupted. If a mounted server has a
definition with the same key, clients see that definition from now on.

## Errors

- `not_found`: there is no such server, or no such definition.
- `{mounted, Prefix}`: the definition belongs to a mounted server. Remove it there.
- `{in_use, tool, Name}`: the definition is the view of the tool `Name`.
- `{in_use, skill, Uri}`: the definition is a file of the skill whose `SKILL.md` is at `Uri`.
""".
-spec remove(server(), kind(), Key :: binary()) ->
    ok | {error, not_found | {mounted, Prefix :: binary()} | {in_use, kind() | skill, binary()}}.
remove(Server, Kind, Key) when
    Kind =:= tool; Kind =:= resource; Kind =:= resource_template; Kind =:= prompt
->
    change(Server, {remove, Kind, Key}).

-doc """
Replaces the definitions of a running server in one change. A kind that `Definitions` does not have
stays as it is, and so do skills, and the definitions of mounted servers. Sessions stay open, and
running calls end with the definition that they began with. Clients are notified as by `add/3` of
each list that is not the same as before. A list is not the same, either, if one of its definitions
has another `visible`. If a definition is wrong, nothing is replaced.

## Errors

`{bad_definition, Kind, Name, Field, Expected}` and `{duplicate, Kind, Name}` as in
`start_server/1`, `{bad_option, Key, Expected}` for an unknown key or a wrong list, and `not_found`
if the server does not run.

## Examples

```erlang
1> Wave = #{name => ~"wave", handler => fun(_, _) -> ~"o/" end}.
2> {ok, Server} = erlmcp:start_server(#{name => ~"greeter", version => ~"1.0.0", tools => [Wave]}).
3> erlmcp:replace(Server, #{tools => [Wave, Wave#{name := ~"nod"}]}).
ok
4> erlmcp:replace(Server, #{tools => [Wave, #{name => ~"nod"}]}).
{error, {bad_definition, tool, ~"nod", handler, ~"a fun of two arguments"}}
5> erlmcp:stop_server(Server).
ok
```
""".
-spec replace(server(), definitions()) -> ok | {error, term()}.
replace(Server, Definitions) ->
    case erlmcp_registry:whereis(Server) of
        {ok, Pid, Instance} -> erlmcp_reload:replace(Pid, Instance, Definitions);
        error -> {error, not_found}
    end.

-doc """
Reads the definitions of a server's handler module again, and replaces those of the server as
`replace/2` does. Before that, modules are loaded whose files have changed: the handler module and
those that were loaded from the same folder. Definitions in the options of the server stay, and
definitions that were added since its start are removed. Skills, and the other options that
`c:erlmcp_server:server/0` of the handler module returns, stay as they are.

New code is loaded for all servers of the node. If the definitions are refused, it stays loaded.

## Errors

Those of `replace/2`, and

- `no_handler`: the options of the server have no `handler`.
- `{bad_option, handler, Expected}`: `server/0` of the handler module returns no map.
- `{handler_failed, Module, Class, Reason}`: a callback of the handler module has raised this.
- `{old_code_runs, Modules}`: processes still run the code of these modules that the last reload
  replaced. Reload again when they have ended.
- `{old_funs, Modules}`: an option of the server, such as `middleware`, is a fun of old code, which
  a reload removes. Restart the server. A fun of the form `fun Module:Name/Arity` never causes
  this error.
- `{not_loaded, Reasons}`: new code cannot be loaded, with the reasons of `code:atomic_load/1`.

## Examples

```erlang
1> {ok, Server} = erlmcp:start_server(#{name => ~"greeter", version => ~"1.0.0"}).
2> erlmcp:reload(Server).
{error, no_handler}
3> erlmcp:stop_server(Server).
ok
```
""".
-spec reload(server()) -> {ok, reloaded()} | {error, term()}.
reload(Server) ->
    case erlmcp_registry:whereis(Server) of
        {ok, Pid, Instance} -> erlmcp_reload:reload(Pid, Instance);
        error -> {error, not_found}
    end.

-doc """
Notifies the clients that subscribe to the resource at `Uri` that its contents have changed. Clients
of servers that mount this server, and clients on other nodes of its cluster, are notified, too.
Cached contents of the resource are deleted. `Uri` need not belong to a definition. Returns
`{error, not_found}` if the server does not run.
""".
-spec resource_updated(server(), Uri :: binary()) -> ok | {error, not_found}.
resource_updated(Server, Uri) when is_binary(Uri) ->
    case erlmcp_registry:whereis(Server) of
        {ok, _, Instance} -> erlmcp_mounts:resource_updated(Uri, Instance);
        error -> {error, not_found}
    end.

-doc """
Returns the health of a server, or `{error, not_found}` if the server does not run. Calls no
process, so it never waits.

## Examples

```erlang
1> {ok, Server} = erlmcp:start_server(#{name => ~"example", version => ~"1.0.0"}).
2> #{ready := true, checks := #{drain := #{passes := true}}} = erlmcp:health(Server).
3> {ok, _} = erlmcp:drain(Server, 0).
4> #{ready := false, checks := #{drain := #{passes := false}}} = erlmcp:health(Server).
5> erlmcp:stop_server(Server).
ok
```
""".
-spec health(server()) -> health() | {error, not_found}.
health(Server) ->
    seen(Server, fun erlmcp_health:report/1).

-doc """
Returns the state and the counts of a server, or `{error, not_found}` if the server does not run.
Calls no process, so it never waits.
""".
-spec info(server()) -> info() | {error, not_found}.
info(Server) ->
    seen(Server, fun seen/1).

seen(Server, Read) ->
    case erlmcp_registry:whereis(Server) of
        {ok, Pid, Instance} ->
            Seen = Read(Instance),
            %% The tables end with the server.
            case is_process_alive(Pid) of
                true -> Seen;
                false -> {error, not_found}
            end;
        error ->
            {error, not_found}
    end.

-doc """
Returns the figures of a server, or `{error, not_found}` if the server does not run. Calls no
process, so it never waits.

## Examples

```erlang
1> Echo = #{name => ~"echo", handler => fun(_, _) -> ~"hello" end}.
2> {ok, Server} = erlmcp:start_server(#{name => ~"counted", version => ~"1.0.0", tools => [Echo]}).
3> {ok, Client} = erlmcp_client:start_link({server, Server, #{}}).
4> {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}).
5> #{tools := [#{name := ~"echo", count := 1}]} = erlmcp:metrics(Server).
```
""".
-spec metrics(server()) -> metrics() | {error, not_found}.
metrics(Server) ->
    seen(Server, fun erlmcp_metrics:report/1).

seen(#{gate := Gate, mounts := Mounts, workers := Workers, error_budget := Budget} = Instance) ->
    #{state => state(Gate),
      connections => erlmcp_gate:held(Gate, connections),
      sessions => erlmcp_session_table:count(Instance),
      in_flight => erlmcp_gate:held(Gate, in_flight),
      concurrency_limit => erlmcp_gate:limit(Gate),
      waiting => erlmcp_gate:held(Gate, waiting),
      cache => erlmcp_result_cache:info(Instance),
      error_budget => erlmcp_error_budget:report(Budget),
      tools => erlmcp_metrics:tools(Instance),
      breakers => erlmcp_definition_guard:breaker_states(Instance),
      workers => [erlmcp_workers:info(Name, Instance) || Name <- Workers],
      mounts => [#{prefix => Prefix, server => Mounted,
                   running => erlmcp_registry:whereis(Mounted) =/= error}
                 || #{prefix := Prefix, server := Mounted} <- Mounts]}.

state(Gate) ->
    case erlmcp_gate:state(Gate) of
        open -> open;
        {refuse, Refusal} -> erlmcp_refusal:name(Refusal)
    end.

-doc """
Returns the open sessions of Streamable HTTP of a server, the most recently used ones first. If
there are more than 100 sessions, any 100 of them are returned. Calls no process. Returns
`{error, not_found}` if the server does not run.
""".
-spec sessions(server()) -> [open_session()] | {error, not_found}.
sessions(Server) ->
    case erlmcp_registry:whereis(Server) of
        {ok, _, Instance} ->
            try
                erlmcp_session:list(Instance)
            catch
                %% The tables end with the server.
                error:badarg -> {error, not_found}
            end;
        error ->
            {error, not_found}
    end.

-doc """
Returns a server's calls that run, or wait until they may run: the oldest first, 100 at most. The
list leaves out tasks, calls that wait for their client's input or for a task, and quick calls in
the process of their connection. A call that begins at this moment may be missing. Asks the process
of each call, which can take long on a busy machine. Returns `{error, not_found}` if the server does
not run.

## Examples

```erlang
1> {ok, Server} = erlmcp:start_server(#{name => ~"greeter", version => ~"1.0.0"}).
2> erlmcp:calls(Server).
[]
3> erlmcp:cancel(Server, ~"1").
{error, not_found}
4> erlmcp:stop_server(Server).
ok
```
""".
-spec calls(server()) -> [running_call()] | {error, not_found}.
calls(Server) ->
    with_gate(Server, fun erlmcp_running_calls:list/1).

-doc """
Ends the call that has `Id` as its `id` in `calls/1`. The client of the call gets an error. Returns
as soon as the process of the call has ended. The process is killed, so it ends even if its handler
traps exits. Returns `{error, not_found}` if the call has ended already, or the server does not run.
""".
-spec cancel(server(), Id :: binary()) -> ok | {error, not_found}.
cancel(Server, Id) when is_binary(Id) ->
    with_gate(Server, fun(Gate) -> erlmcp_running_calls:cancel(Gate, Id) end).

with_gate(Server, Do) ->
    case erlmcp_registry:whereis(Server) of
        {ok, Pid, #{gate := Gate}} ->
            try
                Do(Gate)
            catch
                error:badarg:Stack ->
                    %% The tables of the gate end with the server.
                    case is_process_alive(Pid) of
                        true -> erlang:raise(error, badarg, Stack);
                        false -> {error, not_found}
                    end
            end;
        error ->
            {error, not_found}
    end.

change(Server, Change) ->
    with_server(Server, fun(Pid) ->
        erlmcp_catalog_publisher:change(erlmcp_server_sup:publisher(Pid), Change)
    end).

with_server(Server, Do) ->
    case erlmcp_registry:whereis(Server) of
        {ok, Pid, _} ->
            try
                Do(Pid)
            catch
                exit:Reason:Stack ->
                    %% The server may have ended during the call.
                    case is_process_alive(Pid) of
                        true -> erlang:raise(exit, Reason, Stack);
                        false -> {error, not_found}
                    end
            end;
        error ->
            {error, not_found}
    end.

-doc """
Reports the progress of a call from its handler. A client that did not ask for progress is sent
nothing. `Progress` says how much is done, and `total`, if it is known, how much there is to do, in
the same unit. `message` is a text for people. A report is only sent if its `Progress` is greater
than that of the report before.

If the client reads more slowly than the handler reports, the handler waits (limits
`unread_messages` and `unread_bytes`). After it has waited for five seconds in all, or for half a
second in which the client read nothing, reports are left out instead. A `quick` handler in its
connection's process never waits. Reports that another process makes for it are left out.

In a task, `message` becomes the status message of the task. Clients of 2026-07-28 get no other
report of a task.

Source: specification, "Progress".

## Errors

All functions with a context raise `{bad_argument, Name, Expected}` for an argument of the wrong
type. The context is checked first. `Data` of `log/3` and `Extension` of `client_has/2` are not
checked.

## Examples

```erlang
1> catch erlmcp:progress(#{}, 1, #{}).
{'EXIT', {{bad_argument, context, ~"the map that a handler is given as its second argument"}, _}}
```
""".
-spec progress(context(), Progress :: number(),
               #{total => number(), message => binary()}) -> ok.
progress(#{call := _} = Context, Progress, Details) when is_number(Progress), is_map(Details) ->
    erlmcp_call_report:progress(Context, Progress, Details);
progress(Context, Progress, Details) ->
    Wrong = [{progress, ~"a number"} || not is_number(Progress)] ++ [{details, ~"a map"}],
    error(wrong(Context, Wrong), [Context, Progress, Details]).

-doc """
Sends the client a log message from a handler, if the client wants messages of `Level`. `Data` is
any value that `json:encode/1` accepts. Elixir's `nil`, dates and times are accepted too. Raises an
error for other data, if the message is sent. Waits, or leaves the message out, for a client that
reads slowly, as `progress/3` does. A task sends clients of 2026-07-28 no log messages.

Source: specification, "Logging".
""".
-spec log(context(), Level :: level(), Data :: term()) -> ok.
log(Context, Level, Data) ->
    log(Context, Level, Data, #{}).

-doc "Sends a log message as `log/3` does. `logger` names the part of the server that logs.".
-spec log(context(), Level :: level(), Data :: term(), #{logger => binary()}) -> ok.
log(#{call := _} = Context, Level, Data, Details) when is_atom(Level), is_map(Details) ->
    Name = atom_to_binary(Level),
    case erlmcp_meta:level(Name) of
        {ok, _} ->
            erlmcp_call_report:log(Context, Name, Data, Details);
        error ->
            error({bad_argument, level, erlmcp_meta:levels()}, [Context, Level, Data, Details])
    end;
log(Context, Level, Data, Details) ->
    Wrong = [{level, erlmcp_meta:levels()} || not is_atom(Level)] ++ [{details, ~"a map"}],
    error(wrong(Context, Wrong), [Context, Level, Data, Details]).

-doc """
Notifies the client that the user has finished at the URL of `erlmcp_input:elicit_url/3` with this
`Id`. The client's own answer says only that the user agreed to visit the URL. Only 2025-11-25 has
this notification. Clients of other revisions are sent nothing.
""".
-spec elicitation_complete(context(), Id :: binary()) -> ok.
elicitation_complete(#{call := _} = Context, Id) when is_binary(Id) ->
    erlmcp_call_report:elicitation_complete(Context, Id);
elicitation_complete(Context, Id) ->
    error(wrong(Context, [{id, ~"a binary"}]), [Context, Id]).

-doc """
Returns `true` if the client of a call declares `Extension`, such as `io.modelcontextprotocol/ui`
(MCP Apps). For MCP Apps the client must also accept the MIME type of views.
""".
-spec client_has(context(), Extension :: binary()) -> boolean().
client_has(#{client_capabilities := Capabilities}, Extension) ->
    erlmcp_extension:client_has(Extension, Capabilities);
client_has(Context, Extension) ->
    error(wrong(Context, []), [Context, Extension]).

-doc """
Ends the HTTP response on which the client waits for the answer to a call, so that a long call
occupies no connection. The handler of the call calls this function. The client reconnects after
`retry_ms` (a limit of the server), or up to half as much later. The rest of the reports and the
answer come on the new connection. Has an effect only on Streamable HTTP in 2025-11-25, whose
clients reconnect.

Source: specification 2025-11-25, "Transports / Sending Messages to the Server".
""".
-spec close_connection(context()) -> ok.
close_connection(#{call := _} = Context) ->
    erlmcp_call_report:close_connection(Context);
close_connection(Context) ->
    error(wrong(Context, []), [Context]).

%% Returns the error for the context if that is wrong, or else for the first wrong argument.
wrong(#{call := _}, [{Name, Expected} | _]) ->
    {bad_argument, Name, Expected};
wrong(_, _) ->
    {bad_argument, context, ~"the map that a handler is given as its second argument"}.

-doc """
Returns a refusal, for a handler that returns `{refuse, Refusal}` in place of a result. The client
gets an error with the number of `Name` and with `Message`. Write `Message` as a sentence for the
people who can remove the cause. Raises `{badkey, Name}` for a name that does not exist.

## Examples

```erlang
1> fun(_, _) -> {refuse, erlmcp:refusal(dependency_unavailable, ~"the printer is off")} end, ok.
ok
```
""".
-spec refusal(refusal_name(), Message :: iodata()) -> refusal().
refusal(Name, Message) ->
    erlmcp_refusal:new(Name, Message).

-doc """
Returns a refusal as `refusal/2` does, with details (`t:refusal_details/0`).

## Examples

```erlang
1> _ = erlmcp:refusal(dependency_unavailable, ~"there is no paper", #{retry_after_ms => 30_000}),
   ok.
ok
```
""".
-spec refusal(refusal_name(), Message :: iodata(), refusal_details()) -> refusal().
refusal(Name, Message, Details) ->
    erlmcp_refusal:new(Name, Message, Details).

-doc """
Returns the refusal of a request that lacks scopes (403 on HTTP), for a handler that decides this
while it runs. `Scopes` are all scopes that the request needs, so that the client can ask for them
in one step.
""".
-spec insufficient_scope(Scopes :: [scope(), ...]) -> refusal().
insufficient_scope(Scopes) ->
    erlmcp_scope:insufficient(Scopes).
