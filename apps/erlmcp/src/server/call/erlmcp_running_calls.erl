-module(erlmcp_running_calls).
-moduledoc """
A server's calls that run now or wait for their turn, for its operator. These calls are not listed:
inline calls, calls of tasks, and calls that wait for a task or for their client's answer.

Internal.
""".

-export([list/1, cancel/2]).

%% The most calls of a list. Of each table of the gate, as many permits are looked at.
-define(MOST, 100).

-doc """
Returns the calls of a gate, the oldest first, 100 at most. Asks the process of each call for its
stack, and may have to wait for a process that gets no processor time. Raises `badarg` if the server
has ended.
""".
-spec list(erlmcp_gate:gate()) -> [erlmcp:running_call()].
list(Gate) ->
    Calls = lists:append([seen(Permit) || Permit <- erlmcp_gate:oldest_calls(Gate, ?MOST)]),
    lists:sublist(lists:sort(fun(#{age_ms := A}, #{age_ms := B}) -> A >= B end, Calls), ?MOST).

seen({Id, Pid}) ->
    case erlmcp_call:mark(Pid) of
        {Since, Method, Target, Principal, _} ->
            case process_info(Pid, current_stacktrace) of
                {_, Stack} ->
                    [#{id => Id, pid => Pid, method => Method, target => Target,
                       principal => Principal, stack => Stack,
                       age_ms => erlmcp_clock:now_ms() - Since}];
                undefined ->
                    []
            end;
        none ->
            []
    end.

-doc """
Kills the process of the call that has the id `Id` in `list/1`. The call's owner then answers the
client. Returns `ok` when the process has ended, or `{error, not_found}` if there is no such call.
Raises `badarg` if the server has ended.
""".
-spec cancel(erlmcp_gate:gate(), Id :: binary()) -> ok | {error, not_found}.
cancel(Gate, Id) ->
    maybe
        {_, Pid} ?= lists:keyfind(Id, 1, erlmcp_gate:oldest_calls(Gate, infinity)),
        {_, _, _, _, Owner} ?= erlmcp_call:mark(Pid),
        killed(Pid, Owner)
    else
        _ -> {error, not_found}
    end.

%% The exit signal does not tell the owner who has killed the call, so it gets a message before.
killed(Pid, Owner) ->
    Monitor = monitor(process, Pid),
    ok = erlmcp_call_messages:end_call(operator, Pid, Owner),
    true = exit(Pid, kill),
    receive {'DOWN', Monitor, process, _, _} -> ok end.
