-module(erlmcp_test_schema_suite).
-moduledoc """
The official test suite of JSON Schema, as `scripts/schema_suite.sh` finds it. `folder/0` fails if
the suite cannot be had.
""".

-export([folder/0, files/2, read/1, remotes/1, compile/4]).

-define(DIALECTS, #{
    "draft2020-12" => ~"https://json-schema.org/draft/2020-12/schema",
    "draft2019-09" => ~"https://json-schema.org/draft/2019-09/schema",
    "draft7" => ~"http://json-schema.org/draft-07/schema#"
}).

folder() ->
    Source = proplists:get_value(source, module_info(compile)),
    Script = find("scripts/schema_suite.sh", filename:dirname(Source)),
    Port = open_port({spawn_executable, Script}, [exit_status, {line, 4096}, stderr_to_stdout]),
    wait(Port, []).

wait(Port, Lines) ->
    receive
        {Port, {data, {_, Line}}} -> wait(Port, [Line | Lines]);
        {Port, {exit_status, 0}} -> hd(Lines);
        {Port, {exit_status, _}} -> error({no_test_suite, lists:reverse(Lines)})
    end.

find(Name, Folder) ->
    Path = filename:join(Folder, Name),
    case filelib:is_regular(Path) of
        true -> Path;
        false when Folder =/= "/" -> find(Name, filename:dirname(Folder))
    end.

%% Draft may have a folder inside of it: "draft7/optional".
files(Folder, Draft) ->
    [_ | _] = filelib:wildcard(filename:join([Folder, "tests", Draft, "*.json"])).

read(File) ->
    {ok, Text} = file:read_file(File),
    json:decode(Text).

%% What the suite means to be served under this address.
remotes(Folder) ->
    Remotes = filename:join(Folder, "remotes"),
    Wanted = maps:keys(?DIALECTS),
    #{<<"http://localhost:1234/", (list_to_binary(Name))/binary>> =>
          read(filename:join(Remotes, Name))
      || Name <- filelib:wildcard("**/*.json", Remotes),
         [Top | _] <- [filename:split(Name)],
         string:prefix(Top, "draft") =:= nomatch orelse lists:member(Top, Wanted)}.

compile(Schema, Draft, Remotes, Options) ->
    [Name | _] = filename:split(Draft),
    erlmcp_schema:compile(Schema, Options#{dialect => map_get(Name, ?DIALECTS),
                                           schemas => Remotes}).
