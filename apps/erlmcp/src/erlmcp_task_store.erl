-module(erlmcp_task_store).
-moduledoc """
The behaviour of a store for the records of a server's tasks, for the option `task_store`. A server
without that option keeps them in the store of its `cluster` or, without one, in memory.

The record of a running task has one writer; other processes read it. Each change adds one to the
`version`, and can only replace the version before it (`c:update/2`). So a process that was cut off
from the store cannot overwrite a newer record of its task.

A record must be readable on every node that shares the store. `node` names the node where the task
runs. Nodes that share a store need a name each: a node fails a running task that has its name, and
that it does not run. The pid of a connection in `owner` is compared with others, and used for
nothing else.

No connection's process calls the callbacks, so they may wait. A task that has expired is neither
found nor listed, whether it was swept or not.
""".

-export_type([task/0, id/0, owner/0, position/0, status/0, repeat/0, unavailable/0]).

-doc "The id of a task.".
-type id() :: binary().
-doc "The status of a task, as in the specification.".
-type status() :: working | input_required | completed | failed | cancelled.
-doc """
The owner of a task: the principal of its client or, for an anonymous client of 2025-11-25, the
client's session. In that revision a client can list the tasks whose owner is its principal or, if
the client is anonymous, its session. A session on HTTP is named by a digest of its id. A connection
on lines can have several sessions, one after the other, and `Number` is the number of the session.
""".
-type owner() ::
    {principal, erlmcp:principal()}
    | {session, Digest :: binary() | {pid(), Number :: non_neg_integer()}}.
-doc """
The terms with which another node runs a task of a `repeatable` tool again: the name and the
arguments of the tool, the client's input, and the context of the handler.
""".
-type repeat() :: #{name := binary(), arguments := map(), input := map(), context := map()}.
-doc """
The record of a task.

- `id`, `version`, `status`, `message`: the task's id, version and status, and a text about the
  status.
- `principal`: the principal that may see the task.
- `tenant`: the client whose limits the task counts against: the principal, or the address of an
  anonymous client.
- `owner`: see `t:owner/0`. `node`: where the task runs.
- `incarnation`, `process`: in a cluster, the incarnation of that node
  (`c:erlmcp_server_cluster:incarnation/2`), and the task's process, which other nodes send their
  requests to.
- `repeat`: see `t:repeat/0`. A task that has ended lacks it.
- `created`, `updated`: milliseconds since 1970, see `c:now_ms/1`.
- `ttl`: milliseconds from `created` until the task expires.
- `requests`: the requests that wait for answers, as JSON, by keys that the task uses once.
- `result`: the encoded result, of `bytes` bytes. `is_error`: `true` if the tool failed.
- `error`: the refusal that the task ended with.
""".
-type task() :: #{
    id := id(),
    version := pos_integer(),
    principal := erlmcp:principal(),
    tenant := term(),
    owner := owner(),
    node := node(),
    incarnation => pos_integer(),
    process => pid(),
    repeat => repeat(),
    status := status(),
    message => binary(),
    created := integer(),
    updated := integer(),
    ttl := non_neg_integer(),
    requests := #{binary() => map()},
    result => binary(),
    is_error => boolean(),
    error => erlmcp:refusal(),
    bytes := non_neg_integer()
}.
-doc """
The answer of a store that cannot be reached now, such as one that other nodes share. A change with
this answer may have been made or not.
""".
-type unavailable() :: {error, unavailable}.
-doc "A position in a list: the task after which the next page begins.".
-type position() :: {Created :: integer(), id()}.

-doc """
Opens the store with the `Options` of `task_store` and the limits of the server. Returns the
`State` that the other callbacks get. The server's supervisor calls this callback whenever the
server starts. ETS tables that the callback creates are deleted when the server ends.
""".
-callback open(Options :: map(), erlmcp:limits()) -> State :: term().
-doc """
Stores a new task. Returns `{error, {full, Limit}}` if there are as many tasks as the limit `tasks`
or, for one `tenant`, `tasks_per_principal` allows. Returns `{error, {too_large, Limit}}` if the
record has more than `Limit` bytes, the most that the store can take.
""".
-callback put(task(), State :: term()) ->
    ok | {error, {full | too_large, Limit :: pos_integer()}} | unavailable().
-doc "Returns the task with this id, or `error` if there is none or it has expired.".
-callback get(id(), State :: term()) -> {ok, task()} | error | unavailable().
-doc """
Replaces the record of a task, if the stored record has the `version` before that of the new one.
Otherwise returns `{error, changed}`. Returns `{error, {full, Limit}}` if the results of all tasks
would exceed the limit `task_bytes` or, for those of one `tenant`, `task_bytes_per_principal`. The
same error says that this result, or the rest of this record, has more bytes than the store can
take. After `{full, Limit}` the server fails the task: it calls `c:update/2` with a record that has
neither a result nor requests.
""".
-callback update(task(), State :: term()) ->
    ok | {error, changed | {full, Limit :: pos_integer()}} | unavailable().
-doc """
Returns at most `Count` tasks of an owner, the oldest first: those after the position `After`, or
from the `first` one on. `More` is `true` if there may be further tasks.
""".
-callback list(owner(), After :: position() | first, Count :: pos_integer(), State :: term()) ->
    {[task()], More :: boolean()} | unavailable().
-doc """
Deletes a task, if it is there. Returns `ok` even if the store cannot be reached. Then `c:sweep/2`
deletes the task after it has expired.
""".
-callback delete(id(), State :: term()) -> ok.
-doc """
Deletes the tasks that have expired at `Now`, in milliseconds since 1970. A server calls this
callback every ten seconds, so the callback should not read all tasks.
""".
-callback sweep(Now :: integer(), State :: term()) -> ok.

-doc """
Returns the time in milliseconds since 1970, for the members of a task and for `c:sweep/2`. Without
this callback, the time is the system time of the node. A store of several nodes needs a time on
which the nodes agree.
""".
-callback now_ms(State :: term()) -> integer().
-doc """
Returns how many tasks the store keeps, as they count for the limit `tasks`. `erlmcp:metrics/1` has
this number as `used` in its bound `tasks`. Without this callback, the metrics lack that bound. The
callback should read a counter, since its callers do not expect to wait.
""".
-callback count(State :: term()) -> non_neg_integer() | unavailable().
-optional_callbacks([now_ms/1, count/1]).
