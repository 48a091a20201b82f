-module(erlmcp_cli_log).
-moduledoc """
The node's log goes to standard error, which whoever started the command may never read. OTP's
handler would make those who log wait for him, or keep for him whatever they log; here nobody waits,
and what nobody reads is dropped. What a terminal would obey is spelled out in it, as in all that
the command writes.
""".

-export([never_wait/0, without_reports/2]).
-export([room/2, no_report/2, format/2]).

-export_type([whose/0]).

-doc "Whether what starts is the command's own, or belongs to applications.".
-type whose() :: own | applications.

%% Of OTP's handler for `default`, in the logger's guide: the name of its process.
-define(WRITER, logger_std_h_default).
%% Lines that may wait to be written.
-define(WAITING, 200).

-doc "From now on those who log wait for nobody. It is for the node's handler `default`.".
-spec never_wait() -> ok.
never_wait() ->
    ok = logger:update_handler_config(default, config, #{sync_mode_qlen => ?WAITING,
                                                         drop_mode_qlen => ?WAITING}),
    {ok, #{formatter := Formatter}} = logger:get_handler_config(default),
    ok = logger:update_handler_config(default, formatter, {?MODULE, #{formatter => Formatter}}),
    ok = logger:add_handler_filter(default, ?MODULE, {fun ?MODULE:room/2, none}).

-doc """
Runs `Start`, which starts something, without the reports of OTP and of ranch: the caller is told
why it failed, once, and they say the same in pages. What else is logged meanwhile is shown: a
server may have its first requests before `Start` returns. The warning of a listener that asks
nobody is left out for `own`: `erlmcp serve` says it of that server in a line.
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
%% The reader of stdout is gone, which the command knows by itself (`erlmcp_cli_reader`).
room(#{msg := {"Writer crashed (~p)", [epipe]}}, none) ->
    stop;
room(_, none) ->
    %% The writer counts what waits before it writes, and not while it cannot. When the node stops
    %% it is killed if it cannot, and who logs then would wait for standard error himself.
    maybe
        Pid = whereis(?WRITER),
        true ?= is_pid(Pid),
        {message_queue_len, Waiting} ?= process_info(Pid, message_queue_len),
        true ?= Waiting < ?WAITING,
        ignore
    else
        _ -> stop
    end.
