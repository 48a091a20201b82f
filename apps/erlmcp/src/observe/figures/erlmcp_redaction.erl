-module(erlmcp_redaction).
-moduledoc """
Takes secrets out of the arguments and results of requests, for an operator who looks at them. A
value is a secret if the name of its member looks like a secret's, or if the operator has named the
member. So is a member `value` beside a member `name` or `key` that holds such a name. The case of
these names does not count. In texts, tokens are found by their form, and values by the names in
front of them. A text that is JSON is read as JSON. Not every secret is found.

Internal.
""".

-export([is_rule/1, redacted/2]).

-export_type([rule/0]).

-doc """
A rule of the operator: the name of a member, or a JSON pointer (RFC 6901). A name stands for
members anywhere; case, spaces, `_`, `-` and `.` do not count. A pointer begins at the arguments, at
a result, at its structured content, or at a text that is JSON.
""".
-type rule() :: binary().

-type json() :: dynamic().
-type rules() :: {Names :: [binary()], Pointers :: [[binary()]], Patterns :: [{term(), binary()}]}.

-define(REDACTED, ~"[redacted]").
%% Names without case, spaces and punctuation. A name that contains one of these is a secret's.
-define(CONTAINED, [~"password", ~"passwd", ~"passphrase", ~"passcode", ~"secret", ~"token",
                    ~"apikey", ~"accesskey", ~"privatekey", ~"authorization", ~"credential",
                    ~"cookie", ~"bearer", ~"jwt", ~"requeststate"]).
-define(EQUAL, [~"auth", ~"pwd", ~"pin", ~"otp", ~"cvc", ~"cvv", ~"sid", ~"session", ~"sessionid"]).
%% No pattern goes back far in a text, so that a hostile text takes no longer than another. None has
%% a class that depends on the character set, so that UTF-8 stays UTF-8.
-define(PATTERNS, [
    %% Headers of HTTP, to the end of their line.
    {~"((?:authorization|cookie)[\"']?[ \t]*[:=])[^\r\n]*", ~"\\1 [redacted]"},
    %% Private keys, to their end or that of the text.
    {<<"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?s:.)*?"
       "(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\\z)">>, ?REDACTED},
    %% The identity in a URL.
    {~"(://)[^/?#@ \t\r\n]{1,500}@", ~"\\1[redacted]@"},
    {~"(bearer[ \t]+)[A-Za-z0-9._~+/=-]+", ~"\\1[redacted]"},
    %% A word of prose has no upper case in its middle.
    {<<"(basic[ \t]+)(?-i:(?=[A-Za-z0-9+/]+[0-9A-Z+/=]))[A-Za-z0-9+/=]{8,}">>, ~"\\1[redacted]"},
    %% JSON web tokens, and the tokens that begin as those of well-known services do.
    {<<"(?-i:(?<![A-Za-z0-9])(?:(?:eyJ|gh[opsur]_|github_pat_|glpat-|xox[a-z]-|sk-|[prs]k_live_"
       "|AIza)[A-Za-z0-9._-]{8,}|A[KS]IA[A-Z0-9]{12,}))">>, ?REDACTED},
    %% A name and its value.
    {<<"((?:password|passwd|passphrase|passcode|pwd|secret|token|api[_-]?key|access[_-]?key"
       "|private[_-]?key|credentials?)[A-Za-z0-9_.-]{0,64}[\"']?[ \t]{0,8}[:=][ \t]{0,8})"
       "(?:\"[^\"\\\\]*+(?:\\\\.[^\"\\\\]*+)*+\"?|'[^']*+'?|[^ \t\r\n,;&\"'<>]+)">>,
     ~"\\1[redacted]"}]).

-doc """
Returns `true` if a term is a rule: a valid JSON pointer that is not empty, or a name. A name has a
character other than a space, `_`, `-` and `.`.
""".
-spec is_rule(term()) -> boolean().
is_rule(<<$/, Pointer/binary>>) ->
    re:run(Pointer, ~"~(?![01])", [{capture, none}]) =:= nomatch;
is_rule(Name) ->
    is_binary(Name) andalso normal(Name) =/= <<>>.

-doc """
Returns decoded JSON with `[redacted]` in the place of each secret, by the rules that are built in,
and by those of the operator.

## Examples

```erlang
1> erlmcp_redaction:redacted(#{~"user" => ~"ada", ~"api_key" => ~"k-17"}, []).
#{~"user" => ~"ada", ~"api_key" => ~"[redacted]"}
2> erlmcp_redaction:redacted(#{~"card" => #{~"number" => 4711}}, [~"/card/number"]).
#{~"card" => #{~"number" => ~"[redacted]"}}
3> erlmcp_redaction:redacted(~"curl -H 'Authorization: Bearer abc.def'", []).
~"curl -H 'Authorization: [redacted]"
```
""".
-spec redacted(json(), [rule()]) -> json().
redacted(Json, Given) ->
    Names = [normal(Name) || <<First, _/binary>> = Name <- Given, First =/= $/],
    Pointers = [pointer(Pointer) || <<$/, Pointer/binary>> <- Given],
    document(Json, {Names, Pointers, compiled()}).

compiled() ->
    [begin
         {ok, Compiled} = re:compile(Pattern, [caseless]),
         {Compiled, Replacement}
     end || {Pattern, Replacement} <- ?PATTERNS].

%% RFC 6901, 4.
pointer(Text) ->
    [binary:replace(binary:replace(Part, ~"~1", ~"/", [global]), ~"~0", ~"~", [global])
     || Part <- binary:split(Text, ~"/", [global])].

%% Each pointer begins at a document.
-spec document(json(), rules()) -> json().
document(Json, {_, Pointers, _} = Rules) ->
    value(Json, Pointers, Rules).

value(#{} = Object, Pointers, Rules) ->
    Pair = is_pair_of_secret(Object, Rules),
    #{Name => member(Name, Value, Pair, Pointers, Rules) || Name := Value <- Object};
value(List, Pointers, Rules) when is_list(List) ->
    [pointed(integer_to_binary(Index), Value, Pointers, Rules)
     || {Index, Value} <- lists:enumerate(0, List)];
value(Text, _, Rules) when is_binary(Text) ->
    text(Text, Rules);
value(Other, _, _) ->
    Other.

member(~"structuredContent" = Name, Value, _, Pointers, {_, All, _} = Rules) ->
    pointed(Name, Value, Pointers ++ [[Name | Pointer] || Pointer <- All], Rules);
member(Name, Value, Pair, Pointers, Rules) ->
    case is_secret(Name, Rules) orelse Pair andalso normal(Name) =:= ~"value" of
        true -> ?REDACTED;
        false -> pointed(Name, Value, Pointers, Rules)
    end.

pointed(Name, Value, Pointers, Rules) ->
    Below = [Rest || [First | Rest] <- Pointers, First =:= Name],
    case lists:member([], Below) of
        true -> ?REDACTED;
        false -> value(Value, Below, Rules)
    end.

%% {"name": "API_KEY", "value": "..."}
is_pair_of_secret(Object, Rules) ->
    [] =/= [Name || Key := <<Name/binary>> <- Object, lists:member(normal(Key), [~"name", ~"key"]),
                    is_secret(Name, Rules)].

is_secret(Name, {Names, _, _}) ->
    Normal = normal(Name),
    lists:member(Normal, ?EQUAL) orelse lists:member(Normal, Names)
        orelse binary:match(Normal, ?CONTAINED) =/= nomatch.

normal(Name) ->
    << <<(lower(Char))>>
       || <<Char>> <= Name, Char =/= $_, Char =/= $-, Char =/= $., Char =/= $\s >>.

lower(Char) when Char >= $A, Char =< $Z -> Char + 32;
lower(Char) -> Char.

text(Text, Rules) ->
    case decoded(Text) of
        {ok, Json} ->
            %% A text without a secret stays as it was written.
            case document(Json, Rules) of
                Json -> Text;
                Clean -> iolist_to_binary(json:encode(Clean))
            end;
        none ->
            {_, _, Patterns} = Rules,
            lists:foldl(fun({Pattern, Replacement}, Before) ->
                re:replace(Before, Pattern, Replacement, [global, {return, binary}])
            end, Text, Patterns)
    end.

decoded(Text) ->
    case re:run(Text, ~"^[ \t\r\n]*[{\\[\"]", [{capture, none}]) of
        match ->
            try
                {ok, json:decode(Text)}
            catch
                error:_ -> none
            end;
        nomatch ->
            none
    end.
