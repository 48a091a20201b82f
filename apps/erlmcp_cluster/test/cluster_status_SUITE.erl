-module(cluster_status_SUITE).
-moduledoc """
The processes that pass on what clients are sent tell nothing of it: neither in their status, nor in
the reports of a crash.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([no_event_is_shown/1, no_change_is_shown/1]).
%% A handler of the logger.
-export([log/2]).

-define(PLANTED, ~"planted: a client's own words").

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [no_event_is_shown, no_change_is_shown].

init_per_suite(Config) ->
    {ok, Started} = application:ensure_all_started(erlmcp_cluster),
    [{started, Started} | Config].

end_per_suite(Config) ->
    [ok = application:stop(Application)
     || Application <- lists:reverse(proplists:get_value(started, Config))].

init_per_testcase(_, Config) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self(), level => all}),
    Config.

end_per_testcase(_, _) ->
    logger:remove_handler(?MODULE).

no_event_is_shown(_) ->
    %% In place of a count.
    hidden(erlmcp_cluster_events, 4, {erlmcp_cluster_events, 1, 7, [?PLANTED | no_list]}).

no_change_is_shown(_) ->
    %% In place of changes that wait.
    hidden(erlmcp_cluster_changes, 5, {erlmcp_cluster_changes, 1, [?PLANTED | no_list]}).

%% The process fails at this message, which has the words, as its state has.
hidden(Module, Place, Message) ->
    _ = process_flag(trap_exit, true),
    {ok, Pid} = Module:start_link(),
    _ = sys:replace_state(Pid, fun(State) -> setelement(Place, State, ?PLANTED) end),
    ok = without_words(sys:get_status(Pid)),
    Pid ! Message,
    receive {'EXIT', Pid, Reason} -> ok = without_words(Reason) end,
    [begin
         {_, _} = binary:match(shown(Report), atom_to_binary(Module)),
         ok = without_words(Report)
     end || _ <- [gen_server, proc_lib], Report <- [receive {logged, Pid, Event} -> Event end]],
    ok.

without_words(Term) ->
    Bytes = lists:join($,, [integer_to_binary(Byte) || <<Byte>> <= ?PLANTED]),
    nomatch = binary:match(shown(Term), [?PLANTED, iolist_to_binary(Bytes)]),
    ok.

shown(Term) ->
    unicode:characters_to_binary(io_lib:format("~p ~w", [Term, Term])).

-doc false.
log(#{meta := #{pid := Pid}} = Event, #{config := Test}) ->
    Test ! {logged, Pid, Event}.
