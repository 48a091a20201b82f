-module(visit_features).
-moduledoc "The checks of a visit, in the order in which they are made.".

-export([of_visit/1, inputs/1]).

%% Milliseconds to wait for notifications of a server.
-define(SOON, 5_000).
-define(ALWAYS, {'2024-11-05', '2026-07-28'}).
-define(SINCE_2025_06_18, {'2025-06-18', '2026-07-28'}).
-define(SINCE_2025_11_25, {'2025-11-25', '2026-07-28'}).
-define(SESSIONS, {'2024-11-05', '2025-11-25'}).
-define(ADA, #{~"name" => ~"Ada", ~"ok" => true, ~"color" => ~"blue"}).

-doc "Returns the features that the server of this visit has in its revision, with their checks.".
-spec of_visit(map()) -> [{binary(), fun((map()) -> term())}].
of_visit(#{shelf := Shelf, revision := Revision}) ->
    [{Feature, Body} || {Feature, Key, {First, Last}, Body} <- features(),
                        is_map_key(Key, Shelf), First =< Revision, Revision =< Last].

%% The feature, the shelf's entries that it needs, its revisions, and the check.
features() ->
    [{~"connect: negotiate, who the server is", name, ?ALWAYS, fun connect/1},
     {~"tools: list, in all its pages", tools, ?ALWAYS, fun list_tools/1},
     {~"tools: call, text of every plane", echo, ?ALWAYS, fun echo/1},
     {~"tools: structured content", structured, ?SINCE_2025_06_18, fun structured/1},
     {~"tools: an error as the result", failing, ?ALWAYS, fun failing/1},
     {~"tools: one that is not there", tools, ?ALWAYS, fun no_tool/1},
     {~"tools: 20 calls at once", echo, ?ALWAYS, fun at_once/1},
     {~"tools: an argument in a header", header, ?ALWAYS, fun header/1},
     {~"progress, while the call runs", progress, ?ALWAYS, fun progress/1},
     {~"log messages, from the level on", logs, ?ALWAYS, fun logs/1},
     {~"cancellation", long, ?ALWAYS, fun cancel/1},
     {~"a deadline that passes", long, ?ALWAYS, fun deadline/1},
     {~"elicitation: a form, accepted", form, ?SINCE_2025_06_18, fun accepted/1},
     {~"elicitation: a form, declined", form, ?SINCE_2025_06_18, fun declined/1},
     {~"elicitation: a URL", url, ?SINCE_2025_11_25, fun url/1},
     {~"elicitation: two rounds", rounds, ?SINCE_2025_06_18, fun(V) -> asks(rounds, V) end},
     {~"sampling", sample, ?ALWAYS, fun(V) -> asks(sample, V) end},
     {~"roots", roots, ?ALWAYS, fun(V) -> asks(roots, V) end},
     {~"resources: list", resources, ?ALWAYS, fun list_resources/1},
     {~"resources: text", text, ?ALWAYS, fun read_text/1},
     {~"resources: binary", blob, ?ALWAYS, fun read_blob/1},
     {~"resources: templates", template, ?ALWAYS, fun template/1},
     {~"resources: one that is not there", resources, ?ALWAYS, fun no_resource/1},
     %% These come before other subscriptions. When a cancelled subscription ends, the Go SDK
     %% forgets those of lists.
     {~"list changes: tools", changes, ?ALWAYS, fun changes/1},
     {~"resource changes", updates, ?ALWAYS, fun updates/1},
     {~"prompts: list, get", prompt, ?ALWAYS, fun prompt/1},
     {~"prompts: one that is not there", prompt, ?ALWAYS, fun no_prompt/1},
     {~"completion", completion, ?ALWAYS, fun complete/1},
     {~"ping", name, ?SESSIONS, fun ping/1}].

-doc "Returns the answers of the visitor: forms with a name, or no answer while the flag is up.".
-spec inputs(atomics:atomics_ref()) -> map().
inputs(Declines) ->
    #{elicit => fun(_) ->
          case atomics:get(Declines, 1) of
              0 -> {accept, ?ADA};
              1 -> decline
          end
      end,
      elicit_url => fun(#{~"url" := <<"https://example.com/", _/binary>>}) -> accept end,
      sample => fun(#{~"messages" := [_ | _]}) ->
          {ok, #{~"role" => ~"assistant", ~"model" => ~"none", ~"stopReason" => ~"endTurn",
                 ~"content" => #{~"type" => ~"text", ~"text" => ~"something"}}}
      end,
      roots => [#{~"uri" => ~"file:///work", ~"name" => ~"work"}]}.

connect(#{client := Client, revision := Revision, shelf := Shelf}) ->
    #{name := Name, instructions := Part} = Shelf,
    {ok, #{revision := Revision, server_info := #{~"name" := Name, ~"version" := _},
           capabilities := #{~"tools" := #{}, ~"resources" := #{}, ~"prompts" := #{}}} = Server} =
        erlmcp_client:server(Client),
    contains(Part, maps:get(instructions, Server)).

list_tools(#{client := Client, shelf := #{tools := Wanted, paged := Paged}}) ->
    {ok, Tools} = erlmcp_client:list_tools(Client),
    Names = [Name || #{~"name" := Name, ~"inputSchema" := #{~"type" := ~"object"}} <- Tools],
    [] = Wanted -- Names,
    Names = lists:uniq(Names),
    {ok, First} = erlmcp_client:request(Client, ~"tools/list", #{}),
    Paged = is_map_key(~"nextCursor", First).

echo(V) ->
    lists:foreach(fun(Text) -> echoes(Text, V) end,
                  [~"plain", ~"\"quotes\", \\ and \n lines", ~"Ω, 漢, 𝄞, 👩‍🚀",
                   binary:copy(~"0123456789é", 20_000)]).

echoes(Text, #{shelf := #{echo := {Tool, Argument, Answer}}} = V) ->
    Expected = Answer(Text),
    [Expected] = texts(called(Tool, #{Argument => Text}, V)),
    ok.

structured(#{shelf := #{structured := {Tool, Arguments, Content}}} = V) ->
    #{~"structuredContent" := Structured} = called(Tool, Arguments, V),
    true = Structured == Content.

failing(#{client := Client, shelf := #{failing := {Tool, Arguments, Part}}}) ->
    {ok, #{~"isError" := true} = Result} = erlmcp_client:call_tool(Client, Tool, Arguments),
    contains(Part, iolist_to_binary(texts(Result))).

%% Some SDKs answer with a refusal, and some with a result.
no_tool(#{client := Client}) ->
    case erlmcp_client:call_tool(Client, ~"not_there", #{}) of
        {error, {rpc, #{code := Code, message := Message}}} when is_integer(Code) ->
            true = is_binary(Message);
        {ok, #{~"isError" := true}} ->
            ok
    end.

at_once(#{client := Client, shelf := #{echo := {Tool, Argument, Answer}}}) ->
    Texts = [integer_to_binary(Number) || Number <- lists:seq(1, 20)],
    References = [begin
        {ok, Reference} = erlmcp_client:async(Client, {call_tool, Tool, #{Argument => Text}}),
        {Reference, Answer(Text)}
    end || Text <- Texts],
    lists:foreach(fun({Reference, Expected}) ->
                      {ok, Result} = outcome(Reference),
                      [Expected] = texts(Result)
                  end, References).

header(#{shelf := #{header := {Tool, Arguments, Text}}} = V) ->
    [Text] = texts(called(Tool, Arguments, V)).

progress(#{client := Client, shelf := #{progress := {Tool, Arguments, Steps}}}) ->
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, Tool, Arguments}),
    lists:foreach(fun({Done, Total}) ->
                      #{~"progress" := Now, ~"total" := Most} = event(Reference, progress),
                      true = Now == Done andalso Most == Total
                  end, Steps),
    {ok, #{~"content" := _}} = outcome(Reference).

%% They come on the call's stream. On a shared connection they belong to no call.
logs(#{client := Client, shelf := #{logs := {Tool, Expected}}} = V) ->
    {ok, Reference} = erlmcp_client:subscribe(Client, #{logs => true}),
    {ok, _} = erlmcp_client:async(Client, {call_tool, Tool, #{}}, #{log_level => info}),
    lists:foreach(fun({Level, Text}) ->
                      #{~"level" := Level, ~"data" := Text} = logged()
                  end, Expected),
    ok = erlmcp_client:unsubscribe(Client, Reference),
    echoes(~"after the log messages", V).

logged() ->
    receive {erlmcp, _, {log, Params}} -> Params after ?SOON -> exit(no_log_message) end.

cancel(#{client := Client, shelf := #{long := {Tool, Arguments}}} = V) ->
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, Tool, Arguments}),
    running(Reference, V),
    ok = erlmcp_client:cancel(Client, Reference),
    {error, cancelled} = outcome(Reference),
    echoes(~"after the cancellation", V).

%% A tool that reports its progress has started. Otherwise a later call must have been answered.
running(_, #{shelf := #{long := {~"slow_tool", _}}} = V) -> echoes(~"behind it", V);
running(Reference, _) -> #{} = event(Reference, progress).

deadline(#{client := Client, shelf := #{long := {Tool, Arguments}}} = V) ->
    {error, {timeout, 200}} =
        erlmcp_client:call_tool(Client, Tool, Arguments, #{timeout => 200, max_timeout => 200}),
    echoes(~"after the deadline", V).

accepted(#{shelf := #{form := {Tool, Arguments, Text, _}}} = V) ->
    contains(Text, iolist_to_binary(texts(called(Tool, Arguments, V)))).

declined(#{shelf := #{form := {Tool, Arguments, _, Text}}, declines := Declines} = V) ->
    ok = atomics:put(Declines, 1, 1),
    try
        contains(Text, iolist_to_binary(texts(called(Tool, Arguments, V))))
    after
        atomics:put(Declines, 1, 0)
    end.

url(V) ->
    asks(url, V).

asks(Key, #{shelf := Shelf} = V) ->
    #{Key := {Tool, Arguments, Text}} = Shelf,
    contains(Text, iolist_to_binary(texts(called(Tool, Arguments, V)))).

list_resources(#{client := Client, shelf := #{resources := Wanted}}) ->
    {ok, Resources} = erlmcp_client:list_resources(Client),
    [] = Wanted -- [Uri || #{~"uri" := Uri, ~"name" := _} <- Resources].

read_text(#{shelf := #{text := {Uri, Text}}} = V) ->
    #{~"uri" := Uri, ~"mimeType" := ~"text/plain", ~"text" := Found} = content(Uri, V),
    contains(Text, Found).

read_blob(#{shelf := #{blob := {Uri, Bytes}}} = V) ->
    #{~"uri" := Uri, ~"blob" := Blob} = content(Uri, V),
    Bytes = base64:decode(Blob).

template(#{client := Client, shelf := #{template := {Template, Uri, Text}}} = V) ->
    {ok, Templates} = erlmcp_client:list_resource_templates(Client),
    true = lists:member(Template, [Found || #{~"uriTemplate" := Found} <- Templates]),
    #{~"uri" := Uri, ~"text" := Found} = content(Uri, V),
    contains(Text, Found).

no_resource(#{client := Client}) ->
    {error, {rpc, #{code := Code}}} = erlmcp_client:read_resource(Client, ~"note://not/there"),
    true = lists:member(Code, [-32602, -32002]).

updates(#{client := Client, shelf := #{updates := {Uri, {Tool, Arguments}}}} = V) ->
    {ok, Reference} = erlmcp_client:subscribe(Client, #{resources => [Uri]}),
    subscribed = changed(Reference),
    _ = called(Tool, Arguments, V),
    {resource_updated, Uri} = changed(Reference),
    ok = erlmcp_client:unsubscribe(Client, Reference).

%% Called twice: the first call adds a tool, and the second removes it.
changes(#{client := Client, shelf := #{changes := {Tool, Arguments}}} = V) ->
    {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    subscribed = changed(Reference),
    {ok, Before} = erlmcp_client:list_tools(Client),
    lists:foreach(fun(_) ->
                      _ = called(Tool, Arguments, V),
                      tools_changed = changed(Reference)
                  end, [1, 2]),
    {ok, After} = erlmcp_client:list_tools(Client),
    true = length(Before) =:= length(After),
    ok = erlmcp_client:unsubscribe(Client, Reference).

prompt(#{client := Client, shelf := #{prompt := {Name, Arguments, Text}}}) ->
    {ok, Prompts} = erlmcp_client:list_prompts(Client),
    true = lists:member(Name, [Listed || #{~"name" := Listed} <- Prompts]),
    {ok, #{~"messages" := [#{~"role" := ~"user", ~"content" := #{~"text" := Found}}]}} =
        erlmcp_client:get_prompt(Client, Name, Arguments),
    contains(Text, Found).

no_prompt(#{client := Client}) ->
    {error, {rpc, #{code := _}}} = erlmcp_client:get_prompt(Client, ~"not_there", #{}).

complete(#{client := Client, shelf := #{completion := {Reference, Argument, Values}}}) ->
    {ok, #{~"completion" := #{~"values" := Values}}} =
        erlmcp_client:complete(Client, Reference, Argument).

ping(#{client := Client}) ->
    {ok, _} = erlmcp_client:ping(Client).

called(Tool, Arguments, #{client := Client}) ->
    {ok, Result} = erlmcp_client:call_tool(Client, Tool, Arguments),
    false = maps:get(~"isError", Result, false),
    Result.

content(Uri, #{client := Client}) ->
    {ok, #{~"contents" := [Content]}} = erlmcp_client:read_resource(Client, Uri),
    Content.

texts(#{~"content" := Content}) ->
    [Text || #{~"type" := ~"text", ~"text" := Text} <- Content].

contains(Part, Text) ->
    case Part =:= ~"" orelse binary:match(Text, Part) =/= nomatch of
        true -> ok;
        false -> exit({expected, Part, in, Text})
    end.

outcome(Reference) ->
    receive
        {erlmcp, Reference, {Kind, _} = Outcome} when Kind =:= ok; Kind =:= error -> Outcome
    after ?SOON ->
        exit(no_outcome)
    end.

event(Reference, Kind) ->
    receive {erlmcp, Reference, {Kind, Params}} -> Params after ?SOON -> exit({no, Kind}) end.

changed(Reference) ->
    receive {erlmcp, Reference, Event} -> Event after ?SOON -> exit(nothing_heard) end.
