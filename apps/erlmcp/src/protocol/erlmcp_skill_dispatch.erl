-module(erlmcp_skill_dispatch).
-moduledoc """
The requests of the Skills extension that are about one thing: a skill, a folder, a file. All are
answered from the catalog. (`skills/list` is a list like the others.) Pure.
""".

-export([skill/4, directory/4, file/4]).

-doc "The effect of `skills/get`.".
-spec skill(erlmcp_message:id(), Params :: map(), erlmcp_revision:revision(),
            erlmcp_catalog:catalog()) ->
    erlmcp_reply:reply() | {error, erlmcp_refusal:refusal()}.
skill(Id, Params, Revision, Catalog) ->
    maybe
        {ok, Uri} ?= erlmcp_params:string(~"uri", Params),
        {ok, #{encoded := Skill}} ?= found(erlmcp_catalog:known(skill, Uri, Catalog), Uri,
                                           ~"skill"),
        known(Id, {~"skill", Skill}, Revision, Catalog)
    end.

-doc "The effect of `resources/directory/read`.".
-spec directory(erlmcp_message:id(), Params :: map(), erlmcp_revision:revision(),
                erlmcp_catalog:catalog()) ->
    erlmcp_reply:reply() | {error, erlmcp_refusal:refusal()}.
directory(Id, Params, Revision, Catalog) ->
    maybe
        {ok, Uri} ?= erlmcp_params:string(~"uri", Params),
        {ok, Cursor} ?= erlmcp_params:cursor(Params),
        {ok, Page} ?= found(erlmcp_catalog:directory(Uri, Cursor, Revision, Catalog), Uri,
                            ~"directory"),
        erlmcp_reply:result(Id, Page)
    else
        bad_cursor -> {error, erlmcp_params:bad_cursor()};
        {error, _} = Error -> Error
    end.

found({ok, _} = Found, _, _) -> Found;
found(bad_cursor, _, _) -> bad_cursor;
found(error, Uri, What) ->
    Message = [~"no ", What, ~" has the URI ", Uri],
    {error, erlmcp_refusal:new(resource_not_found, Message,
                               #{code => -32602, status => 400, data => #{~"uri" => Uri}})}.

-doc "The answer to `resources/read` for a file of a skill.".
-spec file(erlmcp_message:id(), Contents :: binary(), erlmcp_revision:revision(),
           erlmcp_catalog:catalog()) -> erlmcp_reply:reply().
file(Id, Contents, Revision, Catalog) ->
    known(Id, {~"contents", Contents}, Revision, Catalog).

known(Id, {Member, Encoded}, Revision, Catalog) ->
    erlmcp_reply:result(Id, erlmcp_catalog:result(Member, Encoded, Revision, Catalog)).
