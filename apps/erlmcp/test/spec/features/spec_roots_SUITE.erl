-module(spec_roots_SUITE).
-moduledoc "\"Roots\" of all revisions of the specification, over HTTP, TCP and HTTP+SSE.".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([sessions_are_asked/1, stateless_clients_are_asked/1, undeclared_is_never_asked/1]).
-export([changes_are_heard_of/1, roots_that_change_meanwhile/1, errors_end_the_call/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [open/4, request/4, next/1, answered/1, nothing_more/1, ask/3, notify/3,
                             answer/3, answer_error/3]).

-define(CHANGED, ~"notifications/roots/list_changed").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp}, {group, sse}].

groups() ->
    [{Transport, erlmcp_test_suite:cases(?MODULE)} || Transport <- [http, tcp, sse]].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Transport, Config) ->
    [{transport, Transport} | Config].

end_per_group(_, _) ->
    ok.

init_per_testcase(_, Config) ->
    [{server, erlmcp_test_client:start(definitions(self()))} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_client:stop(server(Config)).

client(Config, Revision) ->
    open(server(Config), transport(Config), Revision, #{roots => #{listChanged => true}}).

sessions() ->
    [~"2024-11-05", ~"2025-03-26", ~"2025-06-18", ~"2025-11-25"].

%% Gives back what the client has answered.
definitions(_) ->
    #{tools => [#{name => ~"roots", handler => fun
                    (_, #{input := #{~"folders" := #{~"roots" := Roots}}}) ->
                        #{roots => Roots};
                    (_, _) ->
                        {input_required, #{~"folders" => erlmcp_input:roots()}}
                  end}]}.

call(Client) ->
    request(Client, 1, ~"tools/call", named()).

named() ->
    #{name => ~"roots", arguments => #{}}.

%% One, several of which one has no name, none, and one with what a later revision may add.
lists() ->
    [[root(~"file:///home/user/projects/myproject", ~"My Project")],
     [root(~"file:///home/user/repos/front%20end", ~"Frontend"), #{~"uri" => ~"file:///C:/b"}],
     [],
     [(root(~"file:///a", ~"\x{e9}"))#{~"_meta" => #{~"example.com/x" => 1}}]].

root(Uri, Name) ->
    #{~"uri" => Uri, ~"name" => Name}.

%% What the tool was given. Before 2025-06-18 a result has no structured content, but its text.
roots(#{~"result" := #{~"content" := [#{~"text" := Text}]}}) ->
    #{~"roots" := Roots} = json:decode(Text),
    Roots.

%% "To retrieve roots, servers send a roots/list request"; the client answers with `roots`.
sessions_are_asked(Config) ->
    [begin
         Client = client(Config, Revision),
         [begin
              Exchange = call(Client),
              #{~"jsonrpc" := ~"2.0", ~"id" := Id, ~"method" := ~"roots/list"} = next(Exchange),
              ok = answer(Client, Id, #{roots => Given}),
              {[], #{~"id" := 1} = Answer} = answered(Exchange),
              Given = roots(Answer)
          end || Given <- lists()]
     end || Revision <- sessions()].

%% "To retrieve roots during the processing of a client request, servers send an
%% InputRequiredResult containing a roots/list request"; the retry brings them in `inputResponses`.
stateless_clients_are_asked(Config) ->
    Client = client(Config, ~"2026-07-28"),
    [begin
         {[], #{~"result" := #{~"resultType" := ~"input_required", ~"requestState" := State,
                               ~"inputRequests" := Requests}}} = answered(call(Client)),
         #{~"folders" := #{~"method" := ~"roots/list"} = Request} = Requests,
         {1, false} = {map_size(Requests), is_map_key(~"id", Request)},
         Given = roots(ask(Client, ~"tools/call",
                           (named())#{requestState => State,
                                      inputResponses => #{folders => #{roots => Given}}}))
     end || Given <- lists()].

%% "Clients that support roots MUST declare the roots capability"; "Servers SHOULD: Check for roots
%% capability before usage". The answer is the refusal, and no request is sent.
undeclared_is_never_asked(Config) ->
    [begin
         Client = open(server(Config), transport(Config), Revision, Declared),
         {[], #{~"id" := 1, ~"error" := #{~"code" := -32021, ~"data" := Data}}} =
             answered(call(Client)),
         #{~"requiredCapabilities" := #{~"roots" := Empty}} = Data,
         0 = map_size(Empty),
         nothing_more(Client)
     end || Revision <- [~"2026-07-28" | sessions()],
            Declared <- [#{}, #{sampling => #{}, elicitation => #{}}]].

%% "When roots change, clients that support listChanged MUST send a notification"; "Servers SHOULD:
%% Handle root list changes gracefully": what is asked after it is what is. 2026-07-28 has no such
%% notification, and it does no harm there; nor does one of a client that declared none.
changes_are_heard_of(Config) ->
    [begin
         Client = open(server(Config), transport(Config), Revision, #{roots => Declared}),
         [begin
              Given = [root(Uri, ~"a")],
              Exchange = call(Client),
              #{~"id" := Id} = next(Exchange),
              ok = answer(Client, Id, #{roots => Given}),
              {[], Answer} = answered(Exchange),
              Given = roots(Answer),
              [ok = notify(Client, ?CHANGED, Params)
               || Params <- [#{}, #{'_meta' => #{}}, #{roots => 1}]]
          end || Uri <- [~"file:///before", ~"file:///after"]],
         nothing_more(Client)
     end || Revision <- sessions(), Declared <- [#{}, #{listChanged => true}]],
    Stateless = client(Config, ~"2026-07-28"),
    ok = notify(Stateless, ?CHANGED, #{}),
    nothing_more(Stateless).

%% One that comes while the server waits for the roots is not their answer.
roots_that_change_meanwhile(Config) ->
    Client = client(Config, ~"2025-11-25"),
    Exchange = call(Client),
    #{~"id" := Id} = next(Exchange),
    ok = notify(Client, ?CHANGED, #{}),
    ok = notify(Client, ?CHANGED, #{roots => [root(~"file:///wrong", ~"w")]}),
    nothing_more(Client),
    ok = answer(Client, Id, #{roots => [root(~"file:///right", ~"r")]}),
    {[], Answer} = answered(Exchange),
    [#{~"uri" := ~"file:///right"}] = roots(Answer).

%% "Clients SHOULD return standard JSON-RPC errors for common failure cases: Client does not support
%% roots: -32601, Internal errors: -32603"; "Servers SHOULD: Handle cases where roots become
%% unavailable": this call fails, the next one asks anew.
errors_end_the_call(Config) ->
    [begin
         Client = client(Config, Revision),
         [begin
              Exchange = call(Client),
              #{~"id" := Id} = next(Exchange),
              ok = answer_error(Client, Id, Code),
              {[], #{~"id" := 1, ~"error" := #{~"code" := -32603}}} = answered(Exchange)
          end || Code <- [-32601, -32603]],
         Last = call(Client),
         #{~"id" := Id} = next(Last),
         ok = answer(Client, Id, #{roots => []}),
         {[], Answer} = answered(Last),
         [] = roots(Answer)
     end || Revision <- sessions()].
