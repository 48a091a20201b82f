-module(erlmcp_test_tasks).
-moduledoc """
A server for the suites of tasks, with a tool for each thing that a task can do, and functions that
look at tasks. The clients are those of `m:erlmcp_test_client`.
""".

-export([start/1, start/2, definitions/1, open/4, accept/2, refused/2]).
-export([ask/3, next/1, running/0, finish/2, get/2, id/1, until/3, counts/1, gone/2, keeper/2,
         told/3, waited_for/3, sweep/1]).

-define(TIMEOUT, 30_000).
%% Looks at a task, ten milliseconds apart.
-define(TRIES, 3_000).
-define(EXTENSION, #{~"io.modelcontextprotocol/tasks" => #{}}).

-doc "Starts a server with the tools of `definitions/1` and these limits, on HTTP and TCP.".
-spec start(map()) -> erlmcp_test_http:server().
start(Limits) ->
    start(Limits, [{http, #{}}, {tcp, #{}}]).

-doc "Starts a server as `start/1` does, with these listeners.".
-spec start(map(), list()) -> erlmcp_test_http:server().
start(Limits, Listeners) ->
    erlmcp_test_http:start((definitions(self()))#{limits => Limits, listen => Listeners}).

-doc "Returns an answer that accepts a question with a value for one field.".
-spec accept(atom(), term()) -> map().
accept(Field, Value) ->
    #{action => accept, content => #{Field => Value}}.

-doc "Returns the data of a refusal, which must have this code.".
-spec refused(integer(), map()) -> map().
refused(Code, #{~"error" := #{~"code" := Code} = Error}) ->
    maps:get(~"data", Error, #{});
refused(Code, Answer) ->
    error({not_refused, Code, Answer}).

-doc """
Returns the tools. Those that wait tell `Test` that they run (`running/0`), and return the term of
`finish/2`.
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
                Optional#{name => ~"visit", handler => fun visit/2},
                Optional#{name => ~"sketch", handler => fun sketch/2},
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

%% Asks for a visit, and says what the user did.
visit(_, #{input := #{~"visit" := #{~"action" := Action}}}) ->
    Action;
visit(_, _) ->
    {input_required, #{~"visit" => erlmcp_input:elicit_url(~"Go?", ~"https://a.example", ~"e-1")}}.

%% Asks the user, and then the client's model, and says which model that was.
sketch(_, #{input := #{~"text" := #{~"model" := Model}}}) ->
    Model;
sketch(_, #{input := #{~"name" := _}}) ->
    {input_required, #{~"text" => erlmcp_input:sample(#{messages => [], maxTokens => 1})}};
sketch(_, _) ->
    {input_required, #{~"name" => form(~"Name?", name)}}.

%% Asks for the same thing twice.
twice(_, #{state := {first, First}, input := #{~"name" := #{~"content" := Second}}}) ->
    #{first => First, second => Second};
twice(_, #{input := #{~"name" := #{~"content" := First}}}) ->
    {input_required, #{~"name" => form(~"And again?", name)}, {first, First}};
twice(_, _) ->
    {input_required, #{~"name" => form(~"Name?", name)}}.

-doc "Opens a client with these capabilities and the extension of tasks.".
-spec open(erlmcp_test_http:server(), http | tcp, Revision :: binary(), map()) ->
    erlmcp_test_client:client().
open(Server, Transport, Revision, Capabilities) ->
    erlmcp_test_client:open(Server, Transport, Revision, Capabilities#{extensions => ?EXTENSION}).

-doc """
Sends a request, and returns its answer. Skips notifications of a task's status, which may come
before the answer in a session on TCP.
""".
-spec ask(erlmcp_test_client:client(), Method :: binary(), Params :: map()) -> map().
ask(Client, Method, Params) ->
    Id = erlang:unique_integer([positive]),
    Exchange = erlmcp_test_client:request(Client, Id, Method, Params),
    #{~"id" := Id} = Answer = next(Exchange),
    ok = erlmcp_test_client:over(Exchange),
    Answer.

-doc "Returns the next message of an exchange that is no notification of a task's status.".
-spec next(erlmcp_test_client:exchange()) -> map() | fin.
next(Exchange) ->
    case erlmcp_test_client:next(Exchange) of
        #{~"method" := ~"notifications/tasks/status"} -> next(Exchange);
        Message -> Message
    end.

-doc "Waits until a tool that waits runs. Returns the process of its handler, and its context.".
-spec running() -> {pid(), Context :: map()}.
running() ->
    receive
        {running, Pid, _, Context} -> {Pid, Context}
    after ?TIMEOUT ->
        error(no_task_runs)
    end.

-doc "Lets a tool that waits return this term.".
-spec finish(pid(), term()) -> ok.
finish(Pid, Return) ->
    Pid ! {finish, Return},
    ok.

-doc "Returns the id of the task in an answer.".
-spec id(map()) -> binary().
id(#{~"result" := #{~"task" := #{~"taskId" := Id}}}) -> Id;
id(#{~"result" := #{~"taskId" := Id}}) -> Id.

-doc "Asks for a task by `tasks/get`, and returns the result.".
-spec get(erlmcp_test_client:client(), Id :: binary()) -> map().
get(Client, Id) ->
    #{~"result" := Task} = ask(Client, ~"tasks/get", #{taskId => Id}),
    Task.

-doc """
Waits until a task has a status, and returns the task. Asks every ten milliseconds, as a client
does.
""".
-spec until(erlmcp_test_client:client(), Id :: binary(), Status :: binary()) -> map().
until(Client, Id, Status) ->
    until(Client, Id, Status, ?TRIES).

until(Client, Id, Status, Tries) when Tries > 0 ->
    case get(Client, Id) of
        #{~"status" := Status} = Task -> Task;
        #{} -> receive after 10 -> until(Client, Id, Status, Tries - 1) end
    end.

-doc """
Waits until a task has the message that its handler has reported, and returns the task. A report
does not wait until it is stored.
""".
-spec told(erlmcp_test_client:client(), Id :: binary(), Message :: binary()) -> map().
told(Client, Id, Message) ->
    told(Client, Id, Message, ?TRIES).

told(Client, Id, Message, Tries) when Tries > 0 ->
    case get(Client, Id) of
        #{~"statusMessage" := Message} = Task -> Task;
        #{} -> receive after 10 -> told(Client, Id, Message, Tries - 1) end
    end.

-doc "Waits until a task cannot be found any more.".
-spec gone(erlmcp_test_client:client(), Id :: binary()) -> ok.
gone(Client, Id) ->
    gone(Client, Id, ?TRIES).

gone(Client, Id, Tries) when Tries > 0 ->
    case ask(Client, ~"tasks/get", #{taskId => Id}) of
        #{~"error" := #{~"code" := -32602}} -> ok;
        #{~"result" := _} -> receive after 10 -> gone(Client, Id, Tries - 1) end
    end.

-doc "Returns how many processes of tasks the supervisor has, and how many the server's table has.".
-spec counts(erlmcp_test_http:server()) -> {Supervised :: non_neg_integer(),
                                            Known :: non_neg_integer()}.
counts(Server) ->
    #{tasks := {_, Keepers}} = Instance = instance(Server),
    Counts = supervisor:count_children(erlmcp_instance:supervisor(tasks, Instance)),
    {proplists:get_value(active, Counts), ets:info(Keepers, size)}.

-doc "Returns the process of a task.".
-spec keeper(erlmcp_test_http:server(), Id :: binary()) -> pid().
keeper(Server, Id) ->
    {ok, Keeper} = erlmcp_tasks:process(Id, instance(Server)),
    Keeper.

-doc "Waits until `Count` requests wait for the result of a task.".
-spec waited_for(erlmcp_test_http:server(), Id :: binary(), Count :: pos_integer()) -> ok.
waited_for(Server, Id, Count) ->
    Fields = tuple_to_list(sys:get_state(keeper(Server, Id))),
    case [Pid || Pids <- Fields, is_list(Pids), Pid <- Pids, is_pid(Pid)] of
        Waiting when length(Waiting) =:= Count -> ok;
        _ -> receive after 10 -> waited_for(Server, Id, Count) end
    end.

-doc "Lets the server sweep its tasks now, and waits until it has done so.".
-spec sweep(erlmcp_test_http:server()) -> ok.
sweep(#{pid := Pid}) ->
    {_, Sweeper, _, _} = lists:keyfind(task_sweeper, 1, supervisor:which_children(Pid)),
    Sweeper ! sweep,
    _ = sys:get_state(Sweeper),
    ok.

instance(#{pid := Pid}) ->
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    Instance.
