%% The cases are run over HTTP/1.1 and over HTTP/2.

all() ->
    [{group, http}, {group, http2}].

groups() ->
    Cases = erlmcp_test_suite:cases(?MODULE),
    [{Protocol, Cases} || Protocol <- [http, http2]].

init_per_group(Protocol, Config) -> [{protocol, Protocol} | Config].

end_per_group(_, _) ->
    ok.
