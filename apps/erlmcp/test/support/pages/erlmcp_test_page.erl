-module(erlmcp_test_page).
-moduledoc """
A page of the user's documentation, read for what can be proved of it: its module, what it shows of
the protocol, its links and its tables.

A page has at most one ` ```erlang ` block, a module that exports `start/1`, and ` ```mcp ` blocks.
In these, every line that is not blank is one of the table. A line that begins with a space goes on
with the line before it.

| line | what it is |
| --- | --- |
| `> METHOD PARAMS` | a request, or a notification if `METHOD` begins with `notifications/` |
| `> result RESULT` | the client's answer to the oldest open request of the server |
| `< RESULT` | the result of the latest request that has none |
| `< error CODE DATA` | its error |
| `< METHOD PARAMS` | a notification or a request of the server |

`PARAMS` and `DATA` may be left out.
""".

-export([root/0, read/1, parse/1, load/3]).

-export_type([page/0, block/0, step/0]).

-type page() :: #{
    module := none | {Line :: pos_integer(), Source :: binary()},
    blocks := [block()],
    links := [{Line :: pos_integer(), Target :: binary()}],
    anchors := [binary()],
    tables := [{Line :: pos_integer(), Subject :: binary(), Rows :: [[binary()]]}]
}.
-doc "A block with the revision that it speaks.".
-type block() :: {Revision :: binary(), [step()]}.
-type step() :: {Line :: pos_integer(), action()}.
-type action() ::
    {send, Method :: binary(), Params :: map()}
    | {answer, Result :: map()}
    | {expect, result, map()}
    | {expect, {error, Code :: integer()}, Data :: map()}
    | {expect, {method, binary()}, Params :: map()}.

-define(MODERN, ~"2026-07-28").

-doc "Returns the repository's root, somewhere above this file.".
-spec root() -> file:filename().
root() ->
    root(filename:dirname(proplists:get_value(source, module_info(compile)))).

root(Folder) ->
    case filelib:is_regular(filename:join(Folder, "rebar.lock")) of
        true ->
            Folder;
        false ->
            Parent = filename:dirname(Folder),
            true = Parent =/= Folder,
            root(Parent)
    end.

-doc "Reads the page in a file.".
-spec read(file:filename()) -> page().
read(File) ->
    {ok, Text} = file:read_file(File),
    parse(Text).

-doc "Returns the page of this text.".
-spec parse(binary()) -> page().
parse(Text) ->
    Lines = lists:enumerate(binary:split(Text, ~"\n", [global])),
    {Prose, Fenced} = fences(Lines, [], []),
    Modules = [{Line + 1, source(Body)} || {Line, ~"erlang", Body} <- Fenced],
    #{module => case Modules of
          [] -> none;
          [Module] -> Module;
          [_, {Line, _} | _] -> error({a_second_module, Line})
      end,
      blocks => [{revision(Rest), steps(Body)} || {_, <<"mcp", Rest/binary>>, Body} <- Fenced],
      links => links(Prose),
      anchors => [anchor(Heading) || {_, <<"#", Heading/binary>>} <- Prose],
      tables => tables(Prose)}.

%% What stands outside of fences, and the fences by their first line and what is said there.
fences([], Prose, Fenced) ->
    {lists:reverse(Prose), lists:reverse(Fenced)};
fences([{Line, <<"```", Kind/binary>>} | Lines], Prose, Fenced) ->
    case lists:splitwith(fun({_, Text}) -> Text =/= ~"```" end, Lines) of
        {Body, [_ | Rest]} -> fences(Rest, Prose, [{Line, Kind, Body} | Fenced]);
        {_, []} -> error({unclosed_block, Line})
    end;
fences([Line | Lines], Prose, Fenced) ->
    fences(Lines, [Line | Prose], Fenced).

source(Body) ->
    << <<Text/binary, $\n>> || {_, Text} <- Body >>.

revision(~"") -> ?MODERN;
revision(<<" ", Revision/binary>>) -> Revision.

steps(Body) ->
    [{Line, step(Line, Text)} || {Line, Text} <- joined(Body), Text =/= ~""].

joined([{Line, Text}, {_, <<" ", _/binary>> = More} | Lines]) ->
    joined([{Line, <<Text/binary, More/binary>>} | Lines]);
joined([Line | Lines]) ->
    [Line | joined(Lines)];
joined([]) ->
    [].

step(Line, <<"> ", Sent/binary>>) ->
    case word(Sent) of
        {~"result", Json} -> {answer, object(Line, Json)};
        {Method, Json} -> {send, Method, object(Line, Json)}
    end;
step(Line, <<"< {", _/binary>> = Text) ->
    <<"< ", Json/binary>> = Text,
    {expect, result, object(Line, Json)};
step(Line, <<"< error ", Error/binary>>) ->
    {Code, Json} = word(Error),
    {expect, {error, binary_to_integer(Code)}, object(Line, Json)};
step(Line, <<"< ", Came/binary>>) ->
    {Method, Json} = word(Came),
    {expect, {method, Method}, object(Line, Json)};
step(Line, Text) ->
    error({no_such_line, Line, Text}).

word(Text) ->
    case binary:split(Text, ~" ") of
        [Word, Rest] -> {Word, string:trim(Rest)};
        [Word] -> {Word, ~""}
    end.

object(_, ~"") ->
    #{};
object(Line, Json) ->
    try json:decode(Json) of
        #{} = Object -> Object;
        _ -> error({no_object, Line, Json})
    catch
        error:Reason -> error({no_json, Line, Json, Reason})
    end.

links(Prose) ->
    [{Line, Target}
     || {Line, Text} <- Prose,
        [Target] <- matches(~"\\]\\(([^)\\s]+)\\)", Text)].

matches(Pattern, Text) ->
    case re:run(Text, Pattern, [global, unicode, {capture, all_but_first, binary}]) of
        {match, Found} -> Found;
        nomatch -> []
    end.

%% As the places that show Markdown name a heading.
anchor(Heading) ->
    Words = string:lowercase(string:trim(string:trim(Heading, leading, "#"))),
    Kept = re:replace(Words, ~"[^\\w\\- ]", ~"", [global, unicode, {return, binary}]),
    binary:replace(Kept, ~" ", ~"-", [global]).

%% A table that shows data of the code is named by a comment: `<!-- table: limits -->`.
tables([{Line, <<"<!-- table: ", Rest/binary>>} | Lines]) ->
    [Subject, ~""] = binary:split(Rest, ~" -->"),
    {Rows, Others} = lists:splitwith(fun({_, Text}) -> string:prefix(Text, "|") =/= nomatch end,
                                     Lines),
    [{Line, Subject, [cells(Text) || {_, Text} <- lists:nthtail(min(2, length(Rows)), Rows)]}
     | tables(Others)];
tables([_ | Lines]) ->
    tables(Lines);
tables([]) ->
    [].

cells(Row) ->
    [~"" | Cells] = [string:trim(Cell) || Cell <- re:split(Row, ~"(?<!\\\\)\\|")],
    lists:droplast(Cells).

-doc """
Compiles and loads a page's module. A warning is an error, and errors have the lines of the page.
""".
-spec load(Page :: string(), {Line :: pos_integer(), Source :: binary()}, Folder :: string()) ->
    module().
load(Page, {Line, Source}, Folder) ->
    {match, [Name]} = re:run(Source, ~"^-module\\(([a-z]\\w*)\\)",
                             [multiline, {capture, all_but_first, list}]),
    File = filename:join(Folder, Name ++ ".erl"),
    ok = file:write_file(File, [lists:duplicate(Line - 1, $\n), Source]),
    case compile:file(File, [binary, return, warnings_as_errors, warn_shadow_vars]) of
        {ok, Module, Beam, []} ->
            {module, Module} = code:load_binary(Module, File, Beam),
            Module;
        {error, Errors, Warnings} ->
            error({does_not_compile, Page, [Found || {_, Found} <- Errors ++ Warnings]})
    end.
