-module(erlmcp_client_tools).
-moduledoc """
What a client has to know of its server's tools to call them: which arguments go into headers too,
and what their structured results must fit. Learned from the lists as they come.

Sources: specification 2026-07-28, "Streamable HTTP / Custom Headers from Tool Parameters"; "Tools /
Output Schema".

Internal.
""".

-export([new/0, learn/3, declarations/2, is_task/2, check_result/3]).

%% Tools that are remembered, and bytes of what is known of them; those beyond are called without
%% their headers.
-define(TOOLS, 10_000).
-define(BYTES, 16_777_216).

-doc "A table of the calling process, which knows no tool.".
-spec new() -> ets:table().
new() ->
    Table = ets:new(tools, [public, {read_concurrency, true}]),
    true = ets:insert(Table, {bytes, 0}),
    Table.

-doc """
Learns the tools of a list. Where arguments go into headers, tools whose definition is invalid are
left out: their names are logged, and the others stay usable.
""".
-spec learn([map()], Mirrors :: boolean(), ets:table()) -> [map()].
learn(Tools, Mirrors, Table) ->
    lists:filter(fun(Tool) -> is_learned(Tool, Mirrors, Table) end, Tools).

is_learned(#{~"name" := Name} = Tool, Mirrors, Table) ->
    case erlmcp_header:declared(maps:get(~"inputSchema", Tool, #{})) of
        {ok, Declared} ->
            ok = remember({Name, Declared, output(Tool), is_task(Tool)}, Table),
            true;
        {error, _} when not Mirrors ->
            ok = remember({Name, [], output(Tool), is_task(Tool)}, Table),
            true;
        {error, Expected} ->
            ok = erlmcp_log:text(warning, "MCP tool ~ts is left out of its list: expected ~ts",
                                 [string:slice(Name, 0, 128), Expected]),
            false
    end.

%% Calls learn at once: what is counted is what was taken out and put in.
remember(Known, Table) ->
    Name = element(1, Known),
    Size = erlang:external_size(Known),
    Row = erlang:append_element(erlmcp_client_mailbox:own(Known), Size),
    case ets:lookup(Table, Name) of
        [Row] ->
            ok;
        _ ->
            _ = [ets:update_counter(Table, bytes, -Old)
                 || {_, _, _, _, Old} <- ets:take(Table, Name)],
            HasRoom = ets:info(Table, size) =< ?TOOLS
                andalso ets:lookup_element(Table, bytes, 2) + Size =< ?BYTES,
            case HasRoom andalso ets:insert_new(Table, Row) of
                true ->
                    _ = ets:update_counter(Table, bytes, Size),
                    ok;
                false ->
                    ok
            end
    end.

output(#{~"outputSchema" := Schema}) -> Schema;
output(_) -> none.

-doc "The arguments of a tool that go into headers too; `unknown` if no list had the tool.".
-spec declarations(Name :: binary(), ets:table()) -> [erlmcp_header:declaration()] | unknown.
declarations(Name, Table) ->
    ets:lookup_element(Table, Name, 2, unknown).

is_task(#{~"execution" := #{~"taskSupport" := ~"required"}}) -> true;
is_task(_) -> false.

-doc "Whether a tool of a session is to be called as a task, as far as is known.".
-spec is_task(Name :: binary(), ets:table()) -> boolean().
is_task(Name, Table) ->
    ets:lookup_element(Table, Name, 4, false).

-doc "Whether a tool's result has the structured content that its output schema promises.".
-spec check_result(Name :: binary(), Result :: map(), ets:table()) -> ok | {error, binary()}.
check_result(_, #{~"isError" := true}, _) ->
    ok;
check_result(Name, Result, Table) ->
    case ets:lookup_element(Table, Name, 3, none) of
        none -> ok;
        Schema -> fits(Schema, Result)
    end.

fits(Schema, #{~"structuredContent" := Content}) ->
    %% What is no schema promises nothing.
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
    {error, ~"structuredContent: expected what the tool's output schema says, got none"}.
