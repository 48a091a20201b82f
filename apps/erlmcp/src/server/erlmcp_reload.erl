-module(erlmcp_reload).
-moduledoc """
Replaces the definitions of a running server in one change: by given ones, or by those that its
handler module returns now. For the latter, changed modules are loaded first: the handler module,
and those that were loaded from the same folder.

Replaced code stays until the next reload of its module, so that calls which have begun can end.
That reload is refused if a process still runs the code, or if an option of the server is a fun of
it.

Internal.
""".

-export([replace/3, reload/2, sentence/1]).

-doc """
Replaces definitions of a running server by `Definitions`, with the errors of `erlmcp:replace/2`.
`Supervisor` is the server's supervisor. Emits the event `reloaded`, and logs the change. Waits
while the server's publisher is started again, and exits if the publisher ends during the change.
""".
-spec replace(pid(), erlmcp_instance:instance(), erlmcp:definitions()) -> ok | {error, term()}.
replace(Supervisor, Instance, Definitions) ->
    maybe
        {ok, Sources} ?= erlmcp_server_options:definitions(Definitions),
        {ok, _} ?= published(Supervisor, Instance, Sources, []),
        ok
    end.

-doc """
Loads the changed modules of a running server, and replaces the server's definitions, as
`erlmcp:reload/1` describes it and with its errors. The first argument is the server's supervisor.
Emits the event `reloaded`, and logs the change, or any error except `no_handler`. Waits and exits
as `replace/3` does.
""".
-spec reload(pid(), erlmcp_instance:instance()) -> {ok, erlmcp:reloaded()} | {error, term()}.
reload(_, #{handler := none}) ->
    {error, no_handler};
reload(Supervisor, #{handler := {Module, Besides, Funs}, key := Key} = Instance) ->
    maybe
        {ok, Modules} ?= load_changed(Module, Funs),
        {ok, Sources} ?= sources(Module, Besides),
        {ok, Counts} ?= published(Supervisor, Instance, Sources, Modules),
        {ok, Counts#{modules => Modules,
                     old_code => [Loaded || Loaded <- Modules, runs_old_code(Loaded)]}}
    else
        {error, Reason} = Error ->
            ok = erlmcp_log:report(warning, #{what => reload_refused, module => Module,
                                              reason => sentence(Reason)}, Key),
            Error
    end.

published(Supervisor, #{key := Key}, Sources, Modules) ->
    try
        maybe
            {ok, Counts} ?=
                erlmcp_catalog_publisher:replace(erlmcp_server_sup:publisher(Supervisor), Sources),
            ok = erlmcp_event_handler:emit(Key, reloaded, Counts#{modules => Modules}),
            ok = erlmcp_log:report(notice, Counts#{what => server_reloaded, modules => Modules},
                                   Key),
            {ok, Counts}
        end
    catch
        exit:Reason:Stack ->
            %% The server may have ended meanwhile.
            case is_process_alive(Supervisor) of
                true -> erlang:raise(exit, Reason, Stack);
                false -> {error, not_found}
            end
    end.

%% The definitions that the handler module returns, in front of those of the server's options.
sources(Module, Besides) ->
    try erlmcp_handler_module:options(Module) of
        {ok, Options} ->
            Lists = maps:with([tools, resources, resource_templates, prompts], Options),
            maybe
                {ok, Sources} ?= erlmcp_server_options:definitions(Lists),
                {ok, #{Kind => maps:get(Kind, Sources, []) ++ maps:get(Kind, Besides, [])
                       || Kind <- [tool, resource, resource_template, prompt]}}
            end;
        {error, _} = Error ->
            Error
    catch
        Class:Reason -> {error, {handler_failed, Module, Class, Reason}}
    end.

load_changed(Module, Funs) ->
    case changed(code:which(Module)) of
        [] -> {ok, []};
        Changed -> load_changed(Changed, [Name || {Name, _, _} <- Changed], Funs)
    end.

load_changed(Changed, Modules, Funs) ->
    maybe
        {old_funs, []} ?= {old_funs, [Module || Module <- Modules, has_old_fun(Module, Funs)]},
        {old_code_runs, []} ?=
            {old_code_runs, [Module || Module <- Modules, not code:soft_purge(Module)]},
        ok ?= code:atomic_load(Changed),
        {ok, Modules}
    else
        {error, Reasons} -> {error, {not_loaded, Reasons}};
        {_, _} = Refused -> {error, Refused}
    end.

%% The loaded modules of a file's folder whose files have changed since. A module that was not
%% loaded from a file has none.
changed([_ | _] = File) ->
    Folder = folder(File),
    [{Module, Loaded, Bytes} || {Module, [_ | _] = Loaded} <- code:all_loaded(),
                                folder(Loaded) =:= Folder,
                                {ok, Bytes} <- [file:read_file(Loaded)],
                                code:module_md5(Bytes) =/= version(Module)];
changed(_) ->
    [].

folder(File) -> filename:dirname(filename:absname(File)).

version(Module) -> erlang:get_module_info(Module, md5).

%% Loading a module removes its old code, and with it the funs of that code.
has_old_fun(Module, Funs) ->
    Version = version(Module),
    lists:any(fun(Fun) ->
                  {module, Of} = erlang:fun_info(Fun, module),
                  {new_uniq, OfVersion} = erlang:fun_info(Fun, new_uniq),
                  Of =:= Module andalso OfVersion =/= Version
              end, Funs).

runs_old_code(Module) ->
    lists:any(fun(Pid) -> erlang:check_process_code(Pid, Module) end, processes()).

-doc """
Returns a text for people that says why a change was refused, or which definition is wrong. `Reason`
is the reason of the error. A reason that this function does not know is printed as a term.
""".
-spec sentence(Reason :: term()) -> binary().
sentence({bad_option, Option, Expected}) ->
    text("the option ~0tp of the server: expected ~ts", [Option, Expected]);
sentence({bad_definition, Kind, Name, Field, Expected}) ->
    text("the ~ts ~ts: ~0tp: expected ~ts", [Kind, Name, Field, Expected]);
sentence({duplicate, Kind, Name}) ->
    text("the ~ts ~ts is there twice", [Kind, Name]);
sentence(no_handler) ->
    ~"it was not started from a module, which could be read again";
sentence({handler_failed, Module, Class, Reason}) ->
    text("~ts has failed: ~ts: ~0tP", [Module, Class, Reason, 20]);
sentence({old_code_runs, Modules}) ->
    text("a process still runs the code before the last reload of ~ts: reload again when it has "
         "ended", [names(Modules)]);
sentence({old_funs, Modules}) ->
    text("an option of the server is a fun of the old code of ~ts, which a reload removes: restart "
         "the server", [names(Modules)]);
sentence({not_loaded, Reasons}) ->
    Each = [io_lib:format("~ts: ~0tp", [Module, Why]) || {Module, Why} <- Reasons],
    text("new code cannot be loaded: ~ts", [lists:join(", ", Each)]);
sentence(not_found) ->
    ~"the server has ended";
sentence(Reason) ->
    text("~0tp", [Reason]).

names(Modules) -> lists:join(", ", [atom_to_list(Module) || Module <- Modules]).

text(Format, Arguments) ->
    <<_/binary>> = unicode:characters_to_binary(io_lib:format(Format, Arguments)).
