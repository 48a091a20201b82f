-module(erlmcp).
-moduledoc """
Model Context Protocol for Erlang/OTP: the functions a user meets first.

```erlang
{ok, Server} = erlmcp:start_server(#{
    name => ~"greeter", version => ~"1.0.0",
    tools => [#{name => ~"greet", description => ~"Greets a person by name",
                input_schema => #{type => object, properties => #{name => #{type => string}}},
                handler => fun(#{~"name" := Name}, _Context) -> <<"Hello, ", Name/binary>> end}],
    listen => [{http, #{port => 8080}}]
}).
```

A server speaks all five revisions of the protocol at once, to each client the one it asks for.
""".

-export([start_server/1, child_spec/1, drain/2, stop_server/1, listeners/1]).
-export([add/3, remove/3, resource_updated/2, info/1]).
-export([progress/3, log/3, log/4, elicitation_complete/2, client_has/2, close_connection/1]).

-export_type([server/0, info/0, level/0]).

-doc "A server: its pid, or the `id` of its options.".
-type server() :: pid() | term().
-doc "What `info/1` says of a server.".
-type info() :: #{
    state := open | erlmcp_refusal:name(),
    connections := non_neg_integer(), sessions := non_neg_integer(),
    in_flight := non_neg_integer(), places := pos_integer(), waiting := non_neg_integer(),
    cache := erlmcp_result_cache:info(), error_budget := erlmcp_error_budget:report(),
    mounts := [#{prefix := binary(), server := server(), running := boolean()}]
}.
-doc "How grave a log message is, as of RFC 5424; the last one is the gravest.".
-type level() :: debug | info | notice | warning | error | critical | alert | emergency.

-doc """
Starts a server, linked to the caller: a supervisor with its listeners, for the caller's own tree.
See `t:erlmcp_server_options:options/0`.

## Errors

- `{bad_option, Key, Expected}`: an option is unknown, missing or of the wrong type.
- `{bad_definition, Kind, Name, Field, Expected}`: so is a field of a definition.
- `{duplicate, Kind, Name}`: two definitions have one name.
- `{bad_skill, Skill, Place, Expected}`: so is a file of a skill, or a field of its frontmatter.
- `{listen, Transport, Reason}`: it cannot listen there; `Reason` is as of `inet:posix/0`, or what
  `m:ssl` says of its options, or `{file, Name, Reason}` where a file that `tls` names cannot be
  read or is not what it should be.
- `{already_started, Pid}`: a server with this `id` runs on this node.
- `{not_started, erlmcp}`: the application does not run (`application:ensure_all_started/1`).
- `{mount, Prefix, Reason}`: the server to mount there cannot be. `Reason` is one of these, or
  `not_found`, or `{mount_loop, Servers}`: it would be mounted in itself.

With `listen`, `already_started` and `not_started` the caller is sent an exit signal too, as by any
`start_link`.

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
-spec start_server(erlmcp_server_options:options()) -> {ok, pid()} | {error, term()}.
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
The child specification of a server, for a supervisor of the user's. The options are those of
`start_server/1`, and so are the errors, which the supervisor is told when it starts the server.

## Examples

```erlang
1> erlmcp:child_spec(#{id => mine, handler => my_server}).
#{id => {erlmcp, mine}, type => supervisor,
  start => {erlmcp, start_server, [#{id => mine, handler => my_server}]}}
```
""".
-spec child_spec(erlmcp_server_options:options()) -> supervisor:child_spec().
child_spec(Options) ->
    %% The first that is there tells servers of one supervisor apart.
    [Id | _] = [Value || Key <- [id, name, handler], {ok, Value} <- [maps:find(Key, Options)]]
        ++ [undefined],
    #{id => {?MODULE, Id},
      start => {?MODULE, start_server, [Options]},
      type => supervisor}.

-doc """
Stops a server that `start_server/1` started outside of a supervisor, and waits for its end: its
processes have their bounds for that.
""".
-spec stop_server(server()) -> ok | {error, not_found}.
stop_server(Server) ->
    with_server(Server, fun(Pid) ->
        unlink(Pid),
        proc_lib:stop(Pid, shutdown, infinity)
    end).

-doc """
Takes a server out of service before it is stopped: it takes no more connections and refuses new
requests with 1077, ends its open subscriptions, and waits for the calls and tasks that run, so many
milliseconds at most. Calls that have not answered then are ended, and their clients told so
(1077); `calls` says how many, `tasks` how many tasks run still. Returns as soon as nothing runs.

The server stays there and refuses: stop it, or let its supervisor do so. `not_found` is also what
is said of a server that was stopped meanwhile.

## Examples

```erlang
1> {ok, Server} = erlmcp:start_server(#{name => ~"greeter", version => ~"1.0.0"}).
2> erlmcp:drain(Server, 10_000).
{ok, #{calls => 0, tasks => 0}}
3> erlmcp:stop_server(Server).
ok
```
""".
-spec drain(server(), Milliseconds :: non_neg_integer()) ->
    {ok, #{calls := non_neg_integer(), tasks := non_neg_integer()}} | {error, not_found}.
drain(Server, Milliseconds) when is_integer(Milliseconds), Milliseconds >= 0 ->
    case erlmcp_registry:whereis(Server) of
        {ok, Pid, Instance} -> erlmcp_server_sup:drain(Pid, Instance, Milliseconds);
        error -> {error, not_found}
    end.

-doc """
Where a server listens: `transport` (`http`, `tcp`, `stdio`) and, but for stdio, `ip`, `port`
and `url`; and `sse_url` where HTTP+SSE is served too.

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
-spec listeners(server()) -> [map()] | {error, not_found}.
listeners(Server) ->
    with_server(Server, fun erlmcp_server_sup:listeners/1).

-doc """
Adds a definition to a running server. Its list has it at once, at the end; clients that want to
know are told.

## Errors

`{bad_definition, Kind, Name, Field, Expected}` and `{duplicate, Kind, Name}` as of
`start_server/1`, and `not_found` for no such server.

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
-spec add(server(), erlmcp_definition:kind(), erlmcp_definition:source()) -> ok | {error, term()}.
add(Server, Kind, Definition) when
    Kind =:= tool; Kind =:= resource; Kind =:= resource_template; Kind =:= prompt
->
    change(Server, {add, Kind, Definition}).

-doc """
Removes a definition from a running server, by its name, URI or URI template. Calls of it that run
already end in their own time. What is mounted, the mounted server alone removes; what a mounted
server has under this name, and was left out, comes in its place. A view that a tool shows its
results in, and a file of a skill, stay: `{in_use, Kind, Key}` says what needs it.
`not_found` is for no such server and for no such definition.
""".
-spec remove(server(), erlmcp_definition:kind(), Key :: binary()) ->
    ok | {error, not_found | {mounted, erlmcp_mount:prefix()}
                 | {in_use, erlmcp_definition:kind(), binary()}}.
remove(Server, Kind, Key) when
    Kind =:= tool; Kind =:= resource; Kind =:= resource_template; Kind =:= prompt
->
    change(Server, {remove, Kind, Key}).

-doc """
Tells the clients that watch this resource that it changed, also those of the servers that mount
this one; contents of it that were kept are forgotten. Whether there is a
resource of that URI is not looked up.
""".
-spec resource_updated(server(), Uri :: binary()) -> ok | {error, not_found}.
resource_updated(Server, Uri) when is_binary(Uri) ->
    case erlmcp_registry:whereis(Server) of
        {ok, _, Instance} -> erlmcp_mounts:resource_updated(Uri, Instance);
        error -> {error, not_found}
    end.

-doc """
How a server does. What there is of it now: `connections` of its listeners; `sessions` on HTTP and
HTTP+SSE; requests `in_flight`, how many of those the machine carries (`places`), and how many wait
for a place (`waiting`). `state` is `open`, or the name of the refusal that a request would get:
`server_shutting_down`, `resource_exhausted`, `service_unavailable`. What its `cache` holds, see
`t:erlmcp_result_cache:info/0`; the zone of its `error_budget`, see
`t:erlmcp_error_budget:report/0`; and of each of its `mounts` the prefix and the server, and whether
that runs. No process is asked.
""".
-spec info(server()) -> info() | {error, not_found}.
info(Server) ->
    case erlmcp_registry:whereis(Server) of
        {ok, Pid, Instance} ->
            Seen = seen(Instance),
            %% The tables end with it.
            case is_process_alive(Pid) of
                true -> Seen;
                false -> {error, not_found}
            end;
        error ->
            {error, not_found}
    end.

seen(#{gate := Gate, mounts := Mounts, error_budget := Budget} = Instance) ->
    #{state => state(Gate),
      connections => erlmcp_gate:held(Gate, connections),
      sessions => erlmcp_session_table:count(Instance),
      in_flight => erlmcp_gate:held(Gate, in_flight),
      places => erlmcp_gate:limit(Gate),
      waiting => erlmcp_gate:held(Gate, waiting),
      cache => erlmcp_result_cache:info(Instance),
      error_budget => erlmcp_error_budget:report(Budget),
      mounts => [#{prefix => Prefix, server => Mounted,
                   running => erlmcp_registry:whereis(Mounted) =/= error}
                 || #{prefix := Prefix, server := Mounted} <- Mounts]}.

state(Gate) ->
    case erlmcp_gate:state(Gate) of
        open -> open;
        {refuse, Refusal} -> erlmcp_refusal:name(Refusal)
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
                    %% It may have ended while it was asked.
                    case is_process_alive(Pid) of
                        true -> erlang:raise(exit, Reason, Stack);
                        false -> {error, not_found}
                    end
            end;
        error ->
            {error, not_found}
    end.

-doc """
Reports the progress of a call from its handler, if the client asked for it. `Progress` is in any
unit and must grow from report to report; one that does not is not sent. `total` is in the same
unit. Where the client reads more slowly than the handler speaks it waits, as `log/3` does: see
`unread_messages` in the limits. Source: specification, "Progress".

## Errors

This function and those after it raise `{bad_argument, Name, Expected}` for an argument that is
wrong; `context` is the first of them.

## Examples

```erlang
1> catch erlmcp:progress(#{}, 1, #{}).
{'EXIT', {{bad_argument, context, ~"the map that a handler is given as its second argument"}, _}}
```
""".
-spec progress(erlmcp_engine:context(), Progress :: number(),
               #{total => number(), message => binary()}) -> ok.
progress(#{owner := _} = Context, Progress, Details) when is_number(Progress), is_map(Details) ->
    erlmcp_call_report:progress(Context, Progress, Details);
progress(Context, Progress, Details) ->
    Wrong = [{progress, ~"a number"} || not is_number(Progress)] ++ [{details, ~"a map"}],
    error(wrong(Context, Wrong), [Context, Progress, Details]).

-doc """
Sends the client a log message from a handler, if its level is one that the client wants. `Data` is
any value that `erlmcp_json:encode/1` takes. Source: specification, "Logging".
""".
-spec log(erlmcp_engine:context(), level(), Data :: term()) -> ok.
log(Context, Level, Data) ->
    log(Context, Level, Data, #{}).

-doc "The same with the name of what logs: a part of the server.".
-spec log(erlmcp_engine:context(), level(), Data :: term(), #{logger => binary()}) -> ok.
log(#{owner := _} = Context, Level, Data, Details) when is_atom(Level), is_map(Details) ->
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
Tells the client, from the handler that asked for it, that what the user went to the URL for is
done; `Id` is that of `erlmcp_input:elicit_url/3`. The client's answer says only that the user
agreed to go. 2025-11-25 alone has this; clients of other revisions are sent nothing.
""".
-spec elicitation_complete(erlmcp_engine:context(), Id :: binary()) -> ok.
elicitation_complete(#{owner := _} = Context, Id) when is_binary(Id) ->
    erlmcp_call_report:elicitation_complete(Context, Id);
elicitation_complete(Context, Id) ->
    error(wrong(Context, [{id, ~"a binary"}]), [Context, Id]).

-doc """
Whether the client of a call has an extension, such as `io.modelcontextprotocol/ui` (MCP Apps): for
that one, whether it shows the views that there are.
""".
-spec client_has(erlmcp_engine:context(), Extension :: binary()) -> boolean().
client_has(#{client_capabilities := Capabilities}, Extension) ->
    erlmcp_extension:client_has(Extension, Capabilities);
client_has(Context, Extension) ->
    error(wrong(Context, []), [Context, Extension]).

-doc """
Ends the HTTP connection that a call's client waits on, from its handler, so that a long call need
not hold one: the client comes back for what the call still sends, and for its answer. It is told
when by the limit `retry_ms`. Of no effect for a client that would not know to come back: the
revision is 2025-11-25, and the transport Streamable HTTP.

Source: specification 2025-11-25, "Transports / Sending Messages to the Server".
""".
-spec close_connection(erlmcp_engine:context()) -> ok.
close_connection(#{owner := _} = Context) ->
    erlmcp_call_report:close_connection(Context);
close_connection(Context) ->
    error(wrong(Context, []), [Context]).

%% Which argument is wrong: the context before all others.
wrong(#{owner := _}, [{Name, Expected} | _]) ->
    {bad_argument, Name, Expected};
wrong(_, _) ->
    {bad_argument, context, ~"the map that a handler is given as its second argument"}.
