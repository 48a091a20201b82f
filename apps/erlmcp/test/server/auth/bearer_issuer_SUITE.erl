-module(bearer_issuer_SUITE).
-moduledoc """
What a listener asks the authorization server: keys and introspections, where that is slow, away, or
changes its keys. HTTP to it is real.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2, log/2]).
-export([how_long_keys_are_fresh/1]).
-export([keys_are_fetched_once/1, keys_are_rotated/1, unknown_keys_are_no_flood/1]).
-export([old_keys_serve_while_new_ones_are_fetched/1, a_withdrawn_key_ends_its_tokens/1]).
-export([keys_that_cannot_be_had/1, a_slow_issuer_has_a_deadline/1, keys_without_https/1]).
-export([tokens_are_introspected/1, an_answer_is_kept_for_a_while/1, no_answer_is_no_token/1]).
-export([introspections_are_bounded/1, nobody_waits_for_a_dead_process/1]).
-export([a_dead_process_is_not_asked/1]).
-export([without_a_process_nothing_is_fetched/1, fetched_keys_are_told_at_once/1,
         who_fetches_shows_nothing/1, a_crash_shows_no_secret/1, new_keys_that_cannot_be_had/1]).

-import(erlmcp_test_suite, [issuer/1]).
-import(erlmcp_test_bearer, [handle/2, jwt/2, introspection/2, claims/1, token/2, opaque/2,
                             bearer/1, verify/2, begun/2, awaited/2, refusal/1, refused/2, held/3,
                             next_asked/0, nobody_asked/0, asked/2, later/1]).

-define(INVALID, {auth_invalid_credentials, 401, ~"invalid_token"}).
-define(EXPIRED, {auth_expired, 401, ~"invalid_token"}).
-define(UNAVAILABLE, {dependency_unavailable, 503, none}).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([gun, jose, cowboy, inets], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{issuer, erlmcp_test_issuer:start()} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_issuer:stop(issuer(Config)).

keys_are_fetched_once(Config) ->
    Issuer = issuer(Config),
    held(~"/jwks", erlmcp_test_oauth:json(200, erlmcp_test_issuer:keys(Issuer)), Issuer),
    Handle = handle(#{wait_ms => 60_000}, Config),
    Waits = [begun(bearer(token(#{}, issuer(Config))), Handle) || _ <- lists:seq(1, 50)],
    50 = length([Wait || {_, {wait, Wait}} <- Waits]),
    next_asked() ! go_on,
    [{ok, _} = awaited(Wait, Handle) || Wait <- Waits],
    nobody_asked(),
    1 = asked(~"/jwks", issuer(Config)).

keys_are_rotated(Config) ->
    Handle = handle(#{}, Config),
    {ok, _} = verify(token(#{}, issuer(Config)), Handle),
    erlmcp_test_issuer:rotate(issuer(Config)),
    later(Handle),
    {ok, _} = verify(token(#{}, issuer(Config)), Handle),
    2 = asked(~"/jwks", issuer(Config)),
    %% Without an id in the header too.
    erlmcp_test_issuer:rotate(issuer(Config)),
    later(Handle),
    Nameless = erlmcp_test_issuer:sign(#{~"kid" => remove}, claims(issuer(Config)),
                                       issuer(Config)),
    {ok, _} = verify(Nameless, Handle),
    3 = asked(~"/jwks", issuer(Config)).

unknown_keys_are_no_flood(Config) ->
    Handle = handle(#{}, Config),
    Unknown = fun() ->
        Kid = binary:encode_hex(crypto:strong_rand_bytes(8)),
        erlmcp_test_issuer:sign(#{~"kid" => Kid}, claims(issuer(Config)), issuer(Config))
    end,
    [?INVALID = refused(Unknown(), Handle) || _ <- lists:seq(1, 50)],
    1 = asked(~"/jwks", issuer(Config)),
    later(Handle),
    [?INVALID = refused(Unknown(), Handle) || _ <- lists:seq(1, 50)],
    2 = asked(~"/jwks", issuer(Config)),
    {ok, _} = verify(token(#{}, issuer(Config)), Handle).

old_keys_serve_while_new_ones_are_fetched(Config) ->
    #{tables := Tables} = Handle = handle(#{}, Config),
    {ok, _} = verify(token(#{}, issuer(Config)), Handle),
    {_, Keys, _} = erlmcp_bearer_tables:keys(1, erlang:monotonic_time(millisecond), Tables),
    Stale = fun() ->
        ok = erlmcp_bearer_tables:put_keys(1, Keys, 0, Tables),
        later(Handle)
    end,
    Stale(),
    held(~"/jwks", {500, #{}, ~""}, issuer(Config)),
    %% At once, as often as somebody asks, and the issuer is asked once.
    [{ok, _} = erlmcp_bearer:verify(Handle, bearer(token(#{}, issuer(Config))), {self(), unused})
     || _ <- lists:seq(1, 20)],
    next_asked() ! go_on,
    nobody_asked(),
    {ok, _} = erlmcp_bearer:verify(Handle, bearer(token(#{}, issuer(Config))), {self(), unused}),
    %% The issuer is asked again after a failure and after a success, as soon as that has ended.
    [until(fun() ->
               Stale(),
               {ok, _} = erlmcp_bearer:verify(Handle, bearer(token(#{}, issuer(Config))),
                                              {self(), unused}),
               receive
                   {asked, Asked} -> Asked ! go_on, true
               after 0 ->
                   false
               end
           end, 500)
     || Answer <- [erlmcp_test_oauth:json(200, erlmcp_test_issuer:keys(issuer(Config))),
                   {500, #{}, ~""}],
        ok <- [held(~"/jwks", Answer, issuer(Config))]],
    %% There is an end to it.
    none = erlmcp_bearer_tables:keys(1, erlang:monotonic_time(millisecond) + 6 * 3_600_000, Tables).

%% The issuer says, and not more than an hour or less than a minute.
how_long_keys_are_fresh(Config) ->
    Issuer = issuer(Config),
    {Status, Headers, Body} = erlmcp_test_oauth:json(200, erlmcp_test_issuer:keys(Issuer)),
    [begin
         erlmcp_test_oauth:change(Issuer, ~"/jwks", {Status, maps:merge(Headers, Cached), Body}),
         #{tables := Tables} = Handle = handle(#{}, Config),
         Before = erlang:monotonic_time(millisecond),
         {ok, _} = verify(token(#{}, Issuer), Handle),
         After = erlang:monotonic_time(millisecond),
         Freshness = fun(Since) ->
             element(1, erlmcp_bearer_tables:keys(1, Since + 1000 * Seconds, Tables))
         end,
         {Cached, fresh, stale} = {Cached, Freshness(Before - 1), Freshness(After)}
     end || {Cached, Seconds} <- [
                {#{}, 600}, {#{~"cache-control" => ~"no-store"}, 600},
                {#{~"cache-control" => ~"public, Max-Age=900, must-revalidate"}, 900},
                {#{~"cache-control" => ~"s-maxage=5,max-age = 120"}, 120},
                {#{~"cache-control" => ~"max-age=0"}, 60},
                {#{~"cache-control" => ~"max-age=31536000"}, 3600},
                {#{~"cache-control" => ~"max-age=-1"}, 600}]].

a_withdrawn_key_ends_its_tokens(Config) ->
    Handle = handle(#{}, Config),
    Old = token(#{}, issuer(Config)),
    {ok, _} = verify(Old, Handle),
    erlmcp_test_issuer:rotate(issuer(Config)),
    later(Handle),
    {ok, _} = verify(token(#{}, issuer(Config)), Handle),
    ?INVALID = refused(Old, Handle).

keys_that_cannot_be_had(Config) ->
    Issuer = issuer(Config),
    Handle = handle(#{}, Config),
    [begin
         erlmcp_test_oauth:change(Issuer, ~"/jwks", Answer),
         later(Handle),
         {Answer, ?UNAVAILABLE} = {Answer, refused(token(#{}, issuer(Config)), Handle)}
     end || Answer <- [{500, #{}, ~""}, {200, #{}, ~"no json"}, erlmcp_test_oauth:json(200, []),
                       erlmcp_test_oauth:json(200, #{~"keys" => []}),
                       erlmcp_test_oauth:json(200, #{~"keys" => ~"x"}),
                       {302, #{~"location" => ~"http://169.254.169.254/"}, ~""},
                       erlmcp_test_oauth:json(404, erlmcp_test_issuer:keys(Issuer))]],
    Asked = asked(~"/jwks", issuer(Config)),
    %% Not all who come are let ask. However long this takes, it is soon after.
    #{tables := Tables} = Handle,
    ok = erlmcp_bearer_tables:fetch_again(1, 60_000, Tables),
    {error, #{refusal := Refusal}} =
        erlmcp_bearer:verify(Handle, bearer(token(#{}, issuer(Config))), {self(), unused}),
    1 = erlmcp_refusal:retry_after(Refusal),
    Asked = asked(~"/jwks", issuer(Config)),
    erlmcp_test_oauth:change(Issuer, ~"/jwks",
                             erlmcp_test_oauth:json(200, erlmcp_test_issuer:keys(Issuer))),
    later(Handle),
    {ok, _} = verify(token(#{}, issuer(Config)), Handle).

%% Of a key that is not known yet nobody can say that the token is invalid.
new_keys_that_cannot_be_had(Config) ->
    Handle = handle(#{}, Config),
    {ok, _} = verify(token(#{}, issuer(Config)), Handle),
    erlmcp_test_issuer:rotate(issuer(Config)),
    erlmcp_test_oauth:change(issuer(Config), ~"/jwks", {500, #{}, ~""}),
    later(Handle),
    ?UNAVAILABLE = refused(token(#{}, issuer(Config)), Handle).

without_a_process_nothing_is_fetched(Config) ->
    Options = #{resource => erlmcp_test_bearer:url(), tokens => [jwt(#{}, issuer(Config))]},
    Handle = erlmcp_bearer:new(erlmcp_bearer_options:settings(Options), make_ref()),
    ?UNAVAILABLE = refused(token(#{}, issuer(Config)), Handle),
    0 = asked(~"/jwks", issuer(Config)).

%% A question that was on its way while the keys came.
fetched_keys_are_told_at_once(Config) ->
    #{tables := Tables} = Handle = handle(#{}, Config),
    {ok, _} = verify(token(#{}, issuer(Config)), Handle),
    Reference = make_ref(),
    ok = erlmcp_bearer_keeper:ask({keys, 1}, fun() -> ~"" end, {{self(), here}, Reference},
                                  erlang:monotonic_time(millisecond) + 60_000, Tables),
    receive {here, {erlmcp_bearer, Reference, {{keys, 1}, ok}}} -> ok end,
    1 = asked(~"/jwks", issuer(Config)).

%% Its process has the token, which nobody can read there.
who_fetches_shows_nothing(Config) ->
    #{tables := Tables} = Handle = introspecting(#{}, Config),
    held(~"/introspect", erlmcp_test_oauth:json(200, #{~"active" => false}), issuer(Config)),
    Wait = begun(bearer(~"secret"), Handle),
    Asked = next_asked(),
    {ok, Keeper} = erlmcp_bearer_tables:keeper(Tables),
    {links, Links} = process_info(Keeper, links),
    [Fetching] = [Pid || Pid <- Links, is_pid(Pid), Pid =/= self()],
    Fetching ! ~"readable elsewhere",
    {messages, []} = process_info(Fetching, messages),
    Asked ! go_on,
    ?INVALID = refusal(awaited(Wait, Handle)).

log(Event, #{config := #{test := Test}}) ->
    Test ! {logged, Event}.

%% The fun of a secret must return a pair.
a_crash_shows_no_secret(Config) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => #{test => self()}}),
    #{tables := Tables} = Handle =
        introspecting(#{client_secret => fun() -> ~"server-s3cret" end}, Config),
    ?UNAVAILABLE = refused(opaque(#{}, issuer(Config)), Handle),
    %% It logs after it has answered.
    {ok, Keeper} = erlmcp_bearer_tables:keeper(Tables),
    _ = sys:get_status(Keeper),
    %% Reports of the emulator come in the order of the crashes.
    _ = spawn(fun() -> error(the_last_crash) end),
    Events = events(),
    ok = logger:remove_handler(?MODULE),
    [#{reason := {case_clause, 'a binary'}, stacktrace := [_ | _]}] =
        [Reason || #{msg := {report, #{what := authorization_server_unavailable,
                                       reason := Reason}}} <- Events],
    nomatch = binary:match(shown(Events), ~"server-s3cret").

events() ->
    receive
        {logged, Event} ->
            case binary:match(shown(Event), ~"the_last_crash") of
                nomatch -> [Event | events()];
                _ -> []
            end
    after 30_000 ->
        error(no_event)
    end.

shown(Term) -> unicode:characters_to_binary(io_lib:format("~tp", [Term])).

a_slow_issuer_has_a_deadline(Config) ->
    Handle = handle(#{wait_ms => 50}, Config),
    held(~"/jwks", {500, #{}, ~""}, issuer(Config)),
    ?UNAVAILABLE = refused(token(#{}, issuer(Config)), Handle),
    %% Somebody else can ask again.
    erlmcp_test_oauth:change(issuer(Config), ~"/jwks",
                             erlmcp_test_oauth:json(200, erlmcp_test_issuer:keys(issuer(Config)))),
    #{settings := Settings} = Handle,
    Patient = Handle#{settings := Settings#{wait_ms := 60_000}},
    until(fun() ->
              later(Handle),
              element(1, verify(token(#{}, issuer(Config)), Patient)) =:= ok
          end, 500).

%% The process that asked gives up at its own time, which may be a moment after the request's.
until(Holds, Left) when Left > 0 ->
    Holds() orelse receive after 20 -> until(Holds, Left - 1) end.

keys_without_https(Config) ->
    Jwt = fun(Uri) -> #{tokens => [jwt(#{jwks => {uri, Uri}}, issuer(Config))]} end,
    [{Uri, {error, {bad_option, {tokens, 1, jwks}, _}}} =
         {Uri, erlmcp_bearer_options:check(Jwt(Uri))}
     || Uri <- [~"http://as.example/jwks", ~"file:///etc/keys", ~"https://", ~"", ~"jwks",
                ~"https://user@as.example/jwks", ~"http://127.0.0.1.example/jwks"]],
    ok = erlmcp_bearer_options:check(Jwt(~"https://as.example/jwks")),
    %% Keys that are given need nobody.
    #{~"keys" := Keys} = erlmcp_test_issuer:keys(issuer(Config)),
    Handle = handle(#{tokens => [jwt(#{jwks => {keys, Keys}}, issuer(Config))]}, Config),
    {ok, _} = erlmcp_bearer:verify(Handle, bearer(token(#{}, issuer(Config))), {self(), unused}),
    ?INVALID = refused(erlmcp_test_issuer:sign(#{~"kid" => ~"other"}, claims(issuer(Config)),
                                               issuer(Config)), Handle),
    0 = asked(~"/jwks", issuer(Config)).

%% Introspection.

introspecting(Options, Config) ->
    handle((maps:with([wait_ms], Options))#{
        tokens => [introspection(maps:without([wait_ms], Options), issuer(Config))]}, Config).

tokens_are_introspected(Config) ->
    Handle = introspecting(#{}, Config),
    Url = erlmcp_test_issuer:url(issuer(Config)),
    {ok, #{principal := {Url, ~"ada"}, scopes := [~"read"], claims := Claims}} =
        verify(opaque(#{~"scope" => ~"read"}, issuer(Config)), Handle),
    false = is_map_key(~"active", Claims),
    ?INVALID = refused(~"nobody-knows-it", Handle),
    {ok, #{expires_at := infinity, principal := {Url, ~"ada"}}} =
        verify(opaque(#{~"iss" => remove, ~"exp" => remove, ~"iat" => remove}, issuer(Config)),
               Handle),
    Now = erlang:system_time(second),
    [{Changes, Expected} = {Changes, refused(opaque(Changes, issuer(Config)), Handle)}
     || {Changes, Expected} <- [{#{~"aud" => remove}, ?INVALID}, {#{~"aud" => ~"other"}, ?INVALID},
                                {#{~"iss" => ~"https://evil.example"}, ?INVALID},
                                {#{~"exp" => Now - 1}, ?EXPIRED}, {#{~"exp" => ~"x"}, ?INVALID},
                                {#{~"sub" => remove, ~"client_id" => remove}, ?INVALID}]],
    [#{headers := #{~"authorization" := <<"Basic ", _/binary>>}, method := ~"POST"} | _] =
        erlmcp_test_oauth:asked(issuer(Config), ~"/introspect").

an_answer_is_kept_for_a_while(Config) ->
    Handle = introspecting(#{}, Config),
    Token = opaque(#{}, issuer(Config)),
    [{ok, _} = verify(Token, Handle) || _ <- lists:seq(1, 10)],
    1 = asked(~"/introspect", issuer(Config)),
    [?INVALID = refused(~"unknown", Handle) || _ <- lists:seq(1, 10)],
    2 = asked(~"/introspect", issuer(Config)),
    Always = introspecting(#{cache_s => 0}, Config),
    [{ok, _} = verify(Token, Always) || _ <- lists:seq(1, 3)],
    5 = asked(~"/introspect", issuer(Config)),
    erlmcp_test_issuer:revoke(Token, issuer(Config)),
    ?INVALID = refused(Token, Always),
    %% Not longer than it serves.
    Now = erlang:system_time(second),
    #{tables := Tables} = Handle,
    ok = erlmcp_bearer_tables:remember(~"d", Now + 30, lasting, {#{}, []}, Tables),
    {ok, _, _} = erlmcp_bearer_tables:identity(~"d", Now + 29, Tables),
    unknown = erlmcp_bearer_tables:identity(~"d", Now + 30, Tables).

no_answer_is_no_token(Config) ->
    Issuer = issuer(Config),
    Wrong = introspecting(#{client_secret => fun() -> {ok, ~"wrong"} end}, Config),
    ?UNAVAILABLE = refused(opaque(#{}, issuer(Config)), Wrong),
    Crashing = introspecting(#{client_secret => fun() -> exit(no_vault) end}, Config),
    ?UNAVAILABLE = refused(opaque(#{}, issuer(Config)), Crashing),
    Handle = introspecting(#{}, Config),
    [begin
         erlmcp_test_oauth:change(Issuer, ~"/introspect", Answer),
         Token = binary:encode_hex(crypto:strong_rand_bytes(8)),
         {Answer, Expected} = {Answer, refused(Token, Handle)}
     end || {Answer, Expected} <- [
                {{500, #{}, ~""}, ?UNAVAILABLE}, {{200, #{}, ~"true"}, ?UNAVAILABLE},
                {erlmcp_test_oauth:json(200, #{}), ?UNAVAILABLE},
                {erlmcp_test_oauth:json(200, #{~"active" => ~"true"}), ?UNAVAILABLE},
                {erlmcp_test_oauth:json(401, #{~"active" => true}), ?UNAVAILABLE},
                {erlmcp_test_oauth:json(200, #{~"active" => true}), ?INVALID},
                {erlmcp_test_oauth:json(200, #{~"active" => false}), ?INVALID}]].

introspections_are_bounded(Config) ->
    Handle = introspecting(#{wait_ms => 60_000}, Config),
    held(~"/introspect", erlmcp_test_oauth:json(200, #{~"active" => false}), issuer(Config)),
    %% Two ask for each of 500 tokens, and there is no place for another.
    Waits = [begun(bearer(<<"t", (integer_to_binary(Number))/binary>>), Handle)
             || Number <- lists:seq(1, 500), _ <- [one, two]],
    1000 = length([Wait || {_, {wait, Wait}} <- Waits]),
    %% A refused request holds no place, however many there are.
    [begin
         {_, Full} = begun(bearer(~"another"), Handle),
         {backpressure_active, 503, none} = refusal(Full)
     end || _ <- lists:seq(1, 1000)],
    First = [next_asked() || _ <- lists:seq(1, 16)],
    nobody_asked(),
    erlmcp_test_oauth:change(issuer(Config), ~"/introspect",
                             erlmcp_test_oauth:json(200, #{~"active" => false})),
    [Pid ! go_on || Pid <- First],
    [?INVALID = refusal(awaited(Wait, Handle)) || Wait <- Waits],
    500 = asked(~"/introspect", issuer(Config)),
    ?INVALID = refused(~"another", Handle).

nobody_waits_for_a_dead_process(Config) ->
    process_flag(trap_exit, true),
    #{tables := Tables} = Handle = introspecting(#{wait_ms => 100}, Config),
    held(~"/introspect", erlmcp_test_oauth:json(200, #{~"active" => false}), issuer(Config)),
    Wait = begun(bearer(~"opaque"), Handle),
    {ok, Keeper} = erlmcp_bearer_tables:keeper(Tables),
    exit(Keeper, kill),
    receive {'EXIT', Keeper, killed} -> ok end,
    ?UNAVAILABLE = refusal(awaited(Wait, Handle)).

%% Until it is started again.
a_dead_process_is_not_asked(Config) ->
    process_flag(trap_exit, true),
    #{tables := Tables} = Handle = introspecting(#{wait_ms => 60_000}, Config),
    {ok, Keeper} = erlmcp_bearer_tables:keeper(Tables),
    exit(Keeper, kill),
    receive {'EXIT', Keeper, killed} -> ok end,
    {_, Answer} = begun(bearer(~"opaque"), Handle),
    ?UNAVAILABLE = refusal(Answer),
    0 = asked(~"/introspect", issuer(Config)),
    #{start := {Module, Function, Arguments}} = erlmcp_bearer:child_spec(Handle),
    {ok, _} = apply(Module, Function, Arguments),
    {ok, _} = verify(opaque(#{}, issuer(Config)), Handle).
