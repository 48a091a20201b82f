-module(erlmcp_cli_text).
-moduledoc """
What a server answered, as text for a person. Pure. Control characters in it are shown and not sent
to the terminal.
""".

-export([offered/2, server/1, result/1, messages/1, completion/1, log/1, failure/2]).
-export([json/1, visible/1, one_line/1]).

-doc "Tables of what a server offers: what it says of itself, and its lists by their field names.".
-spec offered(Server :: map(), Offered :: #{binary() => [map()]}) -> unicode:chardata().
offered(#{server_info := Info}, Offered) ->
    [server(Info), $\n
     | [[$\n, Title, $\n, table([row(Field, Item) || Item <- Items])]
        || {Title, Field} <- [{~"Tools", ~"tools"}, {~"Resources", ~"resources"},
                              {~"Resource templates", ~"resourceTemplates"},
                              {~"Prompts", ~"prompts"}],
           #{Field := [_ | _] = Items} <- [Offered]]].

-doc "The name and the version of a server.".
-spec server(Info :: map()) -> unicode:chardata().
server(Info) ->
    lists:join($\s, [Field || Name <- [~"name", ~"version"], Field <- [field(Name, Info)],
                             not string:is_empty(Field)]).

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

-doc "A text in one line.".
-spec one_line(binary()) -> unicode:chardata().
one_line(Text) -> string:replace(visible(Text), "\n", " ", all).

table(Rows) ->
    [["  ", Line, $\n]
     || Line <- erlmcp_cli_table:lines([[Left, Right] || {Left, Right} <- Rows])].

-doc "The content of a `tools/call` result, one item after the other.".
-spec result(map()) -> unicode:chardata().
result(#{~"content" := [_ | _] = Content}) ->
    [[content(Item), $\n] || Item <- Content];
result(#{~"structuredContent" := Structured}) ->
    [json(Structured), $\n];
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
    json(Unknown).

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

-doc "The messages of a prompt.".
-spec messages(map()) -> unicode:chardata().
messages(#{~"messages" := Messages} = Result) ->
    [[[one_line(Text), "\n\n"] || #{~"description" := Text} <- [Result], is_binary(Text)]
     | [[field(~"role", Message), ": ", content(maps:get(~"content", Message, #{})), $\n]
        || Message <- Messages]].

-doc "The values of a completion, one a line.".
-spec completion(map()) -> unicode:chardata().
completion(#{~"completion" := #{~"values" := Values}}) ->
    [[one_line(Value), $\n] || Value <- Values, is_binary(Value)].

-doc "A log message of the server.".
-spec log(Params :: map()) -> unicode:chardata().
log(Params) ->
    ["[", field(~"level", Params), "] ",
     [[one_line(Logger), ": "] || #{~"logger" := Logger} <- [Params], is_binary(Logger)],
     case Params of
         #{~"data" := Data} when is_binary(Data) -> one_line(Data);
         #{~"data" := Data} -> json(Data);
         #{} -> "?"
     end].

-doc "One sentence about a command that failed.".
-spec failure(Server :: unicode:chardata(), erlmcp_client:reason() | tuple()) ->
    unicode:chardata().
failure(_, {rpc, Error}) ->
    ["error ", code(Error), refusal(Error), ": ", message(Error), incident(Error)];
failure(Server, {http, Status, _, _}) when Status =:= 401; Status =:= 403 ->
    [Server, ": HTTP ", integer_to_list(Status), ": not authorized; --login or --token may help"];
failure(Server, {http, Status, _, _}) ->
    [Server, ": HTTP ", integer_to_list(Status), " without an MCP error; is it an MCP endpoint?"];
failure(Server, {connect, Reason}) ->
    ["cannot reach ", Server, ": ", connection(Reason)];
failure(Server, {timeout, _}) ->
    [Server, ": no answer in time; --timeout waits longer"];
failure(Server, timeout) ->
    [Server, ": not reached in time; --timeout waits longer"];
failure(Server, {unauthorized, {http, _, _, _} = Refused}) ->
    failure(Server, Refused);
failure(Server, {unauthorized, {browser, none}}) ->
    [Server, ": not authorized: the login of before has ended; --login begins another"];
failure(Server, {unauthorized, timeout}) ->
    [Server, ": not authorized: the login was not finished in time"];
failure(Server, {unauthorized, Why}) ->
    [Server, ": not authorized: ", why(Why)];
failure(_, {input, _, Why}) when is_binary(Why) ->
    ["the server asked for input that it did not get: ", one_line(Why)];
failure(Server, {bad_option, Option}) ->
    [Server, io_lib:format(": ~0tp: it was not as expected", [Option])];
failure(Server, {bad_option, Option, Expected}) ->
    [Server, io_lib:format(": ~0tp: ~ts was expected", [Option, Expected])];
failure(Server, Reason) ->
    [Server, ": ", one_line(erlmcp_client:format_error(Reason))].

why(Why) when is_binary(Why) -> one_line(Why);
why(Why) -> one_line(unicode:characters_to_binary(io_lib:format("~0tp", [Why]))).

message(#{message := Message}) -> one_line(Message).

code(#{code := Code}) -> integer_to_list(Code).

refusal(#{data := #{~"name" := Name}}) when is_binary(Name) -> [" (", one_line(Name), ")"];
refusal(_) -> [].

incident(#{data := #{~"incident" := Id}}) when is_binary(Id) -> [" [", one_line(Id), "]"];
incident(_) -> [].

connection({connect, Reason}) ->
    connection(Reason);
connection({tls_alert, {Alert, Text}}) ->
    [connection({tls_alert, Alert}), certificate(Text)];
connection({tls_alert, Alert}) ->
    ["TLS: ", words(Alert)];
connection({exit_status, 127}) ->
    "there is no such program";
connection({exit_status, 126}) ->
    "this file is no program, or may not be run";
connection({exit_status, Status}) ->
    ["the program ended with status ", integer_to_list(Status)];
connection(Reason) when is_binary(Reason) ->
    one_line(Reason);
connection(Reason) when is_atom(Reason) ->
    case inet:format_error(Reason) of
        "unknown POSIX error" ++ _ -> words(Reason);
        Text -> Text
    end;
connection(Reason) ->
    why(Reason).

%% Why OTP does not take a certificate is in its text alone.
certificate(Text) ->
    Whys = [{"selfsigned_peer", ": the server's certificate is signed by itself, not by a root"},
            {"hostname_check_failed", ": the certificate is for another host"}],
    [Why || {Found, Why} <- Whys, string:find(Text, Found) =/= nomatch].

words(Atom) -> string:replace(atom_to_list(Atom), "_", " ", all).

-doc "JSON in which no character is a control of a terminal.".
-spec json(json:encode_value()) -> unicode:chardata().
json(Value) ->
    << <<(escaped(Character))/binary>>
       || <<Character/utf8>> <= iolist_to_binary(json:encode(Value)) >>.

escaped(Character) when Character >= 16#7f, Character < 16#a0 ->
    <<"\\u00", (binary:encode_hex(<<Character>>, lowercase))/binary>>;
escaped(Character) ->
    <<Character/utf8>>.

-doc "A text whose control characters are seen, and not obeyed.".
-spec visible(binary()) -> binary().
visible(Text) ->
    << <<(shown(Character))/utf8>> || <<Character/utf8>> <= Text >>.

shown(Character) when Character =:= $\n; Character =:= $\t -> Character;
%% C0 controls have pictures; DEL and C1 controls share the replacement character.
shown(Character) when Character < 16#20 -> 16#2400 + Character;
shown(Character) when Character >= 16#7f, Character < 16#a0 -> 16#fffd;
shown(Character) -> Character.
