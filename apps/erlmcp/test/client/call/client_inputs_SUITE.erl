-module(client_inputs_SUITE).
-moduledoc """
Tests for a client's answers to the requests of a server, which the funs of its options make: each
kind of request, and several at once.
""".

-export([suite/0, all/0]).
-export([each_request_has_its_answer/1, what_is_not_declared_is_refused/1,
         content_fits_its_schema/1, some_are_for_the_user/1, as_many_as_may_be_at_once/1,
         the_first_error_ends_the_others/1, an_answer_in_time/1]).

-define(WAIT, 30_000).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [each_request_has_its_answer, what_is_not_declared_is_refused, content_fits_its_schema,
     some_are_for_the_user, as_many_as_may_be_at_once, the_first_error_ends_the_others,
     an_answer_in_time].

respond(Method, Params, Inputs) ->
    erlmcp_client_inputs:respond(#{~"method" => Method, ~"params" => Params}, Inputs).

each_request_has_its_answer(_) ->
    {ok, #{}} = respond(~"ping", #{}, #{}),
    Url = #{~"mode" => ~"url", ~"url" => ~"https://a.example"},
    [{Return, {ok, #{~"action" := Action}}} =
         {Return, respond(~"elicitation/create", Params, #{Key => fun(_) -> Return end})}
     || {Params, Key} <- [{Url, elicit_url}, {#{~"mode" => ~"form"}, elicit}, {#{}, elicit}],
        {Return, Action} <- [{case Key of elicit -> {accept, #{}}; _ -> accept end, ~"accept"},
                             {decline, ~"decline"}, {cancel, ~"cancel"}]],
    {ok, #{~"role" := ~"assistant"}} =
        respond(~"sampling/createMessage", #{}, #{sample => fun(#{}) ->
            {ok, #{~"role" => ~"assistant"}}
        end}),
    {error, -1, ~"not now"} =
        respond(~"sampling/createMessage", #{}, #{sample => fun(_) -> {error, ~"not now"} end}),
    Roots = [#{~"uri" => ~"file:///a"}],
    [{ok, #{~"roots" := Roots}} = respond(~"roots/list", #{}, #{roots => Given})
     || Given <- [Roots, fun() -> Roots end]].

what_is_not_declared_is_refused(_) ->
    Elicit = #{elicit => fun(_) -> decline end},
    [{Method, {error, -32601, <<Method:(byte_size(Method))/binary, _/binary>>}} =
         {Method, respond(Method, Params, Inputs)}
     || {Method, Params, Inputs} <- [
            {~"elicitation/create", #{}, #{}},
            {~"elicitation/create", #{~"mode" => ~"url"}, Elicit},
            {~"elicitation/create", #{~"mode" => ~"other"}, Elicit},
            {~"elicitation/create", #{}, #{elicit_url => fun(_) -> accept end}},
            {~"sampling/createMessage", #{}, Elicit}, {~"roots/list", #{}, Elicit},
            {~"unknown", #{}, Elicit}]],
    [{error, -32600, _} = erlmcp_client_inputs:respond(Request, Elicit)
     || Request <- [#{}, [], none, #{~"params" => #{}}, #{~"method" => 1}]],
    %% The fun would get what is no map.
    [{error, -32602, ~"params: expected an object"} = respond(Method, Params, Elicit)
     || Method <- [~"elicitation/create", ~"ping"], Params <- [[], 1, ~"text"]],
    {ok, #{~"roots" := []}} = respond(~"roots/list", null, #{roots => []}).

%% Defaults are filled in, and what does not fit is the client's own error.
content_fits_its_schema(_) ->
    Schema = #{~"type" => ~"object", ~"required" => [~"name"],
               ~"properties" => #{~"name" => #{~"type" => ~"string"},
                                  ~"size" => #{~"type" => ~"integer", ~"default" => 7}}},
    Ask = fun(Requested, Content) ->
        respond(~"elicitation/create", #{~"requestedSchema" => Requested},
                #{elicit => fun(_) -> {accept, Content} end})
    end,
    {ok, #{~"content" := #{~"name" := ~"ada", ~"size" := 7}}} = Ask(Schema, #{name => ada}),
    {ok, #{~"content" := #{~"name" := ~"ada", ~"size" := 8}}} =
        Ask(Schema, #{~"name" => ~"ada", ~"size" => 8}),
    {error, -32603, <<"the answer does not fit: ", _/binary>>} = Ask(Schema, #{}),
    {error, -32602, ~"requestedSchema: expected a JSON Schema"} = Ask(#{~"type" => 1}, #{}).

some_are_for_the_user(_) ->
    Fun = fun(_) -> cancel end,
    [{Method, Inputs, Expected} =
         {Method, Inputs, erlmcp_client_inputs:is_for_user(Method, client(Inputs, 1))}
     || {Method, Inputs, Expected} <- [
            {~"elicitation/create", #{elicit => Fun}, true},
            {~"elicitation/create", #{elicit_url => Fun}, true},
            {~"elicitation/create", #{sample => Fun}, false},
            {~"sampling/createMessage", #{sample => Fun}, true},
            {~"sampling/createMessage", #{elicit => Fun}, false},
            {~"roots/list", #{roots => fun() -> [] end}, true},
            {~"roots/list", #{roots => []}, false},
            {~"roots/list", #{}, false}, {~"ping", #{elicit => Fun}, false}]].

client(Inputs, Timeout) ->
    #{settings => #{inputs => Inputs, input_timeout => Timeout}}.

gather(Requests, Inputs, Timeout) ->
    erlmcp_client_inputs:gather(Requests, #{}, client(Inputs, Timeout)).

request(Method) ->
    #{~"method" => Method, ~"params" => #{}}.

as_many_as_may_be_at_once(_) ->
    Gathered = fun(Count) ->
        gather(#{integer_to_binary(N) => request(~"ping") || N <- lists:seq(1, Count)}, #{}, ?WAIT)
    end,
    {ok, Answers} = Gathered(16),
    16 = map_size(Answers),
    {ok, #{}} = Gathered(0),
    {error, {input, ~"", {too_many, 16}}} = Gathered(17).

%% The one that is still thought about ends.
the_first_error_ends_the_others(_) ->
    Test = self(),
    Inputs = #{sample => fun(_) -> Test ! {asked, self()}, receive fail -> {error, ~"no"} end end,
               elicit => fun(_) -> Test ! {thinks, self()}, receive never -> ok end end},
    Gathering = spawn_link(fun() ->
        Test ! {self(), gather(#{~"a" => request(~"sampling/createMessage"),
                                 ~"b" => request(~"elicitation/create")}, Inputs, ?WAIT)}
    end),
    Thinks = receive {thinks, Pid} -> monitor(process, Pid) end,
    receive {asked, Asked} -> Asked ! fail end,
    receive {Gathering, Outcome} -> {error, {input, ~"a", ~"no"}} = Outcome end,
    receive {'DOWN', Thinks, process, _, killed} -> ok after ?WAIT -> error(thinks_on) end.

an_answer_in_time(_) ->
    Elicit = #{~"a" => request(~"elicitation/create")},
    {error, {input, ~"a", timeout}} =
        gather(Elicit, #{elicit => fun(_) -> receive never -> ok end end}, 50),
    {error, {input, ~"a", crashed}} =
        gather(Elicit, #{elicit => fun(_) -> exit(on_purpose) end}, ?WAIT).
