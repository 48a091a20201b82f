-module(erlmcp_call_report).
-moduledoc """
Sends the reports of a handler, such as progress and log messages, to the owner of its call
(`m:erlmcp_call_messages`). Reports over the bound of `m:erlmcp_notification_window` are left out.
In 2026-07-28 the call of a task sends no notifications.

Internal.
""".

-export([owned/2, owned/3, before_progress/1, progress/3, log/4]).
-export([elicitation_complete/2, close_connection/1]).

%% The member of `_meta` that says how many notifications before this one were left out.
-define(LEFT_OUT, ~"erlmcp/leftOut").
%% The largest float.
-define(LARGEST, 1.7976931348623157e308).

-doc "Returns the context of a call with its owner added, for a call that sends no notifications.".
-spec owned(erlmcp_call:owner(), erlmcp_engine:context()) -> erlmcp_engine:context().
owned(Owner, #{call := Call} = Context) ->
    Context#{call := Call#{owner => Owner}}.

-doc """
Returns the context of a call with its owner and `Window` added. The owner gets the call's reports,
and the window bounds its notifications. For an inline call, `Window` is the limits of its server:
the call's first notification makes the window from them.
""".
-spec owned(erlmcp_call:owner(), Window :: term(), erlmcp_engine:context()) ->
    erlmcp_engine:context().
owned(Owner, Window, #{call := Call} = Context) ->
    Context#{call := Call#{owner => Owner, window => Window}}.

-doc """
Reports progress, if the client asked for it. In a task, the message of `Details` also becomes the
task's status message, even if the client did not ask for progress. Does nothing if `Progress` is
not greater than the value that the call has reported before.
""".
-spec progress(erlmcp_engine:context(), Progress :: number(),
               Details :: #{total => number(), message => binary()}) -> ok.
progress(#{progress_token := undefined} = Context, _, _) when not is_map_key(task, Context) ->
    ok;
progress(#{call := #{progressed := Last}} = Context, Progress, Details) ->
    case grows(ordinal(Progress), atomics:get(Last, 1), Last) of
        true ->
            ok = status(Context, Details),
            progressed(Context, Progress, maps:with([total, message], Details));
        false ->
            ok
    end.

%% Several processes may report at once.
grows(New, Known, _) when New =< Known ->
    false;
grows(New, Known, Last) ->
    case atomics:compare_exchange(Last, 1, Known, New) of
        ok -> true;
        Other -> grows(New, Other, Last)
    end.

%% The bits of floats are in the order of their values, except for the sign. An integer that is too
%% large for a float counts as the largest one.
ordinal(Progress) ->
    case <<(float(max(-?LARGEST, min(?LARGEST, Progress)))):64/float>> of
        <<0:1, Size:63>> -> Size;
        <<1:1, Size:63>> -> -Size
    end.

-doc """
Returns the context of a call with a place where `progress/3` keeps the value that was reported
last. If the call cannot report progress, returns the context unchanged.
""".
-spec before_progress(erlmcp_engine:context()) -> erlmcp_engine:context().
before_progress(#{progress_token := undefined} = Context) when not is_map_key(task, Context) ->
    Context;
before_progress(#{call := Call} = Context) ->
    Last = atomics:new(1, []),
    ok = atomics:put(Last, 1, -1 bsl 63),
    Context#{call := Call#{progressed => Last}}.

%% The message of a task's progress becomes its status message, for clients that ask for the task.
status(#{task := _, call := #{owner := Owner}}, #{message := Message}) ->
    <<_/binary>> = Text = unicode:characters_to_binary(Message),
    erlmcp_call_messages:task_status(Owner, Text);
status(_, _) ->
    ok.

progressed(#{progress_token := undefined}, _, _) ->
    ok;
progressed(#{progress_token := Token} = Context, Progress, Params) ->
    send(Context, ~"notifications/progress",
         Params#{progressToken => Token, progress => Progress}).

-doc """
Sends the client a log message with `Data`, if the client's log level is `Level` or a less severe
one. A client without a log level gets no message. Crashes if MCP has no level `Level`.
""".
-spec log(erlmcp_engine:context(), Level :: binary(), Data :: term(), #{logger => binary()}) -> ok.
log(#{log_level := Wanted} = Context, Level, Data, Details) ->
    {ok, Severity} = erlmcp_meta:level(Level),
    case Wanted =/= undefined andalso Severity =< Wanted of
        true -> send(Context, ~"notifications/message",
                     (maps:with([logger], Details))#{level => Level, data => Data});
        false -> ok
    end.

-doc "Notifies the client that a URL elicitation is done, if its revision has that notification.".
-spec elicitation_complete(erlmcp_engine:context(), Id :: binary()) -> ok.
elicitation_complete(#{revision := Revision} = Context, Id) ->
    case erlmcp_revision:elicitation_ids(Revision) of
        true -> send(Context, ~"notifications/elicitation/complete", #{elicitationId => Id});
        false -> ok
    end.

%% In 2026-07-28 the call of a task sends no notifications. In 2025-11-25 they name their task.
send(#{task := _, revision := '2026-07-28'}, _, _) ->
    ok;
send(#{task := Id} = Context, Method, Params) ->
    notify(Context, Method, erlmcp_task_view:related(Id, Params));
send(Context, Method, Params) ->
    notify(Context, Method, Params).

notify(#{call := #{owner := {Pid, inline} = Owner, window := Limits}}, Method, Params) ->
    %% Reports of other processes are dropped.
    case self() of
        Pid ->
            Window = inline_window(erlmcp_connection_cache:reports(), Limits),
            notify(Owner, Window, Method, Params);
        _ ->
            ok
    end;
notify(#{call := #{owner := Owner, window := Window}}, Method, Params) ->
    notify(Owner, Window, Method, Params).

notify(Owner, Window, Method, Params) ->
    case erlmcp_notification_window:room(Window) of
        {ok, LeftOut} ->
            Bytes = encoded(Method, Params, LeftOut, Window),
            ok = erlmcp_notification_window:sent(byte_size(Bytes), Window),
            erlmcp_call_messages:notification(Owner, Bytes, Window);
        none ->
            ok
    end.

%% The handler may go on after data that is no JSON.
encoded(Method, Params, LeftOut, Window) ->
    try
        iolist_to_binary(erlmcp_message:notification(Method, with_left_out(LeftOut, Params)))
    catch
        Class:Reason:Stack ->
            ok = erlmcp_notification_window:unsent(LeftOut, Window),
            erlang:raise(Class, Reason, Stack)
    end.

inline_window([{notification, _, Window} | _], _) -> Window;
inline_window([_ | Reports], Limits) -> inline_window(Reports, Limits);
inline_window([], Limits) -> erlmcp_notification_window:without_waiting(Limits).

with_left_out(0, Params) ->
    Params;
with_left_out(Count, Params) ->
    Meta = maps:get(~"_meta", Params, #{}),
    Params#{~"_meta" => Meta#{?LEFT_OUT => Count}}.

-doc """
Ends the connection of the call's stream. The client reconnects for the rest of the stream. Has an
effect only in a session of 2025-11-25 on HTTP.
""".
-spec close_connection(erlmcp_engine:context()) -> ok.
close_connection(#{call := #{owner := Owner}}) ->
    erlmcp_call_messages:close_connection(Owner).
