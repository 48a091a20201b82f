-module(erlmcp_cli_boot).
-moduledoc """
Makes the boot scripts of `bin/erlmcp` when the project is built. Each is OTP's `no_dot_erlang`,
changed: `m:erlmcp_cli_code_path` is loaded first, the code path has the project's folders, and logs
go to standard error.

`erlmcp_stdio.boot` is for a server on stdio, which must answer soon after its start. The script
loads the modules for the first answers together, and starts `erlmcp` without the applications of
listeners and HTTP clients. To find these modules, a node that serves this module answers the first
requests of a client during the build.
""".

-behaviour(erlmcp_server).

-export([make/0]).
-export([server/0, tools/0, call_tool/3]).

%% The applications of a server on stdio, each with the ones that must be started before it.
-define(STDIO, [{crypto, [kernel, stdlib]}, {erlmcp, [kernel, stdlib, crypto]},
                {erlmcp_cli, [kernel, stdlib, erlmcp]}]).
-define(ANSWER_MS, 60_000).
-define(LINE_BYTES, 1_048_576).

-doc """
Writes the boot scripts and `start.sh` into the folder that the program's argument names, and halts
the node. `start.sh` sets the shell variables that `bin/erlmcp` needs.
""".
-spec make() -> no_return().
make() ->
    [Folder] = init:get_plain_arguments(),
    Folders = folders(filename:join(Folder, "lib")),
    {ok, Bytes} = file:read_file(filename:join([code:root_dir(), "bin", "no_dot_erlang.boot"])),
    {script, _, _} = Otp = binary_to_term(Bytes),
    ok = boot(Folder, "erlmcp", script(Otp, Folders, own, [])),
    Stdio = [specification(Application, Needed) || {Application, Needed} <- ?STDIO],
    ok = boot(Folder, "erlmcp_stdio", script(Otp, Folders, own, Stdio)),
    Modules = modules(filename:join(Folder, "erlmcp_stdio")),
    ok = boot(Folder, "erlmcp_stdio", script(Otp, Folders, Modules, Stdio)),
    ok = write(Folder, "start.sh", start(Folders)),
    halt(0).

%% The project's folders come first, then those of the libraries that it needs.
folders(Built) ->
    %% Paths of ERL_FLAGS are not part of the boot script.
    Pa = [Folder || {pa, Given} <- init:get_arguments(), Folder <- Given,
                    lists:prefix(Built, Folder)],
    Libraries = [filename:join(code:lib_dir(Application), "ebin")
                 || Application <- closure([erlmcp_cli, erlmcp_cluster], [])],
    lists:uniq(Pa ++ [filename:absname(Folder) || Folder <- Libraries]).

closure([], Seen) ->
    lists:reverse(Seen) -- [kernel, stdlib];
closure([Application | Rest], Seen) ->
    case lists:member(Application, Seen) of
        true ->
            closure(Rest, Seen);
        false ->
            _ = application:load(Application),
            {ok, Needed} = application:get_key(Application, applications),
            closure(Rest ++ Needed, [Application | Seen])
    end.

specification(Application, Needed) ->
    _ = application:load(Application),
    {ok, Keys} = application:get_all_key(Application),
    Own = case Application of
        %% `bin/erlmcp` starts the node so that the standard output of the client is descriptor 3.
        erlmcp_cli -> [{env, [{stdio_output, 3}]}];
        _ -> []
    end,
    Changed = [{applications, Needed}, {optional_applications, []} | Own],
    {application, Application,
     lists:foldl(fun({Key, _} = New, All) -> lists:keystore(Key, 1, All, New) end, Keys, Changed)}.

script({script, Id, Instructions}, Folders, Modules, Specifications) ->
    {script, Id, instructions(Instructions, {Folders, Modules, Specifications})}.

%% Of OTP's script only the first list of modules is needed: the others are for a node that never
%% loads a module later.
instructions([{path, Otp}, {primLoad, Needed}, {kernel_load_completed} | Rest],
             {Folders, Modules, _} = Ours) ->
    Loaded = [erlmcp_cli_code_path
              | case Modules of
                    %% OTP loads these for `-eval`. They are found when they are called.
                    own -> Needed -- [erl_eval, erl_lint, erl_parse];
                    _ -> Modules
                end],
    [{path, Otp ++ Folders}, {primLoad, lists:uniq(Loaded)}, {kernel_load_completed}
     | instructions(Rest, Ours)];
instructions([{Name, _} | Rest], Ours) when Name =:= path; Name =:= primLoad ->
    instructions(Rest, Ours);
instructions([{kernelProcess, application_controller, Start} | Rest], Ours) ->
    {Module, Function, [Kernel]} = Start,
    {application, kernel, Keys} = Kernel,
    {env, Environment} = lists:keyfind(env, 1, Keys),
    Changed = lists:keyreplace(env, 1, Keys, {env, [{logger, logger()} | Environment]}),
    [{kernelProcess, application_controller,
      {Module, Function, [{application, kernel, Changed}]}} | instructions(Rest, Ours)];
instructions([{progress, applications_loaded} = Loaded | Rest],
             {_, _, Specifications} = Ours) ->
    [{apply, {application, load, [Specification]}} || Specification <- Specifications]
        ++ [Loaded | instructions(Rest, Ours)];
instructions([Instruction | Rest], Ours) ->
    [Instruction | instructions(Rest, Ours)];
instructions([], _) ->
    [].

%% Logs go to standard error, since stdout is for results.
logger() -> [{handler, default, logger_std_h, #{config => #{type => standard_error}}}].

boot(Folder, Name, Script) -> write(Folder, Name ++ ".boot", term_to_binary(Script)).

%% Written under another name first, since a server that starts now may read the file.
write(Folder, Name, Bytes) ->
    New = filename:join(Folder, Name ++ ".new"),
    ok = file:write_file(New, Bytes),
    file:rename(New, filename:join(Folder, Name)).

start(Folders) ->
    Bindir = os:getenv("BINDIR"),
    true = is_list(Bindir),
    Otp = [filename:dirname(code:where_is_file(File)) || File <- ["kernel.app", "stdlib.app"]],
    ["ROOTDIR=", quoted(code:root_dir()), "\nBINDIR=", quoted(Bindir), $\n,
     %% A build works only with the OTP that made it.
     "[ -x \"$BINDIR/erlexec\" ]", [[" && \\\n    [ -d ", quoted(Folder), " ]"]
                                  || Folder <- Otp ++ Folders], $\n].

quoted(Text) -> [$', string:replace(Text, "'", "'\\''", all), $'].

%% Starts a node that answers as a server does in its first second, and returns the modules that it
%% has loaded then.
modules(Boot) ->
    Erl = filename:join([code:root_dir(), "bin", "erl"]),
    %% The shell opens descriptor 3, which a server on stdio writes to and a port does not have.
    Port = open_port({spawn_executable, "/bin/sh"},
                     [{args, ["-c", "exec \"$@\" 3>&1 1>&2", "-", Erl, "-noinput", "-boot", Boot,
                              "-s", "erlmcp_cli", "-extra", "serve", ?MODULE_STRING, "--stdio"]},
                      {line, ?LINE_BYTES}, binary, exit_status]),
    true = port_command(Port, [[json:encode(Message), $\n] || Message <- messages()]),
    #{~"structuredContent" := #{~"modules" := Modules}} = answer(Port, 4),
    true = port_close(Port),
    %% Preloaded modules are loaded in any case, and this module is not part of a user's server.
    Preloaded = [atom_to_binary(Module) || Module <- erlang:pre_loaded()],
    Needed = [binary_to_atom(Module) || Module <- Modules -- Preloaded,
                                        Module =/= atom_to_binary(?MODULE)],
    %% The large ones come first, so that all cores finish at the same time.
    [Module || {_, Module} <- lists:reverse(lists:sort([{file_size(Module), Module}
                                                        || Module <- Needed]))].

file_size(Module) -> filelib:file_size(code:where_is_file(atom_to_list(Module) ++ ".beam")).

messages() ->
    Client = #{protocolVersion => ~"2025-11-25", capabilities => #{},
               clientInfo => #{name => ~"boot", version => ~"1"}},
    Meta = #{~"io.modelcontextprotocol/protocolVersion" => ~"2026-07-28",
             ~"io.modelcontextprotocol/clientCapabilities" => #{}},
    [request(1, ~"server/discover", #{~"_meta" => Meta}),
     request(2, ~"initialize", Client),
     #{jsonrpc => ~"2.0", method => ~"notifications/initialized"},
     request(3, ~"tools/list", #{}),
     request(4, ~"tools/call", #{name => ~"modules", arguments => #{}})].

request(Id, Method, Params) ->
    #{jsonrpc => ~"2.0", id => Id, method => Method, params => Params}.

answer(Port, Id) ->
    receive
        {Port, {data, {eol, Line}}} ->
            case json:decode(Line) of
                #{~"id" := Id, ~"result" := Result} -> Result;
                #{~"error" := Error} -> error({refused, Error});
                #{} -> answer(Port, Id)
            end;
        {Port, {exit_status, Status}} ->
            error({exit_status, Status})
    after ?ANSWER_MS ->
        error(timeout)
    end.

-doc false.
server() -> #{name => ~"erlmcp_cli_boot", version => ~"1"}.

-doc false.
tools() ->
    [#{name => ~"modules", description => ~"Returns the modules that this node has loaded",
       input_schema => #{}}].

-doc false.
call_tool(~"modules", _, _) -> #{modules => [atom_to_binary(Module) || Module <- erlang:loaded()]}.
