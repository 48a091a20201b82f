-module(stream_resumption_SUITE).
-moduledoc """
When a client asks again for a stream that has ended, and after which event: not sooner than the
server wants it, later each time that it fails, and not for ever.

Source: specification 2025-11-25, "Transports / Resumability and Redelivery".
""".

-export([suite/0, all/0]).
-export([only_what_has_an_event_is_resumed/1, the_last_event_counts/1, pauses_are_the_servers/1,
         pauses_grow_with_failures/1, pauses_grow_where_nothing_comes/1, ten_failures_are_the_end/1,
         connections_come_back_at_different_times/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [only_what_has_an_event_is_resumed, the_last_event_counts, pauses_are_the_servers,
     pauses_grow_with_failures, pauses_grow_where_nothing_comes, ten_failures_are_the_end,
     connections_come_back_at_different_times].

%% After the bytes of a stream.
after_events(Bytes, Resumption) ->
    {_, Reader} = erlmcp_sse_reader:push(Bytes, erlmcp_sse_reader:new(1_000)),
    erlmcp_httpc_resumption:progress(Reader, Resumption).

new() -> erlmcp_httpc_resumption:new().

%% The least and the longest pause that many clients would make, and the state after it.
pause(Resumption) ->
    Delays = [element(1, erlmcp_httpc_resumption:delay(Resumption)) || _ <- lists:seq(1, 3_000)],
    {_, Next} = erlmcp_httpc_resumption:delay(Resumption),
    {lists:min(Delays), lists:max(Delays), Next}.

%% Pauses one after the other. The longest is up to a quarter longer than the least.
pauses(0, _, _) ->
    [];
pauses(Left, Between, Resumption) ->
    {Least, Longest, Next} = pause(Resumption),
    true = Longest =< Least + Least div 4 + 1 andalso Longest >= Least + Least div 5,
    [Least | pauses(Left - 1, Between, Between(Next))].

%% Within what three thousand random times may miss of their bounds.
near([], []) -> true;
near([Expected | Others], [Least | Rest]) ->
    Least >= Expected andalso Least =< Expected + Expected div 50 + 1 andalso near(Others, Rest).

only_what_has_an_event_is_resumed(_) ->
    Is = fun(Resumption) ->
        [erlmcp_httpc_resumption:may_resume(Method, Resumption) || Method <- [post, get, delete]]
    end,
    [false, true, false] = Is(new()),
    {false, []} = {erlmcp_httpc_resumption:has_event_id(new()),
                   erlmcp_httpc_resumption:headers(new())},
    Begun = after_events(~"id: 7\ndata: x\n\n", new()),
    [true, true, true] = Is(Begun),
    {true, [{~"last-event-id", ~"7"}]} = {erlmcp_httpc_resumption:has_event_id(Begun),
                                          erlmcp_httpc_resumption:headers(Begun)}.

the_last_event_counts(_) ->
    Two = after_events(~"id: 1\ndata: x\n\nid: 2\ndata: y\n\n", new()),
    [{~"last-event-id", ~"2"}] = erlmcp_httpc_resumption:headers(Two),
    %% A stream without one has not gone back to the beginning.
    [{~"last-event-id", ~"2"}] =
        erlmcp_httpc_resumption:headers(after_events(~"data: z\n\n", Two)),
    [{~"last-event-id", ~"3"}] =
        erlmcp_httpc_resumption:headers(after_events(~"id: 3\ndata: z\n\n", Two)).

%% "The client MUST respect the retry field, waiting the given number of milliseconds before
%% attempting to reconnect".
pauses_are_the_servers(_) ->
    [begin
         {Least, Longest, _} = pause(after_events(Bytes, new())),
         {Bytes, true} = {Bytes, near([Expected], [Least])},
         {Bytes, true} = {Bytes, Longest =< Expected + Expected div 4}
     end || {Bytes, Expected} <- [{~"", 1_000}, {~"retry: 5000\ndata: x\n\n", 5_000},
                                  {~"retry: 0\ndata: x\n\n", 100},
                                  {~"retry: 99999999999\ndata: x\n\n", 86_400_000}]],
    %% The last one holds.
    Once = after_events(~"retry: 5000\ndata: x\n\n", new()),
    {Least, _, _} = pause(after_events(~"data: y\n\n", Once)),
    true = near([5_000], [Least]).

pauses_grow_with_failures(_) ->
    Quick = after_events(~"id: 1\nretry: 0\ndata: x\n\n", new()),
    true = near([100, 200, 400, 800, 1_500, 3_100, 6_300, 12_700, 25_500, 30_000],
                pauses(10, fun(Next) -> Next end, Quick)),
    %% The server's own is never undercut.
    Slow = after_events(~"id: 1\nretry: 40000\ndata: x\n\n", new()),
    true = near([40_000, 40_000, 40_000], pauses(3, fun(Next) -> Next end, Slow)).

%% A server that takes each request and ends each stream at once is not asked all day.
pauses_grow_where_nothing_comes(_) ->
    Quick = after_events(~"id: 1\nretry: 0\ndata: x\n\n", new()),
    Again = fun(Next) ->
        true = erlmcp_httpc_resumption:has_failed(Next),
        Began = erlmcp_httpc_resumption:stream_began(Next),
        false = erlmcp_httpc_resumption:has_failed(Began),
        after_events(~"id: 1\nretry: 0\ndata: x\n\n", Began)
    end,
    true = near([100, 200, 400, 800, 1_000, 1_000], pauses(6, Again, Quick)),
    %% An event that is new begins anew.
    Other = fun(Next) ->
        Id = integer_to_binary(erlang:unique_integer([positive])),
        after_events(<<"id: x", Id/binary, "\nretry: 0\ndata: x\n\n">>,
                     erlmcp_httpc_resumption:stream_began(Next))
    end,
    true = near([100, 100, 100], pauses(3, Other, Quick)).

ten_failures_are_the_end(_) ->
    Tried = fun(Times) ->
        lists:foldl(fun(_, Before) -> element(2, erlmcp_httpc_resumption:delay(Before)) end,
                    after_events(~"id: 1\ndata: x\n\n", new()), lists:seq(1, Times))
    end,
    [true, true, false] = [erlmcp_httpc_resumption:may_resume(post, Tried(Times))
                           || Times <- [0, 9, 10]],
    false = erlmcp_httpc_resumption:may_resume(get, Tried(10)),
    true = erlmcp_httpc_resumption:may_resume(
        post, erlmcp_httpc_resumption:stream_began(Tried(10))).

%% Those of a restarted server: between half of a pause and all of it.
connections_come_back_at_different_times(_) ->
    [begin
         Times = [erlmcp_client_backoff:after_failures(Failures) || _ <- lists:seq(1, 3_000)],
         {Least, Longest} = {lists:min(Times), lists:max(Times)},
         {Failures, true} = {Failures, Least > Pause div 2 andalso Least < Pause * 13 div 25},
         {Failures, true} = {Failures, Longest =< Pause andalso Longest > Pause * 24 div 25}
     end || {Failures, Pause} <- [{1, 500}, {2, 1_000}, {6, 16_000}, {7, 30_000}, {100, 30_000}]],
    [500, 1_000, 30_000, 30_000] =
        [erlmcp_client_backoff:first_ms()
         | [erlmcp_client_backoff:next_ms(Ms) || Ms <- [500, 16_000, 30_000]]].
