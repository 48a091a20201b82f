-module(erlmcp_load_opener).
-moduledoc """
Processes that open the connections of a group: opening one waits for the peer, each time, and so
many are opened at once. Each process opens some of them, one after the other, and gives them to the
group.
""".

-export([start/2, opened/3]).

-export_type([opened/0]).

-doc "A connection that is open, with the messages that came for it, or one that is not, and why.".
-type opened() :: {opened, erlmcp_load_connection:connection(), Came :: [term()]}
    | {open_failed, erlmcp_load_connection:connection(), Reason :: term()}.

%% How many of a group's connections are opened at once.
-define(AT_ONCE, 64).

-doc """
Opens these connections for the calling process, and tells it `{erlmcp_load_opener, Opened}` of
each, see `t:opened/0`. It takes those that are open (`erlmcp_load_connection:take/1`).
""".
-spec start(erlmcp_load_plan:settings(), [erlmcp_load_connection:connection(), ...]) -> ok.
start(Settings, New) ->
    Group = self(),
    Each = (length(New) + ?AT_ONCE - 1) div ?AT_ONCE,
    shared_out(Each, New, Settings, Group).

shared_out(_, [], _, _) ->
    ok;
shared_out(Each, New, Settings, Group) ->
    {Own, Others} = lists:split(min(Each, length(New)), New),
    %% Other loads of this node may have more to do than it can: they would keep this one from its
    %% beginning.
    _ = spawn_opt(fun() -> opens(Own, Settings, Group) end, [link, {priority, high}]),
    shared_out(Each, Others, Settings, Group).

opens(Connections, Settings, Group) ->
    lists:foreach(fun(New) -> Group ! {?MODULE, opened(New, Settings, Group)} end, Connections).

-doc "Opens one in the calling process, for that one.".
-spec opened(erlmcp_load_connection:connection(), erlmcp_load_plan:settings(), pid()) -> opened().
opened(New, Settings, Group) ->
    case erlmcp_load_connection:open(Settings, New) of
        {ok, Connection} -> {opened, Connection, erlmcp_load_connection:give(Group, Connection)};
        {error, Reason} -> {open_failed, New, Reason}
    end.
