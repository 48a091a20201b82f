-module(erlmcp_cli_top).
-moduledoc """
`erlmcp top`: shows the figures of a running node's servers and clients, and updates them each
second.
""".

-export([command/0]).

%% Milliseconds between two screens.
-define(PAUSE, 1000).
%% The most lines of a table.
-define(LINES, 10).

-doc "Returns the `argparse` command `top`.".
-spec command() -> argparse:command().
command() ->
    #{help => "show the figures of a running node, anew each second, until Ctrl-C",
      arguments => erlmcp_cli_node:arguments()
          ++ [#{name => once, long => "-once", type => boolean, default => false,
                help => "show them once"}],
      handler => fun(Arguments) -> run(#{}, Arguments) end}.

run(Before, #{once := Once, json := Json} = Arguments) ->
    maybe
        {ok, Servers} ?= erlmcp_cli_node:ask(Arguments, #{command => metrics}, 0),
        {ok, Calls} ?= erlmcp_cli_node:ask(Arguments, #{command => calls}, 0),
        {ok, Pools} ?= erlmcp_cli_node:ask(Arguments, #{command => pools}, 0),
        {ok, Upstreams} ?= erlmcp_cli_node:ask(Arguments, #{command => upstreams}, 0),
        Figures = #{servers => Servers, calls => Calls, pools => Pools, upstreams => Upstreams},
        case Json of
            true ->
                erlmcp_cli_output:print([erlmcp_cli_text:json(Figures), $\n]);
            false ->
                ok = clear(Once),
                erlmcp_cli_output:print(screen(Figures, Before))
        end,
        again(Once, #{Id => Server || #{~"server" := Id} = Server <- Servers}, Arguments)
    else
        {Outcome, Sentence} ->
            erlmcp_cli_output:complain(Sentence),
            Outcome
    end.

screen(#{servers := []} = Figures, _) ->
    ["no server runs\n", of_clients(Figures)];
screen(#{servers := Servers, calls := Calls} = Figures, Before) ->
    [lists:join($\n, [server(Server, [Call || #{~"server" := Of} = Call <- Calls, Of =:= Id],
                             maps:get(Id, Before, none))
                      || #{~"server" := Id} = Server <- Servers]),
     of_clients(Figures),
     ["\nNo server was judged in the last 20 seconds; the application erlmcp_console judges "
      "servers while it runs.\n"
      || lists:all(fun(#{~"verdict" := Verdict}) -> Verdict =:= null end, Servers)]].

%% The pools of the node's clients, and the servers that its clients call.
of_clients(#{pools := Pools, upstreams := Upstreams}) ->
    [table([["pool", "server", "state", "running", "failed"]
            | first([[Name, Server, State, number(Calls), number(Failed)]
                     || #{~"name" := Name, ~"members" := Members} <- Pools,
                        #{~"server" := Server, ~"state" := State, ~"calls" := Calls,
                          ~"failed" := Failed} <- Members])]),
     table([["upstream", "running", "requests", "errors", "failed", "p50", "p95", "p99"]
            | [[Name, number(Calls) | counts(Row)]
               || #{~"name" := Name, ~"calls" := Calls} = Row <- busiest(Upstreams)]])].

again(true, _, _) ->
    ok;
again(false, Before, Arguments) ->
    receive after ?PAUSE -> run(Before, Arguments) end.

%% A screen stands at the top of a terminal. In a file the screens stand below each other.
clear(true) -> ok;
clear(false) -> erlmcp_cli_output:clear().

server(#{~"server" := Id, ~"state" := State, ~"up_ms" := Up, ~"requests" := Requests,
         ~"faults" := Faults, ~"bounds" := Bounds, ~"refusals" := Refusals, ~"methods" := Methods,
         ~"tools" := Tools, ~"breakers" := Breakers, ~"workers" := Workers} = Server, Calls,
       Before) ->
    [verdict(Server),
     {bold, Id}, "  ", State, "  up ", duration(Up div 1000), "  ", number(Requests), " requests",
     rate(Server, Before), ", ", number(Faults), " by the server's own fault", $\n,
     table([["bound", "used", "limit"]
            | [[Name, number(Used), limit(Limit)]
               || Name := #{~"used" := Used, ~"limit" := Limit}
                      <- maps:iterator(Bounds, ordered)]]),
     rows("method", Methods), rows("tool", Tools),
     table([["call", "age", "method", "target", "principal"]
            | [[Call, seconds(Age), Method, target(Target), Principal]
               || #{~"id" := Call, ~"age_ms" := Age, ~"method" := Method, ~"target" := Target,
                    ~"principal" := Principal} <- first(Calls)]], left),
     table([["refusal", "count"]
            | [[[integer_to_list(Code), $\s, Name], number(Count)]
               || #{~"code" := Code, ~"name" := Name, ~"count" := Count} <- busiest(Refusals)]]),
     table([["breaker", "state", "failed", "definitions"]
            | [[Name, Is, number(Failed), number(length(Targets))]
               || #{~"name" := Name, ~"state" := Is, ~"failed" := Failed,
                    ~"targets" := Targets} <- first(Breakers)]]),
     table([["workers", "size", "ready", "taken", "waiting"]
            | [[Name, number(Size), number(Ready), number(Taken), number(Waiting)]
               || #{~"name" := Name, ~"size" := Size, ~"ready" := Ready, ~"taken" := Taken,
                    ~"waiting" := Waiting} <- first(Workers)]])].

%% The verdict as the console's first line says it, if the console's application runs in the node.
verdict(#{~"at_ms" := At, ~"verdict" := #{~"well" := Well, ~"since_ms" := Since,
                                          ~"causes" := Causes}}) ->
    [{bold, case Well of
                true -> "The server is well";
                false -> "The server is not well"
            end}, " for ", duration(max(0, At - Since) div 1000), $\n,
     [["  ", erlmcp_cli_text:one_line(Cause), $\n] || Cause <- Causes]];
verdict(_) ->
    "".

%% The requests a second since the screen before, if there was one.
rate(#{~"at_ms" := Now, ~"requests" := Requests},
     #{~"at_ms" := Then, ~"requests" := Before}) when Now > Then, Requests >= Before ->
    [" (", decimal(1000 * (Requests - Before) / (Now - Then)), "/s)"];
rate(_, _) ->
    "".

rows(What, Rows) ->
    table([[What, "requests", "errors", "refusals", "p50", "p95", "p99"]
           | [[Name | counts(Row)] || #{~"name" := Name} = Row <- busiest(Rows)]]).

counts(#{~"count" := Count, ~"errors" := Errors, ~"refusals" := Refusals, ~"p50_us" := P50,
         ~"p95_us" := P95, ~"p99_us" := P99}) ->
    [number(Count), number(Errors), number(Refusals), time(P50), time(P95), time(P99)].

busiest(Rows) ->
    first(lists:sort(fun(#{~"count" := One}, #{~"count" := Other}) -> One >= Other end, Rows)).

first(Rows) -> lists:sublist(Rows, ?LINES).

%% A table of numbers.
table(Rows) -> table(Rows, right).

%% A table without rows is left out.
table([_], _) ->
    "";
table(Rows, Cells) ->
    [$\n | [[Line, $\n] || Line <- erlmcp_cli_table:lines(Rows, Cells)]].

target(null) -> "-";
target(Target) -> Target.

number(Number) -> integer_to_list(Number).

limit(~"infinity") -> "-";
limit(Limit) -> number(Limit).

%% Without an answered request there is no time, and a quick answer takes some.
time(Microseconds) when Microseconds == 0 -> "-";
time(Microseconds) when Microseconds < 1000 ->
    [float_to_list(Microseconds / 1000, [{decimals, 3}]), " ms"];
time(Microseconds) -> [decimal(Microseconds / 1000), " ms"].

decimal(Number) -> float_to_list(Number, [{decimals, 1}]).

seconds(Milliseconds) -> [decimal(Milliseconds / 1000), " s"].

duration(Seconds) when Seconds < 120 -> [number(Seconds), " s"];
duration(Seconds) when Seconds < 7200 -> [number(Seconds div 60), " min"];
duration(Seconds) -> [number(Seconds div 3600), " h"].
