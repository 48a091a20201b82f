-module(erlmcp_rate_limited_log).
-moduledoc """
What a peer does wrong, for the log: of each kind one warning in ten seconds, with the number of
those that were left out since the last. A value of the process that complains.

Internal.
""".

-export([new/1, add/3]).

-export_type([complaints/0]).

%% Milliseconds between two warnings of a kind.
-define(PAUSE, 10_000).

-opaque complaints() :: #{
    about := map(), kinds := #{atom() => {Logged :: integer(), Omitted :: non_neg_integer()}}
}.

-doc "No complaints yet. `About` stands in every one.".
-spec new(About :: map()) -> complaints().
new(About) ->
    #{about => About, kinds => #{}}.

-doc "Logs it, or counts it.".
-spec add(Kind :: atom(), Details :: map(), complaints()) -> complaints().
add(Kind, Details, #{about := About, kinds := Kinds} = Complaints) ->
    Now = erlang:monotonic_time(millisecond),
    case Kinds of
        #{Kind := {Logged, Omitted}} when Now - Logged < ?PAUSE ->
            Complaints#{kinds := Kinds#{Kind := {Logged, Omitted + 1}}};
        #{} ->
            {_, Omitted} = maps:get(Kind, Kinds, {none, 0}),
            ok = erlmcp_log:report(warning, maps:merge(Details, About#{what => Kind,
                                                                       omitted => Omitted})),
            Complaints#{kinds := Kinds#{Kind => {Now, 0}}}
    end.
