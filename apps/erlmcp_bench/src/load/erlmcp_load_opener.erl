-module(erlmcp_load_opener).
-moduledoc """
Processes that open the connections of a group. Opening a connection waits for the peer, so many are
opened at once. Each process opens some of them, one after the other, and gives them to the group.
""".

-export([start/2, opened/3]).

-export_type([opened/0]).

-doc "An open connection with the messages that came for it, or one that failed to open, and why.".
-type opened() :: {opened, erlmcp_load_connection:connection(), Came :: [term()]}
    | {open_failed, erlmcp_load_connection:connection(), Reason :: term()}.

%% How many connections of a group are opened at once.
-define(AT_ONCE, 64).

-doc """
Opens connections for the calling process, and sends it `{erlmcp_load_opener, Opened}` for each, see
`t:opened/0`. The calling process takes the open ones with `erlmcp_load_connection:take/1`.
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
    %% Other loads of this node may be busy, and would delay the opening of this one.
    _ = spawn_opt(fun() -> opens(Own, Settings, Group) end, [link, {priority, high}]),
    shared_out(Each, Others, Settings, Group).

opens(Connections, Settings, Group) ->
    lists:foreach(fun(New) -> Group ! {?MODULE, opened(New, Settings, Group)} end, Connections).

-doc "Opens a connection in the calling process, for the process `Group`.".
-spec opened(erlmcp_load_connection:connection(), erlmcp_load_plan:settings(), pid()) -> opened().
opened(New, Settings, Group) ->
    case erlmcp_load_connection:open(Settings, New) of
        {ok, Connection} -> {opened, Connection, erlmcp_load_connection:give(Group, Connection)};
        {error, Reason} -> {open_failed, New, Reason}
    end.
