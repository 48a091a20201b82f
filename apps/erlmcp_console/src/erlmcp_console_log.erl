-module(erlmcp_console_log).
-moduledoc """
Counts errors of the machine in the log, such as a full disk. The module is a handler of the log,
for entries of the level `error` and above. A full disk of the log itself is not seen here: OTP's
handlers report it only to standard error.
""".

-export([open/0, add/0, remove/0, read/0]).
-export([log/2]).

-export_type([row/0]).

-doc """
An error that was in the log, how often it was there, and the system time in milliseconds at which
it was last there. `Server` is the `id` of the server that the error concerns, or `none`. The place
is the tool whose call had the error, or `none`.
""".
-type row() :: {{Server :: term(), error(), place()}, Count :: pos_integer(), AtMs :: integer()}.
-type error() :: enospc | edquot | erofs | eio | emfile | enfile | enomem.
-type place() :: none | {tool, Name :: binary()}.

-define(HANDLER, erlmcp_console).
-define(IS_ERROR(Term), (Term =:= enospc orelse Term =:= edquot orelse Term =:= erofs
                             orelse Term =:= eio orelse Term =:= emfile orelse Term =:= enfile
                             orelse Term =:= enomem)).
%% Parts of a report that are looked at, and rows that are kept.
-define(PARTS, 2_000).
-define(ROWS, 100).
%% Characters of a name.
-define(CHARACTERS, 100).

-doc "Creates the table of the counts, owned by the calling process.".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, public]),
    ok.

-doc "Adds the handler to the log.".
-spec add() -> ok.
add() ->
    ok = logger:add_handler(?HANDLER, ?MODULE, #{level => error}).

-doc "Removes the handler from the log.".
-spec remove() -> ok.
remove() ->
    _ = logger:remove_handler(?HANDLER),
    ok.

-doc """
Returns the errors that were in the log, each with its count and its last time. Only the first 100
different errors are counted. Raises `badarg` once the owner of the table (`open/0`) has ended.
""".
-spec read() -> [row()].
read() ->
    ets:tab2list(?MODULE).

-doc false.
log(#{msg := {report, #{} = Report}}, _) ->
    %% The reason is looked at before the rest.
    counted(found([maps:get(reason, Report, none), Report], ?PARTS), Report);
log(#{msg := {report, Report}}, _) ->
    counted(found([Report], ?PARTS), #{});
log(#{msg := {string, _}}, _) ->
    ok;
log(#{msg := {_, Arguments}}, _) ->
    counted(found([Arguments], ?PARTS), #{}).

counted(none, _) ->
    ok;
counted(Error, Report) ->
    try
        Key = {maps:get(server, Report, none), Error, place(Report)},
        case ets:member(?MODULE, Key) orelse ets:info(?MODULE, size) < ?ROWS of
            true ->
                _ = ets:update_counter(?MODULE, Key, {2, 1}, {Key, 0, 0}),
                _ = ets:update_element(?MODULE, Key, {3, erlang:system_time(millisecond)}),
                ok;
            false ->
                ok
        end
    catch
        %% The application has just ended, or the report has a name that is no text.
        error:_ -> ok
    end.

place(#{method := ~"tools/call", target := Target}) when is_binary(Target) ->
    %% A copy, which does not keep the message of the request in memory.
    {tool, binary:copy(string:slice(Target, 0, ?CHARACTERS))};
place(_) ->
    none.

%% Goes through terms, the first one first, in the process that logs the entry.
found([], _) -> none;
found(_, 0) -> none;
found([Error | _], _) when ?IS_ERROR(Error) -> Error;
found([Tuple | Rest], Left) when is_tuple(Tuple), tuple_size(Tuple) =< Left ->
    found(tuple_to_list(Tuple) ++ Rest, Left - 1);
found([Map | Rest], Left) when is_map(Map), map_size(Map) =< Left ->
    found(maps:values(Map) ++ Rest, Left - 1);
%% A text has no error.
found([[First, Second | _] | Rest], Left) when is_integer(First), is_integer(Second) ->
    found(Rest, Left - 1);
found([[First | Others] | Rest], Left) ->
    found([First, Others | Rest], Left - 1);
found([_ | Rest], Left) ->
    found(Rest, Left - 1).
