-module(erlmcp_cli_client).
-moduledoc """
The common part of all commands that use a server: starts a client, runs the command with it, and
stops the client. An error is printed, and decides the exit code.
""".

-export([run/2, call_options/1, print_json/1]).

%% Milliseconds to wait for the next log message after an answer: in a session they belong to no
%% call, so they may come late. And milliseconds to wait for all of them: a server may never cease.
-define(LATE_LOG, 50).
-define(LATE_LOGS, 1000).

-doc """
Starts a client of the server that the arguments name, calls `Command` with it, and stops the
client. Returns the outcome that `Command` returns. An error, or the sentence of `usage`, is printed
on stderr, and the outcome that stands for it is returned. With `--json`, a refusal for lack of
authorization is also printed as JSON on stdout.
""".
-spec run(erlmcp_cli_target:parsed(),
          Command :: fun((erlmcp_client:client()) ->
              erlmcp_cli_exit:outcome() | {usage, unicode:chardata()} | {error, term()})) ->
    erlmcp_cli_exit:outcome().
run(Parsed, Command) ->
    try
        started(with_level(Parsed), Command)
    after
        erlmcp_cli_stderr:detach()
    end.

started(Wanted, Command) ->
    maybe
        {ok, _} = application:ensure_all_started(erlmcp_cli),
        ok = erlmcp_cli_stderr:attach(is_map_key(verbose, Wanted)),
        ok ?= erlmcp_cli_target:check_roots(Wanted),
        {ok, Options} ?= erlmcp_cli_login:options(Wanted),
        {ok, Target} ?= erlmcp_cli_target:target(
            Wanted, Options#{inputs => erlmcp_cli_ask:inputs(Wanted),
                             tasks => is_map_key(tasks, Wanted)}),
        {ok, Client} ?= erlmcp_cli_sup:start_client(Target),
        outcome(with_logs(Wanted, Client, Command), Wanted#{used_login => login(Options)})
    else
        {error, Reason} when is_tuple(Reason) -> outcome({error, Reason}, Wanted);
        {error, Sentence} -> outcome({usage, Sentence}, Wanted)
    end.

with_level(#{verbose := true} = Parsed) -> maps:merge(#{log_level => "info"}, Parsed);
with_level(Parsed) -> Parsed.

%% In a session on stdio and TCP a log message does not name its call.
with_logs(#{log_level := _}, Client, Command) ->
    {Pid, Monitor} = spawn_monitor(fun() ->
        {ok, Reference} = erlmcp_client:subscribe(Client, #{logs => true}),
        show_logs(Reference)
    end),
    with_client(Client, Command, fun() ->
        Pid ! over,
        receive {'DOWN', Monitor, process, Pid, _} -> ok end
    end);
with_logs(_, Client, Command) ->
    with_client(Client, Command, fun() -> ok end).

with_client(Client, Command, Last) ->
    try
        Outcome = Command(Client),
        Last(),
        Outcome
    after
        erlmcp_client:stop(Client)
    end.

show_logs(Reference) ->
    receive
        {erlmcp, Reference, Event} ->
            ok = show_log(Event),
            show_logs(Reference);
        over ->
            show_late_logs(Reference, erlmcp_clock:now_ms() + ?LATE_LOGS)
    end.

show_late_logs(Reference, Last) ->
    receive
        {erlmcp, Reference, Event} ->
            ok = show_log(Event),
            show_late_logs(Reference, Last)
    after max(0, min(?LATE_LOG, Last - erlmcp_clock:now_ms())) ->
        ok
    end.

show_log({log, Params}) -> erlmcp_cli_terminal:say(erlmcp_cli_text:log(Params));
show_log(_) -> ok.

%% The login of the command, as `erlmcp_cli_login:options/1` sets it.
login(#{auth := #{browser := none}}) -> before;
login(#{auth := _}) -> now;
login(_) -> none.

outcome({usage, Sentence}, _) ->
    ok = erlmcp_cli_terminal:clear(),
    erlmcp_cli_output:complain(Sentence),
    usage;
outcome({error, Reason}, Parsed) ->
    ok = erlmcp_cli_terminal:clear(),
    ok = erlmcp_cli_stderr:show_last(),
    complain(erlmcp_client_error:refusal(Reason), Reason, Parsed),
    erlmcp_cli_exit:outcome(Reason);
outcome(Outcome, _) ->
    Outcome.

complain(none, Reason, Parsed) ->
    erlmcp_cli_output:complain(erlmcp_cli_text:failure(erlmcp_cli_target:name(Parsed), Reason));
complain({ok, Refusal}, _, Parsed) ->
    _ = is_map_key(json, Parsed) andalso print_json(erlmcp_cli_text:refused_json(Refusal)),
    erlmcp_cli_output:complain(erlmcp_cli_text:refused(erlmcp_cli_target:name(Parsed), Refusal,
                                                       maps:get(used_login, Parsed, none))).

-doc """
Returns the options of a call: its timeout, and the funs that show its progress and its log
messages. Progress is shown on a terminal, or with `--verbose`. Log messages are shown with
`--verbose` or `--log-level`.
""".
-spec call_options(erlmcp_cli_target:parsed()) -> map().
call_options(#{timeout := Seconds} = Parsed) ->
    Verbose = is_map_key(verbose, Parsed),
    maps:from_list(
        %% Set here, since the client's own `timeout` may be the longer one of a login.
        [{timeout, Seconds * 1000}]
        ++ [{progress, fun erlmcp_cli_terminal:progress/1} || erlmcp_cli_terminal:is_terminal(2)]
        ++ [{progress, fun(Params) ->
                           erlmcp_cli_terminal:say(["progress ", erlmcp_cli_bar:plain(Params)])
                       end} || Verbose, not erlmcp_cli_terminal:is_terminal(2)]
        ++ [{log, fun(Params) -> erlmcp_cli_terminal:say(erlmcp_cli_text:log(Params)) end}
            || Verbose orelse is_map_key(log_level, Parsed)]).

-doc "Removes the progress bar, and writes a value as JSON and a line feed on stdout.".
-spec print_json(json:encode_value()) -> ok.
print_json(Value) ->
    ok = erlmcp_cli_terminal:clear(),
    erlmcp_cli_output:print([erlmcp_cli_text:json(Value), $\n]).
