-module(everything_input).
-moduledoc """
The tools and the prompt of the everything server that request input from the client. Each is called
again with the answers, whatever the era of the client.
""".

-export([tools/0, call/3, prompt/1]).

-define(ROUNDS, "test_input_required_result_").

-doc "Returns the tools in the order in which clients see them.".
-spec tools() -> [map()].
tools() ->
    [tool(~"test_sampling", ~"Has the client's model complete a prompt", [~"prompt"]),
     tool(~"test_elicitation", ~"Asks the user with a form", [~"message"]),
     tool(~"test_elicitation_sep1034_defaults", ~"A form with defaults of every type", []),
     tool(~"test_elicitation_sep1330_enums", ~"A form with every kind of enumeration", []),
     tool(~"test_missing_capability", ~"Needs a client that offers sampling", []),
     tool(~"test_streaming_elicitation", ~"Asks the user whether to go on", [])
     | [tool(<<?ROUNDS, Name/binary>>, Description, []) || {Name, Description} <- rounds()]].

rounds() ->
    [{~"elicitation", ~"Asks for a name"},
     {~"sampling", ~"Asks the client's model a question"},
     {~"list_roots", ~"Asks for the client's roots"},
     {~"request_state", ~"Asks for a confirmation, and remembers that it did"},
     {~"multiple_inputs", ~"Asks three things at once"},
     {~"multi_round", ~"Asks two things, one after the other"},
     {~"tampered_state", ~"Asks for a confirmation; refuses a state that was changed"},
     {~"capabilities", ~"Asks what the client can answer"}].

tool(Name, Description, Strings) ->
    #{name => Name, description => Description,
      input_schema => #{type => object, properties => #{String => #{type => string}
                                                        || String <- Strings},
                        required => Strings}}.

-doc "Returns the result of a tool, or its input requests.".
-spec call(Name :: binary(), Arguments :: map(), Context :: map()) -> term().
call(~"test_sampling", _, #{input := #{~"sample" := #{~"content" := Content}}}) ->
    <<"LLM response: ", (text(Content))/binary>>;
call(~"test_sampling", #{~"prompt" := Prompt}, _) ->
    {input_required, #{~"sample" => sample(Prompt, 100)}};
call(~"test_elicitation", _, #{input := #{~"form" := Answer}}) ->
    <<"User response: ", (answered(Answer))/binary>>;
call(~"test_elicitation", #{~"message" := Message}, _) ->
    Properties = #{username => {string, ~"User's response"},
                   email => {string, ~"User's email address"}},
    {input_required, #{~"form" => erlmcp_input:elicit(Message, Properties)}};
call(<<"test_elicitation_sep", _/binary>>, _, #{input := #{~"form" := Answer}}) ->
    <<"Elicitation completed: ", (answered(Answer))/binary>>;
call(~"test_elicitation_sep1034_defaults", _, _) ->
    ask(~"Please check the defaults", optional(defaults()));
call(~"test_elicitation_sep1330_enums", _, _) ->
    ask(~"Please choose", optional(enumerations()));
call(~"test_missing_capability", _, #{input := #{~"sample" := #{~"content" := Content}}}) ->
    text(Content);
call(~"test_missing_capability", _, _) ->
    {input_required, #{~"sample" => sample(~"Say hello", 10)}};
call(~"test_streaming_elicitation", _, #{input := #{~"form" := Answer}}) ->
    answered(Answer);
call(~"test_streaming_elicitation", _, Context) ->
    ok = erlmcp:progress(Context, 50, #{total => 100}),
    ask(~"Go on?", #{confirm => boolean});
call(<<?ROUNDS, Round/binary>>, _, Context) ->
    round(Round, Context).

round(~"elicitation", #{input := #{~"user_name" := #{~"content" := #{~"name" := Name}}}}) ->
    <<"Hello, ", Name/binary, "!">>;
round(~"elicitation", _) ->
    {input_required, #{~"user_name" => name(~"What is your name?")}};
round(~"sampling", #{input := #{~"capital_question" := #{~"content" := Content}}}) ->
    text(Content);
round(~"sampling", _) ->
    {input_required, #{~"capital_question" => sample(~"What is the capital of France?", 100)}};
round(~"list_roots", #{input := #{~"client_roots" := #{~"roots" := Roots}}}) ->
    iolist_to_binary([[Uri, $\n] || #{~"uri" := Uri} <- Roots]);
round(~"list_roots", _) ->
    {input_required, #{~"client_roots" => erlmcp_input:roots()}};
round(Round, #{state := asked, input := #{~"confirm" := #{~"action" := Action}}}) when
    Round =:= ~"request_state"; Round =:= ~"tampered_state"
->
    <<"state-ok: ", Action/binary>>;
round(Round, _) when Round =:= ~"request_state"; Round =:= ~"tampered_state" ->
    Confirm = erlmcp_input:elicit(~"Please confirm", #{ok => boolean}),
    {input_required, #{~"confirm" => Confirm}, asked};
round(~"multiple_inputs", #{input := #{~"user_name" := #{~"content" := #{~"name" := Name}},
                                       ~"greeting" := #{~"content" := Greeting},
                                       ~"client_roots" := #{~"roots" := Roots}}}) ->
    <<(text(Greeting))/binary, " ", Name/binary, " of ",
      (integer_to_binary(length(Roots)))/binary, " roots">>;
round(~"multiple_inputs", _) ->
    {input_required, #{~"user_name" => name(~"What is your name?"),
                       ~"greeting" => sample(~"Generate a greeting", 50),
                       ~"client_roots" => erlmcp_input:roots()}, asked};
round(~"multi_round", #{state := {named, Name},
                        input := #{~"step2" := #{~"content" := #{~"color" := Color}}}}) ->
    <<Name/binary, " likes ", Color/binary>>;
round(~"multi_round", #{state := started,
                        input := #{~"step1" := #{~"content" := #{~"name" := Name}}}}) ->
    Color = erlmcp_input:elicit(~"Step 2: What is your favorite color?",
                                #{color => string}),
    {input_required, #{~"step2" => Color}, {named, Name}};
round(~"multi_round", _) ->
    {input_required, #{~"step1" => name(~"Step 1: What is your name?")}, started};
round(~"capabilities", #{input := #{~"answer" := Answer}}) ->
    iolist_to_binary(json:encode(Answer));
round(~"capabilities", #{client_capabilities := #{~"sampling" := _}}) ->
    {input_required, #{~"answer" => sample(~"Say hello", 10)}};
round(~"capabilities", _) ->
    {input_required, #{~"answer" => name(~"What is your name?")}}.

-doc "Returns the messages of the prompt that first requests its context.".
-spec prompt(Context :: map()) -> term().
prompt(#{input := #{~"user_context" := #{~"content" := #{~"context" := Given}}}}) ->
    <<"Consider this: ", Given/binary>>;
prompt(_) ->
    Question = ~"What context should the prompt use?",
    {input_required, #{~"user_context" => erlmcp_input:elicit(Question, #{context => string})}}.

ask(Message, Schema) ->
    {input_required, #{~"form" => erlmcp_input:elicit(Message, Schema)}}.

name(Message) ->
    erlmcp_input:elicit(Message, #{name => string}).

sample(Text, MaxTokens) ->
    Message = #{role => user, content => erlmcp_content:text(Text)},
    erlmcp_input:sample(#{messages => [Message], maxTokens => MaxTokens}).

text(#{~"text" := Text}) -> Text;
text([#{~"text" := Text} | _]) -> Text;
text(Content) -> iolist_to_binary(json:encode(Content)).

answered(#{~"action" := Action} = Answer) ->
    Content = iolist_to_binary(json:encode(maps:get(~"content", Answer, #{}))),
    <<"action=", Action/binary, ", content=", Content/binary>>.

optional(Properties) ->
    #{type => object, properties => Properties}.

defaults() ->
    #{name => #{type => string, default => ~"John Doe"},
      age => #{type => integer, default => 30},
      score => #{type => number, default => 95.5},
      status => #{type => string, enum => [~"active", ~"inactive", ~"pending"],
                  default => ~"active"},
      verified => #{type => boolean, default => true}}.

enumerations() ->
    Options = [~"option1", ~"option2", ~"option3"],
    #{untitledSingle => #{type => string, enum => Options},
      titledSingle => #{type => string, oneOf => titled(~"Option")},
      legacyEnum => #{type => string, enum => [~"opt1", ~"opt2", ~"opt3"],
                      enumNames => [~"Option One", ~"Option Two", ~"Option Three"]},
      untitledMulti => #{type => array, items => #{type => string, enum => Options}},
      titledMulti => #{type => array, items => #{anyOf => titled(~"Choice")}}}.

titled(What) ->
    [#{const => Value, title => <<Place/binary, " ", What/binary>>}
     || {Value, Place} <- [{~"value1", ~"First"}, {~"value2", ~"Second"}, {~"value3", ~"Third"}]].
