-module(erlmcp_test_sent).
-moduledoc """
Checks the messages that erlmcp's own client sends. Each must be one of the revision that it claims
(`m:erlmcp_test_schema`). That is the revision of its `_meta`, its `initialize` or its header, or
that of the messages before it on the connection. A scripted server (`m:erlmcp_test_peer`) checks
what comes. In a suite without one, `listen/1` looks at all channels of the node.
""".

-export([check/3, listen/1, heard/2]).

-type revision() :: binary() | unknown.

-define(SESSIONS, [~"2025-11-25", ~"2025-06-18", ~"2025-03-26", ~"2024-11-05"]).
-define(WAIT, 30_000).

-doc "Checks a message, or those of a batch. Returns the revision for the messages after them.".
-spec check(term(), Headers :: #{binary() => binary()}, Before :: revision()) -> revision().
check(Messages, Headers, Before) when is_list(Messages) ->
    lists:foldl(fun(Message, Sum) -> check(Message, Headers, Sum) end, Before, Messages);
check(Message, Headers, Before) ->
    Revision = claimed(Message, Headers, Before),
    case Revision of
        unknown -> one_of(?SESSIONS, Message);
        _ -> valid(Message, Revision)
    end,
    Revision.

claimed(#{~"params" := #{~"_meta" := #{~"io.modelcontextprotocol/protocolVersion" := Revision}}},
        _, _) ->
    Revision;
claimed(#{~"method" := ~"initialize", ~"params" := #{~"protocolVersion" := Revision}}, _, _) ->
    Revision;
claimed(_, #{~"mcp-protocol-version" := Revision}, _) ->
    Revision;
claimed(_, _, Before) ->
    Before.

one_of([Revision], Message) ->
    valid(Message, Revision);
one_of([Revision | Revisions], Message) ->
    try
        valid(Message, Revision)
    catch
        error:Reason when element(1, Reason) =:= not_valid -> one_of(Revisions, Message)
    end.

valid(#{~"method" := _, ~"id" := _} = Message, Revision) ->
    erlmcp_test_schema:request(Message, Revision);
valid(#{~"method" := _} = Message, Revision) ->
    erlmcp_test_schema:notification(Message, Revision);
valid(#{~"result" := _}, ~"2026-07-28" = Revision) ->
    error({not_valid, Revision, response, no_such_request});
valid(#{~"result" := Result} = Message, Revision) ->
    ok = erlmcp_test_schema:response(Message, Revision),
    erlmcp_test_schema:answer(Result, Revision);
valid(Message, Revision) ->
    erlmcp_test_schema:error(Message, Revision).

-doc "Begins a case: checks what is sent on all channels of this node from now on.".
-spec listen(list()) -> list().
listen(Config) ->
    Pid = spawn(fun() -> listening(#{}, []) end),
    Session = trace:session_create(?MODULE, Pid, []),
    _ = trace:process(Session, all, true, [call]),
    Channels = [erlmcp_httpc_channel, erlmcp_line_channel],
    ok = code:ensure_modules_loaded(Channels),
    [1 = trace:function(Session, {Channel, send, 2}, true, [local]) || Channel <- Channels],
    [{listening, {Pid, Session}} | Config].

-doc """
Ends the case, which fails if a message was not valid. Messages of these methods may be wrong on
purpose.
""".
-spec heard(list(), [binary()]) -> ok | {fail, term()}.
heard(Config, Exempt) ->
    {Pid, Session} = proplists:get_value(listening, Config),
    Delivered = trace:delivered(Session, all),
    receive {trace_delivered, all, Delivered} -> ok end,
    true = trace:session_destroy(Session),
    Pid ! {heard, self()},
    receive
        {Pid, Failed} ->
            case [Why || {_, Message} = Why <- Failed,
                         not lists:member(maps:get(~"method", Message, none), Exempt)] of
                [] -> ok;
                Wrong -> {fail, {sent, Wrong}}
            end
    after ?WAIT ->
        {fail, nothing_heard}
    end.

listening(Known, Failed) ->
    receive
        {trace, _, call, {_, send, [#{message := Bytes, headers := Headers}, Handle]}} ->
            Named = #{Name => iolist_to_binary(Value) || {Name, Value} <- Headers},
            case iolist_to_binary(Bytes) of
                <<>> ->
                    %% The GET of a session's stream.
                    listening(Known, Failed);
                Text ->
                    Message = json:decode(Text),
                    try check(Message, Named, maps:get(Handle, Known, unknown)) of
                        Revision -> listening(Known#{Handle => Revision}, Failed)
                    catch
                        error:Reason -> listening(Known, [{Reason, Message} | Failed])
                    end
            end;
        {heard, From} ->
            From ! {self(), Failed}
    end.
