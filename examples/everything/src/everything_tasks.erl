-module(everything_tasks).
-moduledoc """
The tools of the everything server that run as tasks, if the client has tasks. `greet` never does,
for comparison.
""".

-export([tools/0, call/3]).

-doc "Returns the tools in the order in which clients see them.".
-spec tools() -> [map()].
tools() ->
    [tool(~"greet", ~"Greets by name, at once", #{name => string}, #{}),
     tool(~"slow_compute", ~"Takes so many seconds", #{seconds => number, label => string},
          #{task => optional}),
     tool(~"failing_job", ~"Returns an error after a second", #{}, #{task => required}),
     tool(~"protocol_error_job", ~"Crashes", #{}, #{task => optional}),
     tool(~"confirm_delete", ~"Asks before it deletes nothing", #{filename => string},
          #{task => optional}),
     tool(~"multi_input", ~"Asks two things at once", #{}, #{task => optional}),
     tool(~"test_tool_with_task", ~"Asks for a name, and then goes on as a task", #{},
          #{task => required, task_starts => on_return})].

tool(Name, Description, Types, More) ->
    Properties = #{Property => #{type => Type} || Property := Type <- Types},
    More#{name => Name, description => Description,
          input_schema => #{type => object, properties => Properties}}.

-doc "Returns the result of a tool, or its input requests.".
-spec call(Name :: binary(), Arguments :: map(), Context :: map()) -> term().
call(~"greet", #{~"name" := Name}, _) ->
    <<"Hello, ", Name/binary, "!">>;
call(~"slow_compute", #{~"seconds" := Seconds} = Arguments, Context) when
    is_number(Seconds), Seconds >= 0, Seconds =< 3600
->
    ok = erlmcp:progress(Context, 1, #{message => ~"computing"}),
    timer:sleep(trunc(Seconds * 1000)),
    <<"Computed ", (maps:get(~"label", Arguments, ~"it"))/binary>>;
call(~"failing_job", _, _) ->
    timer:sleep(1000),
    {error, ~"This job always fails"};
call(~"protocol_error_job", _, _) ->
    error(asked_to_crash);
call(~"confirm_delete", _, #{input := #{~"confirm" := #{~"content" := #{~"confirm" := true}}}}) ->
    ~"Deleted";
call(~"confirm_delete", _, #{input := _}) ->
    ~"Not deleted";
call(~"confirm_delete", #{~"filename" := File}, _) ->
    {input_required, #{~"confirm" => form(<<"Delete ", File/binary, "?">>, confirm, boolean)}};
call(~"multi_input", _, #{input := Answers}) ->
    iolist_to_binary(json:encode(Answers));
call(~"multi_input", _, _) ->
    {input_required, #{~"name" => form(~"Your name?", name, string),
                       ~"confirm" => form(~"Are you sure?", confirm, boolean)}};
call(~"test_tool_with_task", _, #{input := #{~"user_name" := #{~"content" := Content}}}) ->
    #{~"name" := Name} = Content,
    {task, fun(_) -> <<"Hello, ", Name/binary, "!">> end};
call(~"test_tool_with_task", _, _) ->
    {input_required, #{~"user_name" => form(~"What is your name?", name, string)}};
call(Name, _, _) ->
    {error, <<Name/binary, ": the arguments do not fit the input schema">>}.

form(Message, Property, Type) ->
    erlmcp_input:elicit(Message, #{type => object, properties => #{Property => #{type => Type}},
                                   required => [Property]}).
