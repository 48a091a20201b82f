-module(erlmcp_rounds).
-moduledoc """
A call of user code from its start to its result: the arguments are checked against the schema of a
tool, and the handler is called, with the rounds of input between. It does not see which era its
client is of:

- A stateless client is sent a result that asks for input, and sends the request again with the
  answers. What was asked and the handler's state travel with it, sealed: bound to the request, its
  arguments and its principal, and good for `input_timeout_ms`. Answers that come without that are
  taken for what the handler asks for first, so that none reaches it unchecked.
- A session's client is sent the requests, on the stream of the call; the handler is called again
  when all are answered. Its process waits meanwhile, without a deadline but for that limit, and
  ends if the stream does.

Source: specification 2026-07-28, "Multi Round-Trip Requests".
""".

-export([run/4]).

%% Times that one call may ask a session's client.
-define(ROUNDS, 100).

-doc "Runs the handler. `Owner` is sent what goes to the client, and is told of a missed deadline.".
-spec run(erlmcp_engine:call(), erlmcp_engine:context(), erlmcp_call:owner(),
          erlmcp_options:limits()) ->
    {ok, iodata()} | {error, erlmcp_refusal:refusal()}.
run(#{input := Input} = Call, Context0, Owner, Limits) ->
    Context = Context0#{owner => Owner},
    maybe
        ok ?= arguments(Call, Context, Limits),
        {ok, Brought, Unasked} ?= brought(Input, Call),
        round(?ROUNDS, Call#{input := #{responses => Unasked}}, maps:merge(Context, Brought),
              Limits)
    end.

arguments(#{definition := #{input_validator := Validator}, arguments := Arguments} = Call, Context,
          Limits) ->
    timed(Call, Context, Limits, fun(_) ->
        erlmcp_tool_schema:check_arguments(Arguments, Validator, Context)
    end);
arguments(_, _, _) ->
    ok.

round(0, _, _, _) ->
    error({bad_return, input_required, too_many_rounds});
round(Left, #{kind := Kind, definition := Definition} = Call, Context, Limits) ->
    case handle(Call, Context, Limits) of
        {input_required, #{} = Requests} when map_size(Requests) > 0, Kind =/= completion ->
            input(Left, Requests, none, Call, Context, Limits);
        {input_required, #{} = Requests, State} when map_size(Requests) > 0, Kind =/= completion ->
            input(Left, Requests, {state, State}, Call, Context, Limits);
        Return ->
            erlmcp_result:from(Kind, Return, Definition, Context)
    end.

handle(#{definition := #{handler := Handler}, arguments := Arguments} = Call, Context, Limits) ->
    timed(Call, Context, Limits, fun(Deadline) ->
        Handler(Arguments, Context#{deadline => Deadline})
    end).

timed(#{definition := Definition}, #{owner := {Pid, Tag}}, Limits, Run) ->
    Timeout = maps:get(timeout_ms, Definition, maps:get(call_timeout_ms, Limits)),
    Timer = erlang:send_after(Timeout, Pid, {Tag, {deadline, self()}}),
    try
        Run(erlang:monotonic_time(millisecond) + Timeout)
    after
        erlang:cancel_timer(Timer)
    end.

input(Left, Requests, State, Call, Context, Limits) ->
    #{client_capabilities := Capabilities, revision := Revision} = Context,
    Asked = erlmcp_input:asked(Requests, erlmcp_metaschemas:compiled()),
    maybe
        ok ?= erlmcp_input:check(Requests, Capabilities, Revision),
        {ok, Responses} ?= responses(Requests, Call, Context, Limits),
        {ok, Answers} ?= erlmcp_input:answered(Asked, Responses),
        round(Left - 1, Call#{input := #{responses => #{}}},
              with_state(State, Context#{input => Answers}), Limits)
    else
        none -> {ok, input_required(Requests, Asked, State, Call, Limits)};
        {error, _} = Error -> Error
    end.

responses(Requests, #{input := #{responses := Unasked}}, #{revision := Revision} = Context,
          Limits) ->
    case {erlmcp_revision:era(Revision), maps:with(maps:keys(Requests), Unasked)} of
        {session, _} -> ask(Requests, Context, Limits);
        {stateless, Responses} when map_size(Responses) > 0 -> {ok, Responses};
        {stateless, _} -> none
    end.

with_state({state, State}, Context) -> Context#{state => State};
with_state(none, Context) -> maps:remove(state, Context).

%% Stateless: the state goes out sealed and comes back with the answers.

input_required(Requests, Asked, State, #{context := #{server_meta := ServerMeta}} = Call, Limits) ->
    [~"{\"resultType\":\"input_required\",\"_meta\":", ServerMeta,
     ~",\"inputRequests\":", erlmcp_input:encode(Requests),
     ~",\"requestState\":\"", sealed(Asked, State, Call, Limits), ~"\"}"].

sealed(Asked, State, #{keys := Keys} = Call, #{input_timeout_ms := Timeout}) ->
    Expires = erlang:system_time(millisecond) + Timeout,
    Plain = term_to_binary({Expires, Asked, State}, [{compressed, 1}]),
    erlmcp_seal:seal(Plain, bound(Call), crypto:strong_rand_bytes(12), Keys).

%% What a client brought back, for the handler, and the answers that it brought unasked.
brought(#{state := Sealed, responses := Responses}, #{keys := Keys} = Call) ->
    maybe
        {ok, Plain} ?= erlmcp_seal:open(Sealed, bound(Call), Keys),
        %% Ours: nobody else has the key.
        {Expires, Asked, State} = binary_to_term(Plain),
        true ?= erlang:system_time(millisecond) < Expires,
        {ok, Answers} ?= erlmcp_input:answered(Asked, Responses),
        {ok, with_state(State, #{input => Answers}), #{}}
    else
        {error, _} = Error ->
            Error;
        _ ->
            {error, erlmcp_params:invalid(~"requestState", ~"not of this request, or expired")}
    end;
brought(#{responses := Responses}, _) ->
    {ok, #{}, Responses}.

%% What a state is good for: this request, with these arguments, of this client.
bound(#{arguments := Arguments, context := Context}) ->
    #{method := Method, principal := Principal} = Context,
    Target = maps:get(name, Context, maps:get(uri, Context, undefined)),
    term_to_binary({Method, Target, Arguments, Principal}, [deterministic]).

%% Sessions: the requests go out on the call's stream, and the answers come as messages.

ask(Requests, #{owner := {Pid, _} = Owner}, #{input_timeout_ms := Timeout}) ->
    Monitor = monitor(process, Pid),
    Sent = #{send(Request, Owner) => Name || Name := Request <- Requests},
    Timer = erlang:start_timer(Timeout, self(), input),
    Answers = gather(Sent, #{}, Monitor, Timer),
    _ = erlang:cancel_timer(Timer),
    true = demonitor(Monitor, [flush]),
    Answers.

send(#{method := Method, params := Params}, Owner) ->
    Id = erlang:unique_integer([positive]),
    Bytes = iolist_to_binary(erlmcp_message:request(Id, Method, Params)),
    ok = erlmcp_call:report(Owner, {request, Id, self(), Bytes}),
    Id.

gather(Sent, Answers, _, _) when map_size(Sent) =:= 0 ->
    {ok, Answers};
gather(Sent, Answers, Monitor, Timer) ->
    receive
        {erlmcp_response, Id, {ok, Answer}} when is_map_key(Id, Sent), is_map(Answer) ->
            {Name, Rest} = maps:take(Id, Sent),
            gather(Rest, Answers#{Name => Answer}, Monitor, Timer);
        {erlmcp_response, Id, _} when is_map_key(Id, Sent) ->
            Message = [~"the client did not answer the request for ", maps:get(Id, Sent)],
            {error, erlmcp_refusal:new(dependency_unavailable, Message, #{code => -32603})};
        {timeout, Timer, input} ->
            {error, erlmcp_refusal:new(timeout, ~"the client's input did not come in time")};
        {'DOWN', Monitor, process, _, _} ->
            exit(shutdown)
    end.
