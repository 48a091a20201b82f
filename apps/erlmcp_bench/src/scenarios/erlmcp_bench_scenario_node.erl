-module(erlmcp_bench_scenario_node).
-moduledoc """
A node of a scenario: a server under test, and the process that owns it. `kill/1` kills the server,
and the process starts it again at the same address. A server that ends in another way is not
started again.
""".

-behaviour(gen_server).

-export([start_link/1, stop/1, facts/1, families/1, pauses/1, kill/1, drop/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, handle_continue/2, terminate/2]).
%% Functions that run in the node itself.
-export([close_connections/2, is_no_news/2]).

-export_type([facts/0, address/0]).

-doc """
The options of a node. `os_pid` is an element of an array of atomics. It has the node's process id
in the operating system while the node runs, and otherwise 0. `metrics` is the port of its metrics.
""".
-type options() :: #{
    transport := tcp | http1 | http2, os_pid := {atomics:atomics_ref(), pos_integer()},
    metrics => inet:port_number()
}.
-type address() :: #{ip := inet:ip_address(), port := inet:port_number(), url => binary()}.
-doc """
The node's process id in the operating system, its addresses for its clients and for the crowd
(`t:erlmcp_bench_scenarios:scenario/0`), and the URL of its metrics. Without metrics there is no
URL. The crowd has a listener of its own, so that its connections can be distinguished.
""".
-type facts() :: #{
    os_pid := pos_integer(), clients := address(), crowd := address(), metrics => binary()
}.

-record(state, {
    options :: options(),
    target :: erlmcp_bench_target:target(),
    %% the process in the node that samples its garbage collections
    sampler :: pid(),
    facts :: facts()
}).

%% A node starts in a second or two, and more slowly on a busy machine.
-define(START_MS, 60_000).
%% Milliseconds until a killed node, or killed connections, have ended.
-define(ENDED_MS, 5_000).

-doc """
Starts a server in a node of its own, and the process that owns the node, linked to the caller. With
the option `metrics`, the node serves its metrics on that port. Port 0 selects a free one. The error
is that of `erlmcp_bench_target:start/1` or of the metrics' port. It is `timeout` if the server has
not started within a minute.
""".
-spec start_link(options()) -> gen_server:start_ret().
start_link(Options) ->
    gen_server:start_link(?MODULE, Options, [{timeout, ?START_MS}]).

-doc "Ends the node, and the process `Node` that owns it.".
-spec stop(Node :: pid()) -> ok.
stop(Node) ->
    gen_server:stop(Node, normal, ?START_MS).

-doc "Returns the facts of a node. Waits while the node restarts, and fails after a minute.".
-spec facts(pid()) -> facts().
facts(Node) ->
    gen_server:call(Node, facts, ?START_MS).

-doc """
Returns the metrics of the node's server. Waits while the node restarts. Fails if the node does not
answer within a minute.
""".
-spec families(pid()) -> [erlmcp_bench_prometheus:family()].
families(Node) ->
    %% The calling process waits, and not the one that owns the node.
    {Target, _} = gen_server:call(Node, target, ?START_MS),
    erlmcp_bench_target:call(Target, erlmcp_bench_server_metrics, families, []).

-doc """
Returns the pauses of the node's garbage collections since the last call of this function, or since
the node started. Waits and fails as `families/1` does.
""".
-spec pauses(pid()) -> erlmcp_bench_pauses:pauses().
pauses(Node) ->
    {Target, Sampler} = gen_server:call(Node, target, ?START_MS),
    erlmcp_bench_target:call(Target, erlmcp_bench_pauses, take, [Sampler]).

-doc """
Kills the node, which is then started again. Returns `true` if the node ended within five seconds.
If the new start fails, the process that owns the node ends.
""".
-spec kill(pid()) -> boolean().
kill(Node) ->
    gen_server:call(Node, kill, ?START_MS).

-doc """
Closes `Count` connections of the crowd at once, or all if the crowd has fewer connections. Returns
how many of them were closed within five seconds.
""".
-spec drop(pid(), Count :: pos_integer()) -> Dropped :: non_neg_integer().
drop(Node, Count) ->
    gen_server:call(Node, {drop, Count}, ?START_MS).

-doc false.
init(Options) ->
    process_flag(trap_exit, true),
    started(Options, {0, 0}).

started(#{transport := Transport} = Options, {ClientsPort, CrowdPort}) ->
    Kind = kind(Transport),
    Listen = [{Kind, #{port => Port}} || Port <- [ClientsPort, CrowdPort]],
    Server = #{handler => erlmcp_bench_fixture, listen => Listen},
    maybe
        {ok, Target} ?= erlmcp_bench_target:start(#{server => measured(Server, Options)}),
        %% Without metrics this process ends, and the node with it.
        {ok, Metrics} ?= metrics(Target, Options),
        #{listeners := [Clients, Crowd]} = Target,
        ok = running(erlmcp_bench_target:os_pid(Target), Options),
        Sampler = erlmcp_bench_target:call(Target, erlmcp_bench_pauses, start, [all]),
        {ok, #state{options = Options, target = Target, sampler = Sampler,
                    facts = Metrics#{os_pid => erlmcp_bench_target:os_pid(Target),
                                     clients => maps:with([ip, port, url], Clients),
                                     crowd => maps:with([ip, port, url], Crowd)}}}
    end.

running(OsPid, #{os_pid := {Cells, Index}}) -> atomics:put(Cells, Index, OsPid).

kind(tcp) -> tcp;
kind(_) -> http.

measured(Server, #{metrics := _}) -> erlmcp_bench_server_metrics:options(Server);
measured(Server, _) -> Server.

metrics(Target, #{metrics := Port}) ->
    maybe
        {ok, Bound} ?= erlmcp_bench_target:call(Target, erlmcp_bench_server_metrics, start, [Port]),
        {ok, #{metrics => erlmcp_bench_scrape:url(Bound)}}
    end;
metrics(_, _) ->
    {ok, #{}}.

-doc false.
handle_call(facts, _, #state{facts = Facts} = State) ->
    {reply, Facts, State};
handle_call(target, _, #state{target = Target, sampler = Sampler} = State) ->
    {reply, {Target, Sampler}, State};
handle_call(kill, _, #state{target = Target, options = Options, facts = Facts} = State) ->
    #{os_pid := OsPid} = Facts,
    ok = running(0, Options),
    "" = os:cmd("kill -KILL " ++ integer_to_list(OsPid)),
    {reply, has_ended(Target), State, {continue, start}};
handle_call({drop, Count}, _, #state{target = Target, facts = Facts} = State) ->
    #{crowd := #{port := Port}} = Facts,
    {reply, erlmcp_bench_target:call(Target, ?MODULE, close_connections, [Port, Count]), State}.

-doc false.
handle_continue(start, #state{options = Options, facts = Facts} = State) ->
    #{clients := #{port := ClientsPort}, crowd := #{port := CrowdPort}} = Facts,
    Same = maps:merge(Options, #{metrics => port_of(Url) || metrics := Url <- Facts}),
    {ok, Started} = started(Same, {ClientsPort, CrowdPort}),
    {noreply, Started#state{options = State#state.options}}.

%% The control process of a node ends shortly after it.
has_ended(#{peer := Peer} = Target) ->
    Monitor = monitor(process, Peer),
    receive
        {'DOWN', Monitor, process, Peer, _} -> true
    after ?ENDED_MS ->
        ok = erlmcp_bench_target:stop(Target),
        false
    end.

port_of(Url) ->
    #{port := Port} = uri_string:parse(Url),
    Port.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

%% The exit signal of a killed node.
-doc false.
handle_info(_, State) ->
    {noreply, State}.

-doc false.
terminate(_, #state{target = #{peer := Peer} = Target}) ->
    %% The node may be gone if it could not be started again.
    _ = is_process_alive(Peer) andalso erlmcp_bench_target:stop(Target),
    ok.

-doc """
Closes `Count` connections of this node's listener on `Port`, or all if the listener has fewer.
Returns how many of them were closed within five seconds. From now on the node logs no reports of
ranch's listeners.
""".
-spec close_connections(Port :: inet:port_number(), Count :: pos_integer()) -> non_neg_integer().
close_connections(Port, Count) ->
    [Ref] = [Ref || Ref := #{port := Listens} <- ranch:info(), Listens =:= Port],
    Closed = lists:sublist(ranch:procs(Ref, connections), Count),
    _ = logger:add_primary_filter(?MODULE, {fun ?MODULE:is_no_news/2, []}),
    Watcher = erlmcp_chaos_inside:watch(Closed),
    ok = lists:foreach(fun(Connection) -> exit(Connection, kill) end, Closed),
    erlmcp_chaos_inside:killed(Watcher, ?ENDED_MS).

-doc false.
-spec is_no_news(logger:log_event(), term()) -> stop | ignore.
is_no_news(#{msg := {"Ranch listener" ++ _, _}}, _) -> stop;
is_no_news(_, _) -> ignore.
