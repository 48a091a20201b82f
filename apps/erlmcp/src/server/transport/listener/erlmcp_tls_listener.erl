-module(erlmcp_tls_listener).
-moduledoc """
The process that reads the certificates and keys of an HTTP listener. It reads them again when their
files have changed, so that they are replaced without a restart. A new connection takes the current
certificates (`m:erlmcp_httpd_connection`), and keeps them.

If files cannot be read, or do not fit together, a listener does not start. If that happens later,
it is logged, and the certificates that were read before stay in use.

Internal.
""".

-behaviour(gen_server).

-export([options/2, has_files/1, new/0, child_spec/3, start_link/3, current/1]).
-export([naming/3, listen/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% Milliseconds between two looks at the files.
-define(LOOK, 1_000).

-record(state, {
    server :: reference(),
    table :: ets:table(),
    options :: [ssl:tls_server_option()],
    names :: [file:filename_all()],
    stamps :: [term()]
}).

-doc """
Returns the options of the listening socket. The defaults are TLS 1.3 and 1.2, and OTP's ciphers in
the server's order of preference. There is no renegotiation, and HTTP/2 goes before HTTP/1.1 (ALPN).
The user's options `Own` override those of the same name. The passwords in `Own` become funs, which
no log shows. If `Authenticate` uses certificates, a client needs one that an authority of
`cacertfile` or `cacerts` has signed.

A client may resume an earlier TLS session, unless it is asked for a certificate, which may not be
valid any more.
""".
-spec options(Own :: [ssl:tls_server_option()], Authenticate :: term()) ->
    [ssl:tls_server_option()].
options(Own, Authenticate) ->
    Asked = case Authenticate of
        {certificate, _} -> [{verify, verify_peer}, {fail_if_no_peer_cert, true}];
        _ -> []
    end,
    Defaults = Asked ++ [{versions, ['tlsv1.3', 'tlsv1.2']}, {honor_cipher_order, true},
                         {client_renegotiation, false}, {secure_renegotiate, true},
                         {alpn_preferred_protocols, [~"h2", ~"http/1.1"]}],
    Known = with_others(Own, Defaults),
    [hidden(Option) || Option <- with_others(Known, resumption(Known))].

%% Adds the options of `Others` that `Own` does not have.
with_others(Own, Others) ->
    Own ++ [Option || {Name, _} = Option <- Others, not lists:keymember(Name, 1, Own)].

%% `ssl` refuses options of versions that are not enabled. In TLS 1.3 the listener keeps no state of
%% a session: the client's ticket has it, sealed with a key of the listener.
resumption(Known) ->
    {versions, Versions} = lists:keyfind(versions, 1, Known),
    Asked = lists:member({verify, verify_peer}, Known),
    [{session_tickets, stateless} || lists:member('tlsv1.3', Versions), not Asked]
        ++ [{reuse_sessions, false} || lists:member('tlsv1.2', Versions), Asked].

%% Supervisors log the arguments of a listener that fails.
hidden({password, Password}) when not is_function(Password) -> {password, fun() -> Password end};
hidden({certs_keys, Pairs}) -> {certs_keys, [hidden_in(Pair) || Pair <- Pairs]};
hidden(Option) -> Option.

hidden_in(#{password := Password} = Pair) when not is_function(Password) ->
    Pair#{password := fun() -> Password end};
hidden_in(Pair) ->
    Pair.

-doc """
Changes the child specification of a listener that has these options of TLS and of its socket. If
the listener cannot start because of a wrong option of TLS, the error then names this option.
`ssl:listen/2` itself only fails with `badarg`. Without options of TLS, returns the specification
unchanged.
""".
-spec naming([ssl:tls_server_option()], Socket :: [gen_tcp:listen_option()],
             supervisor:child_spec()) -> supervisor:child_spec().
naming([], _, Spec) ->
    Spec;
naming(Options, Socket, #{start := Start} = Spec) ->
    Ip = [Option || {ip, _} = Option <- Socket],
    %% In a fun, since supervisors log the arguments of a child that fails.
    FindWrong = fun() -> [Name || {Name, _} = Option <- Options, not is_taken(Option, Ip)] end,
    Spec#{start := {?MODULE, listen, [Start, FindWrong]}}.

%% Tries an option alone. An error about another option that it needs is not `badarg`.
is_taken(Option, Ip) ->
    try ssl:listen(0, [Option | Ip]) of
        {ok, Socket} ->
            ok = ssl:close(Socket),
            true;
        {error, _} ->
            true
    catch
        exit:badarg -> false
    end.

-doc false.
-spec listen({module(), atom(), [term()]}, fun(() -> [Name :: atom()])) ->
    supervisor:startlink_ret().
listen({Module, Function, Arguments}, FindWrong) ->
    Started = apply(Module, Function, Arguments),
    case is_badarg(Started) andalso FindWrong() of
        [Name | _] ->
            Expected = ~"an option of ssl:listen/2 with a valid value",
            {error, {bad_option, {http, tls, Name}, Expected}};
        _ ->
            Started
    end.

is_badarg({error, Reason}) -> erlmcp_listener:reason(Reason) =:= badarg;
is_badarg(_) -> false.

-doc "Returns `true` if `erlmcp_tls_files:names/1` finds files in the options.".
-spec has_files([ssl:tls_server_option()]) -> boolean().
has_files(Options) ->
    erlmcp_tls_files:names(Options) =/= [].

-doc "Makes the table of the current certificates. It belongs to the calling process.".
-spec new() -> ets:table().
new() ->
    ets:new(?MODULE, [public, {read_concurrency, true}]).

-doc """
Returns the child specification of the process that keeps the certificates and keys of `Options` in
the table. The process does not start if they cannot be read for the first time. `Key` is the key of
the server, for the log.
""".
-spec child_spec(ets:table(), [ssl:tls_server_option()], Key :: reference()) ->
    supervisor:child_spec().
child_spec(Table, Options, Key) ->
    #{id => tls, start => {?MODULE, start_link, [Table, Options, Key]}}.

-doc """
Returns the certificates and keys that were read last, as options of a handshake. Raises `badarg`
before the process of `child_spec/3` has started, and after the table has gone.
""".
-spec current(ets:table()) -> [ssl:tls_server_option()].
current(Table) ->
    ets:lookup_element(Table, current, 2).

-doc false.
-spec start_link(ets:table(), [ssl:tls_server_option()], Key :: reference()) ->
    gen_server:start_ret().
start_link(Table, Options, Key) ->
    gen_server:start_link(?MODULE, {Table, Options, Key}, [{hibernate_after, 1000}]).

-doc false.
init({Table, Options, Key}) ->
    ok = erlmcp_label:set([?MODULE], Key),
    Names = erlmcp_tls_files:names(Options),
    State = #state{server = Key, table = Table, options = Options, names = Names,
                   stamps = erlmcp_tls_files:stamps(Names)},
    case erlmcp_tls_files:read(Options) of
        {ok, Read} ->
            ok = keep(Read, State),
            {ok, State};
        {error, Reason} ->
            %% After a restart of this process, the certificates that were read before are there.
            case ets:member(Table, current) of
                true ->
                    {ok, changed(State)};
                false ->
                    {error, Reason}
            end
    end.

keep(Read, #state{table = Table}) ->
    true = ets:insert(Table, {current, Read}),
    _ = erlang:send_after(?LOOK, self(), look),
    ok.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(look, #state{names = Names, stamps = Stamps} = State) ->
    case erlmcp_tls_files:stamps(Names) of
        Stamps ->
            _ = erlang:send_after(?LOOK, self(), look),
            {noreply, State};
        Changed ->
            {noreply, changed(State#state{stamps = Changed})}
    end;
handle_info(_, State) ->
    {noreply, State}.

changed(#state{server = Key, options = Options, names = Names} = State) ->
    case erlmcp_tls_files:read(Options) of
        {ok, Read} ->
            ok = keep(Read, State),
            erlmcp_log:report(notice, #{what => certificates_read, files => Names}, Key);
        {error, {file, File, Reason}} ->
            %% The files may be half written. They are read again after the next change.
            _ = erlang:send_after(?LOOK, self(), look),
            erlmcp_log:report(warning, #{what => certificates_kept, file => File,
                                         reason => Reason}, Key)
    end,
    State.
