-module(erlmcp_bench_requests).
-moduledoc """
Whole requests to a server of this node, without a socket: the calling process is the connection, as
the shell of a transport is (`m:erlmcp_shell`), and has its state (`m:erlmcp_connection`). What it
hands in are the bytes of a line, which are decoded, admitted and dispatched; the tool runs in the
process of its call; the answer comes back as bytes, and is held against what it has to be.

The calling process traps exits from then on: calls answer with their end.
""".

-export([new/2, call/2, close/1]).

-export_type([connection/0, outcome/0]).

-opaque connection() :: #{
    connection := erlmcp_connection:connection(),
    %% what stands before and after the id, of a request and of its answer
    request := {binary(), binary()}, answer := {binary(), binary()}
}.
-type outcome() :: answered | {refused, Code :: integer()} | {wrong, binary()} | timeout.

%% Milliseconds until nobody waits for an answer any more: as many as a call has.
-define(ANSWER, 60_000).
-define(ID, ~"\"id\":0").

-doc """
A connection to a server that has the tool `echo`; its requests have a text of so many bytes. It is
called once, to see that it answers as it has to.
""".
-spec new(erlmcp_instance:instance(), Bytes :: non_neg_integer()) -> connection().
new(Instance, Bytes) ->
    _ = process_flag(trap_exit, true),
    Text = binary:copy(~"x", Bytes),
    Request = request(Text),
    {Answer, Connection} = asked(Request, erlmcp_connection:new(Instance, anonymous, local)),
    #{~"id" := 0, ~"result" := #{~"content" := [#{~"text" := Text}]}} = json:decode(Answer),
    #{connection => Connection, request => around_id(Request), answer => around_id(Answer)}.

request(Text) ->
    Revision = erlmcp_revision:latest(stateless),
    Identity = #{info => #{name => ~"erlmcp-bench", version => ~"0.1.0"}, capabilities => #{}},
    Params = #{~"name" => ~"echo", ~"arguments" => #{~"text" => Text}},
    {Bytes, _} = erlmcp_client_request:request(0, {~"tools/call", Params}, #{},
                                               {Revision, Identity}),
    iolist_to_binary([Bytes, $\n]).

around_id(Bytes) ->
    [Before, After] = binary:split(Bytes, ?ID),
    {<<Before/binary, "\"id\":">>, After}.

-doc "Sends a request with this id, and waits for its answer.".
-spec call(Id :: pos_integer(), connection()) -> {outcome(), connection()}.
call(Id, #{connection := Connection, request := Request, answer := Answer} = Known) ->
    {Got, Next} = asked(with_id(Id, Request), Connection),
    {outcome(Got, with_id(Id, Answer)), Known#{connection := Next}}.

with_id(Id, {Before, After}) ->
    <<Before/binary, (integer_to_binary(Id))/binary, After/binary>>.

outcome(timeout, _) -> timeout;
outcome(Answer, Answer) -> answered;
outcome(Got, _) ->
    try json:decode(Got) of
        #{~"error" := #{~"code" := Code}} when is_integer(Code) -> {refused, Code};
        _ -> {wrong, Got}
    catch
        error:_ -> {wrong, Got}
    end.

asked(Request, Connection) ->
    {_, Out, Next} = erlmcp_connection:data(Request, Connection),
    written(Out, Next).

%% Only what the calls of the connection send: the mailbox has other things too.
awaited(Connection) ->
    receive
        {'EXIT', _, _} = Message -> heard(Message, Connection);
        {{erlmcp_call, _}, _} = Message -> heard(Message, Connection)
    after ?ANSWER ->
        {timeout, Connection}
    end.

heard(Message, Connection) ->
    {Out, Next} = erlmcp_connection:info(Message, Connection),
    written(Out, Next).

written(Out, Connection) ->
    case iolist_to_binary(Out) of
        <<>> -> awaited(Connection);
        Bytes -> {Bytes, Connection}
    end.

-doc "The connection is over.".
-spec close(connection()) -> ok.
close(#{connection := Connection}) ->
    erlmcp_connection:close(Connection).
