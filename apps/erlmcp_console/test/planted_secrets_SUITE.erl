-module(planted_secrets_SUITE).
-moduledoc """
Secrets that are planted in what clients and handlers say to each other: arguments, results, tokens,
states, answers. None of them comes out on the console's page and its feed, as a metric, a span, an
event or an entry of the log, however a request ends, nor when a process crashes that has one.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([no_secret_comes_out/1, a_crash_of_the_listener_shows_no_request/1,
         runtime_errors_show_no_value/1]).
-export([log/2]).

-define(PATIENCE, 30_000).
-define(MARK, ~"s3cr3t").
-define(TRACES, ~"/v1/traces").

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [no_secret_comes_out, a_crash_of_the_listener_shows_no_request, runtime_errors_show_no_value].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, erlmcp_console, inets, gun, prometheus], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% After a failure.
end_per_testcase(_, _) ->
    _ = logger:remove_handler(?MODULE),
    ok.

%% Each secret says where it was planted.
secret(Where) -> <<?MARK/binary, "-", Where/binary>>.

no_secret_comes_out(_) ->
    process_flag(trap_exit, true),
    Issuer = issuer(),
    Level = start_log(),
    #{pid := Pid} = Server = server(Issuer),
    Feed = viewer(Server),
    %% Requests are remembered while somebody looks.
    ok = two_snapshots(),
    [ok = used(Era, Server, Issuer) || Era <- [stateless, session]],
    ok = refused(Server),
    Ids = [session_left_alone(Server)],
    Client = authorized(Server, Issuer),
    lists:foreach(fun crashed/1, [erlmcp_test_http:session_process(), authorizer(Client), Client]),
    %% What an operator asks for.
    Operator = [erlmcp_operator:ask(json:encode(#{command => Command}))
                || Command <- [servers, sessions, calls, metrics]],
    Faces = [io_lib:format("~p", [Face(Pid)])
             || Face <- [fun erlmcp:info/1, fun erlmcp:metrics/1, fun erlmcp:sessions/1,
                         fun erlmcp:calls/1, fun erlmcp:health/1]],
    {200, _, Page} = erlmcp_test_console:get(~"/console/", Server),
    {200, _, Metrics} = erlmcp_test_console:get(~"/metrics", Server),
    ok = two_snapshots(),
    ok = erlmcp_test_http:stop(Server),
    _ = erlmcp_test_http:ended(Feed),
    %% The last spans are sent when nobody makes more.
    ok = until_seen(spans, ~"tools/call"),
    ok = stop_log(Level),
    ok = erlmcp_test_issuer:stop(Issuer),
    Outputs = #{page => Page, metrics => Metrics, operator => Operator, faces => Faces,
                feed => collected(feed), spans => collected(spans), events => collected(event),
                log => collected(log)},
    [{Output, _} = {Output, binary:match(iolist_to_binary(Text), Name)}
     || Output := Text <- maps:without([page], Outputs), Name <- [~"planted"]],
    [] = [{Output, shown(Secret, iolist_to_binary(Text))}
          || Output := Text <- Outputs, Secret <- [?MARK, base64:encode(?MARK) | Ids],
             binary:match(iolist_to_binary(Text), Secret) =/= nomatch].

%% Where it stands.
shown(Secret, Text) ->
    [{At, Length} | _] = binary:matches(Text, Secret),
    From = max(0, At - 300),
    binary:part(Text, From, min(byte_size(Text) - From, Length + 600)).

%% The issuer of tokens is the collector of spans, too.
issuer() ->
    Issuer = erlmcp_test_issuer:start(),
    Test = self(),
    ok = erlmcp_test_oauth:change(Issuer, ?TRACES, fun(#{body := Body}) ->
        Test ! {spans, Body},
        {200, #{~"content-type" => ~"application/json"}, ~"{}"}
    end),
    ok = erlmcp_test_oauth:metadata(Issuer, #{~"token_endpoint_auth_methods_supported" =>
                                                  [~"client_secret_basic"]}),
    ok = erlmcp_test_oauth:change(Issuer, ~"/token", erlmcp_test_oauth:json(200, #{
        ~"access_token" => secret(~"access-token"), ~"token_type" => ~"Bearer",
        ~"expires_in" => 3600, ~"refresh_token" => secret(~"refresh-token")})),
    Issuer.

server(#{base := Base} = Issuer) ->
    Test = self(),
    erlmcp_test_http:start(#{
        id => planted, name => ~"planted", version => ~"1",
        access_log => #{sample => 1}, trace => trace(Issuer),
        on_event => fun(Event) -> Test ! {event, io_lib:format("~p", [Event])} end,
        tools => [tool(~"echo", fun(#{~"text" := Text}, _) -> Text end),
                  tool(~"fail", fun(#{~"text" := Text}, _) -> {error, Text} end),
                  tool(~"crash", fun(Arguments, Context) -> crash(Arguments, Context) end),
                  tool(~"wait", fun(_, Context) ->
                      Test ! {running, self()},
                      ok = erlmcp:progress(Context, 1, #{message => secret(~"progress")}),
                      receive go -> secret(~"late-result") end
                  end),
                  (tool(~"slow", fun(_, _) -> receive never -> ok end end))#{timeout_ms => 100},
                  tool(~"ask", fun ask/2),
                  (tool(~"cached", fun(#{~"text" := Text}, _) -> Text end))#{
                      cache => #{ttl_ms => 60_000}}],
        prompts => [#{name => ~"planted_prompt", arguments => [#{name => ~"text"}],
                      complete => #{text => fun(Value, _) -> [Value] end},
                      handler => fun(#{~"text" := Text}, _) -> Text end}],
        resources => [#{uri => ~"planted://page", name => ~"page",
                        handler => fun(_, _) -> secret(~"contents") end}],
        listen => [{http, #{port => 0, metrics => true,
                            authenticate => {process, fun authenticate/1},
                            protected_resource => #{authorization_servers => [Base]},
                            pages => #{~"/console" => erlmcp_console:page(#{})}}}]}).

trace(Issuer) ->
    #{endpoint => erlmcp_test_oauth:url(Issuer, ?TRACES), ratio => 1,
      headers => #{~"x-api-key" => secret(~"collector-key")}}.

tool(Name, Handler) ->
    #{name => <<"planted_", Name/binary>>, handler => Handler,
      input_schema => #{type => object, properties => #{text => #{type => string}}}}.

crash(#{~"kind" := ~"clause"} = Arguments, Context) -> crash(Arguments, Context, never);
crash(#{~"kind" := ~"match"} = Arguments, _) -> {ok, none} = maps:find(~"text", Arguments);
crash(#{~"kind" := ~"case"} = Arguments, _) ->
    case maps:find(~"text", Arguments) of none -> none end;
crash(#{~"kind" := ~"argument", ~"text" := Text}, _) -> binary_to_integer(Text);
crash(#{~"kind" := ~"key", ~"text" := Text}, _) -> map_get(Text, #{});
crash(#{~"kind" := ~"called"} = Arguments, _) -> gen_server:call(none_of_this_name, Arguments);
crash(#{~"kind" := ~"linked"} = Arguments, _) ->
    _ = spawn_link(fun() -> exit({noproc, {gen_server, call, [somebody, Arguments]}}) end),
    receive never -> ok end.

crash(Arguments, _, now) -> Arguments.

ask(_, #{input := #{~"form" := #{~"content" := #{~"pin" := Pin}}}, state := State}) ->
    <<Pin/binary, State/binary>>;
ask(_, _) ->
    Form = #{type => object, properties => #{pin => #{type => string}}},
    {input_required, #{~"form" => erlmcp_input:elicit(secret(~"question"), Form)},
     secret(~"state")}.

authenticate(#{headers := #{~"authorization" := Given}}) ->
    case binary:split(Given, ~"-") of
        [_, ~"wrong-token"] -> {error, ~"another token is needed"};
        [_, ~"crashing-token"] -> error({badmatch, Given});
        [_, _] -> {ok, ~"ada", #{claims => #{~"email" => secret(~"claim")}}};
        _ -> {error, ~"a token is needed"}
    end;
authenticate(_) ->
    {error, ~"a token is needed"}.

%% Everything that a client asks for, with each end that a request may have.
used(Era, #{url := Url}, Issuer) ->
    {ok, Client} = erlmcp_client:start_link({http, Url, #{
        era => Era, token => secret(~"token"), trace => trace(Issuer), cache => false,
        headers => [{~"x-planted", secret(~"header")}, {~"dpop", secret(~"proof")}],
        inputs => #{elicit => fun(_) -> {accept, #{pin => secret(~"answer")}} end}}}),
    Meta = #{meta => #{~"planted" => secret(~"meta"), ~"baggage" => <<"a=", ?MARK/binary>>}},
    Call = fun(Name, Arguments) ->
        erlmcp_client:call_tool(Client, <<"planted_", Name/binary>>, Arguments, Meta)
    end,
    Text = #{text => secret(~"argument")},
    {ok, #{~"content" := [_]}} = Call(~"echo", Text),
    [{ok, #{~"content" := [_]}} = Call(~"cached", Text) || _ <- [1, 2]],
    {ok, #{~"isError" := true}} = Call(~"fail", Text),
    [{error, _} = Call(~"crash", Text#{kind => Kind})
     || Kind <- [~"clause", ~"match", ~"case", ~"argument", ~"key", ~"called", ~"linked"]],
    {error, _} = Call(~"slow", Text),
    {ok, #{~"content" := [#{~"text" := Answered}]}} = Call(~"ask", Text),
    Answered = <<(secret(~"answer"))/binary, (secret(~"state"))/binary>>,
    %% Against the schema, and for a tool that is not there.
    _ = Call(~"echo", #{text => [secret(~"wrong-argument")]}),
    {error, _} = Call(~"none", Text),
    {ok, _} = erlmcp_client:get_prompt(Client, ~"planted_prompt", Text),
    {ok, _} = erlmcp_client:complete(Client, {prompt, ~"planted_prompt"},
                                     {~"text", secret(~"typed")}),
    {ok, _} = erlmcp_client:read_resource(Client, ~"planted://page"),
    {ok, _} = erlmcp_client:list_tools(Client),
    erlmcp_client:stop(Client).

%% Requests that are not served.
refused(Server) ->
    [begin
         #{status := Status} = erlmcp_test_http:call(Server, ~"tools/call",
             #{name => ~"planted_echo", arguments => #{text => secret(~"refused-argument")}},
             #{headers => #{~"authorization" => <<"Bearer ", Token/binary>>}}),
         {Token, Status} = {Token, Expected}
     end || {Token, Expected} <- [{secret(~"wrong-token"), 401}, {secret(~"crashing-token"), 500}]],
    Authorized = #{~"authorization" => <<"Bearer ", (secret(~"token"))/binary>>},
    {Headers, _} = erlmcp_test_http:message(~"tools/list", #{}, #{headers => Authorized}),
    #{status := 400} = erlmcp_test_http:post(Server, Headers, [~"{", secret(~"not-json")]),
    #{} = erlmcp_test_http:call(Server, ~"tools/list", #{cursor => secret(~"cursor")},
                                #{headers => Authorized}),
    #{} = erlmcp_test_http:call(Server, ~"ping", #{}, #{
        headers => Authorized, session => {secret(~"session-id"), ~"2025-11-25"}}),
    ok.

%% A session keeps the result of a call whose client has lost its connection.
session_left_alone(Server) ->
    Token = #{~"authorization" => <<"Bearer ", (secret(~"token"))/binary>>},
    #{headers := #{~"mcp-session-id" := Id}} =
        erlmcp_test_http:initialize(Server, ~"2025-11-25", Token),
    Socket = erlmcp_test_http:connect(Server),
    {Headers, Body} = erlmcp_test_http:message(
        ~"tools/call", #{name => ~"planted_wait", arguments => #{text => secret(~"argument")},
                         '_meta' => #{progressToken => 1}},
        #{headers => Token, session => {Id, ~"2025-11-25"}}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    Pid = receive {running, Runs} -> Runs after ?PATIENCE -> ct:fail(no_call) end,
    {200, _} = erlmcp_test_http:head(Socket),
    ok = erlmcp_test_http:close(Socket),
    Pid ! go,
    _ = erlmcp_test_http:ended(Pid),
    Id.

%% A client that gets its token itself, and stays.
authorized(#{url := Url}, #{base := Base}) ->
    {ok, Client} = erlmcp_client:start_link({http, Url, #{
        era => '2026-07-28', auth => #{
            grant => client_credentials, client_id => ~"planted", issuer => Base,
            client_secret => secret(~"client-secret"), allow_hosts => [~"localhost"]}}}),
    {ok, #{}} = erlmcp_client:call_tool(Client, ~"planted_echo", #{text => secret(~"argument")}),
    Client.

authorizer(Client) ->
    {links, Links} = process_info(Client, links),
    [Authorizer] = [Pid || Link <- Links, is_pid(Link),
                           proc_lib:translate_initial_call(Link)
                               =:= {supervisor, erlmcp_httpc_channel, 1},
                           {authorizer, Pid, _, _} <- supervisor:which_children(Link)],
    Authorizer.

%% A process that has secrets ends badly, and OTP reports its state.
crashed(Pid) ->
    Monitor = monitor(process, Pid),
    ok = try
        sys:terminate(Pid, planted_crash)
    catch
        %% It has ended with one of the others.
        exit:{noproc, _} -> ok
    end,
    receive {'DOWN', Monitor, process, Pid, _} -> ok end.

%% The console's feed as bytes.
viewer(Server) ->
    Test = self(),
    spawn_link(fun() ->
        seen(erlmcp_test_console:events(~"/console/feed", Server), Test)
    end).

seen(Socket, Test) ->
    try erlmcp_test_http:chunk(Socket) of
        <<>> -> ok;
        Bytes ->
            Test ! {feed, Bytes},
            seen(Socket, Test)
    catch
        error:{badmatch, {error, _}} -> ok
    end.

two_snapshots() ->
    Now = length(peeked(feed)),
    until(fun() -> length(peeked(feed)) >= Now + 2 end).

until_seen(Kind, Text) ->
    until(fun() -> binary:match(iolist_to_binary(peeked(Kind)), Text) =/= nomatch end).

until(Holds) ->
    until(Holds, erlang:monotonic_time(millisecond) + ?PATIENCE).

until(Holds, End) ->
    case Holds() of
        true -> ok;
        false ->
            true = erlang:monotonic_time(millisecond) < End,
            receive after 20 -> until(Holds, End) end
    end.

%% What has come, in the order of its coming.
peeked(Kind) ->
    {messages, Messages} = process_info(self(), messages),
    [Text || {Of, Text} <- Messages, Of =:= Kind].

collected(Kind) ->
    receive
        {Kind, Text} -> [Text | collected(Kind)]
    after 0 ->
        []
    end.

%% The log, down to the reports of progress of OTP, in each form.
start_log() ->
    #{level := Level} = logger:get_primary_config(),
    ok = logger:set_primary_config(level, info),
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self()}),
    Level.

stop_log(Level) ->
    ok = logger:remove_handler(?MODULE),
    logger:set_primary_config(level, Level).

-doc false.
log(Entry, #{config := Test}) ->
    Test ! {log, [io_lib:format("~p~n", [Entry]),
                  [erlmcp_log_formatter:format(Entry, #{format => Format})
                   || Format <- [json, text]],
                  logger_formatter:format(Entry, #{})]},
    ok.

%% An error of erlmcp itself, which cowboy's report shows with the request.
a_crash_of_the_listener_shows_no_request(_) ->
    Level = start_log(),
    Request = #{headers => #{~"authorization" => secret(~"token")}, path => ~"/planted"},
    Stack = [{planted_module, planted, [Request], []}],
    [cowboy:log(cowboy_stream:make_error_log(Callback, Arguments, error, function_clause, Stack),
                #{logger => erlmcp_httpd_log})
     || {Callback, Arguments} <- [{init, [1, Request, #{}]}, {data, [1, fin, Request, Request]},
                                  {info, [1, Request, Request]},
                                  {terminate, [1, Request, Request]}]],
    ok = stop_log(Level),
    Log = iolist_to_binary(collected(log)),
    nomatch = binary:match(Log, ?MARK),
    [{_, _} = binary:match(Log, Shown)
     || Shown <- [~"stream_crashed", ~"planted_module", ~"init", ~"data", ~"info", ~"terminate"]].

%% What code has raised by itself is there.
runtime_errors_show_no_value(_) ->
    [{Reason, Expected} = {Reason, erlmcp_incident:outline(Reason)}
     || {Reason, Expected} <-
            [{on_purpose, on_purpose},
             {{my_error, ~"text"}, {my_error, ~"text"}},
             {{badmatch, {error, enoent, ~"a", 1, "s", #{a => b}}},
              {badmatch, {error, enoent, 'a binary', 'a number', 'a list', 'a map'}}},
             {{case_clause, []}, {case_clause, []}},
             {{bad_generators, {[2, ~"a"], []}}, {bad_generators, {'a list', []}}},
             {{badarg, ~"a"}, {badarg, 'a binary'}},
             {{badarg, [{m, f, [~"a"], []}]}, {badarg, [{m, f, 1, []}]}},
             {{{badarg, [{m, f, 1, []}]}, {gen_server, call, [a, b]}},
              {{badarg, [{m, f, 1, []}]}, {gen_server, call, 2}}},
             %% Of code in Elixir.
             {{with_clause, ~"a"}, {with_clause, 'a binary'}},
             {{badbool, 'and', ~"a"}, {badbool, 'and', 'a binary'}},
             {{badkey, a, #{b => ~"c"}}, {badkey, a, 'a map'}},
             {{badstruct, 'Elixir.A', ~"a"}, {badstruct, 'Elixir.A', 'a binary'}},
             {{badkey, ~"a"}, {badkey, 'a binary'}},
             {{badkey, a}, {badkey, a}},
             {key_error(~"a", #{b => c}), key_error('a binary', 'a map')},
             {{timeout, {gen_server, call, [a, b]}}, {timeout, {gen_server, call, 2}}},
             {{{badmatch, ~"a"}, [{m, f, [~"a"], []}, {m, g, 2, []}]},
              {{badmatch, 'a binary'}, [{m, f, 1, []}, {m, g, 2, []}]}}]].

%% What Elixir makes of `badkey`.
key_error(Key, Term) ->
    #{'__exception__' => true, '__struct__' => 'Elixir.KeyError', message => nil, key => Key,
      term => Term}.
