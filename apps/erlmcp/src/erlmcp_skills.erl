-module(erlmcp_skills).
-moduledoc """
Reads the files of a server's skills with a client (`m:erlmcp_client`), and checks that each file is
the one that the skill's entry describes. A file is read when you ask for it, not before.

```erlang
{ok, [#{~"frontmatter" := #{~"description" := _}} = Skill | _]} = erlmcp_client:list_skills(Client),
{ok, Instructions} = erlmcp_skills:load(Client, Skill)
```

Source: the extension `io.modelcontextprotocol/skills`.
""".

-export([load/2, load/3, read/3, read/4]).

-export_type([skill/0, reason/0]).

-doc """
An entry of `erlmcp_client:list_skills/1`. `uri` is the URI of its `SKILL.md`, and `frontmatter` the
fields at the beginning of that file. `resources` is the list of all files, each with its `uri`,
`size` in bytes and `digest`.
""".
-type skill() :: #{binary() => term()}.
-doc """
The reason why a file could not be read. `not_in_skill`: the skill has no file with that URI.
`unverified`: the server sent a file that is not the one that the entry describes. `unreadable`: the
library cannot read the frontmatter of the file; it expected `Expected` in `Line`.
""".
-type reason() ::
    erlmcp_client:reason()
    | {not_in_skill, Uri :: binary()}
    | {unverified, size | digest | frontmatter, Uri :: binary()}
    | {unreadable, {Line :: pos_integer(), Expected :: binary()}, Uri :: binary()}.

-doc """
Returns the `SKILL.md` of a skill, after a check of its size, digest and frontmatter. If the check
fails, do not use the skill, and do not read its other files. The error is then
`{unverified, What, Uri}`. A frontmatter in YAML that this library does not read, such as a text
without quotes over several lines, cannot be checked: `{unreadable, {Line, Expected}, Uri}`.
""".
-spec load(erlmcp_client:client(), skill()) -> {ok, binary()} | {error, reason()}.
load(Client, Skill) ->
    load(Client, Skill, #{}).

-doc "Returns the `SKILL.md` as `load/2` does, with options.".
-spec load(erlmcp_client:client(), skill(), erlmcp_client:call_options()) ->
    {ok, binary()} | {error, reason()}.
load(Client, #{~"uri" := Uri} = Skill, Options) ->
    case read(Client, Skill, Uri, Options) of
        {ok, Text} ->
            case {erlmcp_frontmatter:parse(Text), Skill} of
                %% Many servers write the number 1.0 of a file as 1.
                {{ok, Frontmatter}, #{~"frontmatter" := Entry}} when Frontmatter == Entry ->
                    {ok, Text};
                {{ok, _}, _} -> {error, {unverified, frontmatter, Uri}};
                {{error, Unreadable}, _} -> {error, {unreadable, Unreadable, Uri}}
            end;
        {error, _} = Error ->
            Error
    end.

-doc """
Returns the file of a skill at `Uri`, after a check of the file's size and digest. The errors are
those of `t:reason/0`.
""".
-spec read(erlmcp_client:client(), skill(), Uri :: binary()) -> {ok, binary()} | {error, reason()}.
read(Client, Skill, Uri) ->
    read(Client, Skill, Uri, #{}).

-doc "Returns a file as `read/3` does, with options.".
-spec read(erlmcp_client:client(), skill(), Uri :: binary(), erlmcp_client:call_options()) ->
    {ok, binary()} | {error, reason()}.
read(Client, Skill, Uri, Options) ->
    %% An entry of a wrong server may have none.
    Files = case Skill of
        #{~"resources" := Resources} when is_list(Resources) -> Resources;
        #{} -> []
    end,
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
