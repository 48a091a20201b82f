-module(erlmcp_console_collector).
-moduledoc """
Reads the servers of the node: each second while a page shows one, and else each five seconds. So a
page begins with what has happened before it was opened. A snapshot of a server is encoded once for
all its pages.

A viewer is a process that gets the first message at once, and each further one after it has asked
for it (`ask/1`). A viewer that is slow misses snapshots, and nothing waits for it. Processes of
calls may answer late, so another process asks them.
""".

-behaviour(gen_server).

-export([start_link/0, watch/2, ask/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([watch/0]).

-doc "A viewer's server, and the collector that reads it.".
-opaque watch() :: {Collector :: pid(), Server :: pid()}.

%% Viewers of all servers. A listener has places for a hundred pages, and others need some.
-define(VIEWERS, 90).
%% Servers that are read while nobody looks.
-define(SERVERS, 20).
-define(SECOND, 1_000).
-define(SELDOM, 5_000).
%% Requests a second that are shown, of those that went well and of those that failed.
-define(REQUESTS, 50).

-record(seen, {
    view :: erlmcp_console_view:view(),
    viewers = #{} :: #{pid() => asks | busy},
    due :: integer(),
    %% what is fixed while the server runs
    server :: map(),
    calls = [] :: [erlmcp:running_call()],
    %% the process that asks the calls
    asking = none :: none | pid()
}).
-record(state, {servers = #{} :: #{pid() => #seen{}}}).

-doc "Starts the collector.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc """
Makes the calling process a viewer of a server, and returns the first message for its page as JSON.
Returns `full` if there are 90 viewers already. The messages after that are
`{erlmcp_console, snapshot, Json}`.
""".
-spec watch(erlmcp:server(), erlmcp_console_view:options()) ->
    {ok, watch(), Json :: binary()} | {error, full | not_found}.
watch(Server, Options) ->
    gen_server:call(?MODULE, {watch, Server, Options}).

-doc "Asks for the next snapshot, and monitors the collector until it comes.".
-spec ask(watch()) -> Monitor :: reference().
ask({Collector, Server}) ->
    Monitor = monitor(process, Collector),
    ok = gen_server:cast(Collector, {ask, Server, self()}),
    Monitor.

-doc false.
init([]) ->
    _ = erlang:send_after(0, self(), tick),
    {ok, #state{}}.

-doc false.
handle_call({watch, Name, Options}, {Viewer, _}, #state{servers = Servers} = State) ->
    case {erlmcp_registry:whereis(Name), viewers(Servers) < ?VIEWERS} of
        {{ok, Pid, _}, true} ->
            #seen{viewers = Viewers, view = Known} = Before = seen(Pid, Servers),
            _ = monitor(process, Viewer),
            View = erlmcp_console_view:with(Options, Known),
            Seen = read(Pid, Before#seen{viewers = Viewers#{Viewer => busy}, view = View}),
            case Seen of
                gone -> {reply, {error, not_found}, State};
                #seen{view = Now} ->
                    {reply, {ok, {self(), Pid}, encode(erlmcp_console_view:hello(Now))},
                     State#state{servers = Servers#{Pid => Seen}}}
            end;
        {{ok, _, _}, false} -> {reply, {error, full}, State};
        {error, _} -> {reply, {error, not_found}, State}
    end.

viewers(Servers) ->
    lists:sum([map_size(Viewers) || _ := #seen{viewers = Viewers} <- Servers]).

seen(Pid, Servers) ->
    case Servers of
        #{Pid := Seen} -> Seen;
        #{} ->
            ok = attach(Pid),
            #seen{due = erlang:monotonic_time(millisecond), view = erlmcp_console_view:new(),
                  server = server(Pid)}
    end.

%% A collector that was started again takes the place of the one before.
attach(Server) ->
    Collector = self(),
    Handler = fun(Event) -> Collector ! {event, Server, Event} end,
    case erlmcp_event:attach(Server, ?MODULE, Handler) of
        {error, already_attached} ->
            _ = erlmcp_event:detach(Server, ?MODULE),
            _ = erlmcp_event:attach(Server, ?MODULE, Handler),
            ok;
        _ ->
            ok
    end.

server(Pid) ->
    Fixed = #{node => node(), otp => list_to_binary(erlang:system_info(otp_release)),
              listeners => [maps:with([transport, url, sse_url], Listener)
                            || #{} = Listener <- listeners(Pid)]},
    maybe
        {ok, _, Instance} ?= erlmcp_registry:whereis(Pid),
        #{key := Key} = Instance,
        {ok, Catalog} ?= erlmcp_published_catalog:find(Key),
        Greeting = json:decode(iolist_to_binary(erlmcp_catalog:greeting('2025-11-25', Catalog))),
        #{~"serverInfo" := Info} ?= Greeting,
        maps:merge(Fixed, maps:with([~"name", ~"version", ~"title"], Info))
    else
        _ -> Fixed
    end.

%% An error, and so none, if the server ends meanwhile.
listeners(Pid) ->
    case erlmcp:listeners(Pid) of
        {error, not_found} -> [];
        Listeners -> Listeners
    end.

-doc false.
handle_cast({ask, Server, Viewer}, #state{servers = Servers} = State) ->
    case Servers of
        #{Server := #seen{viewers = #{Viewer := _} = Viewers} = Seen} ->
            Asking = Seen#seen{viewers = Viewers#{Viewer := asks}},
            {noreply, State#state{servers = Servers#{Server := Asking}}};
        #{} ->
            {noreply, State}
    end.

-doc false.
handle_info(tick, #state{servers = Servers} = State) ->
    _ = erlang:send_after(?SECOND, self(), tick),
    ok = erlmcp_recent_requests:allow(case viewers(Servers) of 0 -> 0; _ -> ?REQUESTS end),
    {noreply, ticked(erlang:monotonic_time(millisecond), State)};
handle_info({'DOWN', _, process, Pid, _}, #state{servers = Servers} = State) ->
    {noreply, State#state{servers = maps:map(fun
        (_, #seen{asking = Asking} = Seen) when Asking =:= Pid ->
            Seen#seen{asking = none};
        (_, #seen{viewers = Viewers} = Seen) ->
            Seen#seen{viewers = maps:remove(Pid, Viewers)}
    end, Servers)}};
handle_info({event, Server, Event}, #state{servers = Servers} = State) ->
    case Servers of
        #{Server := #seen{view = View} = Seen} ->
            Next = Seen#seen{view = erlmcp_console_view:event(Event, View)},
            {noreply, State#state{servers = Servers#{Server := Next}}};
        #{} ->
            {noreply, State}
    end;
handle_info({calls, Asked, Server, Calls}, #state{servers = Servers} = State) ->
    case Servers of
        #{Server := #seen{asking = Asked} = Seen} ->
            Told = Seen#seen{asking = none, calls = Calls},
            {noreply, State#state{servers = Servers#{Server := Told}}};
        #{} ->
            {noreply, State}
    end.

ticked(Now, #state{servers = Servers} = State) ->
    Running = lists:sublist([Pid || {_, Pid, _} <- erlmcp_registry:servers()], ?SERVERS),
    Known = lists:foldl(fun(Pid, All) -> All#{Pid => seen(Pid, All)} end, Servers,
                        Running),
    Next = #{Pid => Read || Pid := Seen <- Known, #seen{} = Read <- [due(Pid, Now, Seen)]},
    State#state{servers = Next}.

due(Pid, Now, #seen{viewers = Viewers, due = Due} = Seen) when map_size(Viewers) > 0; Now >= Due ->
    case read(Pid, Seen#seen{due = Now + ?SELDOM}) of
        gone -> gone;
        #seen{view = View} = Read -> tell(erlmcp_console_view:snapshot(View), Read)
    end;
due(_, _, Seen) ->
    Seen.

tell(null, Seen) ->
    Seen;
tell(Snapshot, #seen{viewers = Viewers} = Seen) ->
    case [Viewer || Viewer := asks <- Viewers] of
        [] ->
            Seen;
        Asking ->
            Json = encode(Snapshot),
            lists:foreach(fun(Viewer) -> Viewer ! {erlmcp_console, snapshot, Json} end, Asking),
            Seen#seen{viewers = maps:map(fun(_, _) -> busy end, Viewers)}
    end.

encode(Term) -> iolist_to_binary(json:encode(Term)).

read(Pid, #seen{view = View, calls = Calls, server = Server} = Seen) ->
    case {erlmcp:metrics(Pid), erlmcp:info(Pid)} of
        {#{at_ms := _} = Metrics, #{state := _} = Info} ->
            Reading = #{at => erlang:system_time(millisecond), metrics => Metrics, info => Info,
                        node => erlmcp_console_node:read(), calls => Calls, server => Server,
                        requests => requests(Pid, Seen)},
            ask_calls(Pid, Seen#seen{view = erlmcp_console_view:next(Reading, View)});
        _ ->
            gone
    end.

requests(_, #seen{viewers = Viewers}) when map_size(Viewers) =:= 0 ->
    [];
requests(Pid, _) ->
    case erlmcp_registry:whereis(Pid) of
        {ok, _, #{key := Key}} -> erlmcp_recent_requests:list(Key);
        error -> []
    end.

%% While nobody looks, no call is asked.
ask_calls(_, #seen{viewers = Viewers, asking = Asking} = Seen) when
    map_size(Viewers) =:= 0; Asking =/= none
->
    Seen;
ask_calls(Server, Seen) ->
    Collector = self(),
    {Pid, _} = spawn_monitor(fun() ->
        Calls = case erlmcp:calls(Server) of
            {error, not_found} -> [];
            Found -> Found
        end,
        Collector ! {calls, self(), Server, Calls}
    end),
    Seen#seen{asking = Pid}.
