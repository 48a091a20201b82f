-module(erlmcp_meter).
-moduledoc """
The one place that sees the end of every request of a server, whichever transport it came by and
whichever process answers it. It counts the request, without a process, a lock or a table, and tells
those who observe requests, if there are any.

A transport notes the arrival of a message when the whole message is there (`arrived/1`). A request
ends once: with its answer, with a refusal before or after its call began, or because its client has
cancelled it. A refusal of a message that could not be read counts as a request, too. Notifications
and responses do not count, unless they are refused.

Internal.
""".

-include("erlmcp_recent_requests.hrl").

-export([new/0, arrived/1, ended/4, answered/4, refused/3, totals/1]).

-export_type([meter/0, server/0, arrival/0, about/0, subject/0, outcome/0, ended/0, observer/0]).

-opaque meter() :: counters:counters_ref().
-doc "A map with the meter of a server, such as the server's context or its part for calls.".
-type server() :: #{key := reference(), meter := meter(), observers := [observer()],
                    atom() => term()}.
-doc """
Those who observe requests. At the end of each request `Module:request_ended(Ended, State)` is
called in the process that answers, which must not wait there.
""".
-type observer() :: {module(), State :: term()}.
-doc "The arrival of a message: its time, in native units of the monotonic clock, and its bytes.".
-type arrival() :: {Began :: integer(), Bytes :: non_neg_integer()}.
-doc """
A request, in the form that the caller has: a call with its arrival, the subject of one, or a
request that has no call.
""".
-type about() ::
    #{arrival := arrival(), context := erlmcp:context(), id := term(), atom() => term()}
    | subject()
    | {erlmcp_engine:asked(), arrival()}.
-doc "The subject of a call, for a process that ends the request in its place.".
-type subject() :: #{
    id := erlmcp_message:id() | task | undefined,
    revision := erlmcp_revision:revision() | undefined,
    method := binary(), target := binary() | undefined, arrival := arrival()
}.
-doc "The end of a request. `tool_error` is a result of a tool with `isError`.".
-type outcome() :: ok | tool_error | cancelled | {refused, erlmcp_refusal:refusal()}.
-doc """
An ended request, for observers. `target` is the name or the URI that its call is for. `context` is
its call's, and `none` without one. Times are in native units of the monotonic clock.
""".
-type ended() :: #{
    server := reference(), id := erlmcp_message:id() | task | undefined,
    method := binary() | undefined, target := binary() | undefined,
    revision := erlmcp_revision:revision() | undefined, params := map(),
    context := erlmcp:context() | none,
    outcome := outcome(), began := integer(), ended := integer(),
    bytes_in := non_neg_integer(), bytes_out := non_neg_integer()
}.

%% Indexes of the counters.
-define(REQUESTS, 1).
-define(FAULTS, 2).

-doc "Creates a meter with all counts at zero.".
-spec new() -> meter().
new() ->
    counters:new(2, [write_concurrency]).

-doc "Returns the arrival, now, of a message of `Bytes` bytes.".
-spec arrived(Bytes :: non_neg_integer()) -> arrival().
arrived(Bytes) ->
    {erlang:monotonic_time(), Bytes}.

-doc """
Counts the end of a request, whose answer has `BytesOut` bytes, and tells the server's observers.
""".
-spec ended(about(), outcome(), BytesOut :: non_neg_integer(), server()) -> ok.
ended(About, Outcome, BytesOut, #{meter := Meter, observers := Observers} = Server) ->
    ok = count(Outcome, Meter),
    observed(Observers, About, Outcome, BytesOut, Server).

count({refused, Refusal}, Meter) ->
    ok = counters:add(Meter, ?REQUESTS, 1),
    case erlmcp_refusal:is_fault(Refusal) of
        true -> counters:add(Meter, ?FAULTS, 1);
        false -> ok
    end;
count(_, Meter) ->
    counters:add(Meter, ?REQUESTS, 1).

-doc "Counts a request that is answered with `Reply` now, and returns `Reply`.".
-spec answered(about(), outcome(), Reply, server()) -> Reply when Reply :: erlmcp_reply:reply().
answered(About, Outcome, {reply, _, Bytes} = Reply, Server) ->
    ok = ended(About, Outcome, iolist_size(Bytes), Server),
    Reply.

-doc """
Counts a request that was refused before its message was read. `Method` is `undefined` if its head
does not tell it.
""".
-spec refused(Method :: binary() | undefined, erlmcp_refusal:refusal(), server()) -> ok.
refused(Method, Refusal, Server) ->
    ended({{undefined, Method, #{}}, arrived(0)}, {refused, Refusal}, 0, Server).

observed(Observers, About, Outcome, BytesOut, #{key := Key}) ->
    case {Observers, not ?NOBODY_LOOKS andalso erlmcp_recent_requests:is_wanted(Outcome)} of
        {[], false} ->
            ok;
        {_, Wanted} ->
            Ended = (request(About))#{server => Key, outcome => Outcome, bytes_out => BytesOut,
                                      ended => erlang:monotonic_time()},
            _ = Wanted andalso erlmcp_recent_requests:add(Ended),
            tell(Observers, Ended)
    end.

tell(Observers, Ended) ->
    lists:foreach(fun({Module, State}) -> ok = Module:request_ended(Ended, State) end, Observers).

request({{Id, Method, Params}, {Began, BytesIn}}) ->
    #{id => Id, method => Method, target => undefined, revision => undefined, params => Params,
      context => none, began => Began, bytes_in => BytesIn};
request(#{context := #{method := Method, revision := Revision} = Context, id := Id,
          arrival := {Began, BytesIn}}) ->
    Target = maps:get(name, Context, maps:get(uri, Context, undefined)),
    #{id => Id, method => Method, target => Target, revision => Revision,
      params => #{~"_meta" => maps:get(meta, Context, #{})},
      context => Context, began => Began, bytes_in => BytesIn};
request(#{arrival := {Began, BytesIn}} = Subject) ->
    Known = maps:with([id, method, target, revision], Subject),
    Known#{params => #{}, context => none, began => Began, bytes_in => BytesIn}.

-doc "Returns how many requests have ended, and how many of those were faults of the server.".
-spec totals(meter()) -> {Requests :: non_neg_integer(), Faults :: non_neg_integer()}.
%% Faults are read first, so that a fault counted at this moment is not read without its request.
totals(Meter) ->
    Faults = counters:get(Meter, ?FAULTS),
    {counters:get(Meter, ?REQUESTS), Faults}.
