-module(spec_lifecycle_SUITE).
-moduledoc """
How a connection begins, on TCP: `initialize` of the older revisions (pages "Lifecycle" and "Ping"),
and the versions of 2026-07-28, "Versioning and Compatibility".
""".

-export([suite/0, all/0]).
-export([supported_versions_are_answered_with_themselves/1,
         other_versions_are_answered_with_the_latest/1, initialize_says_who_serves/1,
         identity_has_the_fields_of_the_revision/1, capabilities_are_what_is_served/1,
         clients_may_say_more/1, bad_initialize_is_invalid_params/1,
         failed_initialize_can_be_repeated/1, another_initialize_opens_the_session_anew/1,
         another_initialize_ends_what_ran/1, another_initialize_forgets_subscriptions/1,
         another_initialize_lists_no_tasks_of_before/1,
         refused_initialize_leaves_the_session/1,
         ping_needs_no_initialize/1, requests_before_initialize_are_refused/1,
         requests_before_initialized_are_served/1, initialized_alone_opens_nothing/1,
         each_revision_has_its_methods/1, sessions_are_their_connections/1,
         discover_says_what_is_supported/1, modern_versions_are_checked/1,
         modern_fields_are_required/1, missing_resources_have_the_revisions_code/1]).

-import(erlmcp_test_line, [serve/1, connect/1, send/2, recv/1, recv_many/2, rest/1,
                           is_quiet/1, ask/4, ask_stateless/4, initialize/2, initialize_request/2,
                           request/3, stateless/3, notification/2, meta/0, result/1, code/1,
                           echo_tool/0, waiting_tool/1, await_call/0]).

-define(SESSIONS, [~"2024-11-05", ~"2025-03-26", ~"2025-06-18", ~"2025-11-25"]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [supported_versions_are_answered_with_themselves, other_versions_are_answered_with_the_latest,
     initialize_says_who_serves, identity_has_the_fields_of_the_revision,
     capabilities_are_what_is_served, clients_may_say_more, bad_initialize_is_invalid_params,
     failed_initialize_can_be_repeated, another_initialize_opens_the_session_anew,
     another_initialize_ends_what_ran, another_initialize_forgets_subscriptions,
     another_initialize_lists_no_tasks_of_before,
     refused_initialize_leaves_the_session, ping_needs_no_initialize,
     requests_before_initialize_are_refused, requests_before_initialized_are_served,
     initialized_alone_opens_nothing, each_revision_has_its_methods, sessions_are_their_connections,
     discover_says_what_is_supported, modern_versions_are_checked, modern_fields_are_required,
     missing_resources_have_the_revisions_code].

%% "If the server supports the requested protocol version, it MUST respond with the same version."
supported_versions_are_answered_with_themselves(_) ->
    Server = serve(#{}),
    [#{~"protocolVersion" := Version} = initialize(connect(Server), Version)
     || Version <- ?SESSIONS].

%% "Otherwise, the server MUST respond with another protocol version it supports. This SHOULD be
%% the latest version supported by the server." 2026-07-28 has no sessions, so it is none of them.
other_versions_are_answered_with_the_latest(_) ->
    Server = serve(#{}),
    [{Version, #{~"protocolVersion" := ~"2025-11-25"}} =
         {Version, initialize(connect(Server), Version)}
     || Version <- [~"2026-07-28", ~"1.0", ~"", ~"2024-11-5", ~"2025-03-26 ", ~"2025-06-18\n",
                    ~"9999-12-31", ~"latest", ~"ünïcode", binary:copy(~"2025-06-18", 1000)]].

%% "The server MUST respond with its own capabilities and information"
initialize_says_who_serves(_) ->
    Socket = connect(serve(#{name => ~"me", version => ~"4.5.6", instructions => ~"Do."})),
    #{~"serverInfo" := #{~"name" := ~"me", ~"version" := ~"4.5.6"}, ~"capabilities" := #{},
      ~"instructions" := ~"Do."} = initialize(Socket, ~"2025-11-25"),
    Without = connect(serve(#{})),
    false = is_map_key(~"instructions", initialize(Without, ~"2025-11-25")).

%% Key Changes: `title` came with 2025-06-18; `description`, `websiteUrl` and `icons` with
%% 2025-11-25. A client is sent what its revision has.
identity_has_the_fields_of_the_revision(_) ->
    Server = serve(#{title => ~"T", description => ~"D", website_url => ~"https://example.com",
                     icons => [#{src => ~"https://example.com/i.png"}]}),
    Old = [~"name", ~"version"],
    [{Version, Fields} = {Version, fields(initialize(connect(Server), Version))}
     || {Version, Fields} <- [
            {~"2024-11-05", Old}, {~"2025-03-26", Old},
            {~"2025-06-18", [~"name", ~"title", ~"version"]},
            {~"2025-11-25", [~"description", ~"icons", ~"name", ~"title", ~"version",
                             ~"websiteUrl"]}]].

fields(#{~"serverInfo" := Info}) -> lists:sort(maps:keys(Info)).

%% Both parties MUST "Only use capabilities that were successfully negotiated": what is declared is
%% served, and nothing that is not.
capabilities_are_what_is_served(_) ->
    Socket = connect(serve(#{})),
    #{~"capabilities" := Declared} = initialize(Socket, ~"2025-11-25"),
    [{Method, IsDeclared} = {Method, -32601 =/= code_of(ask(Socket, Method, Method, Params))}
     || {Path, Method, Params} <- methods(), IsDeclared <- [is_declared(Path, Declared)]],
    [true = is_declared([Capability], Declared)
     || Capability <- [~"tools", ~"resources", ~"prompts", ~"logging"]],
    %% A client's methods are none of a server's.
    [-32601 = code(ask(Socket, Method, Method, #{}))
     || Method <- [~"sampling/createMessage", ~"roots/list", ~"elicitation/create"]].

%% What a server that declares a capability serves.
methods() ->
    [{[~"tools"], ~"tools/list", #{}}, {[~"tools"], ~"tools/call", #{}},
     {[~"prompts"], ~"prompts/list", #{}}, {[~"prompts"], ~"prompts/get", #{}},
     {[~"resources"], ~"resources/list", #{}}, {[~"resources"], ~"resources/read", #{}},
     {[~"resources"], ~"resources/templates/list", #{}},
     {[~"resources", ~"subscribe"], ~"resources/subscribe", #{~"uri" => ~"a://b"}},
     {[~"resources", ~"subscribe"], ~"resources/unsubscribe", #{~"uri" => ~"a://b"}},
     {[~"logging"], ~"logging/setLevel", #{~"level" => ~"info"}},
     {[~"completions"], ~"completion/complete", #{}}, {[~"tasks"], ~"tasks/get", #{}},
     {[~"tasks", ~"list"], ~"tasks/list", #{}}].

is_declared([], Value) -> Value =/= false;
is_declared([Key | Keys], #{} = Declared) when is_map_key(Key, Declared) ->
    is_declared(Keys, maps:get(Key, Declared));
is_declared(_, _) -> false.

code_of(#{~"error" := #{~"code" := Code}}) -> Code;
code_of(#{~"result" := _}) -> none.

%% What the revision's schema does not have is let through.
clients_may_say_more(_) ->
    Server = serve(#{}),
    Identity = #{~"name" => ~"me", ~"version" => ~"1"},
    [begin
         Socket = connect(Server),
         #{~"result" := #{~"protocolVersion" := ~"2025-06-18"}} =
             ask(Socket, 1, ~"initialize", Params),
         #{~"result" := _} = ask(Socket, 2, ~"tools/list", #{})
     end || More <- [#{}, #{~"_meta" => #{~"progressToken" => 1}, ~"unknown" => [1]},
                     #{~"clientInfo" => Identity#{~"icons" => 1}},
                     #{~"capabilities" => #{~"tasks" => 1, ~"a" => null}}],
            Params <- [maps:merge(#{~"protocolVersion" => ~"2025-06-18", ~"capabilities" => #{},
                                    ~"clientInfo" => Identity}, More)]].

%% "In the initialize request, the client MUST send a protocol version it supports."
bad_initialize_is_invalid_params(_) ->
    Socket = connect(serve(#{})),
    Whole = #{~"protocolVersion" => ~"2025-11-25", ~"capabilities" => #{},
              ~"clientInfo" => #{~"name" => ~"me", ~"version" => ~"1"}},
    [{Params, -32602} = {Params, code(ask(Socket, 1, ~"initialize", Params))}
     || Params <- [#{} | [maps:remove(Name, Whole) || Name <- maps:keys(Whole)]]
            ++ [maps:merge(Whole, Wrong)
                || Wrong <- [#{~"protocolVersion" => 1}, #{~"protocolVersion" => null},
                             #{~"protocolVersion" => [~"2025-11-25"]}, #{~"capabilities" => []},
                             #{~"clientInfo" => ~"me"}, #{~"clientInfo" => #{~"name" => ~"me"}}]]],
    -32600 = code(ask(Socket, 2, ~"tools/list", #{})).

%% A client that mended its request is not locked out.
failed_initialize_can_be_repeated(_) ->
    Socket = connect(serve(#{})),
    -32602 = code(ask(Socket, 1, ~"initialize", #{})),
    #{~"protocolVersion" := ~"2025-03-26"} = initialize(Socket, ~"2025-03-26"),
    #{~"result" := _} = ask(Socket, 2, ~"tools/list", #{}).

%% Clients that share a connection behind a bridge each begin with theirs: it opens the session
%% anew.
another_initialize_opens_the_session_anew(_) ->
    Test = self(),
    Tells = #{name => ~"tells", handler => fun(_, Context) ->
        Test ! maps:with([client_info, client_capabilities, log_level, revision], Context),
        ~"ok"
    end},
    Socket = connect(serve(#{tools => [Tells]})),
    send(Socket, initialize_request(1, ~"2025-11-25")),
    #{~"id" := 1, ~"result" := #{~"protocolVersion" := ~"2025-11-25"}} = recv(Socket),
    #{} = result(ask(Socket, 2, ~"logging/setLevel", #{~"level" => ~"emergency"})),
    #{~"result" := _} = ask(Socket, 3, ~"tools/call", #{~"name" => ~"tells"}),
    First = receive #{} = Told -> Told end,
    Other = initialize_request(1, ~"2025-06-18"),
    Params = #{~"capabilities" => #{~"roots" => #{}},
               ~"clientInfo" => #{~"name" => ~"other", ~"version" => ~"2"}},
    send(Socket, Other#{~"params" := maps:merge(maps:get(~"params", Other), Params)}),
    #{~"id" := 1, ~"result" := #{~"protocolVersion" := ~"2025-06-18"}} = recv(Socket),
    #{~"result" := _} = ask(Socket, 3, ~"tools/call", #{~"name" => ~"tells"}),
    #{client_info := #{~"name" := ~"other"}, client_capabilities := #{~"roots" := #{}},
      revision := '2025-06-18', log_level := Level} = receive #{} = Again -> Again end,
    #{client_info := #{~"name" := ~"line"}, log_level := Before} = First,
    true = Level =/= Before,
    [] = rest(Socket).

%% What ran in the session before, or waited, ends as with a connection: nothing is sent for it. Its
%% ids are free. The requests of 2026-07-28 belong to no session.
another_initialize_ends_what_ran(_) ->
    Socket = connect(serve(#{tools => [waiting_tool(~"wait")],
                             limits => #{calls_per_connection => 2}})),
    Wait = #{~"name" => ~"wait"},
    _ = initialize(Socket, ~"2025-11-25"),
    send(Socket, request(1, ~"tools/call", Wait)),
    Ended = monitor(process, await_call()),
    send(Socket, stateless(2, ~"tools/call", Wait)),
    Stateless = await_call(),
    [send(Socket, Waiting) || Waiting <- [request(3, ~"tools/call", Wait),
                                          stateless(4, ~"tools/call", Wait)]],
    _ = initialize(Socket, ~"2025-11-25"),
    receive {'DOWN', Ended, process, _, killed} -> ok end,
    true = is_quiet(Socket),
    Queued = await_call(),
    [Call ! {answer, ~"kept"} || Call <- [Stateless, Queued]],
    [2, 4] = lists:sort([Id || #{~"id" := Id, ~"result" := _} <- recv_many(Socket, 2)]),
    send(Socket, request(1, ~"tools/call", Wait)),
    await_call() ! {answer, ~"again"},
    #{~"id" := 1, ~"result" := _} = recv(Socket),
    [] = rest(Socket).

%% Nobody is told what somebody else wanted to hear; a subscription of 2026-07-28 stays.
another_initialize_forgets_subscriptions(_) ->
    Uri = ~"test://watched",
    Server = serve(#{resources => [#{uri => Uri, name => ~"watched",
                                     handler => fun(_, _) -> ~"text" end}]}),
    Socket = connect(Server),
    _ = initialize(Socket, ~"2025-11-25"),
    #{} = result(ask(Socket, 1, ~"resources/subscribe", #{~"uri" => Uri})),
    Updated = ~"notifications/resources/updated",
    ok = erlmcp:resource_updated(Server, Uri),
    #{~"method" := Updated} = recv(Socket),
    send(Socket, stateless(~"kept", ~"subscriptions/listen",
                           #{~"notifications" => #{~"resourceSubscriptions" => [Uri]}})),
    #{~"method" := ~"notifications/subscriptions/acknowledged"} = recv(Socket),
    _ = initialize(Socket, ~"2025-11-25"),
    true = is_quiet(Socket),
    ok = erlmcp:resource_updated(Server, Uri),
    #{~"method" := Updated, ~"params" := #{~"_meta" := _}} = recv(Socket),
    true = is_quiet(Socket),
    %% The lists are told of as before, once.
    ok = erlmcp:remove(Server, tool, ~"echo"),
    #{~"method" := ~"notifications/tools/list_changed"} = recv(Socket),
    true = is_quiet(Socket),
    #{} = result(ask(Socket, 2, ~"resources/subscribe", #{~"uri" => Uri})),
    ok = erlmcp:resource_updated(Server, Uri),
    [#{~"method" := Updated}, #{~"method" := Updated}] = recv_many(Socket, 2).

%% Nobody sees what somebody else had the server do. It goes on, and who knows its id may have it.
another_initialize_lists_no_tasks_of_before(_) ->
    Socket = connect(serve(#{tools => [(waiting_tool(~"wait"))#{task => optional}]})),
    Wait = #{~"name" => ~"wait", ~"task" => #{}},
    Made = fun(Id) ->
        #{~"task" := #{~"taskId" := Task}} = result(ask(Socket, Id, ~"tools/call", Wait)),
        {Task, await_call()}
    end,
    Listed = fun(Id) ->
        #{~"tasks" := Tasks} = result(ask(Socket, Id, ~"tasks/list", #{})),
        [Task || #{~"taskId" := Task} <- Tasks]
    end,
    _ = initialize(Socket, ~"2025-11-25"),
    {First, Call} = Made(1),
    [First] = Listed(2),
    _ = initialize(Socket, ~"2025-11-25"),
    [] = Listed(3),
    {Second, Other} = Made(4),
    [Second] = Listed(5),
    Call ! {answer, ~"done"},
    #{~"content" := _} = result(ask(Socket, 6, ~"tasks/result", #{~"taskId" => First})),
    [Second] = Listed(7),
    Other ! {answer, ~"done"},
    %% Its session is told of a task's end; that of the first went to nobody.
    #{~"method" := ~"notifications/tasks/status", ~"params" := #{~"taskId" := Second}} =
        recv(Socket).

%% One that is refused changes nothing.
refused_initialize_leaves_the_session(_) ->
    Socket = connect(serve(#{tools => [waiting_tool(~"wait")]})),
    _ = initialize(Socket, ~"2024-11-05"),
    send(Socket, request(1, ~"tools/call", #{~"name" => ~"wait"})),
    Call = await_call(),
    -32602 = code(ask(Socket, 2, ~"initialize", #{~"protocolVersion" => 1})),
    -32601 = code(ask_stateless(Socket, 3, ~"initialize", #{})),
    Call ! {answer, ~"kept"},
    #{~"id" := 1, ~"result" := _} = recv(Socket),
    -32002 = code(ask(Socket, 4, ~"resources/read", #{~"uri" => ~"a://b"})).

%% Ping: "either party" may ask at any time, and "The receiver MUST respond promptly with an empty
%% response".
ping_needs_no_initialize(_) ->
    Socket = connect(serve(#{})),
    send(Socket, ~'{"jsonrpc":"2.0","id":"123","method":"ping"}'),
    #{~"jsonrpc" := ~"2.0", ~"id" := ~"123", ~"result" := Empty} = recv(Socket),
    Empty = #{},
    _ = initialize(Socket, ~"2025-11-25"),
    true = is_quiet(Socket).

%% "The client SHOULD NOT send requests other than pings before the server has responded to the
%% initialize request." One that does is told what to do, with its id, and can still do it.
requests_before_initialize_are_refused(_) ->
    Socket = connect(serve(#{})),
    [begin
         #{~"error" := #{~"code" := -32600, ~"message" := Message,
                         ~"data" := #{~"refusal" := 1076, ~"name" := ~"server_uninitialized"}}} =
             ask(Socket, Method, Method, #{~"name" => ~"echo"}),
         {_, _} = binary:match(Message, ~"initialize")
     end || Method <- [~"tools/list", ~"tools/call", ~"resources/list", ~"prompts/get",
                       ~"logging/setLevel", ~"no/such"]],
    _ = initialize(Socket, ~"2025-11-25"),
    #{~"result" := _} = ask(Socket, 1, ~"tools/list", #{}).

%% Between `initialize` and `initialized` the server waits for nothing: real clients send both with
%% their first request.
requests_before_initialized_are_served(_) ->
    Socket = connect(serve(#{})),
    send(Socket, initialize_request(1, ~"2025-11-25")),
    send(Socket, request(2, ~"tools/list", #{})),
    send(Socket, notification(~"notifications/initialized", #{})),
    [#{~"id" := 1, ~"result" := _}, #{~"id" := 2, ~"result" := _}] = rest(Socket).

%% Only the request can open a session: a notification has no answer to agree on a version with.
initialized_alone_opens_nothing(_) ->
    Socket = connect(serve(#{})),
    send(Socket, notification(~"notifications/initialized", #{})),
    -32600 = code(ask(Socket, 1, ~"tools/list", #{})).

%% Both parties MUST "Respect the negotiated protocol version": a method of another revision is not
%% found.
each_revision_has_its_methods(_) ->
    Server = serve(#{}),
    Socket = connect(Server),
    [#{~"error" := #{~"code" := -32601}} = ask_stateless(Socket, Method, Method, #{})
     || Method <- [~"initialize", ~"ping", ~"logging/setLevel", ~"tasks/list", ~"", ~"TOOLS/LIST",
                   ~"tools/list ", ~"notifications/initialized"]],
    [begin
         Session = connect(Server),
         _ = initialize(Session, Version),
         [#{~"error" := #{~"code" := -32601}} = ask(Session, Method, Method, #{})
          || Method <- [~"", ~"Ping", ~"tools/list/", ~"rpc.discover", ~"notifications/initialized",
                        ~"subscriptions/listen"]]
     end || Version <- ?SESSIONS].

%% "An initialize request selects legacy semantics, scoped to the stdio process (stdio)": here to
%% the connection.
sessions_are_their_connections(_) ->
    Server = serve(#{}),
    One = connect(Server),
    Two = connect(Server),
    _ = initialize(One, ~"2024-11-05"),
    -32600 = code(ask(Two, 1, ~"tools/list", #{})),
    _ = initialize(Two, ~"2025-06-18"),
    send(One, [request(1, ~"ping", #{})]),
    #{~"error" := _} = recv(One),
    #{~"result" := _} = ask(One, 2, ~"tools/list", #{}).

%% 2026-07-28, Versioning: "Servers MUST implement server/discover." It is how a client finds out,
%% so a session open on the connection makes no difference.
discover_says_what_is_supported(_) ->
    Socket = connect(serve(#{instructions => ~"Do."})),
    Discovered = result(ask_stateless(Socket, 1, ~"server/discover", #{})),
    #{~"resultType" := ~"complete", ~"supportedVersions" := [~"2026-07-28"],
      ~"capabilities" := Capabilities, ~"instructions" := ~"Do.",
      ~"_meta" := #{~"io.modelcontextprotocol/serverInfo" := #{~"name" := ~"test"}},
      ~"ttlMs" := _, ~"cacheScope" := _} = Discovered,
    true = is_map_key(~"tools", Capabilities),
    _ = initialize(Socket, ~"2025-11-25"),
    Discovered = result(ask_stateless(Socket, 2, ~"server/discover", #{})).

%% 2026-07-28, Versioning: "If the server does not implement the requested version [...], it MUST
%% respond with an UnsupportedProtocolVersionError listing the versions it does support".
modern_versions_are_checked(_) ->
    Socket = connect(serve(#{})),
    [#{~"error" := #{~"code" := -32022, ~"data" := #{~"supported" := [~"2026-07-28"],
                                                     ~"requested" := Version}}} =
         ask(Socket, 1, Method, #{~"_meta" => (meta())#{
             ~"io.modelcontextprotocol/protocolVersion" := Version}})
     || Method <- [~"server/discover", ~"tools/list", ~"no/such"],
        Version <- [~"1900-01-01", ~"", ~"2025-11-25", ~"2024-11-05", ~"2026-07-28 ", ~"DRAFT"]].

%% 2026-07-28, _meta: the protocol fields are there in every request, and of their type.
modern_fields_are_required(_) ->
    Socket = connect(serve(#{})),
    Version = ~"io.modelcontextprotocol/protocolVersion",
    Capabilities = ~"io.modelcontextprotocol/clientCapabilities",
    [{Meta, -32602} = {Meta, code(ask(Socket, 1, ~"server/discover", #{~"_meta" => Meta}))}
     || Meta <- [#{}, null, [], maps:remove(Version, meta()), maps:remove(Capabilities, meta()),
                 (meta())#{Version := 1}, (meta())#{Version := null}, (meta())#{Capabilities := []},
                 (meta())#{~"io.modelcontextprotocol/clientInfo" => ~"me"},
                 (meta())#{~"io.modelcontextprotocol/logLevel" => ~"loud"},
                 (meta())#{~"progressToken" => 1.5}]],
    -32602 = code(ask(Socket, 2, ~"server/discover", #{})),
    #{~"result" := _} = ask_stateless(Socket, 3, ~"server/discover", #{}).

%% 2025-11-25, Resources: "Resource not found: -32002"; 2026-07-28, Resources: -32602.
missing_resources_have_the_revisions_code(_) ->
    Server = serve(#{tools => [echo_tool()]}),
    [begin
         Socket = connect(Server),
         _ = initialize(Socket, Version),
         -32002 = code(ask(Socket, 1, ~"resources/read", #{~"uri" => ~"a://b"})),
         -32602 = code(ask_stateless(Socket, 2, ~"resources/read", #{~"uri" => ~"a://b"}))
     end || Version <- ?SESSIONS].
