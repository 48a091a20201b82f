-module(erlmcp_test_session_tasks).
-moduledoc "Clients in sessions of 2025-11-25 and their tasks, in the suites of its page.".

-export([client/1, client/2, augmented/2, augmented/3, call/2, waiting/1, result/2]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_tasks, [ask/3, running/0, id/1]).

-define(REVISION, ~"2025-11-25").

-doc "A client in a session that can be asked.".
-spec client([tuple()]) -> term().
client(Config) ->
    client(server(Config), Config).

-doc "The same of another server.".
-spec client(erlmcp_test_http:server(), [tuple()]) -> term().
client(Server, Config) ->
    erlmcp_test_client:open(Server, transport(Config), ?REVISION, #{elicitation => #{}}).

-doc "The answer to a call that asks for a task.".
-spec augmented(term(), binary()) -> map().
augmented(Client, Tool) ->
    augmented(Client, Tool, #{}).

-doc "The same with more parameters.".
-spec augmented(term(), binary(), map()) -> map().
augmented(Client, Tool, More) ->
    ask(Client, ~"tools/call", maps:merge(#{name => Tool, arguments => #{}, task => #{}}, More)).

-doc "The answer to a call that does not.".
-spec call(term(), binary()) -> map().
call(Client, Tool) ->
    ask(Client, ~"tools/call", #{name => Tool, arguments => #{}}).

-doc "A task of a tool that waits, and the process of its handler.".
-spec waiting(term()) -> {Id :: binary(), pid()}.
waiting(Client) ->
    Id = id(augmented(Client, ~"wait")),
    {Pid, _} = running(),
    {Id, Pid}.

-doc "What `tasks/result` answers.".
-spec result(term(), Id :: binary()) -> map().
result(Client, Id) ->
    ask(Client, ~"tasks/result", #{taskId => Id}).
