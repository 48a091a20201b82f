-module(erlmcp_authorizer).
-moduledoc """
The authorization of one client at one MCP server: the headers of its requests, and the reaction to
a refusal. Requests read the token from a table in their own process.

The process of this module, a child of the client's channel, owns the table. To get another token it
starts a flow (`m:erlmcp_oauth_flow`), one at a time. Requests wait for the flow, except while a
token that is still valid is renewed. The flow goes on even if all waiting requests give up, since a
login may take minutes.

Internal.
""".

-behaviour(gen_server).

-export([start_link/2, handle/1, headers/4, challenged/5, notice/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-export_type([handle/0, reason/0]).

-record(handle, {pid :: pid(), table :: ets:table(), url :: binary()}).
-opaque handle() :: #handle{}.
-doc """
The reason for a failed authorization, in addition to those of a flow.

- `{forbidden, Error}`: the server refuses the request for a reason that another token would not
  change.
- `{insufficient_scope, Scopes}`: the server requires scopes that were requested already.
- `{too_many_logins, Limit}`: there were `Limit` logins within ten minutes, as when the server
  refuses one token after another.
- `{crashed, Incident}`: the flow crashed; the log has the report with this id. `~"killed"` in its
  place means that another process killed the flow, and there is no report.
- `{overload, Limit}`: too many requests wait for the flow.
- `{store, Reason}`: the token store could not be opened.
- `timeout`: the deadline, or the time of the flow, has passed.
- `stopped`: the authorizer has ended.
""".
-type reason() ::
    erlmcp_oauth_flow:reason()
    | {forbidden, Error :: binary() | none}
    | {too_many_logins, pos_integer()}
    | {crashed, Incident :: binary()}
    | {overload, pos_integer()}
    | {store, erlmcp_token_store:reason()}
    | timeout
    | stopped.

-record(flow, {
    pid :: pid(),
    intent :: login | step_up | renew,
    timer :: reference(),
    waiters :: [gen_server:from()]
}).
-record(state, {
    url :: binary(),
    settings :: fun(() -> erlmcp_oauth_options:settings()),
    %% The table has up to three rows. `{token, Token, bearer | dpop, RenewAt, End, Renewable}` has
    %% times in seconds of system time. `{key, Key}` is for DPoP proofs, and `{nonce, Nonce}` has
    %% the latest DPoP nonce of the server. Secrets are there and in funs, so neither the printed
    %% state nor a message shows one.
    table :: ets:table(),
    kept :: erlmcp_oauth_credentials:kept(),
    dpop :: fun(() -> erlmcp_dpop:key() | none),
    tokens = none :: none | fun(() -> erlmcp_oauth_token:tokens()),
    digest = none :: none | binary(),
    issuer = none :: none | binary(),
    %% The depth of the outermost address that the server was reached at.
    reached = none :: erlmcp_outbound_hosts:depth() | none,
    flow = none :: none | #flow{},
    logins = [] :: [integer()],
    %% The hosts that were allowed, the latest first.
    consents = [] :: [erlmcp_outbound_hosts:consent()]
}).

%% The most milliseconds of a flow without a user.
-define(FLOW_MS, 90_000).
-define(WAITERS, 10_000).
-define(CONSENTS, 100).
%% The most logins within ten minutes: of a user, since each opens a browser, and without one.
-define(LOGIN_WINDOW_MS, 600_000).
-define(USER_LOGINS, 6).
-define(OTHER_LOGINS, 60).
%% A token is renewed when a tenth of its lifetime remains, but at most this many seconds before its
%% end.
-define(EARLY_SECONDS, 30).
%% The pause after a renewal that failed while the token was valid.
-define(PAUSE_SECONDS, 5).

-doc """
Starts the authorizer, linked to the calling process. `ServerUrl` is the URL of the MCP server. No
authorization server is called before the MCP server refuses a request, or a stored token must be
renewed. The options may be a fun, so that a supervisor's reports do not show them. The error names
a wrong option, or says why the token store could not be opened.
""".
-spec start_link(erlmcp_oauth:options() | fun(() -> erlmcp_oauth:options()),
                 ServerUrl :: binary()) ->
    {ok, pid()} | {error, {bad_option, term(), binary()} | {store, erlmcp_token_store:reason()}}.
start_link(Options, ServerUrl) when is_function(Options) ->
    start_link(Options(), ServerUrl);
start_link(Options, ServerUrl) ->
    maybe
        {ok, Settings} ?= erlmcp_oauth_options:check(Options),
        {ok, _} ?= url(ServerUrl),
        started(gen_server:start_link(?MODULE, {ServerUrl, fun() -> Settings end}, []))
    end.

started({ok, Pid}) -> {ok, Pid};
started({error, {store, _} = Reason}) -> {error, Reason}.

url(Url) ->
    case erlmcp_oauth_url:canonical(Url) of
        {ok, Canonical} -> {ok, Canonical};
        {error, invalid_url} -> {error, {bad_option, url, ~"an http or https URL"}}
    end.

-doc "Returns the handle for the other functions. It is small, since every call copies it.".
-spec handle(pid()) -> handle().
handle(Pid) ->
    {Table, Url} = gen_server:call(Pid, handle),
    #handle{pid = Pid, table = Table, url = Url}.

-doc """
Returns the authorization headers for a request to the MCP server. There are none for a URL of
another origin than the server's. There are also none while there is no token, or only one that has
expired and cannot be renewed.

Waits only while an expired token is being renewed, at most until `Deadline`, in monotonic
milliseconds. There are no headers if the authorization server refuses the renewal. The error is any
other reason why the renewal failed, `timeout` after `Deadline`, or `stopped` if the authorizer has
ended.
""".
-spec headers(handle(), Method :: post | get | delete, Url :: binary(), Deadline :: integer()) ->
    {ok, [{binary(), iodata()}]} | {error, reason()}.
headers(#handle{url = ServerUrl} = Handle, Method, Url, Deadline) ->
    case Url =:= ServerUrl orelse erlmcp_oauth_url:same_origin(Url, ServerUrl) of
        true -> current(Handle, Method, Url, Deadline);
        false -> {ok, []}
    end.

current(#handle{pid = Pid} = Handle, Method, Url, Deadline) ->
    case token(Handle) of
        {token, Token, Type, RenewAt, End, Renewable} ->
            Now = erlang:system_time(second),
            if
                Now < RenewAt ->
                    {ok, credentials(Type, Token, Method, Url, Handle)};
                Now < End ->
                    _ = Renewable andalso gen_server:cast(Pid, renew),
                    {ok, credentials(Type, Token, Method, Url, Handle)};
                Renewable ->
                    renewed(ask(Pid, renew, Deadline), Handle, Method, Url);
                true ->
                    {ok, []}
            end;
        none ->
            {ok, []};
        stopped ->
            {error, stopped}
    end.

renewed(retry, Handle, Method, Url) ->
    case token(Handle) of
        {token, Token, Type, _, _, _} -> {ok, credentials(Type, Token, Method, Url, Handle)};
        none -> {ok, []};
        stopped -> {error, stopped}
    end;
renewed({error, _} = Error, _, _, _) ->
    Error.

credentials(bearer, Token, _, _, _) ->
    [{~"authorization", [~"Bearer ", Token]}];
credentials(dpop, Token, Method, Url, #handle{table = Table}) ->
    Claims = case looked_up(Table, nonce) of
                 {nonce, Nonce} -> #{access_token => Token, nonce => Nonce};
                 _ -> #{access_token => Token}
             end,
    case looked_up(Table, key) of
        {key, Key} -> [{~"authorization", [~"DPoP ", Token]},
                       {~"dpop", erlmcp_dpop:proof(name(Method), Url, Claims, Key)}];
        stopped -> []
    end.

name(post) -> ~"POST";
name(get) -> ~"GET";
name(delete) -> ~"DELETE".

token(#handle{table = Table}) -> looked_up(Table, token).

%% The table ends with the process.
looked_up(Table, Name) ->
    try ets:lookup(Table, Name) of
        [Row] -> Row;
        [] -> none
    catch
        error:badarg -> stopped
    end.

-doc """
Reports that the server refused a request with the headers `Used`, and waits for another token, at
most until `Deadline`, in monotonic milliseconds. After `retry` the request may be sent again with
new headers; the caller bounds how often. The error says why the client got no other token.

`Status` and the headers next to it are those of the refusal. `Reached` is the depth of the
outermost address that the server was reached at (`erlmcp_outbound_hosts:inwards/1`), or `none`.
""".
-spec challenged(handle(), Used :: [{binary(), iodata()}],
                 {Status :: 401 | 403, #{binary() => binary()}},
                 Reached :: erlmcp_outbound_hosts:depth() | none, Deadline :: integer()) ->
    retry | {error, reason()}.
challenged(#handle{pid = Pid}, Used, {Status, Headers}, Reached, Deadline) ->
    Challenge = challenge(Headers),
    Nonce = erlmcp_dpop:nonce(Headers),
    ask(Pid, {challenged, token_digest(Used), Status, Challenge, Nonce, Reached}, Deadline).

%% By its digest the process recognises the current token, so no message needs to contain it.
token_digest(Headers) ->
    case lists:keyfind(~"authorization", 1, Headers) of
        {_, Value} ->
            [Token | _] = lists:reverse(binary:split(iolist_to_binary(Value), ~" ")),
            digest(Token);
        false -> none
    end.

digest(Token) ->
    crypto:hash(sha256, Token).

challenge(#{~"www-authenticate" := Field}) ->
    Schemes = [Params || #{scheme := Scheme, params := Params} <- erlmcp_challenge:parse(Field),
                         Scheme =:= ~"bearer" orelse Scheme =:= ~"dpop"],
    %% A server that offers both schemes has the same parameters in both challenges.
    Params = lists:foldl(fun(Params, Above) -> maps:merge(Params, Above) end, #{}, Schemes),
    #{metadata => maps:get(~"resource_metadata", Params, none),
      scopes => erlmcp_oauth_scope:parse(maps:get(~"scope", Params, ~"")),
      error => error_name(Schemes, Params)};
challenge(_) ->
    #{metadata => none, scopes => [], error => none}.

%% Returns the error of the challenges. `use_dpop_nonce` takes precedence, since the other scheme
%% may have another error.
error_name(Schemes, Params) ->
    NonceError = ~"use_dpop_nonce",
    case [Error || #{~"error" := Error} <- Schemes, Error =:= NonceError] of
        [] -> erlmcp_oauth_token:error_text(~"error", Params);
        _ -> NonceError
    end.

-doc """
Reports the headers of a response, which may have the DPoP nonce that the next proof needs. Waits
until a new nonce is stored, at most a second.
""".
-spec notice(handle(), #{binary() => binary()}) -> ok.
notice(#handle{pid = Pid, table = Table}, Headers) ->
    case erlmcp_dpop:nonce(Headers) of
        none ->
            ok;
        Nonce ->
            case looked_up(Table, nonce) of
                {nonce, Nonce} -> ok;
                _ -> report_nonce(Pid, Nonce)
            end
    end.

%% Waits until the process has the nonce, so that the next request uses it. If that fails, the next
%% request is refused and sent again.
report_nonce(Pid, Nonce) ->
    try
        gen_server:call(Pid, {nonce, Nonce}, 1000)
    catch
        exit:_ -> ok
    end.

ask(Pid, Question, Deadline) ->
    try
        gen_server:call(Pid, Question, max(0, Deadline - erlmcp_clock:now_ms()))
    catch
        exit:{timeout, _} -> {error, timeout};
        exit:_ -> {error, stopped}
    end.

-doc false.
init({Url, Settings}) ->
    process_flag(trap_exit, true),
    process_flag(sensitive, true),
    ok = erlmcp_label:set([?MODULE | erlmcp_client_options:label(Url)]),
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
handle_call(renew, From, State) ->
    case is_due(State) of
        true -> {noreply, join(renew, From, State)};
        false -> {reply, retry, State}
    end;
handle_call({nonce, Nonce}, _, State) ->
    _ = keep_nonce(Nonce, State),
    {reply, ok, State};
handle_call({challenged, Used, Status, Challenge, Nonce, Reached}, From,
            #state{reached = Before} = Previous) ->
    %% `none` is greater than any number.
    State = Previous#state{reached = min(Before, Reached)},
    _ = keep_nonce(Nonce, State),
    case decided(Used, Status, Challenge, Nonce, State) of
        {flow, Intent} -> {noreply, join(Intent, From, State)};
        Answer -> {reply, Answer, State}
    end.

-doc false.
handle_cast(renew, #state{flow = none} = State) ->
    case is_due(State) of
        true -> {noreply, State#state{flow = start_flow(renew, [], State)}};
        false -> {noreply, State}
    end;
handle_cast(_, State) ->
    {noreply, State}.

%% Another request may have led to a new token meanwhile.
is_due(#state{table = Table}) ->
    case ets:lookup(Table, token) of
        [{token, _, _, RenewAt, _, true}] -> erlang:system_time(second) >= RenewAt;
        _ -> false
    end.

keep_nonce(none, _) -> true;
keep_nonce(Nonce, #state{table = Table}) -> ets:insert(Table, {nonce, Nonce}).

-doc false.
handle_info({learned, Pid, What}, #state{flow = #flow{pid = Pid}} = State) ->
    {noreply, learned(What, State)};
handle_info({flow_ended, Pid, Result}, #state{flow = #flow{pid = Pid} = Flow} = State) ->
    {noreply, flow_ended(Result, Flow, State#state{flow = none})};
handle_info({timeout, Timer, flow},
            #state{flow = #flow{pid = Pid, timer = Timer} = Flow} = State) ->
    exit(Pid, kill),
    {noreply, flow_ended({error, timeout}, Flow, State#state{flow = none})};
handle_info({'EXIT', Pid, _}, #state{flow = #flow{pid = Pid} = Flow} = State) ->
    %% The flow was killed from outside: otherwise it would have reported its result before its end.
    {noreply, flow_ended({error, {crashed, ~"killed"}}, Flow, State#state{flow = none})};
handle_info(_, State) ->
    {noreply, State}.

-doc false.
terminate(_, #state{flow = #flow{pid = Pid}}) ->
    exit(Pid, kill);
terminate(_, _) ->
    ok.

decided(Used, Status, Challenge, Nonce, #state{digest = Digest} = State) ->
    %% Another request may have led to a new token meanwhile.
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
    {flow, {login, Challenge}};
decided_anew(none, 403, #{error := ~"insufficient_scope"} = Challenge, _, _) ->
    {flow, {login, Challenge}};
decided_anew(_, 403, #{error := ~"insufficient_scope", scopes := Scopes} = Challenge, _,
             #state{tokens = Tokens}) when Tokens =/= none ->
    #{requested := Requested} = Tokens(),
    case Scopes =/= [] andalso erlmcp_oauth_scope:more(Requested, Scopes, none) =:= none of
        true -> {error, {insufficient_scope, Scopes}};
        false -> {flow, {step_up, Challenge}}
    end;
decided_anew(_, 403, #{error := Error}, _, _) ->
    {error, {forbidden, Error}}.

join(_, From, #state{flow = #flow{waiters = Waiters} = Flow} = State) ->
    case length(Waiters) < ?WAITERS of
        true ->
            State#state{flow = Flow#flow{waiters = [From | Waiters]}};
        false ->
            gen_server:reply(From, {error, {overload, ?WAITERS}}),
            State
    end;
join(Intent, From, State) ->
    Now = erlmcp_clock:now_ms(),
    #{grant := Grant} = settings(State#state.settings),
    Limit = limit(Grant),
    Recent = [At || At <- State#state.logins, Now - At < ?LOGIN_WINDOW_MS],
    case Intent =:= renew orelse length(Recent) < Limit of
        true ->
            State#state{flow = start_flow(Intent, [From], State), logins = Recent};
        false ->
            gen_server:reply(From, {error, {too_many_logins, Limit}}),
            State
    end.

limit(authorization_code) -> ?USER_LOGINS;
limit(_) -> ?OTHER_LOGINS.

start_flow(Intent, Waiters, State) ->
    Settings = settings(State#state.settings),
    Duration = duration(Intent, Settings),
    Before = #{server_url => State#state.url, settings => Settings,
               tokens => State#state.tokens, issuer => State#state.issuer,
               dpop => State#state.dpop, kept => State#state.kept,
               reached => State#state.reached,
               consents => State#state.consents},
    Deadline = erlmcp_clock:now_ms() + Duration,
    #flow{pid = erlmcp_oauth_flow:start(Intent, Before, Deadline), intent = kind(Intent),
          waiters = Waiters, timer = erlang:start_timer(Duration, self(), flow)}.

duration(renew, #{grant := authorization_code}) -> ?FLOW_MS;
duration(_, #{grant := authorization_code, login_timeout := Duration}) -> Duration;
duration(_, _) -> ?FLOW_MS.

kind({Kind, _}) -> Kind;
kind(renew) -> renew.

learned({issuer, Issuer}, State) ->
    State#state{issuer = Issuer};
learned({host, Consent}, #state{consents = Consents} = State) ->
    State#state{consents = lists:sublist([Consent | Consents], ?CONSENTS)};
learned(login, #state{flow = #flow{intent = renew}} = State) ->
    State;
learned(login, #state{logins = Logins} = State) ->
    State#state{logins = [erlmcp_clock:now_ms() | Logins]}.

flow_ended(Result, #flow{timer = Timer, waiters = Waiters, intent = Intent}, State) ->
    _ = erlang:cancel_timer(Timer),
    {Answer, Next} = outcome(Result, Intent, State),
    lists:foreach(fun(From) -> gen_server:reply(From, Answer) end, Waiters),
    Next.

outcome({ok, Tokens}, _, #state{kept = Kept, dpop = Dpop} = State) ->
    ok = erlmcp_oauth_credentials:keep_tokens(Tokens(), Dpop(), Kept),
    {retry, installed(Tokens(), State)};
outcome({stored, Stored}, _, State) ->
    {retry, restored(Stored(), false, State)};
outcome({error, Reason} = Error, renew, State) ->
    case {erlmcp_oauth_token:is_refused(Reason), serves(State)} of
        {true, true} -> {retry, later(without_refresh(State))};
        {true, false} -> {retry, dropped(State)};
        %% The token still serves, so requests that joined are sent again.
        {false, true} -> {retry, later(State)};
        {false, false} -> {Error, State}
    end;
outcome({error, _} = Error, _, State) ->
    {Error, State}.

%% Pauses before the next renewal. From its end on, the token is renewed without a pause.
later(#state{table = Table, tokens = Tokens, settings = Settings} = State) ->
    [{token, _, _, _, End, _}] = ets:lookup(Table, token),
    RenewAt = min(End, erlang:system_time(second) + ?PAUSE_SECONDS),
    true = ets:update_element(Table, token, [{4, RenewAt},
                                             {6, renewable(Tokens(), settings(Settings))}]),
    State.

without_refresh(#state{tokens = Tokens} = State) ->
    Rest = maps:remove(refresh_token, Tokens()),
    State#state{tokens = fun() -> Rest end}.

%% The server's next challenge decides what to do then. The scopes of the dropped token will be
%% requested again.
dropped(#state{table = Table, kept = Kept, tokens = Tokens} = State) ->
    true = ets:delete(Table, token),
    ok = erlmcp_oauth_credentials:drop_tokens(Tokens(), Kept),
    Rest = maps:remove(refresh_token, Tokens()),
    State#state{tokens = fun() -> Rest end, digest = none}.

installed(#{access_token := Token, type := Type, expires_at := End} = Tokens,
          #state{table = Table, settings = Settings} = State) ->
    true = ets:insert(Table, {token, Token, Type, renew_at(End), End,
                              renewable(Tokens, settings(Settings))}),
    State#state{tokens = fun() -> Tokens end, digest = digest(Token)}.

%% `infinity`, an atom, is greater than any number.
renew_at(infinity) -> infinity;
renew_at(End) ->
    Remaining = End - erlang:system_time(second),
    End - max(0, min(?EARLY_SECONDS, Remaining div 10)).

renewable(#{refresh_token := _}, _) -> true;
renewable(_, #{grant := Grant}) -> Grant =/= authorization_code.
