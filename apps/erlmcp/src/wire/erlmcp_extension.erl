-module(erlmcp_extension).
-moduledoc """
Extensions of the protocol as data: their identifiers, the methods that each adds, and the oldest
revision that has them. Pure.

Source: specification 2026-07-28, "Extensions", and the pages of each extension.

Internal.
""".

-export([skills/0, tasks/0, ui/0, view_type/0]).
-export([offers/3, is_method/1, in_revision/2, client_has/2]).

-export_type([extensions/0]).

-doc "Extensions by their identifiers, with their declared settings.".
-type extensions() :: #{binary() => Settings :: map()}.

-doc "Returns the identifier of Skills.".
-spec skills() -> binary().
skills() -> ~"io.modelcontextprotocol/skills".

-doc "Returns the identifier of tasks, which are in the core of 2025-11-25.".
-spec tasks() -> binary().
tasks() -> ~"io.modelcontextprotocol/tasks".

-doc "Returns the identifier of MCP Apps.".
-spec ui() -> binary().
ui() -> ~"io.modelcontextprotocol/ui".

-doc "Returns the media type of views; MCP Apps has only one.".
-spec view_type() -> binary().
view_type() -> ~"text/html;profile=mcp-app".

%% MCP Apps needs only the `_meta` of tools and resources, which 2025-06-18 introduced.
since(~"io.modelcontextprotocol/skills") -> '2025-11-25';
since(~"io.modelcontextprotocol/tasks") -> '2026-07-28';
since(_) -> '2025-06-18'.

-doc """
Returns `true` if one of `Extensions` adds `Method` to `Revision`. The methods of tasks do not
count: `erlmcp_revision:offers/2` has them.
""".
-spec offers(Method :: binary(), Revision :: erlmcp_revision:revision(),
             Extensions :: extensions()) -> boolean().
offers(Method, Revision, Extensions) ->
    case adds(Method) of
        {ok, Extension} -> is_map_key(Extension, in_revision(Revision, Extensions));
        error -> false
    end.

-doc "Returns `true` if an extension, other than that for tasks, adds the request method `Method`.".
-spec is_method(binary()) -> boolean().
is_method(Method) ->
    adds(Method) =/= error.

adds(~"skills/list") -> {ok, skills()};
adds(~"skills/get") -> {ok, skills()};
adds(~"resources/directory/read") -> {ok, skills()};
adds(_) -> error.

-doc "Returns those of the extensions that may be declared to clients of a revision.".
-spec in_revision(erlmcp_revision:revision(), extensions()) -> extensions().
in_revision(Revision, Extensions) ->
    #{Extension => Settings || Extension := Settings <- Extensions, since(Extension) =< Revision}.

-doc """
Returns `true` if the capabilities of a client declare `Extension`, with an object of settings. For
MCP Apps these must have the media type `text/html;profile=mcp-app` among their `mimeTypes`.
""".
-spec client_has(Extension :: binary(), Capabilities :: map()) -> boolean().
client_has(Extension, #{~"extensions" := #{} = Extensions}) ->
    case Extensions of
        #{Extension := #{} = Settings} -> Extension =/= ui() orelse shows_views(Settings);
        #{} -> false
    end;
client_has(_, _) ->
    false.

shows_views(#{~"mimeTypes" := [_ | _] = Types}) -> lists:member(view_type(), Types);
shows_views(_) -> false.
