-module(spec_progress_SUITE).
-moduledoc "\"Progress\" of all revisions of the specification, over HTTP, TCP and HTTP+SSE.".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([tokens_come_back/1, other_tokens_are_refused/1, no_token_no_progress/1,
         every_call_reports/1]).
-export([values_increase/1, values_of_other_processes_increase/1,
         values_increase_over_rounds/1, details_are_optional/1]).
-export([tokens_are_of_their_request/1, answer_is_the_end/1, error_is_the_end/1,
         clients_progress_is_ignored/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [request/4, next/1, answered/1, nothing_more/1, ask/3, notify/3]).

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
    erlmcp_test_client:open(server(Config), transport(Config), Revision).

sessions() ->
    [~"2024-11-05", ~"2025-03-26", ~"2025-06-18", ~"2025-11-25"].

revisions() ->
    [~"2026-07-28" | sessions()].

%% `count` reports the values that it is told.
definitions(Test) ->
    Report = fun(_, Context) ->
        ok = erlmcp:progress(Context, 1, #{}),
        ~"reported"
    end,
    #{tools => [#{name => ~"count", handler => fun(#{~"values" := Values}, Context) ->
                    [ok = erlmcp:progress(Context, Value, #{}) || Value <- Values],
                    ~"counted"
                  end},
                #{name => ~"workers", handler => fun(#{~"values" := Values}, Context) ->
                    [{_, _, _, _, ok} = by_worker(Value, Context) || Value <- Values],
                    ~"counted"
                  end},
                #{name => ~"details", handler => fun(_, Context) ->
                    ok = erlmcp:progress(Context, 0, #{message => ~"Reticulating splines..."}),
                    ok = erlmcp:progress(Context, 0.5, #{total => 1.5}),
                    ok = erlmcp:progress(Context, 1, #{total => 3, message => ~"\x{e9}"}),
                    ~"detailed"
                  end},
                #{name => ~"asks", handler => fun asks/2},
                #{name => ~"crashes", handler => fun(_, Context) ->
                    ok = erlmcp:progress(Context, 1, #{}),
                    exit(on_purpose)
                  end},
                #{name => ~"late", handler => fun(_, Context) ->
                    ok = erlmcp:progress(Context, 1, #{}),
                    Test ! {late, spawn(fun() -> late(Test, Context) end)},
                    ~"done"
                  end},
                erlmcp_test_line:waiting_tool(~"wait")],
      prompts => [#{name => ~"reports", handler => Report}],
      resources => [#{uri => ~"test://reports", name => ~"reports", handler => Report}]}.

by_worker(Value, Context) ->
    {Pid, Monitor} = spawn_monitor(fun() -> exit(erlmcp:progress(Context, Value, #{})) end),
    receive
        {'DOWN', Monitor, process, Pid, _} = Down -> Down
    end.

asks(_, #{input := _} = Context) ->
    [ok = erlmcp:progress(Context, Value, #{}) || Value <- [2, 3]],
    ~"asked";
asks(_, Context) ->
    [ok = erlmcp:progress(Context, Value, #{}) || Value <- [1, 2]],
    {input_required, #{~"it" => erlmcp_input:roots()}}.

late(Test, Context) ->
    receive report -> Test ! {reported, erlmcp:progress(Context, 2, #{})} end.

call(Client, Id, Name, Arguments, Token) ->
    request(Client, Id, ~"tools/call",
            #{name => Name, arguments => Arguments, '_meta' => #{progressToken => Token}}).

%% The params of what is progress, and nothing else.
params(Messages) ->
    [Params || #{~"jsonrpc" := ~"2.0", ~"method" := ~"notifications/progress",
                 ~"params" := Params} <- Messages].

values(Token, Messages) ->
    [begin
         Params = #{~"progressToken" => Token, ~"progress" => Value},
         Value
     end || #{~"progress" := Value} = Params <- params(Messages)].

%% "Progress tokens MUST be a string or integer value"; notifications contain "The original progress
%% token".
tokens_come_back(Config) ->
    [begin
         Client = client(Config, Revision),
         [begin
              {Messages, #{~"result" := #{}}} =
                  answered(call(Client, 1, ~"count", #{values => [1]}, Token)),
              [1] = values(Token, Messages)
          end || Token <- [~"abc123", ~"", ~"1", ~"\x{fc}n\x{ef}", 0, 1, -7, 9007199254740993]],
         erlmcp_test_client:close(Client)
     end || Revision <- revisions()].

%% "Progress tokens MUST be a string or integer value": the tool is not called with another.
other_tokens_are_refused(Config) ->
    [begin
         Client = client(Config, Revision),
         [begin
              {[], #{~"id" := 1, ~"error" := #{~"code" := -32602, ~"message" := Message}}} =
                  answered(call(Client, 1, ~"wait", #{}, Token)),
              {_, _} = binary:match(Message, ~"progressToken")
          end || Token <- [1.5, true, null, [], [1], #{}]],
         receive {called, _, _, _} -> error(called) after 0 -> ok end,
         nothing_more(Client)
     end || Revision <- [~"2025-11-25", ~"2026-07-28"]].

%% "Progress notifications MUST only reference tokens that: Were provided in an active request".
no_token_no_progress(Config) ->
    [begin
         Client = client(Config, Revision),
         #{~"result" := #{~"content" := [#{~"text" := ~"counted"}]}} =
             ask(Client, ~"tools/call", #{name => ~"count", arguments => #{values => [1, 2]}}),
         %% Nor is that of the request before remembered.
         {[_], _} = answered(call(Client, 1, ~"count", #{values => [1]}, ~"t")),
         #{~"result" := #{}} =
             ask(Client, ~"tools/call", #{name => ~"count", arguments => #{values => [1, 2]}}),
         nothing_more(Client)
     end || Revision <- revisions()].

%% "When a party wants to receive progress updates for a request, it includes a progressToken in the
%% request metadata": whatever it asks for.
every_call_reports(Config) ->
    [begin
         {Messages, #{~"id" := 5, ~"result" := #{Member := [_]}}} =
             answered(request(client(Config, Revision), 5, Method,
                              Params#{'_meta' => #{progressToken => ~"t"}})),
         [1] = values(~"t", Messages)
     end || Revision <- [~"2025-11-25", ~"2026-07-28"],
            {Method, Params, Member} <-
                [{~"prompts/get", #{name => ~"reports"}, ~"messages"},
                 {~"resources/read", #{uri => ~"test://reports"}, ~"contents"}]].

%% "The progress value MUST increase with each notification, even if the total is unknown."; "The
%% progress and the total values MAY be floating point."
values_increase(Config) ->
    Huge = 1 bsl 1024,
    [begin
         {Messages, #{~"result" := #{}}} =
             answered(call(client(Config, Revision), 1, ~"count", #{values => Given}, 7)),
         Sent = values(7, Messages)
     end || Revision <- revisions(),
            {Given, Sent} <- [{[1, 2, 2, 1, 3], [1, 2, 3]}, {[-2, -3, -1, 0], [-2, -1, 0]},
                              {[0.5, 0.25, 1, 1.0, 1.5, 2], [0.5, 1, 1.5, 2]}, {[], []},
                              {[-Huge, 1, Huge, Huge], [-Huge, 1, Huge]}]].

%% Whichever process of the handler's reports it; and the answer comes after it.
values_of_other_processes_increase(Config) ->
    [begin
         {Messages, #{~"result" := #{}}} =
             answered(call(client(Config, Revision), 1, ~"workers",
                           #{values => [1, 2, 1, 2.5, 2.4, 3]}, 7)),
         [1, 2, 2.5, 3] = values(7, Messages)
     end || Revision <- revisions()].

%% The same for a call that asks its client between: it is still the one request. The retry of
%% 2026-07-28 is another.
values_increase_over_rounds(Config) ->
    Declared = #{roots => #{}},
    Answer = #{roots => []},
    Session = erlmcp_test_client:open(server(Config), transport(Config), ~"2025-11-25", Declared),
    Exchange = call(Session, 1, ~"asks", #{}, ~"t"),
    Before = [next(Exchange), next(Exchange)],
    #{~"method" := ~"roots/list", ~"id" := Id} = next(Exchange),
    ok = erlmcp_test_client:answer(Session, Id, Answer),
    {After, #{~"result" := #{}}} = answered(Exchange),
    [1, 2, 3] = values(~"t", Before ++ After),
    Stateless = erlmcp_test_client:open(server(Config), transport(Config), ~"2026-07-28", Declared),
    {First, #{~"result" := #{~"requestState" := State}}} =
        answered(call(Stateless, 1, ~"asks", #{}, ~"one")),
    [1, 2] = values(~"one", First),
    {Second, #{~"result" := #{~"content" := _}}} =
        answered(request(Stateless, 2, ~"tools/call",
                         #{name => ~"asks", arguments => #{}, requestState => State,
                           inputResponses => #{it => Answer},
                           '_meta' => #{progressToken => ~"two"}})),
    [2, 3] = values(~"two", Second).

%% "An optional "total" value"; "An optional "message" value", which 2024-11-05 does not know and
%% does not mind.
details_are_optional(Config) ->
    [begin
         {Messages, _} = answered(call(client(Config, Revision), 1, ~"details", #{}, 1)),
         Wanted = [#{~"progress" => 0, ~"message" => ~"Reticulating splines..."},
                   #{~"progress" => 0.5, ~"total" => 1.5},
                   #{~"progress" => 1, ~"total" => 3, ~"message" => ~"\x{e9}"}],
         true = params(Messages) =:= [Params#{~"progressToken" => 1} || Params <- Wanted]
     end || Revision <- revisions()].

%% "Progress notifications MUST only reference tokens that: Are associated with an in-progress
%% operation": each call has its own, on its own stream.
tokens_are_of_their_request(Config) ->
    [begin
         Client = client(Config, Revision),
         Calls = [begin
                      Exchange = call(Client, Id, ~"wait", #{}, Token),
                      receive
                          {called, Pid, _, Context} -> {Id, Token, Exchange, Pid, Context}
                      after 30_000 -> error(no_call)
                      end
                  end || {Id, Token} <- [{1, ~"1"}, {2, 1}]],
         [begin
              %% From the test, which is as good as any process of the handler's.
              ok = spawned(fun() -> erlmcp:progress(Context, Id, #{}) end),
              [Id] = values(Token, [next(Exchange)])
          end || {Id, Token, Exchange, _, Context} <- Calls],
         [begin
              Pid ! {answer, ~"done"},
              {[], #{~"id" := Id}} = answered(Exchange)
          end || {Id, _, Exchange, Pid, _} <- lists:reverse(Calls)],
         nothing_more(Client)
     end || Revision <- [~"2025-11-25", ~"2026-07-28"]].

spawned(Run) ->
    {Pid, Monitor} = spawn_monitor(fun() -> exit(Run()) end),
    receive {'DOWN', Monitor, process, Pid, Result} -> Result end.

%% "Progress notifications MUST stop after completion": what a process that a handler left behind
%% reports goes nowhere.
answer_is_the_end(Config) ->
    [begin
         Client = client(Config, Revision),
         {Messages, #{~"result" := #{}}} = answered(call(Client, 1, ~"late", #{}, ~"t")),
         [1] = values(~"t", Messages),
         receive {late, Late} -> Late ! report after 30_000 -> error(nobody_is_late) end,
         receive {reported, ok} -> ok after 30_000 -> error(not_reported) end,
         nothing_more(Client)
     end || Revision <- revisions()].

error_is_the_end(Config) ->
    [begin
         Client = client(Config, Revision),
         {Messages, #{~"error" := #{~"code" := -32603}}} =
             answered(call(Client, 1, ~"crashes", #{}, ~"t")),
         [1] = values(~"t", Messages),
         nothing_more(Client)
     end || Revision <- [~"2025-11-25", ~"2026-07-28"]].

%% "Either side can send progress notifications": of a token that the server never gave, before
%% 2026-07-28 and in it.
clients_progress_is_ignored(Config) ->
    [begin
         Client = client(Config, Revision),
         Exchange = call(Client, 1, ~"wait", #{}, ~"t"),
         Pid = erlmcp_test_line:await_call(),
         [ok = notify(Client, ~"notifications/progress", Params)
          || Params <- [#{progressToken => ~"t", progress => 1}, #{progressToken => 99},
                        #{progress => []}, #{}]],
         nothing_more(Client),
         Pid ! {answer, ~"done"},
         {[], #{~"id" := 1, ~"result" := #{}}} = answered(Exchange)
     end || Revision <- [~"2025-11-25", ~"2026-07-28"]].
