-module(erlmcp_cli_log).
-moduledoc """
Writes the node's log to standard error. The user may never read that. OTP's handler would then make
the logging processes wait, or keep all their reports. With this module no process waits, and
reports that are not read are dropped. Characters that a terminal would obey are spelled out, as in
all text of the command.
""".

-export([never_wait/0, without_reports/2]).
-export([room/2, no_report/2, format/2]).

-export_type([whose/0]).

-doc "The owner of the started processes: the command or applications.".
-type whose() :: own | applications.

%% The name of the process of OTP's handler `default`, as in the logger's guide.
-define(WRITER, logger_std_h_default).
%% Lines that may wait to be written.
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
Runs `Start` without the reports of OTP and of ranch. The caller gets the reason of a failure once,
and these reports repeat it in pages. Other reports meanwhile are shown: a server may have its first
requests before `Start` returns. For `own` the warning of a listener that authenticates no client is
left out: `erlmcp serve` prints it for that server in a line.
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
%% The reader of stdout is gone, which `erlmcp_cli_reader` reports.
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
