-module(erlmcp_test_skills).
-moduledoc """
The part of a host of skills that suites need: it asks for files, and checks them against their
entry.
""".

-export([result/3, code/3, verify/2, main/2]).

-import(erlmcp_test_client, [ask/3]).

-doc "Returns the text of a main file, with more lines of frontmatter.".
main(Name, More) ->
    <<"---\nname: ", Name/binary, "\ndescription: What it does\n", More/binary, "---\n\n# Text\n">>.

-doc "Sends a request, and returns its result.".
result(Client, Method, Params) ->
    #{~"result" := Result} = ask(Client, Method, Params),
    Result.

-doc "Sends a request, and returns the code of its error.".
code(Client, Method, Params) ->
    #{~"error" := #{~"code" := Code}} = ask(Client, Method, Params),
    Code.

-doc """
Reads each file of an entry, and checks its digest and its size. The main file must have the
frontmatter of the entry.
""".
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
