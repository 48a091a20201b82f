-module(erlmcp_bench_mutant).
-moduledoc """
Breaks a server on purpose, to prove that the instruments find the fault. One function of the server
is wrapped, in the server's node (`m:erlmcp_bench_wrapping`).
""".

-export([install/1]).
-export([broken/3]).

-export_type([mutant/0]).

-doc """
The fault of a server. `drops_replies` loses every hundredth reply on HTTP, and `answers_wrong_ids`
gives every hundredth result another id. With `adds_5_ms` each result takes 5 ms longer, and with
`leaks_1_kib` each result leaks 1 KiB.
""".
-type mutant() :: drops_replies | answers_wrong_ids | adds_5_ms | leaks_1_kib.

-define(ONE_IN, 100).
-define(LEAKED, 1024).
-define(ADDED_MS, 5).

%% Returns the function to wrap, which all results pass through.
function(drops_replies) -> {erlmcp_httpd_response, answer, 5};
function(_) -> {erlmcp_message, result, 2}.

-doc """
Installs the fault `Mutant` in the server of this node. Call it once, before the server starts.
""".
-spec install(mutant()) -> ok.
install(Mutant) ->
    {Module, Function, Arity} = function(Mutant),
    ok = begin_counting(),
    ok = erlmcp_bench_wrapping:around(Module, [{{Function, Arity}, {?MODULE, broken, Mutant}}]).

%% The table belongs to the node, not to the calling process.
begin_counting() ->
    Installer = self(),
    {Pid, Monitor} = spawn_monitor(fun() ->
        ?MODULE = ets:new(?MODULE, [named_table, public, {write_concurrency, true}]),
        true = ets:insert(?MODULE, {calls, 0}),
        Installer ! {self(), ready},
        receive stop -> ok end
    end),
    receive
        {Pid, ready} -> true = demonitor(Monitor, [flush]), ok;
        {'DOWN', Monitor, process, Pid, Reason} -> error(Reason)
    end.

-doc false.
-spec broken(mutant(), Arguments :: [term()], Whole :: fun()) -> term().
broken(drops_replies, Arguments, Whole) ->
    case this_one() of
        true -> [];
        false -> apply(Whole, Arguments)
    end;
broken(answers_wrong_ids, [Id, Result], Whole) ->
    case this_one() of
        true -> Whole(another(Id), Result);
        false -> Whole(Id, Result)
    end;
broken(adds_5_ms, Arguments, Whole) ->
    receive after ?ADDED_MS -> apply(Whole, Arguments) end;
broken(leaks_1_kib, Arguments, Whole) ->
    true = ets:insert(?MODULE, {erlang:unique_integer(), binary:copy(~"x", ?LEAKED)}),
    apply(Whole, Arguments).

this_one() ->
    ets:update_counter(?MODULE, calls, 1) rem ?ONE_IN =:= 0.

another(Id) when is_integer(Id) -> Id + 1;
another(Id) -> <<Id/binary, "x">>.
