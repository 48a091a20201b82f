-module(erlmcp_test_httpc_channel).
-moduledoc """
For suites of `m:erlmcp_httpc_channel`: a channel, what comes of what is sent, and the numbers of
the channel's pool.
""".

-export([open/2, with_channel/3, outgoing/1, next/1, events/1, await/2]).

-define(TIMEOUT, 30_000).

-doc "What a fun gives that has a channel to this URL, which is closed then.".
-spec with_channel(binary(), map(), fun((term()) -> Result)) -> Result.
with_channel(Url, Options, Fun) ->
    {ok, Pid, Handle} = open(Url, Options),
    Result = Fun(Handle),
    ok = erlmcp_httpc_channel:close(Pid),
    Result.

-doc "A channel to this URL.".
-spec open(binary(), map()) -> {ok, pid(), term()} | {error, term()}.
open(Url, Options) ->
    erlmcp_httpc_channel:open(Url, #{
        limits => #{message_bytes => 1_000_000, depth => 64, members => 10_000},
        connect_timeout => 5000, options => Options
    }).

-doc "What is sent, with these members.".
-spec outgoing(map()) -> map().
outgoing(Options) ->
    maps:merge(#{kind => request, id => 1, headers => [], session => none,
                 deadline => erlang:monotonic_time(millisecond) + 60_000}, Options).

-doc "All events until it is over.".
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

-doc "The events of the next message that brings some, and the exchange after it.".
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

-doc "Awaits numbers of a pool (`erlmcp_httpc_pool:info/1`); there is no message to wait for.".
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
