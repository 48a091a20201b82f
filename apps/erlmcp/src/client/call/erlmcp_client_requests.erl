-module(erlmcp_client_requests).
-moduledoc """
Performs an operation with all of its requests: the pages of a list, rounds of input, polls of a
task, and safe repetitions. It runs in the process of the call.

Sources: specification 2026-07-28, "Multi Round-Trip Requests", "Pagination", "Caching / Interaction
with Pagination", "Header Validation"; the extension `io.modelcontextprotocol/tasks`; 2025-11-25,
"Tasks".

Internal.
""".

-export([outcome/4]).

%% Members of `_meta` that differ from call to call, and change no result.
-define(OF_TRACE, [~"traceparent", ~"tracestate", ~"baggage"]).
%% The most rounds of input that a server may ask for before the result.
-define(ROUNDS, 20).
%% Milliseconds for the request that cancels a task.
-define(CANCEL, 5000).
%% Milliseconds between two polls of a task, if the server names no other interval. An interval of
%% the server has bounds, too.
-define(PACE, 1000).
-define(FASTEST, 50).
-define(SLOWEST, 60_000).
%% Milliseconds, on average, before a safe request is repeated.
-define(AGAIN, 200).

-record(call, {
    client :: erlmcp_client_connection:client(),
    options :: erlmcp_client:call_options(),
    watch :: erlmcp_client_exchange:watch(),
    %% The remedies that were tried already; each is tried once.
    tried = [] :: [session | version | headers | again],
    rounds = 0 :: non_neg_integer(),
    %% `erlmcp_client_cache:changes/1` before the request was sent.
    changes = 0 :: non_neg_integer()
}).

-doc """
Performs an operation, and returns its result or the reason of its failure. The result of a list has
the items of all pages, and that of `ping` is `pong`. With the option `task => handle`, the result
of a tool may be a task. Throws `cancelled` as `erlmcp_client_exchange:run/4` does.
""".
-spec outcome(erlmcp_client:operation(), erlmcp_client_connection:client(),
              erlmcp_client:call_options(), erlmcp_client_exchange:watch()) ->
    {ok, term()} | {error, erlmcp_client:reason()}.
outcome(Operation, Client, Options, Watch) ->
    perform(Operation, #call{client = Client, options = Options, watch = Watch}).

perform({list, List}, Call) ->
    {Method, Items} = erlmcp_client_operation:pages(List),
    Pages = fun(Fetch) -> pages({Method, #{}}, Items, Fetch, Call, {#{}, [], 0}) end,
    case Pages(fun fresh_or_kept/2) of
        {unknown_cursor, _} ->
            %% A cached page may have a cursor that the server no longer knows.
            case Pages(fun send/2) of
                {unknown_cursor, Reason} -> {error, Reason};
                Outcome -> Outcome
            end;
        Outcome ->
            Outcome
    end;
perform(ping, Call) ->
    %% 2026-07-28 has no ping; `server/discover` is the cheapest request instead.
    maybe
        {ok, #{revision := Revision}} ?= live({~"ping", #{}}, Call),
        Method = case erlmcp_revision:era(Revision) of
            session -> ~"ping";
            stateless -> ~"server/discover"
        end,
        {ok, _} ?= send({Method, #{}}, Call),
        {ok, pong}
    end;
perform({task, Operation, Task}, Call) ->
    task(Operation, Task, Call);
perform(Operation, #call{client = #{tools := Tools}} = Call) ->
    maybe
        {ok, Request} ?= as_task(erlmcp_client_operation:request(Operation), Call),
        {ok, Result} ?= fresh_or_kept(Request, Call),
        ok ?= fits(Operation, Result, Tools),
        {ok, Result}
    else
        {error, What} when is_binary(What) -> protocol(What);
        {error, _} = Error -> Error
    end.

pages({Method, Params} = Request, Items, Fetch, Call, {Seen, Pages, Bytes}) ->
    #call{client = #{settings := #{limits := Limits}}} = Call,
    #{pages := Most, list_bytes := MostBytes} = Limits,
    case Fetch(Request, Call) of
        {ok, #{~"nextCursor" := Cursor}} when is_map_key(Cursor, Seen) ->
            {error, {cursor_loop, Cursor}};
        {ok, #{~"nextCursor" := Cursor}} when Cursor =/= null, map_size(Seen) + 1 >= Most ->
            {error, {too_many_pages, Most}};
        {ok, #{Items := Page, ~"nextCursor" := Cursor}} when Cursor =/= null ->
            case Bytes + erlang:external_size([Cursor | Page]) of
                More when More > MostBytes ->
                    {error, {too_large, MostBytes}};
                More ->
                    %% Without a copy, a page would keep the whole received message alive.
                    [Next | Own] = erlmcp_client_mailbox:own([Cursor | Page]),
                    pages({Method, #{~"cursor" => Next}}, Items, Fetch, Call,
                          {Seen#{Next => []}, [Own | Pages], More})
            end;
        {ok, #{Items := Page}} ->
            case Bytes + erlang:external_size(Page) of
                More when More > MostBytes -> {error, {too_large, MostBytes}};
                _ -> {ok, lists:append(lists:reverse([Page | Pages]))}
            end;
        {error, {rpc, #{code := -32602}} = Reason} when is_map_key(~"cursor", Params) ->
            {unknown_cursor, Reason};
        {error, _} = Error ->
            Error
    end.

%% In a session a call runs as a task only if the client asks for one. It does if the caller wants a
%% handle, or the tool requires a task.
as_task({~"tools/call", #{~"name" := Name} = Params} = Request, Call) ->
    #call{client = #{tools := Tools, settings := #{tasks := Tasks}}, options = Options} = Call,
    case Tasks andalso (maps:get(task, Options, await) =:= handle
                        orelse erlmcp_client_tools:is_task(Name, Tools)) of
        true ->
            case live(Request, Call) of
                {ok, #{revision := '2025-11-25', capabilities := #{
                    ~"tasks" := #{~"requests" := #{~"tools" := #{~"call" := _}}}}}} ->
                    {ok, {~"tools/call", Params#{~"task" => #{}}}};
                {ok, _} ->
                    {ok, Request};
                {error, _} = Error ->
                    Error
            end;
        false ->
            {ok, Request}
    end;
as_task(Request, _) ->
    {ok, Request}.

fits(_, #{~"resultType" := ~"task"}, _) ->
    ok;
fits({call_tool, Name, _}, #{~"content" := _} = Result, Tools) ->
    erlmcp_client_tools:check_result(Name, Result, Tools);
fits(_, _, _) ->
    ok.

fresh_or_kept(Request, #call{options = #{fresh := true}} = Call) ->
    send(Request, Call);
fresh_or_kept(Request, #call{client = #{cache := Cache}} = Call) ->
    case erlmcp_client_cache:find(cached(Request, Call), Cache) of
        {ok, Result} -> {ok, Result};
        none -> send(Request, Call)
    end.

%% Returns the request as a key of the cache. The members of `_meta` may change the result, except
%% those of a trace.
cached({Method, Params} = Request, #call{options = #{meta := Meta}}) ->
    case maps:without(?OF_TRACE, erlmcp_client_operation:members(Meta)) of
        None when map_size(None) =:= 0 ->
            Request;
        Members ->
            {Method, Params#{~"_meta" => maps:merge(Members, maps:get(~"_meta", Params, #{}))}}
    end;
cached(Request, _) ->
    Request.

%% A request is not sent if the negotiation before it fails, and is counted here then.
live(Request, #call{client = #{peer := Peer} = Client, watch = Watch} = Call) ->
    #{deadline := Deadline} = Watch,
    Began = erlang:monotonic_time(nanosecond),
    Negotiated = case erlmcp_client_table:live(Peer) of
        #{} = Live -> {ok, Live};
        _ -> waited(fun() -> erlmcp_client_connection:live(Client, Deadline) end, Call)
    end,
    case Negotiated of
        {error, Reason} = Error ->
            #{server := Server} = Client,
            ok = erlmcp_client_meter:unsent(Request, {Server, none}, Began, Reason),
            over_if_cancelled(Error);
        {ok, _} ->
            Negotiated
    end.

%% Waits for the client's process, in another process, so that this one hears when the caller gives
%% up.
waited(Ask, #call{watch = Watch} = Call) ->
    Caller = maps:get(caller, Watch, none),
    Cancel = maps:get(cancel, Watch, none),
    {Pid, Monitor} = erlmcp_one_shot:start(Ask, []),
    Outcome = receive
        {'DOWN', Monitor, process, Pid, {outcome, Answer}} -> Answer;
        {'DOWN', Monitor, process, Pid, Reason} -> {error, {crashed, Reason}};
        {'DOWN', Caller, process, _, _} -> {error, cancelled};
        {erlmcp_cancel, Cancel} -> {error, cancelled}
    end,
    true = demonitor(Monitor, [flush]),
    true = exit(Pid, kill),
    in_time(Outcome, Call).

over_if_cancelled({error, cancelled}) -> throw(cancelled);
over_if_cancelled(Outcome) -> Outcome.

%% When the time of a call is over, the error has the limit of the call, whichever step was waiting.
in_time({error, timeout}, #call{watch = Watch}) ->
    {error, {timeout, erlmcp_client_exchange:limit(Watch)}};
in_time(Outcome, _) ->
    Outcome.

send(Request, #call{client = #{cache := Cache}} = Given) ->
    Call = (in_user_time(Given))#call{changes = erlmcp_client_cache:changes(Cache)},
    case live(Request, Call) of
        {ok, Live} -> sent(Request, attempt(Request, Live, Call), Live, Call);
        {error, _} = Error -> Error
    end.

%% The user may have taken time since the request before. The questions that a server may ask during
%% a request count from then.
in_user_time(#call{client = Client, watch = Watch} = Call) ->
    Longer = erlmcp_client_exchange:with_user_time(Watch, Client),
    Call#call{watch = Longer#{user_time := erlmcp_client_questions:user_time(Client)}}.

attempt(Request, Live, #call{client = Client, options = Options, watch = Watch}) ->
    Extra = maps:from_list([{meta, erlmcp_client_operation:members(Meta)}
                            || #{meta := Meta} <- [Options]]
                           ++ [{log_level, Level} || Level <- level(Options, Client)]
                           ++ [{declarations, Declared}
                               || Declared <- declarations(Request, Client)]),
    erlmcp_client_exchange:run(Request, Extra, {Client, Live}, Watch).

level(#{log_level := Level}, _) -> [atom_to_binary(Level)];
level(_, #{settings := #{log_level := Level}}) -> [Level];
level(_, _) -> [].

declarations({~"tools/call", #{~"name" := Name}}, #{tools := Tools}) ->
    [Declared || [_ | _] = Declared <- [erlmcp_client_tools:declarations(Name, Tools)]];
declarations(_, _) ->
    [].

sent({Method, _} = Request, {ok, Result, _}, #{revision := Revision}, Call) ->
    case Result of
        #{~"resultType" := ~"input_required"} when Revision >= '2026-07-28' ->
            begun(next_round(Request, Result, Call));
        #{~"resultType" := Type} when Revision >= '2026-07-28', Type =/= ~"complete",
                                      Type =/= ~"task" ->
            protocol([~"result of ", Method, ~": resultType: expected a known one"]);
        #{~"resultType" := ~"task"} when Revision >= '2026-07-28' ->
            became_task(Request, Result, Call);
        #{~"task" := #{} = Task} when Method =:= ~"tools/call", Revision =:= '2025-11-25' ->
            became_task(Request, Task, Call);
        _ ->
            case erlmcp_client_operation:check(Method, Result) of
                ok -> {ok, cache_result(Request, Result, Revision, Call)};
                {error, What} -> protocol(What)
            end
    end;
sent(Request, {error, Reason}, Live, #call{tried = Tried} = Call) ->
    case remedy(Reason, Request, Live) of
        Remedy when Remedy =/= none ->
            case lists:member(Remedy, Tried) of
                true -> {error, Reason};
                false ->
                    remedied(Remedy, Request, {Reason, Live}, Call#call{tried = [Remedy | Tried]})
            end;
        none ->
            {error, Reason}
    end.

became_task({~"tools/call", _}, Task, #call{client = #{settings := #{tasks := true}}} = Call) ->
    #call{options = Options} = Call,
    case maps:get(task, Options, await) of
        handle -> {ok, Task};
        await -> begun(task(await, Task, Call))
    end;
became_task({Method, _}, _, _) ->
    protocol([~"result of ", Method, ~": expected no task, which the client has not asked for"]).

%% The server has begun the call, so no reason may say that nothing was done. Otherwise a pool would
%% begin the call again.
begun({error, {closed, unprocessed}}) -> {error, {closed, ended}};
begun({error, session_lost}) -> {error, {closed, session_lost}};
begun({error, {Kind, _} = Reason}) when Kind =:= connect; Kind =:= overload ->
    {error, {closed, Reason}};
begun({error, {http, Status, _, _} = Reason}) when Status =:= 429; Status =:= 503 ->
    {error, {closed, Reason}};
begun(Outcome) -> Outcome.

protocol(What) ->
    {error, {protocol, iolist_to_binary(What)}}.

%% A result that depends on answers of the user is not cached.
cache_result(_, Result, _, #call{rounds = Rounds}) when Rounds > 0 ->
    Result;
cache_result({~"tools/list", Params} = Request, #{~"tools" := Listed} = Result, Revision, Call) ->
    #call{client = #{cache := Cache, tools := Tools, settings := #{rules := Rules}},
          changes = Changes} = Call,
    Mirrors = Rules =:= http andalso Revision >= '2026-07-28',
    Page = case is_map_key(~"cursor", Params) of
        false -> first;
        true -> next
    end,
    Learned = Result#{~"tools" := erlmcp_client_tools:learn(Listed, Page, Mirrors, Tools)},
    ok = erlmcp_client_cache:keep(cached(Request, Call), Learned, Changes, Cache),
    Learned;
cache_result(Request, Result, _, #call{client = #{cache := Cache}, changes = Changes} = Call) ->
    ok = erlmcp_client_cache:keep(cached(Request, Call), Result, Changes, Cache),
    Result.

%% Returns the remedy for a failure: a new session, another revision, the newest definition of the
%% tool, or a repetition.
remedy(session_lost, _, _) -> session;
remedy({rpc, #{code := -32022}}, _, _) -> version;
remedy({rpc, #{code := -32020}}, {~"tools/call", _}, #{revision := '2026-07-28'}) -> headers;
remedy({closed, unprocessed}, _, _) -> again;
remedy({closed, _}, {Method, _}, _) ->
    case erlmcp_client_operation:is_safe(Method) of
        true -> again;
        false -> none
    end;
remedy(_, _, _) -> none.

remedied(headers, Request, {Reason, _}, Call) ->
    #call{options = Options} = Call,
    case perform({list, tools}, Call#call{options = Options#{fresh => true}, rounds = 0}) of
        {ok, _} -> send(Request, Call);
        {error, _} -> {error, Reason}
    end;
remedied(again, Request, _, Call) ->
    receive
    after ?AGAIN div 2 + rand:uniform(?AGAIN) ->
        send(Request, Call)
    end;
remedied(_, Request, {_, Live}, #call{client = Client, watch = #{deadline := Deadline}} = Call) ->
    Ask = fun() -> erlmcp_client_connection:renegotiate(Client, Live, Deadline) end,
    case waited(Ask, Call) of
        {ok, _} -> send(Request, Call);
        {error, _} = Error -> over_if_cancelled(Error)
    end.

%% Sends the request again, with the answers and the server's state. The state belongs to this
%% request only.
next_round(_, _, #call{rounds = ?ROUNDS}) ->
    {error, {too_many_rounds, ?ROUNDS}};
next_round({Method, _}, Result, _) when
    not is_map_key(~"inputRequests", Result), not is_map_key(~"requestState", Result)
->
    protocol([~"result of ", Method, ~": expected inputRequests or requestState"]);
next_round({Method, Params}, Result, #call{client = Client, rounds = Rounds} = Call) ->
    Requests = maps:get(~"inputRequests", Result, #{}),
    Since = erlmcp_clock:now_ms(),
    maybe
        true ?= is_map(Requests),
        {ok, Answers} ?= erlmcp_client_inputs:gather(Requests, Call#call.watch, Client),
        Answered = case map_size(Answers) of
            0 -> maps:without([~"inputResponses", ~"requestState"], Params);
            _ -> (maps:remove(~"requestState", Params))#{~"inputResponses" => Answers}
        end,
        Again = maps:merge(Answered, maps:with([~"requestState"], Result)),
        send({Method, Again},
             Call#call{rounds = Rounds + 1, watch = renewed(Since, Call#call.watch)})
    else
        false ->
            protocol([~"result of ", Method, ~": inputRequests: expected an object"]);
        {error, _} = Error ->
            Error
    end.

%% The time of the user's answers is not counted as the server's.
renewed(Since, #{timeout := Timeout, last_deadline := Last} = Watch) ->
    Now = erlmcp_clock:now_ms(),
    NextLast = Last + Now - Since,
    Watch#{deadline := min(Now + Timeout, NextLast), last_deadline := NextLast}.

%% Gets a task of the server, cancels it, or waits for it. In a wait, each poll has the `timeout` of
%% a call, and all polls together have its `max_timeout`. The task is cancelled when a time is over,
%% and when the call is cancelled.
task(Operation, #{~"taskId" := Id} = Task, Call) when is_binary(Id) ->
    Own = Call#call{rounds = 0, tried = []},
    case Operation of
        get -> send({~"tasks/get", #{~"taskId" => Id}}, Own);
        cancel -> send({~"tasks/cancel", #{~"taskId" => Id}}, Own);
        await -> awaited(Task, Own)
    end;
task(_, _, _) ->
    protocol(~"task: taskId: expected a string").

awaited(#{~"taskId" := Id} = Task, Call) ->
    try
        poll(Task, #{}, Call)
    of
        {error, {timeout, _}} = Error ->
            ok = end_task(Id, Call),
            Error;
        Outcome ->
            Outcome
    catch
        throw:cancelled ->
            ok = end_task(Id, Call),
            throw(cancelled)
    end.

%% Cancels a task. The request has its own timeout, so it is sent even when the call's time is over
%% or its caller is dead. It may fail because the task has ended already, which does not matter.
end_task(Id, #call{client = Client} = Call) ->
    Watch = erlmcp_client_exchange:watch(#{timeout => ?CANCEL}, Client),
    _ = send({~"tasks/cancel", #{~"taskId" => Id}}, Call#call{watch = Watch}),
    ok.

poll(#{~"taskId" := Id} = Task, Answered, Call) ->
    Outcome = case look(Task, Call) of
        %% A poll changes nothing, so a late one is repeated. Two in a row end the wait.
        {error, {timeout, _}} -> look(Task, Call);
        Looked -> Looked
    end,
    case Outcome of
        {ok, #{~"status" := Status} = Polled} ->
            on_status(Status, Polled#{~"taskId" => Id}, Answered, Call);
        {ok, _} -> protocol(~"result of tasks/get: status: expected a string");
        {error, _} = Error -> Error
    end.

look(#{~"taskId" := Id} = Task, Call) ->
    #call{watch = Watch} = in_user_time(Call),
    ok = pause(pace(Task), Watch),
    send_in_time({~"tasks/get", #{~"taskId" => Id}}, Call).

on_status(~"working", Task, Answered, Call) ->
    poll(Task, Answered, Call);
on_status(~"input_required", #{~"inputRequests" := #{} = Requests} = Task, Answered, Call) ->
    #{~"taskId" := Id} = Task,
    #call{client = Client, watch = #{last_deadline := Last} = Watch} = Call,
    Since = erlmcp_clock:now_ms(),
    maybe
        New = #{Name => Request || Name := Request <- Requests,
                                   not is_map_key(digest(Name), Answered)},
        {ok, Answers} ?= erlmcp_client_inputs:gather(New, Watch, Client),
        %% The time of the user's answers is not counted as the server's.
        NextLast = Last + erlmcp_clock:now_ms() - Since,
        Renewed = Call#call{watch = Watch#{last_deadline := NextLast}},
        {ok, _} ?= updated(Id, Answers, Renewed),
        Digests = #{digest(Name) => [] || Name := _ <- Answers},
        poll(Task, maps:merge(Answered, Digests), Renewed)
    end;
on_status(~"completed", #{~"result" := Result}, _, _) ->
    tool_result(Result);
on_status(~"failed", #{~"error" := Error}, _, _) ->
    {error, erlmcp_client_exchange:failure(Error)};
on_status(~"cancelled", _, _, _) ->
    {error, cancelled};
%% In a session, the answer to `tasks/result` is the result or the error, and the server's requests
%% for input come before it.
on_status(Status, #{~"taskId" := Id}, _, #call{watch = Watch} = Call) when
    Status =:= ~"input_required"; Status =:= ~"completed"; Status =:= ~"failed"
->
    #{max_timeout := Most} = Watch,
    Request = {~"tasks/result", #{~"taskId" => Id}},
    case send_in_time(Request, Call#call{watch = Watch#{timeout := Most}}) of
        {ok, Result} -> tool_result(Result);
        {error, _} = Error -> Error
    end;
on_status(_, _, _, _) ->
    protocol(~"result of tasks/get: status: expected a known one").

%% A server may give any number of questions names of any length. The digests are on the heap, which
%% is bounded.
digest(Name) ->
    crypto:hash(sha256, Name).

tool_result(Result) ->
    case erlmcp_client_operation:check(~"tools/call", Result) of
        ok -> {ok, Result};
        {error, What} -> protocol(What)
    end.

updated(_, Answers, _) when map_size(Answers) =:= 0 ->
    {ok, none};
updated(Id, Answers, Call) ->
    send_in_time({~"tasks/update", #{~"taskId" => Id, ~"inputResponses" => Answers}}, Call).

send_in_time(Request, Given) ->
    #call{watch = Watch} = Call = in_user_time(Given),
    #{timeout := Timeout, last_deadline := Last, max_timeout := Most} = Watch,
    case erlmcp_clock:now_ms() of
        Now when Now < Last ->
            send(Request, Call#call{watch = Watch#{deadline := min(Now + Timeout, Last)}});
        _ ->
            {error, {timeout, Most}}
    end.

pace(#{~"pollIntervalMs" := Pace}) when is_integer(Pace) -> max(?FASTEST, min(?SLOWEST, Pace));
pace(#{~"pollInterval" := Pace}) when is_integer(Pace) -> max(?FASTEST, min(?SLOWEST, Pace));
pace(_) -> ?PACE.

pause(Milliseconds, #{last_deadline := Last} = Watch) ->
    Caller = maps:get(caller, Watch, none),
    Cancel = maps:get(cancel, Watch, none),
    receive
        {'DOWN', Caller, process, _, _} -> throw(cancelled);
        {erlmcp_cancel, Cancel} -> throw(cancelled)
    after max(0, min(Milliseconds, Last - erlmcp_clock:now_ms())) -> ok
    end.
