-module(erlmcp_console_verdict).
-moduledoc """
The verdict on a server: whether it is well, since when, and why not. A verdict is a value that gets
facts from time to time, and has the causes of trouble in them (`m:erlmcp_console_causes`). A cause
stays for ten seconds after it was last seen, so that the verdict does not change each second. Pure.
""".

-export([new/1, next/3]).

-export_type([verdict/0, cause/0]).

-doc """
A verdict. `well` is `true` without causes. `since` is when `well` has changed last, in milliseconds
of system time.
""".
-type verdict() :: #{
    well := boolean(), since := integer(), causes := [cause()],
    %% for the next verdict: when each cause was last seen
    seen := #{Key :: term() => integer()}
}.
-doc """
A cause: its text (`words`), and the section of the page that shows it (`link`). `since` is when the
cause began, in milliseconds of system time. Two causes with one `key` are the same. `usual` has the
usual times of a slow tool.
""".
-type cause() :: #{key := term(), words := binary(), link := binary(), since := integer(),
                   usual => erlmcp_console_causes:usual()}.

%% Milliseconds that a cause stays.
-define(STAYS, 10_000).

-doc """
Returns the verdict on a server of which nothing is known yet: it is well since `AtMs`, in
milliseconds of system time.
""".
-spec new(AtMs :: integer()) -> verdict().
new(At) ->
    #{well => true, since => At, causes => [], seen => #{}}.

-doc "Returns the verdict after facts that were found at `At`, in milliseconds of system time.".
-spec next(erlmcp_console_causes:facts(), At :: integer(), verdict()) -> verdict().
next(Facts, At, #{causes := Before, seen := SeenBefore, since := Since, well := Well}) ->
    Begun = #{Key => Cause || #{key := Key} = Cause <- Before},
    Fresh = [Cause#{since => maps:get(since, maps:get(Key, Begun, #{}), At)}
             || #{key := Key} = Cause <- erlmcp_console_causes:causes(as_before(Begun, Facts))],
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

%% The usual times of a slow tool are those from before it became slow.
as_before(Begun, #{tools := Tools} = Facts) ->
    Facts#{tools := [case Begun of
                         #{{slow, Name} := #{usual := Usual}} -> Tool#{usual := Usual};
                         #{} -> Tool
                     end || #{name := Name} = Tool <- Tools]}.
