-module(erlmcp_cli_log).
-moduledoc """
Configures the node's log, which goes to standard error. If nobody reads that, OTP's handler would
make the logging processes wait, or keep all of their reports. With this module no process waits,
and reports are dropped while too many earlier ones are unread. Characters that a terminal would
obey are spelled out, as escapes in lines of JSON.
""".

-export([never_wait/0, without_reports/2, show_servers/1, hide_servers/0]).
-export([room/2, no_report/2, no_server/2, format/2]).

-export_type([whose/0]).

-doc """
The processes that start: a server, a client or a control socket of the command's own (`own`), or
applications.
""".
-type whose() :: own | applications.

%% The registered name of the process of OTP's handler `default`.
-define(WRITER, logger_std_h_default).
%% The most lines that may wait to be written, and the most reports that are held.
-define(WAITING, 200).

-doc """
Makes the node's handler `default` drop reports while 200 others are unread, instead of letting the
logging processes wait. The handler then also spells out characters that a terminal would obey.
""".
-spec never_wait() -> ok.
never_wait() ->
    ok = logger:update_handler_config(default, config, #{sync_mode_qlen => ?WAITING,
                                                         drop_mode_qlen => ?WAITING}),
    {ok, #{formatter := Formatter}} = logger:get_handler_config(default),
    ok = logger:update_handler_config(default, formatter, {?MODULE, #{formatter => Formatter}}),
    ok = logger:add_handler_filter(default, ?MODULE, {fun ?MODULE:room/2, none}).

-doc "Formats the node's log as lines of JSON or of text, with the starts and ends of servers.".
-spec show_servers(json | text) -> ok.
show_servers(Format) ->
    Formatter = {erlmcp_log_formatter, #{format => Format}},
    ok = logger:update_handler_config(default, formatter, {?MODULE, #{formatter => Formatter}}).

-doc """
Leaves the starts, drains, reloads and ends of servers, and the beginnings of the node's leases in a
cluster, out of the node's log.
""".
-spec hide_servers() -> ok.
hide_servers() ->
    ok = logger:add_handler_filter(default, servers, {fun ?MODULE:no_server/2, none}).

-doc """
Runs `Start`, and returns its result. OTP's reports that come meanwhile, and ranch's of a listener
that cannot start, are shown afterwards if `Start` succeeds, and dropped if it fails. At most 200 of
them are held, and others dropped. For `own`, the warning on a listener that authenticates no client
is left out, since `erlmcp serve` prints it itself.
""".
-spec without_reports(whose(), Start :: fun(() -> {ok, Started} | {error, Reason})) ->
    {ok, Started} | {error, Reason}.
without_reports(Whose, Start) ->
    Held = ets:new(?MODULE, [ordered_set, public]),
    _ = logger:add_primary_filter(?MODULE, {fun ?MODULE:no_report/2, {Whose, Held}}),
    try
        %% A failed start repeats at length the reason that the caller gets. During one that
        %% succeeds, a server may serve requests already, and a process of its user may crash.
        Result = try Start() after logger:remove_primary_filter(?MODULE) end,
        _ = [ok = show(Event) || {ok, _} <- [Result], {_, Event} <- ets:tab2list(Held)],
        Result
    after
        ets:delete(Held)
    end.

show(#{level := Level, msg := {report, Report}, meta := Meta}) ->
    logger:log(Level, Report, Meta);
show(#{level := Level, msg := {string, Text}, meta := Meta}) ->
    logger:log(Level, Text, Meta);
show(#{level := Level, msg := {Format, Arguments}, meta := Meta}) ->
    logger:log(Level, Format, Arguments, Meta).

-doc false.
-spec no_report(logger:log_event(), {whose(), Held :: ets:table()}) -> stop | ignore.
no_report(#{meta := #{domain := [otp | _]}} = Event, {_, Held}) -> held(Event, Held);
no_report(#{msg := {"Failed to start Ranch listener" ++ _, _}} = Event, {_, Held}) ->
    held(Event, Held);
no_report(#{msg := {report, #{what := listener_asks_nobody}}}, {own, _}) -> stop;
no_report(_, _) -> ignore.

-doc false.
-spec no_server(logger:log_event(), none) -> stop | ignore.
no_server(#{msg := {report, #{what := What}}}, none)
  when What =:= server_listens; What =:= server_is_lame; What =:= server_drains;
       What =:= server_drained; What =:= server_reloaded; What =:= server_ended;
       What =:= cluster_lease_begun ->
    stop;
no_server(_, none) -> ignore.

held(Event, Held) ->
    try
        _ = ets:info(Held, size) < ?WAITING
            andalso ets:insert(Held, {erlang:unique_integer([monotonic]), Event}),
        stop
    catch
        %% The start has returned.
        error:badarg -> ignore
    end.

-doc false.
-spec format(logger:log_event(), #{formatter := {module(), logger:formatter_config()}}) -> binary().
format(Event, #{formatter := {erlmcp_log_formatter, #{format := json} = Config}}) ->
    erlmcp_cli_text:escaped(erlmcp_log_formatter:format(Event, Config));
format(Event, #{formatter := {Module, Config}}) ->
    erlmcp_cli_output:rendered(Module:format(Event, Config), none).

-doc false.
-spec room(logger:log_event(), none) -> stop | ignore.
%% A report that the reader of stdout is gone, which `erlmcp_cli_reader` handles.
room(#{msg := {"Writer crashed (~p)", [epipe]}}, none) ->
    stop;
room(_, none) ->
    %% The writer counts waiting reports before it writes, and not while it is blocked. When the
    %% node stops, a blocked writer is killed; processes that log would then wait for standard error
    %% themselves.
    maybe
        Pid = whereis(?WRITER),
        true ?= is_pid(Pid),
        {message_queue_len, Waiting} ?= process_info(Pid, message_queue_len),
        true ?= Waiting < ?WAITING,
        ignore
    else
        _ -> stop
    end.
