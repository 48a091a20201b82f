-module(erlmcp_test_two_eras).
-moduledoc "A client of a server's TCP port in each of the two eras, which asks both the same way.".

-export([eras/0, open/2, ask/3, call/3, read/2, listed/2, text/1, await/1]).

-define(PATIENCE, 30_000).

-doc "Returns the newest revision of each era.".
eras() -> [~"2025-11-25", ~"2026-07-28"].

-doc "Opens a client of a revision.".
open(~"2026-07-28" = Revision, Server) ->
    {Revision, erlmcp_test_line:connect(Server)};
open(Revision, Server) ->
    Socket = erlmcp_test_line:connect(Server),
    _ = erlmcp_test_line:initialize(Socket, Revision),
    {Revision, Socket}.

-doc "Sends a request, and returns its answer. Drops notifications before the answer.".
ask({Revision, Socket}, Method, Params) ->
    Id = erlang:unique_integer([positive]),
    erlmcp_test_line:send(Socket, case Revision of
        ~"2026-07-28" -> erlmcp_test_line:stateless(Id, Method, Params);
        _ -> erlmcp_test_line:request(Id, Method, Params)
    end),
    answer(Id, Socket).

%% A session is told of changes of the lists between the answers.
answer(Id, Socket) ->
    case erlmcp_test_line:recv(Socket) of
        #{~"id" := Id} = Answer -> Answer;
        #{~"method" := _} -> answer(Id, Socket)
    end.

-doc "Calls a tool, and returns the answer.".
call(Client, Name, Arguments) ->
    ask(Client, ~"tools/call", #{~"name" => Name, ~"arguments" => Arguments}).

-doc "Reads a resource, and returns the answer.".
read(Client, Uri) ->
    ask(Client, ~"resources/read", #{~"uri" => Uri}).

-doc "Returns the keys of the definitions in a list, in the order of the list.".
listed(Client, Kind) ->
    {Method, Member, Key} = case Kind of
        tool -> {~"tools/list", ~"tools", ~"name"};
        prompt -> {~"prompts/list", ~"prompts", ~"name"};
        resource -> {~"resources/list", ~"resources", ~"uri"};
        resource_template -> {~"resources/templates/list", ~"resourceTemplates", ~"uriTemplate"}
    end,
    #{~"result" := #{Member := Items}} = ask(Client, Method, #{}),
    [maps:get(Key, Item) || Item <- Items].

-doc """
Returns the text of an answer, its blob or its completions. Returns `{error, Text}` for an error.
""".
text(#{~"error" := #{~"message" := Message}}) -> {error, Message};
text(#{~"result" := #{~"isError" := true, ~"content" := [#{~"text" := Text}]}}) -> {error, Text};
text(#{~"result" := #{~"content" := [#{~"text" := Text}]}}) -> Text;
text(#{~"result" := #{~"contents" := [#{~"text" := Text}]}}) -> Text;
text(#{~"result" := #{~"contents" := [#{~"blob" := Blob}]}}) -> {blob, base64:decode(Blob)};
text(#{~"result" := #{~"messages" := [#{~"content" := #{~"text" := Text}}]}}) -> Text;
text(#{~"result" := #{~"completion" := #{~"values" := Values}}}) -> Values.

-doc """
Waits until a fun returns `true`, for 30 seconds at most. It is for conditions that nothing
announces.
""".
await(Holds) ->
    await(Holds, erlang:monotonic_time(millisecond) + ?PATIENCE).

await(Holds, Deadline) ->
    case Holds() of
        true -> ok;
        false ->
            true = erlang:monotonic_time(millisecond) < Deadline,
            receive after 5 -> await(Holds, Deadline) end
    end.
