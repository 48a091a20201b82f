-module(erlmcp_client_meter).
-moduledoc """
The meter of all clients of the node. It counts each request once, when it ends: with its response,
without one, or before it was sent. Requests are counted by server, revision and method, and by the
names of tools and prompts. At most 20 servers and 200 names have figures of their own. Servers
without clients, and names that are not used, make room for others.

Internal.
""".

-include("../../observe/figures/erlmcp_meter.hrl").

-export([open/0, address/1, server/1, take/2, sweep/1]).
-export([ended/4, unsent/4, session_opened/1, session_ended/2]).
-export([steady/1, servers/0, requests/0, failures/0, sessions/0]).

-export_type([server/0, address/0, requests/0, kind/0, name/0, seen/0]).

-doc "The number of a server with figures of its own, or 0 for all other servers.".
-type server() :: 0..20.
-doc "The address of a server, as figures show it.".
-type address() :: #{
    server := binary(), port := inet:port_number() | none, network := tcp | pipe
}.
-doc """
Requests that are counted together: those of one kind and method, for the same tool or prompt, or
for none.
""".
-type requests() :: {kind(), Method :: binary(), name()}.
-doc """
A server, and the revision of the requests. The revision is `none` for calls that ended before one
was agreed on, or that the client or its pool refused.
""".
-type kind() :: {server(), erlmcp_revision:revision() | none}.
-doc """
The name of a tool or prompt. `other` are all names without figures of their own, and `removed` all
that have made room for others. Requests that have no such name have `none`, and so have those with
a new name that the server answers with -32602.
""".
-type name() :: binary() | other | removed | none.
-doc "The counts at a sweep: for each key of requests, a sum that rises with each request.".
-type seen() :: #{pos_integer() => non_neg_integer()}.

-define(SERVERS, 20).
-define(NAMES, 200).
%% The index of all names without an index of their own, and of longer ones.
-define(OTHER_NAME, 255).
%% The index of all names that have made room for others.
-define(REMOVED_NAME, 254).
-define(NAME_BYTES, 256).
%% The counters: rows and failures for those that find no slot, then the slots, then sessions.
-define(SLOTS, 512).
-define(SHARED(Method), (1 + (Method) * ?ROW_WORDS)).
-define(ROW(Slot), (?SHARED(?METHOD_COUNT) + (Slot) * ?ROW_WORDS)).
-define(ERRORS, 32).
-define(SHARED_FAILURE(Error), (?ROW(?SLOTS) + (Error) * ?FAILURE_WORDS)).
-define(FAILURE(Slot), (?SHARED_FAILURE(?ERRORS) + (Slot) * ?FAILURE_WORDS)).
%% Sessions of a server and a revision: those that were opened, and the durations of those that have
%% ended.
-define(SESSION_WORDS, (1 + ?FAILURE_WORDS)).
-define(REVISIONS, 6).
-define(SESSION(Kind), (?FAILURE(?SLOTS) + (Kind) * ?SESSION_WORDS)).
-define(WORDS, (?SESSION((?SERVERS + 1) * ?REVISIONS) - 1)).

%% The most slots of failures that the codes of one server take. A further code counts as one that
%% several share.
-define(CODES, (?SLOTS div 4)).
%% The code with which a server answers a request for a name that it does not have.
-define(WRONG, {rpc, -32602}).
%% The reasons of failures by their indices: `tool_error`, and names of `t:erlmcp_client:reason/0`.
%% A reason of another name counts as the last one.
-define(REASONS, [tool_error, cancelled, rpc, connect, closed, http, session_lost, redirect,
                  unauthorized, protocol, timeout, too_large, overload, unsupported_version,
                  unavailable, stopped, crashed, other]).

%% The slots of rows, or those of failures: how many bits of a key come after the key of its
%% requests, the first word of all counts, and the words of a slot.
-record(table, {slots :: erlmcp_meter_counts:slots(), bits :: 0 | 12, first :: pos_integer(),
                words :: pos_integer()}).

-doc "Creates the meter, whose table belongs to the calling process.".
-spec open() -> ok.
open() ->
    _ = ets:new(?MODULE, [named_table, public, {read_concurrency, true}]),
    true = ets:insert(?MODULE, {free_names, lists:seq(1, ?NAMES)}),
    persistent_term:put(?MODULE, {counters:new(?WORDS, []), erlmcp_meter_counts:slots(?SLOTS),
                                  erlmcp_meter_counts:slots(?SLOTS)}).

-doc """
Returns the number of the server of a checked target; 0 if the server has no figures of its own.
Raises `badarg` if the application does not run.
""".
-spec server(Target :: term()) -> server().
server(Target) ->
    server(address(Target), servers()).

server(Address, Servers) ->
    case [Server || Server := Is <- Servers, Is =:= Address] of
        [Server] -> Server;
        [] -> 0
    end.

-doc """
Returns the number of the server at an address, for a new client. A server without a place takes a
free place. If there is none, it takes the place of a server that is not in `Busy`, and the figures
of that server are deleted. If all places belong to servers in `Busy`, it gets none, and the
function returns 0. Only one process may call this function at a time.
""".
-spec take(address(), Busy :: [server()]) -> server().
take(Address, Busy) ->
    Servers = servers(),
    All = lists:seq(1, ?SERVERS),
    case {server(Address, Servers), All -- maps:keys(Servers), All -- Busy} of
        {0, [Free | _], _} -> placed(Address, Free);
        {0, [], [Idle | _]} ->
            moving(fun() ->
                ok = retire(Idle),
                placed(Address, Idle)
            end);
        {Server, _, _} -> Server
    end.

placed(Address, Server) ->
    true = ets:insert(?MODULE, {{server, Server}, Address}),
    Server.

%% The figures of a server that gives its place to another one end.
retire(Server) ->
    true = ets:delete(?MODULE, {server, Server}),
    First = Server * ?REVISIONS,
    Kinds = lists:seq(First, First + ?REVISIONS - 1),
    {Counters, _, _} = persistent_term:get(?MODULE),
    lists:foreach(fun({Requests, Slot, Table}) ->
        lists:member(Requests bsr 16, Kinds) andalso release(Slot, Table, none, Counters)
    end, taken()),
    lists:foreach(fun(Kind) -> take(?SESSION(Kind), ?SESSION_WORDS, none, Counters) end, Kinds).

%% The taken slots of rows and of failures, with the key of their requests.
taken() ->
    {_, Rows, Failures} = persistent_term:get(?MODULE),
    Tables = [#table{slots = Rows, bits = 0, first = ?ROW(0), words = ?ROW_WORDS},
              #table{slots = Failures, bits = 12, first = ?FAILURE(0), words = ?FAILURE_WORDS}],
    [{Key bsr Bits, {Slot, Key}, Table}
     || #table{slots = Slots, bits = Bits} = Table <- Tables,
        {Slot, Key} <- erlmcp_meter_counts:taken(Slots)].

at(Slot, #table{first = First, words = Words}) -> First + Slot * Words.

%% Releases a slot, whose counts go to those at `To`.
release({Slot, Key}, #table{slots = Slots, words = Words} = Table, To, Counters) ->
    true = erlmcp_meter_counts:close(Slot, Key, Slots),
    ok = take(at(Slot, Table), Words, To, Counters),
    erlmcp_meter_counts:release(Slot, Slots).

take(From, Words, To, Counters) ->
    lists:foreach(fun(Word) ->
        Count = counters:get(Counters, From + Word),
        ok = counters:sub(Counters, From + Word, Count),
        To =:= none orelse counters:add(Counters, To + Word, Count)
    end, lists:seq(0, Words - 1)).

-doc """
Makes room for new names, if most names or counters are taken. The counts of a name without a
request since the last sweep are added to those of `removed` (`t:name/0`). `Seen` is the result of
the last sweep, at first `#{}`. Only the process that calls `take/2` may call this function.
""".
-spec sweep(seen()) -> seen().
sweep(Seen) ->
    {Counters, _, _} = persistent_term:get(?MODULE),
    Taken = taken(),
    %% The first count of a row is its bytes, and that of a failure its nanoseconds.
    Now = maps:groups_from_list(fun({Requests, _, _}) -> Requests end,
                                fun({_, {Slot, _}, Table}) ->
                                    counters:get(Counters, at(Slot, Table))
                                end, Taken),
    Sums = #{Requests => lists:sum(Counts) || Requests := Counts <- Now},
    _ = is_crowded(Taken) andalso
        begin
            Unused = [Slot || {Requests, _, _} = Slot <- Taken, is_index(name_index(Requests)),
                              map_get(Requests, Sums) =:= maps:get(Requests, Seen, none)],
            _ = Unused =:= [] orelse moving(fun() -> remove(Unused, Counters) end),
            free_unused_names()
        end,
    Sums.

moving(Move) ->
    {_, Rows, _} = persistent_term:get(?MODULE),
    erlmcp_meter_counts:moving(Rows, Move).

%% Returns `true` long before keys find no free slot.
is_crowded(Taken) ->
    Rows = length([row || {_, _, #table{bits = 0}} <- Taken]),
    Free = length(ets:lookup_element(?MODULE, free_names, 2)),
    2 * max(Rows, length(Taken) - Rows) > ?SLOTS orelse 4 * Free < ?NAMES.

%% Prometheus adds up how much each series rises, so counts must not move from one series to
%% another. Removed names have no series. Without a slot for those, counts stay where they are.
remove(Unused, Counters) ->
    lists:foreach(fun({Requests, {_, Key} = Slot, #table{slots = Slots, bits = Bits} = Table}) ->
        Removed = Key + ((?REMOVED_NAME - name_index(Requests)) bsl (8 + Bits)),
        case erlmcp_meter_counts:slot(Removed, ?SLOTS, Slots) of
            full -> ok;
            To -> release(Slot, Table, at(To, Table), Counters)
        end
    end, Unused).

free_unused_names() ->
    Used = #{name_index(Requests) => used || {Requests, _, _} <- taken()},
    lists:foreach(fun({Method, Name, Index}) ->
        is_map_key(Index, Used) orelse
            begin
                true = ets:delete(?MODULE, {Method, Name}),
                free(Index)
            end
    end, named()).

-doc """
Returns the address of a target that was checked, the one in `t:erlmcp_client_options:settings/0`.
""".
-spec address(Target :: term()) -> address().
address(Target) ->
    of_label(erlmcp_client_options:label(Target)).

of_label([stdio, Program]) -> #{server => text(Program), port => none, network => pipe};
of_label([memory, Server]) -> #{server => text(Server), port => none, network => pipe};
of_label([_, {Host, Port}]) -> #{server => text(Host), port => Port, network => tcp};
of_label(_) -> #{server => ~"unknown", port => none, network => tcp}.

%% A server of this node may have any term for its id, and a host may be an address.
text(Text) when is_binary(Text) ->
    erlmcp_printable:part(Text, 100);
text(Name) when is_atom(Name) ->
    text(atom_to_binary(Name));
text(Text) when is_list(Text) ->
    text(unicode:characters_to_binary(Text));
text(Address) when is_tuple(Address) ->
    case inet:ntoa(Address) of
        {error, einval} -> ~"local";
        Text -> list_to_binary(Text)
    end;
text(_) ->
    ~"local".

-doc """
Counts a request that has ended with an outcome. `Began` is in nanoseconds of the monotonic clock.
`Sent` are the bytes of the request, and `Received` those of the messages that came for it.
""".
-spec ended({Method :: binary(), Params :: map()}, kind(),
            {Began :: integer(), Sent :: non_neg_integer(), Received :: non_neg_integer()},
            erlmcp_client_exchange:outcome()
            | {error, erlmcp_client:reason() | erlmcp_channel:reason()}) -> ok.
ended({Method, Params}, Kind, {Began, Sent, Received}, Outcome) ->
    Took = erlang:monotonic_time(nanosecond) - Began,
    {Counters, Rows, Failures} = persistent_term:get(?MODULE),
    Error = error_of(Outcome),
    Index = erlmcp_meter_counts:method(Method),
    Key = key(Kind, Index, name(target(Method, Params), Method, Error)),
    Row = row(Key, Rows),
    case Error of
        none ->
            erlmcp_meter:add_result(Row, Received, Sent, Took, Counters);
        {Reason, Code} ->
            At = failure(failure_key(Key, reason(Reason, ?REASONS, 0), code(Code)), Failures),
            erlmcp_meter_counts:add_failure(At, Row, {Received, Sent}, Took, Counters)
    end.

row(Key, Rows) ->
    case erlmcp_meter_counts:slot(Key, ?SLOTS, Rows) of
        full -> ?SHARED(method(Key));
        Slot -> ?ROW(Slot)
    end.

failure(Key, Failures) ->
    case erlmcp_meter_counts:slot(with_code(Key, Failures), ?SLOTS, Failures) of
        full -> ?SHARED_FAILURE(reason_of(Key));
        Slot -> ?FAILURE(Slot)
    end.

%% A server may answer with any number of codes, of which one server alone takes a quarter of the
%% slots at most.
with_code(Key, Failures) ->
    case not has_code(Key) orelse erlmcp_meter_counts:has_slot(Key, ?SLOTS, Failures)
        orelse length([Other || {_, Other} <- erlmcp_meter_counts:taken(Failures),
                                has_code(Other), server_of(Other) =:= server_of(Key)]) < ?CODES of
        true -> Key;
        false -> Key bor ?OTHER_CODE
    end.

has_code(FailureKey) ->
    not lists:member(FailureKey band 127, [0, ?OTHER_CODE]).

server_of(FailureKey) -> (FailureKey bsr 28) div ?REVISIONS.

-doc """
Counts a request without its bytes, as failed with `Reason`: it was not sent, or its process was
killed or ended. The client has waited for it since `Began`, in monotonic nanoseconds.
""".
-spec unsent({Method :: binary(), Params :: map()}, kind(), Began :: integer(),
             erlmcp_client:reason()) -> ok.
unsent(Request, Kind, Began, Reason) ->
    ended(Request, Kind, {Began, 0, 0}, {error, Reason}).

%% The error of a request: its reason, and the JSON-RPC code of its answer.
error_of({ok, #{~"isError" := true}, _}) -> {tool_error, none};
error_of({ok, _, _}) -> none;
error_of({error, {rpc, #{code := Code}}}) -> {rpc, Code};
error_of({error, Reason}) when is_atom(Reason) -> {Reason, none};
error_of({error, Reason}) -> {element(1, Reason), none}.

reason(Reason, [Reason | _], Index) -> Index;
reason(_, [_], Index) -> Index;
reason(Reason, [_ | Others], Index) -> reason(Reason, Others, Index + 1).

target(~"tools/call", #{~"name" := Name}) when is_binary(Name) -> Name;
target(~"prompts/get", #{~"name" := Name}) when is_binary(Name) -> Name;
target(_, _) -> none.

%% A name that the server does not have gets no index, since callers may make up any number of them.
name(none, _, _) ->
    0;
name(Name, _, _) when byte_size(Name) > ?NAME_BYTES ->
    ?OTHER_NAME;
name(Name, Method, Error) ->
    try
        case ets:lookup_element(?MODULE, {Method, Name}, 2, 0) of
            0 when Error =:= ?WRONG -> 0;
            0 -> add_name(Name, Method, is_text(Name));
            Index -> Index
        end
    catch
        %% The table ends with the application, and the last calls after it.
        error:badarg -> 0
    end.

add_name(Name, Method, true) ->
    case ets:lookup_element(?MODULE, free_names, 2) of
        [] ->
            ?OTHER_NAME;
        [Index | Free] = Known ->
            %% The name outlives the message that it may be a part of.
            _ = replaced(Known, Free) andalso
                (ets:insert_new(?MODULE, {{Method, binary:copy(Name)}, Index}) orelse free(Index)),
            name(Name, Method, none)
    end;
add_name(_, _, false) ->
    ?OTHER_NAME.

free(Index) ->
    Known = ets:lookup_element(?MODULE, free_names, 2),
    replaced(Known, [Index | Known]) orelse free(Index).

%% Replaces the free indices of names, unless another process has done so.
replaced(Known, Free) ->
    ets:select_replace(?MODULE, [{{free_names, Known}, [], [{{free_names, {const, Free}}}]}]) =:= 1.

is_index(Index) -> Index >= 1 andalso Index =< ?NAMES.

name_index(Key) -> (Key bsr 8) band 255.

is_text(Name) ->
    unicode:characters_to_binary(Name) =:= Name.

%% No key is 0, which is a free slot.
key(Kind, Method, Name) ->
    (((kind(Kind) bsl 8) bor Name) bsl 8) bor (Method + 1).

method(Key) -> (Key band 255) - 1.

reason_of(FailureKey) -> (FailureKey bsr 7) band 31.

kind({Server, Revision}) ->
    Server * ?REVISIONS + revision(Revision).

revision(none) -> 0;
revision(Revision) -> index(Revision, erlmcp_revision:all(), 1).

index(Revision, [Revision | _], Index) -> Index;
index(Revision, [_ | Others], Index) -> index(Revision, Others, Index + 1).

failure_key(Key, Reason, Code) ->
    (((Key bsl 5) bor Reason) bsl 7) bor Code.

code(none) -> 0;
code(Code) -> erlmcp_meter_counts:code_index(Code).

-doc "Counts a session that opens.".
-spec session_opened(kind()) -> ok.
session_opened(Kind) ->
    {Counters, _, _} = persistent_term:get(?MODULE),
    counters:add(Counters, ?SESSION(kind(Kind)), 1).

-doc "Counts a session that ends, which was opened at `Opened`, in monotonic nanoseconds.".
-spec session_ended(kind(), Opened :: integer()) -> ok.
session_ended(Kind, Opened) ->
    {Counters, _, _} = persistent_term:get(?MODULE),
    Duration = erlang:monotonic_time(nanosecond) - Opened,
    erlmcp_meter_counts:add_duration(?SESSION(kind(Kind)) + 1, Duration, Counters).

-doc """
Returns the value of `Read`, a fun that reads counts. If counts were moved meanwhile, `Read` is
called again. The tenth value is returned in any case.
""".
-spec steady(Read :: fun(() -> Result)) -> Result.
steady(Read) ->
    {_, Rows, _} = persistent_term:get(?MODULE),
    erlmcp_meter_counts:steady(Rows, Read).

-doc """
Returns the servers with figures of their own. Raises `badarg` if the application does not run.
""".
-spec servers() -> #{server() => address()}.
servers() ->
    maps:from_list(ets:select(?MODULE, [{{{server, '$1'}, '$2'}, [], [{{'$1', '$2'}}]}])).

-doc """
Returns the counts of requests. Requests that have found no free row count as those of the server 0,
with the revision `none` and, of tools and prompts, the name `other`. Raises `badarg` if the
application does not run.
""".
-spec requests() -> [{requests(), erlmcp_meter_counts:figures()}].
requests() ->
    {Counters, Rows, _} = persistent_term:get(?MODULE),
    Names = names(),
    All = [{?ROW(Slot), Key} || {Slot, Key} <- erlmcp_meter_counts:taken(Rows)]
        ++ [{?SHARED(Method), key({0, none}, Method, shared(Name))}
            || {Name, Method} <- erlmcp_meter_counts:methods()],
    [{requests(Key, Names), erlmcp_meter_counts:row(Row, Counters)}
     || {Row, Key} <- All, not erlmcp_meter_counts:is_empty(Row, Counters)].

shared(~"tools/call") -> ?OTHER_NAME;
shared(~"prompts/get") -> ?OTHER_NAME;
shared(_) -> 0.

-doc """
Returns the times of the failed requests, by `t:requests/0`, error and JSON-RPC code. The code is
`none` if a failure has none. Failures that found no free slot are counted under the server 0 and
the method `_OTHER`, without a revision and a code. Raises `badarg` if the application does not run.
""".
-spec failures() ->
    [{requests(), Error :: atom(), Code :: integer() | other | none, erlmcp_meter_counts:times()}].
failures() ->
    {Counters, _, Failures} = persistent_term:get(?MODULE),
    Names = names(),
    All = [{?FAILURE(Slot), Key} || {Slot, Key} <- erlmcp_meter_counts:taken(Failures)]
        ++ [{?SHARED_FAILURE(Reason),
             failure_key(key({0, none}, ?OTHER_METHOD, 0), Reason, 0)}
            || Reason <- lists:seq(0, length(?REASONS) - 1)],
    [{requests(Key bsr 12, Names), lists:nth(1 + reason_of(Key), ?REASONS),
      erlmcp_meter_counts:code(Key band 127), Times}
     || {At, Key} <- All,
        {_, Counts} = Times <- [erlmcp_meter_counts:failure(At, Counters)],
        lists:any(fun(Count) -> Count > 0 end, Counts)].

requests(Key, Names) ->
    {Method, _} = lists:keyfind(method(Key), 2, erlmcp_meter_counts:methods()),
    {kind_of(Key bsr 16), Method, maps:get(name_index(Key), Names, other)}.

kind_of(Kind) ->
    {Kind div ?REVISIONS, case Kind rem ?REVISIONS of
                              0 -> none;
                              Index -> lists:nth(Index, erlmcp_revision:all())
                          end}.

names() ->
    Names = #{Index => Name || {_, Name, Index} <- named()},
    Names#{0 => none, ?REMOVED_NAME => removed}.

%% The names with an index of their own, by methods.
named() ->
    ets:select(?MODULE, [{{{'$1', '$2'}, '$3'}, [{is_binary, '$1'}], [{{'$1', '$2', '$3'}}]}]).

-doc """
Returns the kinds that have had sessions: how many were opened, and the durations of those that have
ended.
""".
-spec sessions() -> [{kind(), Opened :: pos_integer(), erlmcp_meter_counts:times()}].
sessions() ->
    {Counters, _, _} = persistent_term:get(?MODULE),
    [{kind_of(Kind), Opened, Times}
     || Kind <- lists:seq(0, (?SERVERS + 1) * ?REVISIONS - 1),
        %% Ends are read first, so that none is read without its beginning.
        Times <- [erlmcp_meter_counts:failure(?SESSION(Kind) + 1, Counters)],
        Opened <- [counters:get(Counters, ?SESSION(Kind))], Opened > 0].
