-module(authorization_rules_SUITE).
-moduledoc """
The rules of authorization that both sides share: which URLs may be called and which are the same,
where metadata stands, and which scopes are asked for. A URL too many is a request to somebody's own
machine, and a scope too few is a login that is asked for again and again.

Sources: specification 2026-07-28, "Authorization"; RFC 8414, section 3; RFC 9728, section 3; RFC
6749, section 3.3.
""".

-export([suite/0, all/0]).
-export([urls_are_visible_and_short/1, origins_are_in_lower_case/1, a_resource_has_all_below_it/1,
         the_same_resource_has_many_names/1, plain_http_stays_where_it_was/1,
         metadata_is_sought_in_its_order/1, parameters_are_added_and_read/1,
         queries_are_bounded/1, hosts_and_paths_are_replaced/1, scopes_are_words/1,
         scopes_are_kept_in_their_order/1, the_first_scopes_are_those_of_the_challenge/1,
         a_step_up_adds_scopes/1, refresh_tokens_are_asked_for_where_offered/1,
         needed_scopes_are_all_named/1, broader_scopes_include_narrower_ones/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [urls_are_visible_and_short, origins_are_in_lower_case, a_resource_has_all_below_it,
     the_same_resource_has_many_names, plain_http_stays_where_it_was,
     metadata_is_sought_in_its_order, parameters_are_added_and_read, queries_are_bounded,
     hosts_and_paths_are_replaced, scopes_are_words, scopes_are_kept_in_their_order,
     the_first_scopes_are_those_of_the_challenge, a_step_up_adds_scopes,
     refresh_tokens_are_asked_for_where_offered, needed_scopes_are_all_named,
     broader_scopes_include_narrower_ones].

%% URLs.

urls_are_visible_and_short(_) ->
    Of = fun(Bytes) ->
        Start = ~"https://a.example/",
        <<Start/binary, (binary:copy(~"x", Bytes - byte_size(Start)))/binary>>
    end,
    [{Url, {ok, _}} = {Url, erlmcp_oauth_url:canonical(Url)}
     || Url <- [Of(4_096), ~"http://a.example:1/", ~"https://a.example:65535", ~"http://[::1]/",
                ~"https://a.example/!~?a=b"]],
    [{Url, {error, invalid_url}} = {Url, erlmcp_oauth_url:canonical(Url)}
     || Url <- [Of(4_097), ~"", ~"a.example", ~"/path", ~"ftp://a.example/", ~"https://",
                ~"https:///path", ~"https://a.example:0/", ~"https://a.example:65536/",
                ~"https://a.example:x/", ~"https://user@a.example/", ~"https://a.example/#f",
                ~"https://a.example/ b", ~"https://a.example/\t", <<"https://a.example/", 127>>,
                <<"https://a.example/", 233>>, ~"https://a.example/\n"]].

origins_are_in_lower_case(_) ->
    [{Url, {ok, Origin}} = {Url, erlmcp_oauth_url:origin(Url)}
     || {Url, Origin} <- [{~"HTTPS://A.Example/Path", {~"https", ~"a.example", 443}},
                          {~"http://a.example", {~"http", ~"a.example", 80}},
                          {~"http://a.example:8080/", {~"http", ~"a.example", 8080}}]],
    [{Other, Is} = {Other, erlmcp_oauth_url:same_origin(~"https://a.example/x", Other)}
     || {Other, Is} <- [{~"https://A.EXAMPLE:443/y", true}, {~"http://a.example/x", false},
                        {~"https://b.example/x", false}, {~"https://a.example:444/x", false},
                        {~"a.example", false}]],
    false = erlmcp_oauth_url:same_origin(~"none", ~"none").

a_resource_has_all_below_it(_) ->
    [{Url, Resource, Is} = {Url, Resource, erlmcp_oauth_url:within(Url, Resource)}
     || {Url, Resource, Is} <- [
            {~"https://a.example/mcp", ~"https://a.example/mcp", true},
            {~"https://a.example/mcp/x/", ~"https://a.example/mcp", true},
            {~"https://a.example/mcp", ~"https://a.example/mcp/", true},
            {~"https://a.example/mcp", ~"https://A.example", true},
            {~"https://a.example", ~"https://a.example/mcp", false},
            {~"https://a.example/mcpx", ~"https://a.example/mcp", false},
            {~"https://a.example/MCP", ~"https://a.example/mcp", false},
            {~"https://b.example/mcp", ~"https://a.example/mcp", false},
            {~"https://a.example/mcp/../x", ~"https://a.example/mcp", false},
            {~"https://a.example/a/../x", ~"https://a.example/a/..", false},
            {~"https://a.example/mcp?a=b", ~"https://a.example/mcp", true},
            {~"https://a.example/mcp?a=b", ~"https://a.example/mcp?a=b", true},
            {~"https://a.example/mcp?a=c", ~"https://a.example/mcp?a=b", false},
            {~"https://a.example/mcp", ~"https://a.example/mcp?a=b", false},
            {~"none", ~"https://a.example/mcp", false}]].

the_same_resource_has_many_names(_) ->
    [{One, Other, Is} = {One, Other, erlmcp_oauth_url:same_resource(One, Other)}
     || {One, Other, Is} <- [
            {~"https://a.example/mcp", ~"HTTPS://A.example:443/mcp", true},
            {~"https://a.example", ~"https://a.example/", true},
            {~"urn:a:b", ~"urn:a:b", true}, {~"urn:a:b", ~"urn:a:c", false},
            {~"https://a.example/mcp", ~"https://a.example/mcp/", false},
            {~"https://a.example/mcp", ~"https://a.example/Mcp", false},
            {~"https://a.example/mcp?a", ~"https://a.example/mcp?b", false},
            {~"https://a.example/mcp", ~"https://a.example:444/mcp", false},
            {~"https://a.example/mcp", ~"https://a.example/mcp?a", false}]].

%% A distant server must not lead a client to programs on its own machine, or in its network.
plain_http_stays_where_it_was(_) ->
    [{Server, Hosts} = {Server, erlmcp_oauth_url:plain_hosts(Server)}
     || {Server, Hosts} <- [{~"https://a.example/", []}, {~"https://127.0.0.1/", []},
                            {~"http://A.example/", [~"a.example"]},
                            {~"http://localhost:8080/", [loopback]},
                            {~"http://127.1.2.3/", [loopback]}, {~"http://[::1]/", [loopback]},
                            {~"http://128.0.0.1/", [~"128.0.0.1"]}, {~"none", []}]],
    [{Url, Plain, Is} = {Url, Plain, erlmcp_oauth_url:allowed(Url, Plain)}
     || {Url, Plain, Is} <- [
            {~"https://b.example/", [], true}, {~"http://b.example/", [], false},
            {~"http://b.example/", [~"a.example", ~"b.example"], true},
            {~"http://a.example.evil/", [~"a.example"], false},
            {~"http://127.0.0.1:1/", [loopback], true}, {~"http://[::1]/", [loopback], true},
            {~"http://[::2]/", [loopback], false}, {~"http://localhost/", [~"a.example"], false},
            {~"http://b.example/", [loopback], false}, {~"file:///etc/passwd", [loopback], false}]],
    [{Host, Is} = {Host, erlmcp_oauth_url:loopback(Host)}
     || {Host, Is} <- [{~"localhost", true}, {~"127.0.0.1", true}, {~"::1", true}, {~"::2", false},
                       {~"127.1", false}, {~"localhost.evil", false}, {~"10.0.0.1", false}]].

metadata_is_sought_in_its_order(_) ->
    Resource = ~"/.well-known/oauth-protected-resource",
    [{Url, Urls} = {Url, erlmcp_oauth_url:resource_metadata(Url)}
     || {Url, Urls} <- [
            {~"https://a.example", [<<"https://a.example", Resource/binary>>]},
            {~"https://a.example/", [<<"https://a.example", Resource/binary>>]},
            {~"https://a.example/?a=b", [<<"https://a.example", Resource/binary, "?a=b">>,
                                         <<"https://a.example", Resource/binary>>]},
            {~"https://a.example:1/mcp/?a=b",
             [<<"https://a.example:1", Resource/binary, "/mcp?a=b">>,
              <<"https://a.example:1", Resource/binary>>]}]],
    [OAuth, OpenId] = [<<"/.well-known/", Name/binary>>
                       || Name <- [~"oauth-authorization-server", ~"openid-configuration"]],
    [{Url, Urls} = {Url, erlmcp_oauth_url:server_metadata(Url)}
     || {Url, Urls} <- [
            {~"https://a.example", [<<"https://a.example", OAuth/binary>>,
                                    <<"https://a.example", OpenId/binary>>]},
            {~"https://a.example/t", [<<"https://a.example", OAuth/binary, "/t">>,
                                      <<"https://a.example", OpenId/binary, "/t">>,
                                      <<"https://a.example/t", OpenId/binary>>]}]].

parameters_are_added_and_read(_) ->
    Given = [{~"a b", ~"c&d"}, {~"e", ~""}],
    [begin
         Url = erlmcp_oauth_url:with_query(To, Given),
         {To, {ok, Read}} = {To, erlmcp_oauth_url:query(Url)},
         {To, Read} = {To, maps:merge(Before, maps:from_list(Given))}
     end || {To, Before} <- [{~"https://a.example", #{}}, {~"https://a.example/x?", #{}},
                             {~"https://a.example/x?y=z", #{~"y" => ~"z"}}]],
    {ok, #{}} = erlmcp_oauth_url:query(~"https://a.example/x"),
    [{Url, ~"https://a.example/x"} = {Url, erlmcp_oauth_url:endpoint(Url)}
     || Url <- [~"https://a.example/x", ~"https://a.example/x?y=z", ~"https://a.example/x#f",
                ~"https://a.example/x?y#z", ~"https://a.example/x#y?z"]].

%% At the bound, and one more.
queries_are_bounded(_) ->
    Query = fun(Count) ->
        Pairs = [{integer_to_binary(N), ~"v"} || N <- lists:seq(1, Count)],
        erlmcp_oauth_url:query(erlmcp_oauth_url:with_query(~"https://a.example", Pairs))
    end,
    {ok, All} = Query(64),
    64 = map_size(All),
    {error, invalid_url} = Query(65),
    [{Bad, {error, invalid_url}} =
         {Bad, erlmcp_oauth_url:query(<<"https://a.example/?", Bad/binary>>)}
     || Bad <- [~"a=1&a=2", ~"a=1&a=1", ~"a", ~"a=1&b", ~"a=%zz"]].

hosts_and_paths_are_replaced(_) ->
    ~"https://b.example:1/x?y=z" =
        erlmcp_oauth_url:with_host(~"https://a.example:1/x?y=z", ~"b.example"),
    ~"https://a.example:1/p" = erlmcp_oauth_url:under_origin(~"https://A.example:1/x?y=z", ~"/p"),
    {ok, ~"https://a.example?a=b"} = erlmcp_oauth_url:canonical(~"https://A.example/?a=b").

%% Scopes.

scopes_are_words(_) ->
    [{Text, Scopes} = {Text, erlmcp_oauth_scope:parse(Text)}
     || {Text, Scopes} <- [{~"", []}, {~"  a  b:c/d ", [~"a", ~"b:c/d"]}, {~"a b a", [~"a", ~"b"]},
                           {<<"! ~ ", 127, " ", 31, " \" \\ ", 233>>, [~"!", ~"~"]}]],
    Many = fun(Count) -> [integer_to_binary(N) || N <- lists:seq(1, Count)] end,
    Most = Many(200),
    Most = erlmcp_oauth_scope:parse(erlmcp_oauth_scope:text(Many(201))),
    ~"a b" = erlmcp_oauth_scope:text([~"a", ~"b"]),
    [true = erlmcp_scope:are_scopes(Scopes) || Scopes <- [[], [~"a"], [~"!", ~"~"]]],
    [{Term, false} = {Term, erlmcp_scope:are_scopes(Term)}
     || Term <- [[~""], [~"a", ~""], [a], ["a"], [~"a b"], [~"a\""], [~"a\\"], [<<127>>], ~"a",
                 none, [~"a" | ~"b"]]].

scopes_are_kept_in_their_order(_) ->
    [~"b", ~"a", ~"c"] = erlmcp_oauth_scope:union([~"b", ~"a"], [~"c", ~"b"]),
    Many = fun(From, To) -> [integer_to_binary(N) || N <- lists:seq(From, To)] end,
    Both = erlmcp_oauth_scope:union(Many(1, 150), Many(101, 300)),
    Both = Many(1, 200).

the_first_scopes_are_those_of_the_challenge(_) ->
    [{Challenged, Configured, Supported, Expected} =
         {Challenged, Configured, Supported,
          erlmcp_oauth_scope:first(Challenged, Configured, Supported)}
     || {Challenged, Configured, Supported, Expected} <- [
            {[], [], none, []}, {[], [], [~"s", ~"s"], [~"s"]}, {[], [~"c"], [~"s"], [~"c"]},
            {[~"h"], [], [~"s"], [~"h"]}, {[~"h"], [~"c"], [~"s"], [~"h", ~"c"]},
            {[~"h"], [~"h"], none, [~"h"]}]].

a_step_up_adds_scopes(_) ->
    [{Before, Challenged, Supported, Expected} =
         {Before, Challenged, Supported, erlmcp_oauth_scope:more(Before, Challenged, Supported)}
     || {Before, Challenged, Supported, Expected} <- [
            {[~"a"], [~"b"], [~"s"], {ok, [~"a", ~"b"]}}, {[~"a"], [~"a"], [~"s"], none},
            {[~"a"], [], [~"s"], {ok, [~"a", ~"s"]}}, {[~"a"], [], [~"a"], none},
            {[~"a"], [], none, none}, {[], [], none, none}, {[], [~"b"], none, {ok, [~"b"]}}]].

refresh_tokens_are_asked_for_where_offered(_) ->
    Offline = ~"offline_access",
    [[~"a", Offline], [~"a"], [], [Offline]] =
        [erlmcp_oauth_scope:offline(Scopes, Offered)
         || {Scopes, Offered} <- [{[~"a"], [~"x", Offline]}, {[~"a"], [~"x"]}, {[], [Offline]},
                                  {[Offline], [Offline]}]].

needed_scopes_are_all_named(_) ->
    [ok = erlmcp_scope:check(Needed, Scopes)
     || {Needed, Scopes} <- [{[], []}, {[~"a"], all}, {[~"a", ~"b"], [~"b", ~"c", ~"a"]},
                            {[~"a", ~"a"], [~"a"]}]],
    [begin
         {error, Refusal} = erlmcp_scope:check([~"a", ~"b"], Scopes),
         {[~"a", ~"b"], ~"this needs the scopes a b", authz_forbidden} =
             {erlmcp_refusal:scopes(Refusal), erlmcp_refusal:message(Refusal),
              erlmcp_refusal:name(Refusal)}
     end || Scopes <- [[], [~"a"], [~"b", ~"ab"]]].

%% Directly or not, in a circle too.
broader_scopes_include_narrower_ones(_) ->
    Implied = #{~"a" => [~"b", ~"c"], ~"c" => [~"d", ~"a"]},
    [{Scopes, Expected} = {Scopes, erlmcp_scope:with_implied(Scopes, Implied)}
     || {Scopes, Expected} <- [{[~"a"], [~"a", ~"b", ~"c", ~"d"]}, {[~"x"], [~"x"]}, {all, all},
                               {[~"d", ~"c"], [~"d", ~"c", ~"a", ~"b"]}, {[], []}]],
    [~"a", ~"a"] = erlmcp_scope:with_implied([~"a", ~"a"], #{}).
