-module(erlmcp_console_causes).
-moduledoc """
Says why a server is not well, in words. Each fact beyond its bound is a cause, with a link to the
section of the page that shows it. Pure.
""".

-export([causes/1]).

-export_type([facts/0, tool/0, usual/0, bound/0, growth/0, trouble/0, cluster/0]).

-doc """
The facts about a server.

- `state`: `open`, or the name of the refusal of all new requests.
- `windows`: those of the error budget.
- `requests`: how many ended in the last `seconds`.
- `refused`: how many of these were refused, by the number of the refusal.
- `faults`: how many requests failed by the server's own fault, in the last five to ten seconds and
  in the last minute.
- `flood`: how many requests come `per_second`, and how many `times` the usual number that is. This
  number is the mean from the server's start until some seconds ago, and at least 1. `flood` is
  `none` if `times` would be less than 4, or if the server has just started.
- `p95_us`: a time that 5 of 100 of the `timed` requests exceeded. These are the recent ones that
  had a result without `isError`, except runs of tasks and `subscriptions/listen`.
- `tools`: the tools, each with the figures of its own last seconds.
- `running`: the calls of tools that run; `[]` while no page shows the server.
- `bounds`: how much of each bound is used. `forecast_ms`: milliseconds until the bound is met, or
  `none`.
- `growth`: what grows steadily, however far its bound is.
- `troubles`: errors of the machine, which the log has.
- `open_breakers`: names of breakers, and the definitions that are not called for a while.
- `pools`: pools of clients, how many of their members are not called for a while, and how many
  members they have.
- `upstreams`: servers that clients of the node call, with their requests of the last `seconds`
  (`calls`). `failed` of these got no answer, most often for the `reason`.
- `mounts_gone`: prefixes of mounted servers that do not run.
- `cluster`: the nodes of the server's cluster, if it has one.
- `processors`: the share of the processors' time that the node uses; `undefined` while the readings
  are too close together to tell.
- `latency_ms`: the bound of `p95_us`.
""".
-type facts() :: #{
    state := open | atom(),
    windows := [#{window := pos_integer(), zone := atom(), requests := non_neg_integer(),
                  faults := non_neg_integer()}],
    seconds := number(),
    requests := non_neg_integer(),
    refused := [{Code :: pos_integer(), Name :: atom(), Count :: pos_integer()}],
    faults := {Recent :: non_neg_integer(), Minute :: non_neg_integer()},
    flood := none | #{per_second := float(), times := float()},
    timed := non_neg_integer(),
    p95_us := non_neg_integer(),
    tools := [tool()],
    running := [#{target := binary(), age_ms := non_neg_integer()}],
    bounds := [bound()],
    growth := [growth()],
    troubles := [trouble()],
    open_breakers := [{Name :: binary(), Targets :: [binary()]}],
    pools := [{Name :: binary(), Open :: pos_integer(), Members :: pos_integer()}],
    upstreams := [#{name := binary(), seconds := number(), calls := non_neg_integer(),
                    failed := non_neg_integer(), reason := none | atom()}],
    mounts_gone := [binary()],
    cluster := cluster(),
    processors := float() | undefined,
    latency_ms := pos_integer()
}.
-doc """
The calls of a tool that ended in the last `seconds`. Of these, `errors` had a result with
`isError`, and `refusals` an error. `faults` are the errors by the server's own fault, in the last
five to ten seconds and in the last minute. In the last `timed_seconds`, `timed` calls had a result
without `isError`, and so a time: half of them exceeded `p50_us`, and 5 of 100 `p95_us`. `reason` is
the most frequent reason why calls of the last minute failed, other than an open breaker or a
cancellation. `usual` has the times from the start of the server until some seconds ago. It is
`none` if fewer than 20 calls had a time, or their times are not needed.
""".
-type tool() :: #{
    name := binary(), seconds := number(), calls := non_neg_integer(),
    errors := non_neg_integer(), refusals := non_neg_integer(),
    faults := {Recent :: non_neg_integer(), Minute :: non_neg_integer()},
    timed := non_neg_integer(), timed_seconds := number(), reason := reason(),
    p50_us := non_neg_integer(), p95_us := non_neg_integer(), usual := usual() | none
}.
-doc """
The code and the name of a refusal, `tool_error` for a result with `isError`, or `none` if no call
failed.
""".
-type reason() :: none | tool_error | {Code :: pos_integer(), Name :: atom()}.
-doc "Times that half of the calls, and 5 of 100 calls, exceeded.".
-type usual() :: #{p50_us := non_neg_integer(), p95_us := non_neg_integer()}.
-type bound() :: #{name := binary(), used := number(), limit := pos_integer() | infinity,
                   forecast_ms := non_neg_integer() | none}.
-doc """
Something that grows, by `per_second`: bytes of memory, or processes, ports or atoms. Its bound has
the name `name`, and is met in `met_ms` milliseconds if the growth goes on. `place` says where most
of the growth is, or is `none` if nothing was found. `tool` is the only tool with calls that ended
during the growth, and their number. `tool` is `none` if no tool, or more than one, had such calls.
""".
-type growth() :: #{
    name := memory | processes | ports | atoms, per_second := number(),
    met_ms := non_neg_integer(), place := binary() | none,
    tool := none | {Name :: binary(), Calls :: pos_integer()}
}.
-doc """
An error of the machine: how often the log had it in the last minute (`count`), and the `place`
where it was seen last.
""".
-type trouble() :: #{
    error := atom(), count := pos_integer(), place := none | {tool, Name :: binary()}
}.
-doc """
A cluster: the milliseconds for which this node's lease is valid (`lease`), and all nodes. The value
is `null` for a server that is in no cluster.
""".
-type cluster() :: null | #{
    lease := non_neg_integer(), nodes := [#{node := binary(), state := atom(), _ => _}], _ => _
}.
-type cause() :: #{key := term(), words := binary(), link := binary(), usual => usual()}.

%% The share of a bound from which on it is a cause; `ops/alerts.yml` has the same.
-define(NEAR, 0.8).
%% A bound that will be met this soon is a cause. Processes, ports and atoms also grow when clients
%% come, so a leak of them has to be nearer to its bound.
-define(SOON_MS, 1_800_000).
-define(VERY_SOON_MS, 600_000).
-define(BUSY, 0.9).
%% The fewest requests from which the time of 95 of 100 says something. The fewest calls of a tool
%% from which the time of half of them does.
-define(LEAST, 20).
-define(LEAST_CALLS, 5).
%% The share of the requests that may be refused for want of room.
-define(REFUSED, 0.01).
%% A slow tool takes at least this many times as long as usual.
-define(SLOWER, 4).
%% The age of calls that are held up, and the least number of them.
-define(HELD_UP_MS, 5_000).
-define(HELD_UP, 3).

-doc """
Returns the causes of a server's trouble, in the order of the page: first those that keep requests
out. Returns `[]` for a server that is well.
""".
-spec causes(facts()) -> [cause()].
causes(Facts) ->
    Slow = slow_tools(Facts) ++ held_up(Facts),
    state(Facts) ++ cluster(Facts) ++ troubles(Facts) ++ mounts(Facts) ++ breakers(Facts)
        ++ pools(Facts) ++ upstreams(Facts) ++ budget(Facts) ++ refused(Facts)
        ++ failing_tools(Facts) ++ Slow ++ latency(Slow, Facts) ++ growth(Facts)
        ++ bounds(Facts) ++ processors(Facts).

cause(Key, Link, Words) ->
    #{key => Key, link => Link, words => iolist_to_binary(Words)}.

state(#{state := open}) ->
    [];
state(#{state := server_shutting_down}) ->
    [cause(state, ~"refusals", ~"The server is being drained: it refuses new requests (1077).")];
state(#{state := resource_exhausted}) ->
    [cause(state, ~"machine", ~"Memory is full: the server refuses new requests (1089).")];
state(#{state := service_unavailable}) ->
    [cause(state, ~"machine",
           ~"The processors are too busy: the server refuses new requests (1078).")];
state(#{state := Name}) ->
    [cause(state, ~"refusals", [~"The server refuses new requests: ", spaced(Name), ~"."])].

troubles(#{troubles := Troubles}) ->
    [cause({trouble, Error}, ~"incidents",
           [trouble(Error), ~" (", atom_to_binary(Error), ~"): the log has ", reports(Count),
            ~" of that in the last minute", place(Place), ~"."])
     || #{error := Error, count := Count, place := Place} <- Troubles].

trouble(enospc) -> ~"A disk is full";
trouble(edquot) -> ~"A quota of a disk is used up";
trouble(erofs) -> ~"A file system takes no writes";
trouble(eio) -> ~"A disk or a device fails";
trouble(emfile) -> ~"The node has no file descriptor left";
trouble(enfile) -> ~"The machine has no file descriptor left";
trouble(enomem) -> ~"The machine has no memory left".

reports(1) -> ~"one report";
reports(Count) -> [count(Count), ~" reports"].

place(none) -> [];
place({tool, Name}) -> [~", the last one of the tool ", Name].

cluster(#{cluster := null}) ->
    [];
cluster(#{cluster := #{lease := 0}}) ->
    [cause(cluster, ~"cluster",
           <<"This node has lost its contact with the cluster, so the server refuses sessions "
             "(1080).">>)];
cluster(#{cluster := #{nodes := Nodes}}) ->
    [cause({node, Node}, ~"cluster", [~"The node ", Node, ~" of the cluster does not run."])
     || #{node := Node, state := dead} <- Nodes].

mounts(#{mounts_gone := Prefixes}) ->
    [cause({mount, Prefix}, ~"server", [~"The mounted server ", Prefix, ~" does not run."])
     || Prefix <- Prefixes].

breakers(#{open_breakers := Open, tools := Tools}) ->
    [cause({breaker, Name}, ~"dependencies",
           [~"A circuit breaker is open: too many calls of ", Name, ~" failed in a row",
            [most_failed(Tool) || #{name := Of} = Tool <- Tools, [Of] =:= Targets], ~"."])
     || {Name, Targets} <- Open].

pools(#{pools := Pools}) ->
    [cause({pool, Name}, ~"dependencies",
           [integer_to_binary(Open), ~" of ", integer_to_binary(Members),
            ~" members of the pool of clients ", Name,
            ~" get no calls: too many of their calls failed in a row."])
     || {Name, Open, Members} <- Pools].

upstreams(#{upstreams := Upstreams}) ->
    [cause({upstream, Name}, ~"dependencies",
           [~"The upstream ", Name, ~" does not answer: ", count(Failed), ~" of ", count(Calls),
            ~" requests to it of the last ", seconds(Seconds), ~" got no answer, most with ",
            spaced(Reason), ~"."])
     || #{name := Name, seconds := Seconds, calls := Calls, failed := Failed,
          reason := Reason} <- Upstreams, Calls >= ?LEAST_CALLS, 2 * Failed > Calls].

most_failed(#{reason := none}) -> [];
most_failed(#{reason := tool_error}) -> ~", most with an error in the result";
most_failed(#{reason := {Code, Name}}) -> [~", most with ", coded(Code, Name)].

%% The shortest window with enough requests tells what happens now. A longer window is not green for
%% minutes after the last fault.
budget(#{windows := Windows} = Facts) ->
    Told = [Window || #{requests := Requests} = Window <- Windows, Requests >= ?LEAST],
    case {[Zone || #{zone := Zone} <- Windows, Zone =/= green], Told} of
        {[_ | _], [#{window := Seconds, requests := Requests, faults := Faults} | _]}
                when Faults > 0 ->
            [cause(budget, ~"refusals",
                   [count(Faults), ~" of ", count(Requests), ~" requests of the last ",
                    seconds(Seconds), ~" failed by the server's own fault",
                    most_faults(Seconds, Faults, Facts), ~"."])];
        _ ->
            []
    end.

%% The tool of more than half of the `Told` faults of a window, if there is one. The facts of a tool
%% may be those of a shorter time. They may also count errors that are no faults.
most_faults(Window, Told, #{tools := Tools} = Facts) ->
    All = faults(Window, Facts),
    case [Name || #{name := Name} = Tool <- Tools, Of <- [faults(Window, Tool)],
                  Of =< All, 2 * Of > max(All, Told)] of
        [Name] -> [~", most of them of ", Name];
        _ -> []
    end.

faults(Window, #{faults := {Recent, _}}) when Window =< 10 -> Recent;
faults(_, #{faults := {_, Minute}}) -> Minute.

%% Refusals for want of room: 1001 to 1005 of the queue, 1056 to 1060 of rates and limits.
refused(#{refused := Refused, requests := Requests, seconds := Seconds} = Facts) ->
    Room = [{Count, Code, Name} || {Code, Name, Count} <- Refused,
                                   Code =< 1005 orelse Code >= 1056 andalso Code =< 1060],
    Sum = lists:sum([Count || {Count, _, _} <- Room]),
    case Sum > ?REFUSED * Requests andalso Sum >= ?LEAST_CALLS of
        true ->
            {_, Code, Name} = lists:max(Room),
            [cause(refused, ~"refusals",
                   [flood(Facts), count(Sum), ~" requests of the last ", seconds(Seconds),
                    ~" were refused for want of room, most with ", coded(Code, Name), ~"."])];
        false ->
            []
    end.

flood(#{flood := none}) ->
    [];
flood(#{flood := #{per_second := PerSecond, times := Times}}) ->
    [~"A flood: ", count(round(PerSecond)), ~" requests come in a second, ", count(round(Times)),
     ~" times as many as before. "].

%% A breaker that is open says why the calls of its tool fail.
failing_tools(#{tools := Tools, open_breakers := Open}) ->
    [cause({tool, Name}, ~"tools",
           [~"The tool ", Name, ~" fails: ", count(Failed), ~" of its ", count(Calls),
            ~" calls of the last ", seconds(Seconds), most_failed(Tool), ~"."])
     || #{name := Name, calls := Calls, errors := Errors, refusals := Refusals,
          seconds := Seconds} = Tool <- Tools,
        not lists:any(fun({_, Targets}) -> lists:member(Name, Targets) end, Open),
        Failed <- [Errors + Refusals], Calls >= ?LEAST_CALLS, 2 * Failed > Calls].

slow_tools(#{tools := Tools, latency_ms := Bound}) ->
    [(cause({slow, Name}, ~"tools",
            [~"The tool ", Name, ~" is slow: ", Share, ~" of its calls of the last ",
             seconds(Seconds), ~" took longer than ", milliseconds(Now), ~", and before that ",
             milliseconds(Before), ~"."]))#{usual => Usual}
     || #{name := Name, timed_seconds := Seconds, usual := #{} = Usual} = Tool <- Tools,
        {Share, Now, Before} <- compared(Tool),
        Now >= Bound * 1000, Now >= ?SLOWER * Before].

compared(#{timed := Timed, p95_us := Now, usual := #{p95_us := Before}}) when Timed >= ?LEAST ->
    [{~"one in twenty", Now, Before}];
compared(#{timed := Timed, p50_us := Now, usual := #{p50_us := Before}}) when
    Timed >= ?LEAST_CALLS
->
    [{~"half", Now, Before}];
compared(_) ->
    [].

%% The meter does not know the time of a call that has not ended.
held_up(#{running := Running, tools := Tools}) ->
    [cause({held_up, Name}, ~"calls",
           [~"The tool ", Name, ~" is held up: ", count(length(Ages)),
            ~" of its calls have run for more than ",
            milliseconds(1000 * lists:min(Ages)), ~". One in twenty took longer than ",
            milliseconds(P95), ~" before."])
     || #{name := Name, usual := #{p95_us := P95}} <- Tools,
        Ages <- [[Age || #{target := Target, age_ms := Age} <- Running, Target =:= Name,
                         Age >= ?HELD_UP_MS, 1000 * Age >= ?SLOWER * P95]],
        length(Ages) >= ?HELD_UP].

%% A tool that is slower than usual says why.
latency([], #{p95_us := P95, latency_ms := Bound, timed := Timed, tools := Tools}) when
    P95 >= Bound * 1000, Timed >= ?LEAST
->
    Slow = lists:reverse(lists:sort([{Of, Name} || #{name := Name, p95_us := Of} <- Tools,
                                                   Of >= Bound * 1000])),
    [cause(latency, ~"tools",
           [~"One request in twenty takes longer than ", milliseconds(P95), ~"; the bound is ",
            milliseconds(Bound * 1000),
            case Slow of
                [{Most, Name} | _] ->
                    [~". The slowest tool is ", Name, ~" (", milliseconds(Most), ~")."];
                [] ->
                    ~"."
            end])];
latency(_, _) ->
    [].

growth(#{growth := Growths}) ->
    [cause({growth, Name}, ~"machine",
           [grows(Name, PerSecond), minutes(Met), ~" if that goes on", where(Name, Place),
            called(Tool), ~"."])
     || #{name := Name, per_second := PerSecond, met_ms := Met, place := Place,
          tool := Tool} <- Growths, Met =< horizon(Name)].

horizon(memory) -> ?SOON_MS;
horizon(_) -> ?VERY_SOON_MS.

grows(memory, PerSecond) ->
    [~"The node's memory grows by ", bytes(PerSecond), ~" a second, and will be full in about "];
grows(Name, PerSecond) ->
    [~"The node has ", count(round(PerSecond)), ~" more ", atom_to_binary(Name),
     ~" each second, and as many as it may in about "].

where(_, none) -> [];
where(memory, Place) -> [~". Most of it is in ", Place];
where(_, Place) -> [~". Most are ", Place].

called(none) -> [];
called({Name, Calls}) ->
    [~". All ", count(Calls), ~" calls meanwhile were of the tool ", Name].

bounds(#{bounds := Bounds}) ->
    lists:append([bound(Bound) || Bound <- Bounds]).

bound(#{name := Name, used := Used, limit := Limit} = Bound) when
    is_integer(Limit), Limit > 0, Used >= ?NEAR * Limit
->
    [cause({bound, Name}, ~"bounds",
           [integer_to_binary(floor(100 * Used / Limit)), ~" % of the bound of ", Name,
            ~" are used", soon(Bound), ~"."])];
bound(#{name := Name, forecast_ms := Milliseconds}) when
    is_integer(Milliseconds), Milliseconds =< ?SOON_MS
->
    [cause({bound, Name}, ~"bounds",
           [~"The bound of ", Name, ~" will be met in about ", minutes(Milliseconds),
            ~" if the trend goes on."])];
bound(_) ->
    [].

soon(#{forecast_ms := Milliseconds}) when
    is_integer(Milliseconds), Milliseconds =< ?SOON_MS
->
    [~", and all of it in about ", minutes(Milliseconds), ~" if the trend goes on"];
soon(_) ->
    [].

processors(#{processors := Share}) when is_float(Share), Share > ?BUSY ->
    [cause(processors, ~"machine",
           [~"The node uses ", integer_to_binary(round(100 * Share)),
            ~" % of the processors' time."])];
processors(_) ->
    [].

coded(Code, Name) -> [integer_to_binary(Code), ~", ", spaced(Name)].

spaced(Name) ->
    binary:replace(atom_to_binary(Name), ~"_", ~" ", [global]).

%% 1234567 is 1,234,567.
count(Number) when Number < 1000 -> integer_to_binary(Number);
count(Number) ->
    Rest = string:pad(integer_to_binary(Number rem 1000), 3, leading, $0),
    [count(Number div 1000), $,, Rest].

%% "The last minute" is between two readings, so it is some seconds shorter or longer.
seconds(Seconds) when Seconds >= 55, Seconds =< 75 -> ~"minute";
seconds(Seconds) when Seconds < 120 -> [integer_to_binary(round(Seconds)), ~" s"];
seconds(Seconds) -> [integer_to_binary(round(Seconds) div 60), ~" min"].

minutes(Milliseconds) ->
    case round(Milliseconds / 60_000) of
        Minutes when Minutes =< 1 -> ~"a minute";
        Minutes -> [integer_to_binary(Minutes), ~" minutes"]
    end.

milliseconds(Us) when Us < 10_000 -> [float_to_binary(Us / 1000, [{decimals, 1}]), ~" ms"];
milliseconds(Us) when Us < 1_000_000 -> [integer_to_binary(round(Us / 1000)), ~" ms"];
milliseconds(Us) -> [float_to_binary(Us / 1_000_000, [{decimals, 1}]), ~" s"].

bytes(Bytes) when Bytes < 1_048_576 -> [integer_to_binary(round(Bytes / 1024)), ~" KiB"];
bytes(Bytes) -> [float_to_binary(Bytes / 1_048_576, [{decimals, 1}]), ~" MiB"].
