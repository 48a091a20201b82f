-module(erlmcp_cli_doctor).
-moduledoc """
`erlmcp doctor`: shows the limits of the machine and the node, what each allows, and how to raise
it.
""".

-export([command/0, checks/1]).

-export_type([check/0]).

-doc """
A limit: its `name`, its `value` now and, of descriptors, the `hard` limit up to which a user may
raise it. Limits of memory are in bytes. `connections` is the number of a server's connections that
the limit allows, if it limits them. `allows` says what else the limit allows, and `raise` how to
raise it.
""".
-type check() :: #{
    name := atom(), value := non_neg_integer(), hard => non_neg_integer() | unlimited,
    connections => non_neg_integer(), allows => binary(), raise := binary()
}.

%% The number in the commands that are shown, such as that of descriptors: enough for a large
%% machine.
-define(ENOUGH, "1048576").
-define(MIB, 1_048_576).

-doc "Returns the command `doctor` for `argparse`, with its arguments and its handler.".
-spec command() -> argparse:command().
command() ->
    #{help => "show what this machine carries, and how to have more",
      arguments => [
          #{name => connections, long => "-connections", type => {integer, [{min, 1}]},
            help => "fail if a server would carry fewer connections"},
          #{name => json, long => "-json", type => boolean, default => false,
            help => "the result as JSON"}],
      handler => fun run/1}.

run(#{json := Json} = Arguments) ->
    Checks = checks(erlmcp_machine:facts("/")),
    {Connections, First} = carried(Checks),
    case Json of
        true ->
            Found = #{checks => Checks, connections => Connections},
            erlmcp_cli_output:print([erlmcp_cli_text:json(Found), $\n]);
        false ->
            erlmcp_cli_output:print(
                [table(Checks),
                 io_lib:format("A server carries ~b connections here: the first limit is ~ts.~n",
                               [Connections, title(First)])])
    end,
    case Arguments of
        #{connections := Wanted} when Wanted > Connections ->
            erlmcp_cli_output:complain(io_lib:format("~b connections were required", [Wanted])),
            failed;
        #{} ->
            ok
    end.

carried(Checks) ->
    lists:min([{Connections, Name} || #{name := Name, connections := Connections} <- Checks]).

-doc "Returns a check for each limit that the facts have.".
-spec checks(erlmcp_machine:facts()) -> [check()].
checks(Facts) ->
    Carried = erlmcp_envelope:carried(Facts),
    [with_connections(Check#{name => Name, value => Value}, Carried)
     || {Name, Describe} <- limits(), #{Name := Value} <- [Facts],
        Check <- [Describe(Value, Facts)]].

with_connections(#{name := Name} = Check, Carried) ->
    maps:merge(Check, #{connections => Number || Limit := Number <- Carried, Limit =:= Name}).

%% Each limit with its effect, other than connections, and the command that raises it.
limits() ->
    [{descriptors, fun descriptors/2},
     {ports, fun(_, _) -> #{raise => flags("+Q " ?ENOUGH)} end},
     {processes, fun(_, _) -> #{raise => flags("+P 16777216")} end},
     {memory, fun(_, _) -> #{raise => ~"a larger machine"} end},
     {group_memory, fun(_, _) -> #{raise => ~"MemoryMax= of the service, --memory of the container"}
                    end},
     {schedulers, fun schedulers/2},
     {backlog, fun backlog/2},
     {local_ports, fun(Number, _) ->
        #{allows => text("~b connections of a client to one address", [Number]),
          raise => ~"sysctl -w net.ipv4.ip_local_port_range=\"1024 65535\""}
      end}].

descriptors(Soft, #{descriptors_hard := Hard}) when Hard =:= unlimited; Hard > Soft ->
    #{hard => Hard, raise => text("ulimit -n ~ts", [hard(Hard)])};
descriptors(_, Facts) ->
    (maps:from_list([{hard, Hard} || #{descriptors_hard := Hard} <- [Facts]]))#{
        raise => text("LimitNOFILE=~ts of the service, or nofile in /etc/security/limits.conf",
                      [?ENOUGH])}.

hard(unlimited) -> ?ENOUGH;
hard(Hard) -> integer_to_list(Hard).

schedulers(Number, Facts) ->
    Cores = maps:get(cores, Facts, Number),
    #{allows => text("as many handlers run at once, on ~b cores", [Cores]),
      raise => case Cores > Number of
                   true -> flags(["+S ", integer_to_list(Cores)]);
                   false -> ~"more cores, or a wider CPU quota"
               end}.

%% A listener has at most the backlog that it requests, even if the system allows a longer one.
backlog(Number, _) ->
    Most = erlmcp_listener:backlog(),
    #{allows => text("~b connections that wait to be accepted", [min(Number, Most)]),
      raise => case Number < Most of
                   true -> text("sysctl -w net.core.somaxconn=~b", [Most]);
                   false -> text("nothing: a listener asks for ~b", [Most])
               end}.

flags(Flags) -> text("ERL_FLAGS=\"~ts\"", [Flags]).

text(Format, Values) -> unicode:characters_to_binary(io_lib:format(Format, Values)).

%% From here on: the checks as text.

title(Name) -> string:replace(atom_to_list(Name), "_", " ", all).

value(#{name := Name, value := Bytes}) when Name =:= memory; Name =:= group_memory ->
    [integer_to_list(Bytes div ?MIB), " MiB"];
value(#{value := Value, hard := Hard}) ->
    io_lib:format("~b (hard limit ~p)", [Value, Hard]);
value(#{value := Value}) ->
    integer_to_list(Value).

allowed(#{connections := Number}) -> [integer_to_list(Number), " connections"];
allowed(#{allows := Allows}) -> Allows.

%% The command that raises a limit is on a line below it, since it is long.
table(Checks) ->
    Rows = [[title(Name), value(Check), allowed(Check)] || #{name := Name} = Check <- Checks],
    Widest = lists:max([string:length(Title) || [Title | _] <- Rows]),
    [[Line, $\n, lists:duplicate(Widest + 2, $\s), "more: ", Raise, $\n]
     || {Line, #{raise := Raise}} <- lists:zip(erlmcp_cli_table:lines(Rows), Checks)].
