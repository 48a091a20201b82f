-module(httpc_authorization_SUITE).
-moduledoc """
The option `auth` of a client on HTTP: which of its requests have a token, and what becomes of those
that are refused. What the authorizer does for a token is in the suites of `test/client/oauth`.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([init_per_testcase/2, end_per_testcase/2]).
-export([a_call_waits_for_the_login/1, calls_at_once_share_a_login/1,
         a_login_knows_what_was_reached/1]).
-export([a_server_that_refuses_every_token/1, a_login_that_fails_is_named/1]).
-export([a_login_that_takes_too_long/1, a_resumption_asks_for_one_login/1,
         a_session_is_left_without_a_login/1]).
-export([the_nonce_of_an_answer_is_in_the_next_proof/1, a_nonce_that_is_never_right/1]).
-export([wrong_options/1, secrets_are_in_no_report/1, a_token_may_come_from_a_fun/1]).
-export([a_call_given_up_during_its_login_is_not_sent/1]).

-import(erlmcp_test_suite, [peer/1]).

all() ->
    [a_call_waits_for_the_login, calls_at_once_share_a_login, a_login_knows_what_was_reached,
     a_server_that_refuses_every_token, a_login_that_fails_is_named, a_login_that_takes_too_long,
     a_resumption_asks_for_one_login, a_session_is_left_without_a_login,
     the_nonce_of_an_answer_is_in_the_next_proof, a_nonce_that_is_never_right, wrong_options,
     secrets_are_in_no_report, a_token_may_come_from_a_fun,
     a_call_given_up_during_its_login_is_not_sent].

suite() ->
    [{timetrap, {minutes, 4}}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, inets], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    Peer = erlmcp_test_oauth:start(),
    serves(Peer, fun(_) -> [] end),
    [{peer, Peer} | erlmcp_test_sent:listen(Config)].

end_per_testcase(_, Config) ->
    ok = erlmcp_test_oauth:stop(peer(Config)),
    erlmcp_test_sent:heard(Config, []).

%% An MCP server behind the tokens. The fun gives headers of its answers.
serves(Peer, Fields) ->
    erlmcp_test_oauth:change(Peer, ~"/mcp", fun(#{headers := Headers} = Request) ->
        case Headers of
            #{~"authorization" := _} -> served(Request, maps:from_list(Fields(Request)));
            #{} -> refused(Request)
        end
    end).

refused(#{base := Base}) ->
    Metadata = [Base, ~"/.well-known/oauth-protected-resource/mcp"],
    {401, #{~"www-authenticate" => [~"Bearer resource_metadata=\"", Metadata, $"]}, ~""}.

served(#{method := ~"POST", body := Body}, Fields) ->
    case json:decode(Body) of
        #{~"id" := Id, ~"method" := Method} ->
            Answer = #{jsonrpc => ~"2.0", id => Id, result => result(Method)},
            {200, Fields#{~"content-type" => ~"application/json"}, json:encode(Answer)};
        #{} ->
            {202, Fields, ~""}
    end;
served(_, _) ->
    {405, #{}, ~""}.

result(~"server/discover") ->
    #{resultType => complete, ttlMs => 0, cacheScope => private,
      supportedVersions => [~"2026-07-28"], capabilities => #{tools => #{}},
      serverInfo => #{name => peer, version => ~"1"}};
result(~"initialize") ->
    #{protocolVersion => ~"2025-11-25", capabilities => #{tools => #{}},
      serverInfo => #{name => peer, version => ~"1"}};
result(~"tools/list") ->
    #{resultType => complete, ttlMs => 0, cacheScope => private, tools => []}.

with_client(Peer, Auth, Fun) ->
    with_client(Peer, erlmcp_test_oauth:logged_in(Auth), #{}, Fun).

with_client(Peer, Auth, More, Fun) ->
    Options = maps:merge(#{era => '2026-07-28', cache => false, timeout => 60_000}, More),
    {ok, Client} =
        erlmcp_client:start_link({http, erlmcp_test_oauth:url(Peer), Options#{auth => Auth}}),
    try
        Fun(Client)
    after
        ok = erlmcp_client:stop(Client)
    end.

authorizations(Peer) ->
    [maps:get(~"authorization", Headers, none)
     || #{method := ~"POST", headers := Headers} <- erlmcp_test_oauth:asked(Peer, ~"/mcp")].

a_call_waits_for_the_login(Config) ->
    Peer = peer(Config),
    with_client(Peer, #{}, fun(Client) ->
        {ok, []} = erlmcp_client:list_tools(Client),
        [none, ~"Bearer token-1", ~"Bearer token-1"] = authorizations(Peer),
        {ok, []} = erlmcp_client:list_tools(Client),
        [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize")
    end).

%% The login goes on, for the calls after it. A request that the server of a session had been sent
%% would be cancelled there.
a_call_given_up_during_its_login_is_not_sent(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:change(Peer, ~"/mcp", fun(#{headers := Headers, body := Body} = Request) ->
        case {Headers, binary:match(Body, ~"tools/list")} of
            {#{~"authorization" := _}, _} -> served(Request, #{});
            {_, nomatch} -> served(Request, #{});
            {_, _} -> refused(Request)
        end
    end),
    Test = self(),
    Browser = fun(Url) ->
        Test ! {browser, self()},
        receive agreed -> erlmcp_test_oauth:browser(Url) end
    end,
    Auth = erlmcp_test_oauth:logged_in(#{browser => Browser}),
    with_client(Peer, Auth, #{era => '2025-11-25'}, fun(Client) ->
        {ok, Reference} = erlmcp_client:async(Client, {list, tools}),
        User = receive {browser, Pid} -> Pid after 30_000 -> error(no_login) end,
        ok = erlmcp_client:cancel(Client, Reference),
        User ! agreed,
        receive {erlmcp, Reference, {error, cancelled}} -> ok after 30_000 -> error(late) end,
        {ok, []} = erlmcp_client:list_tools(Client),
        [~"initialize", ~"notifications/initialized", ~"tools/list", ~"tools/list"] =
            [Method || #{method := ~"POST", body := Body} <- erlmcp_test_oauth:asked(Peer, ~"/mcp"),
                       #{~"method" := Method} <- [json:decode(Body)]]
    end).

%% It is this machine, as far inside as any.
a_login_knows_what_was_reached(Config) ->
    _ = erlang:trace_pattern({erlmcp_authorizer, challenged, 5}, true, []),
    _ = erlang:trace(new_processes, true, [call]),
    with_client(peer(Config), #{}, fun(Client) ->
        {ok, []} = erlmcp_client:list_tools(Client)
    end),
    receive
        {trace, _, call, {erlmcp_authorizer, challenged, [_, _, _, Reached, _]}} -> 2 = Reached
    after 30_000 ->
        error(not_challenged)
    end,
    _ = erlang:trace(all, false, [call]),
    erlang:trace_pattern({erlmcp_authorizer, challenged, 5}, false, []).

calls_at_once_share_a_login(Config) ->
    Peer = peer(Config),
    with_client(Peer, #{}, fun(Client) ->
        {ok, _} = erlmcp_client:server(Client),
        %% The server forgets what it granted: all calls are refused at once.
        erlmcp_test_oauth:change(Peer, ~"/mcp", fun(#{headers := Headers} = Request) ->
            case Headers of
                #{~"authorization" := ~"Bearer token-1"} -> refused(Request);
                #{} -> served(Request, #{})
            end
        end),
        References = [begin
            {ok, Reference} = erlmcp_client:async(Client, {list, tools}),
            Reference
        end || _ <- lists:seq(1, 20)],
        [receive {erlmcp, Reference, Outcome} -> ?assertEqual({ok, []}, Outcome) end
         || Reference <- References],
        2 = length(erlmcp_test_oauth:asked(Peer, ~"/token"))
    end).

a_server_that_refuses_every_token(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:change(Peer, ~"/mcp", fun refused/1),
    with_client(Peer, #{}, fun(Client) ->
        {error, {unauthorized, _}} = erlmcp_client:list_tools(Client),
        %% The client may have looked twice what the server is: once by itself, once for the call.
        ?assert(length(authorizations(Peer)) =< 8),
        ?assert(length(erlmcp_test_oauth:asked(Peer, ~"/authorize")) =< 6)
    end).

a_login_that_fails_is_named(Config) ->
    Peer = peer(Config),
    with_client(Peer, #{browser => fun(_) -> {error, closed} end}, fun(Client) ->
        {error, {unauthorized, Why}} = erlmcp_client:list_tools(Client),
        ?assertNotMatch({http, _, _, _}, Why)
    end).

%% The call ends in its time, and the login goes on for the next one.
a_login_that_takes_too_long(Config) ->
    Peer = peer(Config),
    Test = self(),
    Browser = fun(Url) ->
        Test ! {browser, self()},
        receive agreed -> erlmcp_test_oauth:browser(Url) end
    end,
    with_client(Peer, #{browser => Browser}, fun(Client) ->
        {error, {timeout, 2000}} = erlmcp_client:list_tools(Client, #{timeout => 2000}),
        receive {browser, Pid} -> Pid ! agreed end,
        {ok, []} = erlmcp_client:list_tools(Client),
        [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize")
    end).

%% The server refuses the token when the stream of a call is resumed, and nobody logs in.
a_resumption_asks_for_one_login(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:change(Peer, ~"/mcp", fun
        (#{method := ~"GET", headers := #{~"last-event-id" := _}} = Request) ->
            refused(Request);
        (#{headers := #{~"authorization" := _}, body := Body} = Request) ->
            case binary:match(Body, ~"tools/call") of
                nomatch ->
                    served(Request, #{});
                _ ->
                    {200, #{~"content-type" => ~"text/event-stream"},
                     ~"id: 1\nretry: 0\ndata: \n\n"}
            end;
        (Request) ->
            refused(Request)
    end),
    %% Without a refresh token, a login is the only way to another token.
    erlmcp_test_oauth:change(Peer, ~"/token", fun(_) ->
        erlmcp_test_oauth:json(200, maps:remove(~"refresh_token",
                                                erlmcp_test_oauth:token_answer(Peer)))
    end),
    Folder = filename:join(proplists:get_value(priv_dir, Config), ?FUNCTION_NAME),
    Auth = erlmcp_test_oauth:logged_in(#{store => {erlmcp_token_store_file, #{folder => Folder}}}),
    Session = #{era => '2025-11-25'},
    with_client(Peer, Auth, Session, fun(Client) -> {ok, _} = erlmcp_client:server(Client) end),
    Away = Auth#{browser => fun(_) -> receive never -> ok end end, login_timeout => 500},
    with_client(Peer, Away, Session, fun(Client) ->
        {error, {timeout, 60_000}} = erlmcp_client:call_tool(Client, ~"t", #{})
    end),
    [_] = [Headers || #{method := ~"GET", headers := #{~"last-event-id" := _} = Headers}
                          <- erlmcp_test_oauth:asked(Peer, ~"/mcp")].

a_session_is_left_without_a_login(Config) ->
    Peer = peer(Config),
    serves(Peer, fun(_) -> [{~"mcp-session-id", ~"one"}] end),
    with_client(Peer, erlmcp_test_oauth:logged_in(#{}), #{era => '2025-11-25'}, fun(Client) ->
        {ok, []} = erlmcp_client:list_tools(Client),
        erlmcp_test_oauth:change(Peer, ~"/mcp", fun refused/1)
    end),
    [~"Bearer token-1"] = [maps:get(~"authorization", Headers)
                           || #{method := ~"DELETE", headers := Headers}
                                  <- erlmcp_test_oauth:asked(Peer, ~"/mcp")],
    [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize").

the_nonce_of_an_answer_is_in_the_next_proof(Config) ->
    Peer = peer(Config),
    serves(Peer, fun(#{body := Body}) ->
        #{~"method" := Method} = json:decode(Body),
        [{~"dpop-nonce", <<"after ", Method/binary>>}]
    end),
    bound_tokens(Peer),
    with_client(Peer, #{dpop => true}, fun(Client) ->
        {ok, []} = erlmcp_client:list_tools(Client),
        {ok, []} = erlmcp_client:list_tools(Client),
        [none, ~"after server/discover", ~"after tools/list"] =
            [claim(~"nonce", Proof) || #{headers := #{~"dpop" := Proof}}
                                           <- erlmcp_test_oauth:asked(Peer, ~"/mcp")]
    end).

bound_tokens(Peer) ->
    erlmcp_test_oauth:change(Peer, ~"/token", fun(_) ->
        erlmcp_test_oauth:json(200,
                               (erlmcp_test_oauth:token_answer(Peer))#{~"token_type" => ~"DPoP"})
    end),
    erlmcp_test_oauth:metadata(Peer, #{~"dpop_signing_alg_values_supported" => [~"ES256"]}).

%% Each retry is without a login, and so nobody else ends them.
a_nonce_that_is_never_right(Config) ->
    Peer = peer(Config),
    bound_tokens(Peer),
    erlmcp_test_oauth:change(Peer, ~"/mcp", fun(#{headers := Headers} = Request) ->
        case Headers of
            #{~"authorization" := _} ->
                Nonce = integer_to_binary(erlang:unique_integer([positive])),
                {401, #{~"www-authenticate" => ~"DPoP error=\"use_dpop_nonce\"",
                        ~"dpop-nonce" => Nonce}, ~""};
            #{} ->
                refused(Request)
        end
    end),
    with_client(Peer, #{dpop => true}, fun(Client) ->
        {error, {unauthorized, _}} = erlmcp_client:list_tools(Client),
        ?assert(length(authorizations(Peer)) =< 8),
        [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize")
    end).

claim(Name, Proof) ->
    [_, Claims, _] = binary:split(Proof, ~".", [global]),
    Decoded = base64:decode(Claims, #{mode => urlsafe, padding => false}),
    maps:get(Name, json:decode(Decoded), none).

wrong_options(Config) ->
    Url = erlmcp_test_oauth:url(peer(Config)),
    process_flag(trap_exit, true),
    [{error, {bad_option, Key, _}} = erlmcp_client:start_link({http, Url, Options})
     || {Key, Options} <- [
         {auth, #{auth => []}},
         {{auth, browser}, #{auth => #{browser => fun() -> ok end}}},
         {{auth, client_secret}, #{auth => #{grant => client_credentials, client_id => ~"c"}}},
         {auth, #{auth => #{}, token => ~"t"}},
         {headers, #{auth => #{}, headers => [{~"Authorization", ~"Basic eA=="}]}}
     ]].

%% The fun of `token` returns what every fun of a secret returns, `t:erlmcp_oauth:secret/0`.
a_token_may_come_from_a_fun(Config) ->
    Peer = peer(Config),
    Start = fun(Fun) ->
        erlmcp_client:start_link({http, erlmcp_test_oauth:url(Peer), #{token => Fun}})
    end,
    {ok, Client} = Start(fun() -> {ok, ~"t-ada"} end),
    {ok, []} = erlmcp_client:list_tools(Client),
    ok = erlmcp_client:stop(Client),
    [~"Bearer t-ada"] = lists:usort([Field || #{headers := #{~"authorization" := Field}}
                                                  <- erlmcp_test_oauth:asked(Peer, ~"/mcp")]),
    process_flag(trap_exit, true),
    {error, {secret, sealed}} = Start(fun() -> {error, sealed} end),
    [{error, {bad_option, token, _}} = Start(fun() -> Returned end)
     || Returned <- [~"t-ada", {ok, ~""}, {ok, ~"a\nb"}, {ok, "t-ada"}, error]].

%% "Secrets" of the options are in no state that prints, and supervisors print their children's.
secrets_are_in_no_report(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:metadata(Peer, #{~"token_endpoint_auth_methods_supported" =>
                                           [~"client_secret_basic"]}),
    Auth = #{grant => client_credentials, client_id => ~"c", client_secret => ~"open sesame"},
    with_client(Peer, Auth, #{}, fun(Client) ->
        {ok, []} = erlmcp_client:list_tools(Client),
        {links, Links} = process_info(Client, links),
        [Channel] = [Pid || Pid <- Links, Pid =/= self(), is_pid(Pid),
                            proc_lib:initial_call(Pid) =/= false,
                            {supervisor, _, _} <- [proc_lib:translate_initial_call(Pid)]],
        Specs = [begin
            {ok, Spec} = supervisor:get_childspec(Channel, Id),
            Spec
        end || {Id, _, _, _} <- supervisor:which_children(Channel)],
        Printed = [io_lib:format("~0p", [Term]) || Term <- [Specs, sys:get_status(Client)]],
        nomatch = string:find(iolist_to_binary(Printed), ~"sesame")
    end).
