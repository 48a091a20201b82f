-module(erlmcp_event_log).
-moduledoc """
The events of the streams of one session. Some wait to be sent, and a client that has lost a
connection may ask for others again. They are bounded in number, bytes and age: over a bound the
oldest events are dropped first. The newest event stays until it is too old, whatever its size: it
may be the only answer. Pure.

Internal.
""".

-export([new/1, append/4, find/2, expire/2, oldest/1]).

-export_type([log/0, key/0, stream/0]).

-doc """
The number of a stream of the session. A stream of an earlier home of the session has that home's
incarnation, too.
""".
-type stream() :: non_neg_integer() | {Incarnation :: non_neg_integer(), non_neg_integer()}.
-doc "The key of an event: its stream, and its position in that stream.".
-type key() :: {stream(), Position :: pos_integer()}.
-opaque log() :: #{
    limits := erlmcp_server_options:limits(),
    order := queue:queue({key(), At :: integer()}),
    events := #{key() => binary()},
    bytes := non_neg_integer()
}.

-doc """
Returns an empty log with the bounds of the limits `stored_events`, `stored_bytes` and `stored_ms`.
""".
-spec new(erlmcp_server_options:limits()) -> log().
new(Limits) ->
    %% All sessions of a server share the limits: a log without events takes little memory.
    #{limits => Limits, order => queue:new(), events => #{}, bytes => 0}.

-doc """
Adds an event, and drops the oldest other events while there are too many events or bytes. Returns
the keys of the dropped events. `Now` is a monotonic time in milliseconds.
""".
-spec append(key(), binary(), Now :: integer(), log()) -> {Dropped :: [key()], log()}.
append(Key, Bytes, Now, #{order := Order, events := Events, bytes := Total} = Log) ->
    trim(Log#{order := queue:in({Key, Now}, Order),
              events := Events#{Key => Bytes},
              bytes := Total + byte_size(Bytes)}, []).

trim(#{limits := Limits, events := Events, bytes := Total} = Log, Dropped) ->
    #{stored_events := MaxEvents, stored_bytes := MaxBytes} = Limits,
    case map_size(Events) > 1 andalso (map_size(Events) > MaxEvents orelse Total > MaxBytes) of
        true ->
            {Key, Rest} = drop(Log),
            trim(Rest, [Key | Dropped]);
        false ->
            {Dropped, Log}
    end.

drop(#{order := Order, events := Events, bytes := Total} = Log) ->
    {{value, {Key, _}}, Rest} = queue:out(Order),
    {Bytes, Others} = maps:take(Key, Events),
    {Key, Log#{order := Rest, events := Others, bytes := Total - byte_size(Bytes)}}.

-doc "Returns the bytes of the event with the key `Key`, or `error` if the log does not have it.".
-spec find(key(), log()) -> {ok, binary()} | error.
find(Key, #{events := Events}) ->
    maps:find(Key, Events).

-doc """
Drops the events that are at least `stored_ms` old at `Now`, and returns their keys. `Now` is a time
on the clock of `append/4`.
""".
-spec expire(Now :: integer(), log()) -> {Dropped :: [key()], log()}.
expire(Now, Log) ->
    expire(Now, Log, []).

expire(Now, #{limits := #{stored_ms := Milliseconds}} = Log, Dropped) ->
    case oldest(Log) of
        At when is_integer(At), Now - At >= Milliseconds ->
            {Key, Rest} = drop(Log),
            expire(Now, Rest, [Key | Dropped]);
        _ ->
            {Dropped, Log}
    end.

-doc """
Returns the time at which the oldest event was added, on the clock of `append/4`. Returns `none` if
the log is empty.
""".
-spec oldest(log()) -> integer() | none.
oldest(#{order := Order}) ->
    case queue:peek(Order) of
        {value, {_, At}} -> At;
        empty -> none
    end.
