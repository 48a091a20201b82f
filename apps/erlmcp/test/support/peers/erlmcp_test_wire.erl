-module(erlmcp_test_wire).
-moduledoc """
Checks what the test clients receive, connection by connection. Each message of a server must be one
of the revision that it is sent in (`m:erlmcp_test_schema`). A result must be one of the method of
its request. The client's process dictionary has what is known of a connection.
""".

-export([sent/3, session/2, unchecked/1, received/2]).

-type connection() :: term().

-define(REVISIONS, [~"2024-11-05", ~"2025-03-26", ~"2025-06-18", ~"2025-11-25", ~"2026-07-28"]).

-doc """
Records that a message was sent, or bytes that need not be one. `Headers` are those of HTTP by their
names in lower case.
""".
-spec sent(connection(), #{binary() => binary()}, binary() | term()) -> ok.
sent(Connection, Headers, Bytes) when is_binary(Bytes) ->
    try json:decode(Bytes) of
        Message -> sent(Connection, Headers, Message)
    catch
        error:_ -> sent(Connection, Headers, none)
    end;
sent(Connection, Headers, Message) ->
    case known(Connection) of
        unchecked ->
            ok;
        #{revision := Default, asked := Before} = Known ->
            Revision = by_headers(Headers, Default),
            Asked = lists:foldl(fun(One, Sum) -> asked(One, Revision, Sum) end, Before,
                                messages(Message)),
            _ = put({?MODULE, Connection}, Known#{revision := Revision, asked := Asked}),
            ok
    end.

known(Connection) ->
    case get({?MODULE, Connection}) of
        undefined -> #{revision => unknown, asked => #{}};
        Known -> Known
    end.

messages(Messages) when is_list(Messages) -> Messages;
messages(Message) -> [Message].

by_headers(#{~"mcp-session-id" := Id} = Headers, Default) ->
    case get({?MODULE, session, Id}) of
        undefined -> by_version(Headers, Default);
        Revision -> Revision
    end;
by_headers(Headers, Default) ->
    by_version(Headers, Default).

%% What names another one, which there is not, is answered by the newest.
by_version(#{~"mcp-protocol-version" := Version}, _) ->
    case lists:member(Version, ?REVISIONS) of
        true -> Version;
        false -> ~"2026-07-28"
    end;
by_version(_, Default) ->
    Default.

asked(#{~"id" := Id, ~"method" := Method} = Message, Default, Asked) when is_binary(Method) ->
    Revision = case Message of
        _ when Method =:= ~"server/discover" -> ~"2026-07-28";
        #{~"params" := #{~"_meta" := #{~"io.modelcontextprotocol/protocolVersion" := _}}} ->
            ~"2026-07-28";
        #{} -> Default
    end,
    Asked#{Id => {Method, Revision}};
asked(_, _, Asked) ->
    Asked.

-doc "Records the revision of an HTTP session that the calling process goes on with.".
-spec session(Id :: binary(), Revision :: binary()) -> ok.
session(Id, Revision) ->
    _ = put({?MODULE, session, Id}, Revision),
    ok.

-doc "Ends the checks of a connection, since what is sent on it is not of the protocol.".
-spec unchecked(connection()) -> ok.
unchecked(Connection) ->
    _ = put({?MODULE, Connection}, unchecked),
    ok.

-doc "Checks one received message, or several, and returns what was given.".
-spec received(connection(), term()) -> term().
received(Connection, Messages) when is_list(Messages) ->
    [received(Connection, Message) || Message <- Messages];
received(Connection, Message) ->
    case known(Connection) of
        unchecked -> ok;
        Known -> ok = check(Message, Connection, Known)
    end,
    Message.

check(#{~"method" := _, ~"id" := _} = Message, _, Known) ->
    one_of(revisions(Known), fun(Of) -> erlmcp_test_schema:request(Message, Of) end);
check(#{~"method" := _} = Message, _, Known) ->
    one_of(revisions(Known), fun(Of) -> erlmcp_test_schema:notification(Message, Of) end);
check(#{~"id" := Id} = Message, Connection, #{asked := Asked} = Known) when
    is_map_key(Id, Asked)
->
    case {map_get(Id, Asked), Message} of
        {{~"initialize", _}, #{~"result" := #{~"protocolVersion" := Agreed}}} ->
            _ = put({?MODULE, Connection}, Known#{revision := Agreed}),
            erlmcp_test_schema:result(Message, ~"initialize", Agreed);
        {{Method, Of}, #{~"result" := _}} ->
            one_of(either(Of), fun(One) -> erlmcp_test_schema:result(Message, Method, One) end);
        {{_, Of}, _} ->
            one_of(either(Of), fun(One) -> erlmcp_test_schema:error(Message, One) end)
    end;
check(#{~"result" := _} = Message, _, Known) ->
    %% To what was written byte by byte.
    one_of(revisions(Known), fun(Of) -> erlmcp_test_schema:response(Message, Of) end);
check(Message, _, Known) ->
    one_of(revisions(Known), fun(Of) -> erlmcp_test_schema:error(Message, Of) end).

%% A connection may have requests of several revisions.
revisions(#{asked := Asked, revision := Revision}) ->
    case lists:usort([Of || _ := {_, Of} <- Asked, Of =/= unknown]) of
        [] -> either(Revision);
        Known -> Known
    end.

either(unknown) -> ?REVISIONS;
either(Revision) -> [Revision].

one_of([Revision], Check) ->
    Check(Revision);
one_of([Revision | Revisions], Check) ->
    try
        Check(Revision)
    catch
        error:Reason when element(1, Reason) =:= not_valid -> one_of(Revisions, Check)
    end.
