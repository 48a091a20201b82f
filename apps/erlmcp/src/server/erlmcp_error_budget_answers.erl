-module(erlmcp_error_budget_answers).
-moduledoc """
Counts what a server answers, for its error budget (`m:erlmcp_error_budget`): each request once,
where its answer is known. A fault is a refusal that is the server's own doing
(`erlmcp_refusal:is_fault/1`); what is wrong with a request is no fault, nor is an error that a tool
returns.
""".

-export([known/2, answered/2, refused/2]).

-doc "What the engine gave is answered without user code, but for the calls.".
-spec known([erlmcp_engine:effect()], erlmcp_instance:of_calls()) -> ok.
known([{call, _}], _) ->
    ok;
known(Effects, #{zones := Zones}) ->
    case count(Effects, 0) of
        0 -> ok;
        Answers -> erlmcp_error_budget:count(Answers, 0, Zones)
    end.

count([], Answers) -> Answers;
count([{reply, _, _} | Effects], Answers) -> count(Effects, Answers + 1);
count([{Subscribing, _, _} | Effects], Answers) when
    Subscribing =:= subscribe; Subscribing =:= unsubscribe
->
    count(Effects, Answers + 1);
count([{listen, _} | Effects], Answers) -> count(Effects, Answers + 1);
count([{batch, Items} | Effects], Answers) -> count(Effects, count(Items, Answers));
count([_ | Effects], Answers) -> count(Effects, Answers).

-doc """
A request was refused at the gate: counts it, and gives the refusal as its client is told, with as
much patience as the limits `rate_retry_ms` and `queue_retry_ms` want.
""".
-spec refused(erlmcp_refusal:refusal(), erlmcp_instance:of_calls()) -> erlmcp_refusal:refusal().
refused(Refusal, #{limits := Limits} = Instance) ->
    {error, _} = answered({error, Refusal}, Instance),
    #{rate_retry_ms := RateMs, queue_retry_ms := QueueMs} = Limits,
    case erlmcp_refusal:name(Refusal) of
        Rate when
            Rate =:= rate_limit_exceeded; Rate =:= rate_limit_per_second;
            Rate =:= rate_limit_per_minute; Rate =:= quota_exceeded
        ->
            erlmcp_refusal:not_before(RateMs, Refusal);
        _ ->
            erlmcp_refusal:not_before(QueueMs, Refusal)
    end.

-doc "What a call came to. Gives it back.".
-spec answered(Outcome, erlmcp_instance:of_calls()) -> Outcome when
    Outcome :: {ok, term()} | {error, erlmcp_refusal:refusal()}.
answered({ok, _} = Outcome, #{zones := Zones}) ->
    ok = erlmcp_error_budget:count(1, 0, Zones),
    Outcome;
answered({error, Refusal} = Outcome, #{zones := Zones}) ->
    Faults = case erlmcp_refusal:is_fault(Refusal) of
        true -> 1;
        false -> 0
    end,
    ok = erlmcp_error_budget:count(1, Faults, Zones),
    Outcome.
