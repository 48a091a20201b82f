-module(erlmcp_listener).
-moduledoc """
Starts a ranch listener whose port may have been another's a moment ago: a listening socket closes
some time after the process that had it, so a server that is restarted on its port must wait for it.
And what its sockets have in common: how many connections wait to be accepted, how many the node has
descriptors for, and how long a client that does not read is waited for.
""".

-export([child_spec/2, hard_stop/1, start_link/2, reason/1]).
-export([socket_options/2, backlog/0, acceptors/0, is_loopback/1, accept/2]).
-export([start_connection/1, load/1]).

%% Milliseconds between two looks at the port, and how many.
-define(LOOK, 20).
-define(LOOKS, 25).
%% Connections that can be being refused at any time, beside some of those that may be served.
-define(REFUSED, 100).
%% Connections that wait to be accepted, as many as Linux lets them by itself. What comes when they
%% are full is dropped, and its client asks again after a second.
-define(BACKLOG, 4096).
%% Milliseconds after which it is tried again to accept where there was no descriptor.
-define(PAUSE, 100).
%% The applications whose modules say to a client that it is refused.
-define(NEEDED, [erlmcp, cowboy, cowlib, ranch]).

-doc "The child specification of a listener, from ranch's own.".
-spec child_spec(supervisor:child_spec(), SocketOptions :: [gen_tcp:listen_option()]) ->
    supervisor:child_spec().
child_spec(#{start := Start} = Spec, SocketOptions) ->
    Address = [Option || {Key, _} = Option <- SocketOptions, Key =:= ip orelse Key =:= port],
    Spec#{start := {?MODULE, start_link, [Start, Address]}}.

-doc """
Connections at which a listener accepts no more: somewhat above those that may be served, so that
those over that bound are told so, and below what a flood of them could take.
""".
-spec hard_stop(Connections :: pos_integer()) -> pos_integer().
hard_stop(Connections) ->
    Connections + Connections div 8 + ?REFUSED.

-doc "How many connections may wait to be accepted, where the system allows that.".
-spec backlog() -> pos_integer().
backlog() -> ?BACKLOG.

-doc """
How many processes of a listener accept connections. Each accepts one when it is its turn among all
processes that have something to do.
""".
-spec acceptors() -> pos_integer().
acceptors() ->
    erlmcp_descriptors:acceptors(erlmcp_descriptors:measure(erlmcp_machine:facts("/"))).

-doc """
Accepts the next connection for which the node has a descriptor to spare, and closes those before it
for which it has none. Where it could open none, it is tried again after a while.
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
The socket options of a listener with these options: its address, and those by which a client that
reads nothing for so many milliseconds loses its connection. A process that ends leaves what it had
sent to its port, which waits on for the client, and is counted nowhere; so the system has to give
up too (TCP_USER_TIMEOUT, RFC 5482). Other systems than Linux have no such option.
""".
-spec socket_options(Options :: map(), Milliseconds :: pos_integer()) -> [gen_tcp:listen_option()].
socket_options(Options, Milliseconds) ->
    [{ip, maps:get(ip, Options, {127, 0, 0, 1})}, {port, maps:get(port, Options, 0)},
     {nodelay, true}, {backlog, ?BACKLOG},
     {send_timeout, Milliseconds}, {send_timeout_close, true}
     | case os:type() of
           {unix, linux} -> [{raw, 6, 18, <<Milliseconds:32/native>>}];
           _ -> []
       end].

-doc "Returns `true` if only processes of this machine reach a listener at this address.".
-spec is_loopback(inet:ip_address()) -> boolean().
is_loopback({127, _, _, _}) -> true;
is_loopback({0, 0, 0, 0, 0, 0, 0, 1}) -> true;
is_loopback({0, 0, 0, 0, 0, 16#FFFF, High, _}) -> High bsr 8 =:= 127;
is_loopback(_) -> false.

-doc """
Starts the process of a connection, for ranch. The calling process is the one that starts all of a
listener, and it has its turn before others from now on: beside 1,000 connections that ask as fast
as they can it would come to some ten in a round of them all. What floods it is held up by ranch's
acceptors, which have no turn before others.
""".
-spec start_connection({module(), atom(), [term()]}) -> {ok, pid()}.
start_connection({Module, Function, Arguments}) ->
    _ = process_flag(priority, high),
    {ok, proc_lib:spawn_link(Module, Function, Arguments)}.

-doc false.
-spec start_link({module(), atom(), [term()]}, [gen_tcp:listen_option()]) ->
    supervisor:startlink_ret().
start_link({Module, Function, Arguments}, Address) ->
    %% A node may have been started without them for want of a listener (m:erlmcp_cli_boot).
    {ok, _} = application:ensure_all_started(cowboy),
    ok = load(?NEEDED),
    %% The log says so, too: what OTP prints reports with.
    _ = code:ensure_loaded(io_lib_pretty),
    ok = wait(Address, ?LOOKS),
    apply(Module, Function, Arguments).

-doc """
Loads the modules of applications. Where modules are loaded when they are called first, that would
be when there is no descriptor to read them with.
""".
-spec load([atom()]) -> ok.
load(Applications) ->
    case code:get_mode() of
        interactive -> lists:foreach(fun load_application/1, Applications);
        embedded -> ok
    end.

%% One by one: all that is read for several at once is in memory together.
load_application(Application) ->
    _ = application:load(Application),
    {ok, Modules} = application:get_key(Application, modules),
    %% Some may be for what this machine has not.
    lists:foreach(fun(Module) -> _ = code:ensure_loaded(Module) end, Modules).

-doc "Why a listener could not listen: ranch wraps it in the reasons of its own supervisors.".
-spec reason(term()) -> term().
reason({listen_error, _, Reason}) -> Reason;
reason({shutdown, Reason}) -> reason(Reason);
reason({failed_to_start_child, _, Reason}) -> reason(Reason);
reason(Reason) -> Reason.

%% Whatever is the matter then, ranch says it.
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
