-module(query_SUITE).
-moduledoc "Queries that others have written.".

-export([suite/0, all/0]).
-export([examples/1, any_bytes_are_read_or_refused/1]).

-include_lib("proper/include/proper.hrl").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [examples, any_bytes_are_read_or_refused].

examples(_) ->
    erlmcp_test_doctests:run([erlmcp_query]).

%% Nothing that a query can say raises an error.
any_bytes_are_read_or_refused(_) ->
    Part = list(frequency([{3, oneof([~"%26", ~"%23", ~"%3B", ~"%", ~"&", ~"=", ~"+", ~"x", ~"9"])},
                           {1, binary(1)}])),
    erlmcp_test_property:holds(?FORALL(Parts, Part, begin
        case erlmcp_query:parameters(iolist_to_binary(Parts)) of
            error -> true;
            {ok, Read} -> lists:all(fun({Name, Value}) ->
                is_binary(Name) andalso (is_binary(Value) orelse Value =:= true)
            end, Read)
        end
    end), 2_000).
