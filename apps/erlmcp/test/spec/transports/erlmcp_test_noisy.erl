-module(erlmcp_test_noisy).
-moduledoc "A server whose handlers print to wherever a program may print, and read its input.".

-behaviour(erlmcp_server).

-export([server/0, tools/0, call_tool/3, resources/0, read_resource/3, start/0]).

server() ->
    #{name => ~"noisy", version => ~"1"}.

tools() ->
    [#{name => Name}
     || Name <- [~"io", ~"user", ~"spawned", ~"logger", ~"crash", ~"application", ~"reads",
                 ~"display", ~"whoami", ~"flood"]].

resources() ->
    [#{uri => ~"noise://here", name => ~"here"}].

read_resource(_, _, _) ->
    print(),
    ~"quiet".

call_tool(~"io", _, _) ->
    print(),
    ~"quiet";
call_tool(~"user", _, _) ->
    io:format(user, "noise on user~n", []),
    io:put_chars(whereis(user), "noise on user's process\n"),
    ~"quiet";
call_tool(~"spawned", _, _) ->
    {Pid, Monitor} = spawn_monitor(fun print/0),
    receive {'DOWN', Monitor, process, Pid, normal} -> ~"quiet" end;
call_tool(~"logger", _, _) ->
    logger:error("noise in the log"),
    logger:notice(#{noise => [self(), #{}]}),
    error_logger:error_msg("noise in the old log~n"),
    ~"quiet";
call_tool(~"crash", _, _) ->
    %% A crash report, and the call's own. A process has sent its report when it ends.
    {_, Monitor} = proc_lib:spawn_opt(fun() -> error(noise_in_a_crash) end, [monitor]),
    receive {'DOWN', Monitor, process, _, _} -> error(noise) end;
call_tool(~"application", _, _) ->
    %% Applications have a group leader of their own.
    {ok, _} = application:ensure_all_started(tools),
    io:format(group_leader(), "noise on the group leader~n", []),
    ~"quiet";
call_tool(~"reads", _, _) ->
    %% The input is MCP's too.
    case {io:get_line(""), io:get_line(standard_io, "> "), io:get_line(user, "> ")} of
        {<<_/binary>>, _, _} -> {error, ~"read"};
        {[_ | _], _, _} -> {error, ~"read"};
        {_, [_ | _], _} -> {error, ~"read"};
        {_, _, [_ | _]} -> {error, ~"read"};
        _ -> ~"quiet"
    end;
call_tool(~"display", _, _) ->
    erlang:display(displayed),
    ~"quiet";
call_tool(~"flood", _, _) ->
    %% A pipe holds 64 KiB. All writers after the first would wait if tens of messages were counted,
    %% but not hundreds.
    Line = binary:copy(~"flood ", 700),
    [logger:error("~ts", [Line]) || _ <- lists:seq(1, 50)],
    timer:sleep(100),
    logger:error("~ts", [Line]),
    ~"quiet";
call_tool(~"whoami", _, #{principal := Principal}) ->
    atom_to_binary(Principal).

print() ->
    io:format("noise by format~n"),
    io:put_chars(standard_io, ["noise by ", "put_chars"]),
    io:nl(),
    ok = io:fwrite(standard_error, "noise on standard error~n", []).

-doc "Starts the server on stdio from `erl -s`, with OTP's own logger.".
start() ->
    {ok, _} = application:ensure_all_started(erlmcp),
    %% The server is linked to its starter, and `-s` ends.
    Starter = self(),
    spawn(fun() ->
        {ok, _} = erlmcp:start_server(#{handler => ?MODULE,
                                        listen => [{stdio, #{principal => parent}}]}),
        io:format("noise after the start~n"),
        Starter ! started,
        receive stop -> ok end
    end),
    receive started -> ok end.
