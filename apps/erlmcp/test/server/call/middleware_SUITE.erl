-module(middleware_SUITE).
-moduledoc "`docs/composition.md`: what funs around handlers see and may do, in both eras.".

-export([suite/0, all/0]).
-export([every_kind_is_wrapped/1, the_first_is_outermost/1, arguments_and_context_can_change/1,
         returns_can_change/1, calls_can_be_refused/1, calls_can_be_repeated/1,
         questions_are_seen/1, crashes_are_the_callers_alone/1, added_definitions_are_wrapped/1,
         modules_have_middleware/1]).

-export([server/0]).

-import(erlmcp_test_line, [serve/1, code/1, send/2, recv/1, result/1]).
-import(erlmcp_test_two_eras, [eras/0, open/2, ask/3, call/3, read/2, text/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [every_kind_is_wrapped, the_first_is_outermost, arguments_and_context_can_change,
     returns_can_change, calls_can_be_refused, calls_can_be_repeated, questions_are_seen,
     crashes_are_the_callers_alone, added_definitions_are_wrapped, modules_have_middleware].

%% "It is around tools, resources, resource templates, prompts and the funs that complete."
every_kind_is_wrapped(_) ->
    Test = self(),
    Seen = fun(Arguments, #{method := Method} = Context, Next) ->
        Return = Next(Arguments, Context),
        Test ! {seen, Method, maps:with([name, uri], Context), Arguments, Return},
        Return
    end,
    Server = serve((offers())#{middleware => [Seen]}),
    [begin
         {Era, Method, Text} = {Era, Method, text(ask(open(Era, Server), Method, Params))},
         {Era, Method, {seen, Method, Target, Arguments, Return}} =
             {Era, Method, receive {seen, Method, _, _, _} = Message -> Message end}
     end || Era <- eras(),
            {Method, Params, Target, Arguments, Return, Text} <- [
         {~"tools/call", #{~"name" => ~"shout", ~"arguments" => #{~"a" => 1}},
          #{name => ~"shout"}, #{~"a" => 1}, ~"tool", ~"tool"},
         {~"prompts/get", #{~"name" => ~"ask", ~"arguments" => #{~"b" => ~"2"}},
          #{name => ~"ask"}, #{~"b" => ~"2"}, ~"prompt", ~"prompt"},
         {~"resources/read", #{~"uri" => ~"r://plain"},
          #{uri => ~"r://plain"}, #{}, ~"resource", ~"resource"},
         {~"resources/read", #{~"uri" => ~"t://7"},
          #{uri => ~"t://7"}, #{~"id" => ~"7"}, {blob, ~"bytes"}, {blob, ~"bytes"}},
         {~"completion/complete", #{~"ref" => #{~"type" => ~"ref/prompt", ~"name" => ~"ask"},
                                    ~"argument" => #{~"name" => ~"who", ~"value" => ~"x"}},
          #{name => ~"ask"}, ~"x", [~"xyz"], [~"xyz"]},
         {~"completion/complete", #{~"ref" => #{~"type" => ~"ref/resource", ~"uri" => ~"t://{id}"},
                                    ~"argument" => #{~"name" => ~"id", ~"value" => ~"y"}},
          #{uri => ~"t://{id}"}, ~"y", [~"yz"], [~"yz"]}]],
    receive Message -> ct:fail(Message) after 0 -> ok end.

offers() ->
    #{tools => [#{name => ~"shout", handler => fun(_, _) -> ~"tool" end}],
      resources => [#{uri => ~"r://plain", name => ~"r", handler => fun(_, _) -> ~"resource" end}],
      resource_templates => [#{uri_template => ~"t://{id}", name => ~"t",
                               complete => #{~"id" => fun(Text, _) -> [<<Text/binary, "z">>] end},
                               handler => fun(_, _) -> {blob, ~"bytes"} end}],
      prompts => [#{name => ~"ask", handler => fun(_, _) -> ~"prompt" end,
                    arguments => [#{name => ~"b"}, #{name => ~"who"}],
                    complete => #{~"who" => fun(Text, _) -> [<<Text/binary, "yz">>] end}}]}.

%% "The first is outermost; those of a definition are inside of the server's."
the_first_is_outermost(_) ->
    Around = fun(Name) ->
        fun(Arguments, Context, Next) ->
            Text = Next(Arguments, Context),
            <<Name/binary, "(", Text/binary, ")">>
        end
    end,
    Server = serve(#{middleware => [Around(~"a"), Around(~"b")],
                     tools => [#{name => ~"both", middleware => [Around(~"c"), Around(~"d")],
                                 handler => fun(_, _) -> ~"handler" end},
                               #{name => ~"servers", handler => fun(_, _) -> ~"handler" end}]}),
    [begin
         Client = open(Era, Server),
         ~"a(b(c(d(handler))))" = text(call(Client, ~"both", #{})),
         ~"a(b(handler))" = text(call(Client, ~"servers", #{}))
     end || Era <- eras()].

arguments_and_context_can_change(_) ->
    Change = fun(Arguments, Context, Next) ->
        Next(Arguments#{~"more" => ~"given"}, Context#{tenant => ~"acme"})
    end,
    Server = serve(#{middleware => [Change],
                     tools => [#{name => ~"show",
                                 handler => fun(#{~"more" := More}, #{tenant := Tenant}) ->
                                     <<More/binary, " by ", Tenant/binary>>
                                 end}]}),
    [~"given by acme" = text(call(open(Era, Server), ~"show", #{})) || Era <- eras()].

returns_can_change(_) ->
    Server = serve(#{middleware => [fun(Arguments, Context, Next) ->
                                        {error, Text} = Next(Arguments, Context),
                                        #{was => Text}
                                    end],
                     tools => [#{name => ~"fails", handler => fun(_, _) -> {error, ~"no"} end}]}),
    [#{~"result" := #{~"structuredContent" := #{~"was" := ~"no"}}} =
         call(open(Era, Server), ~"fails", #{}) || Era <- eras()].

%% "It may return without calling `Next`": each kind says an error in its own way.
calls_can_be_refused(_) ->
    Test = self(),
    Handler = fun(_, _) -> Test ! ran, ~"ran" end,
    Refuse = fun(_, _, _) -> {error, ~"not you"} end,
    Server = serve(#{middleware => [Refuse],
                     tools => [#{name => ~"t", handler => Handler}],
                     prompts => [#{name => ~"p", handler => Handler}],
                     resources => [#{uri => ~"r://r", name => ~"r", handler => Handler}]}),
    [begin
         Client = open(Era, Server),
         #{~"result" := #{~"isError" := true}} = Tool = call(Client, ~"t", #{}),
         #{~"error" := #{~"code" := -32603}} = Resource = read(Client, ~"r://r"),
         #{~"error" := #{~"code" := -32603}} = Prompt =
             ask(Client, ~"prompts/get", #{~"name" => ~"p"}),
         [{error, ~"not you"} = text(Answer) || Answer <- [Tool, Resource, Prompt]]
     end || Era <- eras()],
    receive ran -> ct:fail(ran) after 0 -> ok end.

%% "It may call `Next` more than once."
calls_can_be_repeated(_) ->
    Counter = counters:new(1, []),
    Flaky = fun(_, _) ->
        ok = counters:add(Counter, 1, 1),
        case counters:get(Counter, 1) rem 3 of
            0 -> ~"done";
            _ -> error(flaky)
        end
    end,
    Server = serve(#{tools => [#{name => ~"flaky", handler => Flaky,
                                 middleware => [retry(3)]}]}),
    [~"done" = text(call(open(Era, Server), ~"flaky", #{})) || Era <- eras()],
    6 = counters:get(Counter, 1).

retry(Times) ->
    fun(Arguments, Context, Next) -> retry(Times, Arguments, Context, Next) end.

retry(1, Arguments, Context, Next) ->
    Next(Arguments, Context);
retry(Times, Arguments, Context, Next) ->
    try
        Next(Arguments, Context)
    catch
        error:flaky -> retry(Times - 1, Arguments, Context, Next)
    end.

%% "It sees every return, `{input_required, ...}` too", and each round.
questions_are_seen(_) ->
    Test = self(),
    Seen = fun(Arguments, Context, Next) ->
        Return = Next(Arguments, Context),
        Test ! {returned, maps:get(input, Context, none), Return},
        Return
    end,
    Asks = fun(_, #{input := #{~"name" := #{~"content" := #{~"who" := Who}}}}) -> Who;
              (_, _) -> {input_required, #{~"name" => question()}}
           end,
    Server = serve(#{middleware => [Seen], tools => [#{name => ~"asks", handler => Asks}]}),
    Answer = #{~"action" => ~"accept", ~"content" => #{~"who" => ~"Ada"}},
    Params = #{~"name" => ~"asks", ~"arguments" => #{}},
    Check = fun() ->
        receive {returned, none, {input_required, #{~"name" := _}}} -> ok end,
        receive {returned, #{~"name" := Answer}, ~"Ada"} -> ok end
    end,
    Meta = #{~"_meta" => #{~"io.modelcontextprotocol/clientCapabilities" => elicitation()}},
    {_, Line} = Stateless = open(~"2026-07-28", Server),
    #{~"resultType" := ~"input_required"} =
        result(ask(Stateless, ~"tools/call", maps:merge(Params, Meta))),
    ~"Ada" = text(ask(Stateless, ~"tools/call",
                      maps:merge(Params#{~"inputResponses" => #{~"name" => Answer}}, Meta))),
    ok = Check(),
    ok = erlmcp_test_line:close(Line),
    Session = erlmcp_test_line:connect(Server),
    #{~"params" := Given} = Initialize = erlmcp_test_line:initialize_request(0, ~"2025-11-25"),
    send(Session, Initialize#{~"params" := Given#{~"capabilities" => elicitation()}}),
    #{~"id" := 0} = recv(Session),
    send(Session, erlmcp_test_line:request(1, ~"tools/call", Params)),
    #{~"id" := Id, ~"method" := ~"elicitation/create"} = recv(Session),
    send(Session, #{~"jsonrpc" => ~"2.0", ~"id" => Id, ~"result" => Answer}),
    ~"Ada" = text(recv(Session)),
    ok = Check().

question() ->
    erlmcp_input:elicit(~"Who?", #{type => object, properties => #{who => #{type => string}}}).

elicitation() -> #{~"elicitation" => #{~"form" => #{}}}.

crashes_are_the_callers_alone(_) ->
    Server = serve(#{tools => [#{name => ~"broken", middleware => [fun(_, _, _) -> error(x) end],
                                 handler => fun(_, _) -> ~"" end},
                               #{name => ~"whole", handler => fun(_, _) -> ~"whole" end}]}),
    [begin
         Client = open(Era, Server),
         -32603 = code(call(Client, ~"broken", #{})),
         ~"whole" = text(call(Client, ~"whole", #{}))
     end || Era <- eras()].

%% What is added to a running server has its middleware too.
added_definitions_are_wrapped(_) ->
    Server = serve(#{middleware => [fun(Arguments, Context, Next) ->
                                        [~"wrapped", Next(Arguments, Context)]
                                    end]}),
    ok = erlmcp:add(Server, tool, #{name => ~"late", handler => fun(_, _) -> ~"late" end}),
    [#{~"content" := [#{~"text" := ~"wrapped"}, #{~"text" := ~"late"}]} =
         result(call(open(Era, Server), ~"late", #{})) || Era <- eras()].

%% `server/0` may have it, like every option.
modules_have_middleware(_) ->
    Server = serve(#{handler => ?MODULE}),
    [~"of the module" = text(call(open(Era, Server), ~"echo", #{})) || Era <- eras()].

server() ->
    #{name => ~"wrapped", version => ~"1",
      middleware => [fun(_, Context, Next) -> Next(#{~"text" => ~"of the module"}, Context) end]}.
