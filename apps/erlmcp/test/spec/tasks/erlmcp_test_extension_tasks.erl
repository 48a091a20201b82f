-module(erlmcp_test_extension_tasks).
-moduledoc "Clients of 2026-07-28 and their tasks, in the suites of its extension.".

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

-doc "A client that has the extension.".
-spec client([tuple()]) -> term().
client(Config) ->
    client(server(Config), Config).

-doc "The same of another server.".
-spec client(erlmcp_test_http:server(), [tuple()]) -> term().
client(Server, Config) ->
    erlmcp_test_tasks:open(Server, transport(Config), ?REVISION, #{elicitation => #{}}).

-doc "The same client without the extension.".
-spec undeclared(term()) -> term().
undeclared(Client) ->
    with_capabilities(#{elicitation => #{}}, Client).

-doc "The answer to a call of a tool.".
-spec call(term(), binary()) -> map().
call(Client, Tool) ->
    call(Client, Tool, #{}).

-doc "The same with more parameters.".
-spec call(term(), binary(), map()) -> map().
call(Client, Tool, More) ->
    ask(Client, ~"tools/call", maps:merge(#{name => Tool, arguments => #{}}, More)).

-doc "A task of a tool that waits, and the process of its handler.".
-spec waiting(term()) -> {Id :: binary(), pid()}.
waiting(Client) ->
    Id = id(call(Client, ~"wait")),
    {Pid, _} = running(),
    {Id, Pid}.

-doc "Answers what a task asked.".
-spec update(term(), Id :: binary(), map()) -> map().
update(Client, Id, Responses) ->
    ask(Client, ~"tasks/update", #{taskId => Id, inputResponses => Responses}).

-doc "The keys of requests by what they ask.".
-spec keys(map()) -> map().
keys(Requests) ->
    #{Message => Key || Key := #{~"params" := #{~"message" := Message}} <- Requests}.

-doc "The refusal of who has not the extension.".
-spec lacks_the_extension(map()) -> ok.
lacks_the_extension(Answer) ->
    #{~"requiredCapabilities" := Required} = refused(?UNDECLARED, Answer),
    #{~"extensions" := #{?EXTENSION := #{}}} = Required,
    ok.

-doc "Until no task has a keeper: nothing tells when one has ended.".
-spec settled(erlmcp_test_http:server()) -> {0, 0}.
settled(Server) ->
    settled(Server, 3000).

settled(Server, Tries) ->
    case erlmcp_test_tasks:counts(Server) of
        {0, 0} = None -> None;
        _ when Tries > 0 -> receive after 10 -> settled(Server, Tries - 1) end
    end.

-doc "Awaits the end of a process; it may have ended before.".
-spec dead(pid()) -> ok.
dead(Pid) ->
    _ = ended(Pid),
    ok.
