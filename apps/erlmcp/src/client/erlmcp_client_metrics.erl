-module(erlmcp_client_metrics).
-moduledoc """
The figures of all clients of the node, read from their meter and their tables without asking a
process. Everything that shows figures is computed from this.

Internal.
""".

-export([report/0]).

-doc "Returns the figures of the clients of each server and revision.".
-spec report() -> [erlmcp_client:metrics()].
report() ->
    %% Failures are read first, so that none is read without its row.
    Failures = failures(),
    Counted = counted(Failures),
    Sessions = #{Kind => {Opened, Times}
                 || {Kind, Opened, Times} <- erlmcp_client_meter:sessions()},
    Running = maps:groups_from_list(fun({Kind, _, _}) -> Kind end, erlmcp_client_table:running()),
    Servers = erlmcp_client_meter:servers(),
    Kinds = maps:keys(Counted) ++ maps:keys(Sessions) ++ maps:keys(Running),
    [maps:merge(address(Kind, Servers),
                (running(maps:get(Kind, Running, [])))#{
                    sessions => sessions(maps:get(Kind, Sessions, none)),
                    methods => methods(Requests), tools => named(~"tools/call", Requests),
                    prompts => named(~"prompts/get", Requests)})
     || Kind <- lists:usort(Kinds), Requests <- [maps:get(Kind, Counted, #{})]].

failures() ->
    lists:foldl(fun({Requests, Error, Code, Times}, Known) ->
        Known#{Requests => (maps:get(Requests, Known, #{}))#{{Error, Code} => Times}}
    end, #{}, erlmcp_client_meter:failures()).

%% The counted requests, by kind and then by method and name.
counted(Failures) ->
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
      calls => lists:sum([calls(Calls) || {_, Calls, _} <- Clients]),
      connections => lists:sum([Open || {Open, _} <- Connections]),
      waiting => lists:sum([Waiting || {_, Waiting} <- Connections])}.

%% A client may have ended meanwhile.
calls(Calls) ->
    case erlmcp_client_calls:count(Calls) of
        undefined -> 0;
        Count -> Count
    end.

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
        Method =:= Of, Name =/= none].
