-module(layers_SUITE).
-moduledoc """
The rooms of `docs/architecture.md`, read from the compiled modules: a call goes downward only, the
server and the client call each other through one door, and the pure rooms call nothing that is not
pure. No more than a few modules call each other in a circle.
""".

-export([suite/0, all/0]).
-export([every_module_has_a_room/1, calls_go_where_they_may/1, pure_rooms_are_pure/1,
         circles_are_small/1]).
-export([a_forbidden_call_is_found/1, an_impure_call_is_found/1, a_circle_is_found/1]).

%% Each room with the rooms below it, whose modules it may call. `server` and `client` are two
%% towers on the same ground. The public modules and the application stand in `src` itself.
-define(GROUND, ["text", "schema", "wire", "observe", "outbound", "protocol"]).
-define(ROOMS, #{"text" => [],
                 "schema" => ["text"],
                 "wire" => ["text", "schema"],
                 "observe" => ["text", "wire"],
                 "outbound" => ["text", "wire", "observe"],
                 "protocol" => ["text", "schema", "wire"],
                 "server" => ?GROUND,
                 "client" => ?GROUND,
                 "src" => ["server", "client" | ?GROUND]}).
-define(PURE, ["text", "schema", "wire", "protocol"]).

%% Modules that may call each other in a circle. The largest is of calls and tasks: a task runs a
%% call, and a call may become a task.
-define(CIRCLE, 4).

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
    [every_module_has_a_room, calls_go_where_they_may, pure_rooms_are_pure, circles_are_small,
     a_forbidden_call_is_found, an_impure_call_is_found, a_circle_is_found].

every_module_has_a_room(_) ->
    Rooms = lists:usort([room(Module) || Module <- modules()]),
    %% An empty room would make the other cases say nothing.
    Rooms = lists:sort(maps:keys(?ROOMS)).

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
    Circles = circles(modules()),
    ct:pal("~p", [Circles]),
    [] = [Circle || Circle <- Circles, length(Circle) > ?CIRCLE].

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

%% A module is its abstract code: it names its source file, and holds calls that the compiled code
%% turned into instructions.
modules() ->
    _ = application:load(erlmcp),
    {ok, Names} = application:get_key(erlmcp, modules),
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
