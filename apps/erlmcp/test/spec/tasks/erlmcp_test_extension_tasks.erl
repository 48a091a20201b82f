-module(erlmcp_test_extension_tasks).
-moduledoc "Clients of 2026-07-28 and their tasks, for the suites of the extension of tasks.".

-export([client/1, client/2, undeclared/1]).
-export([call/2, call/3, waiting/1, update/3, keys/1]).
-export([lacks_the_extension/1, settled/1, dead/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_http, [ended/1]).
-import(erlmcp_test_client, [ask/3, with_capabilities/2]).
-import(erlmcp_test_tasks, [refused/2, id/1, running/0]).

-define(REVISION, ~"2026-07-28").
-define(EXTENSION, ~"io.modelcontextprotocol/tasks").
-define(UNDECLARED, -32021).

-doc "Opens a client of the suite's server that has the extension.".
-spec client([tuple()]) -> term().
client(Config) ->
    client(server(Config), Config).

-doc "Opens a client of this server that has the extension.".
-spec client(erlmcp_test_http:server(), [tuple()]) -> term().
client(Server, Config) ->
    erlmcp_test_tasks:open(Server, transport(Config), ?REVISION, #{elicitation => #{}}).

-doc "Returns the same client without the extension.".
-spec undeclared(term()) -> term().
undeclared(Client) ->
    with_capabilities(#{elicitation => #{}}, Client).

-doc "Calls a tool, and returns the answer.".
-spec call(term(), binary()) -> map().
call(Client, Tool) ->
    call(Client, Tool, #{}).

-doc "Calls a tool with more parameters, and returns the answer.".
-spec call(term(), binary(), map()) -> map().
call(Client, Tool, More) ->
    ask(Client, ~"tools/call", maps:merge(#{name => Tool, arguments => #{}}, More)).

-doc "Creates a task of the tool that waits. Returns its id, and the process of its handler.".
-spec waiting(term()) -> {Id :: binary(), pid()}.
waiting(Client) ->
    Id = id(call(Client, ~"wait")),
    {Pid, _} = running(),
    {Id, Pid}.

-doc "Answers the questions of a task.".
-spec update(term(), Id :: binary(), map()) -> map().
update(Client, Id, Responses) ->
    ask(Client, ~"tasks/update", #{taskId => Id, inputResponses => Responses}).

-doc "Returns the keys of a task's questions, by their messages.".
-spec keys(map()) -> map().
keys(Requests) ->
    #{Message => Key || Key := #{~"params" := #{~"message" := Message}} <- Requests}.

-doc "Checks that an answer is the refusal of a client without the extension.".
-spec lacks_the_extension(map()) -> ok.
lacks_the_extension(Answer) ->
    #{~"requiredCapabilities" := Required} = refused(?UNDECLARED, Answer),
    #{~"extensions" := #{?EXTENSION := #{}}} = Required,
    ok.

-doc "Waits until no task has a process. Nothing tells when one has ended.".
-spec settled(erlmcp_test_http:server()) -> {0, 0}.
settled(Server) ->
    settled(Server, 3000).

settled(Server, Tries) ->
    case erlmcp_test_tasks:counts(Server) of
        {0, 0} = None -> None;
        _ when Tries > 0 -> receive after 10 -> settled(Server, Tries - 1) end
    end.

-doc "Waits for the end of a process, which may have ended before.".
-spec dead(pid()) -> ok.
dead(Pid) ->
    _ = ended(Pid),
    ok.
