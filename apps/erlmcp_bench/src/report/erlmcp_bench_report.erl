-module(erlmcp_bench_report).
-moduledoc """
Makes reports from files: an HTML page from a folder of results (`m:erlmcp_bench_page`), and pages
of the documentation from a folder of baselines (`m:erlmcp_bench_performance`).
""".

-export([write/2, performance/2, capacity/2, format_error/1]).

-export_type([refused/0, reason/0]).

-doc "Files that are not valid results, each with at most ten of its errors.".
-type refused() :: [{File :: binary(), Why :: [binary()]}].

-type reason() ::
    {no_folder, file:filename()}
    | {too_many_files, file:filename(), Most :: pos_integer()}
    | {no_model_block, file:filename()}
    | {no_ages, file:filename()}
    | {file, file:filename(), file:posix() | badarg | terminated | system_limit}
    | {baseline, erlmcp_bench_baseline:reason()}
    | erlmcp_bench_uplot:reason().

-define(FILES, 2_000).
%% The most errors that are shown for one file.
-define(VIOLATIONS, 10).

%% The ages of commits, in the folder of the baselines, as `bench/as_of.sh` writes them.
-define(AS_OF, "as_of.json").

%% The generated part of a page that people write stands between these lines.
-define(BEGIN, ~"<!-- model: generated -->\n").
-define(END, ~"<!-- end of model -->\n").

-doc """
Writes an HTML page of the results in `Folder` into the file `Out`. The folder may have at most
2,000 `.json` files. Invalid results are left out, but the page and the return value list them.
The library uPlot is fetched if it is not in the cache (`m:erlmcp_bench_uplot`).
""".
-spec write(Folder :: file:filename(), Out :: file:filename()) ->
    {ok, #{results := non_neg_integer(), figures := non_neg_integer(), refused := refused()}}
    | {error, reason()}.
write(Folder, Out) ->
    maybe
        {ok, Files} ?= files(Folder),
        {ok, Library} ?= erlmcp_bench_uplot:read(),
        Read = [{name(filename:basename(File)), erlmcp_metrology_validator:read_file(File)}
                || File <- Files],
        Results = [{Name, Result} || {Name, {ok, Result}} <- Read],
        Refused = [{Name, [format_violation(Violation)
                           || Violation <- lists:sublist(Violations, ?VIOLATIONS)]}
                   || {Name, {error, Violations}} <- Read],
        Figures = erlmcp_bench_figures:figures(Results),
        ok ?= written(Out, erlmcp_bench_page:html(
            #{folder => name(Folder), results => Results, figures => Figures, refused => Refused},
            assets(Library))),
        {ok, #{results => length(Results), figures => length(Figures), refused => Refused}}
    end.

assets(Library) ->
    Priv = filename:join(code:priv_dir(erlmcp_bench), "report"),
    {ok, Style} = file:read_file(filename:join(Priv, "page.css")),
    {ok, Script} = file:read_file(filename:join(Priv, "page.js")),
    #{style => Style, script => Script, library => Library}.

-doc """
Writes the text of `docs/performance.md` for the baselines in `Folder` into the file `Out`. The
folder may have at most 2,000 `.json` files. Each of them must be a baseline, except `as_of.json`,
which has the ages of commits and may be missing.
""".
-spec performance(Folder :: file:filename(), Out :: file:filename()) -> ok | {error, reason()}.
performance(Folder, Out) ->
    maybe
        {ok, Baselines} ?= baselines(Folder),
        {ok, AsOf} ?= as_of(filename:join(Folder, ?AS_OF)),
        written(Out, erlmcp_bench_performance:page(Baselines, AsOf))
    end.

-doc """
Writes the models of the baselines in `Folder` into the file `Page`. The folder has the same files
as for `performance/2`. The models replace the text between the lines `<!-- model: generated -->`
and `<!-- end of model -->`, which the file must have.
""".
-spec capacity(Folder :: file:filename(), Page :: file:filename()) -> ok | {error, reason()}.
capacity(Folder, Page) ->
    maybe
        {ok, Baselines} ?= baselines(Folder),
        {ok, Text} ?= read(Page),
        [Before, Rest] ?= binary:split(Text, ?BEGIN),
        [_, After] ?= binary:split(Rest, ?END),
        written(Page, [Before, ?BEGIN, erlmcp_bench_performance:model(Baselines), ?END, After])
    else
        [_] -> {error, {no_model_block, Page}};
        {error, _} = Error -> Error
    end.

baselines(Folder) ->
    maybe
        {ok, Files} ?= files(Folder),
        Read = [{File, erlmcp_bench_baseline:read(File)}
                || File <- Files, filename:basename(File) =/= ?AS_OF],
        [] ?= [Reason || {_, {error, Reason}} <- Read],
        {ok, [{name(filename:basename(File)), Baseline} || {File, {ok, Baseline}} <- Read]}
    else
        [Reason | _] -> {error, {baseline, Reason}};
        {error, _} = Error -> Error
    end.

as_of(File) ->
    case file:read_file(File) of
        {ok, Bytes} ->
            try json:decode(Bytes) of
                #{~"commit" := Commit, ~"day" := Day, ~"commits_since" := #{}} = AsOf
                        when is_binary(Commit), is_binary(Day) ->
                    {ok, AsOf};
                _ ->
                    {error, {no_ages, File}}
            catch
                error:_ -> {error, {no_ages, File}}
            end;
        {error, enoent} ->
            {ok, #{}};
        {error, Posix} ->
            {error, {file, File, Posix}}
    end.

%% An empty folder is also a folder.
files(Folder) ->
    case filelib:is_dir(Folder) andalso erlmcp_bench_result:files(Folder) of
        false -> {error, {no_folder, Folder}};
        Files when length(Files) > ?FILES -> {error, {too_many_files, Folder, ?FILES}};
        Files -> {ok, Files}
    end.

read(File) ->
    case file:read_file(File) of
        {ok, Text} -> {ok, Text};
        {error, Posix} -> {error, {file, File, Posix}}
    end.

written(File, Text) ->
    case file:write_file(File, Text) of
        ok -> ok;
        {error, Posix} -> {error, {file, File, Posix}}
    end.

%% A name that is not UTF-8 is shown as its bytes.
name(File) ->
    case unicode:characters_to_binary(File) of
        Name when is_binary(Name) -> Name;
        _ -> unicode:characters_to_binary(io_lib:format("~0tp", [File]))
    end.

format_violation(Violation) ->
    unicode:characters_to_binary(erlmcp_metrology_validator:format(Violation)).

-doc "Says why a page could not be written, in lines of text.".
-spec format_error(reason()) -> unicode:chardata().
format_error({no_folder, Folder}) ->
    [Folder, ": there is no such folder"];
format_error({too_many_files, Folder, Most}) ->
    io_lib:format("~ts: more than ~b files; give a folder with fewer", [Folder, Most]);
format_error({no_model_block, Page}) ->
    [Page, ": it has no lines for a model, ", string:trim(?BEGIN), " and ",
     string:trim(?END)];
format_error({no_ages, File}) ->
    [File, ": it does not have the ages of commits; make it again with bench/as_of.sh"];
format_error({file, File, Posix}) ->
    [File, ": ", file:format_error(Posix)];
format_error({baseline, Reason}) ->
    erlmcp_bench_baseline:format_error(Reason);
format_error({uplot, {exit_status, Status}}) ->
    io_lib:format("uPlot, which draws the plots, could not be fetched with npm (exit status ~b)",
                  [Status]);
format_error({uplot, timeout}) ->
    "uPlot, which draws the plots, was not fetched with npm within two minutes";
format_error({uplot, {file, File, Posix}}) ->
    ["uPlot, which draws the plots, cannot be read: ", format_error({file, File, Posix})].
