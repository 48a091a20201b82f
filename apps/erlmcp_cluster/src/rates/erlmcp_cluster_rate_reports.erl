-module(erlmcp_cluster_rate_reports).
-moduledoc """
The reports with which the nodes of a cluster tell each other of messages that count in the rates of
their clients. A report has a number, and the messages of each account since the report before it.
When all nodes have heard of a report, it is done. Pure; times are milliseconds of any clock.

Internal.
""".

-export([new/0, is_empty/1, add/3, report/4, owe/2, heard/3, heard_by/3, leave/2, give_up/2,
         expire/2]).

-export_type([reports/0, name/0, report/0, done/0]).

-doc "A server, and a client of it.".
-type name() :: {Server :: term(), Client :: term()}.
-type account() :: erlmcp_server_cluster:account().
-type peer() :: term().
-doc """
A report to another node. `Number` is `none` if the report only says what was heard. `Heard` is the
number of the last report that was heard from that node. It is 0 if there was none, or if another
report to that node follows at once. `Count` is less than 0 if messages that were reported before
have been taken back.
""".
-type report() ::
    {Number :: pos_integer() | none, Heard :: non_neg_integer(), [{name(), Count :: integer()}]}.
-doc """
Messages of an account in a report that is done. `Nodes` is the number of nodes when the report was
made, or 1 if the report was given up.
""".
-type done() :: {account(), Count :: integer(), Nodes :: pos_integer()}.

-record(open, {
    number :: pos_integer(),
    at :: integer(),
    %% those that have not heard of it
    peers :: [peer()],
    counts :: [{name(), account(), Count :: integer()}],
    nodes :: pos_integer()
}).

-record(reports, {
    number = 0 :: non_neg_integer(),
    %% with the messages that are in open reports
    accounts = #{} :: #{name() => {account(), Reported :: integer()}},
    open = [] :: [#open{}],
    heard = #{} :: #{peer() => pos_integer()},
    %% those that have to be told what was heard
    owed = #{} :: #{peer() => []}
}).
-opaque reports() :: #reports{}.

%% Accounts in one report.
-define(MOST, 1_000).

-doc "Returns reports of no account.".
-spec new() -> reports().
new() ->
    #reports{}.

-doc "Returns `true` if there is nothing to report, and no report of messages waits for a node.".
-spec is_empty(reports()) -> boolean().
is_empty(#reports{accounts = Accounts, owed = Owed}) ->
    map_size(Accounts) =:= 0 andalso map_size(Owed) =:= 0.

-doc """
Adds an account that has messages to report, in place of an earlier account with the same name.
""".
-spec add(name(), account(), reports()) -> reports().
add(Name, Account, #reports{accounts = Accounts} = Reports) ->
    case Accounts of
        #{Name := {Account, _}} -> Reports;
        #{} -> Reports#reports{accounts = Accounts#{Name => {Account, 0}}}
    end.

-doc """
Returns the reports that are due at `Now`, each with its peer. Without peers these reports are done
at once, and the second list has their messages. `Unheard` returns how many messages of an account
are in no report that is done, and `Nodes` is the number of nodes. A peer that only has to be told
what was heard gets a report without messages.
""".
-spec report(Unheard :: fun((account()) -> integer()), [peer()],
             {Nodes :: pos_integer(), Now :: integer()}, reports()) ->
    {[{peer(), report()}], [done()], reports()}.
report(Unheard, Peers, Of, #reports{accounts = Accounts, heard = Heard, owed = Owed} = Before) ->
    Read = [{Name, Account, Reported, Unheard(Account)}
            || Name := {Account, Reported} <- Accounts],
    Kept = #{Name => {Account, Count}
             || {Name, Account, Reported, Count} <- Read, Reported =/= 0 orelse Count =/= 0},
    Fresh = [{Name, Account, Count - Reported}
             || {Name, Account, Reported, Count} <- Read, Count =/= Reported],
    {Opened, #reports{number = Last} = Reports} =
        open(Fresh, Peers, Of, Before#reports{accounts = Kept, owed = #{}}),
    Told = case Opened of
        [] -> [];
        _ -> Peers
    end,
    HeardOf = fun
        (Peer, Number) when Number =:= Last -> maps:get(Peer, Heard, 0);
        (_, _) -> 0
    end,
    Messages = [{Peer, {Number, HeardOf(Peer, Number), [{Name, Count}
                                                        || {Name, _, Count} <- Counts]}}
                || #open{number = Number, counts = Counts} <- Opened, Peer <- Told]
        ++ [{Peer, {none, map_get(Peer, Heard), []}} || Peer := _ <- maps:without(Told, Owed)],
    {Done, Next} = settle(Reports),
    {Messages, Done, Next}.

open([], _, _, Reports) ->
    {[], Reports};
open(Fresh, Peers, {Nodes, Now} = Of, #reports{number = Last, open = Open} = Reports) ->
    {Counts, Rest} = lists:split(min(?MOST, length(Fresh)), Fresh),
    Report = #open{number = Last + 1, at = Now, peers = Peers, counts = Counts, nodes = Nodes},
    {Opened, Next} = open(Rest, Peers, Of, Reports#reports{number = Last + 1,
                                                           open = [Report | Open]}),
    {[Report | Opened], Next}.

-doc """
Lets the next report to a peer say which reports were heard from that peer. Call this function if a
report to the peer was not sent.
""".
-spec owe(peer(), reports()) -> reports().
owe(Peer, #reports{heard = Heard, owed = Owed} = Reports) when is_map_key(Peer, Heard) ->
    Reports#reports{owed = Owed#{Peer => []}};
owe(_, Reports) ->
    Reports.

-doc "Records that this node has heard of a peer's report. The next report to that peer says so.".
-spec heard(peer(), Number :: pos_integer(), reports()) -> reports().
heard(Peer, Number, #reports{heard = Heard, owed = Owed} = Reports) ->
    Reports#reports{heard = Heard#{Peer => Number}, owed = Owed#{Peer => []}}.

-doc """
Records that a peer has heard of all reports up to `Number`. Returns the messages of the reports
that all nodes have now heard of.
""".
-spec heard_by(peer(), Number :: non_neg_integer(), reports()) -> {[done()], reports()}.
heard_by(Peer, Number, #reports{open = Open} = Reports) ->
    settle(Reports#reports{open = [case Report of
                                       #open{number = Own, peers = Peers} when Own =< Number ->
                                           Report#open{peers = lists:delete(Peer, Peers)};
                                       _ ->
                                           Report
                                   end || Report <- Open]}).

-doc """
Removes a peer that has left. Returns the messages of the reports of which only that peer had not
heard.
""".
-spec leave(peer(), reports()) -> {[done()], reports()}.
leave(Peer, #reports{number = Number, heard = Heard, owed = Owed} = Reports) ->
    heard_by(Peer, Number, Reports#reports{heard = maps:remove(Peer, Heard),
                                           owed = maps:remove(Peer, Owed)}).

-doc """
Gives up a report of which not all nodes will hear. Returns its messages, with 1 as the number of
nodes: they go on to count as before.
""".
-spec give_up(Number :: pos_integer(), reports()) -> {[done()], reports()}.
give_up(Number, Reports) ->
    given_up(fun(#open{number = Own}) -> Own =:= Number end, Reports).

-doc "Gives up the reports that were made before the time `Before`, as `give_up/2` does.".
-spec expire(Before :: integer(), reports()) -> {[done()], reports()}.
expire(Before, Reports) ->
    given_up(fun(#open{at = At}) -> At < Before end, Reports).

%% As one node, each message goes on to count as it did.
given_up(Is, #reports{open = Open} = Reports) ->
    settle(Reports#reports{open = [case Is(Report) of
                                       true -> Report#open{peers = [], nodes = 1};
                                       false -> Report
                                   end || Report <- Open]}).

settle(#reports{open = Open, accounts = Accounts} = Reports) ->
    {Ended, Left} = lists:partition(fun(#open{peers = Peers}) -> Peers =:= [] end, Open),
    Counts = [{Name, Account, Count, Nodes}
              || #open{counts = Of, nodes = Nodes} <- Ended, {Name, Account, Count} <- Of],
    Next = lists:foldl(fun({Name, Account, Count, _}, Map) ->
        case Map of
            #{Name := {Account, Reported}} -> Map#{Name := {Account, Reported - Count}};
            #{} -> Map
        end
    end, Accounts, Counts),
    {[{Account, Count, Nodes} || {_, Account, Count, Nodes} <- Counts],
     Reports#reports{open = Left, accounts = Next}}.
