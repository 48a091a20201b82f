-module(spec_elicitation_schemas_SUITE).
-moduledoc """
Specification, "Client features / Elicitation": what comes back for a form fits the schema that was
asked with before a handler sees it, in both eras, over HTTP and TCP.

"Servers SHOULD validate received data matches the requested schema".
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([content_that_fits_is_given/1, content_that_does_not_fit_is_refused/1,
         forms_of_prompts_and_resources_are_checked/1, only_accepted_forms_have_content/1,
         an_answer_says_what_was_done/1, several_answers_are_checked/1,
         shorthand_is_sent_as_json_schema/1, bad_requested_schema_is_an_incident/1]).
-export([answers_without_state_are_checked/1, state_keeps_what_was_asked/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [open/4, ask/3, request/4, next/1, over/1, answer/3]).

-define(INVALID, -32602).
-define(ALL, #{elicitation => #{form => #{}, url => #{}}, sampling => #{}, roots => #{}}).
-define(ERAS, [~"2025-06-18", ~"2025-11-25", ~"2026-07-28"]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp}].

groups() ->
    Cases = erlmcp_test_suite:cases(?MODULE),
    [{http, Cases}, {tcp, Cases}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Transport, Config) -> [{transport, Transport} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(_, Config) ->
    [{server, erlmcp_test_client:start(definitions(self()))} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_client:stop(server(Config)).

%% Each tells the test what it is given, and gives it back.
definitions(Test) ->
    Asking = fun(Requests, State) ->
        fun(_, #{input := Input}) ->
                Test ! {given, Input},
                iolist_to_binary(json:encode(Input));
           (_, _) when State =:= none -> {input_required, Requests()};
           (_, _) -> {input_required, Requests(), State}
        end
    end,
    Form = fun() -> #{~"trip" => erlmcp_input:elicit(~"Where to?", form())} end,
    #{tools => [#{name => ~"plans", handler => Asking(Form, planning)},
                #{name => ~"asks", handler => Asking(Form, none)},
                #{name => ~"several", handler => Asking(fun() ->
                    (Form())#{~"roots" => erlmcp_input:roots(),
                              ~"mail" => erlmcp_input:elicit(~"Who?", mail())}
                  end, none)},
                #{name => ~"visits", handler => Asking(fun() ->
                    #{~"page" => erlmcp_input:elicit_url(~"Go", ~"https://example.com/", ~"e")}
                  end, none)},
                #{name => ~"asks badly", handler => Asking(fun() ->
                    #{~"it" => erlmcp_input:elicit(~"?", #{type => object, '$ref' => ~"#/x"})}
                  end, none)},
                #{name => ~"writes badly", handler => Asking(fun() ->
                    #{~"it" => erlmcp_input:elicit(~"?", #{name => text})}
                  end, none)}],
      prompts => [#{name => ~"plans", handler => Asking(Form, planning)}],
      resources => [#{uri => ~"test://plans", name => ~"p", handler => Asking(Form, planning)}]}.

form() ->
    #{city => string, days => {optional, {integer, #{minimum => 1}}},
      class => {optional, {string, #{enum => [first, second]}}}}.

mail() ->
    #{~"type" => ~"object", ~"required" => [~"mail"],
      ~"properties" => #{~"mail" => #{~"type" => ~"string", ~"format" => ~"email"}}}.

client(Revision, Config) ->
    open(server(Config), transport(Config), Revision,
         ?ALL).

%% The answer to a request whose handler asks, each request being answered by its method and name.
%% In a session there is no name; what it asks for tells.
asked(Client, Method, Params, Answers) ->
    asked(Client, Method, Params, Answers, fun(_) -> ok end).

asked(#{session := _} = Client, Method, Params, Answers, See) ->
    Exchange = request(Client, 1, Method, Params),
    [begin
         #{~"id" := Id, ~"params" := Asked} = next(Exchange),
         See(Asked),
         ok = answer(Client, Id, map_get(name(Asked), Answers))
     end || _ <- maps:keys(Answers)],
    #{~"id" := 1} = Answer = next(Exchange),
    ok = over(Exchange),
    Answer;
asked(Client, Method, Params, Answers, See) ->
    #{~"result" := #{~"inputRequests" := Requests, ~"requestState" := State}} =
        ask(Client, Method, Params),
    [See(Asked) || _ := #{~"params" := Asked} <- Requests],
    ask(Client, Method, Params#{inputResponses => Answers, requestState => State}).

name(#{~"message" := ~"Where to?"}) -> ~"trip";
name(#{~"message" := ~"Who?"}) -> ~"mail";
name(#{~"message" := ~"Go"}) -> ~"page";
name(_) -> ~"roots".

call(Client, Tool, Answers) ->
    asked(Client, ~"tools/call", #{name => Tool}, Answers).

accept(Content) ->
    #{~"action" => ~"accept", ~"content" => Content}.

given() ->
    receive {given, Input} -> Input after 0 -> nothing end.

content_that_fits_is_given(Config) ->
    [begin
         Answers = #{~"trip" => accept(Content)},
         #{~"result" := #{~"content" := [_]}} = call(client(Revision, Config), Tool, Answers),
         {Content, Answers} = {Content, given()}
     end || Revision <- ?ERAS, Tool <- [~"plans", ~"asks"],
            Content <- [#{~"city" => ~"Oslo"},
                        #{~"city" => ~"", ~"days" => 2, ~"class" => ~"first"},
                        %% A form has the members that it shows; others do no harm.
                        #{~"city" => ~"Oslo", ~"more" => true}]].

content_that_does_not_fit_is_refused(Config) ->
    [begin
         Client = client(Revision, Config),
         #{~"error" := #{~"code" := ?INVALID, ~"message" := Message,
                         ~"data" := #{~"refusal" := 1021, ~"errors" := [Error | _]}}} =
             call(Client, Tool, #{~"trip" => Answer}),
         Message = <<"input trip: ", (maps:get(~"message", Error))/binary>>,
         {Path, Path} = {Path, maps:get(~"instancePath", Error)},
         nothing = given()
     end || Revision <- ?ERAS, Tool <- [~"plans", ~"asks"],
            {Path, Answer} <- [{~"", accept(#{})}, {~"/city", accept(#{~"city" => 1})},
                               {~"/days", accept(#{~"city" => ~"Oslo", ~"days" => 0})},
                               {~"/class", accept(#{~"city" => ~"Oslo", ~"class" => ~"third"})},
                               {~"", accept(null)}, {~"", accept([])}, {~"", accept(~"Oslo")},
                               {~"", #{~"action" => ~"accept"}}]].

forms_of_prompts_and_resources_are_checked(Config) ->
    [begin
         #{~"error" := #{~"code" := ?INVALID}} =
             asked(client(Revision, Config), Method, Params, #{~"trip" => accept(#{})}),
         nothing = given(),
         #{~"result" := #{}} = asked(client(Revision, Config), Method, Params,
                                     #{~"trip" => accept(#{~"city" => ~"Oslo"})}),
         #{~"trip" := _} = given()
     end || Revision <- ?ERAS,
            {Method, Params} <- [{~"prompts/get", #{name => ~"plans"}},
                                 {~"resources/read", #{uri => ~"test://plans"}}]].

%% "The content field contains the submitted data" where the user accepted; a handler that looks at
%% it alone sees nothing that was not checked.
only_accepted_forms_have_content(Config) ->
    [begin
         #{~"result" := #{}} = call(client(Revision, Config), ~"plans",
                                    #{~"trip" => #{~"action" => Action,
                                                   ~"content" => #{~"city" => 1}}}),
         {Action, #{~"trip" := #{~"action" := Action} = Answer}} = {Action, given()},
         1 = map_size(Answer)
     end || Revision <- ?ERAS, Action <- [~"decline", ~"cancel"]].

%% "a clear distinction between different user actions": accept, decline, cancel.
an_answer_says_what_was_done(Config) ->
    [begin
         #{~"error" := #{~"code" := ?INVALID, ~"message" := Message}} =
             call(client(Revision, Config), ~"plans", #{~"trip" => Answer}),
         Message = <<"input trip, action: expected accept, decline or cancel, got ", Came/binary>>,
         nothing = given()
     end || Revision <- ?ERAS,
            {Answer, Came} <- [{#{}, ~"nothing"},
                               {#{~"content" => #{~"city" => ~"Oslo"}}, ~"nothing"},
                               {#{~"action" => ~"yes"}, ~B'the string "yes"'},
                               {#{~"action" => null}, ~"null"}]],
    %% A URL has no form.
    #{~"result" := #{}} = call(client(~"2025-11-25", Config), ~"visits",
                               #{~"page" => #{~"action" => ~"accept"}}).

several_answers_are_checked(Config) ->
    Good = #{~"trip" => accept(#{~"city" => ~"Oslo"}), ~"roots" => #{~"roots" => []},
             ~"mail" => accept(#{~"mail" => ~"joe@example.com"})},
    [begin
         #{~"result" := #{}} = call(client(Revision, Config), ~"several", Good),
         Good = given(),
         Wrong = Good#{~"mail" := accept(#{~"mail" => ~"joe"})},
         #{~"error" := #{~"message" := Message}} =
             call(client(Revision, Config), ~"several", Wrong),
         <<"input mail: /mail must have the format email", _/binary>> = Message,
         nothing = given()
     end || Revision <- ?ERAS].

%% The protocol's subset of JSON Schema: "type", "properties", "required".
shorthand_is_sent_as_json_schema(Config) ->
    Schema = #{~"type" => ~"object", ~"required" => [~"city"],
               ~"properties" => #{~"city" => #{~"type" => ~"string"},
                                  ~"days" => #{~"type" => ~"integer", ~"minimum" => 1},
                                  ~"class" => #{~"type" => ~"string",
                                                ~"enum" => [~"first", ~"second"]}}},
    [#{~"result" := #{}} =
         asked(client(Revision, Config), ~"tools/call", #{name => ~"plans"},
               #{~"trip" => #{~"action" => ~"cancel"}},
               fun(#{~"requestedSchema" := Sent}) -> Schema = Sent end)
     || Revision <- ?ERAS].

%% A schema that is none is not sent: the fault is the handler's.
bad_requested_schema_is_an_incident(Config) ->
    logger:set_primary_config(level, none),
    [#{~"error" := #{~"code" := -32603, ~"data" := #{~"incident" := _}}} =
         ask(client(Revision, Config), ~"tools/call", #{name => Tool})
     || Revision <- ?ERAS, Tool <- [~"asks badly", ~"writes badly"]],
    logger:set_primary_config(level, notice).

%% "servers MUST treat requestState as an attacker-controlled input", and so they do its absence.
answers_without_state_are_checked(Config) ->
    Client = client(~"2026-07-28", Config),
    Retry = fun(Tool, Answers) ->
        ask(Client, ~"tools/call", #{name => Tool, inputResponses => Answers})
    end,
    [begin
         #{~"error" := #{~"code" := ?INVALID}} =
             Retry(Tool, #{~"trip" => accept(#{~"city" => 1})}),
         nothing = given(),
         #{~"error" := #{~"code" := ?INVALID}} =
             Retry(Tool, #{~"trip" => #{~"content" => #{~"city" => 1}}}),
         nothing = given(),
         #{~"result" := #{~"resultType" := ~"input_required"}} =
             Retry(Tool, #{~"journey" => accept(#{~"city" => 1})}),
         nothing = given(),
         Good = #{~"trip" => accept(#{~"city" => ~"Oslo"})},
         #{~"result" := #{~"resultType" := ~"complete"}} =
             Retry(Tool, Good#{~"journey" => accept(#{~"city" => 1})}),
         Good = given()
     end || Tool <- [~"plans", ~"asks"]].

%% The schema is the one that the form was shown with, not what the handler would ask now.
state_keeps_what_was_asked(Config) ->
    #{pid := Pid} = server(Config),
    Client = client(~"2026-07-28", Config),
    Test = self(),
    Change = fun(Type) ->
        #{name => ~"changes", handler => fun(_, #{input := Input}) -> Test ! {given, Input}, ~"";
                                            (_, _) ->
                                                Form = erlmcp_input:elicit(~"?", #{n => Type}),
                                                {input_required, #{~"it" => Form}}
                                         end}
    end,
    ok = erlmcp:add(Pid, tool, Change(string)),
    #{~"result" := #{~"requestState" := State}} =
        ask(Client, ~"tools/call", #{name => ~"changes"}),
    ok = erlmcp:remove(Pid, tool, ~"changes"),
    ok = erlmcp:add(Pid, tool, Change(integer)),
    Retry = fun(N) ->
        ask(Client, ~"tools/call", #{name => ~"changes", requestState => State,
                                     inputResponses => #{it => accept(#{n => N})}})
    end,
    #{~"error" := #{~"code" := ?INVALID}} = Retry(1),
    #{~"result" := #{~"resultType" := ~"complete"}} = Retry(~"one"),
    #{~"it" := #{~"content" := #{~"n" := ~"one"}}} = given().
