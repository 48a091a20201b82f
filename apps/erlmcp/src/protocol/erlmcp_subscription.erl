-module(erlmcp_subscription).
-moduledoc """
Checks the requests with which clients subscribe: the URI of `resources/subscribe`, and the filter
of `subscriptions/listen`. Pure.

Internal.
""".

-export([uri/1, listen/4, closed/1]).

-export_type([closing/0]).

-doc "The data for the messages at the end of a subscription (`closed/1`).".
-opaque closing() :: {erlmcp_message:id(), erlmcp_revision:revision(), ServerMeta :: binary()}.

%% The most URIs in one filter, and the most bytes of one.
-define(MAX_URIS, 1000).
-define(MAX_URI_BYTES, 8192).

-doc """
Returns a copy of the URI of `resources/subscribe` or `resources/unsubscribe`. A URI that is
missing, is no string, or has more than 8,192 bytes is refused.
""".
-spec uri(Params :: map()) -> {ok, binary()} | {error, erlmcp_refusal:refusal()}.
uri(Params) ->
    maybe
        {ok, Uri} ?= erlmcp_params:string(~"uri", Params),
        ok ?= bounded(~"uri", Uri),
        {ok, binary:copy(Uri)}
    end.

bounded(_, Uri) when byte_size(Uri) =< ?MAX_URI_BYTES ->
    ok;
bounded(Field, Uri) ->
    {error, erlmcp_refusal:new(invalid_params, [Field, ~": a URI of too many bytes"],
                               #{code => -32602, limit => ?MAX_URI_BYTES,
                                 observed => byte_size(Uri)})}.

-doc """
Returns the effect of a stateless `subscriptions/listen` request, with the part of its filter that
the server honours. A filter that is missing or malformed, or has more than 1,000 URIs or a URI of
more than 8,192 bytes, is refused. So is a filter whose ids of tasks `erlmcp_task:topics/3` refuses.
""".
-spec listen(erlmcp_message:id(), Params :: map(), erlmcp_engine:client(),
             erlmcp_catalog:catalog()) ->
    {listen, erlmcp_engine:listen()} | {error, erlmcp_refusal:refusal()}.
listen(Given, Params, #{revision := Revision} = Client, Catalog) ->
    maybe
        true ?= is_map_key(~"notifications", Params)
            orelse {error, erlmcp_params:missing(~"notifications")},
        {ok, Filter} ?= erlmcp_params:object(~"notifications", Params),
        {ok, Asked} ?= erlmcp_params:strings(~"resourceSubscriptions", Filter),
        {ok, Lists} ?= lists_of(Filter),
        {ok, Tasks, TaskTopics} ?=
            erlmcp_task:topics(Filter, Client, erlmcp_catalog:has_tasks(Catalog)),
        true ?= length(Asked) =< ?MAX_URIS orelse {error, too_many_uris(length(Asked))},
        ok ?= bounded(~"notifications.resourceSubscriptions", longest(Asked)),
        Id = erlmcp_message:own_id(Given),
        %% URIs that no resource has, or none that this client may read, are not honoured.
        Uris = [Uri || Uri <- Asked, may_read(Uri, Client, Catalog)],
        Honoured = maps:from_list([{Name, true} || {Name, _} <- Lists]
                                  ++ [{~"resourceSubscriptions", Uris} || Uris =/= []]
                                  ++ [{~"taskIds", Tasks} || Tasks =/= []]),
        Meta = #{~"io.modelcontextprotocol/subscriptionId" => Id},
        Acknowledged = erlmcp_message:notification(
            ~"notifications/subscriptions/acknowledged",
            #{~"_meta" => Meta, ~"notifications" => Honoured}),
        {listen, #{id => Id,
                   topics => [Topic || {_, Topic} <- Lists]
                       ++ [{uri, binary:copy(Uri)} || Uri <- Uris] ++ TaskTopics,
                   acknowledged => Acknowledged,
                   %% A copy, since the runtime garbage collects every process that holds a part of
                   %% a persistent term when the term is replaced.
                   closed => {Id, Revision, binary:copy(erlmcp_catalog:server_meta(Catalog))}}}
    end.

longest(Uris) ->
    lists:foldl(fun(Uri, Longest) when byte_size(Uri) > byte_size(Longest) -> Uri;
                   (_, Longest) -> Longest
                end, ~"", Uris).

may_read(Uri, #{principal := Principal, scopes := Scopes}, Catalog) ->
    case erlmcp_catalog:resource(Uri, Principal, Catalog) of
        {ok, _, Definition, _} ->
            erlmcp_scope:check(erlmcp_definition:needs(Definition), Scopes) =:= ok;
        error ->
            false
    end.

lists_of(Filter) ->
    Known = [{~"toolsListChanged", tool}, {~"promptsListChanged", prompt},
             {~"resourcesListChanged", resource}],
    case [Name || {Name, _} <- Known, not is_boolean(maps:get(Name, Filter, false))] of
        [] -> {ok, [Item || {Name, _} = Item <- Known, maps:get(Name, Filter, false)]};
        [Name | _] ->
            {error, erlmcp_params:mistyped([~"notifications.", Name], ~"a boolean",
                                           map_get(Name, Filter))}
    end.

too_many_uris(Count) ->
    erlmcp_refusal:new(invalid_params, ~"notifications.resourceSubscriptions: too many URIs",
                       #{code => -32602, limit => ?MAX_URIS, observed => Count}).

-doc """
Returns the messages with which the server ends a subscription: a notification, and the answer to
its request, which ends the stream.
""".
-spec closed(closing()) -> [iodata(), ...].
closed({Id, Revision, ServerMeta}) ->
    Meta = #{~"io.modelcontextprotocol/subscriptionId" => Id},
    Whole = json:encode(maps:merge(json:decode(ServerMeta), Meta)),
    [erlmcp_message:notification(~"notifications/cancelled",
                                 #{~"_meta" => Meta, ~"requestId" => Id}),
     erlmcp_message:result(Id, erlmcp_result:object([], Revision, Whole))].
