-module(session_event_log_SUITE).
-moduledoc "What a session keeps for clients that come back, against a list that does the same.".

-export([suite/0, all/0]).
-export([keeps_the_newest_within_its_bounds/1, clients_come_back_at_different_times/1]).

-include_lib("proper/include/proper.hrl").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [keeps_the_newest_within_its_bounds, clients_come_back_at_different_times].

keeps_the_newest_within_its_bounds(_) ->
    true = proper:quickcheck(property(), [{numtests, 500}, {to_file, user}]).

%% From one millisecond more than the limit on, to half of it more.
clients_come_back_at_different_times(_) ->
    Range = fun(Limit) ->
        Times = [erlmcp_session_streams:retry_ms(#{retry_ms => Limit}) || _ <- lists:seq(1, 1_000)],
        {lists:min(Times), lists:max(Times)}
    end,
    {11, 15} = Range(10),
    {2, 2} = Range(1).

property() ->
    ?FORALL({Bounds, Steps}, {bounds(), list(step())},
            begin
                Numbered = lists:enumerate(Steps),
                {Log, Model, _} = lists:foldl(fun({Number, Step}, State) ->
                                                  step(Step, Number, Bounds, State)
                                              end, {erlmcp_event_log:new(Bounds), [], 0}, Numbered),
                agrees(Log, Model)
            end).

bounds() ->
    ?LET({Events, Bytes, Ms}, {range(1, 6), range(1, 60), range(1, 20)},
         #{stored_events => Events, stored_bytes => Bytes, stored_ms => Ms}).

%% An event of a stream some time after the one before, or a look at the age of all.
step() ->
    oneof([{append, range(0, 2), binary(), range(0, 5)}, {expire, range(0, 30)}]).

%% The model is the events that are kept, the oldest first.
step({append, Stream, Bytes, Later}, Number, Bounds, {Log, Model, Now}) ->
    Key = {Stream, Number},
    {Dropped, Next} = erlmcp_event_log:append(Key, Bytes, Now + Later, Log),
    Kept = newest(Model ++ [{Key, Bytes, Now + Later}], Bounds),
    gone(Dropped, Model, Kept),
    {Next, Kept, Now + Later};
step({expire, Later}, _, #{stored_ms := Ms}, {Log, Model, Now}) ->
    {Dropped, Next} = erlmcp_event_log:expire(Now + Later, Log),
    Kept = [Event || {_, _, At} = Event <- Model, Now + Later - At < Ms],
    gone(Dropped, Model, Kept),
    {Next, Kept, Now + Later}.

newest([_ | [_ | _] = Rest] = Events, #{stored_events := Max, stored_bytes := MaxBytes} = Bounds) ->
    case length(Events) > Max orelse
         lists:sum([byte_size(Bytes) || {_, Bytes, _} <- Events]) > MaxBytes of
        true -> newest(Rest, Bounds);
        false -> Events
    end;
newest(Events, _) ->
    Events.

gone(Dropped, Before, After) ->
    Keys = [Key || {Key, _, _} <- Before] -- [Key || {Key, _, _} <- After],
    {Keys, Keys} = {Keys, lists:reverse(Dropped)}.

agrees(Log, Model) ->
    Oldest = case Model of
        [] -> none;
        [{_, _, At} | _] -> At
    end,
    Oldest =:= erlmcp_event_log:oldest(Log)
        andalso lists:all(fun({Key, Bytes, _}) ->
                              erlmcp_event_log:find(Key, Log) =:= {ok, Bytes}
                          end, Model).
