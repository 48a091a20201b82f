-module(erlmcp_cluster_operator).
-moduledoc """
Does what an operator asks of the cluster from another program: `erlmcp cluster`. Questions and
answers are JSON.

Internal.
""".

-export([ask/1]).

%% The variable that has the secret if no file is named.
-define(SECRET, "ERLMCP_CLUSTER_SECRET").

-doc """
Answers a question, as `c:erlmcp_server_cluster:operate/2` says. An error is a sentence for people.
Any other answer has the name of this node as its member `own`. The member `do` of the question is:

- `status`: the answer also has the overview (`c:erlmcp_server_cluster:overview/1`).
- `join`, with `options`: the node joins (`erlmcp_cluster:join/1`). `data_dir` and `size` are those
  of that function, `seeds` or `dns` is its `discovery`, and `secret` is a list of the files of the
  secret. If the list is empty, the variable `ERLMCP_CLUSTER_SECRET` has the secret.
- `may_leave`: returns an error if `leave` would (`erlmcp_cluster_store:may_leave/0`). Changes
  nothing.
- `leave`: the node leaves for good (`erlmcp_cluster:leave/0`).
- `forget`, with `node`: a dead node is taken out (`erlmcp_cluster:forget/1`).
""".
-spec ask(Question :: #{binary() => json:decode_value()}) ->
    {ok, json:encode_value()} | {error, binary()}.
ask(#{~"do" := ~"status"}) ->
    case erlmcp_cluster:status() of
        {ok, _} -> {ok, (erlmcp_cluster_figures:overview())#{own => node()}};
        Error -> done(Error)
    end;
ask(#{~"do" := ~"join", ~"options" := #{} = Given}) ->
    case options(Given) of
        {ok, Options} -> done(erlmcp_cluster:join(Options));
        error -> {error, ~"options: expected data_dir, discovery and secret"}
    end;
ask(#{~"do" := ~"may_leave"}) ->
    done(case erlmcp_cluster_sup:is_joined() of
             true -> erlmcp_cluster_store:may_leave();
             false -> {error, not_joined}
         end);
ask(#{~"do" := ~"leave"}) ->
    done(erlmcp_cluster:leave());
ask(#{~"do" := ~"forget", ~"node" := Name}) when is_binary(Name) ->
    %% No atom is made: a member has one.
    Named = [Node || #{node := Node} <- map_get(nodes, erlmcp_cluster_figures:overview()),
                     atom_to_binary(Node) =:= Name],
    case {Named, erlmcp_cluster_sup:is_joined()} of
        {[Node], _} -> done(erlmcp_cluster:forget(Node));
        {[], true} -> done({error, not_member});
        {[], false} -> done({error, not_joined})
    end;
ask(_) ->
    {error, ~"no such command, or a wrong argument: cluster"}.

options(Given) ->
    try
        #{~"data_dir" := Folder, ~"secret" := Files} = Given,
        Secret = case Files of
            [] -> {env, ?SECRET};
            _ -> [{file, File} || File <- Files]
        end,
        Discovery = case Given of
            #{~"seeds" := [_ | _] = Seeds} when length(Seeds) =< 64 ->
                {seeds, [binary_to_atom(Seed) || Seed <- Seeds]};
            #{~"dns" := Name} ->
                {dns, unicode:characters_to_list(Name)}
        end,
        {ok, maps:merge(#{data_dir => Folder, discovery => Discovery,
                          secret => Secret},
                        #{size => Size || #{~"size" := Size} <- [Given]})}
    catch
        error:_ -> error
    end.

done(ok) -> {ok, #{own => node()}};
done({error, Reason}) -> {error, erlmcp_cluster:sentence(Reason)}.
