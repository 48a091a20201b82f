-module(erlmcp_chaos_disk).
-moduledoc """
Uses a disk in the node of the server under test: the tool `keep` writes to a token store, and a log
handler writes to a file.
""".

-export([start/1, kept/0, check/0, keep/2]).

-define(HANDLER, ?MODULE).

%% Indexes of the counters.
-define(TRIED, 1).
-define(KEPT, 2).

-doc """
Stores a value, which `check/0` reads. Then adds a log handler to this node, and the tool `keep` to
the node's server. Both have their files in `Folder`. Finally writes a line to the log. The error is
that of the first step that failed.
""".
-spec start(Folder :: string()) -> ok | {error, term()}.
start(Folder) ->
    File = filename:join(Folder, "log"),
    maybe
        {ok, Store} ?= erlmcp_token_store_file:open(#{folder => filename:join(Folder, "store")}),
        ok ?= erlmcp_token_store_file:put(before, #{~"kept" => ~"before"}, Store),
        ok ?= logger:add_handler(?HANDLER, logger_std_h, #{config => #{file => File}}),
        ok = persistent_term:put(?MODULE, {Store, File, atomics:new(2, [])}),
        ok ?= erlmcp:add(erlmcp_bench_host:server(), tool,
                         #{name => ~"keep", description => ~"Keeps what it counts on a disk",
                           handler => fun ?MODULE:keep/2}),
        written(~"before", File)
    end.

-doc """
Handles a call of the tool `keep`: writes a value to the store, reads it, and deletes it. Fails if
one of these fails.
""".
-spec keep(map(), map()) -> binary().
keep(_, _) ->
    {Store, _, Counters} = persistent_term:get(?MODULE),
    Number = atomics:add_get(Counters, ?TRIED, 1),
    Key = {key, Number},
    Value = #{~"number" => Number, ~"filler" => binary:copy(~"x", 1_000)},
    ok = erlmcp_token_store_file:put(Key, Value, Store),
    {ok, Value} = erlmcp_token_store_file:get(Key, Store),
    ok = erlmcp_token_store_file:delete(Key, Store),
    ok = atomics:add(Counters, ?KEPT, 1),
    ~"kept".

-doc "Returns how many calls of the tool `keep` have succeeded.".
-spec kept() -> non_neg_integer().
kept() ->
    {_, _, Counters} = persistent_term:get(?MODULE),
    atomics:get(Counters, ?KEPT).

-doc """
Checks that the value of `start/1` is still stored, and that a new line of the log comes into its
file. Returns an error if the value or the line is missing.
""".
-spec check() -> ok | {error, term()}.
check() ->
    {Store, File, _} = persistent_term:get(?MODULE),
    maybe
        {ok, #{~"kept" := ~"before"}} ?= erlmcp_token_store_file:get(before, Store),
        written(~"after", File)
    else
        {error, Reason} -> {error, Reason};
        Other -> {error, {not_kept, Other}}
    end.

%% The process of the log handler may have restarted meanwhile.
written(Mark, File) ->
    Line = <<"erlmcp_chaos_disk writes ", Mark/binary>>,
    logger:error("~ts", [Line]),
    ok = logger_std_h:filesync(?HANDLER),
    {ok, Log} = file:read_file(File),
    case binary:match(Log, Line) of
        nomatch -> {error, {not_logged, Mark}};
        _ -> ok
    end.
