-module(erlmcp_console_places).
-moduledoc """
Finds where a node's memory and its number of processes grow: in which table, and in the processes
of which function. Compares the last two looks at all tables and at 100,000 processes at most.
""".

-export([open/0, look/0, found/0]).

-export_type([places/0]).

-doc """
The places where memory and processes have grown most, in words. The map lacks what has not grown.
""".
-type places() :: #{memory | processes => binary()}.
%% Bytes and entries of each table, and what the processes of each function have.
-type seen() :: #{
    tables := #{ets:table() => {Bytes :: integer(), Entries :: integer()}},
    origins := #{mfa() => {Processes :: integer(), Bytes :: integer(), Binaries :: integer()}},
    binaries := integer()
}.

-define(PAUSE_MS, 4_500).
%% Milliseconds for which a finding is true.
-define(LASTS_MS, 30_000).
%% Processes of a look.
-define(PROCESSES, 100_000).

-doc "Creates the table of what was seen, owned by the calling process.".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, public]),
    ok.

-doc """
Starts a look at the node's tables and processes, in a process of its own, and does not wait for its
end. Does nothing if the look before this one still runs, or began less than 4.5 seconds ago. Raises
`badarg` once the owner of the table (`open/0`) has ended.
""".
-spec look() -> ok.
look() ->
    Now = erlmcp_clock:now_ms(),
    case ets:lookup(?MODULE, looks) of
        [{looks, Pid, At}] ->
            case Now - At < ?PAUSE_MS orelse is_process_alive(Pid) of
                true -> ok;
                false -> start(Now)
            end;
        [] ->
            start(Now)
    end.

start(Now) ->
    Pid = spawn_opt(fun() -> looked(Now) end, [{priority, low}]),
    true = ets:insert(?MODULE, {looks, Pid, Now}),
    ok.

looked(Now) ->
    Seen = seen(),
    _ = [ets:insert(?MODULE, {found, Now, compared(Before, Seen)})
         || {seen, At, Before} <- ets:lookup(?MODULE, seen), Now - At < ?LASTS_MS],
    ets:insert(?MODULE, {seen, Now, Seen}).

-doc """
Returns where memory and processes have grown between the last two looks (`look/0`). The map is
empty if the two looks are 30 seconds or more apart, or if the last one began 30 seconds ago or
earlier. Raises `badarg` once the owner of the table (`open/0`) has ended.
""".
-spec found() -> places().
found() ->
    Now = erlmcp_clock:now_ms(),
    case ets:lookup(?MODULE, found) of
        [{found, At, Places}] when Now - At < ?LASTS_MS -> Places;
        _ -> #{}
    end.

-spec seen() -> seen().
seen() ->
    Word = erlang:system_info(wordsize),
    #{tables => #{Table => {Word * Words, Entries}
                  || Table <- ets:all(), Words <- [ets:info(Table, memory)],
                     Entries <- [ets:info(Table, size)], is_integer(Words), is_integer(Entries)},
      origins => lists:foldl(fun(Pid, Known) -> process(Pid, Word, Known) end, #{},
                             lists:sublist(processes(), ?PROCESSES)),
      binaries => erlang:memory(binary)}.

process(Pid, Word, Known) ->
    case process_info(Pid, [memory, garbage_collection_info]) of
        [{memory, Bytes}, {_, Collection}] ->
            Binaries = Word * lists:sum([Words || {Key, Words} <- Collection,
                                                  Key =:= bin_vheap_size
                                                      orelse Key =:= bin_old_vheap_size]),
            Origin = origin(Pid),
            {Count, Sum, All} = maps:get(Origin, Known, {0, 0, 0}),
            Known#{Origin => {Count + 1, Sum + Bytes, All + Binaries}};
        undefined ->
            Known
    end.

%% The function that a process began with. With a fun, that is the oldest function of its stack.
origin(Pid) ->
    case proc_lib:translate_initial_call(Pid) of
        {Module, _, _} when Module =:= erlang; Module =:= proc_lib -> oldest(Pid);
        Origin -> Origin
    end.

oldest(Pid) ->
    case process_info(Pid, current_stacktrace) of
        {_, [_ | _] = Stack} ->
            {Module, Function, Arity, _} = lists:last(Stack),
            {Module, Function, Arity};
        _ ->
            {erlang, apply, 2}
    end.

-spec compared(seen(), seen()) -> places().
compared(#{tables := TablesBefore, origins := OriginsBefore, binaries := BinariesBefore},
         #{tables := Tables, origins := Origins, binaries := Binaries}) ->
    OfTables = [{Table, Bytes - BytesBefore, Entries - EntriesBefore}
                || Table := {Bytes, Entries} <- Tables,
                   {BytesBefore, EntriesBefore} <- [maps:get(Table, TablesBefore, {0, 0})]],
    OfOrigins = [{Origin, Count - CountBefore, Bytes - BytesBefore, All - AllBefore}
                 || Origin := {Count, Bytes, All} <- Origins,
                    {CountBefore, BytesBefore, AllBefore} <-
                        [maps:get(Origin, OriginsBefore, {0, 0, 0})]],
    %% Binaries that no process holds are in tables.
    Held = Binaries - BinariesBefore - lists:sum([max(0, All) || {_, _, _, All} <- OfOrigins]),
    Memory = [{Bytes, {table, Table}} || {Table, Bytes, _} <- OfTables]
        ++ [{Bytes, {processes, Origin}} || {Origin, _, Bytes, _} <- OfOrigins]
        ++ [{All, {binaries, Origin}} || {Origin, _, _, All} <- OfOrigins]
        ++ [{Held, {entries, Table}}
            || {_, Table} <- most([{Entries, Table} || {Table, _, Entries} <- OfTables])],
    maps:merge(#{memory => words(Place) || {_, Place} <- most(Memory)},
               #{processes => called(Origin)
                 || {_, Origin} <- most([{Count, Origin} || {Origin, Count, _, _} <- OfOrigins])}).

%% The greatest growth, if anything grows.
most(Growths) ->
    [Most || [_ | _] <- [Growths], {Growth, _} = Most <- [lists:max(Growths)], Growth > 0].

words({table, Table}) -> text(["the table ", table(Table)]);
words({processes, Origin}) -> text(["the processes of ", called(Origin)]);
words({binaries, Origin}) -> text(["binaries that the processes of ", called(Origin), " hold"]);
words({entries, Table}) -> text(["binaries, perhaps those of the table ", table(Table)]).

table(Table) ->
    [io_lib:format("~tp", [ets:info(Table, name)]), owner(ets:info(Table, owner))].

owner(undefined) -> "";
owner(Pid) ->
    case process_info(Pid, registered_name) of
        {registered_name, Name} -> io_lib:format(" of ~tp", [Name]);
        [] -> [" of ", called(origin(Pid))];
        undefined -> ""
    end.

called({Module, Function, Arity}) ->
    text(io_lib:format("~tp:~tp/~b", [Module, Function, Arity])).

text(Words) -> unicode:characters_to_binary(string:slice(Words, 0, 200)).
