-module(erlmcp_mount).
-moduledoc """
Adds the definitions of a mounted server to the catalog of the server that mounts it. Their names
and URIs get a prefix, which handlers do not see. Pure.

| of the mounted server | mounted as `files` |
| --- | --- |
| `read` (tool, prompt) | `files_read` |
| `data://info` | `data://files/info` |
| `data://{id}` | `data://files/{id}` |
| `urn:isbn:1` | `urn:files/isbn:1` |

Internal.
""".

-export([check/1, uri/2]).
-export([mount/6, unmount/2]).

-export_type([prefix/0, offers/0, left_out/0, since/0, mounted/0]).

-type prefix() :: binary().
-doc "A fun that returns `true` if the mounted server itself has a resource at `Uri`.".
-type offers() :: fun((Uri :: binary()) -> boolean()).
-doc "A definition of a mounted server that is not offered, and the reason.".
-type left_out() ::
    {duplicate, erlmcp_definition:kind(), Key :: binary()}
    | {bad_definition, erlmcp_definition:kind(), Key :: binary(), Field :: atom(),
       Expected :: binary()}.
-doc """
The state of an earlier mount: `erlmcp_catalog_entries:next/1` of the mounted server at that time, 0
for no earlier mount, and the definitions that were left out.
""".
-type since() :: {erlmcp_catalog_entries:position(), [left_out()]}.
-doc """
The entries with the mounted definitions, the extensions that these need, and the definitions that
are left out. `changed` has, for each changed kind, the first position at which its list has
changed, or is `all` if all definitions were mounted again.
""".
-type mounted() :: #{
    entries := erlmcp_catalog_entries:entries(), extensions := erlmcp_extension:extensions(),
    changed := #{erlmcp_definition:kind() => erlmcp_catalog_entries:position()} | all,
    left_out := [left_out()]
}.

%% "Tool names SHOULD be between 1 and 128 characters in length (inclusive)."
-define(MAX_NAME, 128).
-define(MAX_URI, 8192).
-define(MAX_PREFIX, 64).

%% 1 to 64 characters of `a-z`, `0-9`, `_` and `-`, of which the first is alphanumeric. Capitals are
%% excluded, since the prefix becomes the host of URIs, which clients convert to lower case.
is_prefix(Prefix) when is_binary(Prefix), byte_size(Prefix) =< ?MAX_PREFIX ->
    re:run(Prefix, "^[a-z0-9][a-z0-9_-]*$", [{capture, none}, dollar_endonly]) =:= match;
is_prefix(_) ->
    false.

-doc """
Checks the value of the option `mounts`: pairs of a prefix, which may occur once, and a server. A
prefix has 1 to 64 characters of `a-z`, `0-9`, `_` and `-`, of which the first is a letter or a
digit. `duplicate` has a prefix that occurs twice. `expected` says what is expected in place of a
value of another form.
""".
-spec check(term()) -> ok | {expected, binary()} | {error, {duplicate, mount, binary()}}.
check(Mounts) ->
    case prefixes(Mounts, []) of
        {ok, Prefixes} ->
            case Prefixes -- lists:usort(Prefixes) of
                [] -> ok;
                [Twice | _] -> {error, {duplicate, mount, Twice}}
            end;
        error ->
            {expected, ~"a list of {Prefix, Server}, prefixes of a-z, 0-9, _ and -"}
    end.

prefixes([{Prefix, _} | Mounts], Prefixes) ->
    case is_prefix(Prefix) of
        true -> prefixes(Mounts, [Prefix | Prefixes]);
        false -> error
    end;
prefixes([], Prefixes) ->
    {ok, Prefixes};
prefixes(_, _) ->
    error.

-doc """
Returns a URI, or the text of a URI template, under a prefix: `data://info` under `files` is
`data://files/info`.
""".
-spec uri(prefix(), binary()) -> binary().
uri(Prefix, Uri) ->
    {Scheme, Rest} = parts(Uri),
    <<Scheme/binary, Prefix/binary, $/, Rest/binary>>.

%% `scheme://`, `scheme:` or nothing, and the rest. A template's expression is not a scheme.
parts(Uri) ->
    case re:run(Uri, "^[A-Za-z][A-Za-z0-9+.-]*:(?://)?", [{capture, first}]) of
        {match, [{0, Size}]} ->
            <<Scheme:Size/binary, Rest/binary>> = Uri,
            {Scheme, Rest};
        nomatch ->
            {~"", Uri}
    end.

-doc """
Mounts the definitions `Mounted` of a server under `Prefix`, except skills and their files.
Definitions that the server no longer offers are removed, and unchanged ones keep their positions. A
definition is left out if its name or URI is taken, or too long with the prefix. A name may have at
most 128 bytes, and a URI 8,192. A URI in a handler's result gets the prefix, too, if `Offers`
returns `true` for it. All handlers are wrapped in the middleware of the settings, and each
definition gets a row of this server's meter.
""".
-spec mount(Prefix :: prefix(), since(), Mounted :: erlmcp_catalog_entries:entries(), offers(),
            erlmcp_catalog:settings(), erlmcp_catalog_entries:entries()) -> mounted().
mount(Prefix, {Since, LeftOutBefore}, Mounted, Offers, Settings, Before) ->
    Compile = fun(Kind, Definition) ->
        erlmcp_middleware:of_mounted(Kind, definition(Prefix, Kind, Definition, Offers), Settings)
    end,
    #{left_out := LeftOut} = Next = case changed(Since, Mounted) of
        {ok, Changed} ->
            {Rest, Gone} = remove_changed(Changed, Prefix, Before),
            {Free, LeftOutStill} =
                lists:partition(fun(Reason) -> has_room(Reason, Rest) end,
                                unchanged(LeftOutBefore, Changed, Prefix)),
            Again = [{Kind, Own, Definition}
                     || {duplicate, Kind, Key} <- Free, Own <- [own(Prefix, Kind, Key)],
                        {_, Definition} <- [erlmcp_catalog_entries:find(Kind, Own, Mounted)]],
            added([{Kind, Compile(Kind, Definition)}
                   || {Kind, _, #{handler := _} = Definition} <- Again ++ Changed],
                  Prefix, Rest, nothing(Rest, Gone, LeftOutStill));
        all ->
            All = [{Kind, Compile(Kind, Definition)}
                   || Kind <- erlmcp_catalog_entries:kinds(),
                      #{handler := _} = Definition
                          <- erlmcp_catalog_entries:definitions(Kind, Mounted)],
            #{entries := Entries} = Whole =
                added(All, Prefix, Before, nothing(unmount(Prefix, Before), #{}, [])),
            Whole#{entries := erlmcp_catalog_entries:whole(Entries), changed := all}
    end,
    Next#{left_out := lists:reverse(LeftOut)}.

%% Returns the changes since the earlier mount. A view that is added or removed also changes the
%% tool that names it, so all definitions are mounted again then.
changed(Since, Mounted) ->
    maybe
        {ok, Changed} ?= erlmcp_catalog_entries:since(Since, Mounted),
        false ?= lists:any(fun({Kind, Key, _}) -> Kind =/= tool andalso Kind =/= prompt
                                                  andalso erlmcp_ui:may_be_view(Key)
                           end, Changed),
        {ok, Changed}
    else
        _ -> all
    end.

%% Removes changed definitions, even those that are offered again.
remove_changed(Changed, Prefix, Before) ->
    lists:foldl(
        fun({Kind, Own, _}, {Entries, Gone}) ->
            Key = key(Prefix, Kind, Own),
            case erlmcp_catalog_entries:find(Kind, Key, Entries) of
                {Position, #{mounted := Prefix}} ->
                    {erlmcp_catalog_entries:remove(Kind, Key, Entries), from(Kind, Position, Gone)};
                _ ->
                    {Entries, Gone}
            end
        end, {Before, #{}}, Changed).

%% Records the first position at which a list differs.
from(Kind, Position, Changed) ->
    Changed#{Kind => min(Position, maps:get(Kind, Changed, Position))}.

%% Returns the left-out definitions that have not changed; changed ones are mounted again anyway.
unchanged([], _, _) ->
    [];
unchanged(LeftOut, Changed, Prefix) ->
    Keys = #{{Kind, key(Prefix, Kind, Own)} => [] || {Kind, Own, _} <- Changed},
    [Reason || Reason <- LeftOut,
               not is_map_key({element(2, Reason), element(3, Reason)}, Keys)].

has_room({duplicate, Kind, Key}, Entries) ->
    erlmcp_catalog_entries:find(Kind, Key, Entries) =:= error;
has_room(_, _) -> false.

%% The result before the first definition is added. `left_out` is in reverse order until `mount/6`
%% returns.
nothing(Entries, Changed, LeftOut) ->
    #{entries => Entries, extensions => #{}, changed => Changed,
      left_out => lists:reverse(LeftOut)}.

added(Definitions, Prefix, Before, Nothing) ->
    lists:foldl(
        fun({Kind, #{key := Key} = Definition}, #{entries := Entries} = Mounted) ->
            #{extensions := Extensions, changed := Changed, left_out := LeftOut} = Mounted,
            maybe
                ok ?= fits(Kind, Key),
                Next = erlmcp_catalog_entries:next(Entries),
                Position = position(Kind, Key, Prefix, Before, Next),
                {ok, More} ?= erlmcp_catalog_entries:add(Position, Kind, Definition, Before,
                                                         Entries),
                Needed = erlmcp_definition:extensions(Kind, Definition),
                Mounted#{entries := More, extensions := maps:merge(Extensions, Needed),
                         changed := from(Kind, Position, Changed)}
            else
                {error, Reason} -> Mounted#{left_out := [Reason | LeftOut]}
            end
        end, Nothing, Definitions).

position(Kind, Key, Prefix, Before, Next) ->
    case erlmcp_catalog_entries:find(Kind, Key, Before) of
        {Position, #{mounted := Prefix}} -> Position;
        _ -> Next
    end.

fits(Kind, Name) when Kind =:= tool; Kind =:= prompt ->
    bounded(Kind, name, Name, ?MAX_NAME, ~"at most 128 bytes with the prefix of its mount");
fits(resource, Uri) ->
    bounded(resource, uri, Uri, ?MAX_URI, ~"at most 8192 bytes with the prefix of its mount");
fits(resource_template, Text) ->
    bounded(resource_template, uri_template, Text, ?MAX_URI,
            ~"at most 8192 bytes with the prefix of its mount").

bounded(_, _, Key, Max, _) when byte_size(Key) =< Max -> ok;
bounded(Kind, Field, Key, _, Expected) -> {error, {bad_definition, Kind, Key, Field, Expected}}.

-doc "Removes the definitions that are mounted under a prefix.".
-spec unmount(prefix(), erlmcp_catalog_entries:entries()) -> erlmcp_catalog_entries:entries().
unmount(Prefix, Entries) ->
    erlmcp_catalog_entries:filter(fun(_, #{mounted := Of}) -> Of =/= Prefix; (_, _) -> true end,
                                  Entries).

%% Returns a definition of the mounted server with the prefix. The handler gets its own name or URI,
%% without the prefix. URIs of the server's resources in its results get the prefix.
definition(Prefix, Kind, #{key := Own, handler := Handler} = Definition, Offers) ->
    Key = key(Prefix, Kind, Own),
    Inward = inward(Kind, Own, Prefix),
    %% The mounted server's own handler is already wrapped in these.
    Bare = maps:without([middleware, cache, max_calls, rates, breaker, workers], Definition),
    completions(Inward, named(Kind, Key, Prefix, Offers, Bare#{
        key := Key, mounted => Prefix,
        handler := fun(Arguments, Context) ->
            returned(Kind, Handler(Arguments, Inward(Context)), Inward, Prefix, Offers)
        end})).

%% The separator is `_`, and not `.` or `/`, since all clients allow it in tool names.
key(Prefix, Kind, Name) when Kind =:= tool; Kind =:= prompt -> <<Prefix/binary, $_, Name/binary>>;
key(Prefix, _, Uri) -> uri(Prefix, Uri).

own(Prefix, Kind, Name) when Kind =:= tool; Kind =:= prompt ->
    binary:part(Name, byte_size(Prefix) + 1, byte_size(Name) - byte_size(Prefix) - 1);
own(Prefix, _, Uri) ->
    own_uri(Prefix, Uri).

named(resource, Uri, _, _, #{wire := Wire} = Definition) ->
    Definition#{uri := Uri, wire := Wire#{~"uri" := Uri}};
named(resource_template, Text, _, _, #{wire := Wire} = Definition) ->
    {ok, Template} = erlmcp_uri_template:compile(Text),
    Definition#{uri_template := Text, template := Template, wire := Wire#{~"uriTemplate" := Text}};
named(_, Name, Prefix, Offers, #{wire := Wire} = Definition) ->
    Definition#{name := Name, wire := interface(Wire#{~"name" := Name}, Prefix, Offers)}.

%% Adds the prefix to the URI with which a tool names its MCP Apps view.
interface(#{~"_meta" := #{~"ui" := #{~"resourceUri" := Uri} = Ui} = Meta} = Wire, Prefix, Offers)
  when is_binary(Uri) ->
    Public = public(Uri, Prefix, Offers),
    %% Hosts from before 2026 read this key instead.
    Flat = #{~"ui/resourceUri" => Public || is_map_key(~"ui/resourceUri", Meta)},
    Wire#{~"_meta" := maps:merge(Meta#{~"ui" := Ui#{~"resourceUri" := Public}}, Flat)};
interface(Wire, _, _) ->
    Wire.

completions(Inward, #{complete := Complete} = Definition) ->
    Mounted = fun(Fun) when is_function(Fun, 2) ->
                      fun(Value, Context) -> Fun(Value, Inward(Context)) end;
                 (Values) ->
                      Values
              end,
    Definition#{complete := #{Name => Mounted(Values) || Name := Values <- Complete}};
completions(_, Definition) ->
    Definition.

inward(Kind, Own, _) when Kind =:= tool; Kind =:= prompt ->
    fun(Context) -> Context#{name := Own} end;
inward(_, _, Prefix) ->
    fun(#{uri := Uri} = Context) -> Context#{uri := own_uri(Prefix, Uri)} end.

%% Returns a URI without the prefix.
own_uri(Prefix, Uri) ->
    {Scheme, Rest} = parts(Uri),
    Size = byte_size(Prefix),
    <<Prefix:Size/binary, $/, Own/binary>> = Rest,
    <<Scheme/binary, Own/binary>>.

%% The continuation of a call that becomes a task is wrapped in the same way as its handler.
returned(tool, {task, Continue}, Inward, Prefix, Offers) when is_function(Continue, 1) ->
    {task, fun(Context) ->
        returned(tool, Continue(Inward(Context)), Inward, Prefix, Offers)
    end};
returned(Kind, {ok, Return}, _, Prefix, Offers) ->
    {ok, outward(Kind, Return, Prefix, Offers)};
returned(Kind, Return, _, Prefix, Offers) ->
    outward(Kind, Return, Prefix, Offers).

outward(tool, {error, Content}, Prefix, Offers) when is_list(Content) ->
    {error, content(Content, Prefix, Offers)};
outward(tool, Content, Prefix, Offers) when is_list(Content) ->
    content(Content, Prefix, Offers);
outward(prompt, #{messages := Messages} = Return, Prefix, Offers) ->
    Return#{messages := outward(prompt, Messages, Prefix, Offers)};
outward(prompt, Messages, Prefix, Offers) when is_list(Messages) ->
    [message(Message, Prefix, Offers) || Message <- Messages];
outward(_, [#{} | _] = Contents, Prefix, Offers) ->
    [located(Item, Prefix, Offers) || Item <- Contents];
outward(Kind, #{} = Map, Prefix, Offers) when Kind =/= tool ->
    case erlmcp_result:is_contents(Map) of
        true -> located(Map, Prefix, Offers);
        false -> Map
    end;
outward(_, Return, _, _) ->
    Return.

message(#{content := Content} = Message, Prefix, Offers) ->
    Message#{content := item(Content, Prefix, Offers)};
message(Message, _, _) ->
    Message.

content(Items, Prefix, Offers) ->
    [item(Item, Prefix, Offers) || Item <- Items].

item(#{type := ~"resource_link"} = Link, Prefix, Offers) ->
    located(Link, Prefix, Offers);
item(#{type := ~"resource", resource := Resource} = Embedded, Prefix, Offers) ->
    Embedded#{resource := located(Resource, Prefix, Offers)};
item(Item, _, _) ->
    Item.

located(#{uri := Uri} = Item, Prefix, Offers) when is_binary(Uri) ->
    Item#{uri := public(Uri, Prefix, Offers)};
%% An item as a client has got it from another server.
located(#{~"uri" := Uri} = Item, Prefix, Offers) when is_binary(Uri) ->
    Item#{~"uri" := public(Uri, Prefix, Offers)};
located(Item, _, _) ->
    Item.

public(Uri, Prefix, Offers) ->
    case Offers(Uri) of
        true -> uri(Prefix, Uri);
        false -> Uri
    end.
