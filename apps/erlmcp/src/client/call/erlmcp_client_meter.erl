-module(erlmcp_client_meter).
-moduledoc """
The meter of all clients of the node. It counts each request once, when it ends: with its response,
without one, or before it was sent. It counts without a process, a lock or a table, except that the
first use of a name writes a row.

Clients come and go, and a pool has many for one server. So requests are counted by the server that
they are for, and by the revision that they speak. At most 20 servers and 200 names of tools and
prompts have figures of their own. All others have theirs together. A server without clients gives
its place to another one that needs it.

Internal.
""".

-include("../../observe/erlmcp_meter.hrl").

-export([open/0, address/1, server/1, take/2]).
-export([ended/4, unsent/4, session_opened/1, session_ended/2]).
-export([servers/0, requests/0, failures/0, sessions/0]).

-export_type([server/0, address/0, requests/0, kind/0, name/0]).

-doc "A server with figures of its own, or 0 for all others.".
-type server() :: 0..20.
-doc "The address of a server, as figures show it.".
-type address() :: #{
    server := binary(), port := inet:port_number() | none, network := tcp | pipe
}.
-doc "Requests that are counted together: those for the same tool or prompt, or for none.".
-type requests() :: {kind(), Method :: binary(), name()}.
-doc "A server, and the revision, which is `none` before the first negotiation.".
-type kind() :: {server(), erlmcp_revision:revision() | none}.
-type name() :: binary() | other | none.

-define(SERVERS, 20).
-define(NAMES, 200).
%% The index of all names without an index of their own, and of longer ones.
-define(OTHER_NAME, 255).
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

%% The code with which a server answers a request for a name that it does not have.
-define(WRONG, {rpc, -32602}).
%% The reasons of failures by their indices, in the order of `erlmcp_client:reason/0`. A reason of
%% another name counts as the last one.
-define(REASONS, [tool_error, cancelled, rpc, connect, closed, http, session_lost, redirect,
                  unauthorized, protocol, timeout, too_large, overload, unsupported_version,
                  unavailable, stopped, crashed, other]).

-doc "Creates the meter, whose table belongs to the calling process.".
-spec open() -> ok.
open() ->
    _ = ets:new(?MODULE, [named_table, public, {read_concurrency, true}]),
    true = ets:insert(?MODULE, {names, 0}),
    persistent_term:put(?MODULE, {counters:new(?WORDS, []), erlmcp_meter_counts:slots(?SLOTS),
                                  erlmcp_meter_counts:slots(?SLOTS)}).

-doc """
Returns the server of clients with a target that was checked; 0 if it has no figures of its own.
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
Returns the server at an address, for a new client. A server without a place takes a free one, or
that of a server which is not `Busy`. Only one process may call this at a time.
""".
-spec take(address(), Busy :: [server()]) -> server().
take(Address, Busy) ->
    Servers = servers(),
    All = lists:seq(1, ?SERVERS),
    case {server(Address, Servers), All -- maps:keys(Servers), All -- Busy} of
        {0, [Free | _], _} -> placed(Address, Free);
        {0, [], [Idle | _]} ->
            ok = retire(Idle),
            placed(Address, Idle);
        {Server, _, _} -> Server
    end.

placed(Address, Server) ->
    true = ets:insert(?MODULE, {{server, Server}, Address}),
    Server.

%% The counts of a server that gives its place to another one go to those of all others. Its slots
%% stay: their keys have the place, and so belong to the other one then.
retire(Server) ->
    true = ets:delete(?MODULE, {server, Server}),
    {Counters, Rows, Failures} = persistent_term:get(?MODULE),
    First = Server * ?REVISIONS,
    Is = fun(Kind) -> Kind >= First andalso Kind < First + ?REVISIONS end,
    lists:foreach(fun({Slot, Key}) ->
        Is(Key bsr 16) andalso move(?ROW(Slot), row(of_others(Key, 16, First), Rows), ?ROW_WORDS,
                                    Counters)
    end, erlmcp_meter_counts:taken(Rows)),
    lists:foreach(fun({Slot, Key}) ->
        Is(Key bsr 28) andalso move(?FAILURE(Slot), failure(of_others(Key, 28, First), Failures),
                                    ?FAILURE_WORDS, Counters)
    end, erlmcp_meter_counts:taken(Failures)),
    lists:foreach(fun(Revision) ->
        move(?SESSION(First + Revision), ?SESSION(Revision), ?SESSION_WORDS, Counters)
    end, lists:seq(0, ?REVISIONS - 1)).

of_others(Key, Bits, First) ->
    Key - (First bsl Bits).

move(From, To, Words, Counters) ->
    lists:foreach(fun(Word) ->
        Count = counters:get(Counters, From + Word),
        ok = counters:sub(Counters, From + Word, Count),
        ok = counters:add(Counters, To + Word, Count)
    end, lists:seq(0, Words - 1)).

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
The bytes are those of the request, and those of the messages that came for it.
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
    case erlmcp_meter_counts:slot(Key, ?SLOTS, Failures) of
        full -> ?SHARED_FAILURE(reason_of(Key));
        Slot -> ?FAILURE(Slot)
    end.

-doc """
Counts a request that was not sent, for which the client has waited since `Began`, in monotonic
nanoseconds.
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
    try ets:lookup_element(?MODULE, {Method, Name}, 2, 0) of
        0 when Error =:= ?WRONG -> 0;
        0 -> add_name(Name, Method, is_text(Name));
        Index -> Index
    catch
        %% The table ends with the application, and the last calls after it.
        error:badarg -> 0
    end.

add_name(Name, Method, true) ->
    case ets:lookup_element(?MODULE, names, 2) of
        Count when Count >= ?NAMES ->
            ?OTHER_NAME;
        _ ->
            Index = ets:update_counter(?MODULE, names, {2, 1, ?NAMES, ?OTHER_NAME}),
            %% The name outlives the message that it may be a part of.
            _ = Index =< ?NAMES andalso
                ets:insert_new(?MODULE, {{Method, binary:copy(Name)}, Index}),
            ets:lookup_element(?MODULE, {Method, Name}, 2, ?OTHER_NAME)
    end;
add_name(_, _, false) ->
    ?OTHER_NAME.

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

-doc "Counts a session that ends, which was opened at `Opened`, in nanoseconds.".
-spec session_ended(kind(), Opened :: integer()) -> ok.
session_ended(Kind, Opened) ->
    {Counters, _, _} = persistent_term:get(?MODULE),
    Duration = erlang:monotonic_time(nanosecond) - Opened,
    erlmcp_meter_counts:add_duration(?SESSION(kind(Kind)) + 1, Duration, Counters).

-doc "Returns the servers with figures of their own.".
-spec servers() -> #{server() => address()}.
servers() ->
    maps:from_list(ets:select(?MODULE, [{{{server, '$1'}, '$2'}, [], [{{'$1', '$2'}}]}])).

-doc """
Returns what was counted of requests. Requests that have found no slot are of no known server.
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
Returns the failures of requests. Failures that have found no slot count as those of requests to no
known server, of a method that is not MCP's.
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
    {kind_of(Key bsr 16), Method, maps:get((Key bsr 8) band 255, Names, other)}.

kind_of(Kind) ->
    {Kind div ?REVISIONS, case Kind rem ?REVISIONS of
                              0 -> none;
                              Index -> lists:nth(Index, erlmcp_revision:all())
                          end}.

names() ->
    Names = ets:select(?MODULE, [{{{'$1', '$2'}, '$3'}, [{is_binary, '$1'}], [{{'$3', '$2'}}]}]),
    (maps:from_list(Names))#{0 => none}.

-doc "Returns how many sessions were opened, and the durations of those that have ended.".
-spec sessions() -> [{kind(), Opened :: pos_integer(), erlmcp_meter_counts:times()}].
sessions() ->
    {Counters, _, _} = persistent_term:get(?MODULE),
    [{kind_of(Kind), Opened, Times}
     || Kind <- lists:seq(0, (?SERVERS + 1) * ?REVISIONS - 1),
        %% Ends are read first, so that none is read without its beginning.
        Times <- [erlmcp_meter_counts:failure(?SESSION(Kind) + 1, Counters)],
        Opened <- [counters:get(Counters, ?SESSION(Kind))], Opened > 0].
