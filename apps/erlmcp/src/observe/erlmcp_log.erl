-module(erlmcp_log).
-moduledoc """
The log reports of the library. Each has `library => erlmcp` in its metadata. `server` in a report
of one server is the `id` of the server's options, as in its events.

The metadata has no `domain`, since OTP's default handler leaves out reports with another domain
than OTP's.

Internal.
""".

-export([name/2, server/1, forget/1, report/2, report/3, text/3]).

-define(METADATA, #{library => erlmcp}).

-doc "Sets the name that the log has for the server with the key `Key`.".
-spec name(Key :: reference(), Server :: term()) -> ok.
name(Key, Server) ->
    persistent_term:put({?MODULE, Key}, {Server}).

-doc "Returns the name of the server with the key `Key`, or `Key` if the server has no name.".
-spec server(Key :: reference()) -> term().
server(Key) ->
    case persistent_term:get({?MODULE, Key}, none) of
        {Server} -> Server;
        none -> Key
    end.

-doc "Deletes the name of a server that has ended.".
-spec forget(Key :: term()) -> ok.
forget(Key) ->
    _ = persistent_term:erase({?MODULE, Key}),
    ok.

-doc "Logs a report of the node.".
-spec report(logger:level(), logger:report()) -> ok.
report(Level, Report) ->
    logger:log(Level, Report, ?METADATA).

-doc "Logs a report of the server with the key `Key`.".
-spec report(logger:level(), #{what := atom(), atom() => term()}, Key :: reference()) -> ok.
report(Level, Report, Key) ->
    case persistent_term:get({?MODULE, Key}, none) of
        {Server} -> report(Level, Report#{server => Server});
        %% The server has ended, or is starting.
        none -> report(Level, Report)
    end.

-doc "Logs a text.".
-spec text(logger:level(), io:format(), [term()]) -> ok.
text(Level, Format, Arguments) ->
    logger:log(Level, Format, Arguments, ?METADATA).
