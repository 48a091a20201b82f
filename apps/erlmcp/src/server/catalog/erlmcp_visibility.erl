-module(erlmcp_visibility).
-moduledoc """
Makes the `visible` fun of a definition safe to call. If the fun crashes, or returns neither `true`
nor `false`, the definition is hidden. The failure is logged, at most once a minute for each
definition and fun.

Internal.
""".

%% The times of the last minute's entries are in a table of the instance, and not in the fun. So a
%% definition that is given twice has equal funs, and does not seem to have changed.

-export([guarded/3]).

%% Seconds between two log entries of one definition.
-define(QUIET, 60).

-doc """
Returns `Source`, a definition of the server with the key `Key`, with another fun `visible`. This
fun calls the given `visible`, but never crashes and always returns `true` or `false`. The new fun
returns `false` if the given fun crashes or returns another term. A definition without a fun
`visible` of one argument is returned as it is.
""".
-spec guarded(erlmcp_definition:kind(), Source :: erlmcp_definition:source(), Key :: reference()) ->
    erlmcp_definition:source().
guarded(Kind, #{visible := Visible} = Source, Key) when is_function(Visible, 1) ->
    Definition = {Kind, maps:with([name, uri, uri_template], Source)},
    Source#{visible := fun(Principal) -> sees(Principal, Visible, Definition, Key) end};
guarded(_, Source, _) ->
    Source.

sees(Principal, Visible, Definition, Key) ->
    try Visible(Principal) of
        Sees when is_boolean(Sees) -> Sees;
        Other -> hidden(error, {bad_return, visible, Other}, [], {Definition, Visible}, Key)
    catch
        Class:Reason:Stack -> hidden(Class, Reason, Stack, {Definition, Visible}, Key)
    end.

hidden(Class, Reason, Stack, {{Kind, Named}, _} = Guarded, Key) ->
    _ = is_logged(Guarded, Key)
        andalso erlmcp_log:report(error, (erlmcp_incident:outline(Reason, Stack))#{
                                             what => visible_crashed, kind => Kind,
                                             definition => Named, class => Class}, Key),
    false.

is_logged(Guarded, Key) ->
    try
        maybe
            {ok, #{visible_crashes := Logged}} ?= erlmcp_instance:find(Key),
            is_logged(Guarded, erlang:monotonic_time(second), Logged)
        else
            gone -> false
        end
    catch
        %% The table ends with its server.
        error:badarg -> false
    end.

is_logged(Guarded, Now, Logged) ->
    Ago = Now - ?QUIET,
    ets:lookup_element(Logged, Guarded, 2, Ago) =< Ago
        andalso begin
            _ = ets:select_delete(Logged, [{{'_', '$1'}, [{'=<', '$1', Ago}], [true]}]),
            %% If several processes do this at the same time, one of them logs.
            ets:insert_new(Logged, {Guarded, Now})
        end.
