-module(erlmcp_cli_text).
-moduledoc """
Formats a server's answers as text for a person. Pure. Characters that a terminal would obey or not
show are spelled out (`erlmcp_printable:text/1`).
""".

-export([offered/3, server/1, result/1, messages/1, completion/1, log/1, failure/2, leads_to/2]).
-export([connection/1, refused/3, refused_json/1]).
-export([json/1, escaped/1, visible/1, one_line/1, indented/3]).

-doc """
Returns the name of a server, and tables of its tools, resources, resource templates and prompts.
`Offered` has these lists by their names in MCP, such as `tools`. Below each tool or prompt are its
arguments as a user types them. With `Schemas`, the whole schemas of a tool are below it instead.
""".
-spec offered(Server :: map(), Offered :: #{binary() => [map()]}, Schemas :: boolean()) ->
    erlmcp_cli_output:styled().
offered(#{server_info := Info}, Offered, Schemas) ->
    [{bold, server(Info)}, $\n
     | [[$\n, Title, $\n, items([row(Field, Item) || Item <- Items],
                                [below(Field, Item, Schemas) || Item <- Items])]
        || {Title, Field} <- [{~"Tools", ~"tools"}, {~"Resources", ~"resources"},
                              {~"Resource templates", ~"resourceTemplates"},
                              {~"Prompts", ~"prompts"}],
           #{Field := [_ | _] = Items} <- [Offered]]].

items(Rows, Below) ->
    Lines = erlmcp_cli_table:lines([[{bold, Name}, Description] || {Name, Description} <- Rows]),
    [["  ", Line, $\n, [["      ", Other, $\n] || Other <- Others]]
     || {Line, Others} <- lists:zip(Lines, Below)].

-doc "Returns the name and the version of a server from its `serverInfo`.".
-spec server(Info :: map()) -> unicode:chardata().
server(Info) ->
    lists:join($\s, [Field || Name <- [~"name", ~"version"], Field <- [field(Name, Info)],
                             not string:is_empty(Field)]).

row(~"resources", Item) -> {field(~"uri", Item), described(Item)};
row(~"resourceTemplates", Item) -> {field(~"uriTemplate", Item), described(Item)};
row(_, Item) -> {field(~"name", Item), described(Item)}.

described(#{~"description" := _} = Item) -> field(~"description", Item);
described(#{~"title" := _} = Item) -> field(~"title", Item);
described(_) -> ~"".

below(~"tools", Item, true) ->
    [Line || {Title, Field} <- [{"arguments: ", ~"inputSchema"}, {"result: ", ~"outputSchema"}],
             #{Field := Schema} <- [Item],
             Line <- string:split([Title, string:trim(formatted(Schema))], "\n", all)];
below(~"tools", #{~"inputSchema" := #{~"properties" := #{} = Properties} = Schema}, false) ->
    Required = case Schema of
        #{~"required" := [_ | _] = Names} -> Names;
        #{} -> []
    end,
    arguments([{one_line(Name), kind(Property), lists:member(Name, Required)}
               || Name := Property <- maps:iterator(Properties, ordered)]);
below(~"prompts", #{~"arguments" := [_ | _] = Arguments}, _) ->
    arguments([{field(~"name", Argument), ~"string",
                maps:get(~"required", Argument, false) =:= true} || #{} = Argument <- Arguments]);
below(_, _, _) ->
    [].

%% Required arguments come first.
arguments([]) ->
    [];
arguments(Arguments) ->
    {First, Others} = lists:partition(fun({_, _, Required}) -> Required end, Arguments),
    [lists:join($\s, [[Name, $=, Kind] || {Name, Kind, _} <- First]
                     ++ [[$[, Name, $=, Kind, $]] || {Name, Kind, _} <- Others])].

%% The type of an argument in a few words; `--schema` shows the whole schema.
kind(#{~"enum" := [_ | _] = Values}) when length(Values) =< 5 -> choices(Values);
kind(#{~"const" := Value}) -> choices([Value]);
kind(#{~"type" := Type}) when is_binary(Type) -> one_line(Type);
kind(#{~"type" := [_ | _] = Types}) -> choices(Types);
kind(_) -> ~"any".

choices(Values) ->
    lists:join($|, [case Value of
                        <<_/binary>> -> one_line(Value);
                        _ -> json(Value)
                    end || Value <- Values]).

formatted(Schema) -> escaped(json:format(Schema, #{max => 90})).

field(Name, Item) ->
    case Item of
        #{Name := Value} when is_binary(Value) -> one_line(Value);
        _ -> ~"?"
    end.

-doc "Returns a text as `visible/1` does, in one line (`erlmcp_cli_output:one_line/1`).".
-spec one_line(binary()) -> unicode:chardata().
one_line(Text) -> erlmcp_cli_output:plain(erlmcp_cli_output:one_line(visible(Text))).

-doc """
Returns the content of a `tools/call` result, one item after the other, or without content its
structured content as JSON. The text is empty if the result has neither.
""".
-spec result(map()) -> unicode:chardata().
result(#{~"content" := [_ | _] = Content}) ->
    [[content(Item), $\n] || Item <- Content];
result(#{~"structuredContent" := Structured}) ->
    [json(Structured), $\n];
result(_) ->
    [].

%% The client checks no member but `type`, and that only for tools.
content(#{~"type" := ~"text", ~"text" := Text}) when is_binary(Text) ->
    visible(Text);
content(#{~"type" := Type, ~"data" := Data, ~"mimeType" := MimeType})
  when is_binary(Type), is_binary(Data), is_binary(MimeType) ->
    ["[", visible(Type), " ", visible(MimeType), bytes(Data), "]"];
content(#{~"type" := ~"resource", ~"resource" := #{~"uri" := Uri} = Resource})
  when is_binary(Uri) ->
    resource(visible(Uri), Resource);
content(#{~"type" := ~"resource_link", ~"uri" := Uri, ~"name" := Name})
  when is_binary(Uri), is_binary(Name) ->
    ["[link ", visible(Uri), " ", visible(Name), "]"];
content(Unknown) ->
    json(Unknown).

resource(Uri, #{~"text" := Text} = Resource) when is_binary(Text) ->
    ["[resource ", Uri, mime_type(Resource), "]\n", visible(Text)];
resource(Uri, #{~"blob" := Data} = Resource) when is_binary(Data) ->
    ["[resource ", Uri, mime_type(Resource), bytes(Data), "]"];
resource(Uri, Resource) ->
    ["[resource ", Uri, mime_type(Resource), "]"].

mime_type(#{~"mimeType" := MimeType}) when is_binary(MimeType) -> [" ", visible(MimeType)];
mime_type(_) -> [].

bytes(Base64) ->
    try
        io_lib:format(" ~b bytes", [byte_size(base64:decode(Base64))])
    catch
        error:_ -> " not in base64"
    end.

-doc "Returns the description of a prompt, if it has one, and its messages, each after its role.".
-spec messages(map()) -> unicode:chardata().
messages(#{~"messages" := Messages} = Result) ->
    [[[one_line(Text), "\n\n"] || #{~"description" := Text} <- [Result], is_binary(Text)]
     | [[field(~"role", Message), ": ", content(maps:get(~"content", Message, #{})), $\n]
        || Message <- Messages]].

-doc "Returns the values of a completion, one per line.".
-spec completion(map()) -> unicode:chardata().
completion(#{~"completion" := #{~"values" := Values}}) ->
    [[one_line(Value), $\n] || Value <- Values, is_binary(Value)].

-doc "Returns a log message of the server as a line.".
-spec log(Params :: map()) -> unicode:chardata().
log(Params) ->
    ["[", field(~"level", Params), "] ",
     [[one_line(Logger), ": "] || #{~"logger" := Logger} <- [Params], is_binary(Logger)],
     case Params of
         #{~"data" := Data} when is_binary(Data) -> one_line(Data);
         #{~"data" := Data} -> json(Data);
         #{} -> "?"
     end].

-doc """
Returns the reason of a failed command as a sentence. `Server` is the name of the server in
messages.
""".
-spec failure(Server :: unicode:chardata(), erlmcp_client:reason() | tuple()) ->
    unicode:chardata().
failure(_, {rpc, Error}) ->
    ["error ", code(Error), refusal(Error), ": ", message(Error), scopes(Error), incident(Error),
     meant(Error)];
failure(Server, {http, Status, _, _}) ->
    [Server, ": HTTP ", integer_to_list(Status), " without an MCP error; is it an MCP endpoint?"];
failure(Server, {connect, Reason}) ->
    ["cannot reach ", Server, ": ", connection(Reason)];
failure(Server, {timeout, _}) ->
    [Server, ": no answer in time; --timeout waits longer"];
failure(Server, timeout) ->
    [Server, ": not reached in time; --timeout waits longer"];
failure(Server, {unauthorized, timeout}) ->
    [Server, ": not authorized: the login was not finished in time"];
failure(Server, {unauthorized, {host_not_allowed, Host, Why}}) ->
    [Server, ": not authorized: ", leads_to(Host, Why), "; --allow-host ", one_line(Host),
     " allows it"];
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

-doc """
Returns a sentence for a request that a server refused for lack of authorization: the server's own
text, and a possible remedy. `Login` is the login that was used: an earlier one (`before`), one of
this command (`now`), or none.
""".
-spec refused(Server :: unicode:chardata(), erlmcp_client_error:refusal(),
              Login :: none | before | now) -> unicode:chardata().
refused(Server, #{status := Status} = Refusal, Login) ->
    Words = unicode:characters_to_binary(erlmcp_client_error:refusal_text(Refusal)),
    [Server, ": HTTP ", integer_to_list(Status), ": not authorized",
     [[": ", one_line(Words)] || Words =/= ~""], remedy(Refusal, Login)].

remedy(_, now) -> "";
remedy(#{status := 401}, before) -> "; the earlier login has ended; --login begins another";
remedy(#{error := ~"insufficient_scope"}, _) -> "; --login or another --token may get it";
remedy(_, _) -> "; --login or --token may help".

-doc """
Returns a refusal for lack of authorization as JSON. The only member, `error`, has the members of
the refusal. The scopes are one string there, `scope`, as in RFC 6750.
""".
-spec refused_json(erlmcp_client_error:refusal()) -> json:encode_value().
refused_json(Refusal) ->
    Scope = #{scope => iolist_to_binary(lists:join($\s, Scopes))
              || #{scopes := Scopes} <- [Refusal]},
    #{error => maps:merge(maps:remove(scopes, Refusal), Scope)}.

-doc "Returns a part of a question: the host that a login leads to, and why the user is asked.".
-spec leads_to(Host :: binary(), erlmcp_outbound_hosts:why()) -> unicode:chardata().
leads_to(Host, {other_origin, Issuer}) ->
    ["the login of ", one_line(Issuer), " leads to another host, ", one_line(Host)];
leads_to(Host, {inner_address, Address}) ->
    ["the login leads to ", one_line(Host), " at ", Address,
     ", which is in a network of your own or on this machine, where the server is not"].

why(Why) when is_binary(Why) -> one_line(Why);
why(Why) -> one_line(unicode:characters_to_binary(io_lib:format("~0tp", [Why]))).

message(#{message := Message}) -> one_line(Message).

code(#{code := Code}) -> integer_to_list(Code).

refusal(#{data := #{~"name" := Name}}) when is_binary(Name) -> [" (", one_line(Name), ")"];
refusal(_) -> [].

scopes(#{data := #{~"scopes" := [_ | _] = Scopes}}) ->
    [" (scope: ", lists:join($\s, [one_line(Scope) || Scope <- Scopes, is_binary(Scope)]), ")"];
scopes(_) -> [].

incident(#{data := #{~"incident" := Id}}) when is_binary(Id) -> [" [", one_line(Id), "]"];
incident(_) -> [].

%% A suggestion, if `erlmcp call` has found a similar name.
meant(#{question := {ok, Name}}) -> ["; did you mean `", one_line(Name), "`?"];
meant(_) -> [].

-doc """
Returns in words why a connection could not be opened, or has ended: the reason of a client, of a
program, of `gen_tcp` or of `ssl`.
""".
-spec connection(Reason :: term()) -> unicode:chardata().
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

%% OTP says only in the text of the alert why it refuses a certificate.
certificate(Text) ->
    Whys = [{"selfsigned_peer", ": the server's certificate is self-signed, not signed by a root"},
            {"hostname_check_failed", ": the certificate is for another host"}],
    [Why || {Found, Why} <- Whys, string:find(Text, Found) =/= nomatch].

words(Atom) -> string:replace(atom_to_list(Atom), "_", " ", all).

-doc "Encodes `Value` as JSON, with escapes as in `escaped/1`.".
-spec json(json:encode_value()) -> binary().
json(Value) -> escaped(json:encode(Value)).

-doc """
Returns JSON with escapes for all characters that are invisible, or that a terminal would obey. A
program that decodes it gets the original characters. Newlines stay.
""".
-spec escaped(Json :: iodata()) -> binary().
escaped(Json) ->
    << <<(case Character =:= $\n orelse erlmcp_printable:is_visible(Character) of
              true -> <<Character/utf8>>;
              false -> << <<"\\u", (binary:encode_hex(Unit, lowercase))/binary>>
                          || <<Unit:2/binary>> <= <<Character/utf16>> >>
          end)/binary>>
       || <<Character/utf8>> <= iolist_to_binary(Json) >>.

-doc """
Returns a text in which characters that are invisible, or that a terminal would obey, are spelled
out. Newlines and tabs stay.
""".
-spec visible(binary()) -> binary().
visible(Text) -> erlmcp_printable:text(Text).

-doc """
Indents the first line of a text by `First` columns, and all others by `Next`. Characters are
spelled out as by `visible/1`. Lines are wrapped so that each takes fewer than `Columns` columns: a
terminal that wraps a line itself does not indent the rest.

## Examples

```erlang
1> unicode:characters_to_binary(erlmcp_cli_text:indented(~"one two three\nfour", {2, 4}, 12)).
~"  one two\n    three\n    four"
```
""".
-spec indented(binary(), {First :: non_neg_integer(), Next :: non_neg_integer()},
               Columns :: pos_integer()) -> unicode:chardata().
indented(Text, {First, Next}, Columns) ->
    %% The last column stays free, since some terminals begin the next line after it.
    Width = max(1, Columns - 1 - max(First, Next)),
    [Head | Others] = [Folded || Line <- string:split(visible(Text), "\n", all),
                                 Folded <- folded(spaced(Line), Width)],
    [lists:duplicate(First, $\s), Head
     | [[$\n, lists:duplicate(Next, $\s), Line] || Line <- Others]].

spaced(Line) -> unicode:characters_to_list(string:replace(Line, "\t", "    ", all)).

folded(Line, Width) ->
    case taken(Line, Width, []) of
        {Reversed, []} ->
            [lists:reverse(Reversed)];
        {Reversed, [$\s | Rest]} ->
            [lists:reverse(Reversed) | folded(Rest, Width)];
        {Reversed, Rest} ->
            case lists:splitwith(fun(C) -> C =/= $\s end, Reversed) of
                {_, []} -> [lists:reverse(Reversed) | folded(Rest, Width)];
                {Last, Before} -> [lists:reverse(Before) | folded(lists:reverse(Last, Rest), Width)]
            end
    end.

%% The width of other characters differs between terminals, but no character takes more than two
%% columns.
taken([C | Line], Columns, Reversed) when C < 16#80, Columns >= 1 ->
    taken(Line, Columns - 1, [C | Reversed]);
taken([C | Line], Columns, Reversed) when C >= 16#80, Columns >= 2; Reversed =:= [] ->
    taken(Line, Columns - 2, [C | Reversed]);
taken(Line, _, Reversed) -> {Reversed, Line}.
