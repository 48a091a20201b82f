-module(erlmcp_listener).
-moduledoc """
Starts a ranch listener. If its port is still in use, the start waits for up to half a second.

All listeners have the bounds of this module. They limit the connections that wait to be accepted,
the connections that get a descriptor, and the time of clients that do not read.

Internal.
""".

-export([child_spec/2, hard_stop/1, start_link/2, reason/1]).
-export([socket_options/2, backlog/0, acceptors/0, is_loopback/1, accept/2]).
-export([start_connection/1, load/1]).

%% Milliseconds between two attempts to use the port, and how many attempts there are. After a
%% restart of a server, the old listening socket may be closed a moment later.
-define(LOOK, 20).
-define(LOOKS, 25).
%% Connections that may be refused at the same time, in addition to an eighth of the limit of
%% connections.
-define(REFUSED, 100).
%% Connections that may wait to be accepted: Linux's own default. Beyond that Linux drops a
%% connection, and its client tries again after a second.
-define(BACKLOG, 4096).
%% Milliseconds after which the system gives up a client that its process should have given up.
%% Before that, the process gives it up and says why.
-define(LATER, 1000).
%% Linux takes a signed number.
-define(LONGEST, 16#7FFFFFFF).
%% Milliseconds between attempts to accept while there is no descriptor.
-define(PAUSE, 100).
%% The applications whose modules tell a client that it is refused.
-define(NEEDED, [erlmcp, cowboy, cowlib, ranch]).

-doc """
Returns `Spec`, the child specification of a listener from `ranch:child_spec/5`, with another start.
This start first loads the modules that refusals need. It then waits for up to half a second while
the address in `SocketOptions` is in use. After that it starts the listener as `Spec` says.
""".
-spec child_spec(Spec :: supervisor:child_spec(), SocketOptions :: [gen_tcp:listen_option()]) ->
    supervisor:child_spec().
child_spec(#{start := Start} = Spec, SocketOptions) ->
    Address = [Option || {Key, _} = Option <- SocketOptions, Key =:= ip orelse Key =:= port],
    Spec#{start := {?MODULE, start_link, [Start, Address]}}.

-doc """
Returns the number of connections at which a listener stops accepting. It is somewhat greater than
`Connections`, the limit of those that are served, so that further ones can be refused with a
reason.
""".
-spec hard_stop(Connections :: pos_integer()) -> pos_integer().
hard_stop(Connections) ->
    Connections + Connections div 8 + ?REFUSED.

-doc "Returns how many connections may wait to be accepted. The system may allow fewer.".
-spec backlog() -> pos_integer().
backlog() -> ?BACKLOG.

-doc """
Returns how many processes of a listener accept connections. Measures the node's descriptors anew
(`erlmcp_descriptors:measure/1`), since the number depends on them.
""".
-spec acceptors() -> pos_integer().
acceptors() ->
    erlmcp_descriptors:acceptors(erlmcp_descriptors:measure(erlmcp_machine:facts("/"))).

-doc """
Returns the first connection that `Accept` accepts while the node has a descriptor to spare for it.
Closes earlier ones by `Close`. Waits while there is no descriptor at all. Both cases are logged
(`erlmcp_descriptors:report/0`). Returns an error of `Accept` that is no lack of descriptors.
`acceptors/0` must have been called before.
""".
-spec accept(fun(() -> {ok, Socket} | {error, atom()}), Close :: fun((Socket) -> term())) ->
    {ok, Socket} | {error, atom()}.
accept(Accept, Close) ->
    case Accept() of
        {ok, Socket} = Accepted ->
            case erlmcp_descriptors:state() of
                spent ->
                    _ = Close(Socket),
                    ok = erlmcp_descriptors:closed(),
                    accept(Accept, Close);
                _ ->
                    Accepted
            end;
        {error, Reason} when Reason =:= emfile; Reason =:= enfile ->
            ok = erlmcp_descriptors:report(),
            receive
            after ?PAUSE -> accept(Accept, Close)
            end;
        {error, _} = Error ->
            Error
    end.

-doc """
Returns the socket options of a listener with `Options`: by default 127.0.0.1 and any free port. A
client that reads nothing for `Milliseconds` loses its connection. On Linux it loses the connection
after a second more if the process of the connection has ended (TCP_USER_TIMEOUT, RFC 5482).
""".
-spec socket_options(Options :: map(), Milliseconds :: pos_integer()) -> [gen_tcp:listen_option()].
socket_options(Options, Milliseconds) ->
    [{ip, maps:get(ip, Options, {127, 0, 0, 1})}, {port, maps:get(port, Options, 0)},
     {nodelay, true}, {backlog, ?BACKLOG},
     {send_timeout, Milliseconds}, {send_timeout_close, true}
     %% Bytes that a process has sent stay in the kernel after the process has ended.
     | case os:type() of
           {unix, linux} -> [{raw, 6, 18, <<(min(Milliseconds + ?LATER, ?LONGEST)):32/native>>}];
           _ -> []
       end].

-doc "Returns `true` if only processes of this machine reach a listener at this address.".
-spec is_loopback(inet:ip_address()) -> boolean().
is_loopback({127, _, _, _}) -> true;
is_loopback({0, 0, 0, 0, 0, 0, 0, 1}) -> true;
is_loopback({0, 0, 0, 0, 0, 16#FFFF, High, _}) -> High bsr 8 =:= 127;
is_loopback(_) -> false.

-doc """
Starts the process of a connection, linked to the calling process, for ranch. The calling process,
which starts all connections of a listener, gets a high priority.
""".
-spec start_connection({module(), atom(), [term()]}) -> {ok, pid()}.
start_connection({Module, Function, Arguments}) ->
    %% With the normal priority, the calling process would start about ten connections in the time
    %% in which 1,000 busy processes each run once. A flood is slowed down by ranch's acceptors,
    %% which have the normal priority.
    _ = process_flag(priority, high),
    {ok, proc_lib:spawn_link(Module, Function, Arguments)}.

-doc false.
-spec start_link({module(), atom(), [term()]}, [gen_tcp:listen_option()]) ->
    supervisor:startlink_ret().
start_link({Module, Function, Arguments}, Address) ->
    %% A node without listeners may have been started without cowboy (m:erlmcp_cli_boot).
    {ok, _} = application:ensure_all_started(cowboy),
    ok = load(?NEEDED),
    %% OTP needs this module to print reports in the log.
    _ = code:ensure_loaded(io_lib_pretty),
    ok = wait(Address, ?LOOKS),
    apply(Module, Function, Arguments).

-doc """
Loads the modules of applications now, if the node runs in interactive mode. There a module is
otherwise loaded at its first call, when the node may have no descriptor left to read the file.
Skips modules that cannot be loaded.
""".
-spec load([atom()]) -> ok.
load(Applications) ->
    case code:get_mode() of
        interactive -> lists:foreach(fun load_application/1, Applications);
        embedded -> ok
    end.

%% Loads one module after the other, since modules that are loaded together are in memory twice.
load_application(Application) ->
    _ = application:load(Application),
    {ok, Modules} = application:get_key(Application, modules),
    %% Some modules may need libraries that this machine does not have.
    lists:foreach(fun(Module) -> _ = code:ensure_loaded(Module) end, Modules).

-doc """
Returns the reason why a listener could not start, without what ranch's supervisors add to it.
""".
-spec reason(term()) -> term().
reason({listen_error, _, Reason}) -> Reason;
reason({shutdown, Reason}) -> reason(Reason);
reason({failed_to_start_child, _, Reason}) -> reason(Reason);
reason(Reason) -> Reason.

%% Waits while the port is in use. Any other error is left to ranch, which tries next.
wait(Address, Left) ->
    case gen_tcp:listen(proplists:get_value(port, Address), [{reuseaddr, true} | Address]) of
        {ok, Socket} ->
            gen_tcp:close(Socket);
        {error, eaddrinuse} when Left > 0 ->
            receive
            after ?LOOK -> wait(Address, Left - 1)
            end;
        {error, _} ->
            ok
    end.
