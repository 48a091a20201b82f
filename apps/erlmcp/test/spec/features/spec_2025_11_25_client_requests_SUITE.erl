-module(spec_2025_11_25_client_requests_SUITE).
-moduledoc """
Specification 2025-11-25, "Elicitation", "Sampling", "Roots", and the revisions before it: what
a handler asks the client of a session, over HTTP, TCP and HTTP+SSE.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([answer_continues_the_call/1, requests_have_their_shape/1, requests_go_out_at_once/1,
         calls_ask_side_by_side/1, handler_asks_again_and_again/1,
         rounds_are_bounded/1, prompts_and_resources_ask_too/1]).
-export([error_answer_ends_the_call/1, malformed_answer_ends_the_call/1,
         unknown_answer_is_ignored/1, second_answer_is_ignored/1,
         answer_of_another_session_is_ignored/1]).
-export([client_that_goes_ends_the_call/1, lost_connection_ends_the_call/1,
         end_of_input_ends_the_call/1, cancellation_ends_the_call/1, delete_ends_the_call/1,
         input_in_time_or_1069/1, asking_stops_the_deadline/1]).
-export([completion_of_an_elicitation_is_told/1]).
-export([undeclared_capabilities_are_refused/1, sampling_with_tools_needs_its_capability/1,
         elicitation_is_of_its_revision/1, json_alone_cannot_be_asked/1, batch_asks_too/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [open/4, request/4, batch/2, next/1, over/1, ask/3, ask/4, answer/3,
                             answer_error/3]).
-import(erlmcp_test_http, [ended/1]).

-define(ALL, #{elicitation => #{form => #{}, url => #{}}, sampling => #{}, roots => #{}}).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp}, {group, sse}].

groups() ->
    Cases = erlmcp_test_suite:cases(?MODULE),
    Http = [delete_ends_the_call, json_alone_cannot_be_asked],
    Tcp = [lost_connection_ends_the_call, end_of_input_ends_the_call],
    [{http, Cases -- Tcp}, {tcp, Cases -- Http}, {sse, Cases -- (Http ++ Tcp)}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Transport, Config) -> [{transport, Transport} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(_, Config) ->
    [{server, start(#{})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_client:stop(server(Config)).

start(Limits) ->
    erlmcp_test_client:start((definitions(self()))#{limits => Limits}).

client(Config) ->
    client(Config, ~"2025-11-25").

client(Config, Revision) ->
    open(server(Config), transport(Config), Revision, ?ALL).

revisions() ->
    [~"2024-11-05", ~"2025-03-26", ~"2025-06-18", ~"2025-11-25"].

%% What each revision can be asked.
asks(~"2025-11-25") -> [~"form", ~"url" | asks(~"2025-03-26")];
asks(~"2025-06-18") -> [~"form" | asks(~"2025-03-26")];
asks(_) -> [~"sample", ~"roots"].

definitions(Test) ->
    #{tools => [#{name => Name, handler => asking(Test, #{~"it" => Request})}
                || {Name, Request} <- kinds()]
          ++ [#{name => ~"several",
                handler => asking(Test, #{Name => request(Name)
                                          || Name <- [~"form", ~"sample", ~"roots"]})},
              #{name => ~"count", handler => fun count/2},
              #{name => ~"visited", handler => fun(_, Context) ->
                  ok = erlmcp:elicitation_complete(Context, ~"e-1"),
                  ~"done"
                end},
              #{name => ~"echo", handler => fun(#{~"text" := Text}, _) -> Text end},
              #{name => ~"hangs", timeout_ms => 1000, handler => fun
                  (_, #{input := _}) ->
                      Test ! {hangs, self()},
                      receive never -> ok end;
                  (_, _) ->
                      Test ! {asking, self()},
                      {input_required, #{~"it" => request(~"roots")}}
                end}],
      prompts => [#{name => ~"asks", handler => asking(Test, #{~"it" => request(~"roots")})}],
      resources => [#{uri => ~"test://asks", name => ~"asks",
                      handler => asking(Test, #{~"it" => request(~"roots")})}]}.

%% Tells the test who asks, and gives the answers back as JSON text, with the state.
asking(Test, Requests) ->
    fun(_, #{input := Input, state := {state, Asking}}) when Asking =:= self() ->
            iolist_to_binary(json:encode(Input));
       (_, _) ->
            Test ! {asking, self()},
            {input_required, Requests, {state, self()}}
    end.

count(#{~"to" := To}, #{state := To}) -> ~"counted";
count(_, #{state := N, input := #{}}) -> {input_required, #{~"it" => request(~"roots")}, N + 1};
count(_, _) -> {input_required, #{~"it" => request(~"roots")}, 1}.

request(Name) ->
    proplists:get_value(Name, kinds()).

kinds() ->
    Hi = [#{role => user, content => erlmcp_content:text(~"Hi")}],
    [{~"form", erlmcp_input:elicit(~"Who?", #{type => object,
                                              properties => #{name => #{type => string}}})},
     {~"url", erlmcp_input:elicit_url(~"Go", ~"https://example.com/a", ~"e-1")},
     {~"sample", erlmcp_input:sample(#{messages => Hi, maxTokens => 10})},
     {~"tools", erlmcp_input:sample(#{messages => Hi, maxTokens => 10,
                                      tools => [#{name => ~"t",
                                                 inputSchema => #{type => object}}]})},
     {~"roots", erlmcp_input:roots()}].

method(~"form") -> ~"elicitation/create";
method(~"url") -> ~"elicitation/create";
method(~"sample") -> ~"sampling/createMessage";
method(~"roots") -> ~"roots/list".

asking() ->
    receive {asking, Pid} -> Pid after 30_000 -> error(nobody_asks) end.

%% A call, what it asks, and the process that waits.
start_call(Client, Id, Tool) ->
    Exchange = request(Client, Id, ~"tools/call", #{name => Tool, arguments => #{}}),
    Pid = asking(),
    {Exchange, next(Exchange), Pid}.

%% The request that nobody waits for an answer to any more.
withdrawn(Exchange) ->
    #{~"method" := ~"notifications/cancelled", ~"params" := #{~"requestId" := Id}} =
        next(Exchange),
    Id.

text(#{~"result" := #{~"content" := [#{~"text" := Text}]}}) -> Text.

input(Answer) ->
    json:decode(text(Answer)).

%% "Any number of calls": what a server asks is "a JSON-RPC request" on the stream of the request
%% that it is about, "These messages SHOULD relate to the originating client request"; the client
%% answers by a message of its own, and the response comes on the first stream.
answer_continues_the_call(Config) ->
    [begin
         Client = client(Config, Revision),
         {Exchange, Request, Pid} = start_call(Client, 7, Tool),
         #{~"jsonrpc" := ~"2.0", ~"id" := Id, ~"method" := Method, ~"params" := #{}} = Request,
         Method = method(Tool),
         true = is_integer(Id) orelse is_binary(Id),
         Given = #{~"action" => ~"accept", ~"roots" => [#{~"uri" => ~"file:///a"}]},
         ok = answer(Client, Id, Given),
         #{~"id" := 7} = Answer = next(Exchange),
         #{~"it" := Given} = input(Answer),
         ok = over(Exchange),
         _ = ended(Pid),
         erlmcp_test_client:close(Client)
     end || Revision <- revisions(), Tool <- asks(Revision)].

requests_have_their_shape(Config) ->
    Client = client(Config),
    [begin
         {Exchange, #{~"id" := Id, ~"params" := Params}, _} = start_call(Client, 1, Tool),
         Shown = maps:with(maps:keys(Expected), Params),
         Expected = Shown,
         ok = answer(Client, Id, #{}),
         #{~"id" := 1} = next(Exchange),
         over(Exchange)
     end || {Tool, Expected} <-
            [{~"form", #{~"message" => ~"Who?",
                         ~"requestedSchema" =>
                             #{~"type" => ~"object",
                               ~"properties" => #{~"name" => #{~"type" => ~"string"}}}}},
             %% "URL mode elicitation requests MUST specify mode: "url", a message, and": url,
             %% elicitationId.
             {~"url", #{~"mode" => ~"url", ~"message" => ~"Go", ~"elicitationId" => ~"e-1",
                        ~"url" => ~"https://example.com/a"}},
             {~"sample", #{~"maxTokens" => 10,
                           ~"messages" => [#{~"role" => ~"user",
                                             ~"content" => #{~"type" => ~"text",
                                                             ~"text" => ~"Hi"}}]}},
             {~"roots", #{}}]].

%% "Servers MAY send a notifications/elicitation/complete notification when an out-of-band
%% interaction started by URL mode elicitation is completed": in the one revision that has it.
completion_of_an_elicitation_is_told(Config) ->
    [begin
         Client = client(Config, Revision),
         Exchange = request(Client, 1, ~"tools/call", #{name => ~"visited"}),
         _ = [#{~"method" := ~"notifications/elicitation/complete",
                ~"params" := #{~"elicitationId" := ~"e-1"}} = next(Exchange)
              || Revision =:= ~"2025-11-25"],
         ~"done" = text(next(Exchange)),
         over(Exchange)
     end || Revision <- [~"2026-07-28" | revisions()]].

%% "The request ID MUST NOT have been previously used by the requestor within the same session":
%% several requests of one round, answered in another order.
requests_go_out_at_once(Config) ->
    Client = client(Config),
    {Exchange, First, _} = start_call(Client, 1, ~"several"),
    Requests = [First, next(Exchange), next(Exchange)],
    Ids = [Id || #{~"id" := Id} <- Requests],
    3 = length(lists:usort(Ids)),
    [~"elicitation/create", ~"roots/list", ~"sampling/createMessage"] =
        lists:sort([Method || #{~"method" := Method} <- Requests]),
    [ok = answer(Client, Id, #{~"action" => ~"accept", ~"of" => Method})
     || #{~"id" := Id, ~"method" := Method} <- lists:reverse(Requests)],
    #{~"form" := #{~"of" := ~"elicitation/create"}, ~"roots" := #{~"of" := ~"roots/list"},
      ~"sample" := #{~"of" := ~"sampling/createMessage"}} = input(next(Exchange)),
    over(Exchange).

%% Each answer goes to the call that asked; a request beside is served meanwhile.
calls_ask_side_by_side(Config) ->
    Client = client(Config),
    {First, #{~"id" := FirstId}, _} = start_call(Client, 1, ~"roots"),
    {Second, #{~"id" := SecondId}, _} = start_call(Client, 2, ~"roots"),
    true = FirstId =/= SecondId,
    ~"beside" = text(ask(Client, 3, ~"tools/call",
                         #{name => ~"echo", arguments => #{text => ~"beside"}})),
    ok = answer(Client, SecondId, #{~"n" => 2}),
    #{~"id" := 2} = Two = next(Second),
    #{~"it" := #{~"n" := 2}} = input(Two),
    ok = answer(Client, FirstId, #{~"n" => 1}),
    #{~"id" := 1} = One = next(First),
    #{~"it" := #{~"n" := 1}} = input(One),
    [over(Exchange) || Exchange <- [First, Second]].

handler_asks_again_and_again(Config) ->
    {Ids, #{~"id" := 1} = Answer} = counted(5, 5, Config),
    5 = length(lists:usort(Ids)),
    ~"counted" = text(Answer).

%% Bounded refusal: a call fails after its hundredth answer, if that is not the last.
rounds_are_bounded(Config) ->
    {_, #{~"id" := 1} = Answer} = counted(99, 99, Config),
    ~"counted" = text(Answer),
    {_, #{~"id" := 1, ~"error" := #{~"code" := -32603}}} = counted(101, 100, Config).

%% Counts to a number, with as many answers. Returns the ids of the requests, and the result.
counted(To, Answers, Config) ->
    Client = client(Config),
    Exchange = request(Client, 1, ~"tools/call", #{name => ~"count", arguments => #{to => To}}),
    Ids = [begin
               #{~"id" := Id, ~"method" := ~"roots/list"} = next(Exchange),
               ok = answer(Client, Id, #{~"roots" => []}),
               Id
           end || _ <- lists:seq(1, Answers)],
    Result = next(Exchange),
    over(Exchange),
    {Ids, Result}.

prompts_and_resources_ask_too(Config) ->
    Client = client(Config),
    [begin
         Exchange = request(Client, 1, Method, Params),
         #{~"id" := Id, ~"method" := ~"roots/list"} = next(Exchange),
         ok = answer(Client, Id, #{~"roots" => []}),
         #{~"id" := 1, ~"result" := #{Member := [_]}} = next(Exchange),
         over(Exchange)
     end || {Method, Params, Member} <-
            [{~"prompts/get", #{name => ~"asks"}, ~"messages"},
             {~"resources/read", #{uri => ~"test://asks"}, ~"contents"}]].

%% "Clients SHOULD return errors for common failure cases": the call cannot go on.
error_answer_ends_the_call(Config) ->
    [begin
         Client = client(Config, Revision),
         {Exchange, #{~"id" := Id}, Pid} = start_call(Client, 1, ~"sample"),
         ok = answer_error(Client, Id, -1),
         #{~"id" := 1, ~"error" := #{~"code" := -32603}} = next(Exchange),
         ok = over(Exchange),
         _ = ended(Pid),
         erlmcp_test_client:close(Client)
     end || Revision <- revisions()],
    %% One of several is enough.
    Client = client(Config),
    {Exchange, #{~"id" := One}, Pid} = start_call(Client, 1, ~"several"),
    [#{~"id" := Two}, #{~"id" := Three}] = [next(Exchange), next(Exchange)],
    ok = answer(Client, One, #{}),
    ok = answer_error(Client, Two, -32601),
    Three = withdrawn(Exchange),
    #{~"id" := 1, ~"error" := #{~"code" := -32603}} = next(Exchange),
    _ = ended(Pid),
    ok = answer(Client, Three, #{}),
    ok = over(Exchange),
    #{~"result" := #{}} = ask(Client, ~"ping", #{}).

%% A result is an object.
malformed_answer_ends_the_call(Config) ->
    Client = client(Config),
    [begin
         {Exchange, #{~"id" := Id}, Pid} = start_call(Client, 1, ~"roots"),
         ok = answer(Client, Id, Bad),
         #{~"id" := 1, ~"error" := #{~"code" := -32603}} = next(Exchange),
         ok = over(Exchange),
         ended(Pid)
     end || Bad <- [null, [], ~"text", 1, true]].

%% Of an id that nobody asked with, or of another type than the one that was.
unknown_answer_is_ignored(Config) ->
    Client = client(Config),
    ok = answer(Client, 1, #{~"wrong" => 0}),
    {Exchange, #{~"id" := Id}, _} = start_call(Client, 1, ~"roots"),
    [ok = answer(Client, Unknown, #{~"wrong" => 1})
     || Unknown <- [0, 1, -1, Id + 1, ~"x", integer_to_binary(Id)]],
    [ok = answer_error(Client, Unknown, -1) || Unknown <- [Id + 1, ~"x"]],
    #{~"result" := #{}} = ask(Client, ~"ping", #{}),
    ok = answer(Client, Id, #{~"right" => 1}),
    #{~"it" := #{~"right" := 1}} = input(next(Exchange)),
    over(Exchange).

%% The first counts, while the call still waits for another and after it.
second_answer_is_ignored(Config) ->
    Client = client(Config),
    {Exchange, #{~"id" := One}, _} = start_call(Client, 1, ~"several"),
    [#{~"id" := Two}, #{~"id" := Three}] = [next(Exchange), next(Exchange)],
    ok = answer(Client, One, #{~"action" => ~"accept", ~"n" => 1}),
    ok = answer(Client, One, #{~"action" => ~"accept", ~"n" => 2}),
    ok = answer_error(Client, One, -1),
    [ok = answer(Client, Id, #{~"action" => ~"accept", ~"n" => 1}) || Id <- [Two, Three]],
    [1, 1, 1] = [N || _ := #{~"n" := N} <- input(next(Exchange))],
    ok = over(Exchange),
    [ok = answer(Client, Id, #{~"n" => 3}) || Id <- [One, Two, Three]],
    #{~"result" := #{}} = ask(Client, ~"ping", #{}).

%% "Servers MUST bind elicitation requests to the client and user identity".
answer_of_another_session_is_ignored(Config) ->
    Client = client(Config),
    Other = client(Config),
    {Exchange, #{~"id" := Id}, _} = start_call(Client, 1, ~"form"),
    ok = answer(Other, Id, #{~"action" => ~"accept", ~"n" => ~"other"}),
    #{~"result" := #{}} = ask(Other, ~"ping", #{}),
    ok = answer(Client, Id, #{~"action" => ~"accept", ~"n" => ~"own"}),
    #{~"it" := #{~"n" := ~"own"}} = input(next(Exchange)),
    over(Exchange).

%% Nobody is there who could be answered: the connection is closed, or that of the call's stream,
%% and nobody comes back to it.
client_that_goes_ends_the_call(Config) ->
    Server = start(#{reconnect_ms => 100}),
    Client = open(Server, transport(Config), ~"2025-11-25", ?ALL),
    {Exchange, #{~"id" := Id}, Pid} = start_call(Client, 1, ~"roots"),
    ok = erlmcp_test_client:close(Client, Exchange),
    _ = ended(Pid),
    case transport(Config) of
        http ->
            %% The session goes on, and the late answer is nothing to it.
            ok = answer(Client, Id, #{}),
            ~"on" = text(ask(Client, 1, ~"tools/call",
                             #{name => ~"echo", arguments => #{text => ~"on"}}));
        _ ->
            ok
    end,
    erlmcp_test_client:stop(Server).

lost_connection_ends_the_call(Config) ->
    #{socket := Socket} = Client = client(Config),
    {_, _, Pid} = start_call(Client, 1, ~"roots"),
    ok = erlmcp_test_line:reset(Socket),
    ended(Pid).

%% A client that has closed its half can be told, but will never answer: neither what it was asked,
%% nor what it is asked after that.
end_of_input_ends_the_call(Config) ->
    #{socket := Socket} = Client = client(Config),
    {Exchange, _, Pid} = start_call(Client, 1, ~"roots"),
    _ = request(Client, 2, ~"tools/call", #{name => ~"sample"}),
    ok = erlmcp_test_line:end_of_input(Socket),
    [-32603, -32603] = [erlmcp_test_line:code(answer_of(Exchange)) || _ <- [1, 2]],
    ok = erlmcp_test_http:closed(Socket),
    _ = ended(asking()),
    ended(Pid).

%% What is asked on the way is not of interest.
answer_of(Exchange) ->
    case next(Exchange) of
        #{~"method" := _} -> answer_of(Exchange);
        Answer -> Answer
    end.

%% "Receivers of cancellation notifications SHOULD: stop processing the cancelled request; free
%% associated resources; not send a response for the cancelled request."
cancellation_ends_the_call(Config) ->
    Client = client(Config),
    {Exchange, #{~"id" := Id}, Pid} = start_call(Client, 1, ~"roots"),
    ok = erlmcp_test_client:cancel(Client, 1),
    _ = ended(Pid),
    Id = withdrawn(Exchange),
    ok = over(Exchange),
    ok = answer(Client, Id, #{}),
    #{~"result" := #{}} = ask(Client, ~"ping", #{}).

delete_ends_the_call(Config) ->
    #{session := Session} = Client = client(Config),
    {Exchange, _, Pid} = start_call(Client, 1, ~"roots"),
    #{status := 204} = erlmcp_test_http:delete(server(Config), Session),
    _ = ended(Pid),
    #{~"error" := #{~"code" := 1016}} = next(Exchange),
    over(Exchange).

%% What is asked has a time limit of its own. Who lets it pass is told of what he did, and "a client
%% that does not answer" is no fault of the server's (docs/events.md).
input_in_time_or_1069(Config) ->
    %% So long that one answer comes in time also on a machine that stands still for a while.
    #{pid := Server} = Started = start(#{input_timeout_ms => 2500}),
    Client = open(Started, transport(Config), ~"2025-11-25", ?ALL),
    {Exchange, #{~"id" := Id, ~"method" := Method}, Pid} = start_call(Client, 1, ~"several"),
    #{Method := Unanswered} = #{~"elicitation/create" => ~"roots, sample",
                                ~"roots/list" => ~"form, sample",
                                ~"sampling/createMessage" => ~"form, roots"},
    Told = <<"the client did not answer in time the request for ", Unanswered/binary>>,
    Late = lists:sort([Other || #{~"id" := Other} <- [next(Exchange), next(Exchange)]]),
    ok = answer(Client, Id, #{}),
    Late = lists:sort([withdrawn(Exchange), withdrawn(Exchange)]),
    #{~"id" := 1, ~"error" := #{~"code" := 1069, ~"message" := Told,
                                ~"data" := #{~"limit" := 2500}}} = next(Exchange),
    ok = over(Exchange),
    _ = ended(Pid),
    #{~"result" := #{}} = ask(Client, ~"ping", #{}),
    #{error_budget := #{faults := 0}} = erlmcp:info(Server),
    erlmcp_test_client:stop(Started).

%% The user may take longer than a call; the handler may not, before or after.
asking_stops_the_deadline(Config) ->
    Client = client(Config),
    {Exchange, #{~"id" := Id}, Pid} = start_call(Client, 1, ~"hangs"),
    Monitor = monitor(process, Pid),
    %% Longer than the deadline of the tool: that nothing happens is what is to be seen.
    receive
        {'DOWN', Monitor, process, _, _} = Down -> error(Down)
    after 1500 -> ok
    end,
    ok = answer(Client, Id, #{}),
    receive {hangs, Pid} -> ok after 30_000 -> error(not_called_again) end,
    #{~"id" := 1, ~"error" := #{~"code" := 1069}} = next(Exchange),
    _ = ended(Pid),
    over(Exchange).

%% "Servers MUST NOT send elicitation requests with modes that are not supported by the client."
%% "Both parties MUST respect the negotiated protocol version; only use capabilities that were
%% successfully negotiated."
undeclared_capabilities_are_refused(Config) ->
    [begin
         Client = open(server(Config), transport(Config), Revision, Declared),
         #{~"error" := #{~"code" := -32021, ~"data" := #{~"requiredCapabilities" := Required}}} =
             ask(Client, ~"tools/call", #{name => Tool}),
         _ = ended(asking()),
         erlmcp_test_client:close(Client)
     end || Revision <- revisions(),
            {Tool, Declared, Required} <-
                [{~"sample", #{}, #{~"sampling" => #{}}},
                 {~"roots", #{sampling => #{}}, #{~"roots" => #{}}}]
                ++ [{~"url", #{elicitation => #{form => #{}}},
                     #{~"elicitation" => #{~"url" => #{}}}} || Revision =:= ~"2025-11-25"]],
    Client = open(server(Config), transport(Config), ~"2025-11-25", #{}),
    #{~"error" := #{~"code" := -32021}} = ask(Client, ~"tools/call", #{name => ~"several"}),
    %% "an empty capabilities object is equivalent to declaring support for form mode only".
    Empty = open(server(Config), transport(Config), ~"2025-11-25", #{elicitation => #{}}),
    #{~"error" := #{~"code" := -32021}} = ask(Empty, ~"tools/call", #{name => ~"url"}),
    {_, #{~"method" := ~"elicitation/create"}, _} =
        begin flush(), start_call(Empty, 5, ~"form") end,
    ok.

flush() ->
    receive {asking, _} -> flush() after 0 -> ok end.

%% "Servers MUST NOT send tool-enabled sampling requests to Clients that have not declared support
%% for tool use via the sampling.tools capability."
sampling_with_tools_needs_its_capability(Config) ->
    Declared = open(server(Config), transport(Config), ~"2025-11-25",
                    #{sampling => #{tools => #{}}}),
    {_, #{~"params" := #{~"tools" := [_]}}, _} = start_call(Declared, 1, ~"tools"),
    Undeclared = client(Config),
    Exchange = request(Undeclared, 1, ~"tools/call", #{name => ~"tools"}),
    #{~"id" := 1, ~"error" := #{~"code" := -32021}} = next(Exchange).

%% Elicitation came with 2025-06-18, its URL mode with 2025-11-25; what a client of an earlier
%% revision declares does not help.
elicitation_is_of_its_revision(Config) ->
    [begin
         Client = client(Config, Revision),
         #{~"error" := #{~"code" := -32021}} = ask(Client, ~"tools/call", #{name => Tool}),
         erlmcp_test_client:close(Client)
     end || {Revision, Tool} <- [{~"2024-11-05", ~"form"}, {~"2025-03-26", ~"form"},
                                 {~"2024-11-05", ~"url"}, {~"2025-03-26", ~"url"},
                                 {~"2025-06-18", ~"url"}]].

%% A client that does not read a stream cannot be asked on one.
json_alone_cannot_be_asked(Config) ->
    #{session := Session} = client(Config),
    #{status := 200, messages := [#{~"id" := 1, ~"error" := #{~"code" := -32603}}]} =
        erlmcp_test_http:call(server(Config), ~"tools/call", #{name => ~"roots"},
                              #{session => Session,
                                headers => #{~"accept" => ~"application/json"}}),
    ended(asking()).

%% 2025-03-26: "the server MUST" answer a batch; its calls may ask meanwhile.
batch_asks_too(Config) ->
    Client = client(Config, ~"2025-03-26"),
    Call = fun(Id, Tool) ->
        #{jsonrpc => ~"2.0", id => Id, method => ~"tools/call",
          params => #{name => Tool, arguments => #{text => ~"b"}}}
    end,
    Exchange = batch(Client, [Call(1, ~"sample"), Call(2, ~"echo"), Call(3, ~"roots")]),
    Requests = [next(Exchange), next(Exchange)],
    [~"roots/list", ~"sampling/createMessage"] =
        lists:sort([Method || #{~"method" := Method} <- Requests]),
    [ok = answer(Client, Id, #{~"of" => Method})
     || #{~"id" := Id, ~"method" := Method} <- Requests],
    Answers = #{Id => text(Answer) || #{~"id" := Id} = Answer <- next(Exchange)},
    #{1 := Sample, 2 := ~"b", 3 := Roots} = Answers,
    #{~"it" := #{~"of" := ~"sampling/createMessage"}} = json:decode(Sample),
    #{~"it" := #{~"of" := ~"roots/list"}} = json:decode(Roots),
    ok = over(Exchange),
    %% One that fails takes no other with it, and one that is cancelled is left out.
    _ = [asking(), asking()],
    #{~"result" := #{}} = ask(Client, ~"ping", #{}).
