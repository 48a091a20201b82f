-module(erlmcp_chaos_needs).
-moduledoc "Checks what a fault needs from the machine.".

-export([missing/1]).

-doc "Returns a sentence for each missing thing.".
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
