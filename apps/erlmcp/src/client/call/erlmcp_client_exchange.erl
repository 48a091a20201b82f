-module(erlmcp_client_exchange).
-moduledoc """
The exchange of one request and its response. It sends the request on the client's channel, waits
until the deadline, and handles the messages that come before the response. It runs in the calling
process, and drops all other messages of its mailbox meanwhile.

Sources: specification, "Progress", "Cancellation", "Timeouts"; 2025-11-25, "Client features".

Internal.
""".

-export([watch/2, with_user_time/2, limit/1, run/4, request/3, failure/1]).

-export_type([watch/0, outcome/0]).

-doc """
The time limits of a request, and the receivers of its notifications.

- `timeout`, `max_timeout`: the milliseconds from which the deadlines were computed. The reason
  `{timeout, Milliseconds}` has one of them. A negotiation has no `max_timeout`.
- `deadline`, `last_deadline`: in milliseconds of `erlang:monotonic_time/1`. A progress notification
  moves `deadline` to `timeout` milliseconds from then, if that is later, but not past
  `last_deadline`. The time that the user takes for answers is added to both. If the server asks
  outside of calls, the time is added for all calls. On lines, for example, nothing tells which call
  a question belongs to.
- `user_time`: `erlmcp_client_questions:user_time/1` when the deadlines were set.
- `caller`, `cancel`: the call is cancelled when the process of the monitor `caller` dies, or when
  the message `{erlmcp_cancel, Reference}` comes with the reference `cancel`.
- `progress`, `log`: funs that get the parameters of notifications, in the process that waits.
- `trace`: the context of the parent of the request's span.
""".
-type watch() :: #{
    timeout := pos_integer(), deadline := integer(), last_deadline := integer(),
    max_timeout => pos_integer(),
    user_time := {Questions :: non_neg_integer(), Milliseconds :: non_neg_integer()},
    caller => reference(), cancel => reference(),
    progress => fun((map()) -> term()), log => fun((map()) -> term()),
    trace => erlmcp_tracer:context()
}.
-type outcome() ::
    {ok, Result :: term(), Headers :: #{binary() => binary()}}
    | {error, {rpc, map()} | {timeout, pos_integer()} | cancelled | erlmcp_channel:reason()}.

%% The most requests that a server may send to the client during one call. After as many questions
%% outside of calls, a call waits no longer for the user.
-define(QUESTIONS, 100).
%% Milliseconds after the deadline in which messages that have come are still read. A server that
%% never stops sending cannot prolong the call beyond that.
-define(LATE, 50).
%% The least milliseconds by which a deadline moves for the user.
-define(LEAST, 100).

-record(attempt, {
    client :: erlmcp_client_connection:client(),
    live :: erlmcp_client_connection:live(),
    id :: erlmcp_message:id(),
    method :: binary(),
    exchange :: erlmcp_channel:exchange(),
    %% The bytes of the request.
    sent :: pos_integer(),
    watch :: watch(),
    headers = #{} :: #{binary() => binary()},
    %% Monitors of the processes that answer requests of the server, the time since there has been
    %% one, and the deadline at that time.
    questions = [] :: [reference()],
    paused = none :: none | {Since :: integer(), Deadline :: integer()},
    %% The number of requests that the server has sent during this call.
    question_count = 0 :: non_neg_integer()
}).

-doc """
Returns the time limits, the receivers and the trace context of a call from its options. `caller`
and `cancel` are kept if `Options` has them. `timeout` and `max_timeout` count from now, and have
the client's settings as their defaults. `max_timeout` is at least `timeout`.
""".
-spec watch(Options :: map(), erlmcp_client_connection:client()) -> watch().
watch(Options, #{settings := #{timeout := Default, max_timeout := DefaultMost}} = Client) ->
    Now = erlmcp_clock:now_ms(),
    Timeout = maps:get(timeout, Options, Default),
    Most = max(Timeout, maps:get(max_timeout, Options, DefaultMost)),
    maps:merge(maps:with([caller, cancel, progress, log, trace], Options),
               #{timeout => Timeout, deadline => Now + Timeout,
                 max_timeout => Most, last_deadline => Now + Most,
                 user_time => erlmcp_client_questions:user_time(Client)}).

-doc """
Adds the time that the user has taken for questions outside of calls to the deadlines, and returns
the new time limits. The time counts once, and only as long as the server has asked at most 100
questions since the deadlines were set.
""".
-spec with_user_time(watch(), erlmcp_client_connection:client()) -> watch().
with_user_time(#{user_time := {First, Before}} = Watch, Client) ->
    case erlmcp_client_questions:user_time(Client) of
        {Questions, UserTime} when UserTime > Before, Questions - First =< ?QUESTIONS ->
            #{deadline := Deadline, last_deadline := Last} = Watch,
            More = max(?LEAST, UserTime - Before),
            Watch#{deadline := Deadline + More, last_deadline := Last + More,
                   user_time := {First, UserTime}};
        _ ->
            Watch
    end.

-doc """
Returns the milliseconds in the reason `{timeout, Milliseconds}` of a request whose deadline has
passed. They are `max_timeout` if that was the limit which the request met, and otherwise `timeout`.
""".
-spec limit(watch()) -> pos_integer().
limit(#{deadline := Last, last_deadline := Last, max_timeout := Most}) -> Most;
limit(#{timeout := Timeout}) -> Timeout.

-doc """
Sends a request, waits for its response, counts the request, and ends its span. Throws `cancelled`
if the caller dies or cancels the call. The request is then cancelled at the server, or not sent if
it has not been yet. It is cancelled there after the deadline, too, and after a message that is not
MCP. A request `initialize` is never cancelled there.
""".
-spec run({Method :: binary(), Params :: map()}, erlmcp_client_request:extra(),
          {erlmcp_client_connection:client(), erlmcp_client_connection:live()}, watch()) ->
    outcome().
run(Request, Extra, {#{ids := Ids} = Client, Live} = Peer, Watch) ->
    Began = erlang:monotonic_time(nanosecond),
    Id = atomics:add_get(Ids, 1, 1),
    {Traced, Span} = erlmcp_client_span:start(Request, Extra, Client, Watch),
    Ended = fun(Outcome, {Sent, Received}) ->
        ok = erlmcp_client_span:ended(Outcome, Id, Client, Live, Span),
        erlmcp_client_meter:ended(Request, kind(Client, Live), {Began, Sent, Received}, Outcome)
    end,
    try exchange(Id, Request, Traced, Peer, Watch) of
        {Outcome, Bytes} ->
            ok = Ended(Outcome, Bytes),
            case Outcome of
                {error, cancelled} -> throw(cancelled);
                _ -> Outcome
            end
    catch
        Class:Reason:Stack ->
            ok = Ended({error, {crashed, Reason}}, {0, 0}),
            erlang:raise(Class, Reason, Stack)
    end.

kind(#{server := Server}, #{revision := Revision}) -> {Server, Revision}.

exchange(Id, {Method, _} = Request, Extra, {Client, Live}, #{deadline := Deadline} = Watch) ->
    #{channel := {Transport, Handle}, identity := Identity} = Client,
    #{revision := Revision, session := Session, generation := Generation} = Live,
    {Message, Headers} = erlmcp_client_request:request(Id, Request, token(Id, Watch, Extra),
                                                       {Revision, Identity}),
    Outgoing = (maps:with([caller, cancel], Watch))#{
        kind => request, id => Id, token => Id, message => Message, headers => Headers,
        session => Session, generation => Generation, deadline => Deadline,
        resumes => erlmcp_revision:era(Revision) =:= session},
    %% The call may have waited for the negotiation or for a user before.
    Sent = case erlmcp_channel:is_given_up(Watch) of
        true -> {error, cancelled};
        false -> Transport:send(Outgoing, Handle)
    end,
    case Sent of
        {ok, Exchange} ->
            await(#attempt{client = Client, live = Live, id = Id, method = Method,
                           exchange = Exchange, sent = iolist_size(Message), watch = Watch});
        {error, Reason} ->
            {{error, reason(Reason, Watch)}, {0, 0}}
    end.

-doc """
Sends a request of the client itself, after the negotiation, and waits for its response, with the
client's `timeout` and `max_timeout`.
""".
-spec request({Method :: binary(), Params :: map()}, erlmcp_client_connection:client(),
              erlmcp_client_connection:live()) ->
    outcome().
request(Request, Client, Live) ->
    run(Request, #{}, {Client, Live}, watch(#{}, Client)).

%% The progress token asks the server for progress. It is the request's id, which is unique in a
%% client.
token(Id, #{progress := _}, Extra) -> Extra#{token => Id};
token(_, _, Extra) -> Extra.

await(#attempt{watch = #{deadline := Deadline}} = Attempt) ->
    case Deadline - erlmcp_clock:now_ms() of
        Remaining when Remaining < -?LATE -> expired(Attempt);
        Remaining -> await(max(0, Remaining), Attempt)
    end.

await(Remaining, #attempt{exchange = Exchange, client = #{channel := {Transport, _}},
                          watch = #{deadline := Deadline} = Watch} = Attempt) ->
    Caller = maps:get(caller, Watch, none),
    Cancel = maps:get(cancel, Watch, none),
    receive
        {'DOWN', Caller, process, _, _} ->
            give_up(Attempt, ~"the caller is gone"),
            over({error, cancelled}, Attempt);
        {erlmcp_cancel, Cancel} ->
            give_up(Attempt, ~"the caller cancelled it"),
            over({error, cancelled}, Attempt);
        {'DOWN', Monitor, process, _, _} = Message ->
            case lists:member(Monitor, Attempt#attempt.questions) of
                true -> await(answered(Monitor, Attempt));
                false -> happened(Transport:received(Message, Exchange), Attempt)
            end;
        %% The stream of a session on HTTP is resumed, which may take until the deadline.
        {timeout, Timer, resume} ->
            Message = {timeout, Timer, {resume, Deadline}},
            happened(Transport:received(Message, Exchange), Attempt);
        Message ->
            happened(Transport:received(Message, Exchange), Attempt)
    after Remaining ->
        expired(Attempt)
    end.

expired(#attempt{client = Client, watch = Watch} = Attempt) ->
    case with_user_time(Watch, Client) of
        Watch -> timed_out(Attempt);
        Longer -> await(Attempt#attempt{watch = Longer})
    end.

timed_out(#attempt{watch = Watch} = Attempt) ->
    give_up(Attempt, ~"the deadline passed"),
    over({error, {timeout, limit(Watch)}}, Attempt).

%% The outcome of the request, with the bytes of both directions.
over(Outcome, #attempt{client = #{channel := {Transport, _}}, exchange = Exchange, sent = Sent}) ->
    {Outcome, {Sent, Transport:received_bytes(Exchange)}}.

happened(other, Attempt) ->
    await(Attempt);
happened({Events, Exchange}, Attempt) ->
    events(Events, Attempt#attempt{exchange = Exchange}).

events([], Attempt) ->
    await(Attempt);
events([{message, {response, Id, Outcome}} | _], #attempt{id = Id} = Attempt) ->
    over(response(Outcome, Attempt), Attempt);
events([{message, Message} | Events], Attempt) ->
    case message(Message, Attempt) of
        {ok, Next} ->
            events(Events, Next);
        {error, _} = Error ->
            give_up(Attempt, ~"what came is not MCP"),
            over(Error, Attempt)
    end;
events([{headers, Headers} | Events], Attempt) ->
    events(Events, Attempt#attempt{headers = Headers});
events([{failed, Reason} | _], #attempt{watch = Watch} = Attempt) ->
    over({error, reason(Reason, Watch)}, Attempt);
events([sent | Events], Attempt) ->
    events(Events, Attempt).

reason(timeout, Watch) -> {timeout, limit(Watch)};
reason(Reason, _) -> Reason.

response({ok, Result}, #attempt{headers = Headers}) -> {ok, Result, Headers};
response({error, Error}, _) -> {error, failure(Error)}.

-doc "Returns the reason of a failure from the member `error` of a response or of a task.".
-spec failure(Error :: term()) -> {rpc, map()} | {protocol, binary()}.
failure(#{~"code" := Code, ~"message" := Message} = Error) when
    is_integer(Code), is_binary(Message)
->
    {rpc, maps:from_list([{code, Code}, {message, Message}]
                         ++ [{data, Data} || #{~"data" := Data} <- [Error]])};
failure(_) ->
    {protocol, ~"error: expected an object with an integer code and a string message"}.

message({notification, ~"notifications/progress", #{~"progressToken" := Id} = Params},
        #attempt{id = Id, watch = Watch} = Attempt) ->
    case Params of
        #{~"progress" := Progress} when is_number(Progress) ->
            ok = call_user_fun(progress, Params, Watch),
            {ok, Attempt#attempt{watch = extended(Watch)}};
        #{} ->
            {error, {protocol, ~"notifications/progress: progress: expected a number"}}
    end;
message({notification, ~"notifications/message", Params}, #attempt{watch = #{log := _} = Watch}
        = Attempt) ->
    ok = call_user_fun(log, Params, Watch),
    {ok, Attempt};
message({notification, Method, Params}, #attempt{client = Client} = Attempt) ->
    ok = erlmcp_client_mailbox:notify(Client, Method, Params),
    {ok, Attempt};
message({request, _, _, _}, #attempt{question_count = ?QUESTIONS}) ->
    {error, {protocol, ~"the server asks more in one call than 100 requests"}};
message({request, Id, Method, Params}, #attempt{questions = Open} = Attempt) ->
    #attempt{client = Client, live = Live, question_count = Count} = Attempt,
    Monitor = erlmcp_client_questions:start({request, Id, Method, Params}, {Client, Live}),
    Next = Attempt#attempt{question_count = Count + 1},
    case erlmcp_client_inputs:is_for_user(Method, Client) of
        true -> {ok, paused(Next#attempt{questions = [Monitor | Open]})};
        false -> {ok, Next}
    end;
message({response, _, _}, _) ->
    {error, {protocol, ~"id: expected the request's"}};
message({invalid, _, _}, _) ->
    {error, {protocol, ~"expected a JSON-RPC message"}};
message({batch, Messages}, Attempt) ->
    batch(Messages, Attempt).

batch([], Attempt) ->
    {ok, Attempt};
batch([Message | Messages], Attempt) ->
    maybe
        {ok, Next} ?= message(erlmcp_message:parse(Message), Attempt),
        batch(Messages, Next)
    end.

%% The time that the user takes for answers does not count for the server.
paused(#attempt{client = Client, watch = #{deadline := Deadline} = Watch} = Attempt) ->
    Now = erlmcp_clock:now_ms(),
    Paused = case Attempt#attempt.paused of
        none -> {Now, Deadline};
        Already -> Already
    end,
    Answer = Now + erlmcp_client_inputs:timeout(Client),
    Attempt#attempt{paused = Paused, watch = Watch#{deadline := max(Deadline, Answer)}}.

answered(Monitor, #attempt{questions = Open, watch = Watch, paused = Paused} = Attempt) ->
    case lists:delete(Monitor, Open) of
        [] ->
            {Since, Deadline} = Paused,
            #{last_deadline := Last} = Watch,
            Thought = erlmcp_clock:now_ms() - Since,
            Attempt#attempt{questions = [], paused = none,
                            watch = Watch#{deadline := Deadline + Thought,
                                           last_deadline := Last + Thought}};
        Rest ->
            Attempt#attempt{questions = Rest}
    end.

call_user_fun(Kind, Params, Watch) ->
    case Watch of
        #{Kind := Fun} ->
            _ = Fun(Params),
            ok;
        #{} ->
            ok
    end.

extended(#{timeout := Timeout, deadline := Deadline, last_deadline := Last} = Watch) ->
    Watch#{deadline := max(Deadline, min(erlmcp_clock:now_ms() + Timeout, Last))}.

%% Ends the exchange. If the end of the exchange does not tell the server, a notification does, for
%% which no call waits. "The `initialize` request MUST NOT be cancelled by clients".
give_up(#attempt{id = Id, method = Method, exchange = Exchange} = Attempt, Why) ->
    #attempt{client = #{channel := {Transport, _}} = Client, live = Live} = Attempt,
    #{revision := Revision} = Live,
    case Transport:abort(Exchange) of
        true when Revision >= '2026-07-28' ->
            ok;
        _ when Method =:= ~"initialize" ->
            ok;
        _ ->
            Params = #{~"requestId" => Id, ~"reason" => Why},
            _ = spawn(fun() ->
                erlmcp_client_one_way:notify(~"notifications/cancelled", Params, Client, Live)
            end),
            ok
    end.
