-module(erlmcp_result).
-moduledoc """
Converts the return value of a handler to the result or the error on the wire. Pure.

A return value that has none of the documented forms raises `error({bad_return, Kind, Value,
Expected})`. Structured content that is missing or does not fit the tool's output schema raises
`error({bad_return, structured_content, Errors})`. A term that JSON does not have raises the error
of `erlmcp_json:encode/1`.

Internal.
""".

-export([from/4, object/3, object/4, caching/3, missing_resource/2, is_contents/1]).

%% Inlined, since they build every result.
-compile({inline, [complete/2, object/3, object/4]}).

-export_type([context/0, member/0]).

-type context() :: #{
    revision := erlmcp_revision:revision(),
    call := erlmcp_engine:call_reference(),
    uri => binary(),
    atom() => term()
}.
-type member() :: {binary(), term() | {encoded, iodata()}} | {text, binary()}.

-doc """
Returns the encoded result, or the refusal, for the return value of a handler. `tool_error` has a
result with `isError`. `Definition` is the tool, resource or prompt of the handler, and the context
is the one that the handler got. `{ok, Return}` means the same as `Return`. A value of another form
raises one of the errors that the module lists.
""".
-spec from(erlmcp_definition:kind() | completion, Return :: term(), Definition :: map(),
           context()) ->
    {ok | tool_error, iodata()} | {error, erlmcp_refusal:refusal()}.
from(Kind, {ok, Return}, Definition, Context) ->
    returned(Kind, Return, Definition, Context);
from(Kind, Return, Definition, Context) ->
    returned(Kind, Return, Definition, Context).

returned(_, {refuse, Refusal} = Return, _, _) ->
    case erlmcp_refusal:is_refusal(Refusal) of
        true -> {error, Refusal};
        false -> bad_return(refuse, Return)
    end;
returned(tool, {error, _} = Return, Definition, Context) ->
    {ok, Result} = complete(tool(Return, Definition, Context), Context),
    {tool_error, Result};
returned(tool, Return, Definition, Context) ->
    complete(tool(Return, Definition, Context), Context);
returned(completion, {error, Text}, _, _) when is_binary(Text) ->
    {error, failed(completion, Text)};
returned(completion, Return, _, Context) ->
    complete([{~"completion", completion(Return)}], Context);
returned(prompt, {error, Text}, _, _) when is_binary(Text) ->
    {error, failed(prompt, Text)};
returned(prompt, Return, Definition, Context) ->
    complete(prompt(Return, Definition, Context), Context);
returned(_, {error, not_found}, _, #{uri := Uri, revision := Revision}) ->
    {error, missing_resource(Uri, Revision)};
returned(_, {error, Text}, _, _) when is_binary(Text) ->
    {error, failed(resource, Text)};
returned(_, Return, Definition, #{uri := Uri, revision := Revision} = Context) ->
    Contents = contents(Return, Uri, Definition, Context),
    Scope = maps:get(cache_scope, Definition, private),
    Caching = caching(maps:get(ttl_ms, Definition, 0), Scope, Revision),
    complete([{~"contents", Contents} | Caching], Context).

complete(Members, #{revision := Revision, call := #{server_meta := ServerMeta}}) ->
    {ok, object(Members, Revision, ServerMeta)}.

-doc """
Encodes a result object with the given members, whose names are those of the protocol. In a
stateless revision the object also has the `resultType` `complete`, and as its `_meta` the encoded
object `ServerMeta`. A value that is encoded already is given as `{encoded, Json}`. `{text, Text}`
is the member `content` with `[erlmcp_content:text(Text)]`.
""".
-spec object([member()], erlmcp_revision:revision(), ServerMeta :: iodata()) -> iodata().
object(Members, Revision, ServerMeta) ->
    object(complete, Members, Revision, ServerMeta).

-doc """
Encodes a result object as `object/3` does, with a given `resultType`, which revisions with sessions
do not have.
""".
-spec object(complete | task, [member()], erlmcp_revision:revision(), ServerMeta :: iodata()) ->
    iodata().
object(complete, [{text, Text}] = Members, Revision, ServerMeta) when is_binary(ServerMeta) ->
    %% Most results have this form. They are built of few pieces, since each piece costs time when
    %% it is counted or written.
    case erlmcp_json:is_plain(Text) andalso erlmcp_revision:era(Revision) of
        stateless ->
            [type(complete), ServerMeta, ~",\"content\":[{\"type\":\"text\",\"text\":\"", Text,
             ~"\"}]}"];
        session ->
            [~"{\"content\":[{\"type\":\"text\",\"text\":\"", Text, ~"\"}]}"];
        false ->
            of_pieces(complete, Members, Revision, ServerMeta)
    end;
object(Type, Members, Revision, ServerMeta) ->
    of_pieces(Type, Members, Revision, ServerMeta).

of_pieces(Type, Members, Revision, ServerMeta) ->
    case {erlmcp_revision:era(Revision), Members} of
        {stateless, _} -> [type(Type), ServerMeta | more(Members)];
        {session, [Member | More]} -> [${, member(Member) | more(More)];
        {session, []} -> ~"{}"
    end.

more([]) -> [$}];
more([Member | More]) -> [$,, member(Member) | more(More)].

member({text, Text}) ->
    [~"\"content\":[{\"type\":\"text\",\"text\":", json:encode(Text), ~"}]"];
member({Name, Value}) ->
    [$", Name, ~"\":", value(Value)].

type(complete) -> ~"{\"resultType\":\"complete\",\"_meta\":";
type(task) -> ~"{\"resultType\":\"task\",\"_meta\":".

value({encoded, Json}) -> Json;
value(Value) -> erlmcp_json:encode(Value).

-doc """
Returns the members that tell a client for how many milliseconds, and for whom, it may cache a
result. In revisions with sessions there are none.
""".
-spec caching(Milliseconds :: non_neg_integer(), public | private, erlmcp_revision:revision()) ->
    [{binary(), term()}].
caching(Milliseconds, Scope, Revision) ->
    case erlmcp_revision:era(Revision) of
        stateless -> [{~"ttlMs", Milliseconds}, {~"cacheScope", Scope}];
        session -> []
    end.

-doc "Returns the refusal for a URI that no resource has.".
-spec missing_resource(Uri :: binary(), erlmcp_revision:revision()) -> erlmcp_refusal:refusal().
missing_resource(Uri, Revision) ->
    erlmcp_refusal:new(resource_not_found,
                       [~"no resource has the URI ", erlmcp_value_text:name(Uri)],
                       #{code => erlmcp_revision:missing_resource_code(Revision),
                         status => 400, data => #{~"uri" => Uri}}).

tool({error, Text}, _, _) when is_binary(Text) ->
    [{text, Text}, {~"isError", true}];
tool({error, [_ | _] = Content}, _, Context) ->
    [{~"content", content(Content, Context)}, {~"isError", true}];
tool({structured, Value}, Definition, Context) ->
    structured(Value, Definition, Context);
tool(Text, Definition, Context) when is_binary(Text) ->
    ok = promised(none, Definition, Context),
    [{text, Text}];
tool(Content, Definition, Context) when is_list(Content) ->
    ok = promised(none, Definition, Context),
    [{~"content", content(Content, Context)}];
tool(Value, Definition, Context) when is_map(Value) ->
    structured(Value, Definition, Context);
tool(Return, _, _) ->
    bad_return(tool, Return).

promised(Content, Definition, #{revision := Revision}) ->
    case erlmcp_tool_schema:check_result(Content, Definition, Revision) of
        ok -> ok;
        {error, Errors} -> error({bad_return, structured_content, Errors})
    end.

%% Structured content is also sent as text, for clients that read only text.
structured(Value, Definition, #{revision := Revision} = Context) ->
    Text = iolist_to_binary(erlmcp_json:encode(Value)),
    ok = promised(Text, Definition, Context),
    case erlmcp_revision:structured(shown(Value, Text), Revision) of
        true -> [{text, Text}, {~"structuredContent", {encoded, Text}}];
        false -> [{text, Text}]
    end.

%% Dates of Elixir are maps, which become strings in JSON.
shown(#{'__struct__' := _}, Text) -> Text;
shown(Value, _) -> Value.

content([C | _] = Text, _) when is_integer(C) ->
    bad_return(content, Text);
content(Items, #{revision := Revision}) ->
    [item(Item, Revision) || Item <- Items].

item(Text, _) when is_binary(Text) -> erlmcp_content:text(Text);
item(#{type := _} = Content, Revision) -> in_revision(Content, Revision);
item(Other, _) -> bad_return(content, Other).

%% Content of a type that the revision does not have is replaced by a text: a link by its name and
%% URI, other content by a note.
in_revision(#{type := Type} = Content, Revision) ->
    case lists:member(Type, erlmcp_revision:content_types(Revision)) of
        true -> Content;
        false -> erlmcp_content:text(substitute(Content))
    end.

substitute(#{type := ~"resource_link", uri := Uri, name := Name}) ->
    <<Name/binary, ": ", Uri/binary>>;
substitute(#{type := Type}) ->
    <<"[", Type/binary, " content, which this protocol version does not have]">>.

prompt(#{messages := Messages} = Prompt, Definition, Context) ->
    Description = maps:get(description, Prompt, maps:get(description, Definition, undefined)),
    [{~"messages", messages(Messages, Context)}
     | [{~"description", Description} || Description =/= undefined]];
prompt(Return, Definition, Context) ->
    prompt(#{messages => Return}, Definition, Context).

messages(Text, _) when is_binary(Text) ->
    [#{role => user, content => erlmcp_content:text(Text)}];
messages([C | _] = Text, _) when is_integer(C) ->
    bad_return(prompt, Text);
messages(Messages, #{revision := Revision}) when is_list(Messages) ->
    [message(Message, Revision) || Message <- Messages];
messages(Return, _) ->
    bad_return(prompt, Return).

message(#{role := Role, content := Content}, Revision) when Role =:= user; Role =:= assistant ->
    #{role => Role, content => item(Content, Revision)};
message(Message, _) ->
    bad_return(message, Message).

%% At most 100 values are sent, with their total number.
completion(Values) when is_list(Values) ->
    completion(#{values => Values});
completion(#{values := Values} = Completion) when is_list(Values) ->
    Total = maps:get(total, Completion, length(Values)),
    Sent = lists:sublist(Values, 100),
    lists:all(fun is_binary/1, Sent) orelse bad_return(completion, Values),
    #{values => Sent, total => Total, hasMore => Total > length(Sent)};
completion(Return) ->
    bad_return(completion, Return).

contents(Text, Uri, Definition, Context) when is_binary(Text) ->
    [beside(erlmcp_content:text_contents(Uri, mime_type(Definition), Text), Definition, Context)];
contents({blob, Bytes}, Uri, Definition, Context) when is_binary(Bytes) ->
    [beside(erlmcp_content:blob_contents(Uri, mime_type(Definition), Bytes), Definition, Context)];
contents({blob, Iodata} = Return, Uri, Definition, Context) when is_list(Iodata) ->
    try iolist_to_binary(Iodata) of
        Bytes -> contents({blob, Bytes}, Uri, Definition, Context)
    catch
        error:badarg -> bad_return(resource, Return)
    end;
contents([], _, _, _) ->
    [];
contents([#{} | _] = Contents, _, _, _) ->
    _ = [is_contents(Item) orelse is_decoded(Item) orelse bad_return(contents, Item)
         || Item <- Contents],
    Contents;
contents([_ | _] = Chardata, Uri, Definition, Context) ->
    try unicode:characters_to_binary(Chardata) of
        Text when is_binary(Text) -> contents(Text, Uri, Definition, Context);
        _ -> bad_return(resource, Chardata)
    catch
        error:badarg -> bad_return(resource, Chardata)
    end;
contents(#{} = Map, Uri, Definition, Context) ->
    case is_contents(Map) of
        true ->
            [Map];
        false ->
            Text = iolist_to_binary(erlmcp_json:encode(Map)),
            contents(Text, Uri, maps:merge(#{mime_type => ~"application/json"}, Definition),
                     Context)
    end;
contents(Return, _, _, _) ->
    bad_return(resource, Return).

mime_type(Definition) ->
    maps:get(mime_type, Definition, undefined).

%% Adds the sandbox settings of an MCP Apps view to its contents: hosts of 2026-01-26 look for them
%% only there.
beside(Contents, #{ui := _, wire := #{~"_meta" := #{~"ui" := Ui}}}, #{revision := Revision}) when
    Revision >= '2025-06-18'
->
    Contents#{'_meta' => #{~"ui" => Ui}};
beside(Contents, _, _) ->
    Contents.

-spec bad_return(atom(), term()) -> no_return().
bad_return(Kind, Value) ->
    error({bad_return, Kind, Value, expected(Kind, Value)}).

expected(Kind, [C | _]) when is_integer(C) ->
    <<(expected(Kind))/binary, "; this is a string, which is a list of characters">>;
expected(Kind, _) ->
    expected(Kind).

expected(tool) -> ~"a binary, a list of content, a map, {structured, Value} or {error, Text}";
expected(content) -> ~"a binary, or content as erlmcp_content makes it";
expected(prompt) -> ~"a binary, a list of messages, or a map with messages";
expected(message) -> ~"a map with role, user or assistant, and content";
expected(completion) -> ~"a list of binaries, or a map with such a list as values";
expected(resource) ->
    ~"text, {blob, Bytes}, a map, contents as erlmcp_content makes them, or {error, not_found}";
expected(contents) -> ~"contents as erlmcp_content makes them, which have uri, and text or blob";
expected(refuse) -> ~"{refuse, Refusal} with a refusal of erlmcp:refusal/2".

%% The handler ran and returned an error, so the HTTP status is 200.
failed(Kind, Text) ->
    case unicode:characters_to_binary(Text) of
        Text -> erlmcp_refusal:new(internal_error, Text, #{code => -32603, status => 200});
        _ -> bad_return(Kind, {error, Text})
    end.

-doc "Returns `true` if a term is an item of a resource's `contents` (`m:erlmcp_content`).".
-spec is_contents(term()) -> boolean().
is_contents(#{uri := _, text := _}) -> true;
is_contents(#{uri := _, blob := _}) -> true;
is_contents(_) -> false.

%% An item as a client has got it from another server.
is_decoded(#{~"uri" := _, ~"text" := _}) -> true;
is_decoded(#{~"uri" := _, ~"blob" := _}) -> true;
is_decoded(_) -> false.
