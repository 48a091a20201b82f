-module(erlmcp_visibility).
-moduledoc """
The `visible` fun of a definition, made safe to ask: it is code of the user's that runs in the
process of a connection. Where it crashes, or says neither true nor false, the definition is hidden,
and the log has it, once a minute for each definition.
""".

-export([guarded/2]).

%% Seconds between two log entries of one definition.
-define(QUIET, 60).

-doc "The definition with a `visible` that always answers.".
-spec guarded(erlmcp_definition:kind(), erlmcp_definition:source()) -> erlmcp_definition:source().
guarded(Kind, #{visible := Visible} = Source) when is_function(Visible, 1) ->
    Named = maps:with([name, uri, uri_template], Source),
    Logged = atomics:new(1, []),
    ok = atomics:put(Logged, 1, erlang:monotonic_time(second) - ?QUIET),
    Source#{visible := fun(Principal) -> sees(Principal, Visible, {Kind, Named}, Logged) end};
guarded(_, Source) ->
    Source.

sees(Principal, Visible, Definition, Logged) ->
    try Visible(Principal) of
        Sees when is_boolean(Sees) -> Sees;
        Other -> hidden(error, {bad_return, visible, Other}, [], Definition, Logged)
    catch
        Class:Reason:Stack -> hidden(Class, Reason, Stack, Definition, Logged)
    end.

hidden(Class, Reason, Stack, {Kind, Named}, Logged) ->
    Last = atomics:get(Logged, 1),
    Now = erlang:monotonic_time(second),
    %% Of those that come here at once, one logs.
    _ = Now - Last >= ?QUIET
        andalso atomics:compare_exchange(Logged, 1, Last, Now) =:= ok
        andalso erlmcp_log:report(error, #{what => visible_crashed, kind => Kind,
                                           definition => Named, class => Class, reason => Reason,
                                           stacktrace => Stack}),
    false.
