-module(erlmcp_cli_scenario).
-moduledoc """
`erlmcp scenario`: runs a load scenario against erlmcp servers, which it starts, or against any MCP
servers. The command shows the phases on stderr while it runs, and the figures on stdout at the end.
""".

-export([command/0]).

%% Seconds between two lines if there is no terminal to draw a bar on.
-define(PAUSE, 10).

-doc "Returns the command `scenario` for `argparse`, with its arguments and its handler.".
-spec command() -> argparse:command().
command() ->
    #{help => "run a load scenario: clients that come and go in phases, and what they get",
      arguments => [
          #{name => scenario, type => {atom, [Name || #{name := Name} <- all()]},
            help => {"<scenario>", [lists:join(", ", [atom_to_list(Name)
                                                      || #{name := Name} <- all()])]}},
          option(nodes, "-nodes", {integer, [{min, 1}, {max, 100}]},
                 "servers of our own, each in a process of its own; 1, in chaos 2"),
          (option(url, "-url", string, "load this MCP server instead; may stand again"))
              #{action => append},
          option(transport, "-transport", {atom, [tcp, http1, http2]},
                 "tcp, http1 or http2; tcp, and http1 for a URL"),
          option(duration, "-duration", number(),
                 "seconds of the whole; each phase keeps its share"),
          option(scale, "-scale", number(), "the part of the clients to start, such as 0.1"),
          option(profile, "-profile", {atom, [Name || {Name, _} <- erlmcp_bench_profile:all()]},
                 {"[--profile <profile>]",
                  ["these clients instead of the scenario's own: ",
                   lists:join(", ", [atom_to_list(Name)
                                     || {Name, _} <- erlmcp_bench_profile:all()])]}),
          option(metrics, "-metrics", {integer, [{min, 0}, {max, 65535}]},
                 "publish the generator's metrics for Prometheus on this port, and those of the "
                 "nodes on the next ones; 0 for free ones"),
          option(method, "-method", string,
                 "the method of the requests; tools/call of the tool echo"),
          option(params, "-params", string, "its parameters, as JSON"),
          option(era, "-era", {string, ["stateless" | revisions()]},
                 {"[--era <era>]", ["stateless (the default), or a revision that has sessions, "
                                    "such as 2025-06-18"]}),
          option(timeout, "-timeout", {integer, [{min, 1}, {max, 3600}]},
                 "seconds until a request without an answer has failed; 10"),
          option(json, "-json", string, {"[--json <folder>]", ["write the result there"]})],
      handler => fun run/1}.

all() -> erlmcp_bench_scenarios:all().

revisions() -> [binary_to_list(Revision) || Revision <- erlmcp_revision:supported(session)].

number() -> {custom, fun erlmcp_cli_values:part/1}.

option(Name, Long, Type, Help) ->
    #{name => Name, long => Long, type => Type, required => false, help => Help}.

run(#{scenario := Name} = Parsed) ->
    maybe
        {ok, Options} ?= options(Parsed),
        {ok, _} = application:ensure_all_started(erlmcp_cli),
        {ok, Outcome} ?= erlmcp_bench_scenario:run(Name, Options#{on_event => fun shown/1}),
        ok = erlmcp_cli_terminal:clear(),
        ok = erlmcp_cli_output:print(erlmcp_cli_scenario_text:outcome(Outcome)),
        ended(Outcome, Parsed)
    else
        {usage, Why} ->
            erlmcp_cli_output:complain(Why),
            usage;
        {error, Reason} ->
            ok = erlmcp_cli_terminal:clear(),
            erlmcp_cli_output:complain(erlmcp_cli_scenario_text:failure(Reason)),
            outcome(Reason)
    end.

outcome({bad_option, _, _}) -> usage;
outcome({needs_own_nodes, _}) -> usage;
outcome(_) -> failed.

options(#{nodes := _, url := _}) ->
    {usage, "--nodes and --url: one of them was expected"};
options(Parsed) ->
    maybe
        {ok, Requests} ?= requests(Parsed),
        {ok, maps:merge(Requests, maps:from_list(
            [{Name, Value} || Name := Value <- Parsed,
                              lists:member(Name, [nodes, transport, scale, profile, metrics])]
            ++ [{urls, [unicode:characters_to_binary(Url) || Url <- Urls]}
                || #{url := Urls} <- [Parsed]]
            ++ [{duration_s, Seconds} || #{duration := Seconds} <- [Parsed]]
            ++ [{timeout_ms, Seconds * 1_000} || #{timeout := Seconds} <- [Parsed]]
            ++ [{era, era(Era)} || #{era := Era} <- [Parsed]]))}
    end.

era("stateless") -> stateless;
era(Revision) -> {session, list_to_binary(Revision)}.

requests(#{method := Method} = Parsed) ->
    Text = unicode:characters_to_binary(maps:get(params, Parsed, "{}")),
    case erlmcp_cli_json:decode(Text) of
        {ok, #{} = Params} ->
            {ok, #{requests => [{1, {unicode:characters_to_binary(Method), Params}}]}};
        {ok, _} ->
            {usage, "--params: a JSON object was expected"};
        {error, Where} ->
            {usage, ["--params: it is not JSON: ", Where]}
    end;
requests(#{params := _}) ->
    {usage, "--params: a --method was expected with it"};
requests(_) ->
    {ok, #{}}.

shown(#{event := second, elapsed_s := Elapsed, duration_s := Duration} = Event) ->
    Line = erlmcp_cli_scenario_text:event(Event),
    case erlmcp_cli_terminal:is_terminal(2) of
        true ->
            erlmcp_cli_terminal:progress(#{~"progress" => Elapsed, ~"total" => ceil(Duration),
                                           ~"message" => unicode:characters_to_binary(Line)});
        false when Elapsed rem ?PAUSE =:= 0 ->
            erlmcp_cli_terminal:say(Line);
        false ->
            ok
    end;
shown(Event) ->
    erlmcp_cli_terminal:say(erlmcp_cli_scenario_text:event(Event)).

ended(Outcome, #{json := Folder}) ->
    case erlmcp_bench_scenario_result:write(Outcome, Folder) of
        {ok, Files} ->
            _ = [ok = erlmcp_cli_terminal:say(["written: ", File]) || File <- Files],
            ended(Outcome, #{});
        %% The text that was shown says so.
        {error, nothing_answered} ->
            ended(Outcome, #{});
        {error, Reason} ->
            erlmcp_cli_output:complain(erlmcp_bench_result:format_error(Reason)),
            erlmcp_cli_exit:unkept(Reason)
    end;
ended(#{status := passed}, _) -> ok;
ended(#{status := failed}, _) -> failed.
