-module(erlmcp_httpd_http1_message).
-moduledoc """
Reads and writes the messages of HTTP/1.1 for a server: heads of requests, their bodies, heads of
responses, and chunks. A head that is not valid in HTTP/1.1 or HTTP/1.0, or that exceeds a bound, is
refused with a status. Pure.

Source: RFC 9112; RFC 9110.

Internal.
""".

-export([patterns/0, split/2, has_line/1, parse/2, framing/1, body/3]).
-export([head/2, chunk/2]).

-export_type([patterns/0, head/0, body/0, status/0]).

-doc "The patterns for which heads are searched. A listener compiles them once.".
-opaque patterns() :: #{head_end := term(), line_end := term(), space := term(), colon := term(),
                        forbidden := term()}.

-doc """
The head of a request, with the keys that cowboy's requests have for it. `headers` has all fields
except `transfer-encoding`. `host` and `port` come from the request's target or from `Host`; without
a port there, `port` is `undefined`. `host` is empty for a request of HTTP/1.0 that names none.
`body_length` is `undefined` for a body in chunks. `closes` is `true` if the connection ends with
the response.
""".
-type head() :: #{method := binary(), path := binary(), qs := binary(),
                  version := 'HTTP/1.1' | 'HTTP/1.0', headers := #{binary() => binary()},
                  host := binary(), port := undefined | inet:port_number(),
                  has_body := boolean(), body_length := undefined | non_neg_integer(),
                  closes := boolean()}.

-doc """
The part of a body that is still to be read. `{length, Left}`: the last `Left` bytes of a body with
a length. The other values are for a body in chunks, and name the next part:

- `chunk`: the line with a chunk's size;
- `{chunk, Left}`: the last `Left` bytes of a chunk's data;
- `chunk_end`: the line end after a chunk's data;
- `trailers`: the fields after the last chunk, and the empty line.
""".
-opaque body() ::
    {length, Left :: pos_integer()}
    | chunk | {chunk, Left :: pos_integer()} | chunk_end | trailers.

-doc "The HTTP status with which a request is refused.".
-type status() :: 400 | 414 | 417 | 431 | 501 | 505.

%% The most bytes of a request line, a whole head, a name, a value, a host and a method.
%% `Authorization` may be longer: a scheme and the longest accepted token.
-define(REQUEST_LINE, 8_000).
-define(HEAD, 524_288).
-define(NAME, 64).
-define(VALUE, 4_096).
-define(AUTHORIZATION, 16_400).
-define(HOST, 255).
-define(METHOD, 31).
%% The most fields of a head, and the most empty lines before it.
-define(FIELDS, 100).
-define(EMPTY, 5).
%% The most digits of the size of a chunk, and the most bytes behind them in their line.
-define(DIGITS, 16).
-define(EXTENSION, 128).
%% The most bytes of the fields behind a body in chunks.
-define(TRAILERS, 4_096).

%% Names as many clients write them.
-define(CAPITALIZED, #{
    ~"Host" => ~"host", ~"Accept" => ~"accept", ~"Content-Type" => ~"content-type",
    ~"Content-Length" => ~"content-length", ~"User-Agent" => ~"user-agent",
    ~"Authorization" => ~"authorization", ~"Connection" => ~"connection",
    ~"Accept-Encoding" => ~"accept-encoding", ~"Transfer-Encoding" => ~"transfer-encoding",
    ~"MCP-Protocol-Version" => ~"mcp-protocol-version", ~"Mcp-Session-Id" => ~"mcp-session-id",
    ~"Mcp-Method" => ~"mcp-method", ~"Mcp-Name" => ~"mcp-name", ~"Origin" => ~"origin"
}).

-define(IS_UPPER(C), C >= $A, C =< $Z).
-define(IS_TOKEN(C), C >= $a, C =< $z; C >= $0, C =< $9; C =:= $-; C =:= $_; C =:= $!; C =:= $#;
                     C =:= $$; C =:= $%; C =:= $&; C =:= $'; C =:= $*; C =:= $+; C =:= $.;
                     C =:= $^; C =:= $`; C =:= $|; C =:= $~).

-doc "Compiles the patterns for `split/2`, `parse/2` and `body/3`.".
-spec patterns() -> patterns().
patterns() ->
    #{head_end => binary:compile_pattern(~"\r\n\r\n"),
      line_end => binary:compile_pattern(~"\r\n"),
      space => binary:compile_pattern(~" "),
      colon => binary:compile_pattern(~":"),
      forbidden => binary:compile_pattern([~"\r", ~"\n", <<0>>])}.

-doc """
Splits `Bytes` into the first head, without the empty lines around it, and the bytes behind it.
`Seen` is 0 in the first call. If the head is incomplete, returns `more` with another `Seen`. For
the next call, the caller passes this `Seen`, and the same bytes with later ones behind them. The
error is the status of the refusal, and can come before the head is complete.
""".
-spec split({Bytes :: binary(), Seen :: non_neg_integer()}, patterns()) ->
    {ok, Head :: binary(), Behind :: binary()} | {more, Seen :: non_neg_integer()}
    | {error, status()}.
split({<<"\r\n", _/binary>> = Bytes, Seen}, Patterns) ->
    empty_lines(Bytes, Seen, 0, Patterns);
split({Bytes, Seen}, #{head_end := HeadEnd} = Patterns) ->
    From = max(0, Seen - 3),
    Size = byte_size(Bytes),
    case binary:match(Bytes, HeadEnd, [{scope, {From, Size - From}}]) of
        {At, 4} when At =< ?HEAD ->
            <<Head:At/binary, _:4/binary, Behind/binary>> = Bytes,
            {ok, Head, Behind};
        nomatch when Size =< ?HEAD, Seen > ?REQUEST_LINE ->
            {more, Size};
        nomatch when Size =< ?HEAD ->
            begun(Bytes, Patterns);
        _ ->
            {error, 431}
    end.

%% 2.2: "a server that is expecting to receive and parse a request-line SHOULD ignore at least one
%% empty line (CRLF) received prior to the request-line."
empty_lines(<<"\r\n", Bytes/binary>>, Seen, Count, Patterns) when Count < ?EMPTY ->
    empty_lines(Bytes, max(0, Seen - byte_size(~"\r\n")), Count + 1, Patterns);
empty_lines(<<"\r\n", _/binary>>, _, _, _) ->
    {error, 400};
empty_lines(Bytes, Seen, Count, Patterns) ->
    case split({Bytes, Seen}, Patterns) of
        %% The empty lines are skipped again when more bytes have arrived.
        {more, Now} -> {more, Now + Count * byte_size(~"\r\n")};
        Split -> Split
    end.

%% Checks the first line already while the head is incomplete: a client that does not speak HTTP may
%% wait for an answer to its first line.
begun(Bytes, #{line_end := LineEnd} = Patterns) ->
    case binary:split(Bytes, LineEnd) of
        [Line, _] ->
            case request_line(Line, Patterns) of
                {ok, _} -> {more, byte_size(Bytes)};
                {error, _} = Error -> Error
            end;
        %% The line feed may arrive next, here and below.
        [<<_:?REQUEST_LINE/binary, "\r">>] ->
            {more, ?REQUEST_LINE};
        [_] when byte_size(Bytes) > ?REQUEST_LINE ->
            {error, 414};
        [_] ->
            case binary:split(Bytes, [~"\r", ~"\n"]) of
                [_] -> {more, byte_size(Bytes)};
                [_, <<>>] when binary_part(Bytes, byte_size(Bytes), -1) =:= ~"\r" ->
                    {more, byte_size(Bytes)};
                _ -> {error, 400}
            end
    end.

-doc "Returns `true` if `Bytes` have a whole line after any empty lines. The line is not checked.".
-spec has_line(binary()) -> boolean().
has_line(<<"\r\n", Bytes/binary>>) -> has_line(Bytes);
has_line(Bytes) -> binary:match(Bytes, ~"\r\n") =/= nomatch.

-doc "Reads a head that `split/2` has returned. The error is the status of the refusal.".
-spec parse(Head :: binary(), patterns()) -> {ok, head()} | {error, status()}.
parse(Head, #{line_end := LineEnd} = Patterns) ->
    [Line | Lines] = binary:split(Head, LineEnd, [global]),
    maybe
        {ok, {Method, Authority, Path, Query, Version}} ?= request_line(Line, Patterns),
        true ?= length(Lines) =< ?FIELDS orelse {error, 431},
        #{} = Headers ?= fields(Lines, Patterns, #{}),
        {ok, Host, Port} ?= host(Authority, Headers, Version),
        {ok, Closes} ?= closes(Headers, Version),
        {ok, Length} ?= body_length(Headers, Version),
        ok ?= expectation(Headers, Version),
        {ok, #{method => Method, path => Path, qs => Query, version => Version,
               headers => maps:remove(~"transfer-encoding", Headers), host => Host, port => Port,
               has_body => Length =/= 0, body_length => Length, closes => Closes}}
    end.

%% 3: "request-line = method SP request-target SP HTTP-version".
request_line(Line, _) when byte_size(Line) > ?REQUEST_LINE ->
    {error, 414};
request_line(Line, #{space := Space, forbidden := Forbidden}) ->
    maybe
        nomatch ?= binary:match(Line, Forbidden),
        [Method | Words] = binary:split(Line, Space, [global]),
        true ?= is_token(Method),
        ok ?= method(Method),
        [Target, Version] ?= Words,
        true ?= is_visible(Target),
        {ok, Authority, Path, Query} ?= target(Target, Method),
        {ok, Known} ?= version(Version),
        {ok, {Method, Authority, Path, Query, Known}}
    else
        {error, _} = Error -> Error;
        _ -> {error, 400}
    end.

method(Method) when byte_size(Method) > ?METHOD; Method =:= ~"CONNECT"; Method =:= ~"TRACE" ->
    {error, 501};
method(_) ->
    ok.

version(~"HTTP/1.1") -> {ok, 'HTTP/1.1'};
version(~"HTTP/1.0") -> {ok, 'HTTP/1.0'};
version(<<"HTTP/", Major, ".", Minor>>) when Major >= $0, Major =< $9, Minor >= $0, Minor =< $9 ->
    {error, 505};
version(_) -> {error, 400}.

%% 3.2: a target in origin-form, absolute-form or, of OPTIONS, in asterisk-form.
target(<<"/", _/binary>> = Target, _) ->
    path(undefined, Target);
target(~"*", ~"OPTIONS") ->
    {ok, undefined, ~"*", <<>>};
target(Target, _) ->
    case binary:split(Target, ~"://") of
        [Scheme, Rest] when byte_size(Scheme) =< 5 ->
            case cowboy_bstr:to_lower(Scheme) of
                Known when Known =:= ~"http"; Known =:= ~"https" -> absolute(Rest);
                _ -> {error, 400}
            end;
        _ ->
            {error, 400}
    end.

absolute(Rest) ->
    Size = case binary:match(Rest, [~"/", ~"?", ~"#"]) of
        {At, 1} -> At;
        nomatch -> byte_size(Rest)
    end,
    <<Authority:Size/binary, Behind/binary>> = Rest,
    case {Authority, binary:match(Authority, ~"@")} of
        {<<>>, _} -> {error, 400};
        {_, {_, 1}} -> {error, 400};
        {_, nomatch} when Size > ?HOST -> {error, 414};
        _ -> path(Authority, rooted(Behind))
    end.

rooted(<<"/", _/binary>> = Path) -> Path;
rooted(Behind) -> <<"/", Behind/binary>>.

path(Authority, Target) ->
    case binary:match(Target, ~"#") of
        nomatch ->
            case binary:split(Target, ~"?") of
                [Path, Query] -> {ok, Authority, Path, Query};
                [Path] -> {ok, Authority, Path, <<>>}
            end;
        _ ->
            {error, 400}
    end.

is_token(<<C, Rest/binary>>) when ?IS_UPPER(C); ?IS_TOKEN(C) -> Rest =:= <<>> orelse is_token(Rest);
is_token(_) -> false.

%% 3.2: "No whitespace is allowed in the request-target."
is_visible(<<C, Rest/binary>>) when C > $\s, C =/= 127 -> is_visible(Rest);
is_visible(Rest) -> Rest =:= <<>>.

%% 5: "field-line = field-name ":" OWS field-value OWS".
fields([], _, Headers) ->
    Headers;
fields([Line | Lines], #{colon := Colon, forbidden := Forbidden} = Patterns, Headers) ->
    case {binary:match(Line, Colon), binary:match(Line, Forbidden)} of
        {{At, 1}, nomatch} when At > ?NAME ->
            {error, 431};
        {{At, 1}, nomatch} when At > 0 ->
            case lower(binary:part(Line, 0, At)) of
                <<Name/binary>> -> field(Name, value(Line, At + 1), Lines, Patterns, Headers);
                error -> {error, 400}
            end;
        _ ->
            {error, 400}
    end.

field(Name, Value, _, _, _) when byte_size(Value) > ?VALUE,
                                 (Name =/= ~"authorization"
                                  orelse byte_size(Value) > ?AUTHORIZATION) ->
    {error, 431};
field(Name, Value, Lines, Patterns, Headers) ->
    fields(Lines, Patterns, case Headers of
        #{Name := Before} -> Headers#{Name := joined(Name, Before, Value)};
        #{} -> Headers#{Name => Value}
    end).

%% RFC 9110, 5.3: fields of a name are a list; RFC 6265, 5.4: cookies are another one.
joined(~"cookie", Before, Value) -> <<Before/binary, "; ", Value/binary>>;
joined(_, Before, Value) -> <<Before/binary, ", ", Value/binary>>.

%% Returns a name in lower case. Most names are written so, or as in CAPITALIZED, and need no new
%% binary.
lower(Name) ->
    case ?CAPITALIZED of
        #{Name := Lower} -> Lower;
        #{} -> lower(Name, Name)
    end.

lower(<<C, Rest/binary>>, Name) when ?IS_TOKEN(C) -> lower(Rest, Name);
lower(<<C, _/binary>>, Name) when ?IS_UPPER(C) ->
    case is_token(Name) of
        true -> cowboy_bstr:to_lower(Name);
        false -> error
    end;
lower(<<>>, Name) -> Name;
lower(_, _) -> error.

%% Returns the value without the whitespace around it.
value(Line, From) ->
    value(Line, From, byte_size(Line) - 1).

value(Line, From, Last) when From =< Last ->
    case {binary:at(Line, From), binary:at(Line, Last)} of
        {C, _} when C =:= $\s; C =:= $\t -> value(Line, From + 1, Last);
        {_, C} when C =:= $\s; C =:= $\t -> value(Line, From, Last - 1);
        _ -> binary:part(Line, From, Last - From + 1)
    end;
value(_, _, _) ->
    <<>>.

%% 3.2.2: "When an origin server receives a request with an absolute-form of request-target, the
%% origin server MUST ignore the received Host header field (if any) and instead use the host
%% information of the request-target."
host(Authority, #{~"host" := Host}, _) when byte_size(Host) =< ?HOST ->
    maybe
        {ok, _, _} ?= authority(Host),
        authority(case Authority of
                      undefined -> Host;
                      _ -> Authority
                  end)
    end;
host(_, #{~"host" := _}, _) ->
    {error, 414};
host(_, _, 'HTTP/1.1') ->
    {error, 400};
host(undefined, _, _) ->
    {ok, <<>>, undefined};
host(Authority, _, _) ->
    authority(Authority).

authority(Authority) ->
    try cow_http_hd:parse_host(Authority) of
        {Host, Port} when Port =:= undefined; Port > 0, Port =< 65_535 -> {ok, Host, Port};
        _ -> {error, 400}
    catch
        error:_ -> {error, 400}
    end.

%% 9.3: which connections persist.
closes(#{~"connection" := Options}, Version) ->
    try cow_http_hd:parse_connection(Options) of
        Known ->
            {ok, lists:member(~"close", Known)
                 orelse (Version =:= 'HTTP/1.0' andalso not lists:member(~"keep-alive", Known))}
    catch
        error:_ -> {error, 400}
    end;
closes(_, Version) ->
    {ok, Version =:= 'HTTP/1.0'}.

%% 6.3: the length of a request's body. 6.1: "A server or client that receives an HTTP/1.0 message
%% containing a Transfer-Encoding header field MUST treat the message as if the framing is faulty".
body_length(#{~"transfer-encoding" := _, ~"content-length" := _}, _) ->
    {error, 400};
body_length(#{~"transfer-encoding" := _}, 'HTTP/1.0') ->
    {error, 400};
body_length(#{~"transfer-encoding" := Codings}, _) ->
    try lists:reverse(cow_http_hd:parse_transfer_encoding(Codings)) of
        [~"chunked"] -> {ok, undefined};
        %% "A server that receives a request message with a transfer coding it does not understand
        %% SHOULD respond with 501"; without chunked as the last the length is not known: 400.
        [~"chunked" | Others] ->
            case lists:member(~"chunked", Others) of
                true -> {error, 400};
                false -> {error, 501}
            end;
        _ -> {error, 400}
    catch
        error:_ -> {error, 400}
    end;
body_length(#{~"content-length" := Digits}, _) ->
    case is_number_text(Digits) of
        true -> {ok, binary_to_integer(Digits)};
        false -> {error, 400}
    end;
body_length(_, _) ->
    {ok, 0}.

is_number_text(<<C, Rest/binary>>) when C >= $0, C =< $9 ->
    Rest =:= <<>> orelse is_number_text(Rest);
is_number_text(_) ->
    false.

%% RFC 9110, 10.1.1: "A server that receives an Expect field value containing a member other than
%% 100-continue MAY respond with a 417"; "in an HTTP/1.0 request MUST ignore that expectation".
expectation(#{~"expect" := Expected}, 'HTTP/1.1') ->
    case cowboy_bstr:to_lower(Expected) of
        ~"100-continue" -> ok;
        _ -> {error, 417}
    end;
expectation(_, _) ->
    ok.

-doc "Returns how the body of a request with this head is framed, or `none` if it has no body.".
-spec framing(head()) -> body() | none.
framing(#{has_body := false}) -> none;
framing(#{body_length := undefined}) -> chunk;
framing(#{body_length := Length}) -> {length, Length}.

-doc """
Reads the part of a body that has arrived. If the body is complete, returns `done` with the data
that was read, and the bytes behind the body. Otherwise returns `more` with the data that was read,
and the part of the body that is still to be read. The caller passes the bytes `Again` in the next
call, in front of later ones. Returns `broken` for a body in chunks that are not framed correctly,
or exceed a bound.
""".
-spec body(Bytes :: binary(), body(), patterns()) ->
    {done, Data :: binary(), Behind :: binary()}
    | {more, Data :: binary(), Again :: binary(), body()}
    | broken.
body(Bytes, {length, Left}, _) ->
    case Bytes of
        <<Data:Left/binary, Behind/binary>> -> {done, Data, Behind};
        _ -> {more, Bytes, <<>>, {length, Left - byte_size(Bytes)}}
    end;
body(Bytes, State, Patterns) ->
    chunks(Bytes, State, <<>>, Patterns).

%% 7.1: "chunk = chunk-size [ chunk-ext ] CRLF chunk-data CRLF".
chunks(Bytes, chunk, Data, Patterns) ->
    case chunk_size(Bytes, 0, 0) of
        {0, Rest} -> chunks(Rest, trailers, Data, Patterns);
        {Size, Rest} -> chunks(Rest, {chunk, Size}, Data, Patterns);
        more -> {more, Data, Bytes, chunk};
        broken -> broken
    end;
chunks(Bytes, {chunk, Left}, Data, Patterns) ->
    case Bytes of
        <<Chunk:Left/binary, Rest/binary>> ->
            chunks(Rest, chunk_end, <<Data/binary, Chunk/binary>>, Patterns);
        _ ->
            {more, <<Data/binary, Bytes/binary>>, <<>>, {chunk, Left - byte_size(Bytes)}}
    end;
chunks(Bytes, chunk_end, Data, Patterns) ->
    case Bytes of
        <<"\r\n", Rest/binary>> -> chunks(Rest, chunk, Data, Patterns);
        _ when Bytes =:= <<>>; Bytes =:= ~"\r" -> {more, Data, Bytes, chunk_end};
        _ -> broken
    end;
%% 7.1.2: "A recipient that removes the chunked coding from a message MAY selectively retain or
%% discard the received trailer fields."
chunks(<<"\r\n", Behind/binary>>, trailers, Data, _) ->
    {done, Data, Behind};
chunks(Bytes, trailers, Data, #{head_end := HeadEnd, line_end := LineEnd} = Patterns) ->
    case binary:split(Bytes, HeadEnd) of
        [Trailers, Behind] when byte_size(Trailers) =< ?TRAILERS - byte_size(~"\r\n") ->
            Lines = binary:split(Trailers, LineEnd, [global]),
            case length(Lines) =< ?FIELDS andalso fields(Lines, Patterns, #{}) of
                #{} -> {done, Data, Behind};
                _ -> broken
            end;
        %% The empty line may come next.
        [_] when byte_size(Bytes) < ?TRAILERS + byte_size(~"\r\n") ->
            {more, Data, Bytes, trailers};
        _ ->
            broken
    end.

%% 7.1: "chunk-size = 1*HEXDIG".
chunk_size(<<C, Rest/binary>>, Size, Digits) when C >= $0, C =< $9, Digits < ?DIGITS ->
    chunk_size(Rest, 16 * Size + C - $0, Digits + 1);
chunk_size(<<C, Rest/binary>>, Size, Digits) when C >= $a, C =< $f, Digits < ?DIGITS ->
    chunk_size(Rest, 16 * Size + C - $a + 10, Digits + 1);
chunk_size(<<C, Rest/binary>>, Size, Digits) when C >= $A, C =< $F, Digits < ?DIGITS ->
    chunk_size(Rest, 16 * Size + C - $A + 10, Digits + 1);
chunk_size(<<>>, _, 0) -> more;
chunk_size(_, _, 0) -> broken;
chunk_size(Bytes, Size, _) -> chunk_line(Bytes, Size, ?EXTENSION).

%% Some senders fill the line with space. 7.1.1: "A recipient MUST ignore unrecognized chunk
%% extensions."
chunk_line(<<"\r\n", Rest/binary>>, Size, _) -> {Size, Rest};
chunk_line(<<C, Rest/binary>>, Size, Left) when (C =:= $\s orelse C =:= $\t), Left > 0 ->
    chunk_line(Rest, Size, Left - 1);
chunk_line(<<";", Rest/binary>>, Size, Left) -> extension(Rest, Size, Left);
chunk_line(Bytes, _, _) -> line_end(Bytes).

extension(<<"\r\n", Rest/binary>>, Size, _) -> {Size, Rest};
extension(<<C, Rest/binary>>, Size, Left) when C =/= $\r, C =/= $\n, C =/= 0, Left > 0 ->
    extension(Rest, Size, Left - 1);
extension(Bytes, _, _) -> line_end(Bytes).

%% The rest of the line may come next.
line_end(Bytes) when Bytes =:= <<>>; Bytes =:= ~"\r" -> more;
line_end(_) -> broken.

-doc "Returns the head of a response, always with the version HTTP/1.1. Adds no headers.".
-spec head(cowboy:http_status(), cowboy:http_headers()) -> iodata().
head(200, #{~"content-type" := ~"application/json", ~"content-length" := Length,
            ~"date" := Date} = Headers) when map_size(Headers) =:= 3 ->
    [~"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ", Length,
     ~"\r\ndate: ", Date, ~"\r\n\r\n"];
head(Status, Headers) ->
    cow_http:response(Status, 'HTTP/1.1', maps:to_list(Headers)).

-doc """
Returns `Data` as a chunk, with the end of the body if the chunk is the last one (`fin`). Returns
`[]` for an empty chunk that is not the last one.
""".
-spec chunk(fin | nofin, Data :: iodata()) -> iodata().
chunk(IsFin, Data) ->
    chunk(IsFin, Data, iolist_size(Data)).

chunk(fin, _, 0) -> ~"0\r\n\r\n";
chunk(nofin, _, 0) -> [];
chunk(fin, Data, Size) -> [integer_to_binary(Size, 16), ~"\r\n", Data, ~"\r\n0\r\n\r\n"];
chunk(nofin, Data, Size) -> [integer_to_binary(Size, 16), ~"\r\n", Data, ~"\r\n"].
