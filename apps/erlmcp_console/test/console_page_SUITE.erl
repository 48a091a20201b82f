-module(console_page_SUITE).
-moduledoc """
The console's page in a real browser, as an operator uses it. `test/console/page.mjs` drives the
browser, a case of it for each case here, and finds errors of the page and requests to elsewhere in
all of them.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([figures_move/1, silence_is_said/1, labels_of_axes_differ/1, a_slow_call_is_cancelled/1,
         a_failure_is_said/1, a_payload_is_shown/1, dependencies_are_shown/1,
         an_elicitation_is_answered/1, a_token_is_demanded/1, the_keyboard_is_enough/1,
         everything_has_a_name/1, every_width_and_theme/1]).

-define(PATIENCE, 90_000).
-define(TOKEN, ~"the-token-of-the-console").
%% The bound for the end of a handler, from the press of the button.
-define(ENDS_MS, 100).

suite() ->
    [{timetrap, {minutes, 5}}].

all() ->
    [figures_move, silence_is_said, labels_of_axes_differ, a_slow_call_is_cancelled,
     a_failure_is_said, a_payload_is_shown, dependencies_are_shown, an_elicitation_is_answered,
     a_token_is_demanded, the_keyboard_is_enough, everything_has_a_name, every_width_and_theme].

%% The programs are installed first, where they are not.
init_per_suite(Given) ->
    Config = erlmcp_test_applications:start([erlmcp, erlmcp_console], Given),
    Node = filename:join([erlmcp_test_installed:path("peers", ["node"]), "bin", "node"]),
    [{node, Node}, {playwright, erlmcp_test_installed:path("playwright")},
     {chromium, erlmcp_test_installed:path("chromium")} | Config].

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

figures_move(Config) ->
    Server = server(#{}),
    with_load(Server, fun() ->
        Page = open(figures_move, Server, Config),
        ok = passed(Page)
    end),
    erlmcp_test_http:stop(Server).

%% The connection stands, and no figures come.
silence_is_said(Config) ->
    Server = server(#{}),
    Page = open(silence_is_said, Server, Config),
    ~"live" = said(Page),
    ok = sys:suspend(erlmcp_console_collector),
    ~"silent" = said(Page),
    ok = sys:resume(erlmcp_console_collector),
    ok = passed(Page),
    erlmcp_test_http:stop(Server).

labels_of_axes_differ(Config) ->
    Server = server(#{}),
    ok = passed(open(labels_of_axes_differ, Server, Config)),
    erlmcp_test_http:stop(Server).

%% One of five calls, since the machine may be busy with other suites.
a_slow_call_is_cancelled(Config) ->
    #{pid := Pid} = Server = server(#{}),
    Page = open(a_slow_call_is_cancelled, Server, Config),
    ~"looking" = said(Page),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    Calls = [begin
                 {ok, Call} = erlmcp_client:async(Client, {call_tool, ~"wait", #{}}),
                 Call
             end || _ <- lists:seq(1, 5)],
    _ = [receive {waits, Handler} -> monitor(process, Handler)
         after ?PATIENCE -> ct:fail(no_call)
         end || _ <- Calls],
    Times = [cancelled(Page) || _ <- Calls],
    [receive {erlmcp, Call, {error, {rpc, #{code := -32603}}}} -> ok
     after ?PATIENCE -> ct:fail(none)
     end || Call <- Calls],
    ct:pal("the handlers ended ~w ms after the button was pressed", [Times]),
    true = lists:min(Times) < ?ENDS_MS,
    ok = passed(Page),
    erlmcp_test_http:stop(Server).

%% One of them ends with each press of a button.
cancelled(Page) ->
    receive {'DOWN', _, process, _, _} -> ok after ?PATIENCE -> ct:fail(runs_on) end,
    %% By the clock of the browser, which may be set: that of the runtime follows it slowly.
    Ended = os:system_time(millisecond),
    <<"pressed ", Pressed/binary>> = said(Page),
    ~"ended" = said(Page),
    Ended - binary_to_integer(Pressed).

a_failure_is_said(Config) ->
    #{pid := Pid} = Server = server(#{payloads => true}),
    Page = open(a_failure_is_said, Server, Config),
    ~"looking" = said(Page),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    {ok, Call} = erlmcp_client:async(Client, {call_tool, ~"wait", #{}}),
    ok = passed(Page),
    receive {erlmcp, Call, {error, {rpc, #{code := -32603}}}} -> ok
    after ?PATIENCE -> ct:fail(none)
    end,
    erlmcp_test_http:stop(Server).

a_payload_is_shown(Config) ->
    #{pid := Pid} = Server = server(#{payloads => true}),
    Page = open(a_payload_is_shown, Server, Config),
    ~"looking" = said(Page),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    %% Payloads are kept from the next look at the server on.
    Arguments = #{city => ~"Oslo", password => ~"hunter2", order => 9_007_199_254_740_993},
    Load = spawn_link(fun() -> load(Client, Arguments, 500) end),
    ok = passed(Page),
    ended(Load),
    erlmcp_test_http:stop(Server).

dependencies_are_shown(Config) ->
    #{pid := Pid} = Server = server(#{}),
    Page = open(dependencies_are_shown, Server, Config),
    ~"looking" = said(Page),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    {error, _} = erlmcp_client:call_tool(Client, ~"print", #{}),
    ok = passed(Page),
    erlmcp_test_http:stop(Server).

an_elicitation_is_answered(Config) ->
    Server = server(#{}),
    ok = passed(open(an_elicitation_is_answered, Server, Config)),
    erlmcp_test_http:stop(Server).

a_token_is_demanded(Config) ->
    Server = server(#{token => ?TOKEN}),
    ok = passed(open(a_token_is_demanded, Server, Config)),
    erlmcp_test_http:stop(Server).

the_keyboard_is_enough(Config) ->
    #{pid := Pid} = Server = server(#{}),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    Page = open(the_keyboard_is_enough, Server, Config),
    ~"looking" = said(Page),
    {ok, _} = erlmcp_client:async(Client, {call_tool, ~"wait", #{}}),
    ok = passed(Page),
    erlmcp_test_http:stop(Server).

everything_has_a_name(Config) ->
    Server = server(#{}),
    ok = passed(open(everything_has_a_name, Server, Config)),
    erlmcp_test_http:stop(Server).

every_width_and_theme(Config) ->
    #{pid := Pid} = Server = server(#{}),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    {error, _} = erlmcp_client:call_tool(Client, ~"none", #{}),
    ok = passed(open(every_width_and_theme, Server, Config)),
    erlmcp_test_http:stop(Server).

server(Console) ->
    Test = self(),
    erlmcp_test_console:start(#{tools => [
        #{name => ~"echo", handler => fun(_, _) -> ~"done" end},
        #{name => ~"wait", handler => fun(_, _) -> Test ! {waits, self()}, wait() end},
        #{name => ~"ask", description => ~"Cooks a dish as hot as you like",
          input_schema => #{dish => string}, handler => fun cook/2},
        #{name => ~"print", breaker => printer, handler => fun refuse/2}],
        breakers => #{printer => #{failures => 1, open_ms => 60_000}},
        workers => #{db => #{size => 2, start => fun() -> {ok, ticket} end}}}, Console).

refuse(_, _) ->
    {refuse, erlmcp:refusal(dependency_unavailable, ~"the printer has no paper", #{})}.

%% In the stack of its call.
wait() ->
    receive never -> ~"done" end.

cook(#{~"dish" := Dish}, #{input := #{~"how" := #{~"content" := Content}}}) ->
    #{~"degrees" := Degrees} = Content,
    Salt = maps:get(~"salt", Content, false),
    iolist_to_binary(io_lib:format("~ts, ~b degrees, salt: ~p", [Dish, Degrees, Salt]));
cook(#{~"dish" := Dish}, #{input := _}) ->
    <<"no ", Dish/binary>>;
cook(#{~"dish" := Dish}, Context) ->
    ok = erlmcp:progress(Context, 1, #{total => 2, message => ~"washed"}),
    Question = <<"How hot shall the ", Dish/binary, " be?">>,
    {input_required, #{~"how" => erlmcp_input:elicit(Question, #{degrees => integer,
                                                                 salt => {optional, boolean}})}}.

with_load(#{pid := Pid}, Run) ->
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    Load = spawn_link(fun() -> load(Client, #{}, 2) end),
    Run(),
    ended(Load).

load(Client, Arguments, Pause) ->
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", Arguments),
    receive after Pause -> load(Client, Arguments, Pause) end.

ended(Load) ->
    unlink(Load),
    exit(Load, kill).

open(Case, #{url := Url}, Config) ->
    [Node, Playwright, Chromium] = [proplists:get_value(Key, Config)
                                    || Key <- [node, playwright, chromium]],
    Script = filename:join(erlmcp_test_page:root(), "test/console/page.mjs"),
    open_port({spawn_executable, Node},
              [{args, [Script, Playwright, Chromium, uri_string:resolve(~"/console/", Url),
                       atom_to_list(Case)]},
               {env, [{"CONSOLE_TOKEN", binary_to_list(?TOKEN)}]},
               {line, 10_000}, binary, exit_status]).

said(Page) ->
    receive
        {Page, {data, {eol, Line}}} -> Line;
        {Page, {exit_status, Status}} -> ct:fail({ended, Status})
    after ?PATIENCE ->
        ct:fail(says_nothing)
    end.

passed(Page) ->
    case said(Page) of
        ~"passed" -> ok;
        <<"wrong ", What/binary>> -> ct:fail("~ts", [What]);
        _ -> passed(Page)
    end.
