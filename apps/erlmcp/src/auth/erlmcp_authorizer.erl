-module(erlmcp_authorizer).
-moduledoc """
The authorization of one client at one MCP server: the headers of its requests, and what to do when
the server refuses them. A process, which belongs to the client's.

The token is in a table, and requests read it there without asking anybody. When one is refused, or
the token is about to end, a flight goes for another: one at a time, whoever asks for it waits for
that. A flight is a process of its own, since a user may take minutes for a login, and it goes on
when those who asked for it give up.

Secrets are in the table, in funs and in the flight. None is in the state as it prints, in a message
as it prints, in an error or in the log.
""".

-behaviour(gen_server).

-export([start_link/2, handle/1, headers/4, challenged/5, noticed/2, stop/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-export_type([handle/0, reason/0]).

-record(handle, {pid :: pid(), table :: ets:table(), url :: binary()}).
-opaque handle() :: #handle{}.
-doc """
Why there is no authorization, beside what a flow may fail with.

- `{forbidden, Error}`: the server refuses the request for a reason that no token changes.
- `{insufficient_scope, Scopes}`: it wants scopes that were asked for already.
- `{too_many_logins, Limit}`: it refuses one token after another.
- `{crashed, Incident}`: the log has it under that id.
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
    kept :: erlmcp_oauth_kept:kept(),
    dpop :: fun(() -> erlmcp_dpop:key() | none),
    tokens = none :: none | fun(() -> erlmcp_oauth_token:tokens()),
    digest = none :: none | binary(),
    issuer = none :: none | binary(),
    flight = none :: none | #flight{},
    logins = [] :: [integer()]
}).

%% A flight without a user has no reason to take longer.
-define(FLIGHT_MS, 90_000).
-define(WAITERS, 10_000).
%% Logins within ten minutes. Those of a user open a browser.
-define(LOGIN_WINDOW_MS, 600_000).
-define(USER_LOGINS, 6).
-define(OTHER_LOGINS, 60).
%% A token that is refused so soon after it was refreshed is not one that ended.
-define(NEW_SECONDS, 30).
%% How long before its end a token is renewed, at most; a tenth of its time otherwise.
-define(EARLY_SECONDS, 30).

-doc """
Starts it, linked to the calling process. `ServerUrl` is the MCP server's; nothing is asked of
anybody before that refuses a request.
""".
-spec start_link(erlmcp_oauth_options:options(), ServerUrl :: binary()) ->
    {ok, pid()} | {error, {bad_option, term(), binary()} | {store, erlmcp_token_store:reason()}}.
start_link(Options, ServerUrl) ->
    maybe
        {ok, Settings} ?= erlmcp_oauth_options:check(Options),
        {ok, _} ?= url(ServerUrl),
        gen_server:start_link(?MODULE, {ServerUrl, fun() -> Settings end}, [])
    end.

url(Url) ->
    case erlmcp_oauth_url:canonical(Url) of
        {ok, Canonical} -> {ok, Canonical};
        {error, invalid_url} -> {error, {bad_option, url, ~"an http or https URL"}}
    end.

-doc "What the other functions take; small, to be copied to every call.".
-spec handle(pid()) -> handle().
handle(Pid) ->
    gen_server:call(Pid, handle).

-doc """
The headers of a request to the server, none while there is no token. Waits only for a token that is
being renewed. A token goes to the server's own origin alone.
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
                Now < RenewAt -> {ok, credentials(Type, Token, Method, Url, Handle)};
                Renewable -> renewed(ask(Pid, renew, Deadline), Handle, Method, Url);
                Now < End -> {ok, credentials(Type, Token, Method, Url, Handle)};
                true -> {ok, []}
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
Says that the server refused a request that had the headers `Used`, with this status and these
headers. Waits until a login, a renewal or a step up is over; `retry` if the request may be sent
again, with new headers. The caller bounds how often.
""".
-spec challenged(handle(), Used :: [{binary(), iodata()}], Status :: 401 | 403,
                 #{binary() => binary()}, Deadline :: integer()) -> retry | {error, reason()}.
challenged(#handle{pid = Pid}, Used, Status, Headers, Deadline) ->
    Challenge = challenge(Headers),
    ask(Pid, {challenged, used(Used), Status, Challenge, nonce(Headers)}, Deadline).

%% Only what tells whether it is the current one.
used(Headers) ->
    case lists:keyfind(~"authorization", 1, Headers) of
        {_, Value} -> digest(lists:last(binary:split(iolist_to_binary(Value), ~" ")));
        false -> none
    end.

digest(Token) -> crypto:hash(sha256, Token).

challenge(#{~"www-authenticate" := Field}) ->
    Known = [Params || #{scheme := Scheme, params := Params} <- erlmcp_challenge:parse(Field),
                       Scheme =:= ~"bearer" orelse Scheme =:= ~"dpop"],
    %% A server that has both schemes says the same under both.
    Params = lists:foldl(fun(Params, Above) -> maps:merge(Params, Above) end, #{}, Known),
    #{metadata => maps:get(~"resource_metadata", Params, none),
      scopes => erlmcp_oauth_scope:parse(maps:get(~"scope", Params, ~"")),
      error => error_name(Known, Params)};
challenge(_) ->
    #{metadata => none, scopes => [], error => none}.

%% The other scheme may name another error beside the nonce that is wanted.
error_name(Known, Params) ->
    Wanted = ~"use_dpop_nonce",
    case [Wanted || #{~"error" := Error} <- Known, Error =:= Wanted] of
        [] -> erlmcp_oauth_token:said(~"error", Params);
        _ -> Wanted
    end.

nonce(#{~"dpop-nonce" := Nonce}) when byte_size(Nonce) =< 1024 -> Nonce;
nonce(_) -> none.

-doc "Says that the server answered with these headers: the next proof may need what they hold.".
-spec noticed(handle(), #{binary() => binary()}) -> ok.
noticed(#handle{pid = Pid, table = Table}, Headers) ->
    case nonce(Headers) of
        none ->
            ok;
        Nonce ->
            case looked_up(Table, nonce) of
                {nonce, Nonce} -> ok;
                _ -> gen_server:cast(Pid, {nonce, Nonce})
            end
    end.

-doc "Ends it.".
-spec stop(pid()) -> ok.
stop(Pid) ->
    gen_server:stop(Pid).

ask(Pid, Question, Deadline) ->
    try
        gen_server:call(Pid, Question, max(0, Deadline - erlang:monotonic_time(millisecond)))
    catch
        exit:{timeout, _} -> {error, timeout};
        exit:_ -> {error, stopped}
    end.

-doc false.
init({Url, Settings}) ->
    process_flag(trap_exit, true),
    process_flag(sensitive, true),
    #{store := Store, dpop := Dpop} = settings(Settings),
    case erlmcp_oauth_kept:open(Store, Url, settings(Settings)) of
        {ok, Kept} ->
            Table = ets:new(?MODULE, [protected, {read_concurrency, true}]),
            State = #state{url = Url, settings = Settings, table = Table, kept = Kept,
                           dpop = fun() -> none end},
            {ok, restored(erlmcp_oauth_kept:tokens(Kept), Dpop, State)};
        {error, Reason} ->
            {stop, Reason}
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
    {reply, #handle{pid = self(), table = Table, url = Url}, State};
handle_call(renew, From, #state{table = Table} = State) ->
    Now = erlang:system_time(second),
    case ets:lookup(Table, token) of
        [{token, _, _, RenewAt, _, true}] when Now >= RenewAt ->
            {noreply, join(renew, From, State)};
        _ -> {reply, retry, State}
    end;
handle_call({challenged, Used, Status, Challenge, Nonce}, From, State) ->
    noted(Nonce, State),
    case decided(Used, Status, Challenge, Nonce, State) of
        {fly, Intent} -> {noreply, join(Intent, From, State)};
        Answer -> {reply, Answer, State}
    end.

-doc false.
handle_cast({nonce, Nonce}, State) ->
    noted(Nonce, State),
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
    %% Killed from outside: whatever it does itself it reports before its end.
    {noreply, landed({error, {crashed, ~"killed"}}, Flight, State#state{flight = none})};
handle_info(_, State) ->
    {noreply, State}.

-doc false.
terminate(_, #state{flight = #flight{pid = Pid}}) ->
    exit(Pid, kill);
terminate(_, _) ->
    ok.

decided(Used, Status, Challenge, Nonce, #state{digest = Digest} = State) ->
    %% Somebody else may have got another token since.
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

flight(Intent, Now, From, #{tls := Tls, login_timeout := Login} = Settings, State) ->
    #state{url = Url, tokens = Tokens, issuer = Issuer, dpop = Dpop, kept = Kept} = State,
    Duration = duration(Intent, Settings, Login),
    Owner = self(),
    Before = usable(Tokens, Intent),
    Pid = spawn_link(fun() ->
        process_flag(sensitive, true),
        Context = #{
            server_url => Url,
            settings => Settings,
            fetch => #{deadline => Now + Duration, tls => Tls,
                       plain => erlmcp_oauth_url:plain_hosts(Url)},
            tokens => Before,
            issuer => Issuer,
            dpop => Dpop(),
            known => fun(At) -> erlmcp_oauth_kept:client(At, Kept) end,
            learned => fun(What) -> learn(What, Kept, Owner) end
        },
        Owner ! {landed, self(), flown(Intent, Context)}
    end),
    #flight{pid = Pid, intent = kind(Intent), waiters = [From],
            timer = erlang:start_timer(Duration, self(), flight)}.

duration(renew, #{grant := authorization_code}, _) -> ?FLIGHT_MS;
duration(_, #{grant := authorization_code}, Login) -> Login;
duration(_, _, _) -> ?FLIGHT_MS.

kind({Kind, _}) -> Kind;
kind(renew) -> renew.

usable(none, _) -> none;
usable(Tokens, {login, _}) -> refreshable(Tokens());
usable(Tokens, _) -> Tokens().

%% What was just refreshed is not refreshed again: the server does not want it.
refreshable(#{refreshed_at := At} = Tokens) ->
    case erlang:system_time(second) - At < ?NEW_SECONDS of
        true -> maps:remove(refresh_token, Tokens);
        false -> Tokens
    end;
refreshable(Tokens) ->
    Tokens.

learn({client, Issuer, Client}, Kept, _) -> erlmcp_oauth_kept:learn({Issuer, Client}, Kept);
learn({forget, Issuer}, Kept, _) -> erlmcp_oauth_kept:forget(Issuer, Kept);
learn(What, _, Owner) ->
    Owner ! {learned, self(), What},
    ok.

learned({issuer, Issuer}, State) ->
    State#state{issuer = Issuer};
learned(login, #state{flight = #flight{intent = renew}} = State) ->
    State;
learned(login, #state{logins = Logins} = State) ->
    State#state{logins = [erlang:monotonic_time(millisecond) | Logins]}.

%% Whatever the stack of a crash shows may be a secret, but for its places.
flown(Intent, Context) ->
    try erlmcp_oauth_flow:run(Intent, Context) of
        {ok, Tokens} -> {ok, fun() -> Tokens end};
        {error, Reason} -> {error, Reason}
    catch
        Class:Reason:Stack ->
            Incident = erlmcp_incident:log(#{what => authorization_crashed, class => Class,
                                             reason => outline(Reason),
                                             stacktrace => [place(Entry) || Entry <- Stack]}),
            {error, {crashed, Incident}}
    end.

outline(Reason) when is_atom(Reason) -> Reason;
outline(Reason) when is_tuple(Reason), is_atom(element(1, Reason)) -> element(1, Reason);
outline(_) -> thrown.

place({Module, Function, Arguments, Location}) when is_list(Arguments) ->
    {Module, Function, length(Arguments), proplists:delete(error_info, Location)};
place({Module, Function, Arity, Location}) ->
    {Module, Function, Arity, proplists:delete(error_info, Location)};
place(_) ->
    unknown.

landed(Result, #flight{timer = Timer, waiters = Waiters, intent = Intent}, State) ->
    _ = erlang:cancel_timer(Timer),
    {Answer, Landed} = outcome(Result, Intent, State),
    lists:foreach(fun(From) -> gen_server:reply(From, Answer) end, Waiters),
    Landed.

outcome({ok, Tokens}, _, #state{kept = Kept, dpop = Dpop} = State) ->
    ok = erlmcp_oauth_kept:keep(Tokens(), Dpop(), Kept),
    {retry, installed(Tokens(), State)};
outcome({error, {token_refused, Status, _, _}}, renew, State) when Status < 500 ->
    {retry, dropped(State)};
outcome({error, _} = Error, _, State) ->
    {Error, State}.

%% The server's next challenge says what is to be done. What was asked for is asked for again.
dropped(#state{table = Table, kept = Kept, tokens = Tokens} = State) ->
    true = ets:delete(Table, token),
    ok = erlmcp_oauth_kept:drop(Kept),
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
