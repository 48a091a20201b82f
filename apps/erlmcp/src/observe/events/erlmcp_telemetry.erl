-module(erlmcp_telemetry).
-moduledoc """
Hands events, and the calls of servers, to the application `telemetry` if the node has it. The
library does not depend on that application.

Source: telemetry, `telemetry:execute/3` and `telemetry:span/3`.

Internal.
""".

-export([module/0, handler/0, span/3]).

-doc "Returns the module of the application telemetry, or `none` if the node does not have it.".
-spec module() -> module() | none.
module() ->
    case code:ensure_loaded(telemetry) of
        {module, Telemetry} -> Telemetry;
        {error, _} -> none
    end.

-doc """
Returns a handler that executes the telemetry event `[erlmcp, server, Name]` for each event `Name`.
Returns `none` if there is no application telemetry. The measurements are `at`, `dropped`, and those
of `erlmcp_event_table:table/0`. The metadata are the other fields of the event, except its name.
""".
-spec handler() -> erlmcp_event_handler:handler() | none.
handler() ->
    case module() of
        none -> none;
        Telemetry -> fun(Event) -> execute(Event, Telemetry) end
    end.

execute(#{event := Name} = Event, Telemetry) ->
    Fields = maps:remove(event, Event),
    Measurements = maps:with([at, dropped | erlmcp_event_table:measurements(Name)], Fields),
    Metadata = maps:without(maps:keys(Measurements), Fields),
    Telemetry:execute([erlmcp, server, Name], Measurements, Metadata).

-doc """
Runs a call in a span of telemetry: the events `[erlmcp, call, start]`, and `[erlmcp, call, stop]`
or `[erlmcp, call, exception]`. Returns or raises what `Run` does. In addition to telemetry's own,
the metadata are `server`, `method` and `target`, the name or URI of the call or `undefined`. The
metadata of `stop` also have `outcome`: `ok`, `tool_error`, or the name of a refusal.
""".
-spec span(Run, erlmcp:context(),
           #{telemetry := module(), key := reference(), atom() => term()}) -> Result when
    Run :: fun(() -> Result),
    Result :: {ok | tool_error, term()} | {error, erlmcp_refusal:refusal()}.
span(Run, #{method := Method} = Context, #{telemetry := Telemetry, key := Key}) ->
    Metadata = #{server => erlmcp_log:server(Key), method => Method,
                 target => maps:get(name, Context, maps:get(uri, Context, undefined))},
    Telemetry:span([erlmcp, call], Metadata, fun() ->
        Result = Run(),
        {Result, Metadata#{outcome => outcome(Result)}}
    end).

outcome({error, Refusal}) -> erlmcp_refusal:name(Refusal);
outcome({Outcome, _}) -> Outcome.
