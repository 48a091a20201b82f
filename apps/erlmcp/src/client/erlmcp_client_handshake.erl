-module(erlmcp_client_handshake).
-moduledoc """
The negotiation with a server, in a process of its own. With `auto` as the option `era`,
`server/discover` is sent first, and then `initialize` if the server is an older one. If the URL
accepts no `initialize`, it is sent again on a stream of HTTP+SSE. With the option `transport =>
sse` that stream is opened first. The node remembers the eras of HTTP servers, so that later clients
begin with the right request.

Sources: specification 2026-07-28, "Versioning and Compatibility", "Streamable HTTP / Backward
Compatibility", "stdio / Backward Compatibility"; 2025-11-25, "Lifecycle", "Transports / Backwards
Compatibility".

Internal.
""".

-export([run/3, abandon/3]).

%% Milliseconds after which a server on a line transport that has not answered `server/discover`
%% counts as an older one.
-define(PROBE, 5000).
%% The most bytes of a session's id, which is sent with every request.
-define(SESSION_BYTES, 4096).
%% Milliseconds in which the server may end a session that nobody will use.
-define(LEAVE, 2_000).

-doc """
Negotiates with the server of a client, and returns the outcome, or the reason of the failure. Each
request takes at most the client's `timeout`. `Epoch` and `Generation` are the numbers of this
negotiation and of the channel's connection, as in `t:erlmcp_client_connection:live/0`. With the
option `era => auto`, the first request is `initialize` if `Guess`, or the era that the node
remembers for the server, is `session`. Otherwise it is `server/discover`, except on HTTP+SSE.
""".
-spec run(erlmcp_client_connection:client(),
          {Epoch :: pos_integer(), Generation :: non_neg_integer()},
          Guess :: erlmcp_revision:era() | unknown) ->
    {ok, erlmcp_client_connection:live()} | {error, term()}.
run(#{settings := #{era := Era}} = Client, Epoch, Guess) ->
    maybe
        {ok, Opened} ?= opened(Client, Epoch),
        {ok, Live} ?= found(Era, Client, Opened, Guess),
        ok = remember(Era, Live, Client),
        %% It is kept as long as the client lives.
        {ok, erlmcp_client_mailbox:own(Live)}
    end.

-doc """
Unlinks the process of a negotiation from the calling process, and kills it. Counts the request that
the negotiation waits for as failed with `Reason`. Does nothing for `undefined`.
""".
-spec abandon(pid() | undefined, erlmcp_client:reason(), erlmcp_client_connection:client()) -> ok.
abandon(undefined, _, _) ->
    ok;
abandon(Pid, Reason, #{server := Server}) ->
    unlink(Pid),
    Waits = process_info(Pid, {dictionary, ?MODULE}),
    exit(Pid, kill),
    case Waits of
        {_, {Request, Revision, Began}} ->
            erlmcp_client_meter:unsent(Request, {Server, Revision}, Began, Reason);
        _ ->
            ok
    end.

%% With the option `transport => sse` the server is known to be one of HTTP+SSE, so its stream is
%% opened first.
opened(#{channel := {Transport, Handle}, settings := #{options := #{transport := sse}}} = Client,
       {Epoch, 0}) ->
    maybe
        {ok, Generation} ?= Transport:fall_back(Handle, deadline(Client)),
        {ok, {Epoch, Generation}}
    end;
opened(_, Epoch) ->
    {ok, Epoch}.

%% HTTP+SSE has sessions only.
found(auto, #{settings := #{rules := http}} = Client, {_, Generation} = Epoch, _) when
    Generation > 0
->
    session(erlmcp_revision:latest(session), Client, Epoch);
found(auto, Client, Epoch, Guess) ->
    case lists:member(session, [Guess, erlmcp_client_table:remembered(Client)]) of
        true ->
            case session(erlmcp_revision:latest(session), Client, Epoch) of
                {ok, _} = Found -> Found;
                {error, {connect, _}} = Error -> Error;
                {error, Reason} = Error ->
                    case is_refused_login(Reason, Client) of
                        true -> Error;
                        false -> probe(Client, Epoch)
                    end
            end;
        false ->
            probe(Client, Epoch)
    end;
found(stateless, Client, Epoch, _) ->
    discovered(discover(Client, Epoch, deadline(Client)), Client, Epoch, never);
found(session, Client, Epoch, _) ->
    session(erlmcp_revision:latest(session), Client, Epoch);
found(Revision, Client, Epoch, Guess) ->
    case erlmcp_revision:era(Revision) of
        stateless -> found(stateless, Client, Epoch, Guess);
        session -> session(Revision, Client, Epoch)
    end.

%% The user has just been asked to log in. Without a login, a 403 may be of a gateway that does not
%% let the request pass, and one without a challenge asks for no login.
is_refused_login({unauthorized, {http, 403, Fields, _}}, _) when
    not is_map_key(~"www-authenticate", Fields)
->
    false;
is_refused_login({unauthorized, _}, #{settings := #{options := #{auth := _}}}) -> true;
is_refused_login(_, _) -> false.

probe(#{settings := #{rules := Rules}} = Client, Epoch) ->
    %% On HTTP, silence does not tell the era. On a line transport, some older servers do not answer
    %% an unknown request.
    Deadline = case Rules of
        http -> deadline(Client);
        line -> min(deadline(Client), erlmcp_clock:now_ms() + ?PROBE)
    end,
    discovered(discover(Client, Epoch, Deadline), Client, Epoch, fall_back).

discover(Client, Epoch, Deadline) ->
    Live = unknown(erlmcp_revision:latest(stateless), Epoch),
    request({~"server/discover", #{}}, Client, Live, Deadline).

discovered({ok, #{~"supportedVersions" := Versions} = Result, _}, Client, Epoch, _) when
    is_list(Versions)
->
    Revision = erlmcp_revision:latest(stateless),
    case lists:member(erlmcp_revision:name(Revision), Versions) of
        true -> {ok, with_server(unknown(Revision, Epoch), Result)};
        false -> offered(Versions, Client, Epoch)
    end;
discovered({error, {rpc, #{code := -32022, data := #{~"supported" := [_ | _] = Versions}}}},
           Client, Epoch, Otherwise) ->
    %% A server may list the revision that it has just refused. Then the request is sent once more.
    Revision = erlmcp_revision:latest(stateless),
    case lists:member(erlmcp_revision:name(Revision), Versions) of
        true when Otherwise =/= once ->
            discovered(discover(Client, Epoch, deadline(Client)), Client, Epoch, once);
        true ->
            unsupported(Versions);
        false ->
            offered(Versions, Client, Epoch)
    end;
discovered({error, {rpc, #{code := Code}}} = Error, _, _, _) when
    Code =:= -32020; Code =:= -32021
->
    Error;
discovered({error, Reason} = Error, #{settings := #{rules := Rules}} = Client, Epoch, fall_back) ->
    case {is_old(Reason), Reason, Rules} of
        {true, _, _} -> session(erlmcp_revision:latest(session), Client, Epoch);
        %% On HTTP, silence means that the server has failed.
        {false, {timeout, _}, line} -> after_silence(Client, Epoch);
        _ -> Error
    end;
discovered({error, _} = Error, _, _, _) ->
    Error;
discovered({ok, _, _}, Client, Epoch, fall_back) ->
    session(erlmcp_revision:latest(session), Client, Epoch);
discovered({ok, _, _}, _, _, _) ->
    {error, {protocol, ~"result of server/discover: supportedVersions: expected an array"}}.

%% Returns `true` for an error with which older servers answer a request that they do not know.
is_old({rpc, _}) -> true;
is_old({http, Status, _, _}) -> Status >= 400 andalso Status < 500;
is_old({protocol, _}) -> true;
is_old(session_lost) -> true;
is_old(_) -> false.

%% A server of 2026-07-28 that was only slow lists its revisions when it refuses `initialize`.
after_silence(Client, Epoch) ->
    case session(erlmcp_revision:latest(session), Client, Epoch) of
        {error, {rpc, #{code := -32022}}} = Unsupported ->
            discovered(Unsupported, Client, Epoch, never);
        Outcome ->
            Outcome
    end.

%% A server whose stateless revisions this client does not have may also have a revision with
%% sessions.
offered(Versions, #{settings := #{era := auto}} = Client, Epoch) ->
    Ours = [Revision || Revision <- erlmcp_revision:all(),
                        erlmcp_revision:era(Revision) =:= session,
                        lists:member(erlmcp_revision:name(Revision), Versions)],
    case Ours of
        [Revision | _] -> session(Revision, Client, Epoch);
        [] -> unsupported(Versions)
    end;
offered(Versions, _, _) ->
    unsupported(Versions).

unsupported(Versions) ->
    {error, {unsupported_version, [Version || Version <- Versions, is_binary(Version)]}}.

session(Revision, Client, Epoch) ->
    case initialized(Revision, Client, Epoch) of
        {error, {http, Status, _, _}} = Error when Status =:= 400; Status =:= 404; Status =:= 405 ->
            fallen_back(Revision, Client, Epoch, Error);
        Outcome ->
            Outcome
    end.

%% "Issue a GET request to the server URL, expecting that this will open an SSE stream and return an
%% `endpoint` event as the first event."
fallen_back(Revision, #{channel := {Transport, Handle}, settings := #{rules := http}} = Client,
            {Epoch, 0}, Error) ->
    case Transport:fall_back(Handle, deadline(Client)) of
        {ok, Generation} -> initialized(Revision, Client, {Epoch, Generation});
        {error, _} -> Error
    end;
fallen_back(_, _, _, Error) ->
    Error.

initialized(Revision, #{identity := Identity} = Client, Epoch) ->
    Params = erlmcp_client_request:initialize(Revision, Identity),
    Deadline = deadline(Client),
    maybe
        {ok, Result, Headers} ?=
            request({~"initialize", Params}, Client, unknown(Revision, Epoch), Deadline),
        Session = maps:get(~"mcp-session-id", Headers, none),
        true ?= Session =:= none orelse is_visible(Session),
        begun(Session, Result, Client, Epoch, Deadline)
    else
        false ->
            {error, {protocol, ~"Mcp-Session-Id: expected up to 4096 visible ASCII characters"}};
        {error, _} = Error -> Error
    end.

begun(Session, Result, Client, Epoch, Deadline) ->
    maybe
        {ok, Agreed} ?= agreed(Result, Client),
        Live = with_server((unknown(Agreed, Epoch))#{session := Session}, Result),
        ok ?= erlmcp_client_one_way:notify(~"notifications/initialized", #{}, Client, Live),
        ok ?= log_level(Client, Live, Deadline),
        {ok, Live}
    else
        {error, _} = Error ->
            ok = left(Session, Result, Client),
            Error
    end.

%% The next attempt opens another session, so the server need not keep this one.
left(Session, #{~"protocolVersion" := Version}, #{channel := {Transport, Handle}}) when
    is_binary(Version)
->
    Headers = case erlmcp_revision:parse(Version) of
        {ok, Revision} -> erlmcp_request_header:version(Revision);
        _ -> []
    end,
    Transport:leave(Session, Headers, erlmcp_clock:now_ms() + ?LEAVE, Handle);
left(_, _, _) ->
    ok.

%% The server may choose another revision than the one that was asked for, unless the client speaks
%% only that one.
agreed(#{~"protocolVersion" := Version}, #{settings := #{era := Era}}) when is_binary(Version) ->
    case erlmcp_revision:parse(Version) of
        {ok, Revision} when Revision =< '2025-11-25',
                            Era =:= auto orelse Era =:= session orelse Era =:= Revision ->
            {ok, Revision};
        _ ->
            unsupported([Version])
    end;
agreed(_, _) ->
    {error, {protocol, ~"result of initialize: protocolVersion: expected a string"}}.

is_visible(Session) ->
    Session =/= ~"" andalso byte_size(Session) =< ?SESSION_BYTES
        andalso << <<C>> || <<C>> <= Session, C >= 16#21, C =< 16#7e >> =:= Session.

%% A session has one log level for all of its calls, which a request sets.
log_level(#{settings := #{log_level := Level}} = Client, #{capabilities := Offered} = Live,
          Deadline) when is_map_key(~"logging", Offered) ->
    case request({~"logging/setLevel", #{~"level" => Level}}, Client, Live, Deadline) of
        {ok, _, _} -> ok;
        {error, _} = Error -> Error
    end;
log_level(_, _, _) ->
    ok.

request(Request, Client, Live, Deadline) ->
    Watch = #{deadline => Deadline, last_deadline => Deadline,
              timeout => max(1, Deadline - erlmcp_clock:now_ms()),
              user_time => erlmcp_client_questions:user_time(Client)},
    %% For `abandon/3`.
    #{revision := Revision} = Live,
    _ = put(?MODULE, {Request, Revision, erlang:monotonic_time(nanosecond)}),
    Outcome = erlmcp_client_exchange:run(Request, #{}, {Client, Live}, Watch),
    _ = erase(?MODULE),
    Outcome.

unknown(Revision, {Epoch, Generation}) ->
    #{epoch => Epoch, generation => Generation, revision => Revision, session => none,
      capabilities => #{}, server_info => #{}}.

with_server(Live, Result) ->
    Instructions = maps:from_list([{instructions, Text}
                                   || #{~"instructions" := Text} <- [Result], is_binary(Text)]),
    maps:merge(Live#{capabilities := object(~"capabilities", Result),
                     server_info := server_info(Result)}, Instructions).

object(Key, Result) ->
    case Result of
        #{Key := #{} = Object} -> Object;
        #{} -> #{}
    end.

%% A result of 2026-07-28 names the server in its `_meta`.
server_info(#{~"serverInfo" := #{} = Info}) -> Info;
server_info(#{~"_meta" := #{~"io.modelcontextprotocol/serverInfo" := #{} = Info}}) -> Info;
server_info(_) -> #{}.

remember(auto, #{revision := Revision}, Client) ->
    erlmcp_client_table:remember(Client, erlmcp_revision:era(Revision));
remember(_, _, _) ->
    ok.

deadline(#{settings := #{timeout := Timeout}}) ->
    erlmcp_clock:now_ms() + Timeout.
