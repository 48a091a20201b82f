-module(erlmcp_telemetry).
-moduledoc """
Hands events to the application `telemetry`, where that is loaded. The library does not depend on
it.

Source: telemetry, `telemetry:execute/3`.

Internal.
""".

-export([handler/0]).

-doc """
Returns a handler that executes the telemetry event `[erlmcp, server, Name]` for an event, or `none`
if there is no application telemetry. The measurements of an event are those of its row in
`erlmcp_event_table:table/0`, and `at` and `dropped`. Its metadata are its other fields.
""".
-spec handler() -> erlmcp_event_handler:handler() | none.
handler() ->
    case code:ensure_loaded(telemetry) of
        {module, Telemetry} -> fun(Event) -> execute(Event, Telemetry) end;
        {error, _} -> none
    end.

execute(#{event := Name} = Event, Telemetry) ->
    Fields = maps:remove(event, Event),
    Measurements = maps:with([at, dropped | erlmcp_event_table:measurements(Name)], Fields),
    Metadata = maps:without(maps:keys(Measurements), Fields),
    Telemetry:execute([erlmcp, server, Name], Measurements, Metadata).
