-module(erlmcp_visibility).
-moduledoc """
Makes the `visible` fun of a definition safe to call. The fun is user code, and runs in processes of
the server, such as those of connections. If it crashes, or returns neither `true` nor `false`, the
definition is hidden, and that is logged, at most once a minute for each definition.

Internal.
""".

-export([guarded/3]).

%% Seconds between two log entries of one definition.
-define(QUIET, 60).

-doc """
Returns `Source`, a definition of the server with the key `Key`, with a `visible` that never crashes
and returns `true` or `false`. A definition without such a fun is returned as it is.
""".
-spec guarded(erlmcp_definition:kind(), Source :: erlmcp_definition:source(), Key :: reference()) ->
    erlmcp_definition:source().
guarded(Kind, #{visible := Visible} = Source, Key) when is_function(Visible, 1) ->
    Named = maps:with([name, uri, uri_template], Source),
    Logged = atomics:new(1, []),
    ok = atomics:put(Logged, 1, erlang:monotonic_time(second) - ?QUIET),
    Log = {Key, Logged},
    Source#{visible := fun(Principal) -> sees(Principal, Visible, {Kind, Named}, Log) end};
guarded(_, Source, _) ->
    Source.

sees(Principal, Visible, Definition, Log) ->
    try Visible(Principal) of
        Sees when is_boolean(Sees) -> Sees;
        Other -> hidden(error, {bad_return, visible, Other}, [], Definition, Log)
    catch
        Class:Reason:Stack -> hidden(Class, Reason, Stack, Definition, Log)
    end.

hidden(Class, Reason, Stack, {Kind, Named}, {Key, Logged}) ->
    Last = atomics:get(Logged, 1),
    Now = erlang:monotonic_time(second),
    %% If several processes do this at the same time, one of them logs.
    _ = Now - Last >= ?QUIET
        andalso atomics:compare_exchange(Logged, 1, Last, Now) =:= ok
        andalso erlmcp_log:report(error, (erlmcp_incident:outline(Reason, Stack))#{
                                             what => visible_crashed, kind => Kind,
                                             definition => Named, class => Class}, Key),
    false.
