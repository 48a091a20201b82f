-module(erlmcp_inline_call_lateness).
-moduledoc """
Why a quick call is late, and until when it may still be over (`m:erlmcp_inline_call_watchdog`).

That a call is late says nothing of its definition: on a node with too much to do all are, and on a
connection with much to do a call may be interrupted, and have to wait for its turn to go on. It is
not quick where the process waits, works on, or is in native code all the time; one that only had no
turn is looked at again.
""".

-export([ask/2]).

-export_type([said/0]).

%% Milliseconds in which a process whose time is over, and that has the processor, may still say
%% that it is done.
-define(GRACE, 1_000).
%% How often it gets them again that neither waits nor has done this many reductions since: it was
%% the processor that was late.
-define(GRACES, 30).
%% Milliseconds after which it is looked at again whether its definition is to be quick.
-define(AGAIN, 100).
-define(WORK, 40_000).

-doc "Its definition is not quick; and nothing more is waited for.".
-type said() :: {not_quick, reductions | deadline} | {overdue, reductions | deadline}.

-doc "Has it said of a process that is late now what is seen of it, `overdue` as the last.".
-spec ask(pid(), Say :: fun((said()) -> ok)) -> ok.
ask(Pid, Say) ->
    %% Who asks a process may wait for it.
    _ = spawn(fun() ->
        Begin = used(Pid),
        NotQuick = fun(turn) -> ok; (Why) -> Say({not_quick, Why}) end,
        ok = NotQuick(why(Begin, none)),
        receive after ?AGAIN -> ok end,
        ok = NotQuick(why(used(Pid), Begin)),
        Say({overdue, given_time(Pid, Begin, NotQuick, ?GRACES)})
    end),
    ok.

%% One in native code is not quick, and is not ended yet: that could not be before it comes back.
given_time(_, _, _, 0) ->
    deadline;
given_time(Pid, Begin, Say, Graces) ->
    receive after ?GRACE -> ok end,
    case {used(Pid), Begin} of
        {{Status, Now} = Used, {_, Before}} when Status =/= waiting, Now - Before < ?WORK ->
            ok = Say(native(Used, Begin)),
            given_time(Pid, Begin, Say, Graces - 1);
        {Used, _} ->
            why(Used, Begin)
    end.

%% Why a process that is late is not quick, by what it does now and did at first; or it waits for
%% its turn.
why(gone, _) -> deadline;
why({waiting, _}, _) -> deadline;
why({_, Now}, {_, Before}) when Now - Before >= ?WORK -> reductions;
why(_, _) -> turn.

native({running, _}, {running, _}) -> deadline;
native(_, _) -> turn.

used(Pid) ->
    case process_info(Pid, [status, reductions]) of
        [{status, Status}, {reductions, Reductions}] -> {Status, Reductions};
        undefined -> gone
    end.
