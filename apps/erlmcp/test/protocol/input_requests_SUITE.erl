-module(input_requests_SUITE).
-moduledoc """
The requests of handlers to their clients: which clients can answer them, and which answers reach
the handler. One that a client cannot show waits for ever, and content that does not fit its form
would be the handler's to check.
""".

-export([suite/0, all/0]).
-export([clients_answer_what_they_declare/1, tasks_ask_as_calls_do/1,
         revisions_have_their_requests/1, what_is_missing_is_named_together/1,
         what_is_no_request_is_the_handlers_fault/1,
         requests_are_sent_without_their_ids/1, forms_are_checked_when_they_are_made/1,
         answers_fit_their_forms/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [clients_answer_what_they_declare, tasks_ask_as_calls_do, revisions_have_their_requests,
     what_is_missing_is_named_together, what_is_no_request_is_the_handlers_fault,
     requests_are_sent_without_their_ids, forms_are_checked_when_they_are_made,
     answers_fit_their_forms].

form() -> erlmcp_input:elicit(~"Name?", #{name => string}).
url() -> erlmcp_input:elicit_url(~"Visit", ~"https://example.com", ~"7").
sample() -> erlmcp_input:sample(#{messages => [], maxTokens => 1}).
with_tools() -> erlmcp_input:sample(#{messages => [], maxTokens => 1, tools => []}).

check(Requests, Capabilities, Revision) ->
    Named = #{integer_to_binary(N) => Request || {N, Request} <- lists:enumerate(Requests)},
    case erlmcp_input_requests:check(Named, Capabilities, Revision) of
        ok ->
            ok;
        {error, Refusal} ->
            -32021 = erlmcp_refusal:code(Refusal),
            #{~"data" := #{~"requiredCapabilities" := Required}} =
                json:decode(iolist_to_binary(erlmcp_refusal:encode(Refusal))),
            Required
    end.

clients_answer_what_they_declare(_) ->
    Elicits = fun(Modes) -> #{~"elicitation" => Modes} end,
    Samples = fun(Parts) -> #{~"sampling" => Parts} end,
    [{Request, Capabilities, Expected} =
         {Request, Capabilities, check([Request], Capabilities, '2026-07-28')}
     || {Request, Capabilities, Expected} <- [
            {form(), Elicits(#{}), ok}, {form(), Elicits(#{~"form" => #{}}), ok},
            {form(), Elicits(#{~"form" => #{}, ~"url" => #{}}), ok},
            {form(), Elicits(#{~"url" => #{}}), Elicits(#{~"form" => #{}})},
            {form(), #{}, Elicits(#{})}, {form(), Elicits(true), Elicits(#{~"form" => #{}})},
            {url(), Elicits(#{~"url" => #{}}), ok},
            {url(), Elicits(#{}), Elicits(#{~"url" => #{}})},
            {url(), #{}, Elicits(#{~"url" => #{}})},
            {sample(), Samples(#{}), ok}, {sample(), #{}, Samples(#{})},
            {sample(), Samples(true), Samples(#{})},
            {with_tools(), Samples(#{~"tools" => #{}}), ok},
            {with_tools(), Samples(#{}), Samples(#{~"tools" => #{}})},
            {erlmcp_input:roots(), #{~"roots" => #{}}, ok},
            {erlmcp_input:roots(), #{}, #{~"roots" => #{}}}]].

%% The requests of a task are JSON when a client asks for its result.
tasks_ask_as_calls_do(_) ->
    Declared = [#{}, #{~"elicitation" => #{}}, #{~"elicitation" => #{~"url" => #{}}},
                #{~"sampling" => #{}}, #{~"sampling" => #{~"tools" => #{}}}, #{~"roots" => #{}}],
    [begin
         Json = json:decode(iolist_to_binary(erlmcp_json:encode(Request))),
         Expected = #{~"a" => Json || check([Request], Capabilities, '2025-11-25') =:= ok},
         {Json, Capabilities, Expected} =
             {Json, Capabilities, erlmcp_input_requests:answerable(#{~"a" => Json}, Capabilities,
                                                                   '2025-11-25')}
     end || Request <- [form(), url(), sample(), with_tools(), erlmcp_input:roots()],
            Capabilities <- Declared].

%% Whatever the client declares.
revisions_have_their_requests(_) ->
    All = #{~"elicitation" => #{~"form" => #{}, ~"url" => #{}}, ~"roots" => #{},
            ~"sampling" => #{~"tools" => #{}}},
    Requests = [form(), url(), sample(), with_tools(), erlmcp_input:roots()],
    [{Revision, Expected} = {Revision, [check([Request], All, Revision) =:= ok
                                        || Request <- Requests]}
     || {Revision, Expected} <- [{'2025-03-26', [false, false, true, false, true]},
                                 {'2025-06-18', [true, false, true, false, true]},
                                 {'2025-11-25', [true, true, true, true, true]},
                                 {'2026-07-28', [true, true, true, true, true]}]].

what_is_missing_is_named_together(_) ->
    Both = #{~"elicitation" => #{~"form" => #{}, ~"url" => #{}}},
    Both = check([form(), url()], #{~"elicitation" => #{~"other" => #{}}}, '2026-07-28'),
    All = #{~"elicitation" => #{~"url" => #{}}, ~"roots" => #{},
            ~"sampling" => #{~"tools" => #{}}},
    All = check([url(), sample(), with_tools(), erlmcp_input:roots()], #{}, '2026-07-28'),
    #{~"roots" := _} = Missing = check([sample(), erlmcp_input:roots()], #{~"sampling" => #{}},
                                       '2026-07-28'),
    1 = map_size(Missing),
    %% The text names each capability once.
    {error, Refusal} = erlmcp_input_requests:check(
        #{~"1" => form(), ~"2" => form(), ~"3" => url(), ~"4" => erlmcp_input:roots()}, #{},
        '2026-07-28'),
    ~"the client lacks capabilities that this request needs: elicitation, roots" =
        erlmcp_refusal:message(Refusal),
    ok = check([], #{}, '2026-07-28').

what_is_no_request_is_the_handlers_fault(_) ->
    [try check([Term], #{}, '2026-07-28') of
         Checked -> error({checked, Term, Checked})
     catch
         error:{bad_return, input_request, Term, _} -> ok
     end || Term <- [#{method => ~"tools/list", params => #{}}, #{}, none,
                     #{method => ~"roots/list"}, #{method => ~"roots/list", params => []},
                     #{method => ~"sampling/createMessage"}, #{method => ~"elicitation/create"}]].

requests_are_sent_without_their_ids(_) ->
    #{~"a" := #{~"method" := ~"elicitation/create", ~"params" := Params},
      ~"b" := #{~"method" := ~"roots/list", ~"params" := None}} =
        json:decode(iolist_to_binary(
            erlmcp_input_requests:encode(#{~"a" => url(), ~"b" => erlmcp_input:roots()}))),
    #{~"mode" := ~"url", ~"message" := ~"Visit", ~"url" := ~"https://example.com"} = Params,
    {3, 0} = {map_size(Params), map_size(None)}.

forms_are_checked_when_they_are_made(_) ->
    Requests = #{~"f" => form(), ~"u" => url(), ~"s" => sample()},
    #{~"f" := {form, #{~"type" := ~"object"}}, ~"u" := other, ~"s" := other} =
        erlmcp_input_requests:forms(Requests, #{}),
    Broken = (form())#{params := #{message => ~"?", requestedSchema => #{~"type" => 1}}},
    try erlmcp_input_requests:forms(#{~"f" => Broken}, #{}) of
        Forms -> error({made, Forms})
    catch
        error:{bad_return, requested_schema, _} -> ok
    end.

%% An answer that nobody asked for is nobody's, and one that is missing may come later.
answers_fit_their_forms(_) ->
    Dated = erlmcp_input:elicit(~"When?", #{~"type" => ~"object", ~"required" => [~"day"],
                                            ~"properties" => #{~"day" => #{
                                                ~"type" => ~"string", ~"format" => ~"date"}}}),
    Forms = erlmcp_input_requests:forms(#{~"f" => Dated, ~"s" => sample()}, #{}),
    Given = fun(Answer) -> erlmcp_input_requests:answers(Forms, #{~"f" => Answer}) end,
    Accepts = fun(Content) -> #{~"action" => ~"accept", ~"content" => Content} end,
    Fits = Accepts(#{~"day" => ~"2026-11-24"}),
    {ok, #{~"f" := Fits} = One} = Given(Fits),
    1 = map_size(One),
    [{Content, {error, _}} = {Content, Given(Accepts(Content))}
     || Content <- [#{}, #{~"day" => 1}, #{~"day" => ~"tomorrow"}]],
    {error, _} = Given(#{~"action" => ~"accept"}),
    [begin
         {ok, #{~"f" := Left}} = Given((Accepts(#{~"day" => 1}))#{~"action" := Action}),
         {Action, Left} = {Action, #{~"action" => Action}}
     end || Action <- [~"decline", ~"cancel"]],
    [{Answer, {error, _}} = {Answer, Given(Answer)}
     || Answer <- [#{}, #{~"action" => ~"agree"}, #{~"action" => 1}]],
    %% What is no form is the handler's to read.
    {ok, #{~"s" := #{~"role" := 1}} = Other} = erlmcp_input_requests:answers(
        Forms, #{~"s" => #{~"role" => 1}, ~"unasked" => #{}}),
    1 = map_size(Other),
    {ok, #{}} = erlmcp_input_requests:answers(Forms, #{}).
