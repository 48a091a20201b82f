-module(erlmcp_cli_node).
-moduledoc """
Reaches a running node for its operator: by the control socket of `erlmcp serve`
(`m:erlmcp_cli_control`), or by Erlang's distribution.
""".

-export([arguments/0, ask/3, set_cookie/0]).

%% Milliseconds until a node has answered a question that needs no time.
-define(ANSWER_MS, 10_000).

-doc "Returns the `argparse` arguments that name a node, and `--json`.".
-spec arguments() -> [argparse:argument()].
arguments() ->
    [#{name => control, long => "-control", required => false,
       help => {"[--control <file>]",
                ["the control socket of `erlmcp serve`; by default that of the only one that "
                 "runs"]}},
     #{name => node, long => "-node", required => false,
       help => {"[--node <name@host>]",
                ["an Erlang node instead; its cookie is in ~/.erlang.cookie, or in the variable "
                 "ERLMCP_COOKIE"]}},
     #{name => json, long => "-json", type => boolean, default => false,
       help => "print the result as JSON, and nothing else"}].

-doc """
Asks the node that the arguments name, and returns its answer. If they name none, asks the only
`erlmcp serve` that the user runs on this machine. The node has ten seconds plus `Milliseconds` to
answer. With `--node`, this node starts Erlang's distribution and sets its cookie.

The error has a sentence.

- `usage`: the arguments name two nodes, or none although several `erlmcp serve` run. Or the value
  of the variable `ERLMCP_COOKIE` is too long for a cookie.
- `unreachable`: no node was reached, or it did not answer in time, or its answer was cut off.
- `failed`: the answer is an error, or the node does not run erlmcp.
""".
-spec ask(argparse:arg_map(), Question :: #{atom() => term()}, Milliseconds :: non_neg_integer()) ->
    {ok, json:decode_value()} | {usage | failed | unreachable, unicode:chardata()}.
ask(#{node := _, control := _}, _, _) ->
    {usage, "--node and --control: one of them was expected"};
%% No atom is longer.
ask(#{node := Node}, _, _) when length(Node) > 255 ->
    {usage, ["--node ", Node, ": a name of 255 characters at most was expected"]};
ask(#{node := Node}, Question, Milliseconds) ->
    maybe
        ok ?= distributed(Node),
        %% The name is the user's own word.
        {ok, Answer} ?= called(list_to_atom(Node), json:encode(Question),
                               ?ANSWER_MS + Milliseconds),
        decoded(Node, Answer)
    end;
ask(#{control := File}, Question, Milliseconds) ->
    case asked(File, Question, Milliseconds) of
        gone -> {unreachable, [File, ": no erlmcp serve listens there"]};
        Answer -> Answer
    end;
ask(_, Question, Milliseconds) ->
    case [File || File <- erlmcp_cli_control:files(), is_there(File)] of
        [File] ->
            ask(#{control => File}, Question, Milliseconds);
        [] ->
            {unreachable, ["no erlmcp serve of yours runs here: there is no control socket in ",
                           erlmcp_cli_folders:control()]};
        [_, _ | _] = Files ->
            {usage, ["several erlmcp serve run, name one of them:",
                     [["\n  --control ", File] || File <- Files]]}
    end.

%% A process that was killed has left its file.
is_there(File) ->
    case erlmcp_cli_control:ask(File, json:encode(#{command => servers}), ?ANSWER_MS) of
        {error, gone} ->
            _ = file:delete(File),
            false;
        _ ->
            true
    end.

asked(File, Question, Milliseconds) ->
    case erlmcp_cli_control:ask(File, json:encode(Question), ?ANSWER_MS + Milliseconds) of
        {ok, Answer} -> decoded(File, Answer);
        {error, gone} -> gone;
        {error, Why} -> {unreachable, [File, ": ", reason(Why)]}
    end.

reason(timeout) -> "no answer came in time";
reason(closed) -> "the connection was closed without an answer";
reason(Posix) -> inet:format_error(Posix).

%% A server may be killed while it answers, and the named socket may be another program's.
decoded(Asked, Answer) ->
    try json:decode(Answer) of
        #{~"ok" := Found} -> {ok, Found};
        #{~"error" := Sentence} when is_binary(Sentence) -> {failed, Sentence};
        _ -> not_whole(Asked)
    catch
        error:_ -> not_whole(Asked)
    end.

not_whole(Asked) ->
    {unreachable, [Asked, ": the answer was cut off, or is not of erlmcp"]}.

%% This node has no name of its own, and nobody can connect to it.
distributed(Node) ->
    Domain = case string:find(Node, ".") of
        nomatch -> shortnames;
        _ -> longnames
    end,
    case net_kernel:start(undefined, #{name_domain => Domain}) of
        {ok, _} -> set_cookie();
        {error, {already_started, _}} -> set_cookie();
        {error, _} -> {unreachable, "Erlang's distribution cannot be started"}
    end.

-doc """
Sets the cookie of this node to the value of the variable `ERLMCP_COOKIE`, if it has one. Otherwise
the node keeps the cookie of `~/.erlang.cookie`, or of `ERL_FLAGS`. If the value is too long for a
cookie, returns `usage` with a sentence.
""".
-spec set_cookie() -> ok | {usage, unicode:chardata()}.
set_cookie() ->
    cookie(os:getenv("ERLMCP_COOKIE", "")).

cookie("") ->
    ok;
%% No atom is longer.
cookie(Cookie) when length(Cookie) > 255 ->
    {usage, "ERLMCP_COOKIE: a cookie of 255 characters at most was expected"};
cookie(Cookie) ->
    true = erlang:set_cookie(list_to_atom(Cookie)),
    ok.

%% This node has its name from the first node that it connects to.
called(Node, Question, Milliseconds) ->
    try
        true = net_kernel:connect_node(Node),
        {ok, iolist_to_binary(erpc:call(Node, erlmcp_operator, ask, [iolist_to_binary(Question)],
                                        Milliseconds))}
    catch
        error:Reason when Reason =:= {badmatch, false}; Reason =:= {erpc, noconnection} ->
            {unreachable, [atom_to_list(Node), ": the node was not reached, or the cookie is "
                           "another"]};
        error:{erpc, timeout} ->
            {unreachable, [atom_to_list(Node), ": no answer came in time"]};
        error:{exception, undef, _} ->
            {failed, [atom_to_list(Node), ": this node does not run erlmcp"]}
    end.
