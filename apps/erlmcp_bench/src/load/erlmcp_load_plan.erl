-module(erlmcp_load_plan).
-moduledoc """
Checks the plan of a load, fills in its defaults, and draws the kind of each request.
""".

-export([settings/1, kind/1, since/2]).

-export_type([plan/0, settings/0]).

-doc """
The plan of a load. The defaults of the options are in parentheses.

- `protocol` (`http1`) is that of an HTTP target. HTTP/2 in the clear begins without negotiation.
- `tls` has options of `ssl` for `https` URLs. Without `cacerts` or `cacertfile` the system's roots
  are trusted.
- `era` (`stateless`) may also be `{session, Revision}`. A connection then has
  `sessions_per_connection` (1) sessions, and more than one only on HTTP.
- `requests` are those that the load sends. Each request is chosen at random, by the weights. The
  parameters are terms that `json:encode/1` takes, and a `_meta` among them is a map. Without
  `requests` the tool `echo` is called with a text of `payload_bytes` (64) bytes.
- `connections` (1) are opened before the load begins.
- `loop` (`{closed, 1}`): `{closed, Window}` keeps `Window` requests in flight on each connection.
  `{open, Rate, poisson | even}` sends `Rate` requests a second over all connections. `hold` sends
  none.
- A rate of `{percent, Percent}` is a part of the server's capacity, which the warm-up measures. The
  warm-up keeps about 256 requests in flight, at most one on each connection, and counts the answers
  in its second half. Its first half goes on, for at most ten times its length, until each
  connection was used twelve times on average. Such a load needs a `warmup_ms` of at least 100.
- `in_flight` is the most requests that an open loop has on a connection at once (1 on HTTP/1.1, 100
  on HTTP/2, and 32 otherwise).
- `duration_ms` (10,000) is how long the load is measured, after a warm-up of `warmup_ms` (0).
- `timeout_ms` (10,000) is how long a request waits for its reply, and how late it may be sent. It
  also bounds the opening of a connection and that of its sessions.
- `headers` belong to every HTTP request, and the last one of each name counts. `host`, `accept` and
  `content-type` replace the usual ones. `{id}` in a value is the request's id.
- `sources` are addresses to connect from, in turn. By default the system chooses one. For more than
  5,000 connections to a target in 127.0.0.0/8, the default is as many addresses of that network as
  are needed.
- `environment` changes the environment of a program, as the option `env` of `open_port/2` does. By
  default it removes only `ERLMCP_TOKEN`.
- `server_os_pid` is the operating system's id of the process whose processor time and memory are
  read. By default it is the first program of a target on stdio with a single connection. A program
  that is started after the end of the first one is not watched.
- `since` is when the windows of errors begin, in monotonic microseconds. By default it is the time
  when measuring begins.
- `on_second` is called with the sample of each second, in a process of the load.
- `observer` receives `{erlmcp_load, Outcome, DueUs, EndUs}` for each measured request that was sent
  and has ended, with an outcome of `t:erlmcp_load_reply:outcome/0`. Times are in monotonic
  microseconds.
""".
-type plan() :: #{
    target := erlmcp_load_target:target(),
    protocol => http1 | http2,
    tls => [ssl:tls_client_option()],
    era => erlmcp_load_request:era(),
    requests => [{Weight :: pos_integer(), {Method :: binary(), Params :: map()}}, ...],
    payload_bytes => non_neg_integer(),
    connections => pos_integer(),
    sessions_per_connection => pos_integer(),
    loop => {closed, Window :: pos_integer()}
          | {open, rate(), erlmcp_load_schedule:arrivals()} | hold,
    in_flight => pos_integer(),
    duration_ms => pos_integer(),
    warmup_ms => non_neg_integer(),
    timeout_ms => pos_integer(),
    headers => [{binary(), binary()}],
    sources => [inet:ip_address()],
    environment => erlmcp_load_program:environment(),
    server_os_pid => pos_integer(),
    since => integer(),
    on_second => fun((erlmcp_load:sample()) -> term()),
    observer => pid()
}.

-type rate() :: RequestsPerSecond :: number() | {percent, number()}.

-doc """
The settings of a load's processes. In a load that measures the server's capacity, `callers` is how
many connections may have requests in flight at once in the warm-up. In the settings of a group,
`callers` is the number for this group.
""".
-type settings() :: #{
    wire := module(), wire_options := erlmcp_load_wire:options(), ordered := boolean(),
    way := erlmcp_load_target:way(),
    era := erlmcp_load_request:era(), sessions := pos_integer(),
    messages := [erlmcp_load_wire:message(), ...], templates := tuple(),
    expected := [erlmcp_load_reply:expectation(), ...],
    weights := [{UpTo :: pos_integer(), Kind :: pos_integer()}, ...],
    connections := pos_integer(),
    loop := closed | {open, erlmcp_load_schedule:schedule()} | hold, window := pos_integer(),
    percent := number() | none, callers := erlmcp_load_turns:callers(),
    duration_us := pos_integer(), warmup_us := non_neg_integer(), timeout_us := pos_integer(),
    server_os_pid := pos_integer() | none, since := integer() | begin_of_measuring,
    on_second := fun((erlmcp_load:sample()) -> term()), observer := pid() | none,
    counts := erlmcp_load_counts:counts(), patterns => ets:table(),
    latency := erlmcp_bench_histogram:histogram(),
    refusal_latency := erlmcp_bench_histogram:histogram(),
    lateness := erlmcp_bench_histogram:histogram()
}.

%% The number of callers that measure the capacity, enough that they never all wait for the
%% generator; and the shortest such warm-up, in milliseconds.
-define(CALLERS, 256).
-define(LEAST_WARMUP_MS, 100).

-define(DEFAULTS, #{
    protocol => http1, tls => [], era => stateless, payload_bytes => 64, connections => 1,
    sessions_per_connection => 1, loop => {closed, 1}, duration_ms => 10_000, warmup_ms => 0,
    timeout_ms => 10_000, headers => [], sources => default,
    environment => [{"ERLMCP_TOKEN", false}], server_os_pid => none,
    since => begin_of_measuring, on_second => none, observer => none,
    requests => default, in_flight => default
}).

-doc """
Returns the settings of a plan, with new counters. Resolves the host name of the target. The errors
are those of `erlmcp_load:run/1`.
""".
-spec settings(plan()) ->
    {ok, settings()} | {error, {bad_option, atom()} | {host, Reason :: term()}}.
settings(#{target := Target} = Plan) ->
    All = maps:merge(?DEFAULTS, Plan),
    case [Name || Name := Value <- All, not valid(Name, Value)] ++ too_short(All) of
        [] ->
            maybe
                {ok, Way} ?= erlmcp_load_target:new(Target, All),
                prepared(Way, All)
            end;
        [Name | _] ->
            {error, {bad_option, Name}}
    end;
settings(_) ->
    {error, {bad_option, target}}.

too_short(#{loop := {open, {percent, _}, _}, warmup_ms := Warmup})
  when Warmup < ?LEAST_WARMUP_MS -> [warmup_ms];
too_short(_) -> [].

valid(target, {http, Url}) -> is_text(Url);
valid(target, {tcp, Host, Port}) ->
    (inet:is_ip_address(Host) orelse is_text(Host))
        andalso is_integer(Port) andalso Port > 0 andalso Port < 65536;
valid(target, {stdio, [Program | _] = Words}) ->
    is_text(Program) andalso lists:all(fun is_word/1, Words);
valid(protocol, Protocol) -> Protocol =:= http1 orelse Protocol =:= http2;
valid(tls, Options) -> is_list(Options) andalso lists:all(fun is_tuple/1, Options);
valid(era, stateless) -> true;
valid(era, {session, Revision}) ->
    lists:member(Revision, erlmcp_revision:supported(session));
valid(requests, default) -> true;
valid(requests, [_ | _] = Requests) -> lists:all(fun is_request/1, Requests);
valid(loop, hold) -> true;
valid(loop, {closed, Window}) -> is_positive(Window);
valid(loop, {open, {percent, Percent}, Arrivals}) -> valid(loop, {open, Percent, Arrivals});
valid(loop, {open, Rate, Arrivals}) ->
    is_number(Rate) andalso Rate > 0 andalso (Arrivals =:= poisson orelse Arrivals =:= even);
valid(in_flight, default) -> true;
valid(sources, default) -> true;
valid(sources, [_ | _] = Sources) -> lists:all(fun inet:is_ip_address/1, Sources);
valid(environment, Environment) -> erlmcp_load_program:is_environment(Environment);
valid(server_os_pid, none) -> true;
valid(since, Since) -> is_integer(Since) orelse Since =:= begin_of_measuring;
valid(on_second, Fun) -> Fun =:= none orelse is_function(Fun, 1);
valid(observer, Observer) -> Observer =:= none orelse is_pid(Observer);
valid(headers, Headers) ->
    is_list(Headers)
        andalso lists:all(fun({Name, Value}) -> is_field(Name) andalso is_field(Value);
                             (_) -> false
                          end, Headers);
valid(Name, Value) when Name =:= payload_bytes; Name =:= warmup_ms ->
    is_integer(Value) andalso Value >= 0;
valid(Name, Value) when Name =:= connections; Name =:= sessions_per_connection;
                        Name =:= in_flight; Name =:= duration_ms; Name =:= timeout_ms;
                        Name =:= server_os_pid ->
    is_positive(Value);
valid(_, _) -> false.

is_text(Text) when is_binary(Text) -> is_binary(unicode:characters_to_binary(Text));
is_text(Text) -> io_lib:char_list(Text).

%% The arguments of a program may be any bytes.
is_word(Word) ->
    is_list(Word) orelse is_binary(Word).

is_positive(Value) -> is_integer(Value) andalso Value > 0.

%% Returns `true` if a header value has no character that ends its line.
is_field(Value) ->
    is_binary(Value) andalso binary:match(Value, [~"\r", ~"\n", ~"\0"]) =:= nomatch.

is_request({Weight, {Method, Params}}) ->
    is_positive(Weight) andalso is_binary(Method) andalso is_map(Params)
        andalso is_map(maps:get(~"_meta", Params, #{})) andalso is_json([Method, Params]);
is_request(_) ->
    false.

is_json(Term) ->
    try json:encode(Term) of
        _ -> true
    catch
        error:_ -> false
    end.

prepared(#{wire := Wire, wire_options := WireOptions} = Way, Plan) ->
    #{era := Era, connections := Connections, sessions_per_connection := Sessions, loop := Loop,
      duration_ms := Duration, warmup_ms := Warmup, timeout_ms := Timeout,
      server_os_pid := OsPid, observer := Observer, since := Since} = Plan,
    #{in_flight := InFlight, sessions := HasSessions, ordered := Ordered} = Wire:traits(),
    Weighted = case Plan of
        #{requests := default, payload_bytes := Bytes} -> [{1, erlmcp_load_request:echo(Bytes)}];
        #{requests := Given} -> Given
    end,
    Requests = [erlmcp_load_request:new(Request, Era) || {_, Request} <- Weighted],
    Messages = [Message || {Message, _} <- Requests],
    case Sessions =:= 1 orelse HasSessions of
        false ->
            {error, {bad_option, sessions_per_connection}};
        true ->
            {ok, #{wire => Wire, wire_options => WireOptions, ordered => Ordered, way => Way,
                   era => Era, sessions => Sessions, messages => Messages,
                   templates => list_to_tuple([Wire:template(Message, WireOptions)
                                               || Message <- Messages]),
                   expected => [Expected || {_, Expected} <- Requests],
                   weights => weights(Weighted), connections => Connections,
                   loop => loop(Loop), window => window(Loop, Plan, InFlight),
                   percent => percent(Loop), callers => callers(Loop),
                   duration_us => Duration * 1000, warmup_us => Warmup * 1000,
                   timeout_us => Timeout * 1000, server_os_pid => OsPid, observer => Observer,
                   since => Since, on_second => on_second(Plan), counts => erlmcp_load_counts:new(),
                   latency => erlmcp_bench_histogram:new(),
                   refusal_latency => erlmcp_bench_histogram:new(),
                   lateness => erlmcp_bench_histogram:new()}}
    end.

percent({open, {percent, Percent}, _}) -> Percent;
percent(_) -> none.

callers({open, {percent, _}, _}) -> ?CALLERS;
callers(_) -> all.

loop({closed, _}) -> closed;
%% The rate is not known yet.
loop({open, {percent, _}, Arrivals}) -> loop({open, 1, Arrivals});
loop({open, Rate, Arrivals}) -> {open, erlmcp_load_schedule:new(Rate, Arrivals)};
loop(hold) -> hold.

window({closed, Window}, _, _) -> Window;
window(_, #{in_flight := default}, InFlight) -> InFlight;
window(_, #{in_flight := InFlight}, _) -> InFlight.

on_second(#{on_second := none}) -> fun(_) -> ok end;
on_second(#{on_second := Fun}) -> Fun.

weights(Weighted) ->
    {Weights, _} = lists:mapfoldl(fun({Kind, {Weight, _}}, Sum) ->
                                      {{Sum + Weight, Kind}, Sum + Weight}
                                  end, 0, lists:enumerate(Weighted)),
    Weights.

-doc """
Draws the kind of the next request at random, by the weights of the plan. A kind is a position in
the `requests` of the plan, from 1 on.
""".
-spec kind(settings()) -> pos_integer().
kind(#{weights := [_]}) ->
    1;
kind(#{weights := Weights}) ->
    {Sum, _} = lists:last(Weights),
    drawn(rand:uniform(Sum), Weights).

drawn(Number, [{UpTo, Kind} | _]) when Number =< UpTo -> Kind;
drawn(Number, [_ | Weights]) -> drawn(Number, Weights).

-doc """
Returns the time at which the windows of errors begin: `since` of the plan, or else `From`, at which
the load begins to measure. Times are in monotonic microseconds.
""".
-spec since(From :: integer(), settings()) -> integer().
since(From, #{since := begin_of_measuring}) -> From;
since(_, #{since := Since}) -> Since.
