-module(erlmcp_client).
-moduledoc """
An MCP client: a process under your supervisor that knows one server, and functions that call it.

```erlang
{ok, Client} = erlmcp_client:start_link({http, ~"http://127.0.0.1:8080/mcp", #{}}),
{ok, Tools} = erlmcp_client:list_tools(Client),
{ok, #{~"content" := Content}} = erlmcp_client:call_tool(Client, ~"echo", #{text => ~"hello"}).
```

It finds out which of the five revisions the server speaks, opens a session where the server has
sessions, and opens it again when the server forgets it. A server that is not there yet, or is gone,
costs each call `{error, {connect, Why}}` and the client nothing: it tries again at the next call.

Every call has a deadline of its own (`timeout`, which the server's progress extends up to
`max_timeout`), and all come back as `{ok, Result}`, with the JSON that came as maps with binary
keys, or as `{error, Reason}`, see `t:reason/0`. A tool that failed is a result, with `isError`.

A call is a process: it ends with the process that waits for it, and the server is told.
""".

-export([start_link/1, start_link/2, child_spec/1, stop/1]).
-export([server/1, server/2, info/1]).
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

-export_type([client/0, target/0, reason/0]).

-doc "A client, or a pool of them (`m:erlmcp_pool`): its pid, or the name it was started with.".
-type client() :: pid() | atom().
-doc "Where the server is, and the client's options.".
-type target() :: erlmcp_client_target:target().
-type reason() :: erlmcp_client_call:reason().
-type outcome() :: {ok, map()} | {error, reason()}.
-type items() :: {ok, [map()]} | {error, reason()}.
-type options() :: erlmcp_client_call:options().

-doc """
Starts a client, linked to the calling process. It reaches for the server at once, and does not wait
for it.

## Errors

`{bad_option, Key, Expected}`: an option is unknown or of the wrong type. The caller is sent an exit
signal too where the transport finds it, as by any `start_link`.
""".
-spec start_link(target()) -> {ok, pid()} | {error, term()}.
start_link(Target) ->
    start(none, Target).

-doc "The same with a name to register it by: `{local, Name}`.".
-spec start_link({local, atom()}, target()) -> {ok, pid()} | {error, term()}.
start_link(Name, Target) ->
    start(Name, Target).

start(Name, Target) ->
    maybe
        {ok, Settings} ?= erlmcp_client_target:settings(Target),
        {ok, Pid} ?= erlmcp_client_connection:start_link({Name, Settings}),
        {ok, Pid}
    else
        {error, {shutdown, Reason}} -> {error, Reason};
        {error, _} = Error -> Error
    end.

-doc """
The child specification of a client. It is told apart by its name, if it is given one, and by its
target else.

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
    #{id => {?MODULE, erlmcp_client_target:place(Target)},
      start => {?MODULE, start_link, [Target]}}.

-doc """
Stops a client, or a pool: its calls and subscriptions end with `stopped`, its session and its
connections are closed.
""".
-spec stop(client()) -> ok.
stop(Client) ->
    case erlmcp_client_table:find(Client) of
        {ok, #{peer := Peer}} -> erlmcp_client_connection:stop(Peer);
        {ok, #{pool := Pool}} -> erlmcp_pool_sup:stop(Pool);
        {error, stopped} -> ok
    end.

-doc """
What the server says of itself: the `revision` that was agreed on, its `server_info`,
`capabilities` and, if it has any, `instructions`. Waits until that is known.
""".
-spec server(client()) -> {ok, map()} | {error, reason()}.
server(Client) ->
    server(Client, #{}).

-doc "The same with a `timeout`.".
-spec server(client(), #{timeout => pos_integer()}) -> {ok, map()} | {error, reason()}.
server(Client, Options) ->
    case erlmcp_client_call:check(Options) of
        ok -> with_client(Client, fun(Found) -> known(Found, Options) end);
        {error, _} = Error -> Error
    end.

known(#{settings := #{timeout := Default}} = Client, Options) ->
    Timeout = maps:get(timeout, Options, Default),
    case erlmcp_client_connection:live(Client, erlang:monotonic_time(millisecond) + Timeout) of
        {ok, Live} -> {ok, maps:without([epoch, session, generation], Live)};
        {error, timeout} -> {error, {timeout, Timeout}};
        {error, _} = Error -> Error
    end.

-doc """
How a client does, without asking its server: the `revision` and whether there is a `session`, as
far as they are known, its running `calls`, how many notifications it has dropped because they came
faster than it could hand them on, and what its cache holds.
""".
-spec info(client()) -> map() | {error, stopped}.
info(Client) ->
    with_client(Client, fun erlmcp_client_connection:info/1).

-doc "All tools of the server; all pages of the list, up to the limit `pages`.".
-spec list_tools(client()) -> items().
list_tools(Client) -> list_tools(Client, #{}).

-doc "The same with options.".
-spec list_tools(client(), options()) -> items().
list_tools(Client, Options) -> run({list, tools}, Client, Options).

-doc """
Calls a tool. Its structured content is held against its output schema if the tool was listed
before.
""".
-spec call_tool(client(), Name :: binary(), Arguments :: map()) -> outcome().
call_tool(Client, Name, Arguments) -> call_tool(Client, Name, Arguments, #{}).

-doc "The same with options.".
-spec call_tool(client(), Name :: binary(), Arguments :: map(), options()) -> outcome().
call_tool(Client, Name, Arguments, Options) ->
    run({call_tool, Name, Arguments}, Client, Options).

-doc "All resources of the server.".
-spec list_resources(client()) -> items().
list_resources(Client) -> list_resources(Client, #{}).

-doc "The same with options.".
-spec list_resources(client(), options()) -> items().
list_resources(Client, Options) -> run({list, resources}, Client, Options).

-doc "All resource templates of the server.".
-spec list_resource_templates(client()) -> items().
list_resource_templates(Client) -> list_resource_templates(Client, #{}).

-doc "The same with options.".
-spec list_resource_templates(client(), options()) -> items().
list_resource_templates(Client, Options) -> run({list, resource_templates}, Client, Options).

-doc "Reads a resource.".
-spec read_resource(client(), Uri :: binary()) -> outcome().
read_resource(Client, Uri) -> read_resource(Client, Uri, #{}).

-doc "The same with options.".
-spec read_resource(client(), Uri :: binary(), options()) -> outcome().
read_resource(Client, Uri, Options) -> run({read_resource, Uri}, Client, Options).

-doc "All prompts of the server.".
-spec list_prompts(client()) -> items().
list_prompts(Client) -> list_prompts(Client, #{}).

-doc "The same with options.".
-spec list_prompts(client(), options()) -> items().
list_prompts(Client, Options) -> run({list, prompts}, Client, Options).

-doc "The entries of all skills of the server, whose files `m:erlmcp_skills` reads.".
-spec list_skills(client()) -> items().
list_skills(Client) -> list_skills(Client, #{}).

-doc "The same with options.".
-spec list_skills(client(), options()) -> items().
list_skills(Client, Options) -> run({list, skills}, Client, Options).

-doc "Gets a prompt; its arguments are strings.".
-spec get_prompt(client(), Name :: binary(), Arguments :: #{binary() | atom() => binary()}) ->
    outcome().
get_prompt(Client, Name, Arguments) -> get_prompt(Client, Name, Arguments, #{}).

-doc "The same with options.".
-spec get_prompt(client(), Name :: binary(), Arguments :: #{binary() | atom() => binary()},
                 options()) -> outcome().
get_prompt(Client, Name, Arguments, Options) ->
    run({get_prompt, Name, Arguments}, Client, Options).

-doc """
Completions of an argument of a prompt, or of a variable of a resource template, from what has been
typed so far.
""".
-spec complete(client(), {prompt | resource, binary()},
               {Argument :: binary(), Value :: binary()}) -> outcome().
complete(Client, Of, Argument) -> complete(Client, Of, Argument, #{}).

-doc "The same with options; `known` has other arguments' values, for servers since 2025-06-18.".
-spec complete(client(), {prompt | resource, binary()}, {Argument :: binary(), Value :: binary()},
               options() | #{known => #{binary() => binary()}}) -> outcome().
complete(Client, Of, Argument, Options) ->
    Reference = case Of of
        {prompt, Name} -> #{type => ~"ref/prompt", name => Name};
        {resource, Uri} -> #{type => ~"ref/resource", uri => Uri}
    end,
    run({complete, Reference, Argument, maps:get(known, Options, #{})}, Client,
        maps:remove(known, Options)).

-doc "Whether the server answers. 2026-07-28 has no ping: there it is asked what it is.".
-spec ping(client()) -> {ok, pong} | {error, reason()}.
ping(Client) -> ping(Client, #{}).

-doc "The same with options.".
-spec ping(client(), options()) -> {ok, pong} | {error, reason()}.
ping(Client, Options) -> run(ping, Client, Options).

-doc "Any request, such as those of extensions.".
-spec request(client(), Method :: binary(), Params :: map()) -> outcome().
request(Client, Method, Params) -> request(Client, Method, Params, #{}).

-doc "The same with options.".
-spec request(client(), Method :: binary(), Params :: map(), options()) -> outcome().
request(Client, Method, Params, Options) -> run({request, Method, Params}, Client, Options).

-doc """
Sends a notification, such as `notifications/roots/list_changed` in a session, and waits until the
server has taken it. In a pool one member does.
""".
-spec notify(client(), Method :: binary(), Params :: map()) -> ok | {error, reason()}.
notify(Client, Method, Params) ->
    with_client(Client, fun(Found) -> erlmcp_client_exchange:notify(Method, Params, Found) end).

run(Operation, Client, Options) ->
    maybe
        ok ?= erlmcp_client_call:check(Options),
        {ok, Found} ?= erlmcp_client_table:find(Client),
        case Found of
            #{peer := _} -> erlmcp_client_call:run(Operation, Found, Options);
            #{pool := _} -> erlmcp_pool_call:run(Operation, Found, Options)
        end
    end.

%% What is about one connection, one member of a pool does.
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
Starts an operation and does not wait: `{list, tools}`, `{call_tool, Name, Arguments}`,
`{read_resource, Uri}` and the like, see `t:erlmcp_client_operation:operation/0`. The calling
process is sent `{erlmcp, Reference, {progress | log, Params}}` while it runs and once, in the end,
`{erlmcp, Reference, {ok, Result} | {error, Reason}}`.
""".
-spec async(client(), erlmcp_client_operation:operation()) -> {ok, reference()} | {error, reason()}.
async(Client, Operation) ->
    async(Client, Operation, #{}).

-doc "The same with options.".
-spec async(client(), erlmcp_client_operation:operation(), options()) ->
    {ok, reference()} | {error, reason()}.
async(Client, Operation, Options) ->
    maybe
        ok ?= erlmcp_client_call:check(Options),
        {ok, Found} ?= erlmcp_client_table:find(Client),
        {ok, case Found of
            #{peer := _} -> erlmcp_client_call:start(Operation, Found, Options, self());
            #{pool := _} -> erlmcp_pool_call:start(Operation, Found, Options, self())
        end}
    end.

-doc """
Cancels what `async/3` started: the server is told, and the outcome is `{error, cancelled}`, unless
it is on its way already. Of no effect afterwards.
""".
-spec cancel(client(), reference()) -> ok.
cancel(Client, Reference) ->
    case erlmcp_client_table:find(Client) of
        {ok, #{peer := _} = Found} -> erlmcp_client_call:cancel(Reference, Found);
        {ok, #{pool := _} = Pool} -> erlmcp_pool_call:cancel(Reference, Pool);
        {error, stopped} -> ok
    end.

-doc """
A task of the server's as it is now. The task is the map that a call with the option `task =>
handle` gave, or `#{~"taskId" => Id}` for one whose id was kept.
""".
-spec task(client(), Task :: map()) -> outcome().
task(Client, Task) -> task(Client, Task, #{}).

-doc "The same with options.".
-spec task(client(), Task :: map(), options()) -> outcome().
task(Client, Task, Options) -> run({task, get, Task}, Client, Options).

-doc """
Waits for the result of a task, answers what it asks, and gives what the call would have given. A
task that was cancelled is `{error, cancelled}`. When the wait ends before the task, the task is
cancelled.
""".
-spec await_task(client(), Task :: map()) -> outcome().
await_task(Client, Task) -> await_task(Client, Task, #{}).

-doc "The same with options; `max_timeout` bounds the wait.".
-spec await_task(client(), Task :: map(), options()) -> outcome().
await_task(Client, Task, Options) -> run({task, await, Task}, Client, Options).

-doc "Cancels a task.".
-spec cancel_task(client(), Task :: map()) -> outcome().
cancel_task(Client, Task) -> cancel_task(Client, Task, #{}).

-doc "The same with options.".
-spec cancel_task(client(), Task :: map(), options()) -> outcome().
cancel_task(Client, Task, Options) -> run({task, cancel, Task}, Client, Options).

-doc """
Subscribes the calling process to changes, see `t:erlmcp_client_subscriptions:filter/0`. It is sent
`{erlmcp, Reference, Event}`, see `t:erlmcp_client_subscriptions:event/0`: the first one is
`subscribed`, and from then on no change is missed until that comes again.

## Errors

`{overload, Limit}`: the client has as many as its option `subscriptions` allows.
`{bad_option, Key, Expected}`: there is nothing of that name to subscribe to.
""".
-spec subscribe(client(), erlmcp_client_subscriptions:filter()) ->
    {ok, reference()} | {error, reason()}.
subscribe(Client, Filter) ->
    case erlmcp_client_subscriptions:check(Filter) of
        ok ->
            with_client(Client, fun(Found) ->
                erlmcp_client_connection:subscribe(Found, self(), Filter)
            end);
        {error, _} = Error -> Error
    end.

-doc "Ends a subscription; what was sent before may still come.".
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
A reason as a sentence.

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
