-module(erlmcp_httpd_http1_head).
-moduledoc """
The heads of plain requests, which is what nearly all requests are: HTTP/1.1, POST, one path, a
length, and nothing that the connection would have to know of. What is not such a request to the
letter is no error: it is for the parser that knows all of HTTP. Pure.

Source: RFC 9110 and RFC 9112.

Internal.
""".

-export([patterns/1, read/2, has_words_too_many/1, kept/2, again/2]).

-export_type([patterns/0, head/0, kept/0]).

-doc "What is looked for: made once, for a listener's path.".
-opaque patterns() :: #{line := binary(), head_end := term(), line_end := term(),
                        colon := term(), forbidden := term()}.

-type head() :: #{headers := #{binary() => binary()}, host := binary(),
                  port := undefined | inet:port_number(), length := non_neg_integer()}.

-doc "A head that was read, for the next one: whole, or what stands around its session's id.".
-opaque kept() :: binary() | {Before :: binary(), Id :: binary(), Behind :: binary()}.

%% Beside the lines, what a head may be in all; names, values and their number as cowboy has them.
-define(HEAD, 16_384).
-define(NAME, 64).
-define(VALUE, 4096).
-define(HOST, 255).
-define(HEADERS, 100).
%% A body that is larger comes in parts, and is not kept here meanwhile.
-define(BODY, 65_536).

-doc "The patterns for requests to this path.".
-spec patterns(Path :: binary()) -> patterns().
patterns(Path) ->
    #{line => <<"POST ", Path/binary, " HTTP/1.1">>,
      head_end => binary:compile_pattern(~"\r\n\r\n"),
      line_end => binary:compile_pattern(~"\r\n"),
      colon => binary:compile_pattern(~":"),
      forbidden => binary:compile_pattern([~"\r", ~"\n", <<0>>])}.

-doc """
The first request in these bytes: its head, and the bytes behind it; `more` where a plain one may
still come of them, `other` where none can.
""".
-spec read(binary(), patterns()) ->
    {ok, head(), Head :: binary(), Behind :: binary()} | more | other.
read(Bytes, #{line := Line, head_end := HeadEnd} = Patterns) ->
    case binary:match(Bytes, HeadEnd) of
        {At, 4} when At =< ?HEAD ->
            <<Part:At/binary, _:4/binary, Behind/binary>> = Bytes,
            %% It is kept for the next request, and what it came with is not.
            Head = binary:copy(Part),
            case parsed(Head, Patterns) of
                #{} = Read -> {ok, Read, Head, Behind};
                other -> other
            end;
        nomatch when byte_size(Bytes) =< ?HEAD -> beginning(Bytes, Line);
        _ -> other
    end.

-doc """
A head that was read, to be compared with the next one on its connection. The requests of a client
with several sessions differ in the ids alone.
""".
-spec kept(Head :: binary(), Headers :: #{binary() => binary()}) -> kept().
kept(Head, #{~"mcp-session-id" := Id}) when Id =/= <<>> ->
    case binary:matches(Head, Id) of
        [{At, Size}] ->
            <<Before:At/binary, _:Size/binary, Behind/binary>> = Head,
            {Before, Id, <<Behind/binary, "\r\n\r\n">>};
        _ ->
            <<Head/binary, "\r\n\r\n">>
    end;
kept(Head, _) ->
    <<Head/binary, "\r\n\r\n">>.

-doc """
Whether these bytes begin with that head again, or with the same one of another session, which is
named; and the bytes behind it.
""".
-spec again(binary(), kept()) -> {same | Session :: binary(), Behind :: binary()} | other.
again(Bytes, {Before, Id, Behind}) ->
    First = byte_size(Before),
    Size = byte_size(Id),
    Last = byte_size(Behind),
    case Bytes of
        <<Before:First/binary, Found:Size/binary, Behind:Last/binary, Rest/binary>> ->
            case Found =:= Id orelse is_visible(Found) of
                true when Found =:= Id -> {same, Rest};
                true -> {Found, Rest};
                false -> other
            end;
        _ ->
            other
    end;
again(Bytes, Head) ->
    Size = byte_size(Head),
    case Bytes of
        <<Head:Size/binary, Rest/binary>> -> {same, Rest};
        _ -> other
    end.

%% With nothing in it that ends a value, or is not of the value where it stands around it.
is_visible(<<A, B, C, D, Rest/binary>>) when
    A > $\s, A < 127, B > $\s, B < 127, C > $\s, C < 127, D > $\s, D < 127
->
    is_visible(Rest);
is_visible(<<C, Rest/binary>>) when C > $\s, C < 127 -> is_visible(Rest);
is_visible(Rest) -> Rest =:= <<>>.

%% As far as it is there, it is the line of a plain request.
beginning(Bytes, Line) ->
    Size = min(byte_size(Bytes), byte_size(Line)),
    case binary:longest_common_prefix([Bytes, Line]) of
        Size -> more;
        _ -> other
    end.

-doc """
Returns `true` if `Bytes` begin with a request line of more than three words (RFC 9112, 3).
""".
-spec has_words_too_many(binary()) -> boolean().
has_words_too_many(Bytes) ->
    case binary:split(Bytes, ~"\r\n") of
        [Line, _] -> length(binary:split(Line, ~" ", [global])) > 3;
        [_] -> false
    end.

parsed(Head, #{line := Line, line_end := LineEnd, forbidden := Forbidden} = Patterns) ->
    maybe
        [Line | Lines] ?= binary:split(Head, LineEnd, [global]),
        true ?= length(Lines) =< ?HEADERS,
        nomatch ?= binary:match(iolist_to_binary(Lines), Forbidden),
        #{} = Headers ?= headers(Lines, Patterns, #{}),
        plain(Headers)
    else
        _ -> other
    end.

headers([], _, Headers) ->
    Headers;
headers([Line | Lines], #{colon := Colon} = Patterns, Headers) ->
    maybe
        {At, 1} ?= binary:match(Line, Colon),
        true ?= At > 0 andalso At =< ?NAME,
        <<Name:At/binary, $:, Value/binary>> = Line,
        true ?= byte_size(Value) =< ?VALUE,
        Lower = <<_/binary>> ?= lower(Name),
        %% Of two of a name it has to be known whether they may be one.
        false ?= is_map_key(Lower, Headers),
        headers(Lines, Patterns, Headers#{Lower => trimmed(Value)})
    else
        _ -> other
    end.

%% Those of nearly every request, as clients write them.
lower(~"Host") -> ~"host";
lower(~"host") -> ~"host";
lower(~"Accept") -> ~"accept";
lower(~"accept") -> ~"accept";
lower(~"Content-Type") -> ~"content-type";
lower(~"content-type") -> ~"content-type";
lower(~"Content-Length") -> ~"content-length";
lower(~"content-length") -> ~"content-length";
lower(~"User-Agent") -> ~"user-agent";
lower(~"user-agent") -> ~"user-agent";
lower(~"Authorization") -> ~"authorization";
lower(~"authorization") -> ~"authorization";
lower(~"MCP-Protocol-Version") -> ~"mcp-protocol-version";
lower(~"mcp-protocol-version") -> ~"mcp-protocol-version";
lower(~"Mcp-Session-Id") -> ~"mcp-session-id";
lower(~"mcp-session-id") -> ~"mcp-session-id";
lower(~"Mcp-Method") -> ~"mcp-method";
lower(~"mcp-method") -> ~"mcp-method";
lower(~"Mcp-Name") -> ~"mcp-name";
lower(~"mcp-name") -> ~"mcp-name";
lower(Name) -> lower(Name, <<>>).

lower(<<C, Rest/binary>>, Lower) when C >= $a, C =< $z; C >= $0, C =< $9; C =:= $-; C =:= $_ ->
    lower(Rest, <<Lower/binary, C>>);
lower(<<C, Rest/binary>>, Lower) when C >= $A, C =< $Z ->
    lower(Rest, <<Lower/binary, (C + 32)>>);
lower(<<>>, Lower) ->
    Lower;
%% The other characters of a token are not in names that we know.
lower(_, _) ->
    other.

trimmed(<<C, Value/binary>>) when C =:= $\s; C =:= $\t ->
    trimmed(Value);
trimmed(Value) ->
    trimmed_end(Value, byte_size(Value) - 1).

trimmed_end(Value, Last) when Last >= 0 ->
    case binary:at(Value, Last) of
        C when C =:= $\s; C =:= $\t -> trimmed_end(Value, Last - 1);
        _ -> binary:part(Value, 0, Last + 1)
    end;
trimmed_end(_, _) ->
    <<>>.

%% What is about the connection, or makes the length another thing, is not for here.
plain(#{~"transfer-encoding" := _}) -> other;
plain(#{~"expect" := _}) -> other;
plain(#{~"upgrade" := _}) -> other;
plain(#{~"http2-settings" := _}) -> other;
plain(#{~"connection" := Connection}) when Connection =/= ~"keep-alive",
                                           Connection =/= ~"Keep-Alive" -> other;
plain(#{~"content-length" := Digits, ~"host" := Authority} = Headers)
  when byte_size(Digits) =< 6, byte_size(Authority) =< ?HOST ->
    maybe
        Length ?= number(Digits, 0),
        true ?= is_integer(Length) andalso Digits =/= <<>> andalso Length =< ?BODY,
        {Host, Port} ?= authority(Authority),
        #{headers => Headers, host => Host, port => Port, length => Length}
    else
        _ -> other
    end;
plain(_) -> other.

number(<<C, Digits/binary>>, Number) when C >= $0, C =< $9 ->
    number(Digits, Number * 10 + C - $0);
number(<<>>, Number) -> Number;
number(_, _) -> other.

authority(Authority) ->
    try cow_http_hd:parse_host(Authority) of
        {_, Port} = Parsed when Port =:= undefined; Port > 0, Port =< 65_535 -> Parsed;
        _ -> other
    catch
        error:_ -> other
    end.
