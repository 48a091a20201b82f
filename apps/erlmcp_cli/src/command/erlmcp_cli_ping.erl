-module(erlmcp_cli_ping).
-moduledoc "`erlmcp ping`: checks that a server answers, and prints the time of each answer.".

-export([command/1]).

%% Milliseconds between two pings.
-define(PAUSE, 1000).

-doc "Returns the `argparse` command `ping`, with its arguments for the command line `Words`.".
-spec command(Words :: [string()]) -> argparse:command().
command(Words) ->
    #{help => "check that a server answers, and take the time",
      arguments => erlmcp_cli_target:arguments(Words)
          ++ [#{name => count, short => $c, long => "-count", default => 1,
                type => {integer, [{min, 1}, {max, 1_000_000}]}, help => "how often; 1"}],
      handler => fun run/1}.

run(#{count := Count} = Parsed) ->
    erlmcp_cli_client:run(Parsed, fun(Client) ->
        Start = erlang:monotonic_time(),
        maybe
            {ok, Server} ?= erlmcp_client:server(Client),
            ok = connected(Server, since(Start), Parsed),
            {ok, Times} ?= ping(Count, Client, Parsed, []),
            summary(Times, Parsed)
        end
    end).

ping(0, _, _, Times) ->
    {ok, lists:reverse(Times)};
ping(More, Client, Parsed, Times) ->
    ok = paused(Times),
    Start = erlang:monotonic_time(),
    maybe
        {ok, pong} ?= erlmcp_client:ping(Client, erlmcp_cli_client:call_options(Parsed)),
        Time = since(Start),
        ok = pinged(length(Times) + 1, Time, Parsed),
        ping(More - 1, Client, Parsed, [Time | Times])
    end.

paused([]) -> ok;
paused(_) -> receive after ?PAUSE -> ok end.

since(Start) ->
    erlang:convert_time_unit(erlang:monotonic_time() - Start, native, microsecond) / 1000.

connected(_, _, #{json := true}) ->
    ok;
connected(#{revision := Revision, server_info := Info}, Time, _) ->
    erlmcp_cli_output:print([erlmcp_cli_text:server(Info), " speaks ", atom_to_list(Revision),
                             " (negotiated in ", milliseconds(Time), ")\n"]).

pinged(_, _, #{json := true}) -> ok;
pinged(Number, Time, _) ->
    erlmcp_cli_output:print([integer_to_list(Number), ": ", milliseconds(Time), $\n]).

summary(Times, #{json := true}) ->
    erlmcp_cli_client:print_json(#{milliseconds => Times});
summary([_], _) ->
    ok;
summary(Times, _) ->
    erlmcp_cli_output:print(["least ", milliseconds(lists:min(Times)), ", mean ",
                             milliseconds(lists:sum(Times) / length(Times)), ", most ",
                             milliseconds(lists:max(Times)), $\n]).

milliseconds(Time) -> [float_to_list(Time, [{decimals, 3}]), " ms"].
