-module(erlmcp_cli_operate).
-moduledoc """
`erlmcp sessions`, `calls`, `cancel`, `drain` and `reload`: lists sessions and calls of a running
node, ends calls, drains servers, and reloads their definitions.
""".

-export([sessions_command/0, calls_command/0, cancel_command/0, drain_command/0,
         reload_command/0]).

%% Milliseconds that a reload may take.
-define(RELOAD_MS, 60_000).

-doc "Returns the `argparse` command `sessions`.".
-spec sessions_command() -> argparse:command().
sessions_command() ->
    #{help => "list the open sessions of a running node",
      arguments => erlmcp_cli_node:arguments(),
      handler => fun(Arguments) -> ask(#{command => sessions}, 0, fun sessions/2, Arguments) end}.

-doc "Returns the `argparse` command `calls`.".
-spec calls_command() -> argparse:command().
calls_command() ->
    #{help => "list the running calls of a running node, the oldest first",
      arguments => erlmcp_cli_node:arguments()
          ++ [#{name => stack, long => "-stack", type => boolean, default => false,
                help => "show what the process of each call executes"}],
      handler => fun(Arguments) -> ask(#{command => calls}, 0, fun calls/2, Arguments) end}.

-doc "Returns the `argparse` command `cancel`.".
-spec cancel_command() -> argparse:command().
cancel_command() ->
    #{help => "end a running call of a running node",
      arguments => [#{name => id, type => binary, help => "the call's id, as `calls` shows it"}
                    | erlmcp_cli_node:arguments()],
      handler => fun(#{id := Id} = Arguments) ->
          ask(#{command => cancel, id => Id}, 0, fun cancelled/2, Arguments)
      end}.

-doc "Returns the `argparse` command `drain`.".
-spec drain_command() -> argparse:command().
drain_command() ->
    #{help => "drain the servers of a running node: they refuse new requests, and running calls "
              "may end",
      arguments => [#{name => seconds, long => "-seconds", default => 8,
                      type => {integer, [{min, 0}, {max, 86_400}]},
                      help => "seconds that running calls have; 8"},
                    #{name => lame, long => "-lame", default => 0,
                      type => {integer, [{min, 0}, {max, 86_400}]},
                      help => "seconds for which the servers still serve before, and are not "
                              "ready, so that a load balancer notices; 0"}
                    | erlmcp_cli_node:arguments()],
      handler => fun(#{seconds := Seconds, lame := Lame} = Arguments) ->
          %% The end of a drain takes up to two seconds more, and that of being lame a moment.
          Outcome = asked(#{command => drain, seconds => Seconds, lame => Lame},
                          1000 * (Seconds + Lame) + 3000, fun drained/2, Arguments),
          failed(" is not drained: ", Outcome)
      end}.

-doc "Returns the `argparse` command `reload`.".
-spec reload_command() -> argparse:command().
reload_command() ->
    #{help => "reload the definitions of a running node's servers from their modules: sessions "
              "stay open, and calls that run end as they have begun",
      arguments => erlmcp_cli_node:arguments(),
      handler => fun(Arguments) ->
          failed(" is not reloaded: ",
                 asked(#{command => reload}, ?RELOAD_MS, fun reloaded/2, Arguments))
      end}.

ask(Question, Milliseconds, Show, Arguments) ->
    case asked(Question, Milliseconds, Show, Arguments) of
        {ok, _} -> ok;
        Outcome -> Outcome
    end.

asked(Question, Milliseconds, Show, #{json := Json} = Arguments) ->
    case erlmcp_cli_node:ask(Arguments, Question, Milliseconds) of
        {ok, Found} ->
            ok = erlmcp_cli_output:print(case Json of
                true -> [erlmcp_cli_text:json(Found), $\n];
                false -> Show(Found, Arguments)
            end),
            {ok, Found};
        {Outcome, Sentence} ->
            erlmcp_cli_output:complain(Sentence),
            Outcome
    end.

sessions([], _) ->
    "no session is open\n";
sessions(Sessions, _) ->
    table(["session", "client", "revision", "principal", "idle", "calls", "server"],
          [[Id, maps:get(~"client", Session, ~"-"), Revision, Principal, idle(Idle),
            integer_to_list(Calls), Server]
           || #{~"id" := Id, ~"revision" := Revision, ~"principal" := Principal,
                ~"idle_ms" := Idle, ~"calls" := Calls, ~"server" := Server} = Session
                  <- Sessions]).

idle(~"unused") -> "unused";
idle(Milliseconds) -> seconds(Milliseconds).

calls([], _) ->
    "no call runs\n";
calls(Calls, #{stack := Stacks}) ->
    [Head | Lines] = erlmcp_cli_table:lines(
        [["call", "age", "method", "target", "principal", "server"]
         | [[Id, seconds(Age), Method, target(Target), Principal, Server]
            || #{~"id" := Id, ~"age_ms" := Age, ~"method" := Method, ~"target" := Target,
                 ~"principal" := Principal, ~"server" := Server} <- Calls]]),
    [Head, $\n,
     [[Line, $\n, [["    ", Entry, $\n] || Stacks, Entry <- Stack]]
      || {Line, #{~"stack" := Stack}} <- lists:zip(Lines, Calls)]].

target(null) -> "-";
target(Target) -> Target.

cancelled(#{~"server" := Server}, #{id := Id}) ->
    ["the call ", Id, " of ", Server, " was ended\n"].

drained(Servers, _) ->
    [[Server, " is drained: ", number(Calls, "call was", "calls were"),
      " ended before the answer, ", number(Tasks, "task still runs", "tasks still run"), $\n]
     || #{~"server" := Server, ~"calls" := Calls, ~"tasks" := Tasks} <- Servers].

reloaded(Servers, _) ->
    [[Server, " is reloaded: ", number(Added, "definition", "definitions"), " added, ",
      integer_to_list(Changed), " changed, ", integer_to_list(Removed), " removed",
      [["; new code of ", names(Modules)] || Modules =/= []],
      [["; a process still runs the old code of ", names(Old)] || Old =/= []], $\n]
     || #{~"server" := Server, ~"added" := Added, ~"changed" := Changed, ~"removed" := Removed,
          ~"modules" := Modules, ~"old_code" := Old} <- Servers].

names(Modules) -> lists:join(", ", Modules).

%% The servers that did not do what was asked.
failed(Words, {ok, Servers}) ->
    case [{Server, Sentence} || #{~"server" := Server, ~"error" := Sentence} <- Servers] of
        [] ->
            ok;
        Failed ->
            lists:foreach(fun({Server, Sentence}) ->
                erlmcp_cli_output:complain([Server, Words, Sentence])
            end, Failed),
            failed
    end;
failed(_, Outcome) ->
    Outcome.

number(1, One, _) -> ["1 ", One];
number(Number, _, Many) -> [integer_to_list(Number), $\s, Many].

table(Head, Rows) ->
    [[Line, $\n] || Line <- erlmcp_cli_table:lines([Head | Rows])].

seconds(Milliseconds) -> [float_to_list(Milliseconds / 1000, [{decimals, 1}]), " s"].
