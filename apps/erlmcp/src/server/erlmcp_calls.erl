-module(erlmcp_calls).
-moduledoc """
The running calls of one connection: started, answered, cancelled, ended, and bounded in number.
A value that the connection process keeps. The calls are linked to that process, which traps exits;
an answer arrives as an exit signal.
""".

-export([new/1, count/1]).
-export([start/2, batch/3, message/3, response/3, exited/3, cancel/2, end_of_input/1, stop/1]).

-export_type([calls/0]).

-type entry() :: {call | batch, [erlmcp_message:id()], erlmcp_revision:revision()}.
-opaque calls() :: #{
    limits := erlmcp_options:limits(),
    running := #{pid() => entry()},
    %% requests to the client, and the calls that wait for their answers
    asked := #{erlmcp_message:id() => {Asking :: pid(), Running :: pid()}} | unanswerable,
    ids := #{erlmcp_message:id() => pid()}
}.

-doc "No calls yet.".
-spec new(erlmcp_options:limits()) -> calls().
new(Limits) ->
    #{limits => Limits, running => #{}, asked => #{}, ids => #{}}.

-doc "How many calls run.".
-spec count(calls()) -> non_neg_integer().
count(#{running := Running}) ->
    map_size(Running).

-doc "Starts a call, or says why not: its id is in use, or the connection's limit is reached.".
-spec start(erlmcp_engine:call(), calls()) ->
    {ok, calls()} | {reply, erlmcp_reply:status(), iodata()}.
start(#{id := Id, context := #{revision := Revision}} = Call,
      #{running := Running, ids := Ids, limits := Limits} = Calls) ->
    #{calls_per_connection := Max} = Limits,
    if
        is_map_key(Id, Ids) ->
            erlmcp_reply:refuse(Id, id_in_use(), Revision);
        map_size(Ids) >= Max ->
            erlmcp_reply:refuse(Id, over_limit(Max), Revision);
        true ->
            Pid = erlmcp_call:start(Call, Limits),
            {ok, Calls#{running := Running#{Pid => {call, [Id], Revision}},
                        ids := Ids#{Id => Pid}}}
    end.

id_in_use() ->
    erlmcp_refusal:new(protocol_error, ~"id: a request with this id is still being answered",
                       #{code => -32600}).

over_limit(Max) ->
    erlmcp_refusal:new(concurrent_limit_exceeded, ~"too many requests in flight on this connection",
                       #{limit => Max, observed => Max + 1, retry_after_ms => 1000}).

-doc """
Starts a batch, which gives one answer. Its calls count like others: those over the limit, and those
whose id is in use, are refused in it.
""".
-spec batch([erlmcp_engine:effect(), ...], erlmcp_revision:revision(), calls()) -> calls().
batch(Given, Revision, #{running := Running, ids := Ids, limits := Limits} = Calls) ->
    {Items, _} = lists:mapfoldl(
        fun({call, #{id := Id}}, Count) when is_map_key(Id, Ids) ->
                {erlmcp_reply:refuse(Id, id_in_use(), Revision), Count};
           ({call, #{id := Id}} = Item, Count) ->
                case room(Count, Limits) of
                    ok -> {Item, Count + 1};
                    {error, Refusal} -> {erlmcp_reply:refuse(Id, Refusal, Revision), Count}
                end;
           (Item, Count) ->
                {Item, Count}
        end, map_size(Ids), Given),
    Pid = erlmcp_batch:start(Items, Limits),
    Inside = erlmcp_batch:ids(Items),
    Calls#{running := Running#{Pid => {batch, Inside, Revision}},
           ids := maps:merge(Ids, #{Id => Pid || Id <- Inside})}.

room(Count, #{calls_per_connection := Max}) when Count < Max -> ok;
room(_, #{calls_per_connection := Max}) -> {error, over_limit(Max)}.

-doc "What a call sent: bytes for the client, and the calls after it. An ended call is not heard.".
-spec message(Call :: pid(), erlmcp_call:message(), calls()) -> {iodata(), calls()}.
message(Call, Message, #{running := Running, asked := Asked} = Calls) ->
    case {Running, Message} of
        {#{Call := _}, {notification, Bytes}} ->
            {Bytes, Calls};
        {#{Call := _}, {request, Id, Asking, _}} when Asked =:= unanswerable ->
            Asking ! {erlmcp_response, Id, {error, end_of_input}},
            {[], Calls};
        {#{Call := _}, {request, Id, Asking, Bytes}} ->
            {Bytes, Calls#{asked := Asked#{Id => {Asking, Call}}}};
        {#{Call := {call, [Id], Revision}}, {deadline, Call}} ->
            end_call(Call),
            {reply, _, Bytes} = erlmcp_call:timed_out(Id, Revision),
            {Bytes, forget(Call, Calls)};
        {_, _} ->
            {[], Calls}
    end.

-doc "The client answered a request; the call that waits for it is told.".
-spec response(erlmcp_message:id(), {ok, term()} | {error, term()}, calls()) -> calls().
response(Id, Outcome, #{asked := #{} = Asked} = Calls) ->
    case maps:take(Id, Asked) of
        {{Asking, _}, Rest} ->
            Asking ! {erlmcp_response, Id, Outcome},
            Calls#{asked := Rest};
        error ->
            Calls
    end.

-doc "The client will answer nothing any more; calls that ask are told so.".
-spec end_of_input(calls()) -> calls().
end_of_input(#{asked := #{} = Asked} = Calls) ->
    _ = [Asking ! {erlmcp_response, Id, {error, end_of_input}} || Id := {Asking, _} <- Asked],
    Calls#{asked := unanswerable};
end_of_input(Calls) ->
    Calls.

-doc "A linked process ended: the answer of the call that it was, or what there is in its place.".
-spec exited(pid(), Reason :: term(), calls()) -> {iodata(), calls()}.
exited(Pid, Reason, #{running := Running} = Calls) ->
    case {Running, Reason} of
        {#{Pid := _}, {erlmcp_answer, _, Bytes}} ->
            {Bytes, forget(Pid, Calls)};
        {#{Pid := {call, [Id], Revision}}, _} ->
            {reply, _, Bytes} = erlmcp_call:died(Reason, Id, Revision),
            {Bytes, forget(Pid, Calls)};
        {#{Pid := {batch, _, Revision}}, _} ->
            {reply, _, Bytes} = erlmcp_call:died(Reason, undefined, Revision),
            {Bytes, forget(Pid, Calls)};
        {_, _} ->
            {[], Calls}
    end.

-doc "Ends the call of this id, if it runs; nothing more is sent for it.".
-spec cancel(erlmcp_message:id(), calls()) -> calls().
cancel(Id, #{ids := Ids, running := Running} = Calls) ->
    case Ids of
        #{Id := Pid} ->
            case Running of
                #{Pid := {call, _, _}} ->
                    end_call(Pid),
                    forget(Pid, Calls);
                #{Pid := {batch, _, _}} ->
                    ok = erlmcp_batch:cancel(Pid, Id),
                    Calls
            end;
        #{} ->
            Calls
    end.

-doc "Ends all calls.".
-spec stop(calls()) -> ok.
stop(#{running := Running}) ->
    lists:foreach(fun end_call/1, maps:keys(Running)).

end_call(Pid) ->
    unlink(Pid),
    exit(Pid, kill).

forget(Pid, #{running := Running, asked := Asked, ids := Ids} = Calls) ->
    {{_, Inside, _}, Rest} = maps:take(Pid, Running),
    Calls#{running := Rest, ids := maps:without(Inside, Ids), asked := without(Pid, Asked)}.

without(_, unanswerable) -> unanswerable;
without(Pid, Asked) -> maps:filter(fun(_, {_, Running}) -> Running =/= Pid end, Asked).
