-module(erlmcp_test_program).
-moduledoc """
`bin/erlmcp` for suites: it runs with arguments, and ends with a status and output. `main/1` runs
the same in this node, which takes a tenth of the time.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("stdlib/include/assert.hrl").

-export([init/1, serve_for_group/2, end_group/1, url/1]).
-export([main/1, erlmcp/2, run/3, open/2, output/2, serve/2, serve/3, stop/2, one_line/1]).

init(Config) ->
    Root = root(proplists:get_value(source, module_info(compile))),
    Program = filename:join([Root, "bin", "erlmcp"]),
    %% It builds first where that is due.
    {0, _, _} = run(Program, ["version"], Config),
    [{root, Root}, {program, Program} | Config].

%% The server's port closes with the process that opened it, and a suite's ends with the callback.
serve_for_group(Arguments, Config) ->
    Suite = self(),
    Keeper = spawn(fun() ->
        {Server, Url, Output} = serve(Arguments, Config),
        Suite ! {self(), Url, Output},
        receive {stop, From} -> From ! {self(), stop("TERM", Server)} end
    end),
    receive
        {Keeper, Url, Output} -> [{keeper, Keeper}, {url, Url}, {output, Output} | Config]
    after 120_000 ->
        ct:fail(no_server)
    end.

end_group(Config) ->
    Keeper = proplists:get_value(keeper, Config),
    Keeper ! {stop, self()},
    receive
        {Keeper, 0} -> ok
    after 60_000 ->
        ct:fail(still_running)
    end.

url(Config) -> proplists:get_value(url, Config).

%% {ExitStatus, Stdout, Stderr}
main(Arguments) ->
    Stdout = spawn_link(fun() -> device([]) end),
    Stderr = spawn_link(fun() -> device([]) end),
    Status = as_standard_error(Stderr, fun() -> status(Arguments, Stdout) end),
    {Status, written(Stdout), written(Stderr)}.

status(Arguments, Stdout) ->
    {Pid, Monitor} = spawn_monitor(fun() ->
        true = group_leader(Stdout, self()),
        exit({outcome, erlmcp_cli:main(Arguments)})
    end),
    receive
        {'DOWN', Monitor, process, Pid, {outcome, Outcome}} -> erlmcp_cli_exit:code(Outcome);
        {'DOWN', Monitor, process, Pid, Reason} -> error({crashed, Reason})
    end.

%% A device ends when it is read: the name is given back before that.
as_standard_error(Device, Fun) ->
    Former = whereis(standard_error),
    named_standard_error(Device),
    try Fun() after named_standard_error(Former) end.

named_standard_error(Device) ->
    true = unregister(standard_error),
    true = register(standard_error, Device).

written(Device) ->
    Device ! {written, self()},
    receive {Device, Bytes} -> unicode:characters_to_list(Bytes) end.

device(Written) ->
    receive
        {io_request, From, As, Request} ->
            From ! {io_reply, As, ok},
            device([Written, put(Request)]);
        {written, From} ->
            From ! {self(), iolist_to_binary(Written)}
    end.

put({put_chars, unicode, Text}) -> unicode:characters_to_binary(Text);
put({put_chars, unicode, Module, Function, Arguments}) ->
    unicode:characters_to_binary(apply(Module, Function, Arguments));
put({put_chars, latin1, Bytes}) -> iolist_to_binary(Bytes);
put({setopts, _}) -> ~"".

one_line(Text) -> ?assertMatch([[_ | _], []], string:split(Text, "\n", all)).

erlmcp(Arguments, Config) -> run(proplists:get_value(program, Config), Arguments, Config).

%% {ExitStatus, Stdout, Stderr}
run(Program, Arguments, Config) ->
    Stderr = filename:join(proplists:get_value(priv_dir, Config),
                           "stderr" ++ integer_to_list(erlang:unique_integer([positive]))),
    Port = open("exec \"$@\" 2>\"$0\"", [Stderr, Program | Arguments]),
    {Status, Out} = output(Port, []),
    {ok, Why} = file:read_file(Stderr),
    {Status, unicode:characters_to_list(Out), unicode:characters_to_list(Why)}.

open(Script, Arguments) ->
    open_port({spawn_executable, "/bin/sh"},
              [{args, ["-c", Script | Arguments]}, binary, exit_status, use_stdio, hide]).

output(Port, Out) ->
    receive
        {Port, {data, Data}} -> output(Port, [Out, Data]);
        {Port, {exit_status, Status}} -> {Status, Out}
    after 120000 ->
        ct:fail({no_end, Out})
    end.

%% Until it has printed how to stop it.
serve(Arguments, Config) ->
    serve("everything", Arguments, Config).

serve(Module, Arguments, Config) ->
    Port = open("exec \"$0\" serve \"$@\"",
                [proplists:get_value(program, Config), Module | Arguments]),
    Output = await_output(Port, <<>>),
    {match, [Url]} = re:run(Output, "^ *(http://[^ \n]+)$",
                            [multiline, {capture, all_but_first, list}]),
    {Port, Url, Output}.

await_output(Port, Output) ->
    receive
        {Port, {data, Data}} ->
            All = <<Output/binary, Data/binary>>,
            case binary:match(All, ~"Stop it: ") of
                nomatch -> await_output(Port, All);
                _ -> All
            end;
        {Port, {exit_status, Status}} ->
            ct:fail({ended, Status, Output})
    after 60000 ->
        ct:fail({silent, Output})
    end.

%% The status that a shell would name.
stop(Signal, Port) ->
    {os_pid, Pid} = erlang:port_info(Port, os_pid),
    "" = os:cmd("kill -" ++ Signal ++ " " ++ integer_to_list(Pid)),
    receive
        {Port, {exit_status, Status}} -> Status
    after 60_000 ->
        ct:fail(still_running)
    end.

root(Folder) ->
    case filelib:is_regular(filename:join([Folder, "bin", "erlmcp"])) of
        true -> Folder;
        false ->
            Parent = filename:dirname(Folder),
            true = Parent =/= Folder,
            root(Parent)
    end.
