-module(erlmcp_span_exporter).
-moduledoc """
The process of the node that sends spans to collectors, as JSON of OTLP/HTTP. Servers and clients
with the same `t:collector/0` share one buffer (`m:erlmcp_span_buffer`). The buffer is deleted after
the last of them has ended, and its spans were sent or dropped.

Each buffer is sent once a second, and earlier if a whole request waits. A request to a collector
has ten seconds. If the collector gives no answer, or is not ready (429, 502, 503, 504), the request
is sent again, at most six times in all. The waits in between grow, and a `Retry-After` in seconds
lengthens a wait, to 30 seconds at most. Any other refusal is final. So is any failure of a request
after the last user of its buffer has ended.

The log and the event `spans_dropped` report dropped spans, at most once a minute for each buffer.
When the application stops, it waits at most two seconds until the remaining spans are sent.

Source: opentelemetry-proto, `docs/specification.md`, "OTLP/HTTP".

Internal.
""".

-behaviour(gen_server).

-export([open/0, start_link/0, use/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2, format_status/1]).
-export([conclude/1]).

-export_type([collector/0]).

-doc "A collector: the URL and the options of its requests, and the program whose spans it gets.".
-type collector() :: #{
    endpoint := binary(), headers := #{binary() => binary()}, tls := [ssl:tls_client_option()],
    scope := erlmcp_otlp:scope()
}.

%% Milliseconds between two looks at the buffers.
-define(TICK, 1000).
%% Milliseconds of one request to a collector, and of the last requests when the application stops.
-define(REQUEST, 10_000).
-define(LAST, 2_000).
%% How often a request is sent, and milliseconds until it is repeated, which are doubled each time.
-define(TIMES, 6).
-define(AGAIN, 1_000).
-define(LONGEST, 30_000).
%% Words of the process's heap once there is a collector. With a smaller one, a garbage collection
%% after each few spans costs a sixth of their encoding.
-define(HEAP, 28_690).
%% Milliseconds between two reports of dropped spans.
-define(REPORT, 60_000).

%% One collector with its buffer.
-record(outlet, {
    collector :: collector(),
    buffer :: erlmcp_span_buffer:buffer(),
    users :: #{reference() => pid()},
    %% The spans that are being sent, encoded, and their count; how often they were sent, and the
    %% process or timer of that.
    batch = none :: {Spans :: pos_integer(), Body :: iodata()} | none,
    times = 0 :: non_neg_integer(),
    sending = none :: none | {pid(), reference()} | {timer, reference()},
    %% How many dropped spans were reported, when that was, and why the last ones were dropped.
    reported = 0 :: non_neg_integer(),
    report_at :: integer(),
    why = buffer_full :: term()
}).

-type outlets() :: #{reference() => #outlet{}}.

-doc "Creates the tables of collectors and of their spans, owned by the calling process.".
-spec open() -> ok.
open() ->
    ok = erlmcp_span_buffer:open(),
    ?MODULE = ets:new(?MODULE, [named_table, public]),
    ok.

-doc "Starts the process that sends the spans of all buffers to their collectors.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc """
Makes the calling process a user of a collector, until that process ends. Returns the buffer for its
spans and the registered name of the exporter, as `erlmcp_span_buffer:add/2` needs them. Returns
`{error, {not_started, erlmcp}}` if the application does not run.
""".
-spec use(collector()) ->
    {ok, {erlmcp_span_buffer:buffer(), Exporter :: atom()}} | {error, {not_started, erlmcp}}.
use(Collector) ->
    try
        {ok, {gen_server:call(?MODULE, {use, Collector}, infinity), ?MODULE}}
    catch
        exit:_ -> {error, {not_started, erlmcp}}
    end.

-doc false.
-spec init([]) -> {ok, outlets()}.
init([]) ->
    process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE]),
    tick(),
    %% After a crash, the table still has the collectors, their users, how many dropped spans were
    %% reported, and why the last ones were dropped.
    {ok, #{make_ref() => without_lost((outlet(Collector, Buffer, Users))#outlet{
               reported = Reported, why = Why})
           || {Collector, Buffer, Users, Reported, Why} <- ets:tab2list(?MODULE)}}.

%% What the process before this one was sending. Its last request may still arrive.
without_lost(#outlet{buffer = Buffer} = Outlet) ->
    case erlmcp_span_buffer:drop_lost(Buffer) of
        0 -> Outlet;
        _ -> Outlet#outlet{why = crashed}
    end.

outlet(Collector, Buffer, Users) ->
    _ = process_flag(min_heap_size, ?HEAP),
    #outlet{collector = Collector, buffer = Buffer, report_at = erlmcp_clock:now_ms(),
            users = #{monitor(process, User) => User || User <- Users}}.

tick() ->
    _ = erlang:send_after(?TICK, self(), tick),
    ok.

-doc false.
handle_call({use, Collector}, {User, _}, Outlets) ->
    {Name, Outlet} = find(Collector, maps:to_list(Outlets)),
    #outlet{buffer = Buffer, users = Users} = Outlet,
    Known = lists:member(User, maps:values(Users)),
    Next = case Known of
        true -> Outlet;
        false -> Outlet#outlet{users = Users#{monitor(process, User) => User}}
    end,
    ok = keep(Next),
    {reply, Buffer, Outlets#{Name => Next}};
handle_call(_, _, Outlets) ->
    {noreply, Outlets}.

find(Collector, [{Name, #outlet{collector = Collector} = Outlet} | _]) -> {Name, Outlet};
find(Collector, [_ | Outlets]) -> find(Collector, Outlets);
find(Collector, []) -> {make_ref(), outlet(Collector, erlmcp_span_buffer:new(), [])}.

keep(#outlet{collector = Collector, buffer = Buffer, users = Users, reported = Reported,
             why = Why}) ->
    true = ets:insert(?MODULE, {Collector, Buffer, maps:values(Users), Reported, Why}),
    ok.

-doc false.
handle_cast(_, Outlets) ->
    {noreply, Outlets}.

-doc false.
handle_info(tick, Outlets) ->
    tick(),
    {noreply, maps:filtermap(fun(_, Outlet) -> looked(Outlet) end, Outlets)};
handle_info({erlmcp_span_buffer, full, Id}, Outlets) ->
    {noreply, #{Name => case erlmcp_span_buffer:id(Outlet#outlet.buffer) of
                            Id -> send(Outlet);
                            _ -> Outlet
                        end || Name := Outlet <- Outlets}};
handle_info({again, Timer}, Outlets) ->
    {noreply, maps:map(fun(_, #outlet{sending = {timer, Known}} = Outlet) when Known =:= Timer ->
                               send(Outlet#outlet{sending = none});
                          (_, Outlet) ->
                               Outlet
                       end, Outlets)};
handle_info({'DOWN', Monitor, process, _, Reason}, Outlets) ->
    {noreply, maps:map(fun(_, #outlet{sending = {_, Known}} = Outlet) when Known =:= Monitor ->
                               sent(outcome(Reason), Outlet#outlet{sending = none});
                          (_, #outlet{users = Users} = Outlet) when is_map_key(Monitor, Users) ->
                               user_left(Outlet#outlet{users = maps:remove(Monitor, Users)});
                          (_, Outlet) ->
                               Outlet
                       end, Outlets)};
handle_info(_, Outlets) ->
    {noreply, Outlets}.

looked(#outlet{sending = none} = Outlet) ->
    case {has_spans(Outlet), Outlet} of
        {true, _} ->
            {true, send(reported(Outlet))};
        {false, #outlet{users = Users} = Unused} when map_size(Users) =:= 0 ->
            %% This is the last time that spans can be reported.
            _ = reported(Unused#outlet{report_at = erlmcp_clock:now_ms()}),
            ok = delete(Unused),
            false;
        {false, _} ->
            {true, reported(Outlet)}
    end;
looked(Outlet) ->
    {true, reported(Outlet)}.

has_spans(#outlet{batch = {_, _}}) -> true;
has_spans(#outlet{buffer = Buffer}) -> map_get(waiting, erlmcp_span_buffer:counts(Buffer)) > 0.

delete(#outlet{collector = Collector, buffer = Buffer}) ->
    true = ets:delete(?MODULE, Collector),
    erlmcp_span_buffer:delete(Buffer).

%% The last user has ended. The process of a request that runs is left to end by itself.
user_left(#outlet{users = Users} = Outlet) ->
    ok = keep(Outlet),
    case map_size(Users) of
        0 -> send(Outlet);
        _ -> Outlet
    end.

%% Begins a request, unless one runs or waits.
send(#outlet{sending = none, batch = none} = Outlet) ->
    case taken(Outlet) of
        none -> Outlet;
        Batch -> send(Outlet#outlet{batch = Batch, times = 0})
    end;
send(#outlet{sending = none, batch = {_, Body}, collector = Collector, times = Times} = Outlet) ->
    Sending = spawn_monitor(?MODULE, conclude, [fun() -> post(Body, Collector, ?REQUEST) end]),
    Outlet#outlet{sending = Sending, times = Times + 1};
send(Outlet) ->
    Outlet.

taken(#outlet{buffer = Buffer, collector = #{scope := Scope}}) ->
    erlmcp_span_batch:take(Scope, Buffer).

-doc false.
-spec conclude(fun(() -> term())) -> no_return().
conclude(Work) ->
    exit({outcome, Work()}).

post(Body, #{endpoint := Url, headers := Headers, tls := Tls}, Milliseconds) ->
    {ok, {_, Host, _}} = erlmcp_oauth_url:origin(Url),
    Typed = [{~"content-type", ~"application/json"} | maps:to_list(Headers)],
    Settings = #{deadline => erlmcp_clock:now_ms() + Milliseconds, plain => [Host], tls => Tls},
    case erlmcp_fetch:post(Url, Typed, Body, Settings) of
        {ok, #{status := 200, json := {ok, Json}}} -> {sent, erlmcp_otlp:rejected(Json)};
        {ok, #{status := 200}} -> {sent, 0};
        {ok, #{status := Status, headers := Answered}} when
            Status =:= 429; Status =:= 502; Status =:= 503; Status =:= 504
        ->
            {again, retry_after(Answered), {status, Status}};
        {ok, #{status := Status}} -> {refused, {status, Status}};
        {error, {Kind, _} = Reason} when Kind =:= connect; Kind =:= closed -> {again, 0, Reason};
        {error, timeout} -> {again, 0, timeout};
        %% The URL may have the path and the query of the endpoint.
        {error, {Kind, _}} when Kind =:= redirect; Kind =:= url_not_allowed -> {refused, Kind};
        {error, Reason} -> {refused, Reason}
    end.

%% Milliseconds. A date is not followed, since a wait that grows serves as well.
retry_after(#{~"retry-after" := Text}) when byte_size(Text) =< 9 ->
    case string:to_integer(Text) of
        {Seconds, ~""} when Seconds >= 0 -> 1000 * Seconds;
        _ -> 0
    end;
retry_after(_) ->
    0.

outcome({outcome, Outcome}) -> Outcome;
outcome(_) -> {refused, crashed}.

sent({again, After, _}, #outlet{users = Users, times = Times} = Outlet) when
    Times < ?TIMES, map_size(Users) > 0
->
    Timer = make_ref(),
    _ = erlang:send_after(wait(Times, After), self(), {again, Timer}),
    Outlet#outlet{sending = {timer, Timer}};
sent(Outcome, Outlet) ->
    next(done(Outcome, Outlet)).

%% The wait is doubled each time, and a random part of up to half of it is taken away.
wait(Times, After) ->
    Longest = min(?LONGEST, ?AGAIN bsl (Times - 1)),
    min(?LONGEST, max(After, Longest - rand:uniform(Longest div 2))).

done({sent, Rejected}, #outlet{batch = {Spans, _}} = Outlet) ->
    dropped(min(Rejected, Spans), rejected, Outlet);
done({again, _, Reason}, #outlet{batch = {Spans, _}} = Outlet) ->
    dropped(Spans, Reason, Outlet);
done({refused, Reason}, #outlet{batch = {Spans, _}} = Outlet) ->
    dropped(Spans, Reason, Outlet).

dropped(0, _, #outlet{batch = {Spans, _}, buffer = Buffer} = Outlet) ->
    ok = erlmcp_span_buffer:done(Spans, 0, Buffer),
    Outlet#outlet{batch = none};
dropped(Dropped, Why, #outlet{batch = {Spans, _}, buffer = Buffer} = Outlet) ->
    Next = Outlet#outlet{batch = none, why = Why},
    ok = keep(Next),
    ok = erlmcp_span_buffer:done(Spans - Dropped, Dropped, Buffer),
    Next.

%% Goes on at once if the next request is full, or nobody adds spans any more.
next(#outlet{buffer = Buffer, users = Users} = Outlet) ->
    Batch = erlmcp_span_buffer:batch(),
    case erlmcp_span_buffer:counts(Buffer) of
        #{waiting := Waiting} when Waiting >= Batch; map_size(Users) =:= 0 -> send(Outlet);
        _ -> Outlet
    end.

reported(#outlet{buffer = Buffer, reported = Reported, report_at = At} = Outlet) ->
    Now = erlmcp_clock:now_ms(),
    case erlmcp_span_buffer:counts(Buffer) of
        #{dropped := Dropped} when Dropped > Reported, Now >= At ->
            Next = Outlet#outlet{reported = Dropped, report_at = Now + ?REPORT, why = buffer_full},
            ok = keep(Next),
            ok = report(Dropped - Reported, Outlet),
            Next;
        _ ->
            Outlet
    end.

%% The path and the query of the endpoint may be secret.
report(Dropped, #outlet{collector = #{endpoint := Url}, why = Why}) ->
    {ok, {_, Host, Port}} = erlmcp_oauth_url:origin(Url),
    Collector = iolist_to_binary([Host, $:, integer_to_binary(Port)]),
    Fields = #{collector => Collector, spans => Dropped, why => Why},
    ok = erlmcp_event_handler:broadcast(spans_dropped, Fields),
    erlmcp_log:report(warning, Fields#{what => spans_dropped}).

-doc false.
terminate(_, Outlets) ->
    Last = erlmcp_clock:now_ms() + ?LAST,
    maps:foreach(fun(_, Outlet) -> send_last(Outlet, Last) end, Outlets).

send_last(#outlet{sending = {Pid, Monitor}} = Outlet, Last) when is_pid(Pid) ->
    receive
        {'DOWN', Monitor, process, Pid, {outcome, {sent, _} = Sent}} ->
            send_last(done(Sent, Outlet#outlet{sending = none}), Last);
        {'DOWN', Monitor, process, Pid, _} ->
            send_last(Outlet#outlet{sending = none}, Last)
    after max(0, Last - erlmcp_clock:now_ms()) ->
        ok
    end;
send_last(#outlet{batch = none} = Outlet, Last) ->
    case taken(Outlet) of
        none -> ok;
        Batch -> send_last(Outlet#outlet{batch = Batch}, Last)
    end;
send_last(#outlet{batch = {_, Body}, collector = Collector} = Outlet, Last) ->
    case Last - erlmcp_clock:now_ms() of
        Left when Left > 0 ->
            %% After a crash, the next process counts what was not sent.
            Done = case post(Body, Collector, Left) of
                {sent, _} = Sent -> done(Sent, Outlet#outlet{sending = none});
                _ -> Outlet#outlet{sending = none, batch = none}
            end,
            send_last(Done, Last);
        _ ->
            ok
    end.

-doc false.
%% The state has headers for collectors, and these may be secret.
format_status(Status) ->
    maps:map(fun(state, Outlets) when is_map(Outlets) -> #{outlets => map_size(Outlets)};
                (_, Value) -> Value
             end, Status).
