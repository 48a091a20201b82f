-module(erlmcp_media_type).
-moduledoc "The media type of a file, by the ending of its name. Pure.".

-export([of_file/2]).

-define(TYPES, #{
    ~"md" => ~"text/markdown", ~"markdown" => ~"text/markdown", ~"txt" => ~"text/plain",
    ~"csv" => ~"text/csv", ~"tsv" => ~"text/tab-separated-values", ~"html" => ~"text/html",
    ~"htm" => ~"text/html", ~"css" => ~"text/css", ~"js" => ~"text/javascript",
    ~"mjs" => ~"text/javascript", ~"py" => ~"text/x-python", ~"sh" => ~"application/x-sh",
    ~"json" => ~"application/json", ~"yaml" => ~"application/yaml",
    ~"yml" => ~"application/yaml", ~"toml" => ~"application/toml", ~"xml" => ~"application/xml",
    ~"pdf" => ~"application/pdf", ~"zip" => ~"application/zip", ~"gz" => ~"application/gzip",
    ~"wasm" => ~"application/wasm", ~"svg" => ~"image/svg+xml", ~"png" => ~"image/png",
    ~"jpg" => ~"image/jpeg", ~"jpeg" => ~"image/jpeg", ~"gif" => ~"image/gif",
    ~"webp" => ~"image/webp", ~"ico" => ~"image/vnd.microsoft.icon", ~"mp3" => ~"audio/mpeg",
    ~"wav" => ~"audio/wav", ~"mp4" => ~"video/mp4", ~"ttf" => ~"font/ttf",
    ~"woff2" => ~"font/woff2",
    ~"docx" => ~"application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ~"xlsx" => ~"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ~"pptx" => ~"application/vnd.openxmlformats-officedocument.presentationml.presentation"
}).

-doc """
Returns the media type of a file by the ending of `Name`. For an unknown ending it is that of plain
text or of bytes, by `Content`.
""".
-spec of_file(Name :: binary(), text | bytes) -> binary().
of_file(Name, Content) ->
    case {ending(Name), Content} of
        {Ending, _} when is_map_key(Ending, ?TYPES) -> maps:get(Ending, ?TYPES);
        {_, text} -> ~"text/plain";
        {_, bytes} -> ~"application/octet-stream"
    end.

ending(Name) ->
    case binary:split(Name, ~".", [global]) of
        [_] -> none;
        Parts -> string:lowercase(lists:last(Parts))
    end.
