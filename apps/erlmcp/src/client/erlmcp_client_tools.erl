-module(erlmcp_client_tools).
-moduledoc """
The table of a server's tools. For each tool it has the arguments that headers mirror, and the
schema of the structured content. It also says which tools must be called as tasks. Each received
list of tools updates the table.

Sources: specification 2026-07-28, "Streamable HTTP / Custom Headers from Tool Parameters"; "Tools /
Output Schema".

Internal.
""".

-export([new/0, learn/4, declarations/2, is_task/2, check_result/3]).

%% The most tools that are remembered, and their bytes in total. Other tools are called without
%% mirroring headers.
-define(TOOLS, 10_000).
-define(BYTES, 16_777_216).
%% The most tools of one list that the log names.
-define(WARNINGS, 10).

-doc "Creates an empty table, owned by the calling process.".
-spec new() -> ets:table().
new() ->
    Table = ets:new(tools, [public, {read_concurrency, true}]),
    %% The bytes of the tools, and how many were left out of the last list.
    true = ets:insert(Table, {totals, 0, 0}),
    Table.

-doc """
Remembers the tools of a page of a list, at most 10,000 and 16 MiB in total, and returns those that
can be called. If headers mirror arguments (`Mirrors`), tools with invalid declarations of headers
are left out. The first 10 of a list, which begins with its `first` page, are logged. Tools that do
not fit into the table are returned, too. Raises `badarg` once the client has ended.
""".
-spec learn(Tools :: [map()], Page :: first | next, Mirrors :: boolean(), ets:table()) -> [map()].
learn(Tools, Page, Mirrors, Table) ->
    Learned = [{Tool, learned(Tool, Mirrors, Table)} || Tool <- Tools],
    ok = warn(Page, [{Name, Expected} || {#{~"name" := Name}, {wrong, Expected}} <- Learned],
              Table),
    [Tool || {Tool, ok} <- Learned].

learned(#{~"name" := Name} = Tool, Mirrors, Table) ->
    case erlmcp_header:declared(maps:get(~"inputSchema", Tool, #{})) of
        {ok, Declared} -> remember({Name, Declared, output(Tool), is_task(Tool)}, Table);
        {error, _} when not Mirrors -> remember({Name, [], output(Tool), is_task(Tool)}, Table);
        {error, Expected} -> {wrong, Expected}
    end.

%% A server may have any number of such tools, and any number of pages. Lists that are read at the
%% same time are counted together, so the log names fewer of them.
warn(Page, Wrong, Table) ->
    _ = Page =:= first andalso ets:update_element(Table, totals, {3, 0}),
    Count = length(Wrong),
    Before = ets:update_counter(Table, totals, {3, Count}) - Count,
    Named = lists:sublist(Wrong, max(0, ?WARNINGS - Before)),
    lists:foreach(fun({Name, Expected}) ->
                      erlmcp_log:text(warning, "MCP tool ~ts is left out of its list: expected ~ts",
                                      [erlmcp_value_text:name(Name), Expected])
                  end, Named),
    case Count - length(Named) of
        More when More > 0, Before =< ?WARNINGS ->
            erlmcp_log:text(warning, "at least ~b more MCP tools are left out of their list",
                            [More]);
        _ ->
            ok
    end.

%% Several calls may do this at the same time, so only rows that were really removed and added are
%% counted.
remember(Tool, Table) ->
    Name = element(1, Tool),
    Size = erlang:external_size(Tool),
    Row = erlang:append_element(erlmcp_client_mailbox:own(Tool), Size),
    case ets:lookup(Table, Name) of
        [Row] ->
            ok;
        _ ->
            _ = [ets:update_counter(Table, totals, -Old)
                 || {_, _, _, _, Old} <- ets:take(Table, Name)],
            HasRoom = ets:info(Table, size) =< ?TOOLS
                andalso ets:lookup_element(Table, totals, 2) + Size =< ?BYTES,
            case HasRoom andalso ets:insert_new(Table, Row) of
                true ->
                    _ = ets:update_counter(Table, totals, Size),
                    ok;
                false ->
                    ok
            end
    end.

output(#{~"outputSchema" := Schema}) -> Schema;
output(_) -> none.

-doc """
Returns those arguments of a tool that headers mirror; `unknown` for a tool not in the table. Raises
`badarg` once the client has ended.
""".
-spec declarations(Name :: binary(), ets:table()) -> [erlmcp_header:declaration()] | unknown.
declarations(Name, Table) ->
    ets:lookup_element(Table, Name, 2, unknown).

is_task(#{~"execution" := #{~"taskSupport" := ~"required"}}) -> true;
is_task(_) -> false.

-doc """
Returns `true` if the table says that a tool must be called as a task, in a session of 2025-11-25.
Raises `badarg` once the client has ended.
""".
-spec is_task(Name :: binary(), ets:table()) -> boolean().
is_task(Name, Table) ->
    ets:lookup_element(Table, Name, 4, false).

-doc """
Checks that the structured content of a tool's result fits the tool's output schema. The error is a
sentence. Returns `ok` for an error of the tool (`isError`), and if the table has no valid output
schema of the tool. Raises `badarg` once the client has ended.
""".
-spec check_result(Name :: binary(), Result :: map(), ets:table()) -> ok | {error, binary()}.
check_result(_, #{~"isError" := true}, _) ->
    ok;
check_result(Name, Result, Table) ->
    case ets:lookup_element(Table, Name, 3, none) of
        none -> ok;
        Schema -> fits(Schema, Result)
    end.

fits(Schema, #{~"structuredContent" := Content}) ->
    %% A result is not checked against an invalid schema.
    case erlmcp_schema:compile(Schema, #{check => false}) of
        {ok, Compiled} ->
            case erlmcp_schema:validate(Content, Compiled) of
                ok -> ok;
                {error, Found} ->
                    {error, iolist_to_binary([~"structuredContent: ",
                                              lists:join($\s, erlmcp_schema:explain(Found))])}
            end;
        {error, _} ->
            ok
    end;
fits(_, _) ->
    {error, ~"structuredContent: expected the content of the tool's output schema, got none"}.
