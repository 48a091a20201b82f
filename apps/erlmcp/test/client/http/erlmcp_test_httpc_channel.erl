-module(erlmcp_test_httpc_channel).
-moduledoc """
Functions for suites of `m:erlmcp_httpc_channel`: they open a channel, read the events of an
exchange, and look at the channel's pool.
""".

-export([open/2, with_channel/3, outgoing/1, next/1, events/1, await/2]).

-define(TIMEOUT, 30_000).

-doc "Calls a fun with a channel to this URL, closes the channel, and returns the fun's result.".
-spec with_channel(binary(), map(), fun((term()) -> Result)) -> Result.
with_channel(Url, Options, Fun) ->
    {ok, Pid, Handle} = open(Url, Options),
    Result = Fun(Handle),
    ok = erlmcp_httpc_channel:close(Pid),
    Result.

-doc "Opens a channel to this URL.".
-spec open(binary(), map()) -> {ok, pid(), term()} | {error, term()}.
open(Url, Options) ->
    erlmcp_httpc_channel:open(Url, #{
        limits => #{message_bytes => 1_000_000, depth => 64, members => 10_000},
        connect_timeout => 5000, options => Options
    }).

-doc "Returns an outgoing message with these members.".
-spec outgoing(map()) -> map().
outgoing(Options) ->
    maps:merge(#{kind => request, id => 1, headers => [], session => none,
                 deadline => erlang:monotonic_time(millisecond) + 60_000}, Options).

-doc "Returns all events of an exchange until it is over.".
-spec events(term()) -> [term()].
events(X) ->
    {Events, Next} = next(X),
    case lists:any(fun is_last/1, Events) of
        true -> Events;
        false -> Events ++ events(Next)
    end.

is_last({message, {response, _, _}}) -> true;
is_last({failed, _}) -> true;
is_last(sent) -> true;
is_last(_) -> false.

-doc "Waits for the next message that brings events. Returns them, and the exchange after them.".
-spec next(term()) -> {[term()], term()}.
next(X) ->
    receive
        Message when element(1, Message) =/= asked, element(1, Message) =/= closed ->
            case erlmcp_httpc_channel:received(Message, X) of
                {[], Next} -> next(Next);
                {Events, Next} -> {Events, Next};
                other -> left_over(Message), next(X)
            end
    after ?TIMEOUT ->
        error({silent, X})
    end.

%% What gun had sent of a stream before it heard that nobody wants it any more.
left_over(Message) when element(1, Message) =:= gun_data; element(1, Message) =:= gun_error -> ok.

-doc """
Waits until a pool has these numbers (`erlmcp_httpc_pool:info/1`), which no message announces.
""".
-spec await(erlmcp_httpc_pool:handle(), Expected :: map()) -> ok.
await(Pool, Expected) ->
    await(Pool, Expected, erlang:monotonic_time(millisecond) + ?TIMEOUT).

await(Pool, Expected, Deadline) ->
    Info = erlmcp_httpc_pool:info(Pool),
    case maps:with(maps:keys(Expected), Info) of
        Expected ->
            ok;
        _ ->
            {true, Info} = {erlang:monotonic_time(millisecond) < Deadline, Info},
            receive after 5 -> ok end,
            await(Pool, Expected, Deadline)
    end.
