-module(erlmcp_cli_top).
-moduledoc """
`erlmcp top`: shows the figures of a running node's servers on a terminal, anew each second.
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
    case erlmcp_cli_node:ask(Arguments, #{command => metrics}, 0) of
        {ok, Servers} when Json ->
            erlmcp_cli_output:print([erlmcp_cli_text:json(Servers), $\n]),
            again(Once, Before, Arguments);
        {ok, Servers} ->
            Shown = [server(Server, maps:get(Id, Before, none))
                     || #{~"server" := Id} = Server <- Servers],
            ok = clear(Once),
            erlmcp_cli_output:print(case Shown of
                [] -> "no server runs\n";
                _ -> lists:join($\n, Shown)
            end),
            again(Once, #{Id => Server || #{~"server" := Id} = Server <- Servers}, Arguments);
        {Outcome, Sentence} ->
            erlmcp_cli:complain(Sentence),
            Outcome
    end.

again(true, _, _) ->
    ok;
again(false, Before, Arguments) ->
    receive after ?PAUSE -> run(Before, Arguments) end.

%% A screen stands at the top of a terminal. In a file the screens stand below each other.
clear(true) -> ok;
clear(false) -> erlmcp_cli_output:clear().

server(#{~"server" := Id, ~"state" := State, ~"up_ms" := Up, ~"requests" := Requests,
         ~"faults" := Faults, ~"bounds" := Bounds, ~"refusals" := Refusals, ~"methods" := Methods,
         ~"tools" := Tools} = Server, Before) ->
    [verdict(Server),
     {bold, Id}, "  ", State, "  up ", duration(Up div 1000), "  ", number(Requests), " requests",
     rate(Server, Before), ", ", number(Faults), " by the server's own fault", $\n,
     table([["bound", "used", "limit"]
            | [[Name, number(Used), limit(Limit)]
               || Name := #{~"used" := Used, ~"limit" := Limit}
                      <- maps:iterator(Bounds, ordered)]]),
     rows("method", Methods), rows("tool", Tools),
     table([["refusal", "count"]
            | [[[integer_to_list(Code), $\s, Name], number(Count)]
               || #{~"code" := Code, ~"name" := Name, ~"count" := Count} <- busiest(Refusals)]])].

%% The verdict as the console's first line says it, if a console runs in the node.
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
           | [[Name, number(Count), number(Errors), number(Refusals), time(P50), time(P95),
               time(P99)]
              || #{~"name" := Name, ~"count" := Count, ~"errors" := Errors,
                   ~"refusals" := Refusals, ~"p50_us" := P50, ~"p95_us" := P95,
                   ~"p99_us" := P99} <- busiest(Rows)]]).

busiest(Rows) ->
    lists:sublist(lists:sort(fun(#{~"count" := One}, #{~"count" := Other}) -> One >= Other end,
                             Rows), ?LINES).

%% A table without rows is left out.
table([_]) ->
    "";
table(Rows) ->
    [$\n | [[Line, $\n] || Line <- erlmcp_cli_table:lines(Rows, right)]].

number(Number) -> integer_to_list(Number).

limit(~"infinity") -> "-";
limit(Limit) -> number(Limit).

time(Microseconds) -> [decimal(Microseconds / 1000), " ms"].

decimal(Number) -> float_to_list(Number, [{decimals, 1}]).

duration(Seconds) when Seconds < 120 -> [number(Seconds), " s"];
duration(Seconds) when Seconds < 7200 -> [number(Seconds div 60), " min"];
duration(Seconds) -> [number(Seconds div 3600), " h"].
