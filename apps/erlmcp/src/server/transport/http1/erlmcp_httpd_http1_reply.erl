-module(erlmcp_httpd_http1_reply).
-moduledoc """
What is written on a connection of plain requests (`m:erlmcp_httpd_http1`): heads of answers, and
the chunks of those whose length is not known. Pure.

Source: RFC 9112, sections 4 and 7.1.

Internal.
""".

-export([head/2, framed/1, chunk/2]).

-doc "The head of an answer; that of nearly all is made of few parts.".
-spec head(cowboy:http_status(), cowboy:http_headers()) -> iodata().
head(200, #{~"content-type" := ~"application/json", ~"content-length" := Length,
            ~"date" := Date} = Headers) when map_size(Headers) =:= 3 ->
    [~"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ", Length,
     ~"\r\ndate: ", Date, ~"\r\n\r\n"];
head(Status, Headers) ->
    cow_http:response(Status, 'HTTP/1.1', maps:to_list(Headers)).

-doc "The headers of an answer that comes in pieces, and how it is told that it is whole.".
-spec framed(cowboy:http_headers()) -> {cowboy:http_headers(), length | chunks}.
framed(#{~"content-length" := _} = Headers) -> {Headers, length};
framed(Headers) -> {Headers#{~"transfer-encoding" => ~"chunked"}, chunks}.

-doc "A chunk, the last one or not; nothing for an empty one that is not.".
-spec chunk(fin | nofin, iodata()) -> iodata().
chunk(IsFin, Data) ->
    chunk(IsFin, Data, iolist_size(Data)).

chunk(fin, _, 0) -> ~"0\r\n\r\n";
chunk(nofin, _, 0) -> [];
chunk(fin, Data, Size) -> [integer_to_binary(Size, 16), ~"\r\n", Data, ~"\r\n0\r\n\r\n"];
chunk(nofin, Data, Size) -> [integer_to_binary(Size, 16), ~"\r\n", Data, ~"\r\n"].
