-module(erlmcp_bench_components).
-moduledoc """
The operations of the core workloads: each is what a server does with the component itself, with its
own functions. What an operation is given back it checks, and crashes where that is wrong.

- `registry`: looks up the server by its id (`m:erlmcp_registry`), a tool by its name in the
  published catalog, and a connection, which is an HTTP session, by its id. Every twentieth
  operation writes too: a connection goes, and another one comes, under an id that was made before.
  What it takes to make one is in `session`.
- `queue`: a request enters the server's own gate (`m:erlmcp_gate`), awaits its turn and leaves. No
  process has more than one request, and so none waits, as in a server that is not overloaded.
  `queue_waiting`: a gate lets as many requests in flight as there are processes, and each process
  has one. It enters with another one, which has to wait, and leaves with the first. The other one
  goes to the gate's queue if the limit is reached again by then, or if others wait there.
- `pool`: a worker is lent and given back (`m:erlmcp_workers`), of which there are as many as
  processes. `pool_waiting`: there are ten processes for each, so that most wait.
- `session`: a session is opened, found (which touches it), changed, and ended, after which it is
  not found. It would have a process when it needs one; these need none. Who opens many makes
  several ids at once (`m:erlmcp_session_table`); a process that opens a single one takes longer
  for its id.
- `encode`: a `tools/call` request and its result, from terms to bytes; `decode`: from bytes to
  messages.
- `encode_reply`: what a handler returned, a text of 44 bytes, to the bytes of the reply, as the
  process of a call does it (`m:erlmcp_call`), the bound on its size included. The request that it
  answers is another's.
- `nothing`: what is left of all of these without an operation, the instrument's own: by it the
  others are to be read, and what a second core is worth on the machine.
""".

%% What an operation costs is the components'.
-compile({inline, [look_up/1, written/4, lived/2]}).

-export([with/3]).

-export_type([work/0]).

-doc "What `erlmcp_bench_operations:run/1` is to do.".
-type work() :: #{
    prepare := fun((Number :: pos_integer()) -> term()),
    operation := fun((term()) -> term()),
    finish => fun((term()) -> term())
}.

-define(SERVER, {?MODULE, server}).
%% Connections that are known, and of how many operations one is a write.
-define(CONNECTIONS, 1_000).
-define(WRITES, 20).
%% Processes for each worker of the pool.
-define(SHARE, 10).
%% Milliseconds that nobody waits as long as something works.
-define(LONG_MS, 600_000).
-define(SHORT, ~"The quick brown fox jumps over the lazy dog.").
-define(TEXT, ~"The quick brown fox jumps over the lazy dog. \"Quoted\", and 1.5 \x{20ac}.").

-doc """
Runs a fun with the work of a component, for so many processes, while a server runs that has the
component.
""".
-spec with(erlmcp_bench_workloads:component(), Workers :: pos_integer(),
           fun((work()) -> Outcome)) -> Outcome.
with(Component, Workers, Do) ->
    Caller = self(),
    %% What is started here, and every table, ends with this process.
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
        %% All are of one client here.
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
    %% A session's process waits most of the time, and so does this one. To ask whether a process
    %% lives that has much to do is to wait for it.
    Owner = spawn_link(fun() -> receive stop -> ok end end),
    Put = fun(Id) ->
        {ok, _} = erlmcp_session_table:add(Id, Owner, Session, flow(), Instance),
        ok
    end,
    %% They are in use.
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
    %% A call has its deadline before it asks for a worker.
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
          ok = erlmcp_reply:bounded(Encoded, Max),
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

flow() ->
    erlmcp_admission:tenant(anonymous, {127, 0, 0, 1}).

lived(Session, Instance) ->
    {ok, Id} = erlmcp_session:open(Session, flow(), Instance),
    {ok, none, Session} = erlmcp_session_table:find(Id, anonymous, Instance),
    ok = erlmcp_session_table:update(Id, Session#{log_level := 4}, Instance),
    %% As DELETE ends it.
    ok = erlmcp_session:delete(Id, Instance),
    error = erlmcp_session_table:find(Id, anonymous, Instance),
    ok.

%% As a client's `initialize` opens it.
session(Instance) ->
    Revision = erlmcp_revision:latest(session),
    Params = erlmcp_client_request:initialize(Revision, identity()),
    {Request, _} = erlmcp_client_request:request(0, {~"initialize", Params}, #{},
                                                 {Revision, identity()}),
    {ok, Json} = decoded(iolist_to_binary(Request), Instance),
    {_, #{} = Session} = erlmcp_engine:handle(Json, #{headers => none, principal => anonymous},
                                              erlmcp_published_catalog:catalog(Instance), none),
    Session.

%% What encodes a request, as a client of 2026-07-28 does, and what its result, as a call does.
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
