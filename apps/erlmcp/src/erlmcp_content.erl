-module(erlmcp_content).
-moduledoc """
Makes the content that tools and prompts return, and the contents of resources. Both are maps. Pure.
Bytes are given raw, and are encoded in base64 here.

Most functions take a map of further fields as their last argument, by their names on the wire, such
as `annotations` and `_meta`.

Source: specification, "Server features / Tools / Tool result".
""".

-export([text/1, text/2, image/2, image/3, audio/2, audio/3]).
-export([resource_link/2, resource_link/3, embedded/3, embedded/4]).
-export([text_contents/3, blob_contents/3]).

-export_type([content/0]).

-doc "An item of content: its fields by their names on the wire.".
-type content() :: #{type := binary(), atom() => term()}.

-doc """
Returns text content. `Text` must be UTF-8.

## Examples

```erlang
1> erlmcp_content:text(~"Hello").
#{type => ~"text", text => ~"Hello"}
2> erlmcp_content:text(~"Hello", #{annotations => #{audience => [user], priority => 0.5}}).
#{type => ~"text", text => ~"Hello", annotations => #{audience => [user], priority => 0.5}}
```
""".
-spec text(binary()) -> content().
text(Text) -> text(Text, #{}).

-doc "Returns text with the further fields `Fields`.".
-spec text(binary(), Fields :: map()) -> content().
text(Text, Fields) -> Fields#{type => ~"text", text => Text}.

-doc """
Returns an image, given as its bytes.

## Examples

```erlang
1> erlmcp_content:image(<<137, "PNG">>, ~"image/png").
#{type => ~"image", data => ~"iVBORw==", mimeType => ~"image/png"}
```
""".
-spec image(Bytes :: binary(), MimeType :: binary()) -> content().
image(Bytes, MimeType) -> image(Bytes, MimeType, #{}).

-doc "Returns an image with the further fields `Fields`.".
-spec image(Bytes :: binary(), MimeType :: binary(), Fields :: map()) -> content().
image(Bytes, MimeType, Fields) ->
    Fields#{type => ~"image", data => base64:encode(Bytes), mimeType => MimeType}.

-doc "Returns audio, given as its bytes. Clients of 2024-11-05 get a text that stands for it.".
-spec audio(Bytes :: binary(), MimeType :: binary()) -> content().
audio(Bytes, MimeType) -> audio(Bytes, MimeType, #{}).

-doc "Returns audio with the further fields `Fields`.".
-spec audio(Bytes :: binary(), MimeType :: binary(), Fields :: map()) -> content().
audio(Bytes, MimeType, Fields) ->
    Fields#{type => ~"audio", data => base64:encode(Bytes), mimeType => MimeType}.

-doc """
Returns a link to a resource that the client may read. Clients of revisions before 2025-06-18 get
its name and URI as text.

## Examples

```erlang
1> erlmcp_content:resource_link(~"notes:///1", ~"note 1", #{mimeType => ~"text/plain"}).
#{type => ~"resource_link", uri => ~"notes:///1", name => ~"note 1", mimeType => ~"text/plain"}
```
""".
-spec resource_link(Uri :: binary(), Name :: binary()) -> content().
resource_link(Uri, Name) -> resource_link(Uri, Name, #{}).

-doc "Returns a resource link with the further fields `Fields`, such as `mimeType` and `title`.".
-spec resource_link(Uri :: binary(), Name :: binary(), Fields :: map()) -> content().
resource_link(Uri, Name, Fields) ->
    Fields#{type => ~"resource_link", uri => Uri, name => Name}.

-doc """
Returns a resource together with its `Contents`: text, or `{blob, Bytes}`.

## Examples

```erlang
1> erlmcp_content:embedded(~"notes:///1", ~"text/plain", ~"Hello").
#{type => ~"resource",
  resource => #{uri => ~"notes:///1", mimeType => ~"text/plain", text => ~"Hello"}}
```
""".
-spec embedded(Uri :: binary(), MimeType :: binary(), Contents :: binary() | {blob, binary()}) ->
    content().
embedded(Uri, MimeType, Contents) -> embedded(Uri, MimeType, Contents, #{}).

-doc "Returns an embedded resource. The further fields `Fields` stand next to `resource`.".
-spec embedded(Uri :: binary(), MimeType :: binary(), Contents :: binary() | {blob, binary()},
               Fields :: map()) -> content().
embedded(Uri, MimeType, {blob, Bytes}, Fields) ->
    Fields#{type => ~"resource", resource => blob_contents(Uri, MimeType, Bytes)};
embedded(Uri, MimeType, Text, Fields) ->
    Fields#{type => ~"resource", resource => text_contents(Uri, MimeType, Text)}.

-doc """
Returns one item of a resource's contents: text. The handler of a resource may return one item, or a
list of them. With the MIME type `undefined` the item has no `mimeType`.

## Examples

```erlang
1> erlmcp_content:text_contents(~"notes:///1", undefined, ~"Hello").
#{uri => ~"notes:///1", text => ~"Hello"}
```
""".
-spec text_contents(Uri :: binary(), MimeType :: binary() | undefined, Text :: binary()) -> map().
text_contents(Uri, MimeType, Text) -> with_mime_type(#{uri => Uri, text => Text}, MimeType).

-doc """
Returns one item of a resource's contents: bytes. With the MIME type `undefined` the item has no
`mimeType`.

## Examples

```erlang
1> erlmcp_content:blob_contents(~"notes:///2", ~"image/png", <<137, "PNG">>).
#{uri => ~"notes:///2", mimeType => ~"image/png", blob => ~"iVBORw=="}
```
""".
-spec blob_contents(Uri :: binary(), MimeType :: binary() | undefined, Bytes :: binary()) -> map().
blob_contents(Uri, MimeType, Bytes) ->
    with_mime_type(#{uri => Uri, blob => base64:encode(Bytes)}, MimeType).

with_mime_type(Contents, undefined) -> Contents;
with_mime_type(Contents, MimeType) -> Contents#{mimeType => MimeType}.
