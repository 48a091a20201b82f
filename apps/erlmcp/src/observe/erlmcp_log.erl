-module(erlmcp_log).
-moduledoc """
Writes log reports with `library => erlmcp` in their metadata. A report that concerns one server has
the server's `id` as `server`, as events have, unless the server has ended.

Internal.
""".

-export([name/2, server/1, forget/1, report/2, report/3, text/3, without_state/1]).

%% There is no `domain`, since OTP's default handler drops reports with a domain other than OTP's.
-define(METADATA, #{library => erlmcp}).

-doc "Sets the name of the server with the key `Key` in log reports to `Server`, its `id`.".
-spec name(Key :: reference(), Server :: term()) -> ok.
name(Key, Server) ->
    persistent_term:put({?MODULE, Key}, {Server}).

-doc """
Returns the name of the server with the key `Key` in log reports, or `Key` if no name is set.
""".
-spec server(Key :: reference()) -> term().
server(Key) ->
    case persistent_term:get({?MODULE, Key}, none) of
        {Server} -> Server;
        none -> Key
    end.

-doc "Deletes the name of the server with the key `Key`, which has ended.".
-spec forget(Key :: term()) -> ok.
forget(Key) ->
    _ = persistent_term:erase({?MODULE, Key}),
    ok.

-doc "Logs a report that concerns no single server, or names its server itself.".
-spec report(logger:level(), logger:report()) -> ok.
report(Level, Report) ->
    logger:log(Level, Report, ?METADATA).

-doc """
Logs a report that concerns the server with the key `Key`. Adds the server's name as `server` if a
name is set (`name/2`).
""".
-spec report(logger:level(), #{what := atom(), atom() => term()}, Key :: reference()) -> ok.
report(Level, Report, Key) ->
    case persistent_term:get({?MODULE, Key}, none) of
        {Server} -> report(Level, Report#{server => Server});
        %% The server has ended, or has no name yet.
        none -> report(Level, Report)
    end.

-doc "Logs a text that is formatted as `io:format/2` does it.".
-spec text(logger:level(), io:format(), [term()]) -> ok.
text(Level, Format, Arguments) ->
    logger:log(Level, Format, Arguments, ?METADATA).

-doc """
Returns the status of a process (`c:gen_server:format_status/1`) with an empty log, and with
`hidden` as its state and its last message. The state and the message may have secrets of clients.
""".
-spec without_state(gen_server:format_status()) -> gen_server:format_status().
without_state(Status) ->
    maps:map(fun(Key, _) when Key =:= state; Key =:= message -> hidden;
                (log, _) -> [];
                (_, Value) -> Value
             end, Status).
