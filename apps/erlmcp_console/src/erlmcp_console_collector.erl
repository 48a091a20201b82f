-module(erlmcp_console_collector).
-moduledoc """
Reads each server of the node every second while a page shows it, and otherwise every five seconds.
So a page begins with what has happened before it was opened. If the node has more than 20 servers,
only 20 of them are read before a page shows them.

A viewer is a process that gets the first message at once, and each further one after it has asked
for it (`ask/1`). A viewer that is slow misses snapshots.
""".

-behaviour(gen_server).

-export([start_link/0, watch/2, ask/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([watch/0, options/0]).

-doc "A viewer's server, and the collector that reads it.".
-opaque watch() :: {Collector :: pid(), Server :: pid()}.

-doc "The options of a viewer's page (`t:erlmcp_console:options/0`).".
-type options() :: #{latency_ms := pos_integer(), payloads := boolean(),
                     redact := [erlmcp_redaction:rule()]}.

%% Viewers of all servers. A listener has places for a hundred pages, and others need some.
-define(VIEWERS, 90).
%% Servers that are read while nobody looks.
-define(SERVERS, 20).
-define(SECOND, 1_000).
-define(SELDOM, 5_000).
%% Requests a second that are shown, of those that went well and of those that failed.
-define(REQUESTS, 50).

%% Milliseconds that the view of an ended server is kept, for one that starts again with its id.
-define(ENDED_MS, 900_000).

-record(seen, {
    view :: erlmcp_console_view:view(),
    %% a viewer has asked for the next snapshot, or not yet; and the rules by which it shows
    %% payloads, or `none`
    viewers = #{} :: #{pid() => {asks | busy, none | [erlmcp_redaction:rule()]}},
    due :: integer(),
    id :: term(),
    key :: reference() | none,
    %% what is fixed while the server runs
    server :: map(),
    calls = [] :: [erlmcp:running_call()],
    %% the process that asks the calls
    asking = none :: none | pid()
}).
-record(state, {
    servers = #{} :: #{pid() => #seen{}},
    %% views of servers with a name that have ended, by their ids
    ended = #{} :: #{Id :: term() => {AtMs :: integer(), erlmcp_console_view:view()}},
    code :: erlmcp_console_code:code()
}).

-doc "Starts the process that reads the servers.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc """
Makes the calling process a viewer of a server until the process ends. Returns the first message for
its page as JSON. The process asks for each further message with `ask/1`, and gets it as
`{erlmcp_console, snapshot, Json}`. Returns `{error, not_found}` if no such server runs, and
`{error, full}` if all servers together have 90 viewers already. Exits if the collector does not
run, or does not answer within five seconds.
""".
-spec watch(erlmcp:server(), options()) ->
    {ok, watch(), Json :: binary()} | {error, full | not_found}.
watch(Server, Options) ->
    gen_server:call(?MODULE, {watch, Server, Options}).

-doc """
Asks for the next snapshot, and returns a new monitor of the collector. The caller removes the
monitor when it has the snapshot. No snapshot comes once the server has ended.
""".
-spec ask(watch()) -> Monitor :: reference().
ask({Collector, Server}) ->
    Monitor = monitor(process, Collector),
    ok = gen_server:cast(Collector, {ask, Server, self()}),
    Monitor.

-doc false.
init([]) ->
    ok = erlmcp_verdicts:open(),
    _ = erlang:send_after(0, self(), tick),
    {ok, #state{code = erlmcp_console_code:read()}}.

-doc false.
handle_call({watch, Name, Options}, {Viewer, _}, Given) ->
    #state{servers = Servers} = State = without_ended(Given),
    case {erlmcp_registry:whereis(Name), viewers(Servers) < ?VIEWERS} of
        {{ok, Pid, _}, true} ->
            #state{servers = #{Pid := Before} = Known} = Seeing = seeing(Pid, State),
            #seen{viewers = Viewers, view = View} = Before,
            _ = monitor(process, Viewer),
            Seen = read(Pid, Before#seen{
                viewers = Viewers#{Viewer => {busy, rules(Options)}},
                view = erlmcp_console_view:with(maps:with([latency_ms], Options), View)}),
            case Seen of
                gone -> {reply, {error, not_found}, Seeing};
                #seen{view = Now} ->
                    #{payloads := Payloads} = Options,
                    Hello = (erlmcp_console_view:hello(Now))#{payloads => Payloads},
                    {reply, {ok, {self(), Pid}, encode(Hello)},
                     Seeing#state{servers = Known#{Pid := Seen}}}
            end;
        {{ok, _, _}, false} -> {reply, {error, full}, State};
        {error, _} -> {reply, {error, not_found}, State}
    end;
handle_call(_, _, State) ->
    {noreply, State}.

rules(#{payloads := true, redact := Rules}) -> Rules;
rules(#{payloads := false}) -> none.

viewers(Servers) ->
    lists:sum([map_size(Viewers) || _ := #seen{viewers = Viewers} <- Servers]).

%% A server that is started again with its id has the view of the one before.
seeing(Pid, #state{servers = Servers} = State) when is_map_key(Pid, Servers) ->
    State;
seeing(Pid, #state{servers = Servers, ended = Ended} = State) ->
    Collector = self(),
    %% A server that starts or ends may answer late.
    _ = spawn(fun() ->
        ok = attach(Pid, Collector),
        Collector ! {listeners, Pid, listeners(Pid)}
    end),
    Seen = seen(Pid),
    #seen{id = Id} = Seen,
    case maps:take(Id, Ended) of
        {{_, View}, Others} ->
            State#state{servers = Servers#{Pid => Seen#seen{view = View}}, ended = Others};
        error ->
            State#state{servers = Servers#{Pid => Seen}}
    end.

seen(Pid) ->
    {Key, Id} = case erlmcp_registry:whereis(Pid) of
        {ok, _, #{key := Found}} -> {Found, erlmcp_log:server(Found)};
        error -> {none, none}
    end,
    #seen{due = erlmcp_clock:now_ms(), view = erlmcp_console_view:new(), id = Id,
          key = Key, server = #{node => node(), listeners => [],
                                otp => list_to_binary(erlang:system_info(otp_release))}}.

without_ended(#state{servers = Servers, ended = Ended} = State) ->
    Now = erlmcp_clock:now_ms(),
    Gone = #{Pid => Seen || Pid := Seen <- Servers, not is_process_alive(Pid)},
    ok = lists:foreach(fun erlmcp_verdicts:forget/1, maps:keys(Gone)),
    %% The id of a server without one is a reference, which none has again.
    Newly = #{Id => {Now, erlmcp_console_view:ended(View)}
              || _ := #seen{id = Id, view = View} <- Gone, not is_reference(Id), Id =/= none},
    Kept = #{Id => Known || Id := {Then, _} = Known <- Ended, Now - Then < ?ENDED_MS},
    Most = lists:sublist(lists:reverse(lists:keysort(2, maps:to_list(maps:merge(Kept, Newly)))),
                         ?SERVERS),
    State#state{servers = maps:without(maps:keys(Gone), Servers), ended = maps:from_list(Most)}.

%% A collector that was started again takes the place of the one before.
attach(Server, Collector) ->
    Handler = fun(Event) -> Collector ! {event, Server, Event} end,
    case erlmcp_event:attach(Server, ?MODULE, Handler) of
        {error, already_attached} ->
            _ = erlmcp_event:detach(Server, ?MODULE),
            _ = erlmcp_event:attach(Server, ?MODULE, Handler),
            ok;
        _ ->
            ok
    end.

%% The name and the version that clients are told now. They may change with the code.
identity(Key) ->
    case erlmcp_published_catalog:find(Key) of
        {ok, Catalog} ->
            Greeting = erlmcp_catalog:greeting('2025-11-25', Catalog),
            #{~"serverInfo" := Info} = json:decode(iolist_to_binary(Greeting)),
            maps:with([~"name", ~"version", ~"title"], Info);
        error ->
            #{}
    end.

%% If the server has ended meanwhile, it has none.
listeners(Pid) ->
    case erlmcp:listeners(Pid) of
        {error, not_found} -> [];
        Listeners -> [maps:with([transport, url, sse_url], Listener) || Listener <- Listeners]
    end.

-doc false.
handle_cast({ask, Server, Viewer}, #state{servers = Servers} = State) ->
    case Servers of
        #{Server := #seen{viewers = #{Viewer := {_, Rules}} = Viewers} = Seen} ->
            Asking = Seen#seen{viewers = Viewers#{Viewer := {asks, Rules}}},
            {noreply, State#state{servers = Servers#{Server := Asking}}};
        #{} ->
            {noreply, State}
    end;
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(tick, #state{servers = Servers} = State) ->
    _ = erlang:send_after(?SECOND, self(), tick),
    ok = erlmcp_recent_requests:allow(case viewers(Servers) of 0 -> 0; _ -> ?REQUESTS end,
                                      payloads(Servers)),
    {noreply, ticked(erlmcp_clock:now_ms(), with_code(without_ended(State)))};
handle_info({'DOWN', _, process, Pid, _}, #state{servers = Servers} = State) ->
    {noreply, State#state{servers = maps:map(fun
        (_, #seen{asking = Asking} = Seen) when Asking =:= Pid ->
            Seen#seen{asking = none};
        (_, #seen{viewers = Viewers, calls = Calls} = Seen) ->
            Left = maps:remove(Pid, Viewers),
            Seen#seen{viewers = Left, calls = while_shown(Calls, Left)}
    end, Servers)}};
handle_info({event, Server, Event}, #state{servers = Servers} = State) ->
    case Servers of
        #{Server := #seen{view = View} = Seen} ->
            Next = Seen#seen{view = erlmcp_console_view:event(Event, View)},
            {noreply, State#state{servers = Servers#{Server := Next}}};
        #{} ->
            {noreply, State}
    end;
handle_info({listeners, Server, Listeners}, #state{servers = Servers} = State) ->
    case Servers of
        #{Server := #seen{server = Fixed} = Seen} ->
            Told = Seen#seen{server = Fixed#{listeners := Listeners}},
            {noreply, State#state{servers = Servers#{Server := Told}}};
        #{} ->
            {noreply, State}
    end;
handle_info({calls, Asked, Server, Calls}, #state{servers = Servers} = State) ->
    case Servers of
        #{Server := #seen{asking = Asked, viewers = Viewers} = Seen} ->
            Told = Seen#seen{asking = none, calls = while_shown(Calls, Viewers)},
            {noreply, State#state{servers = Servers#{Server := Told}}};
        #{} ->
            {noreply, State}
    end;
handle_info(_, State) ->
    {noreply, State}.

%% Calls that nobody asks again would go on to run in all further readings.
while_shown(_, Viewers) when map_size(Viewers) =:= 0 -> [];
while_shown(Calls, _) -> Calls.

%% The rules of all pages that show payloads of a server hold for each of them.
payloads(Servers) ->
    #{Key => lists:usort(lists:append(All))
      || _ := #seen{key = Key, viewers = Viewers} <- Servers,
         [_ | _] = All <- [[Rules || _ := {_, Rules} <- Viewers, is_list(Rules)]]}.

%% The code is the node's, and so its changes are shown with each server.
with_code(#state{code = Code, servers = Servers} = State) ->
    case erlmcp_console_code:changes(Code) of
        {[], Now} ->
            State#state{code = Now};
        {Modules, Now} ->
            At = erlang:system_time(millisecond),
            State#state{code = Now, servers = maps:map(fun(_, #seen{view = View} = Seen) ->
                Seen#seen{view = erlmcp_console_view:code_loaded(Modules, At, View)}
            end, Servers)}
    end.

ticked(Now, State) ->
    #state{servers = Before} = State,
    Others = [Pid || {_, Pid, _} <- erlmcp_registry:servers(), not is_map_key(Pid, Before)],
    New = lists:sublist(Others, max(0, ?SERVERS - map_size(Before))),
    #state{servers = Known} = Seeing = lists:foldl(fun seeing/2, State, New),
    Seeing#state{servers = #{Pid => due(Pid, Now, Seen) || Pid := Seen <- Known}}.

due(Pid, Now, #seen{viewers = Viewers, due = Due} = Seen) when map_size(Viewers) > 0; Now >= Due ->
    case read(Pid, Seen#seen{due = Now + ?SELDOM}) of
        %% The server has just ended, and is removed at the next tick.
        gone -> Seen;
        #seen{view = View} = Read ->
            case erlmcp_console_view:snapshot(View) of
                %% The second reading is the first that says something.
                null -> Read#seen{due = Now};
                Snapshot -> tell(Snapshot, Read)
            end
    end;
due(_, _, Seen) ->
    Seen.

tell(Snapshot, #seen{viewers = Viewers} = Seen) ->
    case [Viewer || Viewer := {asks, _} <- Viewers] of
        [] ->
            Seen;
        Asking ->
            Json = encode(Snapshot),
            lists:foreach(fun(Viewer) -> Viewer ! {erlmcp_console, snapshot, Json} end, Asking),
            Seen#seen{viewers = maps:map(fun(_, {_, Rules}) -> {busy, Rules} end, Viewers)}
    end.

encode(Term) -> iolist_to_binary(json:encode(Term)).

read(Pid, #seen{view = View, calls = Calls, server = Server, key = Key} = Seen) ->
    case {erlmcp:metrics(Pid), erlmcp:info(Pid)} of
        {#{at_ms := _} = Metrics, #{state := _} = Info} ->
            Reading = #{at => erlang:system_time(millisecond), metrics => Metrics, info => Info,
                        node => erlmcp_console_node:read(), calls => Calls,
                        server => maps:merge(Server, identity(Key)), requests => requests(Seen),
                        troubles => erlmcp_console_log:read(),
                        places => erlmcp_console_places:found()},
            Next = erlmcp_console_view:next(Reading, View),
            ok = case erlmcp_console_view:is_growing(Next) of
                true -> erlmcp_console_places:look();
                false -> ok
            end,
            ok = judged(Pid, erlmcp_console_view:judgement(Next)),
            ask_calls(Pid, Seen#seen{view = Next});
        _ ->
            ok = erlmcp_verdicts:forget(Pid),
            gone
    end.

%% The health page shows the verdict, too.
judged(_, none) ->
    ok;
judged(Server, #{well := Well, since := Since, causes := Causes}) ->
    erlmcp_verdicts:judged(Server, #{well => Well, since => Since,
                                     causes => [Words || #{words := Words} <- Causes]}).

requests(#seen{viewers = Viewers}) when map_size(Viewers) =:= 0 -> [];
requests(#seen{key = Key}) -> erlmcp_recent_requests:list(Key).

%% While no page shows the server, no call is asked. Processes of calls may answer late.
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
