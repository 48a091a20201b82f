-module(erlmcp_cli_cluster).
-moduledoc """
`erlmcp cluster`: shows the cluster of a running node, lets the node join or leave it, takes a dead
node out, and makes a secret. `erlmcp serve --cluster` joins its cluster by this module, too.
""".

-export([command/0]).
-export([arguments/0, options/2, join/2]).

%% Milliseconds that a node may take to join a cluster, or to leave it.
-define(JOIN_MS, 70_000).
-define(LEAVE_MS, 30_000).
%% Random bytes of a secret.
-define(BYTES, 32).
-define(SECONDS, {integer, [{min, 0}, {max, 86_400}]}).

-doc "Returns the `argparse` command `cluster`.".
-spec command() -> argparse:command().
command() ->
    #{help => "see the cluster of a running node, or change it",
      arguments => [
          #{name => action, type => {atom, [status, join, leave, forget, secret]},
            help => {"<action>",
                     ["status: the nodes, and how many may fail; join: let the node join, with its "
                      "folder, a way to find the others and a secret; leave: drain its servers, "
                      "and take it out for good; forget: take out a dead node; secret: make a new "
                      "secret, and print it or write it into a file"]}},
          #{name => what, required => false,
            help => {"[<folder> | <name@host> | <file>]",
                     ["of join, forget and secret: the folder of the node's part of the store, the "
                      "dead node, or the file"]}}]
          ++ arguments()
          ++ [#{name => seconds, long => "-seconds", default => 8, type => ?SECONDS,
                help => "of leave: seconds that running calls have; 8"},
              #{name => lame, long => "-lame", default => 2, type => ?SECONDS,
                help => "of leave: seconds for which its servers still serve before, and are not "
                        "ready; 2"}]
          ++ erlmcp_cli_node:arguments(),
      handler => fun run/1}.

-doc "Returns the `argparse` arguments by which a node finds its cluster, or forms a new one.".
-spec arguments() -> [argparse:argument()].
arguments() ->
    [#{name => seed, long => "-seed", action => append, required => false,
       help => {"[--seed <name@host>]...",
                ["a node of the cluster; for a new cluster all of them, this one too"]}},
     #{name => dns, long => "-dns", required => false,
       help => {"[--dns <name>]",
                ["instead of --seed: a DNS name whose addresses are those of the nodes"]}},
     #{name => secret, long => "-secret", action => append, required => false,
       help => {"[--secret <file>]...",
                ["the file with the cluster's secret; twice while it is changed, the new one "
                 "first; by default the node's variable ERLMCP_CLUSTER_SECRET has it"]}},
     #{name => size, long => "-cluster-size", type => {integer, [{min, 1}, {max, 64}]},
       help => "how many nodes form a new cluster; by default as many as --seed names, or 3"}].

run(#{action := status} = Arguments) ->
    asked(#{do => status}, 0, fun status/1, Arguments);
run(#{action := join, what := Folder} = Arguments) ->
    case options(Folder, Arguments) of
        {ok, Options} ->
            asked(#{do => join, options => Options}, ?JOIN_MS, said("has joined its cluster"),
                  Arguments);
        {usage, Sentence} ->
            wrong(Sentence)
    end;
run(#{action := join}) ->
    wrong("join: the folder of the node's part of the store was expected");
run(#{action := leave, seconds := Seconds, lame := Lame} = Arguments) ->
    MayLeave = #{command => cluster, do => may_leave},
    Drain = #{command => drain, seconds => Seconds, lame => Lame},
    maybe
        %% A drain is not taken back.
        {ok, _} ?= erlmcp_cli_node:ask(Arguments, MayLeave, ?LEAVE_MS),
        {ok, _} ?= erlmcp_cli_node:ask(Arguments, Drain, 1000 * (Seconds + Lame) + 3000),
        asked(#{do => leave}, ?LEAVE_MS, said("has left its cluster: stop it"), Arguments)
    else
        {Outcome, Sentence} ->
            erlmcp_cli_output:complain(Sentence),
            Outcome
    end;
run(#{action := forget, what := Node} = Arguments) ->
    asked(#{do => forget, node => text(Node)}, ?LEAVE_MS,
          fun(_) -> [Node, " is no node of the cluster any more\n"] end, Arguments);
run(#{action := forget}) ->
    wrong("forget: the name of a dead node was expected, as `erlmcp cluster status` shows it");
run(#{action := secret} = Arguments) ->
    Secret = [base64:encode(crypto:strong_rand_bytes(?BYTES), #{mode => urlsafe, padding => false}),
              $\n],
    case Arguments of
        #{what := File} -> written(File, Secret);
        #{} -> erlmcp_cli_output:print(Secret)
    end.

wrong(Sentence) ->
    erlmcp_cli_output:complain(Sentence),
    usage.

text(Characters) -> unicode:characters_to_binary(Characters).

asked(Question, Milliseconds, Show, #{json := Json} = Arguments) ->
    case erlmcp_cli_node:ask(Arguments, Question#{command => cluster}, Milliseconds) of
        {ok, Found} ->
            erlmcp_cli_output:print(case Json of
                true -> [erlmcp_cli_text:json(Found), $\n];
                false -> Show(Found)
            end);
        {Outcome, Sentence} ->
            erlmcp_cli_output:complain(Sentence),
            Outcome
    end.

said(What) ->
    fun(#{~"own" := Node}) -> [Node, $\s, What, $\n] end.

%% The file has its mode before it has the secret. One that is there may be in use.
written(File, Secret) ->
    Written = maybe
        {ok, Device} ?= file:open(File, [write, exclusive, raw]),
        Result = maybe
            ok ?= file:change_mode(File, 8#600),
            file:write(Device, Secret)
        end,
        ok = file:close(Device),
        Result
    end,
    case Written of
        ok ->
            ok;
        {error, Reason} ->
            erlmcp_cli_output:complain([File, ": ", file:format_error(Reason)]),
            failed
    end.

%% The status.

status(#{~"nodes" := Nodes, ~"majority" := Majority, ~"own" := Own}) ->
    Lines = erlmcp_cli_table:lines(
        [["node", "state", "lease", "sessions", "passed on", "inherited", ""]
         | [[Node, State, lease(Of), figure(~"sessions", Of), figure(~"forwarded", Of),
             figure(~"inherited", Of), notes(Of, Own)]
            || #{~"node" := Node, ~"state" := State} = Of <- Nodes]]),
    Living = length([Of || #{~"state" := ~"alive"} = Of <- Nodes]),
    [[[string:trim(Line, trailing), $\n] || Line <- Lines],
     advice(length(Nodes), Majority, Living), $\n].

lease(#{~"lease_ms" := Left}) -> [float_to_list(Left / 1000, [{decimals, 1}]), " s"];
lease(_) -> "-".

figure(Name, Of) ->
    case Of of
        #{Name := Count} -> integer_to_list(Count);
        #{} -> "-"
    end.

notes(#{~"node" := Node, ~"leads" := Leads} = Of, Own) ->
    lists:join(", ", ["this node" || Node =:= Own] ++ ["leads" || Leads]
                         ++ clock(maps:get(~"clock_ahead_s", Of, 0))).

clock(0) -> [];
clock(Ahead) when Ahead > 0 -> [["its clock is ", integer_to_list(Ahead), " s ahead"]];
clock(Ahead) -> [["its clock is ", integer_to_list(-Ahead), " s behind"]].

advice(1, _, _) ->
    "One node: while it does not run, its sessions wait. Let two more join.";
advice(2, _, _) ->
    "Two nodes, and both make the majority: if one fails, sessions are refused. "
    "Let a third one join.";
advice(Count, Majority, Living) ->
    [integer_to_list(Count), " nodes, and ", integer_to_list(Majority), " make a majority: ",
     case Living - Majority of
         More when More > 0 -> [integer_to_list(More), " more may fail."];
         0 -> "none of those alive may fail.";
         _ -> "there is none, so sessions are refused."
     end].

%% Joining.

-doc """
Returns the options of a node that joins, as `m:erlmcp_cluster_operator` takes them, from those of
the command. `Folder` is that of the node's part of the store. `usage` has a sentence for the user.
""".
-spec options(Folder :: string(), argparse:arg_map()) ->
    {ok, #{binary() => term()}} | {usage, unicode:chardata()}.
options(_, #{seed := _, dns := _}) ->
    {usage, "--seed and --dns: one of them was expected"};
options(_, #{secret := [_, _, _ | _]}) ->
    {usage, "--secret: one file was expected, or two while the secret is changed"};
options(Folder, Arguments) ->
    Found = case Arguments of
        #{seed := Seeds} -> #{~"seeds" => [text(Seed) || Seed <- Seeds]};
        #{dns := Name} -> #{~"dns" => text(Name)};
        #{} -> none
    end,
    case Found of
        none ->
            {usage, "--seed or --dns: a way to find the other nodes was expected"};
        _ ->
            Sizes = #{~"size" => Size || #{size := Size} <- [Arguments]},
            {ok, maps:merge(Found, Sizes#{~"data_dir" => path(Folder),
                                          ~"secret" => [path(File) || File
                                                        <- maps:get(secret, Arguments, [])]})}
    end.

path(File) -> text(filename:absname(File)).

-doc """
Starts Erlang's distribution with `Name`, unless this node has the name already. Starts the
application `erlmcp_cluster`, and lets the node join its cluster with `Options`. After an error, the
distribution and the application are not stopped. The error is a sentence for the user. `usage` has
one too, about the value of `ERLMCP_COOKIE`.
""".
-spec join(Options :: #{binary() => term()}, Name :: string()) ->
    ok | {error | usage, unicode:chardata()}.
join(Options, Name) ->
    maybe
        ok ?= distributed(Name),
        {ok, _} = application:ensure_all_started(erlmcp_cluster),
        {error, Sentence} ?= erlmcp_cluster_operator:ask(#{~"do" => ~"join",
                                                           ~"options" => Options}),
        {error, ["the cluster was not joined: ", Sentence]}
    else
        {ok, _} -> ok;
        Error -> Error
    end.

%% The other nodes find this one by epmd, unless ERL_FLAGS says that there is none.
distributed(Name) ->
    _ = init:get_argument(start_epmd) =:= {ok, [["false"]]} orelse start_epmd(),
    Node = list_to_atom(Name),
    case net_kernel:start(Node, #{name_domain => longnames}) of
        {ok, _} ->
            erlmcp_cli_node:set_cookie();
        {error, {already_started, _}} when node() =:= Node ->
            erlmcp_cli_node:set_cookie();
        {error, {already_started, _}} when node() =/= nonode@nohost ->
            {error, ["--name ", Name, ": this node is ", atom_to_list(node()), " already"]};
        {error, _} ->
            {error, ["--name ", Name, ": a node cannot have this name here, or it has it already"]}
    end.

start_epmd() ->
    Epmd = filename:join([code:root_dir(), "erts-" ++ erlang:system_info(version), "bin", "epmd"]),
    Port = open_port({spawn_executable, Epmd}, [{args, ["-daemon"]}, exit_status]),
    receive {Port, {exit_status, Status}} -> Status end.
