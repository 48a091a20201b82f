-module(erlmcp_client_metrics).
-moduledoc """
The figures of all clients of the node, read from their meter and their tables without asking a
process.

Internal.
""".

-export([report/0, upstreams/0, pools/0, server_name/1]).

-export_type([upstream/0, pool/0]).

-doc """
A server that the node's clients call.

- `name`: its host and port, its program, or its `id` in this node; `other` stands for all servers
  without figures of their own.
- `clients`: its clients. `calls`: their running calls. `connections`: their open connections.
  `waiting`: their requests that wait for a connection.
- `row`: its requests, of all revisions and methods.
""".
-type upstream() :: #{
    name := binary() | other, clients := non_neg_integer(), calls := non_neg_integer(),
    connections := non_neg_integer(), waiting := non_neg_integer(), row := erlmcp:metrics_row()
}.

-doc """
A pool of clients: its registered name, or its pid, and its members as `erlmcp_pool:info/1` returns
them.
""".
-type pool() :: {Name :: atom() | pid(), Members :: [map(), ...]}.

%% The most pools that are read.
-define(POOLS, 20).

-doc """
Returns the figures of the clients of each server and revision, or `[]` if the application does not
run.
""".
-spec report() -> [erlmcp_client:metrics()].
report() ->
    try
        figures()
    catch
        error:badarg:Stack ->
            %% The tables end with the application.
            case erlmcp_client_table:is_running() of
                true -> erlang:raise(error, badarg, Stack);
                false -> []
            end
    end.

figures() ->
    %% These are read first, so that the server of each has its place.
    Running = maps:groups_from_list(fun({Kind, _, _}) -> Kind end, erlmcp_client_table:running()),
    {Counted, Sessions, Servers} = erlmcp_client_meter:steady(fun() ->
        {counted(), #{Kind => {Opened, Times}
                      || {Kind, Opened, Times} <- erlmcp_client_meter:sessions()},
         erlmcp_client_meter:servers()}
    end),
    Kinds = maps:keys(Counted) ++ maps:keys(Sessions) ++ maps:keys(Running),
    [maps:merge(address(Kind, Servers),
                (running(maps:get(Kind, Running, [])))#{
                    sessions => sessions(maps:get(Kind, Sessions, none)),
                    methods => methods(Requests), tools => named(~"tools/call", Requests),
                    prompts => named(~"prompts/get", Requests),
                    removed => #{tools => removed(~"tools/call", Requests),
                                 prompts => removed(~"prompts/get", Requests)}})
     || Kind <- lists:usort(Kinds), Requests <- [maps:get(Kind, Counted, #{})]].

-doc """
Returns the figures of the clients of each server, of all revisions and methods together. Raises
`badarg` if the application does not run.
""".
-spec upstreams() -> [upstream()].
upstreams() ->
    Running = erlmcp_client_table:running(),
    {Counted, Servers} = erlmcp_client_meter:steady(fun() ->
        {counted(), erlmcp_client_meter:servers()}
    end),
    Kinds = maps:keys(Counted) ++ [Kind || {Kind, _, _} <- Running],
    [(running([Client || {{Of, _}, _, _} = Client <- Running, Of =:= Server]))#{
         name => name(address(Kind, Servers)),
         row => erlmcp_request_figures:row(erlmcp_request_figures:sum(
             [{erlmcp_meter_counts:no_row(), #{}}
              | [Apart || {Of, _} := Requests <- Counted, Of =:= Server, _ := Apart <- Requests]]))}
     || {Server, _} = Kind <- lists:ukeysort(1, Kinds)].

-doc """
Returns the `name` that the server at a target has in `t:upstream/0` if it has figures of its own.
The name has neither the path of a URL nor the arguments of a program.
""".
-spec server_name(Target :: term()) -> binary().
server_name(Target) ->
    name(erlmcp_client_meter:address(Target)).

name(#{server := other}) -> other;
name(#{server := Server, port := none}) -> Server;
name(#{server := Server, port := Port}) -> <<Server/binary, $:, (integer_to_binary(Port))/binary>>.

-doc """
Returns the pools of clients that run, 20 at most. Raises `badarg` if the application does not run.
""".
-spec pools() -> [pool()].
pools() ->
    [{registered(Pool), Members}
     || Pool <- lists:sublist(lists:sort(erlmcp_client_table:pools()), ?POOLS),
        [_ | _] = Members <- [members(Pool)]].

members(Pool) ->
    case erlmcp_client_table:find(Pool) of
        {ok, #{members := _} = Found} -> erlmcp_pool_members:info(Found);
        {error, stopped} -> []
    end.

registered(Pool) ->
    case process_info(Pool, registered_name) of
        {registered_name, Name} -> Name;
        _ -> Pool
    end.

%% The counted requests, by kind and then by method and name.
counted() ->
    %% Failures are read first, so that none is read without its row.
    Failures = erlmcp_request_figures:failures(erlmcp_client_meter:failures()),
    Rows = [{Requests, {Figures, #{}}} || {Requests, Figures} <- erlmcp_client_meter:requests()]
        ++ [{Requests, {erlmcp_meter_counts:no_row(), Failed}} || Requests := Failed <- Failures],
    Parts = maps:groups_from_list(fun({Requests, _}) -> Requests end,
                                  fun({_, Counted}) -> Counted end, Rows),
    maps:fold(fun({Kind, Method, Name}, Apart, Known) ->
        Sum = erlmcp_request_figures:sum(Apart),
        Known#{Kind => (maps:get(Kind, Known, #{}))#{{Method, Name} => Sum}}
    end, #{}, Parts).

address({Server, Revision}, Servers) ->
    Other = #{server => other, port => none, network => none},
    (maps:get(Server, Servers, Other))#{revision => Revision}.

running(Clients) ->
    Connections = [connections(Client) || Client <- Clients],
    #{clients => length(Clients),
      calls => lists:sum([erlmcp_client_calls:running(Calls) || {_, Calls, _} <- Clients]),
      connections => lists:sum([Open || {Open, _} <- Connections]),
      waiting => lists:sum([Waiting || {_, Waiting} <- Connections])}.

connections({{_, Revision}, _, {Transport, Handle}}) ->
    case erlang:function_exported(Transport, connections, 1) of
        true -> Transport:connections(Handle);
        false when Revision =:= none -> {0, 0};
        false -> {1, 0}
    end.

sessions(none) ->
    sessions({0, {0, [0 || _ <- [endless | erlmcp_histogram:coarse_bounds()]]}});
sessions({Opened, {Sum, Counts}}) ->
    Ended = lists:sum(Counts),
    #{open => Opened - Ended, opened => Opened, ended => Ended,
      duration => erlmcp_histogram:coarse(Sum, Counts)}.

methods(Requests) ->
    Methods = maps:groups_from_list(fun({{Method, _}, _}) -> Method end,
                                    fun({_, Counted}) -> Counted end, maps:to_list(Requests)),
    #{Method => erlmcp_request_figures:row(erlmcp_request_figures:sum(Apart))
      || Method := Apart <- Methods}.

named(Of, Requests) ->
    [(erlmcp_request_figures:row(Counted))#{name => Name}
     || {Method, Name} := Counted <- maps:iterator(Requests, ordered),
        Method =:= Of, Name =/= none, Name =/= removed].

removed(Method, Requests) ->
    erlmcp_request_figures:row(
        maps:get({Method, removed}, Requests, {erlmcp_meter_counts:no_row(), #{}})).
