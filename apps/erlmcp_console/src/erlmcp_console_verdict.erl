-module(erlmcp_console_verdict).
-moduledoc """
Judges whether a server is well, since when, and because of what: the console's first line. A
verdict is a value that gets facts from time to time. A cause stays for ten seconds after it was
last seen, so that the verdict does not change each second. Pure.
""".

-export([new/1, next/3]).

-export_type([verdict/0, cause/0, facts/0, tool/0, bound/0]).

-doc """
A verdict at a time in milliseconds. `since` is when the first of its causes began, or when the last
one ended.
""".
-type verdict() :: #{
    well := boolean(), since := integer(), causes := [cause()],
    %% for the next verdict: when each cause was last seen
    seen := #{Key :: term() => integer()}
}.
-doc """
A cause of being not well, in words. `link` is the section of the page that shows the cause, and
`key` tells it from others.
""".
-type cause() :: #{key := term(), words := binary(), link := binary(), since := integer()}.
-doc """
The facts about a server.

- `state`: `open`, or the name of the refusal of all new requests.
- `windows`: those of the error budget.
- `requests`, `refused`: the requests of the last minute that ended, and those that the gate has
  refused, by code.
- `tools`: the tools of the last minute. `p95_us`: of all requests of that minute.
- `bounds`: how much of each is used. `forecast_ms`: milliseconds until it is met.
- `open_breakers`: targets that are not called for a while. `pools`: pools of clients with members
  that are not, and how many of how many are. `mounts_gone`: prefixes of mounted
  servers that do not run.
- `processors`: the share of the processors' time that the node uses.
- `latency_ms`: the bound of `p95_us`.
""".
-type facts() :: #{
    state := open | atom(),
    windows := [#{window := pos_integer(), zone := atom(), requests := non_neg_integer(),
                  faults := non_neg_integer()}],
    requests := non_neg_integer(),
    refused := [{Code :: pos_integer(), Name :: atom(), Count :: pos_integer()}],
    tools := [tool()],
    p95_us := non_neg_integer(),
    bounds := [bound()],
    open_breakers := [binary()],
    pools := [{Name :: binary(), Open :: pos_integer(), Members :: pos_integer()}],
    mounts_gone := [binary()],
    processors := float() | undefined,
    latency_ms := pos_integer()
}.
-type tool() :: #{name := binary(), calls := non_neg_integer(), errors := non_neg_integer(),
                  refusals := non_neg_integer(), p95_us := non_neg_integer()}.
-type bound() :: #{name := binary(), used := number(), limit := pos_integer() | infinity,
                   forecast_ms := non_neg_integer() | none}.

%% Milliseconds that a cause stays.
-define(STAYS, 10_000).
%% The share of a bound that is no longer well, as the alerts of ops/ have it.
-define(NEAR, 0.8).
%% A bound that will be met this soon is a cause.
-define(SOON_MS, 1_800_000).
-define(BUSY, 0.9).
%% Requests of a minute below which a percentile says nothing, and calls of a tool.
-define(LEAST, 20).
-define(LEAST_CALLS, 5).
%% The share of a minute's requests that may be refused for want of room.
-define(REFUSED, 0.01).

-doc "Returns the verdict on a server of which nothing is known yet.".
-spec new(AtMs :: integer()) -> verdict().
new(At) ->
    #{well => true, since => At, causes => [], seen => #{}}.

-doc "Returns the verdict with these facts, which are those of the time `At`.".
-spec next(facts(), At :: integer(), verdict()) -> verdict().
next(Facts, At, #{causes := Before, seen := SeenBefore, since := Since, well := Well}) ->
    Found = causes(Facts),
    Begun = #{Key => Cause || #{key := Key} = Cause <- Before},
    Fresh = [Cause#{since => maps:get(since, maps:get(Key, Begun, #{}), At)}
             || #{key := Key} = Cause <- Found],
    FreshKeys = [Key || #{key := Key} <- Fresh],
    Stale = [Cause || #{key := Key} = Cause <- Before, not lists:member(Key, FreshKeys),
                      At - maps:get(Key, SeenBefore) < ?STAYS],
    Causes = Fresh ++ Stale,
    Seen = maps:merge(maps:with([Key || #{key := Key} <- Stale], SeenBefore),
                      maps:from_keys(FreshKeys, At)),
    IsWell = Causes =:= [],
    #{well => IsWell, causes => Causes, seen => Seen,
      since => case IsWell of
                   Well -> Since;
                   _ -> At
               end}.

%% The order is that of the page: first what keeps requests out.
causes(Facts) ->
    state(Facts) ++ mounts(Facts) ++ breakers(Facts) ++ pools(Facts) ++ budget(Facts)
        ++ refused(Facts) ++ failing_tools(Facts) ++ latency(Facts) ++ bounds(Facts)
        ++ processors(Facts).

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

mounts(#{mounts_gone := Prefixes}) ->
    [cause({mount, Prefix}, ~"server", [~"The mounted server ", Prefix, ~" does not run."])
     || Prefix <- Prefixes].

breakers(#{open_breakers := Targets}) ->
    [cause({breaker, Target}, ~"dependencies",
           [~"A circuit breaker is open: too many calls of ", Target, ~" failed in a row."])
     || Target <- Targets].

pools(#{pools := Pools}) ->
    [cause({pool, Name}, ~"dependencies",
           [integer_to_binary(Open), ~" of ", integer_to_binary(Members),
            ~" members of the pool of clients ", Name,
            ~" get no calls: too many of their calls failed in a row."])
     || {Name, Open, Members} <- Pools].

%% The shortest window that is not green tells what happens now.
budget(#{windows := Windows} = Facts) ->
    case [Window || #{zone := Zone, faults := Faults} = Window <- Windows,
                    Zone =/= green, Faults > 0] of
        [] ->
            [];
        [#{window := Seconds, requests := Requests, faults := Faults} | _] ->
            [cause(budget, ~"refusals",
                   [count(Faults), ~" of ", count(Requests), ~" requests of the last ",
                    seconds(Seconds), ~" failed by the server's own fault", most_refused(Facts),
                    ~"."])]
    end.

most_refused(#{tools := Tools}) ->
    case lists:reverse(lists:sort([{Refusals, Name} || #{refusals := Refusals, name := Name}
                                                           <- Tools, Refusals > 0])) of
        [{_, Name} | _] -> [~", most of them of ", Name];
        [] -> []
    end.

%% Refusals for want of room: 1001 to 1005 of the queue, 1056 to 1060 of rates and limits.
refused(#{refused := Refused, requests := Requests}) ->
    Room = [{Count, Code, Name} || {Code, Name, Count} <- Refused,
                                   Code =< 1005 orelse Code >= 1056 andalso Code =< 1060],
    Sum = lists:sum([Count || {Count, _, _} <- Room]),
    case Sum > ?REFUSED * Requests andalso Sum >= ?LEAST_CALLS of
        true ->
            {_, Code, Name} = lists:max(Room),
            [cause(refused, ~"refusals",
                   [count(Sum), ~" requests of the last minute were refused for want of room, ",
                    ~"most with ", integer_to_binary(Code), ~", ", spaced(Name), ~"."])];
        false ->
            []
    end.

failing_tools(#{tools := Tools}) ->
    [cause({tool, Name}, ~"tools",
           [~"The tool ", Name, ~" fails: ", count(Failed), ~" of its ", count(Calls),
            ~" calls of the last minute."])
     || #{name := Name, calls := Calls, errors := Errors, refusals := Refusals} <- Tools,
        Failed <- [Errors + Refusals], Calls >= ?LEAST_CALLS, 2 * Failed > Calls].

latency(#{p95_us := P95, latency_ms := Bound, requests := Requests, tools := Tools}) when
    P95 > Bound * 1000, Requests >= ?LEAST
->
    Slow = lists:reverse(lists:sort([{Of, Name} || #{name := Name, p95_us := Of} <- Tools,
                                                   Of > Bound * 1000])),
    [cause(latency, ~"tools",
           [~"One request in twenty takes longer than ", milliseconds(P95), ~"; the bound is ",
            milliseconds(Bound * 1000),
            case Slow of
                [{Most, Name} | _] ->
                    [~". The slowest tool is ", Name, ~" (", milliseconds(Most), ~")."];
                [] ->
                    ~"."
            end])];
latency(_) ->
    [].

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

spaced(Name) ->
    binary:replace(atom_to_binary(Name), ~"_", ~" ", [global]).

%% 1234567 is 1,234,567.
count(Number) when Number < 1000 -> integer_to_binary(Number);
count(Number) ->
    Rest = string:pad(integer_to_binary(Number rem 1000), 3, leading, $0),
    [count(Number div 1000), $,, Rest].

seconds(Seconds) when Seconds < 120 -> [integer_to_binary(Seconds), ~" s"];
seconds(Seconds) -> [integer_to_binary(Seconds div 60), ~" min"].

minutes(Milliseconds) ->
    case round(Milliseconds / 60_000) of
        Minutes when Minutes =< 1 -> ~"a minute";
        Minutes -> [integer_to_binary(Minutes), ~" minutes"]
    end.

milliseconds(Us) when Us < 10_000 -> [float_to_binary(Us / 1000, [{decimals, 1}]), ~" ms"];
milliseconds(Us) when Us < 1_000_000 -> [integer_to_binary(round(Us / 1000)), ~" ms"];
milliseconds(Us) -> [float_to_binary(Us / 1_000_000, [{decimals, 1}]), ~" s"].
