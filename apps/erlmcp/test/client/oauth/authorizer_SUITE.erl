-module(authorizer_SUITE).
-moduledoc """
The process of a client's authorization: one flow for many callers, deadlines, renewal, what is
kept, and that no secret is seen in a log or an error.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([one_login_for_many_callers/1, one_renewal_for_many_callers/1,
         a_valid_token_is_used_while_it_is_renewed/1,
         a_refused_renewal_leaves_a_valid_token/1]).
-export([a_refused_token_is_refreshed/1, a_refused_refresh_leads_to_a_login/1,
         a_refresh_at_another_time_leads_to_no_login/1]).
-export([a_token_that_is_refused_after_a_refresh_leads_to_a_login/1]).
-export([a_refresh_token_is_replaced_or_kept/1, a_failing_refresh_keeps_the_token/1]).
-export([a_refresh_token_is_of_one_resource/1, a_malformed_registration_is_not_used/1,
         metadata_that_cannot_be_had_are_an_error/1, a_redirect_without_a_code_is_no_login/1]).
-export([an_end_without_a_refresh_token_leads_to_a_login/1, a_server_that_refuses_all_ends/1]).
-export([a_slow_server_costs_no_more_than_the_deadline/1, a_login_outlives_its_caller/1]).
-export([a_login_has_an_end/1, an_older_challenge_needs_no_login/1]).
-export([it_ends_with_its_owner/1, it_can_be_stopped_in_a_login/1]).
-export([tokens_outlive_the_process/1, tokens_are_of_one_server/1, tokens_are_of_one_client/1,
         tokens_of_another_issuer_are_not_renewed/1, a_registration_outlives_its_tokens/1]).
-export([an_unknown_client_registers_anew/1, another_redirect_uri_registers_anew/1,
         a_login_in_a_browser_has_the_port_of_before/1]).
-export([what_is_malformed_in_a_store_is_not_used/1, a_store_that_fails_costs_no_login/1]).
-export([clients_share_a_store/1, a_refresh_that_came_second_uses_the_first/1]).
-export([no_token_that_a_header_cannot_have/1, a_login_in_a_browser/1]).
-export([secrets_are_nowhere/1, bad_options/1]).
-export([log/2]).
-export([open/1, get/2, put/3, delete/2]).

-import(erlmcp_test_suite, [peer/1]).

-define(REDIRECT, ~"http://localhost:9/callback").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE) -- [open].

init_per_suite(Config) ->
    erlmcp_test_applications:start([gun, jose, cowboy, inets], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{peer, erlmcp_test_oauth:start()} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_oauth:stop(peer(Config)).

start(More, Peer) ->
    {ok, Pid} = erlmcp_authorizer:start_link(erlmcp_test_oauth:logged_in(More),
                                             erlmcp_test_oauth:url(Peer)),
    {Pid, erlmcp_authorizer:handle(Pid)}.

started(More, Peer) ->
    {_, Handle} = start(More, Peer),
    Handle.

challenged(Handle) -> challenged(Handle, erlmcp_test_oauth:deadline()).

challenged(Handle, Deadline) ->
    erlmcp_authorizer:challenged(Handle, [], {401, #{~"www-authenticate" => ~"Bearer"}}, none,
                                 Deadline).

soon(Ms) -> erlang:monotonic_time(millisecond) + Ms.

grants(Peer) ->
    [Type || #{form := #{~"grant_type" := Type}} <- erlmcp_test_oauth:asked(Peer, ~"/token")].

revoke(#{table := Table}) ->
    true = ets:match_delete(Table, {{token, '_'}}),
    ok.

%% The first token ends at once, those by a refresh token do not.
short_logins(Peer) ->
    erlmcp_test_oauth:change(Peer, ~"/token", fun(#{form := #{~"grant_type" := Type}}) ->
        Tokens = erlmcp_test_oauth:token_answer(Peer),
        case Type of
            ~"authorization_code" -> erlmcp_test_oauth:json(200, Tokens#{~"expires_in" => 0});
            _ -> erlmcp_test_oauth:json(200, Tokens)
        end
    end).

together(Count, Fun) ->
    Self = self(),
    Pids = [spawn_link(fun() -> receive go -> Self ! {self(), Fun()} end end)
            || _ <- lists:seq(1, Count)],
    [Pid ! go || Pid <- Pids],
    [receive {Pid, Result} -> Result after 120_000 -> error(no_result) end || Pid <- Pids].

one_login_for_many_callers(Config) ->
    Peer = peer(Config),
    Handle = started(#{}, Peer),
    Results = together(50, fun() -> erlmcp_test_oauth:call(Handle, Peer) end),
    [{ok, 200}] = lists:usort(Results),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize"),
    [~"authorization_code"] = grants(Peer).

one_renewal_for_many_callers(Config) ->
    Peer = peer(Config),
    short_logins(Peer),
    Handle = started(#{}, Peer),
    retry = challenged(Handle),
    Url = erlmcp_test_oauth:url(Peer),
    Results = together(50, fun() ->
        {ok, [{_, Value}]} =
            erlmcp_authorizer:headers(Handle, post, Url, erlmcp_test_oauth:deadline()),
        iolist_to_binary(Value)
    end),
    [~"Bearer token-2"] = lists:usort(Results),
    [~"authorization_code", ~"refresh_token"] = grants(Peer).

%% The server of the tokens fails at first, and then takes its time.
a_valid_token_is_used_while_it_is_renewed(Config) ->
    Peer = peer(Config),
    {Authorizer, Handle} = start(#{}, Peer),
    retry = challenged(Handle),
    ok = due(Authorizer),
    Value = fun() -> authorization(Handle, Peer) end,
    lists:foreach(fun(Status) ->
        erlmcp_test_oauth:change(Peer, ~"/token", {Status, #{}, ~""}),
        Began = erlang:system_time(second),
        ok = due(Authorizer),
        %% The pause ends the state in which the token is to be renewed at once.
        true = eventually(fun() ->
            ~"Bearer token-1" = Value(),
            renew_at(Authorizer) > 0
        end),
        true = renew_at(Authorizer) >= Began + 5
    end, [503, 429]),
    3 = length(grants(Peer)),
    ok = due(Authorizer),
    Test = self(),
    erlmcp_test_oauth:change(Peer, ~"/token", fun(_) ->
        Test ! {token, self()},
        receive go -> erlmcp_test_oauth:json(200, erlmcp_test_oauth:token_answer(Peer)) end
    end),
    Renewal = eventually(fun() ->
        ~"Bearer token-1" = Value(),
        receive {token, Pid} -> Pid after 0 -> false end
    end),
    ~"Bearer token-1" = Value(),
    Renewal ! go,
    true = eventually(fun() -> Value() =/= ~"Bearer token-1" end).

%% The refresh token was refused for good, and the token itself is used to its end.
a_refused_renewal_leaves_a_valid_token(Config) ->
    Peer = peer(Config),
    {Authorizer, Handle} = start(#{}, Peer),
    retry = challenged(Handle),
    Refused = erlmcp_test_oauth:json(400, #{~"error" => ~"invalid_grant"}),
    erlmcp_test_oauth:change(Peer, ~"/token", Refused),
    ok = due(Authorizer),
    Value = fun() -> authorization(Handle, Peer) end,
    true = eventually(fun() ->
        ~"Bearer token-1" = Value(),
        renew_at(Authorizer) > 0
    end),
    false = is_renewable(Authorizer),
    ok = due(Authorizer),
    ~"Bearer token-1" = Value(),
    [~"authorization_code", ~"refresh_token"] = grants(Peer).

authorization(Handle, Peer) ->
    {ok, [{_, Value}]} = erlmcp_authorizer:headers(Handle, post, erlmcp_test_oauth:url(Peer),
                                                   erlmcp_test_oauth:deadline()),
    iolist_to_binary(Value).

%% Makes the token one that is to be renewed, although it ends later.
due(Pid) ->
    _ = sys:replace_state(Pid, fun(State) ->
        [Table] = [Table || Table <- tuple_to_list(State), is_reference(Table),
                            ets:info(Table, name) =:= erlmcp_authorizer],
        true = ets:update_element(Table, token, {4, 0}),
        State
    end),
    ok.

renew_at(Pid) -> of_token(Pid, 4).

is_renewable(Pid) -> of_token(Pid, 6).

of_token(Pid, Place) ->
    [Table] = [Table || Table <- tuple_to_list(sys:get_state(Pid)), is_reference(Table),
                        ets:info(Table, name) =:= erlmcp_authorizer],
    ets:lookup_element(Table, token, Place).

%% Waits until the fun returns something other than `false`, and returns that.
eventually(Look) ->
    case Look() of
        false -> receive after 10 -> eventually(Look) end;
        Found -> Found
    end.

a_refused_token_is_refreshed(Config) ->
    Peer = peer(Config),
    Handle = started(#{}, Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    revoke(Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    [~"authorization_code", ~"refresh_token"] = grants(Peer),
    [_, #{form := #{~"refresh_token" := ~"refresh-1", ~"client_id" := ~"client-1",
                    ~"resource" := _}}] = erlmcp_test_oauth:asked(Peer, ~"/token").

a_refused_refresh_leads_to_a_login(Config) ->
    #{table := Table} = Peer = peer(Config),
    Handle = started(#{}, Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    revoke(Peer),
    true = ets:match_delete(Table, {{refresh, '_'}}),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    [~"authorization_code", ~"refresh_token", ~"authorization_code"] = grants(Peer),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/register").

%% RFC 6585, section 4: 429 asks for the same request later. Nobody has to log in for that.
a_refresh_at_another_time_leads_to_no_login(Config) ->
    Peer = peer(Config),
    Handle = started(#{}, Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    revoke(Peer),
    erlmcp_test_oauth:change(Peer, ~"/token", {429, #{}, ~""}),
    {error, {token_refused, 429, none, none}} = erlmcp_test_oauth:call(Handle, Peer),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize"),
    erlmcp_test_oauth:change(Peer, ~"/token", fun(_) ->
        erlmcp_test_oauth:json(200, erlmcp_test_oauth:token_answer(Peer))
    end),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize"),
    [~"authorization_code", ~"refresh_token", ~"refresh_token"] = grants(Peer).

a_token_that_is_refused_after_a_refresh_leads_to_a_login(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:change(Peer, ~"/mcp", fun(#{headers := Headers}) ->
        case Headers of
            #{~"authorization" := ~"Bearer token-3"} -> {200, #{}, ~"{}"};
            #{} -> {401, #{~"www-authenticate" => ~"Bearer"}, ~""}
        end
    end),
    {ok, 200} = erlmcp_test_oauth:call(started(#{}, Peer), Peer),
    [~"authorization_code", ~"refresh_token", ~"authorization_code"] = grants(Peer).

a_refresh_token_is_replaced_or_kept(Config) ->
    Peer = peer(Config),
    Handle = started(#{}, Peer),
    Answer = fun(#{form := Form}) ->
        Tokens = (erlmcp_test_oauth:token_answer(Peer))#{~"expires_in" => 0},
        erlmcp_test_oauth:json(200, case Form of
            #{~"refresh_token" := ~"refresh-1"} -> maps:remove(~"refresh_token", Tokens);
            #{} -> Tokens
        end)
    end,
    erlmcp_test_oauth:change(Peer, ~"/token", Answer),
    retry = challenged(Handle),
    Renewed = fun() ->
        {ok, [_]} = erlmcp_authorizer:headers(Handle, post, erlmcp_test_oauth:url(Peer),
                                              erlmcp_test_oauth:deadline())
    end,
    Renewed(),
    Renewed(),
    [~"refresh-1", ~"refresh-1"] =
        [Token
         || #{form := #{~"refresh_token" := Token}} <- erlmcp_test_oauth:asked(Peer, ~"/token")],
    erlmcp_test_oauth:change(Peer, ~"/token",
                             fun(_) ->
                                 Tokens = erlmcp_test_oauth:token_answer(Peer),
                                 erlmcp_test_oauth:json(200, Tokens#{~"expires_in" => 0})
                             end),
    Renewed(),
    Renewed(),
    [~"refresh-1", ~"refresh-1", ~"refresh-1", ~"refresh-4"] =
        [Token
         || #{form := #{~"refresh_token" := Token}} <- erlmcp_test_oauth:asked(Peer, ~"/token")].

%% Where the server's metadata have another resource since the login.
a_refresh_token_is_of_one_resource(Config) ->
    Peer = peer(Config),
    Handle = started(#{}, Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    Whole = erlmcp_test_oauth:url(Peer, ~""),
    erlmcp_test_oauth:resource(Peer, #{~"resource" => Whole}),
    revoke(Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    [{~"authorization_code", First}, {~"authorization_code", Whole}] =
        [{Type, Resource} || #{form := #{~"grant_type" := Type, ~"resource" := Resource}}
                                 <- erlmcp_test_oauth:asked(Peer, ~"/token")],
    true = First =:= erlmcp_test_oauth:url(Peer).

a_failing_refresh_keeps_the_token(Config) ->
    Peer = peer(Config),
    short_logins(Peer),
    Handle = started(#{}, Peer),
    retry = challenged(Handle),
    erlmcp_test_oauth:change(Peer, ~"/token", {503, #{}, ~""}),
    Url = erlmcp_test_oauth:url(Peer),
    {error, {token_refused, 503, none, none}} =
        erlmcp_authorizer:headers(Handle, post, Url, erlmcp_test_oauth:deadline()),
    short_logins(Peer),
    {ok, [_]} = erlmcp_authorizer:headers(Handle, post, Url, erlmcp_test_oauth:deadline()),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize").

an_end_without_a_refresh_token_leads_to_a_login(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:change(Peer, ~"/token", fun(_) ->
        Tokens = maps:remove(~"refresh_token", erlmcp_test_oauth:token_answer(Peer)),
        erlmcp_test_oauth:json(200, Tokens#{~"expires_in" => 0})
    end),
    Handle = started(#{}, Peer),
    retry = challenged(Handle),
    {ok, []} = erlmcp_authorizer:headers(Handle, post, erlmcp_test_oauth:url(Peer), soon(1000)),
    retry = challenged(Handle),
    2 = length(erlmcp_test_oauth:asked(Peer, ~"/authorize")).

a_server_that_refuses_all_ends(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:change(Peer, ~"/mcp", {401, #{~"www-authenticate" => ~"Bearer"}, ~""}),
    Handle = started(#{}, Peer),
    Results = [erlmcp_test_oauth:call(Handle, Peer) || _ <- lists:seq(1, 4)],
    {error, {too_many_logins, 6}} = lists:last(Results),
    true = length(erlmcp_test_oauth:asked(Peer, ~"/authorize")) =< 6.

a_slow_server_costs_no_more_than_the_deadline(Config) ->
    Peer = peer(Config),
    lists:foreach(fun(Path) ->
        erlmcp_test_oauth:change(Peer, Path, hang),
        {Pid, Handle} = start(#{}, Peer),
        Before = erlang:monotonic_time(millisecond),
        {error, timeout} = erlmcp_test_oauth:call(Handle, Peer, soon(200)),
        true = erlang:monotonic_time(millisecond) - Before < 20_000,
        ok = gen_server:stop(Pid)
    end, [~"/token", ~"/register", ~"/.well-known/oauth-authorization-server",
          ~"/.well-known/oauth-protected-resource/mcp"]).

%% A browser whose user agrees when the test says so.
waiting_browser() ->
    Test = self(),
    fun(Url) ->
        Test ! {browser, self()},
        receive agree -> erlmcp_test_oauth:browser(Url) end
    end.

in_the_browser() ->
    receive {browser, Pid} -> Pid after 30_000 -> error(no_login) end.

a_login_outlives_its_caller(Config) ->
    Peer = peer(Config),
    Handle = started(#{browser => waiting_browser()}, Peer),
    {error, timeout} = challenged(Handle, soon(300)),
    Self = self(),
    spawn_link(fun() -> Self ! {second, challenged(Handle)} end),
    in_the_browser() ! agree,
    receive {second, retry} -> ok after 30_000 -> error(no_answer) end,
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize").

a_login_has_an_end(Config) ->
    Peer = peer(Config),
    Handle = started(#{browser => waiting_browser(), login_timeout => 6000}, Peer),
    {error, timeout} = challenged(Handle),
    Login = monitor(process, in_the_browser()),
    receive {'DOWN', Login, process, _, _} -> ok after 30_000 -> error(login_lives) end,
    Self = self(),
    spawn_link(fun() -> Self ! {second, challenged(Handle)} end),
    in_the_browser() ! agree,
    receive {second, retry} -> ok after 30_000 -> error(no_answer) end.

%% The request was sent before the token came.
an_older_challenge_needs_no_login(Config) ->
    Peer = peer(Config),
    Handle = started(#{}, Peer),
    retry = challenged(Handle),
    retry = challenged(Handle),
    retry = erlmcp_authorizer:challenged(Handle, [{~"authorization", ~"Bearer older"}], {401, #{}},
                                         none, erlmcp_test_oauth:deadline()),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize").

it_ends_with_its_owner(Config) ->
    Peer = peer(Config),
    Browser = waiting_browser(),
    Self = self(),
    Owner = spawn(fun() -> Self ! start(#{browser => Browser}, Peer), receive die -> ok end end),
    {Pid, Handle} = receive {_, _} = Started -> Started end,
    spawn_link(fun() -> Self ! {answer, challenged(Handle)} end),
    Monitors = [monitor(process, Pid), monitor(process, in_the_browser())],
    exit(Owner, kill),
    [receive {'DOWN', Monitor, process, _, _} -> ok after 30_000 -> error(lives) end
     || Monitor <- Monitors],
    receive {answer, {error, stopped}} -> ok after 30_000 -> error(no_answer) end,
    {error, stopped} =
        erlmcp_authorizer:headers(Handle, post, erlmcp_test_oauth:url(Peer), soon(100)),
    {error, stopped} = challenged(Handle).

it_can_be_stopped_in_a_login(Config) ->
    Peer = peer(Config),
    {Pid, Handle} = start(#{browser => waiting_browser()}, Peer),
    Self = self(),
    spawn_link(fun() -> Self ! {answer, challenged(Handle)} end),
    Login = monitor(process, in_the_browser()),
    ok = gen_server:stop(Pid),
    receive {'DOWN', Login, process, _, _} -> ok after 30_000 -> error(login_lives) end,
    receive {answer, {error, stopped}} -> ok after 30_000 -> error(no_answer) end.

folder(Config) ->
    {erlmcp_token_store_file, #{folder => filename:join(proplists:get_value(priv_dir, Config),
                                                        "tokens")}}.

tokens_outlive_the_process(Config) ->
    Peer = peer(Config),
    Options = #{store => folder(Config)},
    {Pid, Handle} = start(Options, Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    ok = gen_server:stop(Pid),
    Again = started(Options, Peer),
    {ok, 200} = erlmcp_test_oauth:call(Again, Peer),
    revoke(Peer),
    {ok, 200} = erlmcp_test_oauth:call(Again, Peer),
    [~"authorization_code", ~"refresh_token"] = grants(Peer),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize").

%% Two servers and one store: neither gets a token of the other.
tokens_are_of_one_server(Config) ->
    Peer = peer(Config),
    Other = erlmcp_test_oauth:start(),
    Options = #{store => folder(Config)},
    {ok, 200} = erlmcp_test_oauth:call(started(Options, Peer), Peer),
    Url = erlmcp_test_oauth:url(Other),
    {_, Handle} = start(Options, Other),
    {ok, []} = erlmcp_authorizer:headers(Handle, post, Url, soon(30_000)),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Other),
    [_] = erlmcp_test_oauth:asked(Other, ~"/authorize"),
    %% The tokens of the first are still there.
    {ok, 200} = erlmcp_test_oauth:call(started(Options, Peer), Peer),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize"),
    erlmcp_test_oauth:stop(Other).

%% Nor has a client the tokens of another one at the same server, or those of another kind.
tokens_are_of_one_client(Config) ->
    Peer = peer(Config),
    Store = #{store => folder(Config)},
    Clients = [#{}, #{client_id => ~"mine"}, #{client_id => ~"another"},
               #{client_id => ~"mine", dpop => true}],
    [begin
         Handle = started(maps:merge(Store, Client), Peer),
         {Client, {ok, []}} =
             {Client, erlmcp_authorizer:headers(Handle, post, erlmcp_test_oauth:url(Peer),
                                                soon(30_000))},
         _ = erlmcp_test_oauth:call(Handle, Peer)
     end || Client <- Clients].

%% The `issuer` of the options: "The credentials are sent to no other one". The tokens are stored
%% before the option is set, and have ended.
tokens_of_another_issuer_are_not_renewed(Config) ->
    Peer = peer(Config),
    Other = erlmcp_test_oauth:start(),
    [erlmcp_test_oauth:metadata(Server, #{~"token_endpoint_auth_methods_supported" =>
                                              [~"client_secret_post"]}) || Server <- [Peer, Other]],
    erlmcp_test_oauth:change(Peer, ~"/token", fun(_) ->
        Tokens = erlmcp_test_oauth:token_answer(Peer),
        erlmcp_test_oauth:json(200, Tokens#{~"expires_in" => 0})
    end),
    Options = #{grant => client_credentials, client_id => ~"mine", client_secret => ~"s3cret",
                store => folder(Config)},
    retry = challenged(started(Options, Peer)),
    [~"client_credentials"] = grants(Peer),
    Issuers = [erlmcp_test_oauth:url(Server, ~"") || Server <- [Peer, Other]],
    erlmcp_test_oauth:resource(Peer, #{~"authorization_servers" => Issuers}),
    Handle = started(Options#{issuer => lists:last(Issuers)}, Peer),
    {ok, []} = erlmcp_authorizer:headers(Handle, post, erlmcp_test_oauth:url(Peer), soon(30_000)),
    retry = challenged(Handle),
    [~"client_credentials"] = grants(Peer),
    [#{form := #{~"client_secret" := ~"s3cret"}}] = erlmcp_test_oauth:asked(Other, ~"/token"),
    erlmcp_test_oauth:stop(Other).

a_registration_outlives_its_tokens(Config) ->
    Peer = peer(Config),
    Options = #{store => folder(Config)},
    erlmcp_test_oauth:change(Peer, ~"/token",
                             erlmcp_test_oauth:json(400, #{~"error" => ~"invalid_grant"})),
    {error, {token_refused, 400, ~"invalid_grant", none}} =
        erlmcp_test_oauth:call(started(Options, Peer), Peer),
    {error, {token_refused, 400, ~"invalid_grant", none}} =
        erlmcp_test_oauth:call(started(Options, Peer), Peer),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/register"),
    [_, _] = erlmcp_test_oauth:asked(Peer, ~"/authorize").

an_unknown_client_registers_anew(Config) ->
    Peer = peer(Config),
    Handle = started(#{}, Peer),
    erlmcp_test_oauth:change(Peer, ~"/token",
                             erlmcp_test_oauth:json(401, #{~"error" => ~"invalid_client"})),
    {error, {token_refused, 401, ~"invalid_client", none}} = erlmcp_test_oauth:call(Handle, Peer),
    {error, {token_refused, 401, ~"invalid_client", none}} = erlmcp_test_oauth:call(Handle, Peer),
    [_, _] = erlmcp_test_oauth:asked(Peer, ~"/register").

another_redirect_uri_registers_anew(Config) ->
    Peer = peer(Config),
    Options = #{store => folder(Config), grant => authorization_code},
    erlmcp_test_oauth:change(Peer, ~"/token",
                             erlmcp_test_oauth:json(400, #{~"error" => ~"invalid_grant"})),
    {error, _} = erlmcp_test_oauth:call(started(Options, Peer), Peer),
    {error, _} =
        erlmcp_test_oauth:call(started(Options#{redirect_uri => ~"http://localhost:8/other"},
                                       Peer), Peer),
    [_, _] = erlmcp_test_oauth:asked(Peer, ~"/register").

%% A server may refuse a redirect to another port than the registered one, and it would be the user
%% who hears of it. So the port is the same as long as it is free.
a_login_in_a_browser_has_the_port_of_before(Config) ->
    Peer = peer(Config),
    erlmcp_test_oauth:change(Peer, ~"/token",
                             erlmcp_test_oauth:json(400, #{~"error" => ~"invalid_grant"})),
    Login = fun() ->
        {ok, Pid} = erlmcp_authorizer:start_link(#{browser => fun visited/1,
                                                   store => folder(Config)},
                                                 erlmcp_test_oauth:url(Peer)),
        {error, {token_refused, 400, _, _}} =
            erlmcp_test_oauth:call(erlmcp_authorizer:handle(Pid), Peer),
        #{query := #{~"redirect_uri" := Uri}} =
            lists:last(erlmcp_test_oauth:asked(Peer, ~"/authorize")),
        {Uri, length(erlmcp_test_oauth:asked(Peer, ~"/register"))}
    end,
    {Uri, 1} = Login(),
    [{Uri, 1} = Login() || _ <- [1, 2]],
    {ok, {_, _, Port}} = erlmcp_oauth_url:origin(Uri),
    {ok, Taken} = gen_tcp:listen(Port, [{ip, {127, 0, 0, 1}}, {reuseaddr, true}]),
    {Other, 2} = Login(),
    true = Other =/= Uri,
    ok = gen_tcp:close(Taken),
    {Other, 2} = Login().

visited(Url) ->
    {ok, Location} = erlmcp_test_oauth:browser(Url),
    {ok, {{_, 200, _}, _, _}} = httpc:request(binary_to_list(Location)),
    ok.

%% A store of the test's own: a table whose values it may spoil, or none at all.
open(#{table := Table}) -> {ok, Table};
open(_) -> {error, no_store}.

get(Key, Table) ->
    case ets:lookup(Table, Key) of
        [{_, Value}] -> {ok, json:decode(iolist_to_binary(json:encode(Value)))};
        [] -> none
    end.

put(Key, Value, Table) ->
    case ets:member(Table, full) of
        true -> {error, full};
        false -> ets:insert(Table, {Key, Value}), ok
    end.

delete(Key, Table) -> ets:delete(Table, Key), ok.

what_is_malformed_in_a_store_is_not_used(Config) ->
    Peer = peer(Config),
    Table = ets:new(store, [public]),
    Store = #{store => {?MODULE, #{table => Table}}},
    {ok, 200} = erlmcp_test_oauth:call(started(Store, Peer), Peer),
    [{Key, Value}] = [Row || {Key, _} = Row <- ets:tab2list(Table), element(1, Key) =:= tokens],
    lists:foreach(fun(Name) ->
        lists:foreach(fun(Spoilt) ->
            ets:insert(Table, {Key, Spoilt}),
            {ok, Pid} = erlmcp_authorizer:start_link(erlmcp_test_oauth:logged_in(Store),
                                                     erlmcp_test_oauth:url(Peer)),
            {ok, []} = erlmcp_authorizer:headers(erlmcp_authorizer:handle(Pid), post,
                                                 erlmcp_test_oauth:url(Peer), soon(1000)),
            ok = gen_server:stop(Pid)
        end, [maps:remove(Name, Value), Value#{Name => #{~"x" => 1}}])
    end, [~"access_token", ~"type", ~"expires_at", ~"resource", ~"requested", ~"server"]),
    {error, {store, no_store}} =
        erlmcp_authorizer:start_link(erlmcp_test_oauth:logged_in(#{store => {?MODULE, #{}}}),
                                     erlmcp_test_oauth:url(Peer)).

%% Nor is a registration that is malformed: the client registers anew.
a_malformed_registration_is_not_used(Config) ->
    Peer = peer(Config),
    Table = ets:new(store, [public]),
    Store = #{store => {?MODULE, #{table => Table}}},
    {ok, 200} = erlmcp_test_oauth:call(started(Store, Peer), Peer),
    [{Key, Value}] = [Row || {Key, _} = Row <- ets:tab2list(Table), element(1, Key) =:= client],
    Spoilt = [maps:remove(Name, Value) || Name <- [~"client_id", ~"auth", ~"redirect_uri"]]
        ++ [Value#{Name => 7} || Name <- [~"client_id", ~"auth", ~"redirect_uri"]],
    [begin
         true = ets:delete_all_objects(Table),
         true = ets:insert(Table, {Key, Wrong}),
         Before = length(erlmcp_test_oauth:asked(Peer, ~"/register")),
         {Wrong, {ok, 200}} = {Wrong, erlmcp_test_oauth:call(started(Store, Peer), Peer)},
         {Wrong, 1} = {Wrong, length(erlmcp_test_oauth:asked(Peer, ~"/register")) - Before}
     end || Wrong <- Spoilt].

metadata_that_cannot_be_had_are_an_error(Config) ->
    Peer = peer(Config),
    [begin
         erlmcp_test_oauth:change(Peer, Path, {Status, #{}, ~"no"}),
         {error, {metadata, _, {status, Status}}} = challenged(started(#{}, Peer)),
         erlmcp_test_oauth:change(Peer, Path, {404, #{}, ~"no"})
     end || {Path, Status} <- [{~"/.well-known/oauth-protected-resource/mcp", 500},
                               {~"/.well-known/oauth-authorization-server", 503}]].

%% What the browser comes back with has neither a code nor an error.
a_redirect_without_a_code_is_no_login(Config) ->
    [begin
         Browser = fun(Url) ->
             {ok, Redirected} = erlmcp_test_oauth:browser(Url),
             {ok, re:replace(Redirected, ~"code=[^&]*", Instead, [{return, binary}])}
         end,
         {error, {answer, code}} = challenged(started(#{browser => Browser}, peer(Config)))
     end || Instead <- [~"code=", ~"other=1"]].

a_store_that_fails_costs_no_login(Config) ->
    Peer = peer(Config),
    Table = ets:new(store, [public]),
    ets:insert(Table, {full, true}),
    Handle = started(#{store => {?MODULE, #{table => Table}}}, Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize").

%% As clients on two nodes do. The second one had no token when it started.
clients_share_a_store(Config) ->
    Peer = peer(Config),
    Options = #{store => folder(Config)},
    [One, Two] = [started(Options, Peer) || _ <- [1, 2]],
    [{ok, 200} = erlmcp_test_oauth:call(Client, Peer) || Client <- [One, Two]],
    [~"authorization_code"] = grants(Peer),
    revoke(Peer),
    [{ok, 200} = erlmcp_test_oauth:call(Client, Peer) || Client <- [Two, One]],
    [~"authorization_code", ~"refresh_token"] = grants(Peer).

%% The other one stores its tokens while this one's refresh token, used already, is refused: at the
%% end of the token, and when the server refuses the token.
a_refresh_that_came_second_uses_the_first(Config) ->
    #{table := Tokens} = Peer = peer(Config),
    lists:foreach(fun({Seconds, Before}) ->
        Table = ets:new(store, [public]),
        erlmcp_test_oauth:change(Peer, ~"/token", fun(_) ->
            Answer = erlmcp_test_oauth:token_answer(Peer),
            erlmcp_test_oauth:json(200, Answer#{~"expires_in" => Seconds})
        end),
        Handle = started(#{store => {?MODULE, #{table => Table}}}, Peer),
        retry = challenged(Handle),
        [{Key, #{~"expires_at" := End} = Value}] =
            [Row || {{tokens, _, _, _, _}, _} = Row <- ets:tab2list(Table)],
        Newer = Value#{~"access_token" := ~"newer", ~"expires_at" := End + 3600},
        erlmcp_test_oauth:change(Peer, ~"/token", fun(_) ->
            true = ets:insert(Table, {Key, Newer}),
            true = ets:insert(Tokens, {{token, ~"newer"}}),
            erlmcp_test_oauth:json(400, #{~"error" => ~"invalid_grant"})
        end),
        Logins = length(erlmcp_test_oauth:asked(Peer, ~"/authorize")),
        Refused = length(grants(Peer)),
        ok = Before(Peer),
        {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
        1 = length(grants(Peer)) - Refused,
        Logins = length(erlmcp_test_oauth:asked(Peer, ~"/authorize")),
        [{Key, Newer}] = ets:lookup(Table, Key)
    end, [{0, fun(_) -> ok end}, {3600, fun revoke/1}]).

no_token_that_a_header_cannot_have(Config) ->
    Peer = peer(Config),
    Tokens = #{~"access_token" => ~"good", ~"token_type" => ~"bEARER"},
    lists:foreach(fun({Changes, What}) ->
        erlmcp_test_oauth:change(Peer, ~"/token",
                                 erlmcp_test_oauth:json(200, maps:merge(Tokens, Changes))),
        {error, {token, What}} = challenged(started(#{}, Peer))
    end, [{#{~"access_token" => <<"two\r\nx: y">>}, access_token},
          {#{~"access_token" => ~"two words"}, access_token},
          {#{~"access_token" => ~""}, access_token},
          {#{~"access_token" => 1}, access_token},
          {#{~"access_token" => binary:copy(~"x", 16_385)}, access_token},
          {#{~"token_type" => ~"mac"}, token_type},
          {#{~"token_type" => null}, token_type}]),
    [begin
         erlmcp_test_oauth:change(Peer, ~"/token", erlmcp_test_oauth:json(200, Answer)),
         {error, {token, What}} = challenged(started(#{}, Peer))
     end || {Answer, What} <- [{maps:remove(~"token_type", Tokens), token_type},
                               {maps:remove(~"access_token", Tokens), access_token}]],
    erlmcp_test_oauth:change(Peer, ~"/token",
                             erlmcp_test_oauth:json(200, Tokens#{~"access_token" =>
                                                                     binary:copy(~"x", 16_384)})),
    retry = challenged(started(#{}, Peer)).

%% The listener on the loopback waits for the user's browser.
a_login_in_a_browser(Config) ->
    Peer = peer(Config),
    Browser = fun visited/1,
    {ok, Pid} = erlmcp_authorizer:start_link(#{browser => Browser}, erlmcp_test_oauth:url(Peer)),
    {ok, 200} = erlmcp_test_oauth:call(erlmcp_authorizer:handle(Pid), Peer),
    [#{query := #{~"redirect_uri" := RedirectUri}}] = erlmcp_test_oauth:asked(Peer, ~"/authorize"),
    [#{body := Body}] = erlmcp_test_oauth:asked(Peer, ~"/register"),
    #{~"redirect_uris" := [RedirectUri], ~"application_type" := ~"native"} = json:decode(Body),
    %% What goes wrong before there is a URL is an error as anywhere else.
    erlmcp_test_oauth:change(Peer, ~"/register", {500, #{}, ~""}),
    {ok, Other} = erlmcp_authorizer:start_link(#{browser => Browser}, erlmcp_test_oauth:url(Peer)),
    {error, {registration_refused, 500, none, none}} =
        erlmcp_test_oauth:call(erlmcp_authorizer:handle(Other), Peer).

log(Event, #{config := #{test := Test}}) ->
    Test ! {logged, Event}.

secrets_are_nowhere(Config) ->
    Peer = peer(Config),
    process_flag(trap_exit, true),
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => #{test => self()}}),
    Options = #{client_id => ~"mine", client_secret => ~"client-s3cret"},
    erlmcp_test_oauth:metadata(Peer, #{~"token_endpoint_auth_methods_supported" =>
                                           [~"client_secret_basic"]}),
    {Pid, Handle} = start(Options, Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    Seen = [sys:get_status(Pid), sys:get_state(Pid), process_info(Pid, messages)],
    %% It knows no such question, and its last state is in the log.
    {'EXIT', Reason} = crashed(Pid),
    %% A login that crashes with its arguments in the stack.
    {_, Other} = start(Options#{browser => fun(Url) -> binary_to_integer(Url) end}, Peer),
    {error, {crashed, Incident}} = challenged(Other),
    Bad = erlmcp_authorizer:start_link(Options#{tls => ~"client-s3cret"},
                                       erlmcp_test_oauth:url(Peer)),
    {error, {bad_option, tls, _}} = Bad,
    logger:error("last"),
    Events = events(),
    ok = logger:remove_handler(?MODULE),
    Shown = iolist_to_binary(io_lib:format("~tp", [[Seen, Reason, Events, Bad]])),
    true = binary:match(Shown, Incident) =/= nomatch,
    [] = [Secret || Secret <- [~"client-s3cret", ~"token-1", ~"refresh-1", ~"code_challenge",
                               base64:encode(~"mine:client-s3cret")],
                    binary:match(Shown, Secret) =/= nomatch].

crashed(Pid) ->
    try gen_server:call(Pid, no_question)
    catch exit:Reason -> {'EXIT', Reason}
    end.

events() ->
    receive
        {logged, #{msg := {string, "last"}}} -> [];
        {logged, Event} -> [Event | events()]
    after 30_000 -> error(no_event)
    end.

provider() ->
    #{token_endpoint => ~"https://idp.example/token", client_id => ~"c", id_token => ~"t"}.

bad_options(_) ->
    Url = ~"https://mcp.example.com/mcp",
    lists:foreach(fun({Key, Options}) ->
        {error, {bad_option, Key, Expected}} = erlmcp_authorizer:start_link(Options, Url),
        true = is_binary(Expected)
    end, [{auth, []},
          {no_option, #{no_option => 1}},
          {grant, #{grant => password}},
          {client_id, #{client_id => ~""}},
          {client_id, #{client_secret => ~"x"}},
          {client_id, #{grant => client_credentials}},
          {client_secret, #{grant => client_credentials, client_id => ~"x"}},
          {client_secret, #{client_id => ~"x", client_secret => x}},
          {issuer, #{issuer => ~"http://as.example.com"}},
          {key, #{key => x}},
          {algorithm, #{algorithm => ~"none"}},
          {client_metadata_url, #{client_metadata_url => ~"http://app.example.com/c.json"}},
          {client_metadata_url, #{client_metadata_url => ~"https://app.example.com"}},
          {client_name, #{client_name => name}},
          {redirect_uri, #{redirect_uri => ~"http://app.example.com/back"}},
          {browser, #{redirect_uri => ?REDIRECT}},
          {browser, #{browser => fun() -> ok end}},
          {loopback, #{loopback => #{state => ~"x"}}},
          {loopback, #{loopback => #{port => -1}}},
          {loopback, #{loopback => #{host => ~"example.com"}}},
          {scope, #{scope => ~"a  b"}},
          {scope, #{scope => <<"a\"b">>}},
          {assertion, #{assertion => 1}},
          {assertion, #{grant => jwt_bearer, client_id => ~"x"}},
          {idp, #{idp => #{}}},
          {idp, #{idp => (provider())#{client_id := 7}}},
          {idp, #{idp => (provider())#{id_token := 7}}},
          {idp, #{idp => (provider())#{client_secret => 7}}},
          {idp, #{idp => (provider())#{token_endpoint := ~"http://idp.example/token"}}},
          {idp, #{idp => (provider())#{other => 7}}},
          {idp, #{grant => enterprise, client_id => ~"x"}},
          {dpop, #{dpop => yes}},
          {store, #{store => ets}},
          {tls, #{tls => #{}}},
          {login_timeout, #{login_timeout => 0}}]),
    lists:foreach(fun(Bad) ->
        {error, {bad_option, url, _}} = erlmcp_authorizer:start_link(#{}, Bad)
    end, [~"ftp://mcp.example.com", ~"mcp.example.com", ~"https://user@mcp.example.com/",
          ~"https://mcp.example.com/#here", ~""]).
