-module(erlmcp_chaos_needs).
-moduledoc "What a fault needs of the machine, and what of it is not there.".

-export([missing/1]).

-doc "A sentence for each thing that is missing.".
-spec missing([erlmcp_chaos_scenario:need()]) -> [binary()].
missing(Needs) ->
    lists:append([missing_one(Need) || Need <- Needs]).

missing_one(root) ->
    [~"it needs the rights of root" || not is_root()];
missing_one({program, Name}) ->
    [<<"it needs the program ", (list_to_binary(Name))/binary>>
     || os:find_executable(Name) =:= false].

%% The effective user is the second of the four.
is_root() ->
    case file:read_file("/proc/self/status") of
        {ok, Status} ->
            re:run(Status, ~"^Uid:\\s+\\d+\\s+0\\s", [multiline, {capture, none}]) =:= match;
        {error, _} ->
            false
    end.
