-module(erlmcp_oauth_tokens).
-moduledoc """
The process that owns the token of one client at one MCP server, in a table that others read
(`m:erlmcp_authorizer`). When the token is refused or about to end, a flight gets another one
(`m:erlmcp_oauth_flight`). At most one flight runs at a time, and further requests wait for it. It
goes on when its callers give up, since a login may take minutes.

Secrets are in the table and in funs, so neither the printed state nor a message has any. The table
has the row `{token, Token, bearer | dpop, RenewAt, End, Renewable}`, in seconds of system time. Two
more are `{key, Key}` of proofs and `{nonce, Nonce}`, the server's latest.

Internal.
""".

-behaviour(gen_server).

-export([start_link/2, digest/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-record(flight, {
    pid :: pid(),
    intent :: login | step_up | renew,
    timer :: reference(),
    waiters :: [gen_server:from()]
}).
-record(state, {
    url :: binary(),
    settings :: fun(() -> erlmcp_oauth_options:settings()),
    table :: ets:table(),
    kept :: erlmcp_oauth_credentials:kept(),
    dpop :: fun(() -> erlmcp_dpop:key() | none),
    tokens = none :: none | fun(() -> erlmcp_oauth_token:tokens()),
    digest = none :: none | binary(),
    issuer = none :: none | binary(),
    %% The level of the outermost address that the server was reached at.
    reached = none :: erlmcp_outbound_hosts:depth() | none,
    flight = none :: none | #flight{},
    logins = [] :: [integer()],
    %% Hosts that were allowed, the latest first.
    consents = [] :: [erlmcp_outbound_hosts:consent()]
}).

%% Milliseconds of a flight without a user.
-define(FLIGHT_MS, 90_000).
-define(WAITERS, 10_000).
-define(CONSENTS, 100).
%% Logins within ten minutes. Each login of a user opens a browser.
-define(LOGIN_WINDOW_MS, 600_000).
-define(USER_LOGINS, 6).
-define(OTHER_LOGINS, 60).
%% Seconds before its end that a token is renewed, at most; otherwise a tenth of its remaining life.
-define(EARLY_SECONDS, 30).

-doc "Starts the process for the server of this URL, linked to the calling process.".
-spec start_link(ServerUrl :: binary(), erlmcp_oauth_options:settings()) ->
    {ok, pid()} | {error, {store, erlmcp_token_store:reason()}}.
start_link(ServerUrl, Settings) ->
    case gen_server:start_link(?MODULE, {ServerUrl, fun() -> Settings end}, []) of
        {ok, Pid} -> {ok, Pid};
        {error, {store, _} = Reason} -> {error, Reason}
    end.

-doc "Returns a digest that tells one token from another, without revealing it.".
-spec digest(Token :: binary()) -> binary().
digest(Token) ->
    crypto:hash(sha256, Token).

-doc false.
init({Url, Settings}) ->
    process_flag(trap_exit, true),
    process_flag(sensitive, true),
    ok = erlmcp_label:set([?MODULE | erlmcp_client_target:label(Url)]),
    #{store := Store, dpop := Dpop} = settings(Settings),
    case erlmcp_oauth_credentials:open(Store, Url, settings(Settings)) of
        {ok, Kept} ->
            Table = ets:new(?MODULE, [protected, {read_concurrency, true}]),
            State = #state{url = Url, settings = Settings, table = Table, kept = Kept,
                           dpop = fun() -> none end},
            {ok, restored(erlmcp_oauth_credentials:tokens(Kept), Dpop, State)};
        {error, Reason} ->
            {error, Reason}
    end.

settings(Settings) -> Settings().

restored({ok, Tokens, Key}, _, State) ->
    #{server := #{issuer := Issuer}} = Tokens,
    installed(Tokens, with_key(Key, State#state{issuer = Issuer}));
restored(none, true, State) ->
    with_key(erlmcp_dpop:new(), State);
restored(none, false, State) ->
    State.

with_key(none, State) ->
    State;
with_key(Key, #state{table = Table} = State) ->
    true = ets:insert(Table, {key, Key}),
    State#state{dpop = fun() -> Key end}.

-doc false.
handle_call(handle, _, #state{table = Table, url = Url} = State) ->
    {reply, {Table, Url}, State};
handle_call(renew, From, #state{table = Table} = State) ->
    Now = erlang:system_time(second),
    case ets:lookup(Table, token) of
        [{token, _, _, RenewAt, _, true}] when Now >= RenewAt ->
            {noreply, join(renew, From, State)};
        _ -> {reply, retry, State}
    end;
handle_call({nonce, Nonce}, _, State) ->
    noted(Nonce, State),
    {reply, ok, State};
handle_call({challenged, Used, Status, Challenge, Nonce, Reached}, From,
            #state{reached = Before} = Known) ->
    %% An atom is greater than any number.
    State = Known#state{reached = min(Before, Reached)},
    noted(Nonce, State),
    case decided(Used, Status, Challenge, Nonce, State) of
        {fly, Intent} -> {noreply, join(Intent, From, State)};
        Answer -> {reply, Answer, State}
    end.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

noted(none, _) -> true;
noted(Nonce, #state{table = Table}) -> ets:insert(Table, {nonce, Nonce}).

-doc false.
handle_info({learned, Pid, What}, #state{flight = #flight{pid = Pid}} = State) ->
    {noreply, learned(What, State)};
handle_info({landed, Pid, Result}, #state{flight = #flight{pid = Pid} = Flight} = State) ->
    {noreply, landed(Result, Flight, State#state{flight = none})};
handle_info({timeout, Timer, flight},
            #state{flight = #flight{pid = Pid, timer = Timer} = Flight} = State) ->
    exit(Pid, kill),
    {noreply, landed({error, timeout}, Flight, State#state{flight = none})};
handle_info({'EXIT', Pid, _}, #state{flight = #flight{pid = Pid} = Flight} = State) ->
    %% Killed from outside: a flight reports its own failures before its end.
    {noreply, landed({error, {crashed, ~"killed"}}, Flight, State#state{flight = none})};
handle_info(_, State) ->
    {noreply, State}.

-doc false.
terminate(_, #state{flight = #flight{pid = Pid}}) ->
    exit(Pid, kill);
terminate(_, _) ->
    ok.

decided(Used, Status, Challenge, Nonce, #state{digest = Digest} = State) ->
    %% Another caller may have got another token since.
    case Used =/= Digest andalso serves(State) of
        true -> retry;
        false -> decided_anew(Used, Status, Challenge, Nonce, State)
    end.

serves(#state{table = Table}) ->
    case ets:lookup(Table, token) of
        [{token, _, _, _, End, _}] -> erlang:system_time(second) < End;
        [] -> false
    end.

decided_anew(_, _, #{error := ~"use_dpop_nonce"}, Nonce, _) when Nonce =/= none ->
    retry;
decided_anew(_, 401, Challenge, _, _) ->
    {fly, {login, Challenge}};
decided_anew(none, 403, #{error := ~"insufficient_scope"} = Challenge, _, _) ->
    {fly, {login, Challenge}};
decided_anew(_, 403, #{error := ~"insufficient_scope", scopes := Scopes} = Challenge, _,
             #state{tokens = Tokens}) when Tokens =/= none ->
    #{requested := Requested} = Tokens(),
    case Scopes =/= [] andalso erlmcp_oauth_scope:more(Requested, Scopes, none) =:= none of
        true -> {error, {insufficient_scope, Scopes}};
        false -> {fly, {step_up, Challenge}}
    end;
decided_anew(_, 403, #{error := Error}, _, _) ->
    {error, {forbidden, Error}}.

join(_, From, #state{flight = #flight{waiters = Waiters} = Flight} = State) ->
    case length(Waiters) < ?WAITERS of
        true ->
            State#state{flight = Flight#flight{waiters = [From | Waiters]}};
        false ->
            gen_server:reply(From, {error, {overload, ?WAITERS}}),
            State
    end;
join(Intent, From, State) ->
    Now = erlang:monotonic_time(millisecond),
    #{grant := Grant} = Settings = settings(State#state.settings),
    Limit = limit(Grant),
    Recent = [At || At <- State#state.logins, Now - At < ?LOGIN_WINDOW_MS],
    case Intent =:= renew orelse length(Recent) < Limit of
        true ->
            State#state{flight = flight(Intent, Now, From, Settings, State), logins = Recent};
        false ->
            gen_server:reply(From, {error, {too_many_logins, Limit}}),
            State
    end.

limit(authorization_code) -> ?USER_LOGINS;
limit(_) -> ?OTHER_LOGINS.

flight(Intent, Now, From, Settings, State) ->
    Duration = duration(Intent, Settings),
    Before = #{server_url => State#state.url, settings => Settings,
               tokens => State#state.tokens, issuer => State#state.issuer,
               dpop => State#state.dpop, kept => State#state.kept,
               reached => State#state.reached,
               consents => State#state.consents},
    #flight{pid = erlmcp_oauth_flight:start(Intent, Before, Now + Duration), intent = kind(Intent),
            waiters = [From], timer = erlang:start_timer(Duration, self(), flight)}.

duration(renew, #{grant := authorization_code}) -> ?FLIGHT_MS;
duration(_, #{grant := authorization_code, login_timeout := Duration}) -> Duration;
duration(_, _) -> ?FLIGHT_MS.

kind({Kind, _}) -> Kind;
kind(renew) -> renew.

learned({issuer, Issuer}, State) ->
    State#state{issuer = Issuer};
learned({host, Consent}, #state{consents = Consents} = State) ->
    State#state{consents = lists:sublist([Consent | Consents], ?CONSENTS)};
learned(login, #state{flight = #flight{intent = renew}} = State) ->
    State;
learned(login, #state{logins = Logins} = State) ->
    State#state{logins = [erlang:monotonic_time(millisecond) | Logins]}.

landed(Result, #flight{timer = Timer, waiters = Waiters, intent = Intent}, State) ->
    _ = erlang:cancel_timer(Timer),
    {Answer, Landed} = outcome(Result, Intent, State),
    lists:foreach(fun(From) -> gen_server:reply(From, Answer) end, Waiters),
    Landed.

outcome({ok, Tokens}, _, #state{kept = Kept, dpop = Dpop} = State) ->
    ok = erlmcp_oauth_credentials:keep_tokens(Tokens(), Dpop(), Kept),
    {retry, installed(Tokens(), State)};
outcome({error, {token_refused, Status, _, _}}, renew, State) when Status < 500 ->
    {retry, dropped(State)};
outcome({error, _} = Error, _, State) ->
    {Error, State}.

%% The next challenge of the server decides what to do. Earlier scopes are asked for again.
dropped(#state{table = Table, kept = Kept, tokens = Tokens} = State) ->
    true = ets:delete(Table, token),
    ok = erlmcp_oauth_credentials:drop_tokens(Kept),
    Rest = maps:remove(refresh_token, Tokens()),
    State#state{tokens = fun() -> Rest end, digest = none}.

installed(#{access_token := Token, type := Type, expires_at := End} = Tokens,
          #state{table = Table, settings = Settings} = State) ->
    true = ets:insert(Table, {token, Token, Type, renew_at(End), End,
                              renewable(Tokens, settings(Settings))}),
    State#state{tokens = fun() -> Tokens end, digest = digest(Token)}.

%% An atom is later than any number.
renew_at(infinity) -> infinity;
renew_at(End) ->
    Left = End - erlang:system_time(second),
    End - max(0, min(?EARLY_SECONDS, Left div 10)).

renewable(#{refresh_token := _}, _) -> true;
renewable(_, #{grant := Grant}) -> Grant =/= authorization_code.
