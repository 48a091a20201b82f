-module(erlmcp_bench_workflow).
-moduledoc """
A workflow: a client of its own, from its connection to its end, as a list of steps. What each step
gives is held against what the fixture has (`m:erlmcp_bench_fixture`).
""".

-export([run/2]).

-export_type([reason/0]).

-doc "The step that went wrong, and how.".
-type reason() ::
    {erlmcp_bench_workloads:step(), erlmcp_client:reason() | {unexpected, term()} | term()}.

-doc "Does the steps with a client of this target, which is linked to the calling process.".
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
    Text = said(Name, Arguments),
    expected(erlmcp_client:call_tool(Client, Name, Arguments),
             fun(#{~"content" := [#{~"text" := Said}]}) -> Said =:= Text;
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

said(~"echo", #{~"text" := Text}) -> Text;
said(~"add", #{~"a" := A, ~"b" := B}) -> integer_to_binary(A + B).
