-module(erlmcp_input_rounds).
-moduledoc """
Runs a call of user code from its start to its result. This module checks the arguments against the
schema of a tool, and calls the handler. If the handler asks for input, this module gets the
client's answers and calls the handler again. A call without a result after 100 rounds fails. The
way to the answers differs, which the handler does not notice:

- A stateless client gets a result that asks for input, and sends the request again with the
  answers, within `input_timeout_ms`. The questions and the handler's state travel sealed, bound to
  the request, its arguments and its principal.
- A session's client gets the requests, and the call's process waits for the answers, for at most
  `input_timeout_ms`.
- A task keeps the requests until they are answered, for at most `input_timeout_ms`.

A tool with `task_starts => on_return` may return `{task, Continue}`. `Continue` is called next: in
a task if the call can become one now, or else here.

Source: specification 2026-07-28, "Multi Round-Trip Requests".

Internal.
""".

-export([run/4, arguments/2, send/4]).

%% The most rounds of input of one call in a session or a task.
-define(ROUNDS, 100).

-doc """
Runs a call and returns its result or a refusal. If the call becomes a task, the result describes
the task. `Owner` is sent the messages of the call, and `deadline` if one run of the handler takes
too long. Raises the exception of a handler that crashes, and an error if the handler returns
something that does not fit. Exits with `shutdown` if `Owner` ends while the client is asked for
input.
""".
-spec run(erlmcp_engine:call(), erlmcp_engine:context(), Owner :: erlmcp_call:owner(),
          erlmcp_instance:instance()) ->
    {ok | tool_error, iodata()} | {error, erlmcp_refusal:refusal()}.
run(#{task := #{starts := at_once}} = Call, Context, Owner, Instance) ->
    erlmcp_tasks:start(Call, erlmcp_call_report:owned(Owner, Context), Instance);
run(#{continue := Continue} = Call, Context, Owner, Instance) ->
    Reporting = reporting(Context, Owner, Instance),
    go_on(?ROUNDS, Continue, Call, Reporting, Instance);
run(#{input := #{state := _} = Input} = Call, Given, Owner, Instance) ->
    Context = reporting(Given, Owner, Instance),
    maybe
        ok ?= timed(Call, Context, Instance, fun(_) -> arguments(Call, Context) end),
        {ok, Brought} ?= brought(Input, Call, Instance),
        round(?ROUNDS, Call#{input := #{responses => #{}}}, maps:merge(Context, Brought), Instance)
    end;
run(Call, Given, Owner, Instance) ->
    Context = reporting(Given, Owner, Instance),
    %% The arguments and the handler share a deadline: a timer costs as much as most arguments.
    Called = timed(Call, Context, Instance, fun(Deadline) ->
        maybe
            ok ?= arguments(Call, Context),
            {returned, handle(Call, Context, Deadline)}
        end
    end),
    case Called of
        {returned, Return} -> returned(Return, ?ROUNDS, Call, Context, Instance);
        Unfit -> Unfit
    end.

%% The context of a call that reports to its owner. A stateless client that wants neither progress
%% nor logs gets no reports.
reporting(#{revision := '2026-07-28', log_level := undefined,
            progress_token := undefined} = Context, Owner, _) when not is_map_key(task, Context) ->
    erlmcp_call_report:owned(Owner, Context);
reporting(Context, Owner, #{limits := Limits}) ->
    Window = erlmcp_notification_window:new(Limits),
    erlmcp_call_report:before_progress(erlmcp_call_report:owned(Owner, Window, Context)).

-doc """
Checks the arguments of a call against the schema of its tool, if there is one. Returns `ok`, or the
answer to a call whose arguments do not fit: a result with `isError`, or a refusal.
""".
-spec arguments(erlmcp_engine:call(), erlmcp_engine:context()) ->
    ok | {tool_error, iodata()} | {error, erlmcp_refusal:refusal()}.
arguments(#{definition := #{input_validator := Validator}, arguments := Arguments}, Context) ->
    erlmcp_tool_schema:check_arguments(Arguments, Validator, Context);
arguments(_, _) ->
    ok.

round(0, _, _, _) ->
    error({bad_return, input_required, too_many_rounds});
round(Left, Call, Context, Instance) ->
    Return = timed(Call, Context, Instance, fun(Deadline) -> handle(Call, Context, Deadline) end),
    returned(Return, Left, Call, Context, Instance).

handle(#{definition := #{handler := Handler}, arguments := Arguments}, Context, Deadline) ->
    Handler(Arguments, Context#{deadline => Deadline}).

returned({input_required, #{} = Requests}, Left, #{kind := Kind} = Call, Context, Instance) when
    map_size(Requests) > 0, Kind =/= completion
->
    input(Left, Requests, none, Call, Context, Instance);
returned({input_required, #{} = Requests, State}, Left, #{kind := Kind} = Call, Context,
         Instance) when
    map_size(Requests) > 0, Kind =/= completion
->
    input(Left, Requests, {state, State}, Call, Context, Instance);
returned({input_required, #{} = Requests, State, #{once := Once} = Options}, Left,
         #{kind := Kind} = Call, Context, Instance) when
    map_size(Requests) > 0, Kind =/= completion, is_boolean(Once), map_size(Options) =:= 1
->
    Kept = case Once of
        true -> {once, single_use(Instance), State};
        false -> {state, State}
    end,
    input(Left, Requests, Kept, Call, Context, Instance);
returned({task, Continue}, _, #{task := #{starts := on_return}} = Call, Context, Instance) when
    is_function(Continue, 1)
->
    erlmcp_tasks:start(Call#{continue => Continue}, Context, Instance);
returned({task, Continue}, Left, #{definition := #{task_starts := on_return}} = Call, Context,
         Instance) when
    is_function(Continue, 1), Left > 1
->
    go_on(Left - 1, Continue, Call, Context, Instance);
returned(Return, _, #{kind := Kind, definition := Definition}, Context, _) ->
    erlmcp_result:from(Kind, Return, Definition, Context).

go_on(Left, Continue, Call, Context, Instance) ->
    Return = timed(Call, Context, Instance, fun(Deadline) ->
        Continue(Context#{deadline => Deadline})
    end),
    returned(Return, Left, Call, Context, Instance).

timed(#{definition := Definition}, #{call := #{owner := Owner}} = Context, Instance, Run) ->
    Timeout = timeout(Definition, Context, Instance),
    Deadline = erlmcp_clock:now_ms() + Timeout,
    erlmcp_call_messages:within(Timeout, Owner, fun() -> Run(Deadline) end).

timeout(Definition, #{task := _}, #{limits := #{task_timeout_ms := Timeout}}) ->
    maps:get(task_timeout_ms, Definition, Timeout);
timeout(Definition, _, #{limits := #{call_timeout_ms := Timeout}}) ->
    maps:get(timeout_ms, Definition, Timeout).

input(Left, Requests, State, Call, Context, #{limits := Limits} = Instance) ->
    #{client_capabilities := Capabilities, revision := Revision} = Context,
    Asked = erlmcp_input_requests:forms(Requests, erlmcp_metaschemas:compiled()),
    maybe
        ok ?= erlmcp_input_requests:check(Requests, Capabilities, Revision),
        {ok, Responses} ?= responses(Requests, Call, Context, Limits),
        {ok, Answers} ?= erlmcp_input_requests:answers(Asked, Responses),
        round(Left - 1, Call#{input := #{responses => #{}}},
              with_state(State, Context#{input => Answers}), Instance)
    else
        none -> {ok, input_required(Requests, Asked, State, Call, Limits)};
        {error, _} = Error -> Error
    end.

responses(Requests, _, #{task := _, call := #{owner := Process}}, Limits) ->
    ask_task(Requests, Process, Limits);
responses(Requests, #{input := #{responses := Unasked}} = Call,
          #{revision := Revision, call := #{owner := Owner}}, Limits) ->
    case {erlmcp_revision:era(Revision), maps:with(maps:keys(Requests), Unasked)} of
        {session, _} ->
            %% A person may have to answer, so the call makes room for others meanwhile. After the
            %% answer it goes on, even if no room is left.
            ok = erlmcp_call:pause(Call),
            Answers = ask_client(Requests, Owner, Limits),
            ok = erlmcp_call:resume(Call),
            Answers;
        {stateless, Responses} when map_size(Responses) > 0 -> {ok, Responses};
        {stateless, _} -> none
    end.

with_state({state, State}, Context) -> Context#{state => State};
with_state({once, _, State}, Context) -> Context#{state => State};
with_state(none, Context) -> maps:remove(state, Context).

%% Stateless: the state goes out sealed and comes back with the answers.

input_required(Requests, Asked, State, #{context := #{call := Reference}} = Call, Limits) ->
    #{server_meta := ServerMeta} = Reference,
    [~"{\"resultType\":\"input_required\",\"_meta\":", ServerMeta,
     ~",\"inputRequests\":", erlmcp_input_requests:encode(Requests),
     ~",\"requestState\":\"", sealed(Asked, State, Call, Limits), ~"\"}"].

sealed(Asked, State, #{keys := Keys} = Call, #{input_timeout_ms := Timeout}) ->
    Expires = erlang:system_time(millisecond) + Timeout,
    Plain = term_to_binary({Expires, Asked, State}, [{compressed, 1}]),
    erlmcp_sealed_state:seal(Plain, bound(Call), crypto:strong_rand_bytes(12), Keys).

%% The input and the state from a client, for the handler.
brought(#{state := Sealed, responses := Responses}, #{keys := Keys} = Call, Instance) ->
    maybe
        {ok, Plain} ?= erlmcp_sealed_state:open(Sealed, bound(Call), Keys),
        %% Safe to decode: it is sealed with the server's own key.
        {Expires, Asked, State} = binary_to_term(Plain),
        true ?= erlang:system_time(millisecond) < Expires,
        {ok, Answers} ?= erlmcp_input_requests:answers(Asked, Responses),
        %% This is checked last, so that a client can correct its answers and use the state again.
        ok ?= used(State, Expires, Call, Instance),
        {ok, with_state(State, #{input => Answers})}
    else
        {error, _} = Error ->
            Error;
        _ ->
            unusable()
    end.

unusable() ->
    {error, erlmcp_params:invalid(~"requestState", ~"not of this request, or expired")}.

%% The node that made a state remembers whether it was used. The state names it in a cluster, whose
%% other nodes ask it.
single_use(#{cluster := none}) -> crypto:strong_rand_bytes(12);
single_use(#{key := Server}) -> {node(), Server, crypto:strong_rand_bytes(12)}.

use({Node, Server, Id}, Expires, Tenant, #{cluster := {Module, Of}} = Instance) ->
    case Instance of
        #{key := Server} ->
            erlmcp_used_states:use({Expires, Id}, Tenant, Instance);
        #{} ->
            case Module:ask(Node, {use_state, Server, {Expires, Id}, Tenant}, Of) of
                {ok, Answer} -> Answer;
                unreachable -> gone
            end
    end;
use(Id, Expires, Tenant, Instance) when is_binary(Id) ->
    erlmcp_used_states:use({Expires, Id}, Tenant, Instance);
use(_, _, _, _) ->
    %% It was made in a cluster, and this server is in none.
    gone.

used({once, Id, _}, Expires, #{tenant := Tenant}, Instance) ->
    case use(Id, Expires, Tenant, Instance) of
        ok ->
            ok;
        expired ->
            unusable();
        gone ->
            Gone = ~"the node that made it cannot be asked; send the request again without it",
            {error, erlmcp_params:invalid(~"requestState", Gone)};
        again ->
            Again = ~"it was used before; send the request again without it",
            {error, erlmcp_params:invalid(~"requestState", Again)};
        {full, Limit, Observed} ->
            Full = ~"too many states that can be used once are remembered",
            {error, erlmcp_refusal:new(concurrent_limit_exceeded, Full,
                                       #{limit => Limit, observed => Observed,
                                         retry_after_ms => 1000})}
    end;
used({state, _}, _, _, _) ->
    ok;
used(none, _, _, _) ->
    ok.

%% A state is bound to this request, with these arguments, of this client.
bound(#{arguments := Arguments, context := Context}) ->
    #{method := Method, principal := Principal} = Context,
    Target = maps:get(name, Context, maps:get(uri, Context, undefined)),
    term_to_binary({Method, Target, Arguments, Principal}, [deterministic]).

%% A task. The requests are encoded here, so that an invalid one fails this call, and not its
%% readers. They keep the ids of their URLs, which a session's client needs.
ask_task(Requests, Owner, #{input_timeout_ms := Timeout}) ->
    Json = json:decode(iolist_to_binary(erlmcp_json:encode(Requests))),
    ok = erlmcp_call_messages:task_input(Owner, Json),
    receive
        {erlmcp_input, Outcome} -> Outcome
    after Timeout ->
        no_input(maps:keys(Requests), Timeout)
    end.

%% A client that does not answer is not a fault of the server.
no_input(Names, Timeout) ->
    Message = [~"the client did not answer in time the request for ",
               lists:join(~", ", lists:sort(Names))],
    {error, erlmcp_refusal:new(timeout, Message, #{limit => Timeout, fault => false})}.

%% Sessions: the requests go out on the call's stream, and the answers come as messages.

ask_client(Requests, {Pid, _} = Owner, #{input_timeout_ms := Timeout}) ->
    Monitor = monitor(process, Pid),
    Sent = #{send(Method, Params, none, Owner) => Name
             || Name := #{method := Method, params := Params} <- Requests},
    Timer = erlang:start_timer(Timeout, self(), input),
    Answers = gather(Sent, #{}, Monitor, {Timer, Timeout}),
    _ = erlang:cancel_timer(Timer),
    true = demonitor(Monitor, [flush]),
    Answers.

-doc """
Sends the client a request through `Owner`, and returns the id of the request. The request belongs
to the task `Task`, or to no task if `Task` is `none`. The client's answer is sent to the calling
process (`t:erlmcp_call_messages:to_call/0`).
""".
-spec send(Method :: binary(), Params :: map(), Task :: erlmcp_task_store:id() | none,
           erlmcp_call:owner()) -> erlmcp_message:id().
send(Method, Params, Task, Owner) ->
    Id = erlang:unique_integer([positive]),
    Bytes = iolist_to_binary(erlmcp_message:request(Id, Method, Params)),
    ok = erlmcp_call_messages:request(Owner, {Id, Task}, Bytes),
    Id.

gather(Sent, Answers, _, _) when map_size(Sent) =:= 0 ->
    {ok, Answers};
gather(Sent, Answers, Monitor, {Timer, Timeout} = Timed) ->
    receive
        {erlmcp_response, Id, {ok, Answer}} when is_map_key(Id, Sent), is_map(Answer) ->
            {Name, Rest} = maps:take(Id, Sent),
            gather(Rest, Answers#{Name => Answer}, Monitor, Timed);
        {erlmcp_response, Id, _} when is_map_key(Id, Sent) ->
            Message = [~"the client did not answer the request for ", maps:get(Id, Sent)],
            {error, erlmcp_refusal:new(dependency_unavailable, Message, #{code => -32603})};
        {timeout, Timer, input} ->
            no_input(maps:values(Sent), Timeout);
        {'DOWN', Monitor, process, _, _} ->
            exit(shutdown)
    end.
