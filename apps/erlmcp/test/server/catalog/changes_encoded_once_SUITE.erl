-module(changes_encoded_once_SUITE).
-moduledoc "A change is encoded once, however many hear of it.".

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([many_are_told_the_same_bytes/1, nobody_is_told_nothing/1]).

-define(SUBSCRIBERS, 10_000).
%% Bytes: a message has a copy of what is shorter than 64.
-define(LONG, 200).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [many_are_told_the_same_bytes, nobody_is_told_nothing].

many_are_told_the_same_bytes(_) ->
    Topic = topic(),
    Table = erlmcp_subscriptions:new(),
    lists:foreach(fun(Number) ->
        ok = erlmcp_subscriptions:add([Topic], {self(), Number}, subscription(Number),
                                      ~"somebody", Table)
    end, lists:seq(1, ?SUBSCRIBERS)),
    Calls = counters:new(1, []),
    {uri, Uri} = Topic,
    ok = erlmcp_subscriptions:publish(Topic, all, fun() ->
        ok = counters:add(Calls, 1, 1),
        Change = {~"notifications/resources/updated", #{~"uri" => Uri}},
        {Change, Change}
    end, Table),
    ?assertEqual(1, counters:get(Calls, 1)),
    Told = [receive {Number, {event, Of, Topic, Encoded, _}} -> {Of, Encoded} end
            || Number <- lists:seq(1, ?SUBSCRIBERS)],
    [{session, {Notification, _, _}} = First | _] = Told,
    %% What differs is each one's subscription, which is put between the rest.
    #{~"params" := #{~"uri" := Uri} = Params} = decoded(First),
    ?assertNot(is_map_key(~"_meta", Params)),
    #{~"params" := #{~"uri" := Uri,
                     ~"_meta" := #{~"io.modelcontextprotocol/subscriptionId" := ?SUBSCRIBERS}}} =
        decoded(lists:last(Told)),
    %% The bytes are there once, and all that was told refers to them.
    ?assertMatch([_], addresses(byte_size(Notification))),
    %% It is there until then.
    ?assertEqual(?SUBSCRIBERS, length(Told)).

topic() -> {uri, <<"file:///", (binary:copy(~"x", ?LONG))/binary>>}.

subscription(1) -> session;
subscription(Number) -> Number.

decoded({Of, Encoded}) ->
    json:decode(iolist_to_binary(erlmcp_subscriptions:encoded(Of, Encoded))).

addresses(Size) ->
    {binary, Known} = process_info(self(), binary),
    lists:usort([Address || {Address, Bytes, _} <- Known, Bytes =:= Size]).

nobody_is_told_nothing(_) ->
    ok = erlmcp_subscriptions:publish(topic(), all, fun() -> error(encoded_for_nobody) end,
                                      erlmcp_subscriptions:new()).
