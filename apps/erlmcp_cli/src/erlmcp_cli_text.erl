-module(erlmcp_cli_text).
-moduledoc """
What a server answered, as text for a person. Pure. Control characters in it are shown and not sent
to the terminal.
""".

-export([offered/2, result/1, failure/2]).

-doc "Tables of what a server offers, from `server/discover` and the lists by their field names.".
-spec offered(Discovered :: map(), Offered :: #{binary() => [map()]}) -> unicode:chardata().
offered(Discovered, Offered) ->
    [server(Discovered)
     | [[$\n, Title, $\n, table([row(Field, Item) || Item <- Items])]
        || {Title, Field} <- [{~"Tools", ~"tools"}, {~"Resources", ~"resources"},
                              {~"Resource templates", ~"resourceTemplates"},
                              {~"Prompts", ~"prompts"}],
           #{Field := [_ | _] = Items} <- [Offered]]].

server(#{~"_meta" := #{~"io.modelcontextprotocol/serverInfo" := Info}}) ->
    [field(~"name", Info), " ", field(~"version", Info), $\n];
server(_) ->
    [].

row(~"resources", Item) -> {field(~"uri", Item), described(Item)};
row(~"resourceTemplates", Item) -> {field(~"uriTemplate", Item), described(Item)};
row(~"prompts", Item) -> {[field(~"name", Item), parameters(Item)], described(Item)};
row(~"tools", Item) -> {field(~"name", Item), described(Item)}.

described(#{~"description" := _} = Item) -> field(~"description", Item);
described(#{~"title" := _} = Item) -> field(~"title", Item);
described(_) -> ~"".

parameters(#{~"arguments" := [_ | _] = Arguments}) ->
    [" (", lists:join(", ", [field(~"name", Argument) || Argument <- Arguments]), ")"];
parameters(_) ->
    [].

field(Name, Item) ->
    case Item of
        #{Name := Value} when is_binary(Value) -> one_line(Value);
        _ -> ~"?"
    end.

one_line(Text) -> string:replace(visible(Text), "\n", " ", all).

table(Rows) ->
    Width = lists:max([string:length(Left) || {Left, _} <- Rows]),
    [["  ", string:trim([string:pad(Left, Width), "  ", Right], trailing), $\n]
     || {Left, Right} <- Rows].

-doc "The content of a `tools/call` result, one item after the other.".
-spec result(map()) -> unicode:chardata().
result(#{~"content" := [_ | _] = Content}) ->
    [[content(Item), $\n] || Item <- Content];
result(#{~"structuredContent" := Structured}) ->
    [json:encode(Structured), $\n];
result(_) ->
    [].

content(#{~"type" := ~"text", ~"text" := Text}) ->
    visible(Text);
content(#{~"type" := Type, ~"data" := Data, ~"mimeType" := MimeType}) ->
    ["[", visible(Type), " ", visible(MimeType), bytes(Data), "]"];
content(#{~"type" := ~"resource", ~"resource" := #{~"uri" := Uri} = Resource}) ->
    resource(visible(Uri), Resource);
content(#{~"type" := ~"resource_link", ~"uri" := Uri, ~"name" := Name}) ->
    ["[link ", visible(Uri), " ", visible(Name), "]"];
content(Unknown) ->
    json:encode(Unknown).

resource(Uri, #{~"text" := Text} = Resource) ->
    ["[resource ", Uri, mime_type(Resource), "]\n", visible(Text)];
resource(Uri, #{~"blob" := Data} = Resource) ->
    ["[resource ", Uri, mime_type(Resource), bytes(Data), "]"];
resource(Uri, Resource) ->
    ["[resource ", Uri, mime_type(Resource), "]"].

mime_type(#{~"mimeType" := MimeType}) -> [" ", visible(MimeType)];
mime_type(_) -> [].

bytes(Base64) ->
    try
        io_lib:format(" ~b bytes", [byte_size(base64:decode(Base64))])
    catch
        error:_ -> " not in base64"
    end.

-doc "One sentence about a request that failed.".
-spec failure(Url :: string(), erlmcp_cli_http:reason()) -> unicode:chardata().
failure(_, {rpc, Error}) ->
    ["error ", code(Error), refusal(Error), ": ", field(~"message", Error), incident(Error)];
failure(Url, {http, Status}) ->
    [Url, ": HTTP ", integer_to_list(Status), " without an MCP error; is it an MCP endpoint?"];
failure(Url, {connect, Reason}) ->
    ["cannot reach ", Url, ": ", connection(Reason)];
failure(Url, {answer, What}) ->
    [Url, ": the answer is not MCP 2026-07-28: ", What];
failure(Url, timeout) ->
    [Url, ": no answer in time; --timeout waits longer"].

code(#{~"code" := Code}) when is_integer(Code) -> integer_to_list(Code);
code(_) -> "?".

refusal(#{~"data" := #{~"name" := Name}}) when is_binary(Name) -> [" (", one_line(Name), ")"];
refusal(_) -> [].

incident(#{~"data" := #{~"incident" := Id}}) when is_binary(Id) -> [" [", one_line(Id), "]"];
incident(_) -> [].

connection({tls_alert, Alert}) ->
    ["TLS: ", words(Alert)];
connection(Reason) when is_atom(Reason) ->
    case inet:format_error(Reason) of
        "unknown POSIX error" ++ _ -> words(Reason);
        Text -> Text
    end;
connection(Reason) ->
    io_lib:format("~0tp", [Reason]).

words(Atom) -> string:replace(atom_to_list(Atom), "_", " ", all).

visible(Text) ->
    << <<(shown(Character))/utf8>> || <<Character/utf8>> <= Text >>.

shown(Character) when Character =:= $\n; Character =:= $\t -> Character;
%% C0 controls have pictures; DEL and C1 controls share the replacement character.
shown(Character) when Character < 16#20 -> 16#2400 + Character;
shown(Character) when Character >= 16#7f, Character < 16#a0 -> 16#fffd;
shown(Character) -> Character.
