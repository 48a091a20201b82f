-module(everything_apps).
-moduledoc """
An MCP App: the tool `clock` shows its result in the view `ui://everything/clock`. The view's button
calls `clock_refresh`, which only views see. A client without MCP Apps gets the same as text.
""".

-export([tools/0, resources/0, call/2, read/1]).

-define(VIEW, ~"ui://everything/clock").

-doc "Returns the tools.".
-spec tools() -> [map()].
tools() ->
    Schema = #{type => object, required => [time, shown],
               properties => #{time => #{type => string}, shown => #{type => boolean}}},
    [#{name => ~"clock",
       title => ~"Clock",
       description => ~"Shows the time of the server",
       output_schema => Schema,
       ui => #{resource_uri => ?VIEW}},
     #{name => ~"clock_refresh",
       description => ~"The time of the server, for the view of the tool clock",
       output_schema => Schema,
       ui => #{resource_uri => ?VIEW, visibility => [app]}}].

-doc "Returns the views.".
-spec resources() -> [map()].
resources() ->
    [#{uri => ?VIEW,
       name => ~"clock",
       title => ~"Clock",
       description => ~"Shows what the tool clock gives, and asks for it again",
       ui => #{prefers_border => true, csp => #{connect_domains => []}}}].

-doc "Runs a tool. The result says whether the client shows views.".
-spec call(Name :: binary(), erlmcp:context()) -> map().
call(_, Context) ->
    Time = calendar:system_time_to_rfc3339(erlang:system_time(second), [{offset, "Z"}]),
    #{time => list_to_binary(Time),
      shown => erlmcp:client_has(Context, ~"io.modelcontextprotocol/ui")}.

-doc "Returns the page of a view.".
-spec read(Uri :: binary()) -> binary().
read(?VIEW) ->
    ~"""
    <!DOCTYPE html>
    <html lang="en">
    <head><meta charset="utf-8"><title>Clock</title></head>
    <body>
    <p>The server's time: <output>unknown</output> <button>Again</button></p>
    <script>
    const waiting = new Map();
    let last = 0;
    const post = (message) => parent.postMessage({jsonrpc: "2.0", ...message}, "*");
    const ask = (method, params) => new Promise((resolve) => {
        waiting.set(++last, resolve);
        post({id: last, method, params});
    });
    const show = (result) => {
        const time = result?.structuredContent?.time;
        if (time) document.querySelector("output").value = time;
    };
    addEventListener("message", ({source, data}) => {
        if (source !== parent || data?.jsonrpc !== "2.0") return;
        if (data.method === "ui/notifications/tool-result") show(data.params);
        else if (data.method && data.id !== undefined) post({id: data.id, result: {}});
        else if (waiting.has(data.id)) {
            waiting.get(data.id)(data.result);
            waiting.delete(data.id);
        }
    });
    document.querySelector("button").onclick = async () =>
        show(await ask("tools/call", {name: "clock_refresh", arguments: {}}));
    ask("ui/initialize", {
        protocolVersion: "2026-01-26",
        appInfo: {name: "everything-clock", version: "1.0.0"},
        appCapabilities: {},
    }).then(() => post({method: "ui/notifications/initialized", params: {}}));
    </script>
    </body>
    </html>
    """.
