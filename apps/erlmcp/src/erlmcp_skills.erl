-module(erlmcp_skills).
-moduledoc """
Skills of a server, read by a client (`m:erlmcp_client`): files that are what their skill's entry
said when the user saw it. Nothing is read before it is asked for.

```erlang
{ok, [#{~"frontmatter" := #{~"description" := _}} = Skill | _]} = erlmcp_client:list_skills(Client),
{ok, Instructions} = erlmcp_skills:load(Client, Skill)
```

Source: the extension `io.modelcontextprotocol/skills`.
""".

-export([load/2, load/3, read/3, read/4]).

-export_type([skill/0, reason/0]).

-doc """
An entry as it came: `uri`, that of its `SKILL.md`, the `frontmatter` of that, and `resources`,
every file with its `uri`, `size` in bytes and `digest` (`sha256:` and hexadecimal digits).
""".
-type skill() :: #{binary() => term()}.
-doc """
What `t:erlmcp_client:reason/0` says, or: the skill has no file of that URI, or what came is not the
file that the entry tells of.
""".
-type reason() ::
    erlmcp_client:reason()
    | {not_in_skill, Uri :: binary()}
    | {unverified, size | digest | frontmatter, Uri :: binary()}.

-doc """
The `SKILL.md` of a skill, whose size, digest and frontmatter are those of the entry. Whoever gets
an error must not use the skill, nor read its other files.
""".
-spec load(erlmcp_client:client(), skill()) -> {ok, binary()} | {error, reason()}.
load(Client, Skill) ->
    load(Client, Skill, #{}).

-doc "The same with options.".
-spec load(erlmcp_client:client(), skill(), erlmcp_client_call:options()) ->
    {ok, binary()} | {error, reason()}.
load(Client, #{~"uri" := Uri, ~"frontmatter" := Frontmatter} = Skill, Options) ->
    case read(Client, Skill, Uri, Options) of
        {ok, Text} ->
            case erlmcp_frontmatter:parse(Text) of
                {ok, Frontmatter} -> {ok, Text};
                _ -> {error, {unverified, frontmatter, Uri}}
            end;
        {error, _} = Error ->
            Error
    end.

-doc "A file of a skill, whose size and digest are those of the entry.".
-spec read(erlmcp_client:client(), skill(), Uri :: binary()) -> {ok, binary()} | {error, reason()}.
read(Client, Skill, Uri) ->
    read(Client, Skill, Uri, #{}).

-doc "The same with options.".
-spec read(erlmcp_client:client(), skill(), Uri :: binary(), erlmcp_client_call:options()) ->
    {ok, binary()} | {error, reason()}.
read(Client, #{~"resources" := Files}, Uri, Options) ->
    case [File || #{~"uri" := One} = File <- Files, One =:= Uri] of
        [File] -> verified(erlmcp_client:read_resource(Client, Uri, Options), File);
        _ -> {error, {not_in_skill, Uri}}
    end.

verified({ok, #{~"contents" := [Contents]}}, #{~"uri" := Uri} = File) ->
    case bytes(Contents) of
        {ok, Bytes} ->
            case fault(Bytes, File) of
                none -> {ok, Bytes};
                Fault -> {error, {unverified, Fault, Uri}}
            end;
        error ->
            {error, {protocol, ~"contents: expected text, or a blob in base64"}}
    end;
verified({ok, _}, _) ->
    {error, {protocol, ~"contents: expected one file"}};
verified({error, _} = Error, _) ->
    Error.

bytes(#{~"text" := Text}) when is_binary(Text) ->
    {ok, Text};
bytes(#{~"blob" := Blob}) when is_binary(Blob) ->
    try
        {ok, base64:decode(Blob)}
    catch
        error:_ -> error
    end;
bytes(_) ->
    error.

fault(Bytes, #{~"size" := Size}) when byte_size(Bytes) =/= Size -> size;
fault(Bytes, #{~"digest" := Digest}) ->
    case erlmcp_skill:digest(Bytes) of
        Digest -> none;
        _ -> digest
    end;
fault(_, _) -> digest.
