-module(unauthorized_calls_SUITE).
-moduledoc """
What a client's caller is told of a server that refuses for want of authorization: what the server
says in its headers and in its body, of erlmcp's own listener and of others.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_listener_says_why/1, what_others_say/1, what_is_said_is_bounded/1,
         a_server_that_nobody_logs_in_for/1, other_reasons/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_listener_says_why, what_others_say, what_is_said_is_bounded,
     a_server_that_nobody_logs_in_for, other_reasons].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, inets], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

a_listener_says_why(_) ->
    Token = fun(Secret, More) -> maps:merge(#{token => Secret, principal => Secret}, More) end,
    Server = erlmcp_test_http:start(#{
        tools => [#{name => ~"write", scopes => [~"write"], handler => fun(_, _) -> ~"" end}],
        listen => [{http, #{scopes => [~"read"], authenticate => {bearer, #{
            authorization_servers => [~"https://as.example"],
            tokens => [{static, [Token(~"reads", #{scopes => [~"read"]}),
                                 Token(~"ended", #{expires_at => 1})]}]}}}}]}),
    #{url := Url} = Server,
    [begin
         {ok, Client} = erlmcp_client:start_link({http, Url, Options}),
         {error, {unauthorized, _} = Reason} = erlmcp_client:call_tool(Client, ~"write", #{}),
         {Options, Sentence} = {Options, erlmcp_client:format_error(Reason)},
         ok = erlmcp_client:stop(Client)
     end || {Options, Sentence} <- [
            {#{}, <<"the server requires authorization: the server answered with HTTP status 401: "
                    "an access token is needed; scope: read">>},
            {#{token => ~"ended"},
             <<"the server requires authorization: the server answered with HTTP status 401: "
               "invalid_token: the token has expired; scope: read">>},
            {#{token => ~"reads"},
             <<"the server requires authorization: the server answered with HTTP status 403: "
               "insufficient_scope: this needs more than what the token was given for; this needs "
               "the scopes write; scope: read write">>}]],
    erlmcp_test_http:stop(Server).

words(Headers, Body) ->
    {ok, Refusal} = erlmcp_client_error:refusal({unauthorized, {http, 401, Headers, Body}}),
    unicode:characters_to_binary(erlmcp_client_error:refusal_text(Refusal)).

challenge(Field) -> #{~"www-authenticate" => Field}.

what_others_say(_) ->
    OAuth = ~B({"error":"invalid_token","error_description":"it is for https://b.example"}),
    [{Said, Said} = {Said, words(Headers, Body)}
     || {Headers, Body, Said} <- [
            {#{}, ~"", ~""}, {challenge(~"Bearer"), ~"", ~""},
            {challenge(~"Basic realm=\"x\""), ~"<html>", ~""},
            {challenge(~"Bearer error=\"invalid_token\""), ~"", ~"invalid_token"},
            {challenge(~"Bearer scope=\"a b\""), ~"", ~"scope: a b"},
            %% The error stands at the scheme that was used.
            {challenge(<<"Bearer scope=\"a\", DPoP error=\"invalid_dpop_proof\", "
                         "error_description=\"iat\"">>), ~"", ~"invalid_dpop_proof: iat; scope: a"},
            {#{}, OAuth, ~"invalid_token: it is for https://b.example"},
            {challenge(~"Bearer error=\"invalid_request\""), OAuth,
             ~"invalid_request: it is for https://b.example"},
            {#{}, ~B({"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"no"}}), ~"no"},
            {challenge(~"Bearer error=\"e\", error_description=\"no\""),
             ~B({"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"no"}}), ~"e: no"},
            {#{}, ~B({"jsonrpc":"2.0","error":{"code":"x","message":7}}), ~""},
            {#{}, ~B({"error":{"a":1}}), ~""}, {#{}, ~B(["error"]), ~""}, {#{}, <<255>>, ~""}]].

what_is_said_is_bounded(_) ->
    Long = binary:copy(~"x", 5000),
    {ok, #{error := Error, error_description := Description, scopes := Scopes}} =
        erlmcp_client_error:refusal({http, 403, challenge(
            <<"Bearer error=\"", Long/binary, "\", error_description=\"caf\xc3\xa9", Long/binary,
              "\", scope=\"", (binary:copy(~"a ", 200))/binary, "\"">>), Long}),
    512 = byte_size(Error),
    <<"caf??", _:507/binary>> = Description,
    true = length(Scopes) =< 50.

%% With tokens of before alone nobody is sent to a browser, and a reason that no token changes sends
%% nobody anywhere: what the server says is what there is to tell.
a_server_that_nobody_logs_in_for(_) ->
    Peer = erlmcp_test_oauth:start(),
    [begin
         Challenge = challenge(<<"Bearer error=\"", Error/binary,
                                 "\", error_description=\"because\"">>),
         erlmcp_test_oauth:change(Peer, ~"/mcp", {Status, Challenge, ~""}),
         {ok, Client} = erlmcp_client:start_link({http, erlmcp_test_oauth:url(Peer),
                                                  #{auth => #{browser => none}}}),
         {error, {unauthorized, {http, Status, _, _} = Why}} = erlmcp_client:list_tools(Client),
         {ok, #{error := Error, error_description := ~"because"}} =
             erlmcp_client_error:refusal(Why),
         ok = erlmcp_client:stop(Client)
     end || {Status, Error} <- [{401, ~"invalid_token"}, {403, ~"invalid_token"}]],
    erlmcp_test_oauth:stop(Peer).

other_reasons(_) ->
    [none = erlmcp_client_error:refusal(Reason)
     || Reason <- [{http, 500, #{}, ~""}, {unauthorized, timeout}, timeout, {connect, econnrefused},
                   {rpc, #{code => 1014, message => ~"x"}}]],
    {ok, #{status := 403, error := ~"insufficient_scope", scopes := [~"a"]}} =
        erlmcp_client_error:refusal({unauthorized, {insufficient_scope, [~"a"]}}),
    ~"the server requires authorization: insufficient_scope: scope: a" =
        erlmcp_client:format_error({unauthorized, {insufficient_scope, [~"a"]}}).
