-module(erlmcp_cli_log).
-moduledoc """
Configures the node's log, which goes to standard error. If nobody reads that, OTP's handler would
make the logging processes wait, or keep all of their reports. With this module no process waits,
and reports are dropped while earlier ones are unread. Characters that a terminal would obey are
spelled out, as in all text of the command.
""".

-export([never_wait/0, without_reports/2]).
-export([room/2, no_report/2, format/2]).

-export_type([whose/0]).

-doc "What is being started: the command's own server or client, or applications.".
-type whose() :: own | applications.

%% The registered name of the process of OTP's handler `default`.
-define(WRITER, logger_std_h_default).
%% The most lines that may wait to be written.
-define(WAITING, 200).

-doc """
Makes the node's handler `default` drop reports instead of letting the logging processes wait.
""".
-spec never_wait() -> ok.
never_wait() ->
    ok = logger:update_handler_config(default, config, #{sync_mode_qlen => ?WAITING,
                                                         drop_mode_qlen => ?WAITING}),
    {ok, #{formatter := Formatter}} = logger:get_handler_config(default),
    ok = logger:update_handler_config(default, formatter, {?MODULE, #{formatter => Formatter}}),
    ok = logger:add_handler_filter(default, ?MODULE, {fun ?MODULE:room/2, none}).

-doc """
Runs a fun that starts something. Reports of OTP and ranch on a failed start are dropped, since they
repeat at length the reason that the caller gets. Other reports are shown, since a server may serve
requests before the fun returns. For `own`, the warning on a listener that authenticates no client
is left out, too, since `erlmcp serve` prints it itself.
""".
-spec without_reports(whose(), Start :: fun(() -> Result)) -> Result.
without_reports(Whose, Start) ->
    _ = logger:add_primary_filter(?MODULE, {fun ?MODULE:no_report/2, Whose}),
    try Start() after logger:remove_primary_filter(?MODULE) end.

-doc false.
-spec no_report(logger:log_event(), whose()) -> stop | ignore.
no_report(#{meta := #{domain := [otp | _]}}, _) -> stop;
no_report(#{msg := {"Failed to start Ranch listener" ++ _, _}}, _) -> stop;
no_report(#{msg := {report, #{what := listener_asks_nobody}}}, own) -> stop;
no_report(_, _) -> ignore.

-doc false.
-spec format(logger:log_event(), #{formatter := {module(), logger:formatter_config()}}) -> binary().
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
