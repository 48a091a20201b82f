-module(erlmcp_event).
-moduledoc """
Events: what an operator of a server has to see at once. The option `on_event` of a server is one
handler of its events, and `attach/3` adds others while the server runs:

```erlang
ok = erlmcp_event:attach(my_server, pager, fun
    (#{event := incident, incident := Id}) -> my_pager:page(Id);
    (_) -> ok
end)
```

If the node has the application `telemetry` when a server starts, each event of the server is also
one of telemetry, `[erlmcp, server, Name]`. The page "Events" lists them.
""".

-export([attach/3, detach/2, table/0]).

-export_type([handler/0]).

-doc "A fun that is called with each event. Its result is ignored.".
-type handler() :: fun((erlmcp:event()) -> term()).

-doc """
Attaches a handler to a server under the name `Id`. The handler stays until `detach/2`, or until the
server ends. The handler runs in a process of its own, as the handler of `on_event` does. A crash of
the handler is logged, and the handler is called with the next event.

## Errors

- `not_found`: no such server runs.
- `already_attached`: the server has a handler of that name.
- `{too_many, 100}`: the server has 100 attached handlers.
""".
-spec attach(Server :: erlmcp:server(), Id :: term(), handler()) ->
    ok | {error, not_found | already_attached | {too_many, pos_integer()}}.
attach(Server, Id, Handler) when is_function(Handler, 1) ->
    with_handlers(Server, fun(Handlers, Key) ->
        erlmcp_event_sup:attach(Handlers, {attached, Id}, Handler, Key)
    end).

-doc """
Detaches the handler `Id` after the handler was called with the events that wait for it, but after
five seconds at the latest. The handler itself must not call this function, which waits for the
handler's process. Returns `{error, not_found}` if no such server runs, or if the server has no
handler of that name.
""".
-spec detach(Server :: erlmcp:server(), Id :: term()) -> ok | {error, not_found}.
detach(Server, Id) ->
    with_handlers(Server, fun(Handlers, _) ->
        erlmcp_event_sup:detach(Handlers, {attached, Id})
    end).

with_handlers(Server, Do) ->
    case erlmcp_registry:whereis(Server) of
        {ok, Supervisor, #{key := Key}} ->
            try
                Do(erlmcp_server_sup:events(Supervisor), Key)
            catch
                %% A supervisor has ended in the meantime: that of the handlers, or the server's.
                exit:{Why, {gen_server, call, _}} when Why =/= calling_self ->
                    case is_process_alive(Supervisor) of
                        true -> with_handlers(Server, Do);
                        false -> {error, not_found}
                    end
            end;
        error ->
            {error, not_found}
    end.

-doc """
Returns all events: the name of each, the fields that are its measurements, its other fields, and a
sentence that says when it is emitted. All events also have `server` and `at`, and may have
`dropped`.
""".
-spec table() -> [{Name :: atom(), Measurements :: [atom()], Metadata :: [atom()],
                   When :: binary()}].
table() ->
    erlmcp_event_table:table().
