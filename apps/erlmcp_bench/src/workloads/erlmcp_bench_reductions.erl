-module(erlmcp_bench_reductions).
-moduledoc """
Measures the reductions of a request: the runtime's count of all work that a server's node does for
it, in all processes. Unlike times, reductions hardly differ between runs and machines. So a test
can compare the server with the recorded figures (`bench/reductions.json`).

A figure is the lowest of nine rounds, each of a hundred requests in turn on one connection.
Processes that work at regular times, even without requests, are excluded
(`erlmcp_bench_meter:worked/0`).
""".

-export([measured/0, record/1, recorded/1, tolerance_percent/0]).
-export([quick_echo/2]).

-export_type([figures/0]).

-doc "The reductions of one request of each kind, by the kind's name.".
-type figures() :: #{Name :: binary() => float()}.

-define(REQUESTS, 100).
-define(ROUNDS, 9).
-define(WARM, 2).
-define(TIMEOUT_MS, 60_000).
%% The tag of each request: it is alone on its connection.
-define(TAG, 0).

-doc "Returns the percentage by which a figure may differ from the recorded one.".
-spec tolerance_percent() -> pos_integer().
tolerance_percent() -> 5.

-doc """
Measures all kinds of requests, on a server with one scheduler in a node of its own. `http1_refusal`
is the cost of a request that is refused, since as many requests are in flight as the server allows.
`quick` in a name means an echo that is marked quick (docs/tools.md, "Quick handlers"). The error is
that of the server, which could not start.
""".
-spec measured() -> {ok, figures()} | {error, term()}.
measured() ->
    Quick = #{name => ~"quick_echo", description => ~"Says it again", quick => true,
              input_schema => #{text => string}, handler => fun ?MODULE:quick_echo/2},
    Server = #{handler => erlmcp_bench_fixture, limits => #{in_flight => 1, queue => 0},
               tools => [Quick],
               listen => [{http, #{port => 0}}, {tcp, #{port => 0}}]},
    maybe
        {ok, Target} ?= erlmcp_bench_target:start(#{server => Server, flags => ["+S", "1:1"]}),
        try
            Figures = [{Name,
                        figure(connect(Transport, Era, Target), request(Kind, Era), 200, Target)}
                      || {Name, Transport, Era, Kind} <- kinds()],
            {ok, maps:from_list([{~"http1_refusal", refused(Target)} | Figures])}
        after
            erlmcp_bench_target:stop(Target)
        end
    end.

kinds() ->
    Session = {session, erlmcp_revision:name(erlmcp_revision:latest(session))},
    [{~"http1_echo", http, stateless, echo}, {~"http1_list", http, stateless, list},
     {~"http1_session_echo", http, Session, echo}, {~"tcp_echo", tcp, stateless, echo},
     {~"http1_quick_echo", http, stateless, quick},
     {~"http1_session_quick_echo", http, Session, quick},
     {~"tcp_quick_echo", tcp, stateless, quick}].

request(echo, Era) -> message(erlmcp_load_request:echo(64), Era);
request(quick, Era) ->
    {Method, Params} = erlmcp_load_request:echo(64),
    message({Method, Params#{~"name" := ~"quick_echo"}}, Era);
request(list, Era) -> message({~"tools/list", #{}}, Era);
request({sleep, Milliseconds}, Era) ->
    message({~"tools/call", #{~"name" => ~"sleep", ~"arguments" => #{~"ms" => Milliseconds}}}, Era).

message(Request, Era) ->
    {Message, _} = erlmcp_load_request:new(Request, Era),
    Message.

-doc false.
quick_echo(#{~"text" := Text}, _) -> Text.

%% Measures a refusal while another request holds the only permit.
refused(Target) ->
    {Client, Sleepers} = until_refused(connect(http, stateless, Target), [], Target),
    Figure = figure(Client, proxied(), 429, Target),
    ok = lists:foreach(fun close/1, Sleepers),
    Figure.

%% The request that probes for a refusal may take the permit before the sleeper does.
until_refused(Client, Sleepers, Target) ->
    Sleeper = sent(request({sleep, ?TIMEOUT_MS}, stateless), connect(http, stateless, Target)),
    case ask(proxied(), Client) of
        {429, Next} -> {Next, [Sleeper | Sleepers]};
        {200, Next} -> until_refused(Next, [Sleeper | Sleepers], Target)
    end.

%% A client that retries at once is delayed, but not behind a proxy.
proxied() ->
    #{headers := Headers} = Message = request(echo, stateless),
    Message#{headers := [{~"via", ~"1.1 proxy"} | Headers]}.

figure(Client, Message, Status, Target) ->
    Nothing = lists:min([read(Target, fun() -> ok end) || _ <- lists:seq(1, ?ROUNDS)]),
    Requests = fun() -> send_all(?REQUESTS, Message, Status, Client) end,
    _ = [read(Target, Requests) || _ <- lists:seq(1, ?WARM)],
    Rounds = [(read(Target, Requests) - Nothing) / ?REQUESTS || _ <- lists:seq(1, ?ROUNDS)],
    ok = close(Client),
    lists:min(Rounds).

read(Target, Work) ->
    Before = erlmcp_bench_target:call(Target, erlmcp_bench_meter, worked, []),
    _ = Work(),
    erlmcp_bench_target:call(Target, erlmcp_bench_meter, worked, []) - Before.

send_all(0, _, _, _) ->
    ok;
send_all(More, Message, Status, Client) ->
    {Status, Next} = ask(Message, Client),
    send_all(More - 1, Message, Status, Next).

%% A connection, as in a load.

connect(Transport, Era, Target) ->
    {Ip, Port} = erlmcp_bench_target:address(Transport, Target),
    {ok, Socket} = gen_tcp:connect(Ip, Port, [binary, {active, false}, {nodelay, true}]),
    Wire = case Transport of
        http -> erlmcp_load_http1;
        tcp -> erlmcp_load_lines
    end,
    Options = #{authority => iolist_to_binary([inet:ntoa(Ip), $:, integer_to_binary(Port)]),
                path => ~"/mcp"},
    opened(Era, #{socket => Socket, wire => Wire, options => Options, state => Wire:new(Options),
                  session => none}).

opened(stateless, Client) ->
    Client;
opened({session, Revision}, Client) ->
    {Message, _} = erlmcp_load_request:initialize(Revision),
    {200, #{session := <<_/binary>>} = Opened} = ask(Message, Client),
    {202, Ready} = ask(erlmcp_load_request:initialized(Revision), Opened),
    Ready.

%% Returns the status of the answer, and 200 where there is none.
ask(Message, Client) ->
    answered(sent(Message, Client)).

sent(Message, #{socket := Socket, wire := Wire, options := Options, state := State,
                session := Session} = Client) ->
    Template = Wire:template(erlmcp_load_request:in_session(Session, Message), Options),
    {Bytes, Next} = Wire:request(?TAG, Template, State),
    ok = gen_tcp:send(Socket, Bytes),
    Client#{state := Next}.

answered(#{socket := Socket, wire := Wire, state := State, session := Session} = Client) ->
    {ok, Bytes} = gen_tcp:recv(Socket, 0, ?TIMEOUT_MS),
    {ok, Events, <<>>, Next} = Wire:received(Bytes, State),
    [Current | _] = [Id || {session, ?TAG, Id} <- Events] ++ [Session],
    Read = Client#{state := Next, session := Current},
    case [Status || {reply, ?TAG, Status, _} <- Events] of
        [none] -> {200, Read};
        [Status] -> {Status, Read};
        [] -> answered(Read)
    end.

close(#{socket := Socket}) ->
    gen_tcp:close(Socket).

-doc """
Measures all kinds of requests, and writes the figures and the release of OTP into a file. The error
is that of `measured/0`, or the reason why the file cannot be written.
""".
-spec record(file:filename()) -> {ok, figures()} | {error, term()}.
record(File) ->
    maybe
        {ok, Figures} ?= measured(),
        Lines = erlmcp_bench_json:lines(#{~"otp" => otp(), ~"reductions_per_request" => Figures}),
        ok ?= file:write_file(File, Lines),
        {ok, Figures}
    end.

otp() -> list_to_binary(erlang:system_info(otp_release)).

-doc """
Reads the figures that `record/1` wrote into a file. If they are of another release of OTP, returns
only that release, such as `~"27"`. Fails if the file cannot be read.
""".
-spec recorded(file:filename()) -> {ok, figures()} | {other_otp, binary()}.
recorded(File) ->
    {ok, Bytes} = file:read_file(File),
    #{~"otp" := Otp, ~"reductions_per_request" := Figures} = json:decode(Bytes),
    case otp() of
        Otp -> {ok, Figures};
        _ -> {other_otp, Otp}
    end.
