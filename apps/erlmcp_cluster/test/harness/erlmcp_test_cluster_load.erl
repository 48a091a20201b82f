-module(erlmcp_test_cluster_load).
-moduledoc """
Load on a cluster, as many requests a second as the plan says: half of them stateless, half in
sessions. Keeps how many requests were due in each second, and each request that had no good answer
or a slow one.
""".

-compile(nowarn_missing_spec_documented).

-export([start/2, stop/1, due/3, trouble/1]).

-export_type([load/0, trouble/0]).

-type load() :: #{table := ets:table(), loads := [erlmcp_load:load()], observers := [pid()]}.
-doc """
A request that was due at `began` and ended at `seen`, in microseconds. `why` is `slow`, or why it
had no good answer.
""".
-type trouble() :: #{began := integer(), seen := integer(), why := slow | term()}.

-define(CONNECTIONS, 16).
-define(LONGEST_MS, 7_200_000).

start(Url, Rate) ->
    Table = ets:new(?MODULE, [ordered_set, public]),
    {Loads, Observers} = lists:unzip(
        [begin
             Observer = spawn_link(fun() -> observe(Era, Table) end),
             {ok, Load} = erlmcp_load:start(
                 #{target => {http, Url}, era => Era, connections => ?CONNECTIONS,
                   loop => {open, Rate / 2, poisson}, duration_ms => ?LONGEST_MS,
                   observer => Observer}),
             {Load, Observer}
         end || Era <- [stateless, {session, ~"2025-11-25"}]]),
    #{table => Table, loads => Loads, observers => Observers}.

stop(#{loads := Loads, observers := Observers}) ->
    _ = [erlmcp_load:stop(Load) || Load <- Loads],
    _ = [begin
             Observer ! {stop, self()},
             receive {stopped, Observer} -> ok end
         end || Observer <- Observers],
    ok.

%% The number of requests that were due in these seconds, in microseconds.
due(From, Until, #{table := Table}) ->
    lists:sum([Count || {{second, Second}, Count} <- ets:tab2list(Table),
                        Second >= From div 1_000_000, Second =< Until div 1_000_000]).

-spec trouble(load()) -> [trouble()].
trouble(#{table := Table}) ->
    [Trouble || {{trouble, _}, Trouble} <- ets:tab2list(Table)].

observe(Era, Table) ->
    receive
        {erlmcp_load, Outcome, Due, End} ->
            _ = ets:update_counter(Table, {second, Due div 1_000_000}, 1,
                                   {{second, Due div 1_000_000}, 0}),
            _ = [ets:insert(Table, {{trouble, erlang:unique_integer()},
                                    #{began => Due, seen => End, why => why(Outcome), era => Era}})
                 || Outcome =/= answered orelse erlmcp_test_cluster_verdict:is_slow(Due, End)],
            observe(Era, Table);
        {stop, From} ->
            From ! {stopped, self()}
    end.

why(answered) -> slow;
why({refused, Code, _}) -> {refused, Code};
why(Other) -> Other.
