-module(erlmcp_client_call).
-moduledoc """
The process of one call of a client's: it sends what the operation takes, on the channel itself,
goes through the rounds that the server asks for, repeats what may be repeated, and ends with the
outcome. Its deadline, its heap and the number of its like are bounded; when its caller ends, so
does it, and the server is told.

Sources: specification 2026-07-28, "Multi Round-Trip Requests", "Pagination", "Header Validation".
""".

-export([run/3, start/4, cancel/2, request/3]).
-export([sweep/1, stop_all/1]).

-export_type([options/0, reason/0]).

-doc """
What one call may have of its own: `timeout` in milliseconds until the answer, or until the next
progress, which is asked for if `progress` is there; `max_timeout` for all of it; `progress` and
`log` are funs that get the parameters of such notifications, in the call's process; `log_level`
asks for log messages in 2026-07-28; `meta` goes into the request's `_meta`; `fresh` leaves out what
is cached; `task` says whether a call that becomes a task is waited for, or its task the result.
`key` and `repeatable` are for pools, see `m:erlmcp_pool`.
""".
-type options() :: #{
    timeout => pos_integer(), max_timeout => pos_integer(),
    progress => fun((map()) -> term()), log => fun((map()) -> term()),
    log_level => erlmcp:level(), meta => map(), fresh => boolean(),
    task => await | handle, key => term(), repeatable => boolean()
}.
-doc """
Why a call failed, beside what `t:erlmcp_channel:reason/0` says.

- `{rpc, Error}`: the server answered with that error.
- `{timeout, Milliseconds}`: it did not answer within them; it has been told that the call is
  cancelled.
- `{unsupported_version, Theirs}`: there is no revision that both speak.
- `{cursor_loop, Cursor}`, `{too_many_pages, Limit}`: a list that does not end.
- `{too_many_rounds, Limit}`: a server that asks for input again and again.
- `{input, Name, Why}`: what the server asked for under that name could not be answered.
- `{unavailable, Milliseconds}`: no member of the pool works; one may in so many milliseconds.
- `{too_large, heap}`: what came takes more memory than a call may use.
- `cancelled`, `stopped`, `{crashed, Reason}`: the call was ended, the client was, or a fun of the
  call's.
""".
-type reason() ::
    erlmcp_channel:reason()
    | {too_large, heap}
    | {rpc, #{code := integer(), message := binary(), data => term()}}
    | {timeout, Milliseconds :: pos_integer()}
    | {unsupported_version, Theirs :: [binary()]}
    | {cursor_loop, Cursor :: binary()} | {too_many_pages, pos_integer()}
    | {too_many_rounds, pos_integer()}
    | {input, Name :: binary(), Why :: term()}
    | {unavailable, Milliseconds :: non_neg_integer()}
    | {crashed, term()}
    | cancelled | stopped.

%% How often a server may ask for input before it gives the result.
-define(ROUNDS, 20).
%% Milliseconds to cancel a task.
-define(CANCEL, 5000).
%% Milliseconds until what may be repeated is.
-define(AGAIN, 200).

%% Words of a call's heap at its beginning.
-define(HEAP_WORDS, 2048).

-record(call, {
    client :: erlmcp_peer:client(),
    options :: options(),
    watch :: erlmcp_client_attempt:watch(),
    %% What has been tried once and is not tried again.
    tried = [] :: [session | version | headers | again],
    rounds = 0 :: non_neg_integer(),
    %% How often something had changed at the server before the request was sent.
    changes = 0 :: non_neg_integer()
}).

-doc "Runs an operation and waits for its outcome.".
-spec run(erlmcp_operation:operation(), erlmcp_peer:client(), options()) ->
    {ok, term()} | {error, reason()}.
run(Operation, #{calls := Calls} = Client, Options) ->
    Caller = self(),
    {Pid, Monitor} = erlmcp_outcome:start(fun() ->
        Watch = watch(Options#{caller => monitor(process, Caller)}, Client),
        Outcome = outcome(Operation, Client, Options, Watch, none),
        _ = has_left(Calls),
        Outcome
    end, bounds(Client)),
    receive
        {'DOWN', Monitor, process, Pid, {outcome, Outcome}} -> Outcome;
        {'DOWN', Monitor, process, Pid, Reason} -> {error, died(Reason)}
    end.

-doc """
Runs an operation whose outcome is sent to the calling process, as `{erlmcp, Reference, Outcome}`,
and before it `{erlmcp, Reference, {progress | log, Params}}`.
""".
-spec start(erlmcp_operation:operation(), erlmcp_peer:client(), options(), pid()) -> reference().
start(Operation, #{calls := Calls} = Client, Options, Receiver) ->
    Reference = make_ref(),
    Tell = fun(Kind) ->
        fun(Params) ->
            erlmcp_client_mailbox:offer(Receiver, {erlmcp, Reference, {Kind, Params}})
        end
    end,
    Told = maps:merge(#{progress => Tell(progress), log => Tell(log)}, Options),
    To = {Receiver, Reference},
    Pid = spawn_opt(fun() ->
        receive {go, Reference} -> ok end,
        try
            Watch = watch(Told#{caller => monitor(process, Receiver), cancel => Reference}, Client),
            outcome(Operation, Client, Told, Watch, To)
        of
            Outcome -> ended(Outcome, To, Calls)
        catch
            Class:Reason:Stack ->
                ended({error, {crashed, crash(Class, Reason, Stack)}}, To, Calls),
                erlang:raise(Class, Reason, Stack)
        end
    end, bounds(Client)),
    %% It can be cancelled from now on.
    try ets:insert(Calls, {Pid, To}) of
        true ->
            Pid ! {go, Reference},
            ok
    catch
        %% The table ends with its client.
        error:badarg ->
            exit(Pid, kill),
            tell(To, {error, stopped})
    end,
    Reference.

ended(Outcome, To, Calls) ->
    case has_left(Calls) of
        true -> tell(To, Outcome);
        false -> ok
    end.

%% As the reason of an exit has it.
crash(error, Reason, Stack) -> {Reason, Stack};
crash(throw, Reason, Stack) -> {{nocatch, Reason}, Stack};
crash(exit, Reason, _) -> Reason.

bounds(#{settings := #{limits := #{call_heap_bytes := Bytes}}}) ->
    Words = Bytes div erlang:system_info(wordsize),
    %% Most calls are over before they need more. Without a report: the caller is told.
    [{min_heap_size, min(?HEAP_WORDS, Words)},
     {max_heap_size, #{size => Words, kill => true, error_logger => false,
                       include_shared_binaries => false}}].

died(killed) -> {too_large, heap};
died(shutdown) -> stopped;
died(Reason) -> {crashed, Reason}.

-doc "Cancels a call that `start/4` started; its outcome is then `{error, cancelled}`.".
-spec cancel(reference(), erlmcp_peer:client()) -> ok.
cancel(Reference, #{calls := Calls}) ->
    try ets:match(Calls, {'$1', {'_', Reference}}) of
        Found -> lists:foreach(fun([Pid]) -> Pid ! {erlmcp_cancel, Reference} end, Found)
    catch
        error:badarg -> ok
    end.

-doc "Sends one request of the client's own, when what its server is, is known already.".
-spec request({Method :: binary(), Params :: map()}, erlmcp_peer:client(), erlmcp_peer:live()) ->
    erlmcp_client_attempt:outcome().
request(Request, Client, Live) ->
    erlmcp_client_attempt:run(Request, #{}, {Client, Live}, watch(#{}, Client)).

watch(Options, #{settings := #{timeout := Default, max_timeout := DefaultMost}}) ->
    Now = erlang:monotonic_time(millisecond),
    Timeout = maps:get(timeout, Options, Default),
    Most = max(Timeout, maps:get(max_timeout, Options, DefaultMost)),
    maps:merge(maps:with([caller, cancel, progress, log], Options),
               #{timeout => Timeout, deadline => Now + Timeout,
                 max_timeout => Most, last_deadline => Now + Most}).

%% The table of running calls bounds their number, and finds those that were killed.
outcome(Operation, #{calls := Calls, settings := #{calls := Limit}} = Client, Options, Watch, To) ->
    try
        true = ets:insert(Calls, {self(), To}),
        ets:info(Calls, size)
    of
        Running when Running > Limit ->
            {error, {overload, Limit}};
        _ ->
            try
                perform(Operation, #call{client = Client, options = Options, watch = Watch})
            catch
                throw:cancelled -> {error, cancelled}
            end
    catch
        error:badarg -> {error, stopped}
    end.

%% Whether nobody else has told what came of this call, or does now.
has_left(Calls) ->
    try
        ets:take(Calls, self()) =/= []
    catch
        %% Who stops the client in order has sent its signal before the table went.
        error:badarg -> receive after 0 -> true end
    end.

-doc "Tells the receivers of calls that were killed, of which nobody else hears.".
-spec sweep(ets:tid()) -> ok.
sweep(Calls) ->
    Dead = [Row || {Pid, _} = Row <- ets:tab2list(Calls), not is_process_alive(Pid)],
    lists:foreach(fun({Pid, To}) ->
                      case ets:take(Calls, Pid) of
                          [_] -> tell(To, {error, {too_large, heap}});
                          [] -> ok
                      end
                  end, Dead).

-doc "Ends all calls: the client is stopped.".
-spec stop_all(ets:tid()) -> ok.
stop_all(Calls) ->
    lists:foreach(fun({Pid, To}) ->
                      Told = ets:take(Calls, Pid),
                      exit(Pid, shutdown),
                      [ok = tell(To, {error, stopped}) || _ <- Told]
                  end, ets:tab2list(Calls)).

tell(none, _) -> ok;
tell({Receiver, Reference}, Outcome) ->
    Receiver ! {erlmcp, Reference, Outcome},
    ok.

perform({list, List}, Call) ->
    #call{client = #{settings := #{limits := Limits}}} = Call,
    erlmcp_client_pages:collect(erlmcp_operation:pages(List),
                                fun(Request, kept) -> fresh_or_kept(Request, Call);
                                   (Request, fresh) -> send(Request, Call)
                                end, Limits);
perform(ping, Call) ->
    %% 2026-07-28 has no ping; this asks as little.
    maybe
        {ok, #{revision := Revision}} ?= live(Call),
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
        {ok, Request} ?= as_task(erlmcp_operation:request(Operation), Call),
        {ok, Result} ?= fresh_or_kept(Request, Call),
        ok ?= fits(Operation, Result, Tools),
        {ok, Result}
    else
        {error, What} when is_binary(What) -> protocol(What);
        {error, _} = Error -> Error
    end.

%% In a session the client says that a call is to be a task, and has to where the tool wants it.
as_task({~"tools/call", #{~"name" := Name} = Params} = Request, Call) ->
    #call{client = #{tools := Tools, settings := #{tasks := Tasks}}, options = Options} = Call,
    case Tasks andalso (maps:get(task, Options, await) =:= handle
                        orelse erlmcp_client_tools:is_task(Name, Tools)) of
        true ->
            case live(Call) of
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

task(Operation, Task, #call{client = Client, watch = Watch} = Call) ->
    Send = fun(Request, Bounds) ->
        send(Request, Call#call{rounds = 0, tried = [], watch = Bounds})
    end,
    %% What ends a task has time when the call has none any more.
    Late = fun(Request) -> Send(Request, watch(#{timeout => ?CANCEL}, Client)) end,
    erlmcp_client_task:run(Operation, Task, {Send, Late}, Watch, Client).

fits(_, #{~"resultType" := ~"task"}, _) ->
    ok;
fits({call_tool, Name, _}, #{~"content" := _} = Result, Tools) ->
    erlmcp_client_tools:check_result(Name, Result, Tools);
fits(_, _, _) ->
    ok.

fresh_or_kept(Request, #call{options = #{fresh := true}} = Call) ->
    send(Request, Call);
fresh_or_kept(Request, #call{client = #{cache := Cache}} = Call) ->
    case erlmcp_client_cache:find(Request, Cache) of
        {ok, Result} -> {ok, Result};
        none -> send(Request, Call)
    end.

live(#call{client = Client, watch = #{deadline := Deadline}} = Call) ->
    in_time(erlmcp_peer:live(Client, Deadline), Call).

%% Whatever a call waited for when its time was over, its time is what it is told.
in_time({error, timeout}, #call{watch = #{timeout := Timeout}}) -> {error, {timeout, Timeout}};
in_time(Outcome, _) -> Outcome.

send(Request, #call{client = #{cache := Cache}} = Given) ->
    Call = Given#call{changes = erlmcp_client_cache:changes(Cache)},
    case live(Call) of
        {ok, Live} -> sent(Request, attempt(Request, Live, Call), Live, Call);
        {error, _} = Error -> Error
    end.

attempt(Request, Live, #call{client = Client, options = Options, watch = Watch}) ->
    Extra = maps:from_list([{meta, Meta} || #{meta := Meta} <- [Options]]
                           ++ [{log_level, Level} || Level <- level(Options, Client)]
                           ++ [{declarations, Declared}
                               || Declared <- declarations(Request, Client)]),
    erlmcp_client_attempt:run(Request, Extra, {Client, Live}, Watch).

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
            asked(Request, Result, Call);
        #{~"resultType" := Type} when Revision >= '2026-07-28', Type =/= ~"complete",
                                      Type =/= ~"task" ->
            protocol([~"result of ", Method, ~": resultType: expected one that is known"]);
        #{~"resultType" := ~"task"} when Revision >= '2026-07-28' ->
            became_task(Request, Result, Call);
        #{~"task" := #{} = Task} when Method =:= ~"tools/call", Revision =:= '2025-11-25' ->
            became_task(Request, Task, Call);
        _ ->
            case erlmcp_operation:check(Method, Result) of
                ok -> {ok, kept(Request, Result, Revision, Call)};
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
        await -> task(await, Task, Call)
    end;
became_task({Method, _}, _, _) ->
    protocol([~"result of ", Method, ~": expected no task, which the client has not asked for"]).

protocol(What) ->
    {error, {protocol, iolist_to_binary(What)}}.

%% What came of answers is not what everybody would get.
kept(_, Result, _, #call{rounds = Rounds}) when Rounds > 0 ->
    Result;
kept({~"tools/list", _} = Request, #{~"tools" := Listed} = Result, Revision, Call) ->
    #call{client = #{cache := Cache, tools := Tools, settings := #{rules := Rules}},
          changes = Changes} = Call,
    Mirrors = Rules =:= http andalso Revision >= '2026-07-28',
    Learned = Result#{~"tools" := erlmcp_client_tools:learn(Listed, Mirrors, Tools)},
    ok = erlmcp_client_cache:keep(Request, Learned, Changes, Cache),
    Learned;
kept(Request, Result, _, #call{client = #{cache := Cache}, changes = Changes}) ->
    ok = erlmcp_client_cache:keep(Request, Result, Changes, Cache),
    Result.

%% What may help: a new session, another revision, the tool's newest definition, one more try.
remedy(session_lost, _, _) -> session;
remedy({rpc, #{code := -32022}}, _, _) -> version;
remedy({rpc, #{code := -32020}}, {~"tools/call", _}, #{revision := '2026-07-28'}) -> headers;
remedy({closed, unprocessed}, _, _) -> again;
remedy({closed, _}, {Method, _}, _) ->
    case erlmcp_operation:is_safe(Method) of
        true -> again;
        false -> none
    end;
remedy(_, _, _) -> none.

remedied(headers, Request, {Reason, _}, Call) ->
    #call{options = Options} = Call,
    case perform({list, tools}, Call#call{options = Options#{fresh => true}}) of
        {ok, _} -> send(Request, Call);
        {error, _} -> {error, Reason}
    end;
remedied(again, Request, _, Call) ->
    receive
    after ?AGAIN div 2 + rand:uniform(?AGAIN) ->
        send(Request, Call)
    end;
remedied(_, Request, {_, Live}, #call{client = Client, watch = #{deadline := Deadline}} = Call) ->
    case in_time(erlmcp_peer:lost(Client, Live, Deadline), Call) of
        {ok, _} -> send(Request, Call);
        {error, _} = Error -> Error
    end.

%% The state is the server's, and is sent back with this very request or not at all.
asked(_, _, #call{rounds = ?ROUNDS}) ->
    {error, {too_many_rounds, ?ROUNDS}};
asked({Method, _}, Result, _) when
    not is_map_key(~"inputRequests", Result), not is_map_key(~"requestState", Result)
->
    protocol([~"result of ", Method, ~": expected inputRequests or requestState"]);
asked({Method, Params}, Result, #call{client = Client, rounds = Rounds} = Call) ->
    Requests = maps:get(~"inputRequests", Result, #{}),
    Since = erlang:monotonic_time(millisecond),
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

%% The time of the user's answers is not the server's.
renewed(Since, #{timeout := Timeout, last_deadline := Last} = Watch) ->
    Now = erlang:monotonic_time(millisecond),
    NextLast = Last + Now - Since,
    Watch#{deadline := min(Now + Timeout, NextLast), last_deadline := NextLast}.
