-module(erlmcp_test_tasks).
-moduledoc """
What the suites of tasks share: a server with a tool for each thing that a task can do, and looks at
tasks. The clients are those of `m:erlmcp_test_client`.
""".

-export([start/1, start/2, definitions/1, open/4, accept/2, refused/2]).
-export([ask/3, next/1, running/0, finish/2, get/2, id/1, until/3, counts/1, gone/2, keeper/2,
         told/3, waited_for/3, sweep/1]).

-define(TIMEOUT, 30_000).
%% Looks at a task, ten milliseconds apart.
-define(TRIES, 3_000).
-define(EXTENSION, #{~"io.modelcontextprotocol/tasks" => #{}}).

-doc "A server for all of it, with these limits.".
-spec start(map()) -> erlmcp_test_http:server().
start(Limits) ->
    start(Limits, [{http, #{}}, {tcp, #{}}]).

-doc "The same with these listeners.".
-spec start(map(), list()) -> erlmcp_test_http:server().
start(Limits, Listeners) ->
    erlmcp_test_http:start((definitions(self()))#{limits => Limits, listen => Listeners}).

-doc "An answer.".
-spec accept(atom(), term()) -> map().
accept(Field, Value) ->
    #{action => accept, content => #{Field => Value}}.

-doc "The data of a refusal with this code.".
-spec refused(integer(), map()) -> map().
refused(Code, #{~"error" := #{~"code" := Code} = Error}) ->
    maps:get(~"data", Error, #{});
refused(Code, Answer) ->
    error({not_refused, Code, Answer}).

-doc """
The tools. Those that wait tell `Test` that they run (`running/0`) and return what they are told
(`finish/2`).
""".
-spec definitions(Test :: pid()) -> map().
definitions(Test) ->
    Wait = fun(Arguments, Context) ->
        Test ! {running, self(), Arguments, Context},
        receive {finish, Return} -> Return end
    end,
    Optional = #{task => optional},
    #{tools => [#{name => ~"plain", handler => fun(_, _) -> ~"plain" end},
                Optional#{name => ~"wait", handler => Wait},
                #{name => ~"need", task => required, handler => Wait},
                #{name => ~"never", task => forbidden, handler => fun(_, _) -> ~"never" end},
                Optional#{name => ~"quick", handler => fun(_, _) -> ~"quick" end},
                Optional#{name => ~"fails", handler => fun(_, _) -> {error, ~"it broke"} end},
                Optional#{name => ~"crash", handler => fun(_, _) -> error(on_purpose) end},
                Optional#{name => ~"hog", handler => fun(_, _) -> hog([]) end},
                Optional#{name => ~"slow", handler => Wait, task_timeout_ms => 400},
                Optional#{name => ~"ask", handler => fun ask_both/2},
                Optional#{name => ~"twice", handler => fun twice/2},
                Optional#{name => ~"report", handler => fun(Arguments, Context) ->
                    ok = erlmcp:progress(Context, 1, #{total => 3, message => ~"one of three"}),
                    ok = erlmcp:log(Context, error, ~"logged"),
                    ok = erlmcp:progress(Context, 1, #{message => ~"not greater"}),
                    ok = erlmcp:progress(Context, 2, #{message => ~"two of three"}),
                    Wait(Arguments, Context)
                end},
                Optional#{name => ~"later", task_starts => on_return, handler => fun
                    (_, #{input := #{~"name" := #{~"content" := #{~"name" := Name}}}}) ->
                        {task, fun(Context) ->
                            Test ! {running, self(), Name, Context},
                            receive {finish, Return} -> Return end
                        end};
                    (_, _) ->
                        {input_required, #{~"name" => form(~"Who?", name)}}
                end},
                #{name => ~"decides", task => required, task_starts => on_return,
                  handler => fun(#{~"long" := Long}, _) ->
                      case Long of
                          true -> {task, fun(_) -> {task, fun(_) -> ~"long" end} end};
                          false -> ~"short"
                      end
                  end}]}.

hog(List) ->
    hog([make_ref() | List]).

form(Message, Property) ->
    erlmcp_input:elicit(Message, #{type => object, properties => #{Property => #{type => string}}}).

%% Asks two things, and says what it knows when it is called again.
ask_both(_, #{state := {asked, Id}, input := Input} = Context) ->
    Id = maps:get(task, Context, none),
    #{answers => #{Name => Content || Name := #{~"content" := Content} <- Input}};
ask_both(_, Context) ->
    {input_required, #{~"name" => form(~"Name?", name), ~"town" => form(~"Town?", town)},
     {asked, maps:get(task, Context, none)}}.

%% Asks for the same thing twice.
twice(_, #{state := {first, First}, input := #{~"name" := #{~"content" := Second}}}) ->
    #{first => First, second => Second};
twice(_, #{input := #{~"name" := #{~"content" := First}}}) ->
    {input_required, #{~"name" => form(~"And again?", name)}, {first, First}};
twice(_, _) ->
    {input_required, #{~"name" => form(~"Name?", name)}}.

-doc "A client that has tasks, in the way of its revision.".
-spec open(erlmcp_test_http:server(), http | tcp, Revision :: binary(), map()) ->
    erlmcp_test_client:client().
open(Server, Transport, Revision, Capabilities) ->
    erlmcp_test_client:open(Server, Transport, Revision, Capabilities#{extensions => ?EXTENSION}).

-doc """
The one answer to a request. A session on TCP has one stream for all, and what it is told of its
tasks' changes may come before.
""".
-spec ask(erlmcp_test_client:client(), Method :: binary(), Params :: map()) -> map().
ask(Client, Method, Params) ->
    Id = erlang:unique_integer([positive]),
    Exchange = erlmcp_test_client:request(Client, Id, Method, Params),
    #{~"id" := Id} = Answer = next(Exchange),
    ok = erlmcp_test_client:over(Exchange),
    Answer.

-doc "The next message of an exchange that does not tell of a change.".
-spec next(erlmcp_test_client:exchange()) -> map() | fin.
next(Exchange) ->
    case erlmcp_test_client:next(Exchange) of
        #{~"method" := ~"notifications/tasks/status"} -> next(Exchange);
        Message -> Message
    end.

-doc "Awaits that a tool that waits runs.".
-spec running() -> {pid(), Context :: map()}.
running() ->
    receive
        {running, Pid, _, Context} -> {Pid, Context}
    after ?TIMEOUT ->
        error(no_task_runs)
    end.

-doc "Has it return.".
-spec finish(pid(), term()) -> ok.
finish(Pid, Return) ->
    Pid ! {finish, Return},
    ok.

-doc "The task that a result or a task's object is of.".
-spec id(map()) -> binary().
id(#{~"result" := #{~"task" := #{~"taskId" := Id}}}) -> Id;
id(#{~"result" := #{~"taskId" := Id}}) -> Id.

-doc "The result of `tasks/get`.".
-spec get(erlmcp_test_client:client(), Id :: binary()) -> map().
get(Client, Id) ->
    #{~"result" := Task} = ask(Client, ~"tasks/get", #{taskId => Id}),
    Task.

-doc "Awaits a status. A client looks until it is there; so does this.".
-spec until(erlmcp_test_client:client(), Id :: binary(), Status :: binary()) -> map().
until(Client, Id, Status) ->
    until(Client, Id, Status, ?TRIES).

until(Client, Id, Status, Tries) when Tries > 0 ->
    case get(Client, Id) of
        #{~"status" := Status} = Task -> Task;
        #{} -> receive after 10 -> until(Client, Id, Status, Tries - 1) end
    end.

-doc "Awaits what a handler has told of its progress. Telling does not wait until it is kept.".
-spec told(erlmcp_test_client:client(), Id :: binary(), Message :: binary()) -> map().
told(Client, Id, Message) ->
    told(Client, Id, Message, ?TRIES).

told(Client, Id, Message, Tries) when Tries > 0 ->
    case get(Client, Id) of
        #{~"statusMessage" := Message} = Task -> Task;
        #{} -> receive after 10 -> told(Client, Id, Message, Tries - 1) end
    end.

-doc "Awaits that a task cannot be found any more.".
-spec gone(erlmcp_test_client:client(), Id :: binary()) -> ok.
gone(Client, Id) ->
    gone(Client, Id, ?TRIES).

gone(Client, Id, Tries) when Tries > 0 ->
    case ask(Client, ~"tasks/get", #{taskId => Id}) of
        #{~"error" := #{~"code" := -32602}} -> ok;
        #{~"result" := _} -> receive after 10 -> gone(Client, Id, Tries - 1) end
    end.

-doc "The tasks that are listed for an owner, and the keepers that run.".
-spec counts(erlmcp_test_http:server()) -> {Supervised :: non_neg_integer(),
                                            Known :: non_neg_integer()}.
counts(Server) ->
    #{tasks := {_, Keepers}} = Instance = instance(Server),
    Counts = supervisor:count_children(erlmcp_instance:supervisor(tasks, Instance)),
    {proplists:get_value(active, Counts), ets:info(Keepers, size)}.

-doc "The process that keeps a task.".
-spec keeper(erlmcp_test_http:server(), Id :: binary()) -> pid().
keeper(Server, Id) ->
    {ok, Keeper} = erlmcp_tasks:process(Id, instance(Server)),
    Keeper.

-doc "Awaits that so many requests wait for the result of a task.".
-spec waited_for(erlmcp_test_http:server(), Id :: binary(), Count :: pos_integer()) -> ok.
waited_for(Server, Id, Count) ->
    Fields = tuple_to_list(sys:get_state(keeper(Server, Id))),
    case [Pid || Pids <- Fields, is_list(Pids), Pid <- Pids, is_pid(Pid)] of
        Waiting when length(Waiting) =:= Count -> ok;
        _ -> receive after 10 -> waited_for(Server, Id, Count) end
    end.

-doc "Has the server look now for what it looks for every few seconds.".
-spec sweep(erlmcp_test_http:server()) -> ok.
sweep(#{pid := Pid}) ->
    {_, Sweeper, _, _} = lists:keyfind(task_sweeper, 1, supervisor:which_children(Pid)),
    Sweeper ! sweep,
    _ = sys:get_state(Sweeper),
    ok.

instance(#{pid := Pid}) ->
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    Instance.
