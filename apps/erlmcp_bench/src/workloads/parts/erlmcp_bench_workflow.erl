-module(erlmcp_bench_workflow).
-moduledoc """
A workflow: a client of its own, from its connection to its end, as a list of steps. The result of
each step is compared with the fixture (`m:erlmcp_bench_fixture`).
""".

-export([run/2]).

-export_type([reason/0]).

-doc "The step that failed, and how.".
-type reason() ::
    {erlmcp_bench_workloads:step(), erlmcp_client:reason() | {unexpected, term()} | term()}.

-doc "Runs the steps with a client of this target. The client is linked to the calling process.".
-spec run([erlmcp_bench_workloads:step()], erlmcp_client:target()) -> ok | {error, reason()}.
run([connect | Steps], Target) ->
    maybe
        {ok, Client} ?= started(Target),
        case steps([connect | Steps], Client) of
            ok ->
                ok;
            {error, _} = Error ->
                ok = erlmcp_client:stop(Client),
                Error
        end
    end.

started(Target) ->
    case erlmcp_client:start_link(Target) of
        {ok, Client} -> {ok, Client};
        {error, Reason} -> {error, {connect, Reason}}
    end.

steps([], _) ->
    ok;
steps([Step | Steps], Client) ->
    case done(Step, Client) of
        ok -> steps(Steps, Client);
        {ok, Given} -> {error, {Step, {unexpected, Given}}};
        {error, Reason} -> {error, {Step, Reason}}
    end.

done(connect, Client) ->
    expected(erlmcp_client:server(Client), fun(#{server_info := #{}}) -> true end);
done(list_tools, Client) ->
    expected(erlmcp_client:list_tools(Client), has(~"name", ~"echo"));
done(list_prompts, Client) ->
    expected(erlmcp_client:list_prompts(Client), has(~"name", ~"test_prompt"));
done(list_resources, Client) ->
    expected(erlmcp_client:list_resources(Client), has(~"uri", ~"file://test.txt"));
done({call_tool, Name, Arguments}, Client) ->
    Text = expected_text(Name, Arguments),
    expected(erlmcp_client:call_tool(Client, Name, Arguments),
             fun(#{~"content" := [#{~"text" := Returned}]}) -> Returned =:= Text;
                (_) -> false
             end);
done({get_prompt, Name}, Client) ->
    expected(erlmcp_client:get_prompt(Client, Name, #{}),
             fun(#{~"messages" := [_]}) -> true;
                (_) -> false
             end);
done({read_resource, Uri}, Client) ->
    expected(erlmcp_client:read_resource(Client, Uri),
             fun(#{~"contents" := [#{~"uri" := Read, ~"text" := _}]}) -> Read =:= Uri;
                (_) -> false
             end);
done(close, Client) ->
    erlmcp_client:stop(Client).

expected({ok, Given}, Is) ->
    case Is(Given) of
        true -> ok;
        false -> {ok, Given}
    end;
expected({error, _} = Error, _) ->
    Error.

has(Field, Value) ->
    fun(Items) -> lists:any(fun(#{Field := Own}) -> Own =:= Value end, Items) end.

expected_text(~"echo", #{~"text" := Text}) -> Text;
expected_text(~"add", #{~"a" := A, ~"b" := B}) -> integer_to_binary(A + B).
