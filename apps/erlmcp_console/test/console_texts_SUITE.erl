-module(console_texts_SUITE).
-moduledoc """
What the page has of its own is complete: each refusal has its meaning, each cause leads to a
section, each file is served.
""".

-export([suite/0, all/0]).
-export([each_refusal_has_a_meaning/1, each_cause_leads_to_a_section/1, each_file_is_served/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [each_refusal_has_a_meaning, each_cause_leads_to_a_section, each_file_is_served].

%% The codes of the page "Errors and refusals" are those that a server uses.
each_refusal_has_a_meaning(_) ->
    Codes = numbers("^\\| (1[0-9]{3}) \\|", "docs/errors.md"),
    true = length(Codes) > 30,
    Codes = numbers("^  (1[0-9]{3}): '", "apps/erlmcp_console/priv/console/refusals.js").

each_cause_leads_to_a_section(_) ->
    {ok, Source} = file:read_file(path("apps/erlmcp_console/src/erlmcp_console_causes.erl")),
    Links = lists:usort(found("cause\\([^~]*~\"([a-z]+)\"", Source)),
    true = length(Links) > 4,
    {ok, Page} = file:read_file(path("apps/erlmcp_console/priv/console/index.html")),
    [] = [Link || Link <- Links, nomatch =:= binary:match(Page, [<<"id=\"", Link/binary, "\"">>])].

%% And each of them is there. uPlot is, wherever npm is.
each_file_is_served(_) ->
    Folder = path("apps/erlmcp_console/priv/console"),
    Files = [File || File <- filelib:wildcard("*", Folder),
                     filelib:is_regular(filename:join(Folder, File)), File =/= "index.html"],
    true = length(Files) > 8,
    [{200, _, _} = erlmcp_console_files:find(list_to_binary([$/, File]), #{}) || File <- Files].

numbers(Pattern, File) ->
    {ok, Text} = file:read_file(path(File)),
    lists:sort([binary_to_integer(Number) || Number <- found(Pattern, Text)]).

found(Pattern, Text) ->
    case re:run(Text, Pattern, [global, multiline, {capture, [1], binary}]) of
        {match, Found} -> lists:append(Found);
        nomatch -> []
    end.

path(File) -> filename:join(erlmcp_test_page:root(), File).
