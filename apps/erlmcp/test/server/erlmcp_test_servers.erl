-module(erlmcp_test_servers).
-moduledoc """
Servers that a case starts itself, and that end with the case. They are asked over TCP, unless a
function names another transport. A suite of such cases calls `init_suite/1`, `end_suite/1`,
`init_case/1` and `stop_all/0` in its callbacks of common_test.
""".

-import(erlmcp_test_line, [ask_stateless/4, echo_tool/0, result/1]).

-export([init_suite/1, end_suite/1, init_case/1, stop_all/0]).
-export([start/1, options/1, started/1]).
-export([child/2, await_child/3, await/1, await_messages/2, down/1, terms/1, add_untold/3]).
-export([kinds/0, definition/2, key/1, with/2, listed/2, used/3]).
-export([http/3, initialize_request/0]).

-define(PATIENCE, 30_000).

-type kind() :: tool | resource | resource_template | prompt.

-doc "Starts the applications, and keeps the log quiet.".
-spec init_suite([tuple()]) -> [tuple()].
init_suite(Config) ->
    {ok, _} = application:ensure_all_started([erlmcp, inets]),
    %% Servers that cannot start say so to the log too, at length.
    #{level := Level} = logger:get_primary_config(),
    ok = logger:set_primary_config(level, none),
    [{log_level, Level} | Config].

-doc "Gives the log back its level.".
-spec end_suite([tuple()]) -> ok.
end_suite(Config) ->
    ok = logger:set_primary_config(level, proplists:get_value(log_level, Config)).

-doc "Prepares the process of a case for servers that cannot start.".
-spec init_case([tuple()]) -> [tuple()].
init_case(Config) ->
    %% A server that cannot start sends its starter an exit signal, as all OTP processes do.
    process_flag(trap_exit, true),
    Config.

-doc "Starts a server with these options and those of `options/1`. `stop_all/0` stops it.".
-spec start(map()) -> pid().
start(Given) ->
    {ok, Server} = erlmcp:start_server(options(Given)),
    put(servers, [Server | get_servers()]),
    Server.

get_servers() ->
    case get(servers) of
        undefined -> [];
        Servers -> Servers
    end.

-doc "Stops the servers that the calling process has started by `start/1`.".
-spec stop_all() -> ok.
stop_all() ->
    lists:foreach(fun erlmcp:stop_server/1, get_servers()).

-doc "Returns these options, with a tool, a port, and what else a server needs at least.".
-spec options(map()) -> map().
options(Given) ->
    maps:merge(#{name => ~"api", version => ~"1", tools => [echo_tool()],
                 listen => [{tcp, #{port => 0}}]}, Given).

-doc """
Returns `started` if a server starts with these options, and stops that server again. Otherwise
returns the error or the exception.
""".
-spec started(term()) -> started | {error | exit | throw, term()}.
started(Options) ->
    try erlmcp:start_server(Options) of
        {ok, Server} -> erlmcp:stop_server(Server), started;
        {error, _} = Error -> Error
    catch
        Class:Reason -> {Class, Reason}
    end.

-doc "Returns the process of a supervisor's child.".
-spec child(term(), pid()) -> pid().
child(Id, Supervisor) ->
    {_, Pid, _, _} = lists:keyfind(Id, 1, supervisor:which_children(Supervisor)),
    Pid.

-doc "Waits until a supervisor's child is another process than `Old`, and returns that process.".
-spec await_child(term(), pid(), Old :: pid()) -> pid().
await_child(Id, Supervisor, Old) ->
    await(fun() ->
        case lists:keyfind(Id, 1, supervisor:which_children(Supervisor)) of
            {_, Pid, _, _} when is_pid(Pid), Pid =/= Old -> {ok, Pid};
            _ -> again
        end
    end).

-doc """
Calls a fun every five milliseconds until it returns an answer, for 30 seconds at most. It is for
conditions that nothing announces.
""".
-spec await(fun(() -> {ok, Answer} | again)) -> Answer.
await(Ask) ->
    await(Ask, erlang:monotonic_time(millisecond) + ?PATIENCE).

await(Ask, Deadline) ->
    case Ask() of
        {ok, Answer} -> Answer;
        again ->
            true = erlang:monotonic_time(millisecond) < Deadline,
            receive after 5 -> await(Ask, Deadline) end
    end.

-doc """
Waits until at least `Count` messages wait in the mailbox of a process of this node that has not
ended. It is for a process that is suspended, and so reads none of them.
""".
-spec await_messages(Count :: pos_integer(), pid()) -> ok.
await_messages(Count, Pid) ->
    await(fun() ->
        {message_queue_len, Length} = process_info(Pid, message_queue_len),
        case Length >= Count of
            true -> {ok, ok};
            false -> again
        end
    end).

-doc "Waits for the end of the monitored process.".
-spec down(reference()) -> ok.
down(Monitor) ->
    receive
        {'DOWN', Monitor, process, _, _} -> ok
    after ?PATIENCE ->
        ct:fail(still_there)
    end.

-doc "Returns the names of the persistent terms of the server with this key.".
-spec terms(Key :: reference()) -> [tuple()].
terms(Key) ->
    [Name || {Name, _} <- persistent_term:get(), is_tuple(Name),
             lists:member(Key, tuple_to_list(Name))].

-doc """
Lets another process add a tool to a server, and returns the monitor of that process. The publisher
has published the tool then, and never goes on to notify clients. At least one client must be
subscribed.
""".
-spec add_untold(map(), Publisher :: pid(), Server :: pid()) -> reference().
add_untold(Tool, Publisher, Server) ->
    Test = self(),
    %% The publisher asks for each client whether it may know of a change.
    Visible = fun(_) ->
        self() =/= Publisher orelse begin
            Test ! {tells, Publisher},
            receive never -> false end
        end
    end,
    {_, Adds} = spawn_monitor(fun() -> erlmcp:add(Server, tool, Tool#{visible => Visible}) end),
    receive
        {tells, Publisher} -> Adds
    after ?PATIENCE ->
        ct:fail(nothing_to_tell)
    end.

-doc "Returns the kinds of definitions that a server has lists of.".
-spec kinds() -> [kind()].
kinds() ->
    [tool, resource, resource_template, prompt].

-doc "Returns a definition that answers with its name. A resource template answers with its `id`.".
-spec definition(kind(), Name :: binary()) -> map().
definition(resource, Name) ->
    #{uri => <<"r://", Name/binary>>, name => Name, handler => fun(_, _) -> Name end};
definition(resource_template, Name) ->
    #{uri_template => <<"t://", Name/binary, "/{id}">>, name => Name,
      handler => fun(#{~"id" := Id}, _) -> Id end};
definition(_, Name) ->
    #{name => Name, handler => fun(_, _) -> Name end}.

-doc "Returns the field by which definitions of a kind are called.".
-spec key(kind()) -> atom().
key(resource) -> uri;
key(resource_template) -> uri_template;
key(_) -> name.

-doc "Returns options with this definition alone, without listeners.".
-spec with(kind(), term()) -> map().
with(Kind, Definition) ->
    Key = maps:get(Kind, #{tool => tools, resource => resources, prompt => prompts,
                           resource_template => resource_templates}),
    maps:merge(options(#{tools => [], listen => []}), #{Key => [Definition]}).

-doc "Returns the keys (`key/1`) of the definitions in a server's list.".
-spec listed(kind(), gen_tcp:socket()) -> [binary()].
listed(Kind, Socket) ->
    {Method, Member, Key} = maps:get(Kind, #{
        tool => {~"tools/list", ~"tools", ~"name"},
        resource => {~"resources/list", ~"resources", ~"uri"},
        resource_template => {~"resources/templates/list", ~"resourceTemplates", ~"uriTemplate"},
        prompt => {~"prompts/list", ~"prompts", ~"name"}}),
    #{Member := Items} = result(ask_stateless(Socket, Method, Method, #{})),
    [maps:get(Key, Item) || Item <- Items].

-doc "Uses a definition of `definition/2`, and returns the answer.".
-spec used(kind(), Name :: binary(), gen_tcp:socket()) -> map().
used(tool, Name, Socket) -> ask_stateless(Socket, 1, ~"tools/call", #{~"name" => Name});
used(prompt, Name, Socket) -> ask_stateless(Socket, 1, ~"prompts/get", #{~"name" => Name});
used(resource, Name, Socket) ->
    ask_stateless(Socket, 1, ~"resources/read", #{~"uri" => <<"r://", Name/binary>>});
used(resource_template, Name, Socket) ->
    ask_stateless(Socket, 1, ~"resources/read", #{~"uri" => <<"t://", Name/binary, "/7">>}).

-doc "Posts a message. Returns the status, the headers and the message that come back.".
-spec http(Url :: binary(), Headers :: [{string(), string()}], map()) ->
    {100..599, [{string(), string()}], map()}.
http(Url, Headers, Message) ->
    Exchange = make_ref(),
    Known = #{list_to_binary(Name) => list_to_binary(Value) || {Name, Value} <- Headers},
    ok = erlmcp_test_wire:sent(Exchange, Known, iolist_to_binary(json:encode(Message))),
    {ok, {{_, Status, _}, Answered, Body}} =
        httpc:request(post, {Url, [{"accept", "application/json, text/event-stream"} | Headers],
                             "application/json", iolist_to_binary(json:encode(Message))},
                      [{timeout, ?PATIENCE}], [{body_format, binary}]),
    {Status, Answered, erlmcp_test_wire:received(Exchange, json:decode(Body))}.

-doc "Returns the request that opens a session.".
-spec initialize_request() -> map().
initialize_request() ->
    erlmcp_test_line:initialize_request(1, ~"2025-11-25").
