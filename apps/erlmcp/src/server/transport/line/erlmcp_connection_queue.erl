-module(erlmcp_connection_queue).
-moduledoc """
The waiting requests of a connection that has reached its limit of running calls
(`calls_per_connection`). They are kept in their order, as the bytes that have arrived.
`queue_per_connection` bounds their number, and `queue_bytes_per_connection` their bytes. Pure.

Internal.
""".

-export([check_id/2, add/3, take/1, cancel/2, keep/2, requests/1, request/2, bytes/1, since/1]).

-export_type([queue/0, request/0]).

-type request() ::
    #{id := erlmcp_message:id(), method := binary(), era := erlmcp_revision:era(),
      line := binary(), arrival := erlmcp_meter:arrival()}.
-record(queue, {
    bytes = 0 :: non_neg_integer(),
    %% the number of the next request
    next = 1 :: pos_integer(),
    requests = gb_trees:empty() :: gb_trees:tree(pos_integer(), request()),
    ids = #{} :: #{erlmcp_message:id() => pos_integer()}
}).
-doc "The requests that wait, or `none` if no request waits.".
-type queue() :: #queue{} | none.
-type limits() :: #{queue_per_connection := non_neg_integer(),
                    queue_bytes_per_connection := pos_integer(), atom() => term()}.

-doc "Returns `ok` if no request with the id `Id` waits, and otherwise a refusal.".
-spec check_id(Id :: erlmcp_message:id(), queue()) -> ok | {refuse, erlmcp_refusal:refusal()}.
check_id(Id, #queue{ids = Ids}) when is_map_key(Id, Ids) -> {refuse, erlmcp_calls:id_in_use()};
check_id(_, _) -> ok.

-doc """
Adds a request behind all others, or refuses it if a bound is exceeded. Returns `none_may` if the
server lets no request wait. The caller has checked the id (`check_id/2`).
""".
-spec add(request(), limits(), queue()) ->
    {ok, queue()} | {refuse, erlmcp_refusal:refusal()} | none_may.
add(_, #{queue_per_connection := 0}, _) ->
    none_may;
add(Request, Limits, none) ->
    add(Request, Limits, #queue{});
add(#{id := Id, line := Line, method := Method} = Request, Limits,
    #queue{requests = Requests} = Queue) ->
    #{queue_per_connection := Most, queue_bytes_per_connection := MostBytes} = Limits,
    #queue{bytes = Bytes, next = Next, ids = Ids} = Queue,
    case {gb_trees:size(Requests) + 1, Bytes + size_of(Request)} of
        {Count, _} when Count > Most ->
            {refuse, refusal(queue_cap_exceeded, ~"too many requests wait on this connection",
                             Most, Count)};
        {_, All} when All > MostBytes ->
            {refuse, refusal(queue_byte_cap_exceeded,
                             ~"the requests that wait on this connection have too many bytes",
                             MostBytes, All)};
        {_, All} ->
            %% Copies, since each may be a part of a larger binary.
            Own = erlmcp_message:own_id(Id),
            Kept = Request#{id := Own, line := binary:copy(Line), method := binary:copy(Method)},
            {ok, Queue#queue{bytes = All, next = Next + 1, ids = Ids#{Own => Next},
                             requests = gb_trees:insert(Next, Kept, Requests)}}
    end.

refusal(Name, Message, Limit, Observed) ->
    erlmcp_refusal:new(Name, Message, #{limit => Limit, observed => Observed,
                                        %% One client has caused it.
                                        retry_after_ms => 1000, fault => false}).

%% Counts the id too, since it is kept in addition to the line.
size_of(#{id := Id, line := Line}) when is_binary(Id) -> byte_size(Id) + byte_size(Line);
size_of(#{line := Line}) -> byte_size(Line).

-doc """
Returns the request that has waited longest, and the queue without it. Returns `none` if no request
waits.
""".
-spec take(queue()) -> {ok, request(), queue()} | none.
take(none) ->
    none;
take(#queue{requests = Requests} = Queue) ->
    {_, Request, Left} = gb_trees:take_smallest(Requests),
    {ok, Request, without(Request, Left, Queue)}.

-doc "Removes the request with the id `Id`, if it waits.".
-spec cancel(Id :: erlmcp_message:id(), queue()) -> queue().
cancel(_, none) ->
    none;
cancel(Id, #queue{requests = Requests, ids = Ids} = Queue) ->
    case Ids of
        #{Id := Number} ->
            {Request, Left} = gb_trees:take(Number, Requests),
            without(Request, Left, Queue);
        #{} ->
            Queue
    end.

without(#{id := Id} = Request, Left, #queue{bytes = Bytes, ids = Ids} = Queue) ->
    case gb_trees:is_empty(Left) of
        true -> none;
        false -> Queue#queue{bytes = Bytes - size_of(Request), ids = maps:remove(Id, Ids),
                             requests = Left}
    end.

-doc "Removes all requests except those of the era `Era`.".
-spec keep(erlmcp_revision:era(), queue()) -> queue().
keep(_, none) ->
    none;
keep(Era, #queue{requests = Requests} = Queue) ->
    lists:foldl(fun cancel/2, Queue,
                [Id || #{id := Id, era := Other} <- gb_trees:values(Requests), Other =/= Era]).

-doc "Returns the requests that wait, in their order.".
-spec requests(queue()) -> [request()].
requests(none) -> [];
requests(#queue{requests = Requests}) -> gb_trees:values(Requests).

-doc "Returns the waiting request with the id `Id`, in a list that may be empty.".
-spec request(Id :: erlmcp_message:id(), queue()) -> [request()].
request(Id, #queue{requests = Requests, ids = Ids}) when is_map_key(Id, Ids) ->
    [gb_trees:get(map_get(Id, Ids), Requests)];
request(_, _) ->
    [].

-doc "Returns the number of bytes of the requests that wait, and of their ids.".
-spec bytes(queue()) -> non_neg_integer().
bytes(none) -> 0;
bytes(#queue{bytes = Bytes}) -> Bytes.

-doc """
Returns the time at which the request that has waited longest arrived, in monotonic milliseconds.
Returns `infinity` if no request waits.
""".
-spec since(queue()) -> integer() | infinity.
since(none) ->
    infinity;
since(#queue{requests = Requests}) ->
    {_, #{arrival := {Began, _, _}}} = gb_trees:smallest(Requests),
    Began div 1_000_000.
