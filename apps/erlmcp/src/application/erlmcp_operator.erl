-module(erlmcp_operator).
-moduledoc """
Does what an operator asks of a node's servers, from another program: by the control socket of
`erlmcp serve`, or by distribution. Questions and answers are JSON.

A server is named by its `id` as text. A server without an `id` is named by its name and, if another
server mounts it, by its place there. `files (my_server/docs)` is mounted under the prefix `docs` in
`my_server`. Of servers with the same text, all except the oldest have a number, too: `files #2`.

Internal.
""".

-export([ask/1]).

-export_type([answer/0]).

-doc """
An answer as JSON: `{"ok": ...}`, or `{"error": "a sentence"}`. If a question cannot be answered
because of a fault, the sentence has the id of an incident (`m:erlmcp_incident`). These are the
questions, with what `ok` has for each:

- `{"command": "servers"}`: the servers that run.
- `{"command": "sessions"}`: the open sessions of each server, 100 at most (`erlmcp:sessions/1`).
- `{"command": "calls"}`: the oldest 100 running calls of each server (`erlmcp:calls/1`).
- `{"command": "metrics"}`: of all servers, the state, the bounds, and the figures of requests,
  refusals, methods and tools (`erlmcp:metrics/1`), without histograms; of tools, the 100 that are
  called most. `breakers` and `workers` are those of `erlmcp:info/1`, 100 of each at most, and
  breakers that are not closed first. `verdict` says whether the server is well. It is null unless
  the application `erlmcp_console` has judged the server in the last 20 seconds.
- `{"command": "upstreams"}`: the figures of the node's clients by the servers that they call
  (`erlmcp_client:metrics/0`), of all revisions and methods together.
- `{"command": "pools"}`: the pools of clients of the node (`erlmcp_pool:info/1`), 20 at most, with
  100 members each at most. In place of its target, a member has the name of its server.
- `{"command": "cancel", "id": Id}`: ends a running call (`erlmcp:cancel/2`).
- `{"command": "drain", "seconds": Seconds, "lame": Seconds}`: drains all servers at the same time
  (`erlmcp:drain/2`). `Seconds` are 0 to 86,400. Without `lame` the servers are not lame first.
- `{"command": "cluster", ...}`: asks the cluster of the node's servers
  (`c:erlmcp_server_cluster:operate/2`).
- `{"command": "reload"}`: reloads all servers with a handler module (`erlmcp:reload/1`). The entry
  of a server that was not reloaded has the reason as `error`, a sentence.
""".
-type answer() :: iodata().

%% The most seconds of a drain.
-define(MOST_S, 86_400).
%% The most tools, breakers, pools of workers, or members of a pool whose figures are shown.
-define(ROWS, 100).
%% The lines of a stack that are shown.
-define(LINES, 10).

-doc """
Answers a question of an operator. An error is an answer, too. May wait long: for a drain, a reload,
the processes of calls, or other nodes of the cluster.
""".
-spec ask(Question :: binary()) -> answer().
ask(Question) ->
    try json:decode(Question) of
        #{~"command" := Command} = Asked -> answered(Command, Asked);
        _ -> with_error(~"command: expected a command of an operator")
    catch
        error:_ -> with_error(~"expected JSON")
    end.

%% The code of a cluster may fail, and a server may end while it is asked.
answered(Command, Asked) ->
    try
        case answer(Command, Asked) of
            {ok, Found} -> json:encode(#{ok => Found});
            {error, Sentence} -> with_error(Sentence)
        end
    catch
        Class:Reason:Stack ->
            Incident = erlmcp_incident:log((erlmcp_incident:outline(Reason, Stack))#{
                what => operator_question_failed, command => Command, class => Class}),
            with_error(<<"the node cannot answer; its log has the incident ", Incident/binary>>)
    end.

with_error(Sentence) ->
    json:encode(#{error => Sentence}).

answer(~"servers", _) ->
    {ok, [Server || {Server, _, _} <- servers()]};
answer(~"sessions", _) ->
    {ok, of_all(fun(_, Instance) -> erlmcp_session:list(Instance) end, fun session/1)};
answer(~"calls", _) ->
    {ok, of_all(fun(_, #{gate := Gate}) -> erlmcp_running_calls:list(Gate) end, fun call/1)};
answer(~"metrics", _) ->
    {ok, of_all(fun(Pid, Instance) ->
                    [(maps:merge(Metrics, dependencies(Instance)))#{verdict => verdict(Pid)}
                     || Metrics <- erlmcp_metrics:of_running(Pid, Instance)]
                end, fun metrics/1)};
answer(~"upstreams", _) ->
    {ok, [upstream(Upstream) || Upstream <- erlmcp_client_metrics:upstreams()]};
answer(~"pools", _) ->
    {ok, [pool(Pool) || Pool <- erlmcp_client_metrics:pools()]};
answer(~"cancel", #{~"id" := Id}) when is_binary(Id) ->
    case [Server || {Server, _, #{gate := Gate}} <- servers(),
                    erlmcp_running_calls:cancel(Gate, Id) =:= ok] of
        [Server] -> {ok, #{server => Server}};
        [] -> {error, <<"no such call runs: ", Id/binary>>}
    end;
answer(~"drain", #{~"seconds" := Seconds, ~"lame" := Lame}) when
    is_integer(Seconds), Seconds >= 0, Seconds =< ?MOST_S,
    is_integer(Lame), Lame >= 0, Lame =< ?MOST_S
->
    {ok, drained(servers(), #{timeout_ms => 1000 * Seconds, lame_ms => 1000 * Lame})};
answer(~"drain", Asked) when not is_map_key(~"lame", Asked) ->
    answer(~"drain", Asked#{~"lame" => 0});
answer(~"cluster", Asked) ->
    case [Cluster || {_, _, #{cluster := {_, _} = Cluster}} <- servers()] of
        [{Module, State} | _] -> Module:operate(Asked, State);
        [] -> {error, ~"no server of this node has the option cluster"}
    end;
answer(~"reload", _) ->
    case [reloaded(Server) || {_, _, #{handler := Handler}} = Server <- servers(),
                              Handler =/= none] of
        [] -> {error, ~"no server of this node was started from a module"};
        Reloaded -> {ok, Reloaded}
    end;
answer(Command, _) when is_binary(Command) ->
    {error, <<"no such command, or a wrong argument: ", Command/binary>>};
answer(_, _) ->
    {error, ~"command: expected a text"}.

%% Of all servers, each entry with the text of its server.
of_all(List, Shown) ->
    lists:append([of_one(fun() -> List(Pid, Instance) end, Shown, Server)
                  || {Server, Pid, Instance} <- servers()]).

of_one(List, Shown, Server) ->
    try List() of
        Listed -> [(Shown(One))#{server => Server} || One <- Listed]
    catch
        %% The tables of a server end with it.
        error:badarg -> []
    end.

verdict(Server) ->
    case erlmcp_verdicts:find(Server) of
        none -> null;
        #{well := Well, since := Since, causes := Causes} ->
            #{well => Well, since_ms => Since, causes => Causes}
    end.

%% What handlers of a server depend on.
dependencies(#{workers := Workers} = Instance) ->
    #{breakers => [Breaker#{name := text(Name)}
                   || #{name := Name} = Breaker
                          <- worst(erlmcp_definition_guard:breaker_states(Instance))],
      workers => [erlmcp_workers:info(Name, Instance) || Name <- lists:sublist(Workers, ?ROWS)]}.

%% Those that are not closed first.
worst(Breakers) ->
    {Closed, Others} = lists:partition(fun(#{state := State}) -> State =:= closed end, Breakers),
    lists:sublist(Others ++ Closed, ?ROWS).

session(#{principal := Principal} = Session) ->
    Session#{principal := text(Principal)}.

metrics(#{at_ms := At, started_ms := Started, methods := Methods, tools := Tools,
          refusals := Refusals, bounds := Bounds} = Metrics) ->
    Rows = lists:sort(fun(#{count := One}, #{count := Other}) -> One >= Other end, Tools),
    (maps:with([state, at_ms, requests, faults, verdict, breakers, workers],
               Metrics))#{
        up_ms => At - Started, bounds => Bounds,
        refusals => [#{code => Code, name => Name, count => Count}
                     || #{number := Code, name := Name} <- erlmcp_refusal:table(),
                        #{Code := Count} <- [Refusals]],
        methods => [row(Row#{name => Method}) || Method := Row <- maps:iterator(Methods, ordered)],
        tools => [row(Row) || Row <- lists:sublist(Rows, ?ROWS)]}.

row(#{name := Name, count := Count, errors := Errors, refusals := Refusals,
      latency := #{p50_us := P50, p95_us := P95, p99_us := P99}}) ->
    #{name => Name, count => Count, errors => Errors, refusals => Refusals,
      p50_us => P50, p95_us => P95, p99_us => P99}.

upstream(#{name := Name, row := Row} = Upstream) ->
    maps:merge(row(Row#{name => Name}),
               maps:with([clients, calls, connections, waiting], Upstream)).

pool({Name, Members}) ->
    #{name => text(Name), size => length(Members),
      members => [#{server => erlmcp_client_metrics:server_name(Target), state => State,
                    calls => Calls, failed => Failed}
                  || #{target := Target, state := State, calls := Calls, failed := Failed}
                         <- worst(Members)]}.

call(#{principal := Principal, pid := Pid, stack := Stack, target := Target} = Call) ->
    Call#{principal := text(Principal), pid := text(Pid),
          target := case Target of
              undefined -> null;
              _ -> Target
          end,
          stack := [line(Entry) || Entry <- lists:sublist(Stack, ?LINES)]}.

line({Module, Function, Arity, Location}) ->
    Where = [io_lib:format(" (~ts:~b)", [File, Line])
             || {file, File} <- Location, {line, Line} <- Location],
    unicode:characters_to_binary(io_lib:format("~ts:~ts/~b~ts", [Module, Function, Arity, Where])).

%% At once, so that none has to wait for the calls of another.
drained(Servers, How) ->
    Asking = self(),
    Drains = [{Server, spawn_monitor(fun() ->
                       Asking ! {self(), erlmcp_server_sup:drain(Pid, Instance, How)}
                   end)} || {Server, Pid, Instance} <- Servers],
    [Drained#{server => Server} || {Server, Drain} <- Drains, {ok, Drained} <- [drained(Drain)]].

%% A server that has ended meanwhile is out of service.
drained({Pid, Monitor}) ->
    receive
        {Pid, {ok, #{calls := Calls, tasks := Tasks}}} ->
            true = demonitor(Monitor, [flush]),
            {ok, #{calls => Calls, tasks => Tasks}};
        {Pid, {error, not_found}} ->
            true = demonitor(Monitor, [flush]),
            gone;
        {'DOWN', Monitor, process, Pid, _} ->
            {ok, #{error => ~"the process of the drain has ended before it"}}
    end.

reloaded({Server, Pid, Instance}) ->
    case erlmcp_reload:reload(Pid, Instance) of
        {ok, Reloaded} -> Reloaded#{server => Server};
        {error, Reason} -> #{server => Server, error => erlmcp_reload:sentence(Reason)}
    end.

%% The servers that run, the oldest first, each with a text that names it alone.
servers() ->
    Oldest = lists:sort([{Started, Id, Pid, Instance}
                         || {Id, Pid, #{started_ms := Started} = Instance}
                                <- erlmcp_registry:servers()]),
    {Servers, _} = lists:mapfoldl(fun numbered/2, #{},
                                  [{Label, Pid, Instance} || {_, Id, Pid, Instance} <- Oldest,
                                                             {ok, Label} <- [label(Id, Instance)]]),
    Servers.

numbered({Label, Pid, Instance}, Numbers) ->
    Number = maps:get(Label, Numbers, 0) + 1,
    Server = case Number of
        1 -> Label;
        _ -> <<Label/binary, " #", (integer_to_binary(Number))/binary>>
    end,
    {{Server, Pid, Instance}, Numbers#{Label => Number}}.

label(Id, #{key := Key} = Instance) when is_reference(Id) ->
    try place(Instance) of
        none -> {ok, erlmcp_metrics:name(Key)};
        Place -> {ok, iolist_to_binary([erlmcp_metrics:name(Key), ~" (", Place, ~")"])}
    catch
        %% The tables of a server end with it.
        error:badarg -> ended
    end;
label(Id, _) ->
    {ok, text(Id)}.

place(Instance) ->
    case lists:keysort(1, erlmcp_mounts:mounting(Instance)) of
        [] -> none;
        [{Prefix, _, Mounting} | _] -> [above(Mounting), $/, Prefix]
    end.

above(#{key := Key} = Mounting) ->
    case {erlmcp_log:server(Key), place(Mounting)} of
        {Id, _} when not is_reference(Id) -> text(Id);
        {_, none} -> erlmcp_metrics:name(Key);
        {_, Place} -> Place
    end.

text(Text) when is_binary(Text) ->
    case unicode:characters_to_binary(Text) of
        Text -> Text;
        _ -> printed(Text)
    end;
text(Term) ->
    printed(Term).

printed(Term) ->
    unicode:characters_to_binary(io_lib:format("~0tp", [Term])).
