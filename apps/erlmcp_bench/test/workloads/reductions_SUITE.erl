-module(reductions_SUITE).
-moduledoc "A request takes no more reductions than were recorded, and no fewer without a word.".

-export([suite/0, all/0]).
-export([a_request_takes_what_was_recorded/1]).

suite() ->
    [{timetrap, {minutes, 5}}].

all() ->
    [a_request_takes_what_was_recorded].

a_request_takes_what_was_recorded(_) ->
    case erlmcp_bench_reductions:recorded(filename:join(root(), "bench/reductions.json")) of
        {ok, Recorded} ->
            {ok, Measured} = erlmcp_bench_reductions:measured(),
            [] = maps:keys(Recorded) -- maps:keys(Measured),
            Tolerance = erlmcp_bench_reductions:tolerance_percent(),
            [] =:= [Name || Name := Now <- Measured,
                            off(Now, maps:get(Name, Recorded, 0)) > Tolerance]
                orelse ct:fail("Reductions of a request, now ~p, recorded ~p. If that is meant, "
                               "record them anew: bench/reductions.sh", [Measured, Recorded]);
        {other_otp, Otp} ->
            {comment, ["recorded on OTP ", Otp]}
    end.

off(_, 0) -> infinity;
off(Now, Recorded) -> 100 * abs(Now - Recorded) / Recorded.

root() ->
    root(filename:dirname(proplists:get_value(source, module_info(compile)))).

root(Folder) ->
    case filelib:is_regular(filename:join([Folder, "bin", "erlmcp"])) of
        true -> Folder;
        false -> root(filename:dirname(Folder))
    end.
