-module(erlmcp_cli_stderr).
-moduledoc """
Handles the standard error of a server that the command has started, as a handler of `m:logger`.
With `--verbose` the lines are shown. Otherwise the last ones are kept, and shown if the command
fails.
""".

-export([attach/1, detach/0, show_last/0]).
-export([log/2]).

-define(HANDLER, ?MODULE).
-define(DOMAIN, [erlmcp, client, stderr]).
-define(KEPT, 20).

-doc """
Adds the handler, in place of an earlier one. If `Shown` is `true`, the handler shows the lines of
the server at once. Otherwise it keeps the last 20 lines for `show_last/0`, until the calling
process ends. From now on OTP's default handler is limited to warnings, so that it does not show
these lines.
""".
-spec attach(Shown :: boolean()) -> ok.
attach(Shown) ->
    _ = logger:remove_handler(?HANDLER),
    Kept = ets:new(?MODULE, [public, ordered_set]),
    ok = logger:add_handler(?HANDLER, ?MODULE, #{
        config => #{shown => Shown, kept => Kept},
        filter_default => stop,
        filters => [{stderr, {fun logger_filters:domain/2, {log, equal, ?DOMAIN}}}]}),
    _ = logger:set_handler_config(default, level, warning),
    ok.

-doc "Removes the handler. Lines that the handler has kept are lost.".
-spec detach() -> ok.
detach() ->
    _ = logger:remove_handler(?HANDLER),
    ok.

-doc """
Writes on stderr the lines that the handler has kept, and removes them from the handler. Fails if
`attach/1` was not called.
""".
-spec show_last() -> ok.
show_last() ->
    {ok, #{config := #{kept := Kept}}} = logger:get_handler_config(?HANDLER),
    Lines = [Line || {_, Line} <- ets:tab2list(Kept)],
    true = ets:delete_all_objects(Kept),
    lists:foreach(fun show/1, Lines).

show(Line) ->
    erlmcp_cli_terminal:say(["server: ", erlmcp_cli_text:one_line(Line)]).

-doc false.
log(#{msg := {report, #{line := Line}}}, #{config := #{shown := true}}) ->
    show(Line);
log(#{msg := {report, #{line := Line}}}, #{config := #{kept := Kept}}) ->
    true = ets:insert(Kept, {erlang:unique_integer([monotonic]), Line}),
    case ets:info(Kept, size) > ?KEPT of
        true -> ets:delete(Kept, ets:first(Kept));
        false -> true
    end;
log(_, _) ->
    true.
