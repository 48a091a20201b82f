-module(erlmcp_bench_components).
-moduledoc """
The operations of the core workloads. Each operation uses the component's own functions, as a server
does. It checks its result, and crashes if the result is wrong.

- `registry`: looks up the server by its id (`m:erlmcp_registry`), and a tool by its name in the
  published catalog. It also looks up an HTTP session by its id. Every twentieth operation also
  writes: one session is removed, and another is added under an id that was made before. The cost of
  making an id is in `session`.
- `queue`: a request enters the server's own gate (`m:erlmcp_gate`), gets its permit and
  leaves. No process has more than one request, so no request waits, as in a server without
  overload.
- `queue_waiting`: a gate has one permit for each process, and all are taken. A process enters a new
  request, returns the permit of the one before, and waits for the permit of the new one.
- `pool`: a worker is lent and returned (`m:erlmcp_workers`). There is one worker for each process.
- `pool_waiting`: ten processes share one worker, so that most wait. The workload of a single
  process, `core_ops_1k`, does not have it.
- `session`: a session is opened, found (which touches it), changed and ended, and then it is not
  found. These sessions need no process. Their ids are made several at once, as in any process that
  opens many sessions (`erlmcp_session_table:new_id/0`).
- `encode`: a `tools/call` request and its result, from terms to bytes.
- `decode`: the bytes of such a request and of its result, to messages.
- `encode_reply`: the value of a handler, a text of 44 bytes, to the bytes of the reply, including
  the bound on its size. The process of a call does the same (`m:erlmcp_call`).
- `nothing`: the cost of the measurement itself, without an operation. It is a part of the cost of
  every other component, and shows what a second core is worth on the machine.
""".

%% The cost of an operation is that of the component alone.
-compile({inline, [look_up/1, written/4, lived/2]}).

-export([with/3]).

-export_type([work/0]).

-doc "The funs of a component for `erlmcp_bench_operations:run/1`.".
-type work() :: #{
    prepare := fun((Number :: pos_integer()) -> term()),
    operation := fun((term()) -> term()),
    finish => fun((term()) -> term())
}.

-define(SERVER, {?MODULE, server}).
%% Sessions in the table, and the number of operations for each write.
-define(CONNECTIONS, 1_000).
-define(WRITES, 20).
%% Processes for each worker of the pool.
-define(SHARE, 10).
%% A wait in milliseconds that is never reached while the server works.
-define(LONG_MS, 600_000).
-define(SHORT, ~"The quick brown fox jumps over the lazy dog.").
-define(TEXT, ~"The quick brown fox jumps over the lazy dog. \"Quoted\", and 1.5 \x{20ac}.").

-doc """
Calls `Do` with the work of a component for `Workers` processes, while a server with that component
runs. Returns the value of `Do`, or exits with the reason why `Do` failed. `Do` runs in another
process. A node can have only one such server at a time.
""".
-spec with(erlmcp_bench_workloads:component(), Workers :: pos_integer(),
           Do :: fun((work()) -> Outcome)) -> Outcome.
with(Component, Workers, Do) ->
    Caller = self(),
    %% All processes and tables of the server end with this process.
    {Pid, Monitor} = erlmcp_one_shot:start(fun() ->
        Outcome = served(Component, Workers, Do),
        true = unlink(Caller),
        Outcome
    end, [link]),
    receive
        {'DOWN', Monitor, process, Pid, {outcome, Outcome}} -> Outcome;
        {'DOWN', Monitor, process, Pid, Reason} -> exit(Reason)
    end.

served(Component, Workers, Do) ->
    Size = case Component of
        pool_waiting -> max(1, Workers div ?SHARE);
        _ -> Workers
    end,
    {ok, Server} = erlmcp:start_server(#{
        id => ?SERVER, handler => erlmcp_bench_fixture,
        %% All sessions belong to one client here.
        limits => #{sessions => ?CONNECTIONS * 10, sessions_per_principal => ?CONNECTIONS * 10,
                    queue_ms => ?LONG_MS},
        workers => #{bench => #{size => Size, queue => Workers,
                                start => fun() -> {ok, scarce} end}}}),
    {ok, _, Instance} = erlmcp_registry:whereis(?SERVER),
    Outcome = Do(work(Component, Workers, Instance)),
    ok = erlmcp:stop_server(Server),
    Outcome.

work(registry, _, Instance) ->
    Session = session(Instance),
    Ids = list_to_tuple([erlmcp_session_table:new_id() || _ <- lists:seq(1, ?CONNECTIONS)]),
    %% A session's process is mostly idle, and so is this one. `is_process_alive/1` waits for a busy
    %% process.
    Owner = spawn_link(fun() -> receive stop -> ok end end),
    Put = fun(Id) ->
        {ok, _} = erlmcp_session_table:add(Id, Owner, Session, tenant(), Instance),
        ok
    end,
    %% The sessions are in use.
    ok = lists:foreach(fun(Id) -> ok = Put(Id), ok = look_up(Id) end, tuple_to_list(Ids)),
    #{prepare => fun(Number) ->
          {Number, {erlmcp_session_table:new_id(), erlmcp_session_table:new_id()}}
      end,
      operation => fun({Count, Own}) ->
          ok = look_up(element(1 + Count rem ?CONNECTIONS, Ids)),
          {Count + 1, written(Count rem ?WRITES, Own, Put, Instance)}
      end};
work(queue, _, #{gate := Gate}) ->
    #{prepare => fun(Number) -> request(Number) end,
      operation => fun(Request) ->
          {ok, Entered} = erlmcp_gate:enter(Gate, Request),
          {ok, Permit} = erlmcp_gate:await(Entered, ?LONG_MS),
          ok = erlmcp_gate:leave(Permit),
          Request
      end};
work(queue_waiting, Workers, _) ->
    Gate = erlmcp_gate:new(#{in_flight => Workers, queue => 2 * Workers, queue_ms => ?LONG_MS}),
    {ok, _} = erlmcp_gate_permits:start_link(Gate),
    {ok, _} = erlmcp_gate_queue:start_link(Gate),
    #{prepare => fun(Number) ->
          Request = request(Number),
          {ok, Entered} = erlmcp_gate:enter(Gate, Request),
          {ok, Permit} = erlmcp_gate:await(Entered, ?LONG_MS),
          {Request, Permit}
      end,
      operation => fun({Request, Before}) ->
          {ok, Entered} = erlmcp_gate:enter(Gate, Request),
          ok = erlmcp_gate:leave(Before),
          {ok, Permit} = erlmcp_gate:await(Entered, ?LONG_MS),
          {Request, Permit}
      end,
      finish => fun({_, Permit}) -> erlmcp_gate:leave(Permit) end};
work(Pool, _, Instance) when Pool =:= pool; Pool =:= pool_waiting ->
    %% A call has its deadline before it borrows a worker.
    #{prepare => fun(_) -> erlang:monotonic_time(millisecond) + ?LONG_MS end,
      operation => fun(Deadline) ->
          {ok, Loan, scarce} = erlmcp_workers:borrow(bench, Deadline, Instance),
          ok = erlmcp_workers:give_back(Loan, good),
          Deadline
      end};
work(session, _, Instance) ->
    Session = session(Instance),
    #{prepare => fun(_) -> none end,
      operation => fun(none) ->
          ok = lived(Session, Instance),
          none
      end};
work(encode, _, Instance) ->
    {Request, Result} = messages(Instance),
    {ok, #{~"method" := ~"tools/call"}} = decoded(iolist_to_binary(Request(0)), Instance),
    {ok, #{~"result" := #{~"content" := [#{~"text" := ?TEXT}]}}} =
        decoded(iolist_to_binary(Result(0)), Instance),
    #{prepare => fun(_) -> 0 end,
      operation => fun(Id) ->
          <<"{", _/binary>> = iolist_to_binary(Request(Id)),
          <<"{", _/binary>> = iolist_to_binary(Result(Id)),
          Id + 1
      end};
work(encode_reply, _, #{limits := #{reply_bytes := Max}} = Instance) ->
    Reply = reply(?SHORT, Instance),
    {ok, #{~"result" := #{~"content" := [#{~"text" := ?SHORT}]}}} =
        decoded(iolist_to_binary(Reply(0)), Instance),
    #{prepare => fun(_) -> 0 end,
      operation => fun(Id) ->
          Encoded = Reply(Id),
          true = iolist_size(Encoded) =< Max,
          <<"{", _/binary>> = iolist_to_binary(Encoded),
          Id + 1
      end};
work(nothing, _, _) ->
    #{prepare => fun(_) -> none end, operation => fun(none) -> none end};
work(decode, _, Instance) ->
    {Request, Result} = messages(Instance),
    Sent = iolist_to_binary(Request(1)),
    Answered = iolist_to_binary(Result(1)),
    #{prepare => fun(_) -> none end,
      operation => fun(none) ->
          {ok, One} = decoded(Sent, Instance),
          {request, 1, ~"tools/call", _} = erlmcp_message:parse(One),
          {ok, Other} = decoded(Answered, Instance),
          {response, 1, {ok, _}} = erlmcp_message:parse(Other),
          none
      end}.

request(Number) ->
    #{tenant => {bench, Number}, kind => request, bytes => 512}.

look_up(Id) ->
    {ok, _, Instance} = erlmcp_registry:whereis(?SERVER),
    {ok, _} = erlmcp_catalog:tool(~"echo", anonymous, erlmcp_published_catalog:catalog(Instance)),
    {ok, _, _} = erlmcp_session_table:find(Id, anonymous, Instance),
    ok.

written(0, {Goes, Comes}, Put, Instance) ->
    ok = erlmcp_session_table:delete(Goes, Instance),
    ok = Put(Comes),
    {Comes, Goes};
written(_, Own, _, _) ->
    Own.

tenant() ->
    erlmcp_admission:tenant(anonymous, {127, 0, 0, 1}).

lived(Session, Instance) ->
    {ok, Id} = erlmcp_session:open(Session, tenant(), Instance),
    {ok, none, Opened} = erlmcp_session_table:find(Id, anonymous, Instance),
    ok = erlmcp_session_table:update(Id, Opened#{log_level := 4}, Instance),
    %% DELETE ends a session in this way.
    ok = erlmcp_session:delete(Id, Instance),
    error = erlmcp_session_table:find(Id, anonymous, Instance),
    ok.

%% A session as opened by a client's `initialize`.
session(Instance) ->
    Revision = erlmcp_revision:latest(session),
    Params = erlmcp_client_request:initialize(Revision, identity()),
    {Request, _} = erlmcp_client_request:request(0, {~"initialize", Params}, #{},
                                                 {Revision, identity()}),
    {ok, Json} = decoded(iolist_to_binary(Request), Instance),
    {_, #{} = Session} = erlmcp_engine:handle(Json, #{headers => none, principal => anonymous},
                                              erlmcp_published_catalog:catalog(Instance), none),
    Session.

%% Encoders of a request, as in a client of 2026-07-28, and of its result, as in a call.
messages(Instance) ->
    Revision = erlmcp_revision:latest(stateless),
    Call = {~"tools/call", #{~"name" => ~"echo", ~"arguments" => #{~"text" => ?TEXT}}},
    {fun(Id) ->
         {Bytes, _} = erlmcp_client_request:request(Id, Call, #{}, {Revision, identity()}),
         Bytes
     end,
     reply(?TEXT, Instance)}.

reply(Text, Instance) ->
    Catalog = erlmcp_published_catalog:catalog(Instance),
    {ok, Tool} = erlmcp_catalog:tool(~"echo", anonymous, Catalog),
    Context = #{revision => erlmcp_revision:latest(stateless),
                call => #{server_meta => erlmcp_catalog:server_meta(Catalog)}},
    fun(Id) ->
        {ok, Result} = erlmcp_result:from(tool, Text, Tool, Context),
        erlmcp_message:result(Id, Result)
    end.

identity() ->
    #{info => #{name => ~"erlmcp-bench", version => ~"0.1.0"}, capabilities => #{}}.

decoded(Bytes, #{limits := Limits}) ->
    erlmcp_json:decode(Bytes, Limits).
