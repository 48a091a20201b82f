-module(erlmcp_test_session_tasks).
-moduledoc """
Clients in sessions of 2025-11-25 and their tasks, for the suites of that revision's tasks.
""".

-export([client/1, client/2, augmented/2, augmented/3, call/2, waiting/1, result/2]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_tasks, [ask/3, running/0, id/1]).

-define(REVISION, ~"2025-11-25").

-doc "Opens a client of the suite's server, in a session, which can be asked for input.".
-spec client([tuple()]) -> term().
client(Config) ->
    client(server(Config), Config).

-doc "Opens such a client of this server.".
-spec client(erlmcp_test_http:server(), [tuple()]) -> term().
client(Server, Config) ->
    erlmcp_test_client:open(Server, transport(Config), ?REVISION, #{elicitation => #{}}).

-doc "Calls a tool as a task, and returns the answer.".
-spec augmented(term(), binary()) -> map().
augmented(Client, Tool) ->
    augmented(Client, Tool, #{}).

-doc "Calls a tool as a task with more parameters, and returns the answer.".
-spec augmented(term(), binary(), map()) -> map().
augmented(Client, Tool, More) ->
    ask(Client, ~"tools/call", maps:merge(#{name => Tool, arguments => #{}, task => #{}}, More)).

-doc "Calls a tool without a task, and returns the answer.".
-spec call(term(), binary()) -> map().
call(Client, Tool) ->
    ask(Client, ~"tools/call", #{name => Tool, arguments => #{}}).

-doc "Creates a task of the tool that waits. Returns its id, and the process of its handler.".
-spec waiting(term()) -> {Id :: binary(), pid()}.
waiting(Client) ->
    Id = id(augmented(Client, ~"wait")),
    {Pid, _} = running(),
    {Id, Pid}.

-doc "Returns the answer to `tasks/result`.".
-spec result(term(), Id :: binary()) -> map().
result(Client, Id) ->
    ask(Client, ~"tasks/result", #{taskId => Id}).
