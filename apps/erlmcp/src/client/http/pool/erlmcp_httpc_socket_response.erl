-module(erlmcp_httpc_socket_response).
-moduledoc """
Parses an HTTP/1.1 response: its head, and then the parts of its body. Pure.

Source: RFC 9112.

Internal.
""".

-export([head/2, body/2]).

-export_type([body/0]).

-doc """
The rest of a body: a number of bytes, chunks, trailers, or all bytes until the connection is
closed. `whole` means that the body is complete; `surplus` that it is complete, but more bytes
follow.
""".
-type body() ::
    {length, pos_integer()}
    | {chunks, cow_http_te:state(), Held :: binary()}
    | {trailers, Held :: binary()}
    | until_closed | whole | surplus.

%% The most bytes of a head, and the most headers in it.
-define(HEAD, 100_000).
-define(HEADERS, 100).
%% The most bytes between chunks, and of trailers.
-define(BETWEEN, 10_000).
%% The most digits of a body's length.
-define(DIGITS, 18).

-doc """
Parses the head at the beginning of a binary. Returns the status, the headers, the state for
`body/2`, and the bytes `Behind` the head. `Closes` is `true` if the connection cannot be used again
after the response. `informed` is an interim response (1xx).

`more` means that the head is not complete. The next call gets all bytes again, together with the
new ones, and this `From`, where the search for the end of the head continues. A head of more than
100,000 bytes or 100 headers is the error `head_too_large`. Any other head that cannot be used is
`malformed`, also one with the status 101.
""".
-spec head(binary(), From :: non_neg_integer()) ->
    {ok, 200..999, erlmcp_httpc_answer:fields(), {body(), Closes :: boolean()}, Behind :: binary()}
    | {informed, Behind :: binary()}
    | {more, From :: non_neg_integer()}
    | {error, malformed | head_too_large}.
head(Bytes, From) ->
    Size = byte_size(Bytes),
    case binary:match(Bytes, ~"\r\n\r\n", [{scope, {From, Size - From}}]) of
        {At, _} when At =< ?HEAD -> parsed(Bytes);
        nomatch when Size =< ?HEAD -> {more, max(0, Size - 3)};
        _ -> {error, head_too_large}
    end.

parsed(Bytes) ->
    try
        {Version, Status, _, Lines} = cow_http:parse_status_line(Bytes),
        {Headers, Behind} = cow_http:parse_headers(Lines),
        case length(Headers) of
            Count when Count > ?HEADERS -> {error, head_too_large};
            _ -> response(Status, Version, erlmcp_httpc_answer:fields(Headers), Behind)
        end
    catch
        %% cowlib crashes on malformed heads.
        error:_ -> {error, malformed}
    end.

%% No request asks to switch protocols.
response(101, _, _, _) ->
    {error, malformed};
response(Status, _, _, Behind) when Status < 200 ->
    {informed, Behind};
response(Status, Version, Fields, Behind) ->
    Body = framed(Status, Version, Fields),
    {ok, Status, Fields, {Body, closes(Body, Version, Fields)}, Behind}.

framed(Status, _, _) when Status =:= 204; Status =:= 304 -> whole;
framed(_, 'HTTP/1.1', #{~"transfer-encoding" := Encoding}) ->
    case cow_http_hd:parse_transfer_encoding(Encoding) of
        [~"chunked"] -> {chunks, {0, 0}, ~""};
        [~"identity"] -> until_closed
    end;
framed(_, _, #{~"content-length" := Digits}) ->
    true = byte_size(Digits) =< ?DIGITS,
    case cow_http_hd:parse_content_length(Digits) of
        0 -> whole;
        Length -> {length, Length}
    end;
framed(_, _, _) -> until_closed.

closes(until_closed, _, _) -> true;
closes(_, 'HTTP/1.0', _) -> true;
%% If a response has both framings, an intermediary may have used the other one.
closes({chunks, _, _}, _, #{~"content-length" := _}) -> true;
closes(_, _, Fields) -> erlmcp_httpc_answer:closes(Fields).

-doc """
Returns the next part of a body from the bytes that have come. `fin` means that it is the last part.
The third element is the state for the next call. The error means that the chunks or trailers are
malformed, or that they need more than 10,000 bytes between the parts of the body.
""".
-spec body(binary(), body()) -> {fin | nofin, Part :: binary(), body()} | {error, malformed}.
body(Bytes, {length, Left}) ->
    case Bytes of
        <<Part:Left/binary>> -> {fin, Part, whole};
        <<Part:Left/binary, _/binary>> -> {fin, Part, surplus};
        _ -> {nofin, Bytes, {length, Left - byte_size(Bytes)}}
    end;
body(Bytes, {chunks, State, Held}) ->
    try cow_http_te:stream_chunked(joined(Held, Bytes), State) of
        more -> held({nofin, ~"", {chunks, State, joined(Held, Bytes)}});
        {more, Part, Next} -> {nofin, Part, {chunks, Next, ~""}};
        {more, Part, Length, Next} when is_integer(Length) -> {nofin, Part, {chunks, Next, ~""}};
        {more, Part, Rest, Next} -> held({nofin, Part, {chunks, Next, Rest}});
        {done, no_trailers, Rest} -> {fin, ~"", end_of_body(Rest)};
        {done, Part, no_trailers, Rest} -> {fin, Part, end_of_body(Rest)};
        {done, trailers, Rest} -> trailers(~"", Rest);
        {done, Part, trailers, Rest} -> trailers(Part, Rest)
    catch
        error:_ -> {error, malformed}
    end;
body(Bytes, {trailers, Held}) ->
    trailers(~"", joined(Held, Bytes));
body(Bytes, until_closed) ->
    {nofin, Bytes, until_closed};
body(Bytes, whole) ->
    {fin, ~"", end_of_body(Bytes)}.

%% Skips trailers.
trailers(Part, Held) ->
    case binary:split(Held, ~"\r\n\r\n") of
        [_, Rest] -> {fin, Part, end_of_body(Rest)};
        [_] -> held({nofin, Part, {trailers, Held}})
    end.

end_of_body(~"") -> whole;
end_of_body(_) -> surplus.

held({nofin, _, {chunks, _, Held}}) when byte_size(Held) > ?BETWEEN -> {error, malformed};
held({nofin, _, {trailers, Held}}) when byte_size(Held) > ?BETWEEN -> {error, malformed};
held(Part) -> Part.

joined(~"", Bytes) -> Bytes;
joined(Held, Bytes) -> <<Held/binary, Bytes/binary>>.
