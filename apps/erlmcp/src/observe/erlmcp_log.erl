-module(erlmcp_log).
-moduledoc """
The log reports of the library: each has `library => erlmcp` in its metadata, and `server` says
which server it is of, where it is of one: the `id` of its options, as in its events.

They have no `domain`: the handler that OTP sets up leaves out what has one that is not OTP's.
""".

-export([name/2, forget/1, report/2, report/3, text/3]).

-define(METADATA, #{library => erlmcp}).

-doc "What the server with this key is called from now on.".
-spec name(Key :: reference(), Server :: term()) -> ok.
name(Key, Server) ->
    persistent_term:put({?MODULE, Key}, {Server}).

-doc "It has ended.".
-spec forget(Key :: term()) -> ok.
forget(Key) ->
    _ = persistent_term:erase({?MODULE, Key}),
    ok.

-doc "Logs a report that is of no server alone.".
-spec report(logger:level(), logger:report()) -> ok.
report(Level, Report) ->
    logger:log(Level, Report, ?METADATA).

-doc "Logs a report of the server with this key.".
-spec report(logger:level(), #{what := atom(), atom() => term()}, Key :: reference()) -> ok.
report(Level, Report, Key) ->
    case persistent_term:get({?MODULE, Key}, none) of
        {Server} -> report(Level, Report#{server => Server});
        %% It has ended, or begins.
        none -> report(Level, Report)
    end.

-doc "Logs a text.".
-spec text(logger:level(), io:format(), [term()]) -> ok.
text(Level, Format, Arguments) ->
    logger:log(Level, Format, Arguments, ?METADATA).
