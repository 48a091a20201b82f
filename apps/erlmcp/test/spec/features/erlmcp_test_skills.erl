-module(erlmcp_test_skills).
-moduledoc """
What a host of skills does, for the suites: it asks, and it checks what it got against the entry.
""".

-export([result/3, code/3, verify/2, main/2]).

-import(erlmcp_test_client, [ask/3]).

-doc "A main file, with more lines of frontmatter.".
main(Name, More) ->
    <<"---\nname: ", Name/binary, "\ndescription: What it does\n", More/binary, "---\n\n# Text\n">>.

-doc "The result of a request.".
result(Client, Method, Params) ->
    #{~"result" := Result} = ask(Client, Method, Params),
    Result.

-doc "The code of its error.".
code(Client, Method, Params) ->
    #{~"error" := #{~"code" := Code}} = ask(Client, Method, Params),
    Code.

-doc "Each file is what its entry says: digest, size, and the main file the frontmatter.".
-spec verify(map(), term()) -> list().
verify(#{~"uri" := Main, ~"frontmatter" := Frontmatter, ~"resources" := Files}, Client) ->
    [begin
         #{~"contents" := [#{~"uri" := Uri} = Item]} =
             result(Client, ~"resources/read", #{uri => Uri}),
         Bytes = case Item of
             #{~"text" := Text} -> Text;
             #{~"blob" := Blob} -> base64:decode(Blob)
         end,
         Size = byte_size(Bytes),
         Digest = <<"sha256:", (binary:encode_hex(crypto:hash(sha256, Bytes), lowercase))/binary>>,
         Uri =:= Main andalso ({ok, Frontmatter} = erlmcp_frontmatter:parse(Bytes))
     end || #{~"uri" := Uri, ~"digest" := Digest, ~"size" := Size} <- Files].
