-module(erlmcp_line_exchanges).
-moduledoc """
The open exchanges of a line channel or of a stream of HTTP+SSE, by id, by progress token and by
subscription. A value of the process that reads the messages, which monitors the process of each
exchange.

Internal.
""".

-export([new/0, count/1, add/3, find/2, remove/2, by_monitor/2, all/1]).
-export([by_id/2, by_params/2, only_request/1]).

-export_type([exchanges/0, exchange/0, ref/0]).

-define(SUBSCRIPTION, ~"io.modelcontextprotocol/subscriptionId").

-doc "The reference of an exchange: an alias of the process that waits for its events.".
-type ref() :: reference().
-type exchange() :: #{
    pid := pid(),
    kind := request | notification | response | stream,
    id := erlmcp_message:id() | none,
    token := binary() | integer() | none,
    deadline := integer()
}.

-record(exchanges, {
    open = #{} :: #{ref() => {Monitor :: reference(), exchange()}},
    ids = #{} :: #{erlmcp_message:id() => ref()},
    tokens = #{} :: #{binary() | integer() => ref()},
    monitors = #{} :: #{reference() => ref()}
}).

-opaque exchanges() :: #exchanges{}.

-doc "Returns an empty set of exchanges.".
-spec new() -> exchanges().
new() ->
    #exchanges{}.

-doc "Returns the number of open exchanges.".
-spec count(exchanges()) -> non_neg_integer().
count(#exchanges{open = Open}) ->
    map_size(Open).

-doc """
Adds an exchange, and monitors its process. Returns `taken` if another open exchange has its token,
or the id of its request or stream. The id of a response does not count, since the server chose it.
""".
-spec add(ref(), exchange(), exchanges()) -> {ok, exchanges()} | taken.
add(_, #{kind := Kind, id := Id}, #exchanges{ids = Ids}) when
    (Kind =:= request orelse Kind =:= stream), is_map_key(Id, Ids)
->
    taken;
add(_, #{token := Token}, #exchanges{tokens = Tokens}) when is_map_key(Token, Tokens) ->
    taken;
add(Ref, #{pid := Pid, kind := Kind, id := Id, token := Token} = Exchange, Exchanges) ->
    #exchanges{open = Open, ids = Ids, tokens = Tokens, monitors = Monitors} = Exchanges,
    Monitor = monitor(process, Pid),
    {ok, Exchanges#exchanges{
        open = Open#{Ref => {Monitor, Exchange}},
        ids = case Kind of
            %% The id of a response was chosen by the server.
            response -> Ids;
            _ -> put_key(Id, Ref, Ids)
        end,
        tokens = put_key(Token, Ref, Tokens),
        monitors = Monitors#{Monitor => Ref}}}.

put_key(none, _, Keys) -> Keys;
put_key(Key, Ref, Keys) -> Keys#{Key => Ref}.

-doc "Returns the open exchange with a reference, or `none`.".
-spec find(ref(), exchanges()) -> {ok, exchange()} | none.
find(Ref, #exchanges{open = Open}) ->
    case Open of
        #{Ref := {_, Exchange}} -> {ok, Exchange};
        #{} -> none
    end.

-doc "Removes an exchange and returns it, or `none` if the exchange is not open.".
-spec remove(ref(), exchanges()) -> {exchange(), exchanges()} | none.
remove(Ref, #exchanges{open = Open, ids = Ids, tokens = Tokens, monitors = Monitors} = Exchanges) ->
    case maps:take(Ref, Open) of
        {{Monitor, #{id := Id, token := Token} = Exchange}, Rest} ->
            true = demonitor(Monitor, [flush]),
            {Exchange, Exchanges#exchanges{open = Rest,
                                           ids = remove_key(Id, Ref, Ids),
                                           tokens = remove_key(Token, Ref, Tokens),
                                           monitors = maps:remove(Monitor, Monitors)}};
        error ->
            none
    end.

remove_key(Key, Ref, Keys) ->
    case Keys of
        #{Key := Ref} -> maps:remove(Key, Keys);
        #{} -> Keys
    end.

-doc "Returns the reference of the exchange whose process `Monitor` watches, or `none`.".
-spec by_monitor(Monitor :: reference(), exchanges()) -> {ok, ref()} | none.
by_monitor(Monitor, #exchanges{monitors = Monitors}) ->
    case Monitors of
        #{Monitor := Ref} -> {ok, Ref};
        #{} -> none
    end.

-doc "Returns the references of all open exchanges.".
-spec all(exchanges()) -> [ref()].
all(#exchanges{open = Open}) ->
    maps:keys(Open).

-doc """
Returns the reference of the request or the stream with an id, or `none`. The id's type counts: `1`
is not `~"1"`.
""".
-spec by_id(erlmcp_message:id(), exchanges()) -> {ok, ref()} | none.
by_id(Id, #exchanges{ids = Ids}) ->
    found(Id, Ids).

-doc """
Returns the reference and the process of the exchange that the parameters of a notification name, or
`none`. The parameters have the `progressToken` of the exchange, or the id of the request that
opened a subscription.
""".
-spec by_params(map(), exchanges()) -> {ok, ref(), pid()} | none.
by_params(#{~"progressToken" := Token}, #exchanges{tokens = Tokens} = Exchanges) ->
    with_pid(found(Token, Tokens), Exchanges);
by_params(#{~"_meta" := #{?SUBSCRIPTION := Id}}, #exchanges{ids = Ids} = Exchanges) ->
    with_pid(found(Id, Ids), Exchanges);
by_params(_, _) ->
    none.

with_pid({ok, Ref}, #exchanges{open = Open}) ->
    #{Ref := {_, #{pid := Pid}}} = Open,
    {ok, Ref, Pid};
with_pid(none, _) ->
    none.

-doc """
Returns the reference and the id of the only open request; `none` if there is no open request, or
another request or stream is open.
""".
-spec only_request(exchanges()) -> {ok, ref(), erlmcp_message:id()} | none.
only_request(#exchanges{open = Open, ids = Ids}) when map_size(Ids) =:= 1 ->
    [{Id, Ref}] = maps:to_list(Ids),
    case Open of
        #{Ref := {_, #{kind := request}}} -> {ok, Ref, Id};
        #{} -> none
    end;
only_request(_) ->
    none.

found(Key, Keys) ->
    case Keys of
        #{Key := Ref} -> {ok, Ref};
        #{} -> none
    end.
