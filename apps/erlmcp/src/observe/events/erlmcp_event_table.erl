-module(erlmcp_event_table).
-moduledoc """
All events of servers, as data.

Internal.
""".

-export([table/0, measurements/1]).

-export_type([name/0]).

-type name() :: atom().

-doc """
Returns all events: the name of each, the fields that are measurements, its other fields, and a
sentence that says when it is emitted. The table does not have `event`, `server` and `at`, which all
events have, nor `dropped`, which each may have.
""".
-spec table() ->
    [{name(), Measurements :: [atom()], Metadata :: [atom()], When :: binary()}].
table() ->
    [{error_budget_changed, [requests, faults], [window, from, to],
      ~"the error budget of a window, `window` seconds long, is in another zone"},
     {memory_full, [used, limit], [source],
      ~"the memory passed its bound: new work is refused with 1089"},
     {memory_ok, [used, limit], [source], ~"the memory is far enough under its bound again"},
     {processors_busy, [waited, limit], [],
      ~"a new process waits too long for a scheduler: new work is refused with 1078"},
     {processors_ok, [waited, limit], [],
      ~"a new process waits for less than half of the bound again"},
     {incident, [], [incident, what, method, target],
      <<"a handler crashed, was killed, was late or returned too much; the log has the rest "
        "under the id">>},
     {not_quick, [limit], [method, target, why],
      ~"a handler with `quick => true` used more than `limit` `reductions`, or milliseconds"},
     {slow_consumer, [], [limit],
      <<"the stream or connection of a client that does not read was closed; `limit` is the "
        "bound that it passed: a number, the name of a limit, or a map of several">>},
     {breaker_opened, [opens_in_ms], [target],
      ~"too many calls failed in a row, the last of `target`: no call goes there for a while"},
     {breaker_closed, [], [target], ~"a call of `target` was served: all calls go there again"},
     {spans_dropped, [spans], [collector, why],
      <<"spans of traces were dropped: a buffer is full, their collector did not take them, or the "
        "process that sends them has crashed">>},
     {reloaded, [added, removed, changed], [modules],
      <<"the definitions were replaced by `erlmcp:replace/2` or a reload; `modules` have new "
        "code">>},
     {lame, [milliseconds], [],
      <<"the server is about to be drained: it is not ready, and still serves for these "
        "`milliseconds`">>},
     {draining, [milliseconds], [],
      ~"the server is being drained: new requests are refused with 1077"},
     {drained, [calls, tasks], [],
      ~"the server was drained: `calls` were ended before they had answered, `tasks` still run"}].

-doc "Returns the fields of the event `Name` that `table/0` has as its measurements.".
-spec measurements(name()) -> [atom()].
measurements(Name) ->
    {Name, Measurements, _, _} = lists:keyfind(Name, 1, table()),
    Measurements.
