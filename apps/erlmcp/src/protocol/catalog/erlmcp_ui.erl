-module(erlmcp_ui).
-moduledoc """
The field `ui` of definitions, for MCP Apps. In a tool it names the view of the tool's results; a
resource with the field is such a view. The field is checked here and put into `_meta`. Pure.

Source: MCP Apps of 2026-01-26, <https://github.com/modelcontextprotocol/ext-apps>.

Internal.
""".

-export([with_meta/2, check_meta/2, view_of/1, may_be_view/1, is_used/1]).

-export_type([tool/0, view/0]).

-doc """
The field `ui` of a tool.

- `resource_uri`: the URI, of the scheme `ui`, of the resource of this server that shows the tool's
  results.
- `visibility`: the callers of the tool: the `model`, the `app` (a view), or both (the default).
""".
-type tool() :: #{resource_uri => binary(), visibility => [model | app, ...]}.
-doc """
The field `ui` of a resource whose URI has the scheme `ui`: the sandbox that the view asks for.

- `csp`: the origins that the view may load from; none by default. `connect_domains` for requests,
  `resource_domains` for images, scripts, styles and fonts, `frame_domains` for frames,
  `base_uri_domains` for its base URI.
- `permissions`: some of `camera`, `microphone`, `geolocation` and `clipboard_write`.
- `domain`: an origin for the view alone, in the form that the host documents.
- `prefers_border`: whether the view asks for a border and a background.
""".
-type view() :: #{
    csp => #{connect_domains | resource_domains | frame_domains | base_uri_domains => [binary()]},
    permissions => [camera | microphone | geolocation | clipboard_write],
    domain => binary(),
    prefers_border => boolean()
}.

-doc """
Converts the `ui` of a definition to `_meta`, and gives a view the media type of views. The error
has the wrong field and what was expected there.
""".
-spec with_meta(erlmcp_definition:kind(), erlmcp_definition:source()) ->
    {ok, erlmcp_definition:source()} | {error, Field :: atom(), Expected :: binary()}.
with_meta(_, #{ui := _, meta := #{ui := _}}) -> {error, ui, ~"no ui in meta next to it"};
with_meta(_, #{ui := _, meta := #{~"ui" := _}}) -> {error, ui, ~"no ui in meta next to it"};
with_meta(tool, #{ui := Ui} = Source) -> described(fun tool/2, Ui, Source);
with_meta(resource, #{uri := <<"ui://", _/binary>>} = Source) -> view(Source);
with_meta(resource_template, #{uri_template := <<"ui://", _/binary>>} = Source) -> view(Source);
with_meta(_, #{ui := _}) -> {error, ui, ~"a URI of the scheme ui"};
with_meta(_, Source) -> {ok, Source}.

view(Source) ->
    View = erlmcp_extension:view_type(),
    case maps:get(mime_type, Source, View) of
        View -> described(fun view/2, maps:get(ui, Source, #{}), Source#{mime_type => View});
        _ -> {error, mime_type, <<View/binary, " for a URI of the scheme ui">>}
    end.

described(Field, Ui, Source) ->
    try maps:fold(fun(Name, Value, Known) -> maps:merge(Known, Field(Name, Value)) end, #{}, Ui) of
        Known when map_size(Known) =:= 0 ->
            {ok, Source};
        Known ->
            Meta = maps:get(meta, Source, #{}),
            Older = case Known of
                %% The key from before 2026, for hosts that read only that one.
                #{~"resourceUri" := Uri} -> #{~"ui/resourceUri" => Uri};
                #{} -> #{}
            end,
            {ok, Source#{meta => (maps:merge(Older, Meta))#{~"ui" => Known}}}
    catch
        throw:Expected -> {error, ui, Expected}
    end.

tool(resource_uri, Uri) ->
    case Uri of
        <<"ui://", _, _/binary>> -> #{~"resourceUri" => text(Uri, resource_uri)};
        _ -> throw(~"resource_uri: a URI of the scheme ui")
    end;
tool(visibility, Visibility) ->
    case lists:member(Visibility, [[model], [app], [model, app], [app, model]]) of
        true -> #{~"visibility" => Visibility};
        false -> throw(~"visibility: a list of model, app or both")
    end;
tool(_, _) ->
    throw(~"resource_uri and visibility alone").

view(csp, Csp) when is_map(Csp) ->
    #{~"csp" => maps:fold(fun(Name, Origins, Known) -> Known#{csp(Name) => origins(Name, Origins)}
                          end, #{}, Csp)};
view(csp, _) ->
    throw(~"csp: a map");
view(permissions, Permissions) when length(Permissions) >= 0 ->
    #{~"permissions" => #{permission(Permission) => #{} || Permission <- Permissions}};
view(permissions, _) ->
    throw(~"permissions: a list");
view(domain, Domain) when is_binary(Domain), Domain =/= ~"" ->
    #{~"domain" => text(Domain, domain)};
view(domain, _) ->
    throw(~"domain: a non-empty binary");
view(prefers_border, Prefers) when is_boolean(Prefers) ->
    #{~"prefersBorder" => Prefers};
view(prefers_border, _) ->
    throw(~"prefers_border: true or false");
view(_, _) ->
    throw(~"csp, permissions, domain and prefers_border alone").

text(Text, Field) ->
    case unicode:characters_to_binary(Text) of
        Text -> Text;
        _ -> throw(<<(atom_to_binary(Field))/binary, ": UTF-8">>)
    end.

csp(connect_domains) -> ~"connectDomains";
csp(resource_domains) -> ~"resourceDomains";
csp(frame_domains) -> ~"frameDomains";
csp(base_uri_domains) -> ~"baseUriDomains";
csp(_) -> throw(~"csp: connect_domains, resource_domains, frame_domains, base_uri_domains alone").

%% The host puts these origins into a header, so they must not contain characters that end a
%% directive.
origins(Name, Origins) ->
    try lists:all(fun is_origin/1, Origins) of
        true -> Origins;
        false -> no_origins(Name)
    catch
        error:_ -> no_origins(Name)
    end.

-spec no_origins(atom()) -> no_return().
no_origins(Name) ->
    throw(<<(atom_to_binary(Name))/binary, ": a list of origins such as https://*.example.com">>).

is_origin(Origin) ->
    re:run(Origin, "^(https?|wss?)://(\\*\\.)?([A-Za-z0-9.-]+|\\[[0-9A-Fa-f:]+\\])(:[0-9]{1,5})?$",
           [{capture, none}, dollar_endonly]) =:= match.

permission(camera) -> ~"camera";
permission(microphone) -> ~"microphone";
permission(geolocation) -> ~"geolocation";
permission(clipboard_write) -> ~"clipboardWrite";
permission(_) -> throw(~"permissions: of camera, microphone, geolocation and clipboard_write").

-doc """
Checks that the URI of the view that a tool names in its `_meta`, if there is one, is a binary. The
error has the field `meta` and what was expected there.
""".
-spec check_meta(erlmcp_definition:kind(), Wire :: #{binary() => term()}) ->
    ok | {error, meta, Expected :: binary()}.
check_meta(tool, #{~"_meta" := #{~"ui" := #{~"resourceUri" := Uri}}}) when not is_binary(Uri) ->
    {error, meta, ~"resourceUri of ui: a URI"};
check_meta(_, _) ->
    ok.

-doc "Returns the URI of the view that shows a tool's results, or `none` if the tool has no view.".
-spec view_of(erlmcp_definition:definition()) -> {ok, binary()} | none.
view_of(#{wire := #{~"_meta" := #{~"ui" := #{~"resourceUri" := Uri}}}}) -> {ok, Uri};
view_of(_) -> none.

-doc "Returns `true` if a URI, or a URI that a template matches, may be the view of a tool.".
-spec may_be_view(binary()) -> boolean().
may_be_view(Text) ->
    [Literal | _] = binary:split(Text, ~"{"),
    Size = min(byte_size(Literal), byte_size(~"ui://")),
    binary:part(Literal, 0, Size) =:= binary:part(~"ui://", 0, Size).

-doc "Returns `true` if the `_meta` of a definition has `ui`, or if the definition is a view.".
-spec is_used(erlmcp_definition:definition()) -> boolean().
is_used(#{wire := #{~"_meta" := #{~"ui" := _}}}) -> true;
is_used(#{wire := #{~"mimeType" := Type}}) -> Type =:= erlmcp_extension:view_type();
is_used(_) -> false.
