-module(erlmcp_test_sent).
-moduledoc """
What erlmcp's own client sends: each message must be one of the revision that it claims
(`m:erlmcp_test_schema`), which is that of its `_meta`, of its `initialize`, of its header, or of
what was sent before it on the connection. A suite that has no scripted server (`m:erlmcp_test_peer`)
to look at what comes has all channels of the node listened at.
""".

-export([check/3, listen/0, heard/2]).

-type revision() :: binary() | unknown.
-type listening() :: {pid(), trace:session()}.

-define(SESSIONS, [~"2025-11-25", ~"2025-06-18", ~"2025-03-26", ~"2024-11-05"]).
-define(WAIT, 5000).

-doc "Checks a message, or those of a batch; gives the revision for those after it.".
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

-doc "Begins to check what is sent on all channels of this node.".
-spec listen() -> listening().
listen() ->
    Pid = spawn(fun() -> listening(#{}, 0, []) end),
    Session = trace:session_create(?MODULE, Pid, []),
    _ = trace:process(Session, all, true, [call]),
    Channels = [erlmcp_http_channel, erlmcp_line_channel],
    ok = code:ensure_modules_loaded(Channels),
    [1 = trace:function(Session, {Channel, send, 2}, true, [local]) || Channel <- Channels],
    {Pid, Session}.

-doc """
Ends that; gives how many messages there were, and fails if one was not valid, or none came. What
goes wrong on purpose has one of these methods.
""".
-spec heard(listening(), [binary()]) -> pos_integer().
heard({Pid, Session}, Exempt) ->
    Delivered = trace:delivered(Session, all),
    receive {trace_delivered, all, Delivered} -> ok end,
    true = trace:session_destroy(Session),
    Pid ! {heard, self()},
    receive
        {Pid, Count, Failed} when Count > 0 ->
            case [Why || {_, Message} = Why <- Failed,
                         not lists:member(maps:get(~"method", Message, none), Exempt)] of
                [] -> Count;
                Wrong -> error({sent, Wrong})
            end
    after ?WAIT ->
        error(nothing_sent)
    end.

listening(Known, Count, Failed) ->
    receive
        {trace, _, call, {_, send, [#{message := Bytes, headers := Headers}, Handle]}} ->
            Named = #{Name => iolist_to_binary(Value) || {Name, Value} <- Headers},
            case iolist_to_binary(Bytes) of
                <<>> ->
                    %% The GET of a session's stream.
                    listening(Known, Count, Failed);
                Text ->
                    Message = json:decode(Text),
                    try check(Message, Named, maps:get(Handle, Known, unknown)) of
                        Revision -> listening(Known#{Handle => Revision}, Count + 1, Failed)
                    catch
                        error:Reason -> listening(Known, Count + 1, [{Reason, Message} | Failed])
                    end
            end;
        {heard, From} ->
            From ! {self(), Count, Failed}
    end.
