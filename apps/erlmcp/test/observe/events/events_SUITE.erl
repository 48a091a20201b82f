-module(events_SUITE).
-moduledoc """
What a server tells its operator: events by `on_event`, and the zones of its error budget, over real
sockets and in both eras.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([log/2]).
-export([reports_say_their_server/1, what_is_of_no_server_says_none/1]).
-export([incidents_keep_no_message/1]).
-export([crashes_are_told/1, wrong_returns_are_told/1, deaths_are_told/1,
         kills_are_told_as_what_they_are/1, deadlines_are_told/1, breakers_are_told/1,
         handlers_are_called_in_order/1, a_crash_of_the_fun_is_survived/1,
         events_over_the_bound_are_counted/1, what_waits_is_told_at_the_end/1,
         wrong_handlers_are_refused/1, servers_hear_of_the_node/1]).
-export([attached_handlers_are_called/1, attached_handlers_are_bounded/1,
         a_handler_is_attached_while_another_is_detached/1,
         nothing_is_attached_to_no_server/1, a_killed_handler_is_started_again/1,
         a_killed_supervisor_of_handlers_is_waited_for/1,
         a_supervisor_of_handlers_that_is_killed_while_asked_is_waited_for/1,
         telemetry_has_the_events/1, telemetry_has_the_calls/1]).
-export([faults_change_the_zone/1, mistakes_do_not_change_the_zone/1,
         every_transport_counts/1, few_requests_change_no_zone/1, windows_slide/1,
         zones_have_their_bounds/1]).

-import(erlmcp_test_http, [start/1, stop/1, definitions/1, call/4, initialize/2]).

%% Events that may wait for the fun.
-define(WAITING, 1000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [reports_say_their_server, what_is_of_no_server_says_none,
     crashes_are_told, incidents_keep_no_message, wrong_returns_are_told, deaths_are_told,
     kills_are_told_as_what_they_are,
     deadlines_are_told, breakers_are_told, handlers_are_called_in_order,
     a_crash_of_the_fun_is_survived,
     events_over_the_bound_are_counted, what_waits_is_told_at_the_end,
     wrong_handlers_are_refused, servers_hear_of_the_node,
     attached_handlers_are_called, attached_handlers_are_bounded,
     a_handler_is_attached_while_another_is_detached, nothing_is_attached_to_no_server,
     a_killed_handler_is_started_again, a_killed_supervisor_of_handlers_is_waited_for,
     a_supervisor_of_handlers_that_is_killed_while_asked_is_waited_for,
     telemetry_has_the_events,
     telemetry_has_the_calls,
     faults_change_the_zone, mistakes_do_not_change_the_zone, every_transport_counts,
     few_requests_change_no_zone, windows_slide, zones_have_their_bounds].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% The log.

%% Of two servers in one node, each in both eras; and a handler with the filter of docs/running.md
%% has nothing of one of them.
reports_say_their_server(_) ->
    Leaves = fun(#{msg := {report, #{server := logged_two}}, meta := #{library := erlmcp}}, _) ->
                    stop;
                (_, _) ->
                    ignore
             end,
    ok = logger:add_handler(all_reports, ?MODULE, #{config => {all, self()}}),
    ok = logger:add_handler(some_reports, ?MODULE, #{config => {some, self()},
                                                     filters => [{leaves, {Leaves, none}}]}),
    [begin
         Server = start((definitions(self()))#{id => Id}),
         [begin
              Incident = crash(Server, Options),
              {#{what := call_crashed, server := Id}, #{library := erlmcp} = Metadata} =
                  logged(all, Incident),
              false = is_map_key(domain, Metadata)
          end || Options <- eras(Server)],
         stop(Server)
     end || Id <- [logged_two, logged_one]],
    %% What came of the first would have come before.
    {#{server := logged_one}, _} = logged(some, any),
    ok = logger:remove_handler(all_reports),
    ok = logger:remove_handler(some_reports).

what_is_of_no_server_says_none(_) ->
    ok = logger:add_handler(all_reports, ?MODULE, #{config => {all, self()}}),
    Incident = erlmcp_incident:log(#{what => of_nobody}),
    {#{what := of_nobody} = Report, #{library := erlmcp}} = logged(all, Incident),
    false = is_map_key(server, Report),
    Ended = erlmcp_incident:log(#{what => of_one_that_ended}, make_ref()),
    {#{what := of_one_that_ended} = Other, #{library := erlmcp}} = logged(all, Ended),
    false = is_map_key(server, Other),
    ok = logger:remove_handler(all_reports).

-doc false.
log(#{msg := {report, #{incident := _} = Report}, meta := Metadata}, #{config := {Name, Test}}) ->
    Test ! {logged, Name, Report, Metadata},
    ok;
log(_, _) ->
    ok.

%% The case's time is the bound.
logged(Name, any) ->
    receive {logged, Name, Report, Metadata} -> {Report, Metadata} end;
logged(Name, Incident) ->
    receive
        {logged, Name, #{incident := Incident} = Report, Metadata} -> {Report, Metadata}
    end.

%% Events.

crashes_are_told(_) ->
    Server = start((definitions(self()))#{id => told, on_event => teller()}),
    [begin
         Incident = crash(Server, Options),
         #{event := incident, server := told, incident := Incident, what := call_crashed,
           method := ~"tools/call", target := ~"crash", at := At} = Event = told(incident),
         true = abs(At - erlang:system_time(millisecond)) < 60_000,
         ok = as_in_the_table(Event)
     end || Options <- eras(Server)],
    stop(Server).

%% A thousand events may wait for a handler.
incidents_keep_no_message(_) ->
    Test = self(),
    Server = start(#{
        on_event => fun(#{target := Uri}) ->
                            Test ! {about, byte_size(Uri), binary:referenced_byte_size(Uri)};
                       (_) ->
                            ok
                    end,
        resource_templates => [#{uri_template => ~"a:{rest}", name => ~"any",
                                 handler => fun(_, _) -> error(on_purpose) end}]}),
    Padding = binary:copy(~"x", 200_000),
    [begin
         #{} = call(Server, ~"resources/read", #{uri => Uri, padding => Padding}, #{}),
         receive {about, Shown, Referenced} -> true = Referenced < 2_000 end
     end || {Uri, Shown} <- [{binary:copy(~"a:", 100), 200}, {binary:copy(~"a:", 750), 1_024}]],
    stop(Server).

%% What a handler gave that is nothing that it may give: in the log, with what that is.
wrong_returns_are_told(_) ->
    ok = logger:add_handler(all_reports, ?MODULE, #{config => {all, self()}}),
    String = "hello",
    Gives = fun(Value) -> fun(_, _) -> Value end end,
    Tool = fun({Name, Value}) -> #{name => Name, handler => Gives(Value)} end,
    Prompt = #{name => ~"string", handler => Gives(String), arguments => [#{name => ~"a"}],
               complete => #{a => Gives([String])}},
    Server = start(#{tools => lists:map(Tool, [{~"string", String}, {~"strings", [~"a", String]},
                                               {~"error", {error, String}}, {~"number", 7}]),
                     prompts => [Prompt],
                     resources => [#{uri => ~"a:b", name => ~"atom", handler => Gives(ok)}]}),
    Content = ~"a binary, or content as erlmcp_content makes it",
    Also = ~"; this is a string, which is a list of characters",
    [{Params, {bad_return, Kind, Value, Told}} =
         {Params, wrong_return(call(Server, Method, Params, #{}))}
     || {Method, Params, Kind, Value, Expected, IsString} <- [
         {~"tools/call", #{name => ~"string"}, content, String, Content, true},
         {~"tools/call", #{name => ~"strings"}, content, String, Content, true},
         {~"tools/call", #{name => ~"error"}, content, String, Content, true},
         {~"tools/call", #{name => ~"number"}, tool, 7,
          ~"a binary, a list of content, a map, {structured, Value} or {error, Text}", false},
         {~"prompts/get", #{name => ~"string"}, prompt, String,
          ~"a binary, a list of messages, or a map with messages", true},
         {~"completion/complete", #{ref => #{type => ~"ref/prompt", name => ~"string"},
                                    argument => #{name => ~"a", value => ~""}},
          completion, [String], ~"a list of binaries, or a map with such a list as values", false},
         {~"resources/read", #{uri => ~"a:b"}, resource, ok,
          <<"text, {blob, Bytes}, a map, contents as erlmcp_content makes them, "
            "or {error, not_found}">>, false}],
        Told <- [case IsString of
                     true -> <<Expected/binary, Also/binary>>;
                     false -> Expected
                 end]],
    ok = logger:remove_handler(all_reports),
    stop(Server).

wrong_return(#{messages := [#{~"error" := #{~"data" := #{~"incident" := Incident}}}]}) ->
    {#{what := call_crashed, reason := Reason}, _} = logged(all, Incident),
    Reason.

%% "Everything else, and an exception, is a fault of the handler: the client gets -32603 with an
%% `incident` id, and the log has the reason": of a call that ends with what it is linked to, or of
%% its memory bound, nobody but its owner can say so.
deaths_are_told(_) ->
    ok = logger:add_handler(all_reports, ?MODULE, #{config => {all, self()}}),
    Linked = #{name => ~"linked", task => optional, handler => fun(_, _) ->
        _ = spawn_link(fun() -> exit(on_purpose) end),
        receive never -> ~"" end
    end},
    #{tools := Tools} = Definitions = definitions(self()),
    Server = #{pid := Pid} = start(Definitions#{
        id => told, on_event => teller(), tools => [Linked | Tools],
        limits => #{call_heap_bytes => 4_000_000}, listen => [{http, #{}}, {tcp, #{}}]}),
    [#{port := Port}] = [Listener || #{transport := tcp} = Listener <- erlmcp:listeners(Pid)],
    Socket = erlmcp_test_line:connect(Port),
    [begin
         {Code, #{~"incident" := Incident}} = refused(Ask(~"tools/call", #{name => Tool})),
         #{incident := Incident, server := told, what := call_died, method := ~"tools/call",
           target := Tool} = Event = told(incident),
         ok = as_in_the_table(Event),
         {#{what := call_died, server := told, method := ~"tools/call", target := Tool,
            reason := Reason}, _} = logged(all, Incident)
     end || {Tool, Code, Reason} <- [{~"linked", -32603, on_purpose}, {~"hog", 1089, killed}],
            Ask <- askers(Server, Socket)],
    %% A task's owner is its keeper.
    Extensions = #{extensions => #{~"io.modelcontextprotocol/tasks" => #{}}},
    Task = #{meta => #{~"io.modelcontextprotocol/clientCapabilities" => Extensions}},
    #{messages := [#{~"result" := #{~"resultType" := ~"task"}}]} =
        call(Server, ~"tools/call", #{name => ~"linked"}, Task),
    #{what := call_died, incident := OfTask, target := ~"linked"} = told(incident),
    {#{reason := on_purpose}, _} = logged(all, OfTask),
    ok = logger:remove_handler(all_reports),
    ok = erlmcp_test_line:close(Socket),
    stop(Server).

%% In both eras on HTTP, and on lines.
askers(Server, Socket) ->
    [fun(Method, Params) ->
         #{messages := [Message]} = call(Server, Method, Params, Options),
         Message
     end || Options <- eras(Server)]
    ++ [fun(Method, Params) ->
            erlmcp_test_line:ask_stateless(Socket, 1, Method, Params)
        end].

refused(#{~"error" := #{~"code" := Code, ~"data" := Data}}) -> {Code, Data}.

%% The runtime kills a process over its bound as any other would: nobody is told that it was that.
kills_are_told_as_what_they_are(_) ->
    Kills = fun(Name, Handler) -> #{name => Name, handler => fun(_, _) -> Handler() end} end,
    #{tools := Tools} = Definitions = definitions(self()),
    Server = start(Definitions#{
        limits => #{call_heap_bytes => 4_000_000},
        tools => [Kills(~"kills itself", fun() -> exit(self(), kill) end),
                  Kills(~"ends with one that is killed", fun() ->
                      exit(spawn_link(fun() -> receive never -> ok end end), kill),
                      receive never -> ~"" end
                  end) | Tools]}),
    Told = <<"the call was killed: it passed its memory bound of 4000000 bytes, "
             "or a process killed it">>,
    [#{messages := [#{~"error" := #{~"code" := 1089, ~"message" := Told}}]} =
         call(Server, ~"tools/call", #{name => Tool}, Options)
     || Tool <- [~"kills itself", ~"ends with one that is killed", ~"hog"],
        Options <- eras(Server)],
    stop(Server).

%% "A server counts its answers, and those of them that are its own faults: ... and deadlines that
%% passed": which call's it was is told, as of one that crashed.
deadlines_are_told(_) ->
    ok = logger:add_handler(all_reports, ?MODULE, #{config => {all, self()}}),
    Slow = fun(_, _) -> receive never -> ~"" end end,
    Definitions = definitions(self()),
    Server = #{pid := Pid} = start(Definitions#{
        id => told, on_event => teller(),
        limits => #{call_timeout_ms => 100, task_timeout_ms => 100},
        tools => [#{name => ~"slow", task => optional, handler => Slow}],
        prompts => [#{name => ~"slow prompt", handler => Slow}],
        resources => [#{name => ~"slow", uri => ~"test://slow", handler => Slow}],
        listen => [{http, #{}}, {tcp, #{}}]}),
    [#{port := Port}] = [Listener || #{transport := tcp} = Listener <- erlmcp:listeners(Pid)],
    Socket = erlmcp_test_line:connect(Port),
    [begin
         {1069, #{~"incident" := Incident, ~"limit" := 100}} =
             refused(Ask(Method, #{Key => Target})),
         #{incident := Incident, server := told, what := call_timed_out, method := Method,
           target := Target} = Event = told(incident),
         ok = as_in_the_table(Event),
         {#{server := told, what := call_timed_out, method := Method, target := Target,
            limit := 100}, _} = logged(all, Incident)
     end || {Method, Key, Target} <- [{~"tools/call", name, ~"slow"},
                                      {~"prompts/get", name, ~"slow prompt"},
                                      {~"resources/read", uri, ~"test://slow"}],
            Ask <- askers(Server, Socket)],
    %% A task's owner is its keeper, and nobody waits for it.
    Extensions = #{extensions => #{~"io.modelcontextprotocol/tasks" => #{}}},
    Task = #{meta => #{~"io.modelcontextprotocol/clientCapabilities" => Extensions}},
    #{messages := [#{~"result" := #{~"resultType" := ~"task"}}]} =
        call(Server, ~"tools/call", #{name => ~"slow"}, Task),
    #{incident := OfTask, what := call_timed_out, target := ~"slow"} = told(incident),
    {#{what := call_timed_out, limit := 100}, _} = logged(all, OfTask),
    ok = logger:remove_handler(all_reports),
    ok = erlmcp_test_line:close(Socket),
    stop(Server).

%% A tool that fails until it is told otherwise, and one more that shares its breaker.
breakers_are_told(_) ->
    Fails = atomics:new(1, []),
    Tool = fun(_, _) ->
        case atomics:get(Fails, 1) of
            0 -> error(on_purpose);
            1 -> ~"well"
        end
    end,
    Server = start(#{on_event => teller(),
                     breakers => #{shared => #{failures => 2, open_ms => 1, longest_open_ms => 1}},
                     tools => [#{name => Name, breaker => shared, handler => Tool}
                               || Name <- [~"a", ~"b"]]}),
    _ = [call(Server, ~"tools/call", #{name => Name}, #{}) || Name <- [~"a", ~"b"]],
    #{target := ~"b", opens_in_ms := Milliseconds} = Opened = told(breaker_opened),
    true = Milliseconds > 0,
    ok = as_in_the_table(Opened),
    ok = atomics:put(Fails, 1, 1),
    await(fun() ->
              case call(Server, ~"tools/call", #{name => ~"a"}, #{}) of
                  #{messages := [#{~"result" := _}]} -> true;
                  #{messages := [#{~"error" := #{~"code" := 1086}}]} -> false
              end
          end),
    #{target := ~"a"} = Closed = told(breaker_closed),
    ok = as_in_the_table(Closed),
    stop(Server).

handlers_are_called_in_order(_) ->
    Server = start((definitions(self()))#{on_event => teller()}),
    Incidents = [crash(Server, #{}) || _ <- lists:seq(1, 20)],
    Incidents = [Id || _ <- Incidents, #{incident := Id} <- [told(incident)]],
    stop(Server).

a_crash_of_the_fun_is_survived(_) ->
    Test = self(),
    Server = start((definitions(Test))#{on_event => fun(Event) -> Test ! Event, error(oh) end}),
    Incidents = [crash(Server, #{}) || _ <- lists:seq(1, 3)],
    Incidents = [Id || _ <- Incidents, #{incident := Id} <- [told(incident)]],
    stop(Server).

%% The one that the fun is busy with, and those that may wait: the next are dropped, and nobody
%% waited for the fun.
events_over_the_bound_are_counted(_) ->
    Test = self(),
    Busy = fun(Event) ->
        Test ! {self(), Event},
        receive go_on -> ok end
    end,
    #{pid := Pid} = Server = start(#{on_event => Busy}),
    {ok, _, #{key := Key}} = erlmcp_registry:whereis(Pid),
    emit(0, Key),
    Handler = receive {From, #{number := 0}} -> From end,
    lists:foreach(fun(Number) -> emit(Number, Key) end, lists:seq(1, ?WAITING + 7)),
    [begin
         Handler ! go_on,
         receive {Handler, #{number := Number} = Event} -> dropped(Number, Event) end
     end || Number <- lists:seq(1, ?WAITING)],
    Handler ! go_on,
    emit(last, Key),
    receive {Handler, #{number := last} = Event} -> false = is_map_key(dropped, Event) end,
    Handler ! go_on,
    stop(Server).

%% Told with the next event, and once.
dropped(1, Event) -> #{dropped := 7} = Event;
dropped(_, Event) -> false = is_map_key(dropped, Event).

emit(Number, Key) ->
    ok = erlmcp_event_handler:emit(Key, incident, #{number => Number}).

what_waits_is_told_at_the_end(_) ->
    Test = self(),
    Handler = fun(#{number := Number} = Event) ->
        Test ! Event,
        Number =:= 1 andalso receive go_on -> ok end
    end,
    #{pid := Pid} = Server = start(#{on_event => Handler}),
    {ok, Supervisor, #{key := Key}} = erlmcp_registry:whereis(Pid),
    [{on_event, Process, _, _}] =
        supervisor:which_children(erlmcp_server_sup:events(Supervisor)),
    emit(1, Key),
    #{number := 1} = told(incident),
    true = unlink(Supervisor),
    {Stopper, Monitor} = spawn_monitor(fun() -> stop(Server) end),
    %% All others have ended then.
    await(fun() ->
              {messages, Messages} = process_info(Process, messages),
              lists:keymember(shutdown, 3, Messages)
          end),
    emit(2, Key),
    emit(3, Key),
    Process ! go_on,
    [#{number := Number} = told(incident) || Number <- [2, 3]],
    receive {'DOWN', Monitor, process, Stopper, normal} -> ok end.

wrong_handlers_are_refused(_) ->
    [{error, {bad_option, on_event, ~"a fun of one argument"}} =
         erlmcp:start_server(#{name => ~"n", version => ~"1", on_event => Wrong})
     || Wrong <- [none, fun() -> ok end, {m, f}]],
    ok.

%% Also after one of them was killed.
servers_hear_of_the_node(_) ->
    process_flag(trap_exit, true),
    [First, Second, #{pid := Third}] = [start(#{id => Id, on_event => teller()})
                                        || Id <- [first, second, third]],
    exit(Third, kill),
    _ = erlmcp_test_http:ended(Third),
    ok = erlmcp_event_handler:broadcast(memory_ok, #{source => node, used => 1, limit => 2}),
    %% What tells of the killed one may not have ended yet.
    [receive #{event := memory_ok, server := Id} -> ok end || Id <- [first, second]],
    lists:foreach(fun erlmcp_test_http:stop/1, [First, Second]).

%% Attached handlers.

attached_handlers_are_called(_) ->
    #{pid := Pid} = Server = start((definitions(self()))#{on_event => told_as(option),
                                                          id => attached}),
    ok = erlmcp_event:attach(Pid, one, told_as(one)),
    ok = erlmcp_event:attach(attached, two, told_as(two)),
    {error, already_attached} = erlmcp_event:attach(attached, two, told_as(two)),
    _ = crash(Server, #{}),
    [#{event := incident, server := attached, target := ~"crash"} = told_to(Whom)
     || Whom <- [option, one, two]],
    ok = erlmcp_event:detach(attached, one),
    {error, not_found} = erlmcp_event:detach(attached, one),
    %% The option is no attached handler.
    {error, not_found} = erlmcp_event:detach(attached, on_event),
    _ = crash(Server, #{}),
    [#{event := incident} = told_to(Whom) || Whom <- [option, two]],
    stop(Server),
    receive {one, _} = Told -> error(Told) after 0 -> ok end.

attached_handlers_are_bounded(_) ->
    #{pid := Pid} = Server = start(#{on_event => told_as(option)}),
    [ok = erlmcp_event:attach(Pid, Number, told_as(Number)) || Number <- lists:seq(1, 100)],
    {error, {too_many, 100}} = erlmcp_event:attach(Pid, 101, told_as(101)),
    ok = erlmcp_event:detach(Pid, 7),
    ok = erlmcp_event:attach(Pid, 101, told_as(101)),
    stop(Server).

%% The process of a handler has ended then, but its id is not free yet.
a_handler_is_attached_while_another_is_detached(_) ->
    #{pid := Pid} = Server = start(#{}),
    ok = erlmcp_event:attach(Pid, one, told_as(one)),
    {ok, Supervisor, _} = erlmcp_registry:whereis(Pid),
    Events = erlmcp_server_sup:events(Supervisor),
    Halfway = fun() ->
        ok = sys:suspend(Events),
        {Detaching, Monitor} =
            spawn_monitor(fun() -> exit({said, erlmcp_event:detach(Pid, one)}) end),
        ok = erlmcp_test_servers:await_messages(1, Events),
        true = erlang:suspend_process(Detaching),
        ok = sys:resume(Events),
        fun() ->
            true = erlang:resume_process(Detaching),
            receive {'DOWN', Monitor, process, Detaching, {said, Said}} -> Said end
        end
    end,
    First = Halfway(),
    ok = erlmcp_event:attach(Pid, one, told_as(one)),
    %% It has ended the handler before, and leaves the new one.
    ok = First(),
    {error, already_attached} = erlmcp_event:attach(Pid, one, told_as(one)),
    Second = Halfway(),
    ok = erlmcp_event:detach(Pid, one),
    ok = Second(),
    {error, not_found} = erlmcp_event:detach(Pid, one),
    stop(Server).

nothing_is_attached_to_no_server(_) ->
    {error, not_found} = erlmcp_event:attach(no_such_server, one, told_as(one)),
    {error, not_found} = erlmcp_event:detach(no_such_server, one),
    #{pid := Pid} = Server = start(#{}),
    stop(Server),
    {error, not_found} = erlmcp_event:attach(Pid, one, told_as(one)).

%% Nothing waits for a handler that is gone.
a_killed_handler_is_started_again(_) ->
    #{pid := Pid} = Server = start(#{}),
    ok = erlmcp_event:attach(Pid, one, told_as(one)),
    {ok, Supervisor, #{key := Key}} = erlmcp_registry:whereis(Pid),
    Process = fun() ->
        [{_, Found, _, _}] = supervisor:which_children(erlmcp_server_sup:events(Supervisor)),
        Found
    end,
    Killed = Process(),
    true = exit(Killed, kill),
    await(fun() -> is_pid(Process()) andalso Process() =/= Killed end),
    emit(1, Key),
    #{number := 1} = told_to(one),
    [_] = ets:lookup(erlmcp_event_handler, Key),
    stop(Server).

%% The server's supervisor is asked for it before it hears of its end.
a_killed_supervisor_of_handlers_is_waited_for(_) ->
    #{pid := Pid} = Server = start(#{}),
    {ok, Supervisor, #{key := Key}} = erlmcp_registry:whereis(Pid),
    Events = erlmcp_server_sup:events(Supervisor),
    Handler = told_as(one),
    ok = sys:suspend(Supervisor),
    {Attaching, Monitor} =
        spawn_monitor(fun() -> exit({said, erlmcp_event:attach(Pid, one, Handler)}) end),
    ok = erlmcp_test_servers:await_messages(1, Supervisor),
    Ends = monitor(process, Events),
    true = exit(Events, kill),
    receive {'DOWN', Ends, process, Events, killed} -> ok end,
    ok = sys:resume(Supervisor),
    receive {'DOWN', Monitor, process, Attaching, Said} -> {said, ok} = Said end,
    emit(1, Key),
    #{number := 1} = told_to(one),
    stop(Server).

a_supervisor_of_handlers_that_is_killed_while_asked_is_waited_for(_) ->
    #{pid := Pid} = Server = start(#{}),
    {ok, Supervisor, #{key := Key}} = erlmcp_registry:whereis(Pid),
    Events = erlmcp_server_sup:events(Supervisor),
    Handler = told_as(one),
    ok = sys:suspend(Events),
    {Attaching, Monitor} =
        spawn_monitor(fun() -> exit({said, erlmcp_event:attach(Pid, one, Handler)}) end),
    await(fun() -> process_info(Events, message_queue_len) =:= {message_queue_len, 1} end),
    true = exit(Events, kill),
    receive {'DOWN', Monitor, process, Attaching, Said} -> {said, ok} = Said end,
    emit(1, Key),
    #{number := 1} = told_to(one),
    stop(Server).

%% A module with the name and the functions of telemetry, which is no dependency.
telemetry_has_the_events(_) ->
    ok = telemetry_is_there(),
    Server = start((definitions(self()))#{id => measured}),
    _ = crash(Server, #{}),
    receive
        {telemetry, [erlmcp, server, incident], #{at := At} = Measurements, Metadata} ->
            true = is_integer(At),
            1 = map_size(Measurements),
            #{server := measured, what := call_crashed, method := ~"tools/call",
              target := ~"crash", incident := _} = Metadata,
            5 = map_size(Metadata)
    end,
    ok = erlmcp_event_handler:broadcast(memory_ok, #{source => node, used => 1, limit => 2}),
    receive
        {telemetry, [erlmcp, server, memory_ok], #{used := 1, limit := 2}, #{source := node}} -> ok
    end,
    %% A stream of a session passes one of several limits. That is no number, and so no measurement.
    Limits = #{stored_events => 1_000, stored_bytes => 1_048_576},
    {ok, _, #{key := Key}} = erlmcp_registry:whereis(measured),
    ok = erlmcp_slow_consumer:cut(Key, Limits),
    receive
        {telemetry, [erlmcp, server, slow_consumer], #{at := _} = Only, #{limit := Limits}} ->
            1 = map_size(Only)
    end,
    stop(Server),
    ok = telemetry_is_gone(),
    Without = start((definitions(self()))#{id => without}),
    _ = crash(Without, #{}),
    stop(Without),
    receive {telemetry, _, _, #{server := without}} = Told -> error(Told) after 0 -> ok end.

%% In each era, and in the connection's process too.
telemetry_has_the_calls(_) ->
    ok = telemetry_is_there(),
    #{tools := Tools} = Definitions = definitions(self()),
    Server = start(Definitions#{
        id => measured,
        tools => [#{name => ~"fails", handler => fun(_, _) -> {error, ~"no"} end},
                  #{name => ~"quick", quick => true, handler => fun(_, _) -> ~"done" end}
                  | Tools]}),
    [begin
         _ = call(Server, ~"tools/call", #{name => Tool}, Options),
         Start = #{server => measured, method => ~"tools/call", target => Tool},
         receive {telemetry, [erlmcp, call, start], #{}, Start} -> ok end,
         End = Start#{outcome => Outcome},
         receive {telemetry, [erlmcp, call, stop], #{}, End} -> ok end
     end || Options <- eras(Server),
            {Tool, Outcome} <- [{~"fails", tool_error}, {~"quick", ok}]],
    _ = crash(Server, #{}),
    receive
        {telemetry, [erlmcp, call, exception], #{},
         #{target := ~"crash", kind := error, reason := _, stacktrace := [_ | _]}} -> ok
    end,
    stop(Server),
    telemetry_is_gone().

telemetry_is_there() ->
    Forms = [merl:quote(Text)
             || Text <- ["-module(telemetry).", "-export([execute/3, span/3]).",
                         "execute(Name, Measurements, Metadata) ->"
                         "    operator ! {telemetry, Name, Measurements, Metadata}, ok.",
                         "span(Name, Metadata, Run) ->"
                         "    ok = execute(Name ++ [start], #{}, Metadata),"
                         "    try Run() of"
                         "        {Result, End} ->"
                         "            ok = execute(Name ++ [stop], #{}, End), Result"
                         "    catch"
                         "        Kind:Reason:Stack ->"
                         "            Seen = #{kind => Kind, reason => Reason,"
                         "                     stacktrace => Stack},"
                         "            ok = execute(Name ++ [exception], #{},"
                         "                         maps:merge(Metadata, Seen)),"
                         "            erlang:raise(Kind, Reason, Stack)"
                         "    end."]],
    {ok, telemetry, Beam} = compile:forms(Forms),
    {module, telemetry} = code:load_binary(telemetry, "telemetry.beam", Beam),
    true = register(operator, self()),
    ok.

telemetry_is_gone() ->
    true = unregister(operator),
    true = code:delete(telemetry),
    _ = code:purge(telemetry),
    ok.

told_as(Whom) ->
    Test = self(),
    fun(Event) -> Test ! {Whom, Event} end.

told_to(Whom) ->
    receive {Whom, Event} -> Event end.

%% Error budget.

faults_change_the_zone(_) ->
    Server = start(with_zones(20, #{on_event => teller()})),
    #{zone := green} = budget(Server),
    _ = [echo(Server, Options) || Options <- eras(Server), _ <- lists:seq(1, 10)],
    _ = [crash(Server, Options) || Options <- eras(Server)],
    %% All three windows have the same in them.
    Events = [told(error_budget_changed) || _ <- erlmcp_error_budget_window:windows()],
    [ok = as_in_the_table(Event) || Event <- Events],
    [10, 60, 300] = lists:sort([Window || #{window := Window, to := red} <- Events]),
    await(fun() -> map_get(zone, budget(Server)) =:= red andalso faults(Server) =:= 2 end),
    stop(Server).

%% What is wrong with a request, what a tool says went wrong, and a caller over his limit.
mistakes_do_not_change_the_zone(_) ->
    Server = start(with_zones(1, #{on_event => teller()})),
    Options = eras(Server),
    [begin
         _ = call(Server, ~"tools/call", #{name => ~"none"}, How),
         _ = call(Server, ~"tools/call", #{name => 1}, How),
         _ = call(Server, ~"no/such", #{}, How),
         _ = call(Server, ~"tools/call", #{name => ~"fails"}, How)
     end || How <- Options],
    %% Two of them opened the session.
    await(fun() -> requests(Server) >= 8 end),
    #{zone := green} = budget(Server),
    0 = faults(Server),
    stop(Server).

every_transport_counts(_) ->
    Server = #{pid := Pid} = start(with_zones(1, #{listen => [{http, #{}}, {tcp, #{}}]})),
    _ = echo(Server, #{}),
    _ = crash(Server, #{}),
    [#{port := Port}] = [Listener || #{transport := tcp} = Listener <- erlmcp:listeners(Pid)],
    Socket = erlmcp_test_line:connect(Port),
    #{~"result" := _} = erlmcp_test_line:ask_stateless(Socket, 1, ~"tools/list", #{}),
    #{~"error" := _} =
        erlmcp_test_line:ask_stateless(Socket, 2, ~"tools/call", #{name => ~"crash"}),
    #{~"error" := #{~"code" := 1069}} =
        erlmcp_test_line:ask_stateless(Socket, 3, ~"tools/call", #{name => ~"slow"}),
    #{~"error" := #{~"code" := 1089}} =
        erlmcp_test_line:ask_stateless(Socket, 4, ~"tools/call", #{name => ~"hog"}),
    await(fun() -> {requests(Server), faults(Server)} =:= {6, 4} end),
    %% Since its start, which no window forgets.
    #{requests := 6, faults := 4} = budget(Server),
    ok = erlmcp_test_line:close(Socket),
    stop(Server).

few_requests_change_no_zone(_) ->
    Server = start(with_zones(1_000_000, #{})),
    _ = crash(Server, #{}),
    await(fun() -> requests(Server) =:= 1 end),
    #{zone := green} = budget(Server),
    1 = faults(Server),
    stop(Server).

%% A second is a call here: ten seconds after the fault the shortest window has forgotten it.
windows_slide(_) ->
    {[#{window := 10, from := green, to := red, requests := 100, faults := 1},
      #{window := 60}, #{window := 300}], First} =
        erlmcp_error_budget_window:tick(1100, 6, erlmcp_error_budget_window:new(100, 1000, 5)),
    Changes = fun(Second, {Told, Windows}) ->
        {Now, Next} = erlmcp_error_budget_window:tick(1100 + Second, 6, Windows),
        {Told ++ [{Second, Window, To} || #{window := Window, to := To} <- Now], Next}
    end,
    {Told, Last} = lists:foldl(Changes, {[], First}, lists:seq(1, 300)),
    %% The longest window grows: the fault is a smaller share of it, and then gone.
    [{1, 10, orange}, {1, 60, orange}, {1, 300, orange}, {10, 10, green}, {60, 60, green},
     {300, 300, green}] = Told,
    [#{window := 10, zone := green, requests := 10, faults := 0}, #{window := 60, requests := 60},
     #{window := 300, requests := 300}] = erlmcp_error_budget_window:report(Last).

%% At each bound, and just under it; a window with too few requests stays as it was.
zones_have_their_bounds(_) ->
    Zone = fun(Requests, Faults) ->
        {_, Windows} = erlmcp_error_budget_window:tick(Requests, Faults,
                                                       erlmcp_error_budget_window:new(200, 0, 0)),
        [#{zone := Found} | _] = erlmcp_error_budget_window:report(Windows),
        Found
    end,
    [green, green, yellow, yellow, orange, orange, red, red] =
        [Zone(Requests, Faults)
         || {Requests, Faults} <- [{20_000, 0}, {20_000, 9}, {20_000, 10}, {20_000, 19},
                                   {20_000, 20}, {20_000, 199}, {20_000, 200}, {200, 200}]],
    green = Zone(199, 199).

%% What the cases share.

teller() ->
    Test = self(),
    fun(Event) -> Test ! Event end.

%% The next event of this name; the case's time is the bound.
told(Name) ->
    receive #{event := Name} = Event -> Event end.

as_in_the_table(#{event := Name} = Event) ->
    {Name, Measurements, Metadata, _} = lists:keyfind(Name, 1, erlmcp_event:table()),
    Fields = Measurements ++ Metadata,
    [] = maps:keys(Event) -- [event, server, at | Fields],
    [] = Fields -- maps:keys(Event),
    ok.

with_zones(Least, Options) ->
    Fails = #{name => ~"fails", handler => fun(_, _) -> {error, ~"no"} end},
    #{tools := Tools} = Definitions = definitions(self()),
    maps:merge(Definitions#{tools => [Fails | Tools], 
                           limits => #{error_budget_requests => Least,
                                       call_heap_bytes => 4_000_000}},
               Options).

eras(Server) ->
    [#{}, #{session => initialize(Server, ~"2025-11-25")}].

crash(Server, Options) ->
    #{messages := [#{~"error" := #{~"data" := #{~"incident" := Incident}}}]} =
        call(Server, ~"tools/call", #{name => ~"crash"}, Options),
    Incident.

echo(Server, Options) ->
    Arguments = #{name => ~"echo", arguments => #{text => ~"a"}},
    #{messages := [#{~"result" := _}]} = call(Server, ~"tools/call", Arguments, Options).

budget(#{pid := Pid}) ->
    #{error_budget := Budget} = erlmcp:info(Pid),
    Budget.

requests(Server) ->
    #{requests := Requests} = longest(Server),
    Requests.

faults(Server) ->
    #{faults := Faults} = longest(Server),
    Faults.

%% The window that forgets nothing while a case runs.
longest(Server) ->
    #{windows := Windows} = budget(Server),
    lists:last(Windows).

await(Holds) ->
    case Holds() of
        true -> ok;
        false ->
            receive after 20 -> await(Holds) end
    end.
