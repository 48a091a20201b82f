-module(layers_SUITE).
-moduledoc """
The rooms of `docs/architecture.md`, read from the compiled modules: a call goes downward only, the
server and the client call each other through one door, and the pure rooms call nothing that is not
pure. No more than a few modules call each other in a circle, and most are called by several others.
A README names each of them. No folder of any application has many modules, and no two modules have
one name.
""".

-export([suite/0, all/0]).
-export([every_module_has_a_room/1, every_module_is_on_a_map/1, calls_go_where_they_may/1,
         pure_rooms_are_pure/1, circles_are_small/1, few_modules_have_one_caller/1,
         few_write_the_process_dictionary/1, folders_are_small/1, names_are_unique/1]).
-export([a_forbidden_call_is_found/1, an_impure_call_is_found/1, a_circle_is_found/1,
         a_module_with_one_caller_is_found/1]).

%% Each room with the rooms below it, whose modules it may call. `server` and `client` are two
%% towers on the same ground. The public modules stand in `src` itself.
-define(GROUND, ["text", "schema", "wire", "observe", "outbound", "protocol"]).
-define(ROOMS, #{"text" => [],
                 "schema" => ["text"],
                 "wire" => ["text", "schema"],
                 "observe" => ["text", "wire"],
                 "outbound" => ["text", "wire", "observe"],
                 "protocol" => ["text", "schema", "wire"],
                 "server" => ?GROUND,
                 "client" => ?GROUND,
                 "src" => ["server", "client" | ?GROUND],
                 "application" => ["server", "client" | ?GROUND]}).
-define(PURE, ["text", "schema", "wire", "protocol"]).

%% Modules that may call each other in a circle, in all applications. The largest is of the
%% command's output. That of the library is of calls and tasks: a task runs a call, and a call may
%% become a task.
-define(CIRCLE, 5).

%% Percents of the modules that may have one caller only. Many such modules are parts of others.
-define(ONE_CALLER, 24).

%% The modules that have state in the process dictionary, and those that are a part of a server's
%% connection (`server/transport/README.md`).
-define(DICTIONARY, [erlmcp_call, erlmcp_client_handshake, erlmcp_tracer | ?OF_CONNECTIONS]).
-define(OF_CONNECTIONS, [erlmcp_admission, erlmcp_connection_cache, erlmcp_httpd_backpressure,
                         erlmcp_httpd_http2, erlmcp_httpd_refused, erlmcp_span_ids]).

%% Modules in one folder at most.
-define(FOLDER, 20).

%% Public modules that stand in `src` for their readers, and in a room for their callers.
-define(PUBLIC, #{erlmcp_uri_template => "text", erlmcp_schema => "schema",
                  erlmcp_content => "wire", erlmcp_tracer => "observe", erlmcp_input => "protocol",
                  erlmcp_server => "server", erlmcp_server_cluster => "server",
                  erlmcp_task_store => "server",
                  erlmcp_token_store => "client", erlmcp_token_store_file => "client"}).

%% The one door between the towers: a client of a server of its own node needs no socket.
-define(DOOR, [{erlmcp_memory_channel, erlmcp_memory}, {erlmcp_memory_channel, erlmcp_registry}]).

%% What a pure room may call outside of the pure rooms. Of `erlang`, all but what IMPURE names.
-define(PURE_MODULES, [erlang, lists, maps, binary, string, unicode, json, base64, re, math,
                       uri_string, io_lib, proplists, ordsets, sets, queue, array]).
-define(IMPURE, [send, send_after, send_nosuspend, start_timer, cancel_timer, read_timer,
                 spawn, spawn_link, spawn_monitor, spawn_opt, spawn_request, self, monitor,
                 demonitor, link, unlink, exit, process_flag, process_info, processes, register,
                 unregister, whereis, registered, hibernate, is_process_alive, group_leader,
                 get, get_keys, put, erase, alias, unalias,
                 monotonic_time, system_time, timestamp, time_offset, now, date, time, localtime,
                 universaltime, unique_integer, make_ref,
                 open_port, port_command, port_close, port_connect, port_control, ports,
                 node, nodes, system_info, system_flag, statistics, memory, garbage_collect,
                 halt, apply, load_nif, load_module, binary_to_atom, list_to_atom, trace]).

%% The same bytes in, the same bytes out; keys and nonces are arguments.
-define(PURE_CRYPTO, [crypto_one_time_aead, hash, hash_equals, macN]).
%% Of addresses as text.
-define(PURE_INET, [parse_strict_address, parse_ipv6strict_address, ntoa]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [every_module_has_a_room, every_module_is_on_a_map, calls_go_where_they_may,
     pure_rooms_are_pure, circles_are_small, few_modules_have_one_caller,
     few_write_the_process_dictionary, folders_are_small, names_are_unique,
     a_forbidden_call_is_found, an_impure_call_is_found, a_circle_is_found,
     a_module_with_one_caller_is_found].

every_module_has_a_room(_) ->
    Rooms = lists:usort([room(Module) || Module <- modules()]),
    %% An empty room would make the other cases say nothing.
    Rooms = lists:sort(maps:keys(?ROOMS)).

%% The README of its folder, or of one above it, says what a module is for.
every_module_is_on_a_map(_) ->
    Sources = sources("apps/erlmcp/src/*/**/*.erl"),
    true = length(Sources) > 200,
    [] = [Source || Source <- Sources,
                    not is_named(filename:basename(Source, ".erl"), filename:dirname(Source))].

is_named(Name, Folder) ->
    Root = erlmcp_test_page:root(),
    case file:read_file(filename:join([Root, Folder, "README.md"])) of
        {ok, Page} -> names(Page, Name) orelse is_named_above(Name, Folder);
        {error, enoent} -> is_named_above(Name, Folder)
    end.

is_named_above(Name, Folder) ->
    filename:basename(Folder) =/= "src" andalso is_named(Name, filename:dirname(Folder)).

%% Perhaps with its folder, or with the function that is meant.
names(Page, Name) ->
    re:run(Page, ["`([a-z0-9/]+/)?", Name, "[`:]"], [{capture, none}]) =:= match.

calls_go_where_they_may(_) ->
    Modules = modules(),
    Rooms = #{name(Module) => room(Module) || Module <- Modules},
    Forbidden = lists:append([forbidden(Module, Rooms) || Module <- Modules]),
    [] = [Call || {Caller, Callee, _} = Call <- Forbidden,
                  not lists:member({Caller, Callee}, ?DOOR)].

pure_rooms_are_pure(_) ->
    Pure = [Module || Module <- modules(), lists:member(room(Module), ?PURE)],
    Names = [name(Module) || Module <- Pure],
    [] = lists:append([impure(Module, Names) || Module <- Pure]).

circles_are_small(_) ->
    %% The suites of the library may run without the other applications (`make test OTP=27`).
    Circles = circles(lists:append(
        [modules(App) || App <- [erlmcp, erlmcp_bench, erlmcp_cli, erlmcp_cluster, erlmcp_console],
                         App =:= erlmcp orelse code:lib_dir(App) =/= {error, bad_name}])),
    ct:pal("~p", [Circles]),
    [] = [Circle || Circle <- Circles, length(Circle) > ?CIRCLE].

few_modules_have_one_caller(_) ->
    Modules = modules(),
    Alone = with_one_caller(Modules),
    Percents = 100 * length(Alone) div length(Modules),
    ct:pal("~b of ~b: ~p", [length(Alone), length(Modules), Alone]),
    true = Percents =< ?ONE_CALLER.

few_write_the_process_dictionary(_) ->
    Writers = [name(Module) || Module <- modules(), {_, erlang, put} <- calls(Module)],
    [] = Writers -- ?DICTIONARY,
    [] = ?DICTIONARY -- Writers,
    {ok, Page} = file:read_file(filename:join(erlmcp_test_page:root(),
                                              "apps/erlmcp/src/server/transport/README.md")),
    [_, Section] = binary:split(Page, ~"\n## Memory of a connection\n"),
    [Memory | _] = binary:split(Section, ~"\n## "),
    Named = fun(Module) ->
        binary:match(Memory, <<"`", (atom_to_binary(Module))/binary, "`">>) =/= nomatch
    end,
    [] = [Module || Module <- ?OF_CONNECTIONS, not Named(Module)].

folders_are_small(_) ->
    Folders = maps:groups_from_list(fun filename:dirname/1,
                                    sources("{apps,examples}/*/{src,test}/**/*.erl")),
    true = map_size(Folders) > 50,
    [] = [{Folder, length(Files)}
          || Folder := Files <- Folders, length(Files) > ?FOLDER].

%% All of them are loaded into one node. rebar3 puts the tests of an application into one folder, so
%% of two suites with one name only one would run.
names_are_unique(_) ->
    Modules = sources("{apps,examples}/*/{src,test}/**/*.erl"),
    true = length(Modules) > 500,
    Names = maps:groups_from_list(fun filename:basename/1, Modules),
    [] = [Files || _ := [_, _ | _] = Files <- Names].

a_forbidden_call_is_found(_) ->
    Lines = ["-module(low).", "-export([f/0])."],
    Call = fun(Room) -> planted(Room, Lines ++ ["f() -> high:f()."]) end,
    Fun = planted("wire", Lines ++ ["f() -> fun high:f/0."]),
    Rooms = #{low => "wire", high => "protocol"},
    [{low, high, f}] = forbidden(Call("wire"), Rooms),
    [{low, high, f}] = forbidden(Fun, Rooms),
    [] = forbidden(Call("wire"), Rooms#{high => "wire"}),
    [{low, high, f}] = forbidden(Call("server"), #{low => "server", high => "src"}),
    [{low, high, f}] = forbidden(Call("server"), #{low => "server", high => "client"}),
    [{low, high, f}] = forbidden(Call("client"), #{low => "client", high => "server"}),
    [] = forbidden(Call("client"), #{low => "client", high => "protocol"}).

an_impure_call_is_found(_) ->
    Found = fun(Body) ->
        impure(planted("wire", ["-module(low).", "-export([f/1]).", "f(X) -> " ++ Body ++ "."]),
               [low])
    end,
    [{low, erlang, '!'}] = Found("X ! hello"),
    [{low, erlang, 'receive'}] = Found("receive X -> X end"),
    [{low, erlang, self}] = Found("[X, self()]"),
    [{low, erlang, monotonic_time}] = Found("X + erlang:monotonic_time()"),
    [{low, ets, lookup}] = Found("ets:lookup(X, X)"),
    [{low, gen_tcp, send}] = Found("lists:map(fun gen_tcp:send/2, X)"),
    [{low, erlang, list_to_atom}] = Found("list_to_atom(X)"),
    [] = Found("low:f(lists:reverse(X))").

a_circle_is_found(_) ->
    Module = fun(Name, Code) ->
        planted("wire", ["-module(" ++ Name ++ ").", "-export([f/0])." | Code])
    end,
    Low = Module("low", ["f() -> middle:f()."]),
    Middle = Module("middle", ["f() -> fun high:f/0."]),
    [[high, low, middle]] = circles([Low, Middle, Module("high", ["f() -> low:f()."])]),
    %% The default of a record's field is a call of each module that makes the record.
    [[high, low, middle]] = circles([Low, Middle, Module("high", ["-record(r, {f = low:f()}).",
                                                                  "f() -> #r{}."])]),
    %% A type is none, nor is a name in a text.
    [] = circles([Low, Middle, Module("high", ["-spec f() -> low:t().", "f() -> \"low:f()\"."])]).

%% A module that nobody calls is one of the public face, or is called by its name in a variable.
a_module_with_one_caller_is_found(_) ->
    Module = fun(Name, Code) ->
        planted("wire", ["-module(" ++ Name ++ ").", "-export([f/0])." | Code])
    end,
    Low = Module("low", ["f() -> low:f()."]),
    Middle = Module("middle", ["f() -> low:f() + low:g()."]),
    [{low, middle}] = with_one_caller([Low, Middle]),
    [] = with_one_caller([Low, Middle, Module("high", ["f() -> fun low:f/0."])]).

sources(Pattern) ->
    filelib:wildcard(Pattern, erlmcp_test_page:root()).

%% A module is its abstract code: it names its source file, and holds calls that the compiled code
%% turned into instructions.
modules() ->
    modules(erlmcp).

modules(App) ->
    _ = application:load(App),
    {ok, Names} = application:get_key(App, modules),
    [abstract(code:which(Name)) || Name <- Names].

abstract(Beam) ->
    {ok, {_, [{abstract_code, {raw_abstract_v1, Forms}}]}} =
        beam_lib:chunks(Beam, [abstract_code]),
    Forms.

planted(Room, Lines) ->
    Source = filename:join(["/src", Room, "low.erl"]),
    {Forms, _} = lists:mapfoldl(fun(Line, At) ->
                                    {ok, Tokens, _} = erl_scan:string(Line, At),
                                    {ok, Form} = erl_parse:parse_form(Tokens),
                                    {Form, At + 1}
                                end, 1, Lines),
    [{attribute, 1, file, {Source, 1}} | Forms].

name(Forms) ->
    {attribute, _, module, Name} = lists:keyfind(module, 3, Forms),
    Name.

room(Forms) ->
    Name = name(Forms),
    case ?PUBLIC of
        #{Name := Room} -> Room;
        #{} -> folder(Forms)
    end.

folder(Forms) ->
    {attribute, _, file, {Source, _}} = lists:keyfind(file, 3, Forms),
    Folders = filename:split(filename:dirname(Source)),
    %% A room may have folders of its own.
    case lists:dropwhile(fun(Folder) -> Folder =/= "src" end, Folders) of
        ["src", Room | _] -> Room;
        ["src"] -> "src"
    end.

forbidden(Forms, Rooms) ->
    [Call || {Caller, Callee, _} = Call <- calls(Forms),
             #{Caller := From, Callee := To} <- [Rooms],
             From =/= To,
             not lists:member(To, maps:get(From, ?ROOMS))].

circles(Modules) ->
    Graph = digraph:new(),
    [digraph:add_vertex(Graph, name(Module)) || Module <- Modules],
    %% A call of a module that is not among these adds nothing.
    [digraph:add_edge(Graph, Caller, Callee)
     || Module <- Modules, {Caller, Callee, _} <- calls(Module), Caller =/= Callee],
    Circles = [lists:sort(Circle) || Circle <- digraph_utils:cyclic_strong_components(Graph)],
    true = digraph:delete(Graph),
    lists:sort(Circles).

with_one_caller(Modules) ->
    Names = [name(Module) || Module <- Modules],
    Calls = [{Callee, Caller} || Module <- Modules, {Caller, Callee, _} <- calls(Module),
                                 Caller =/= Callee, lists:member(Callee, Names)],
    Callers = maps:groups_from_list(fun({Callee, _}) -> Callee end, lists:usort(Calls)),
    lists:sort([Call || _ := [Call] <- Callers]).

impure(Forms, PureNames) ->
    [Call || {_, Module, Function} = Call <- calls(Forms),
             not lists:member(Module, PureNames),
             not (Module =:= crypto andalso lists:member(Function, ?PURE_CRYPTO)),
             not (Module =:= inet andalso lists:member(Function, ?PURE_INET)),
             not lists:member(Module, ?PURE_MODULES)
                 orelse Module =:= erlang andalso
                        lists:member(Function, ['!', 'receive' | ?IMPURE])].

calls(Forms) ->
    Caller = name(Forms),
    Own = [{Name, Arity} || {function, _, Name, Arity, _} <- Forms],
    Code = [Form || Form <- Forms, is_code(Form)],
    [{Caller, Module, Function}
     || {Module, Function} <- lists:usort(calls(Code, Own, []))].

is_code({function, _, _, _, _}) -> true;
is_code({attribute, _, record, _}) -> true;
is_code(_) -> false.

calls({remote, _, {atom, _, Module}, {atom, _, Function}}, _, Found) ->
    [{Module, Function} | Found];
calls({'fun', _, {function, {atom, _, Module}, {atom, _, Function}, _}}, _, Found) ->
    [{Module, Function} | Found];
calls({call, _, {atom, _, Function}, Arguments}, Own, Found) ->
    calls(Arguments, Own, local(Function, length(Arguments), Own, Found));
calls({'fun', _, {function, Function, Arity}}, Own, Found) ->
    local(Function, Arity, Own, Found);
calls({op, _, '!', Left, Right}, Own, Found) ->
    calls([Left, Right], Own, [{erlang, '!'} | Found]);
calls(Receive, Own, Found) when element(1, Receive) =:= 'receive' ->
    calls(tl(tuple_to_list(Receive)), Own, [{erlang, 'receive'} | Found]);
calls(Tuple, Own, Found) when is_tuple(Tuple) ->
    calls(tuple_to_list(Tuple), Own, Found);
calls([Head | Tail], Own, Found) ->
    calls(Tail, Own, calls(Head, Own, Found));
calls(_, _, Found) ->
    Found.

%% A local call is one of erlang's where the module has no such function and erlang has.
local(Function, Arity, Own, Found) ->
    case not lists:member({Function, Arity}, Own) andalso erl_internal:bif(Function, Arity) of
        true -> [{erlang, Function} | Found];
        false -> Found
    end.
