-module(www_authenticate_SUITE).
-moduledoc "The challenges of `WWW-Authenticate` (RFC 9110, section 11.6.1).".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([the_examples_of_the_documents/1, lists_and_spaces/1, quoted_strings/1, token68s/1,
         what_servers_get_wrong/1, bounds_hold/1, composed_challenges_come_back/1,
         any_bytes_are_answered/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

short(Field) ->
    [case Challenge of
         #{token68 := Token68} -> {Scheme, Token68};
         _ -> {Scheme, maps:to_list(Params)}
     end || #{scheme := Scheme, params := Params} = Challenge <- erlmcp_challenge:parse(Field)].

the_examples_of_the_documents(_) ->
    %% RFC 9110, section 11.6.1.
    [{~"basic", [{~"realm", ~"simple"}]},
     {~"newauth", [{~"realm", ~"apps"}, {~"title", ~"Login to \"apps\""}, {~"type", ~"1"}]}] =
        short(~B|Basic realm="simple", Newauth realm="apps", type=1, title="Login to \"apps\""|),
    %% RFC 9728, section 5.1.
    Url = ~"https://resource.example.com/.well-known/oauth-protected-resource",
    [#{scheme := ~"bearer", params := #{~"resource_metadata" := Url}}] =
        erlmcp_challenge:parse(<<"Bearer resource_metadata=\"", Url/binary, $">>),
    %% RFC 9449, section 7.1.
    [#{scheme := ~"dpop",
       params := #{~"error" := ~"invalid_token", ~"algs" := ~"ES256",
                   ~"error_description" := ~"Invalid DPoP key binding"}}] =
        erlmcp_challenge:parse(
            ~"""
            DPoP error="invalid_token", error_description="Invalid DPoP key binding", algs="ES256"
            """).

lists_and_spaces(_) ->
    [{Field, Challenges} = {Field, short(Field)}
     || {Field, Challenges} <- [
            {~"", []}, {~" , ,\t", []}, {~"Bearer", [{~"bearer", []}]},
            {~"Bearer ", [{~"bearer", []}]}, {~"Bearer,Basic", [{~"bearer", []}, {~"basic", []}]},
            {~", Bearer a=b,, ,c=d,", [{~"bearer", [{~"a", ~"b"}, {~"c", ~"d"}]}]},
            {~"BEARER A \t=  b", [{~"bearer", [{~"a", ~"b"}]}]},
            {~"Bearer a=B, DPoP, Basic c=d",
             [{~"bearer", [{~"a", ~"B"}]}, {~"dpop", []}, {~"basic", [{~"c", ~"d"}]}]}]].

quoted_strings(_) ->
    [{Field, [{~"a", Params}]} = {Field, short(Field)}
     || {Field, Params} <- [
            {~B|A a=""|, [{~"a", ~""}]}, {~B|A a="b, C d=e", f=g|, [{~"a", ~"b, C d=e"},
                                                                     {~"f", ~"g"}]},
            {~B|A a="\\\"\b"|, [{~"a", ~B|\"b|}]}, {~B|A a="b|, []}, {~B|A a="b\|, []},
            {~B|A a="b\"|, []}, {~"A a=\"é\"", [{~"a", ~"é"}]}]].

token68s(_) ->
    [{Field, Challenges} = {Field, short(Field)}
     || {Field, Challenges} <- [
            {~"Negotiate a87421000492aa874209af8bc028==",
             [{~"negotiate", ~"a87421000492aa874209af8bc028=="}]},
            {~"Negotiate abc, Bearer realm=x", [{~"negotiate", ~"abc"},
                                                {~"bearer", [{~"realm", ~"x"}]}]},
            {~"A -._~+/= ,B", [{~"a", ~"-._~+/="}, {~"b", []}]},
            {~"A b=c", [{~"a", [{~"b", ~"c"}]}]}]].

what_servers_get_wrong(_) ->
    [{Field, Challenges} = {Field, short(Field)}
     || {Field, Challenges} <- [
            {~"Bearer resource_metadata=https://a.example/b?c=d, error=e",
             [{~"bearer", [{~"error", ~"e"}, {~"resource_metadata", ~"https://a.example/b?c=d"}]}]},
            {~B|Bearer a="b" c="d"|, [{~"bearer", [{~"a", ~"b"}, {~"c", ~"d"}]}]},
            {~B|Bearer a="b", a="c", A=d|, [{~"bearer", [{~"a", ~"b"}]}]},
            {~"realm=x, Bearer a=b", [{~"bearer", [{~"a", ~"b"}]}]},
            {~"Bearer x=y, a=, b=c", [{~"bearer", [{~"b", ~"c"}, {~"x", ~"y"}]}]},
            {~B|"x, Basic" Bearer b=c|, [{~"bearer", [{~"b", ~"c"}]}]},
            {~"Bearer @, b=c", [{~"bearer", [{~"b", ~"c"}]}]}]].

bounds_hold(_) ->
    Long = fun(Bytes) -> <<"A b=", (binary:copy(~"c", Bytes - 4))/binary>> end,
    [_] = erlmcp_challenge:parse(Long(16384)),
    [] = erlmcp_challenge:parse(Long(16385)),
    16 = length(erlmcp_challenge:parse(binary:copy(~"A,", 17))),
    [#{params := Params}] = erlmcp_challenge:parse(iolist_to_binary(
        [~"A ", [[~"p", integer_to_binary(N), ~"=v,"] || N <- lists:seq(1, 33)]])),
    32 = map_size(Params),
    false = is_map_key(~"p33", Params).

composed_challenges_come_back(_) ->
    erlmcp_test_property:holds(?FORALL(Challenges, challenges(),
        Challenges =:= short(iolist_to_binary(
            lists:join(~", ", [composed(Each) || Each <- Challenges])))), 500).

composed({Scheme, []}) -> Scheme;
composed({Scheme, Params}) ->
    [Scheme, ~" ", lists:join(~", ", [[Name, ~"=\"", escaped(Value), $"]
                                      || {Name, Value} <- Params])].

escaped(Value) ->
    << <<(case C of _ when C =:= $"; C =:= $\\ -> <<$\\, C>>; _ -> <<C>> end)/binary>>
       || <<C>> <= Value >>.

challenges() ->
    ?LET(Some, list({word(), map(word(), binary())}),
         [{Scheme, lists:sublist(maps:to_list(Params), 32)}
          || {Scheme, Params} <- lists:sublist(Some, 16)]).

word() ->
    ?LET(Letters, non_empty(list(oneof("abz09-_.~!"))), list_to_binary(Letters)).

any_bytes_are_answered(_) ->
    Parts = [~"Bearer", ~"a", ~"b", ~"=", ~"==", ~",", ~" ", ~"\t", ~"\"", ~"\\", ~"/", ~":",
             ~"é", <<0>>, <<255>>, ~"\r\n", ~"A ", ~"x=\"y\""],
    Soup = ?LET(Chosen, list(oneof([binary() | Parts])), iolist_to_binary(Chosen)),
    erlmcp_test_property:holds(?FORALL(Field, Soup,
        lists:all(fun(#{scheme := Scheme, params := Params} = Challenge) ->
                      byte_size(Scheme) > 0 andalso
                          lists:all(fun is_binary/1, maps:keys(Params) ++ maps:values(Params))
                          andalso is_binary(maps:get(token68, Challenge, ~""))
                  end, erlmcp_challenge:parse(Field))), 3000).
