-module(erlmcp_cli_load).
-moduledoc """
`erlmcp load`: puts any MCP server under load from the command's node, and prints the outcome in a
table. With `--json` it also writes a result file.
""".

-export([command/0]).

-define(POSITIVE, {custom, fun erlmcp_cli_values:positive/1}).

-doc "Returns the command `load` for `argparse`, with its arguments and its handler.".
-spec command() -> argparse:command().
command() ->
    #{help => "put a server under load, and show the outcome",
      arguments => where() ++ what() ++ how(),
      handler => fun run/1}.

where() ->
    [#{name => server, required => false,
       help => {"[<url>]", ["an MCP endpoint, such as http://127.0.0.1:8080/mcp; or --stdio or "
                            "--tcp instead"]}},
     option(url, "the same URL, given as an option"),
     option(stdio, "start this program for each connection, and speak on its stdin and stdout; no "
                   "shell runs"),
     (option(env, {"[--env <name>[=<value>]]",
                   ["an environment variable for the program of --stdio, with this value or its "
                    "current one; may stand again"]}))#{action => append},
     option(tcp, "HOST:PORT, with one JSON-RPC message a line; IPv6 in brackets"),
     (option(protocol, {"[--protocol <protocol>]", ["http1 (the default) or http2"]}))
         #{type => {atom, [http1, http2]}},
     (option(header, "'Name: value', a header of every HTTP request; {id} is the request's id; may "
                     "stand again"))#{action => append},
     option(token, "a bearer token; other users do not see the variable ERLMCP_TOKEN"),
     option(cacert, {"[--cacert <file>]",
                     ["PEM with the roots to trust instead of the system's"]}),
     (option(source, "an address to connect from; may stand again, and several are taken in "
                     "turn"))#{type => {custom, fun erlmcp_cli_values:address/1}, action => append},
     (option(server_pid, "the server's process on this machine, to show its processor time and "
                         "memory"))#{type => {integer, [{min, 1}]}}].

what() ->
    [(option(era, {"[--era <era>]", ["auto (the default: with a URL what its server speaks), "
                                     "stateless, session, or a revision that has sessions, such "
                                     "as 2025-06-18"]}))
         #{type => {string, ["auto", "stateless", "session"
                             | [binary_to_list(Revision)
                                || Revision <- erlmcp_revision:supported(session)]]}},
     (option(mix, {"[--mix <requests>]",
                   ["requests and their weights: 'tools/call echo=9,tools/list=1'; after the name, "
                    "arguments as JSON; by default calls of the tool echo or, if the server of a "
                    "URL has no such tool, lists of tools"]}))
         #{type => {custom, fun erlmcp_cli_values:mix/1}},
     (counted(payload, 0, "bytes of text for the tool echo if --mix gives it no arguments; 64"))
         #{default => 64}].

how() ->
    [(counted(connections, 1, "connections that are open at once; 1"))#{default => 1},
     counted(sessions, 1, "sessions on each connection, on HTTP in the session era; 1"),
     counted(window, 1, "requests in flight on each connection, in a closed loop; 1"),
     (option(rate, "requests a second over all connections, in an open loop: each is sent when it "
                   "is due, and its latency begins then"))#{type => ?POSITIVE},
     (option(arrivals, {"[--arrivals <arrivals>]",
                        ["the distances of those requests: poisson (the default), or even"]}))
         #{type => {atom, [poisson, even]}},
     counted(in_flight, 1, "requests in flight on each connection at most, in an open loop; 1 on "
                           "HTTP/1.1, 100 on HTTP/2, else 32"),
     (option(duration, "seconds to measure; 10"))#{type => ?POSITIVE, default => 10},
     (option(warmup, "seconds before the measurement; 1"))
         #{type => {custom, fun erlmcp_cli_values:seconds/1}, default => 1},
     (option(timeout, "seconds that a request waits for its reply; 10"))
         #{type => ?POSITIVE, default => 10},
     option(json, {"[--json <folder>]", ["write the result there"]}),
     (option(workload, {"[--workload <workload>]", ["the result's workload_id; load"]}))
         #{type => {string, "^[a-z0-9_]{3,64}$"}, default => "load"}].

option(Name, Help) ->
    #{name => Name, long => lists:flatten([$-, string:replace(atom_to_list(Name), "_", "-", all)]),
      required => false, help => Help}.

counted(Name, Least, Help) ->
    (option(Name, Help))#{type => {integer, [{min, Least}, {max, 100_000_000}]}}.

run(#{server := _, url := _}) ->
    erlmcp_cli_output:complain("a URL and --url: one of them was expected"),
    usage;
run(#{server := Url} = Parsed) ->
    run((maps:remove(server, Parsed))#{url => Url});
run(Parsed) ->
    maybe
        {ok, Target} ?= target(Parsed),
        {ok, Environment} ?= environment(Parsed),
        {ok, Headers} ?= headers(Parsed),
        ok ?= erlmcp_cli_target:check_roots(Parsed),
        ok ?= one_loop(Parsed),
        {ok, _} = application:ensure_all_started(erlmcp_cli),
        Plan = plan(Target, Headers, Environment, Parsed),
        measured(maps:merge(Plan, detected(Parsed)), Parsed)
    else
        {error, Sentence} ->
            erlmcp_cli_output:complain(Sentence),
            usage
    end.

target(Parsed) ->
    case maps:to_list(maps:with([url, stdio, tcp], Parsed)) of
        [{url, Url}] -> {ok, {http, unicode:characters_to_binary(Url)}};
        [{tcp, Address}] -> tcp(Address);
        [{stdio, Command}] -> program(Command);
        _ -> {error, "one of a URL, --stdio and --tcp was expected"}
    end.

tcp(Address) ->
    case erlmcp_cli_target:target(#{tcp => Address, timeout => 1}, #{}) of
        {ok, {tcp, Host, Port, _}} -> {ok, {tcp, Host, Port}};
        {error, _} = Error -> Error
    end.

program(Command) ->
    case erlmcp_cli_target:target(#{stdio => Command, timeout => 1}, #{}) of
        {ok, {stdio, Words, _}} -> {ok, {stdio, Words}};
        {error, _} = Error -> Error
    end.

%% The environment of a program, as commands such as `erlmcp list` set it.
environment(#{stdio := Command} = Parsed) ->
    Given = maps:with([env], Parsed),
    case erlmcp_cli_target:target(Given#{stdio => Command, timeout => 1}, #{}) of
        {ok, {stdio, _, #{env := Env}}} -> {ok, erlmcp_stdio_environment:changes(safe, Env)};
        {error, _} = Error -> Error
    end;
environment(#{env := _}) ->
    {error, "--env: only a program of --stdio has that"};
environment(_) ->
    {ok, []}.

headers(#{url := _} = Parsed) ->
    case erlmcp_cli_target:target((maps:with([url, header, token], Parsed))#{timeout => 1}, #{}) of
        {ok, {http, _, Options}} ->
            Given = maps:get(headers, Options, []),
            {ok, [{string:lowercase(Name), Value} || {Name, Value} <- Given]
                 ++ [{~"authorization", <<"Bearer ", Token/binary>>}
                     || #{token := Token} <- [Options]]};
        {error, _} = Error ->
            Error
    end;
headers(Parsed) ->
    case maps:keys(maps:with([header, token, cacert, protocol, source], Parsed)) of
        [] -> {ok, []};
        [source] when is_map_key(tcp, Parsed) -> {ok, []};
        _ -> {error, "--header, --token, --cacert, --protocol: only a URL has those, and --source "
                     "what has an address"}
    end.

one_loop(#{rate := _, window := _}) ->
    {error, "--rate is for an open loop and --window for a closed one"};
one_loop(#{rate := _}) ->
    ok;
one_loop(Parsed) ->
    case maps:keys(maps:with([arrivals, in_flight], Parsed)) of
        [] -> ok;
        _ -> {error, "--arrivals and --in-flight are for an open loop, which needs --rate"}
    end.

plan(Target, Headers, Environment, #{connections := Connections, payload := Payload} = Parsed) ->
    Loop = case Parsed of
        #{rate := Rate} -> {open, Rate, maps:get(arrivals, Parsed, poisson)};
        #{} -> {closed, maps:get(window, Parsed, 1)}
    end,
    Given = [{protocol, protocol}, {source, sources}, {server_pid, server_os_pid},
             {sessions, sessions_per_connection}, {in_flight, in_flight}],
    maps:merge(
        #{target => Target, headers => Headers, environment => Environment,
          era => era(Parsed), connections => Connections, payload_bytes => Payload, loop => Loop,
          requests => requests(Parsed),
          tls => [{cacertfile, File} || #{cacert := File} <- [Parsed]],
          duration_ms => milliseconds(duration, Parsed),
          warmup_ms => milliseconds(warmup, Parsed), timeout_ms => milliseconds(timeout, Parsed)},
        #{Name => Value || {Option, Name} <- Given, #{Option := Value} <- [Parsed]}).

era(#{era := "session"}) -> {session, erlmcp_revision:name(erlmcp_revision:latest(session))};
era(#{era := Revision}) when Revision =/= "stateless", Revision =/= "auto" ->
    {session, list_to_binary(Revision)};
era(_) ->
    stateless.

%% Asks a server for its era and tools, if the arguments leave these open. If the server does not
%% answer, the load uses the defaults, and its outcome shows the reason.
detected(#{url := Url} = Parsed) ->
    Auto = maps:get(era, Parsed, "auto") =:= "auto",
    case Auto orelse not is_map_key(mix, Parsed) of
        true -> detected(Url, maps:remove(era, Parsed), Auto);
        false -> #{}
    end;
detected(_) ->
    #{}.

detected(Url, #{timeout := Seconds} = Parsed, Auto) ->
    Chosen = (maps:with([url, header, token, cacert], Parsed))#{timeout => ceil(Seconds)},
    {ok, Target} = erlmcp_cli_target:target(Chosen, #{}),
    case erlmcp_cli_sup:start_client(Target) of
        {ok, Client} ->
            try
                maps:merge(era(erlmcp_client:server(Client), Auto),
                           default_requests(Url, Client, Parsed))
            after
                erlmcp_client:stop(Client)
            end;
        {error, _} ->
            #{}
    end.

era({ok, #{revision := Revision}}, true) ->
    case erlmcp_revision:era(Revision) of
        stateless -> #{era => stateless};
        session -> #{era => {session, erlmcp_revision:name(Revision)}}
    end;
era(_, _) ->
    #{}.

default_requests(_, _, #{mix := _}) ->
    #{};
default_requests(Url, Client, _) ->
    case erlmcp_client:list_tools(Client) of
        {ok, Tools} ->
            case lists:any(fun is_echo/1, Tools) of
                true ->
                    #{};
                false ->
                    erlmcp_cli_terminal:say([Url, " has no tool echo with a text: its tools are "
                                             "listed; --mix sets other requests"]),
                    #{requests => [{1, {~"tools/list", #{}}}]}
            end;
        {error, _} ->
            #{}
    end.

is_echo(#{~"name" := ~"echo"} = Tool) ->
    case Tool of
        #{~"inputSchema" := #{~"properties" := #{} = Properties}} when map_size(Properties) > 0 ->
            is_map_key(~"text", Properties);
        #{} ->
            true
    end;
is_echo(_) ->
    false.

requests(#{mix := Mix, payload := Payload}) -> erlmcp_cli_load_mix:requests(Mix, Payload);
requests(#{payload := Payload}) -> [{1, erlmcp_load_request:echo(Payload)}].

milliseconds(Option, Parsed) ->
    ceil(maps:get(Option, Parsed) * 1000).

measured(#{duration_ms := Duration} = Plan, Parsed) ->
    Shown = erlmcp_cli_terminal:is_terminal(2),
    ok = erlmcp_bench_environment:begins(),
    ok = show(Shown, 0, #{}),
    OnSecond = fun(Sample) -> show(Shown, Duration / 1000, Sample) end,
    Outcome = erlmcp_load:run(Plan#{on_second => OnSecond}),
    ok = erlmcp_cli_terminal:clear(),
    case Outcome of
        {ok, Report} ->
            erlmcp_cli_output:print(erlmcp_cli_load_table:report(Plan, Report)),
            kept(Plan, Report, Parsed);
        {error, Reason} ->
            erlmcp_cli_output:complain(erlmcp_cli_load_table:failure(Reason)),
            case Reason of
                {bad_option, _} -> usage;
                _ -> failed
            end
    end.

show(false, _, _) ->
    ok;
show(true, _, Sample) when map_size(Sample) =:= 0 ->
    erlmcp_cli_terminal:progress(#{~"progress" => 0, ~"total" => 1, ~"message" => ~"begins"});
show(true, Seconds, #{at_s := At} = Sample) ->
    erlmcp_cli_terminal:progress(#{~"progress" => min(At, Seconds), ~"total" => Seconds,
                                   ~"message" => erlmcp_cli_load_table:second(Sample)}).

kept(Plan, Report, #{json := Folder, workload := Workload}) ->
    Result = erlmcp_bench_result:from_load(base(Workload, Plan), Report),
    case erlmcp_bench_result:write(Result, Folder) of
        {ok, File} ->
            erlmcp_cli_output:print([File, $\n]),
            outcome(Report);
        {error, Reason} ->
            erlmcp_cli_output:complain(erlmcp_bench_result:format_error(Reason)),
            erlmcp_cli_exit:unkept(Reason)
    end;
kept(_, Report, _) ->
    outcome(Report).

%% A server under load may refuse requests and fail. It must not send a wrong reply.
outcome(#{answered := Answered, wrong := Wrong}) when Answered > 0, Wrong =:= 0 -> ok;
outcome(_) -> failed.

base(Workload, #{target := Target, connections := Connections, era := Era, loop := Loop,
                 payload_bytes := Payload, requests := Requests} = Plan) ->
    Mix = #{mix => erlmcp_load_request:mix(without_payload(Requests, Payload))
            || Requests =/= [{1, erlmcp_load_request:echo(Payload)}]},
    Given = #{Name => Number || {Option, Name} <- [{sessions_per_connection, sessions},
                                                   {in_flight, in_flight_requests}],
                                #{Option := Number} <- [Plan]},
    Common = (maps:merge(Mix, Given))#{
        workload_id => list_to_binary(Workload), benchmark => ~"load", scope => per_node,
        transport => transport(Target, maps:get(protocol, Plan, http1)),
        connections => Connections, payload_bytes => Payload,
        against => erlmcp_cli_load_table:name(Target),
        era => case Era of
                   stateless -> ~"stateless";
                   {session, Revision} -> Revision
               end},
    case Loop of
        {open, Rate, Arrivals} ->
            Common#{loop => ~"open", arrivals => Arrivals, offered_msg_per_s => Rate};
        {closed, Window} ->
            Common#{loop => ~"closed", in_flight_requests => Window}
    end.

%% The size of the text is a member of its own.
without_payload(Requests, Payload) ->
    {Method, Params} = Echo = erlmcp_load_request:echo(Payload),
    [case Request of
         Echo -> {Weight, {Method, maps:remove(~"arguments", Params)}};
         _ -> {Weight, Request}
     end || {Weight, Request} <- Requests].

transport({tcp, _, _}, _) -> tcp;
transport({stdio, _}, _) -> stdio;
transport({http, <<"https", _/binary>>}, http1) -> http1_tls;
transport({http, <<"https", _/binary>>}, http2) -> http2_tls;
transport({http, _}, Protocol) -> Protocol.
