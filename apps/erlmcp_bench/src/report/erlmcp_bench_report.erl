-module(erlmcp_bench_report).
-moduledoc """
Reports from files: of a folder of results an HTML page (`m:erlmcp_bench_page`), of a folder of
baselines the pages of the documentation (`m:erlmcp_bench_performance`).
""".

-export([write/2, performance/2, capacity/2, format_error/1]).

-export_type([refused/0, reason/0]).

-doc "Files that are no results, each with what is wrong.".
-type refused() :: [{File :: binary(), Why :: [binary()]}].

-type reason() ::
    {no_folder, file:filename()}
    | {too_many_files, file:filename(), Most :: pos_integer()}
    | {no_model_block, file:filename()}
    | {file, file:filename(), file:posix() | badarg | terminated | system_limit}
    | {baseline, erlmcp_bench_baseline:reason()}
    | erlmcp_bench_uplot:reason().

-define(FILES, 2_000).
%% Of one file.
-define(VIOLATIONS, 10).

%% Between them stands what is generated in a page that people wrote.
-define(BEGIN, ~"<!-- model: generated -->\n").
-define(END, ~"<!-- end of model -->\n").

-doc """
Writes the page of a folder's results. What is no valid result is left out, and told: in the page,
and to the caller.
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
        Refused = [{Name, [said(Violation) || Violation <- lists:sublist(Violations, ?VIOLATIONS)]}
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

-doc "Writes the page of what a folder's baselines say, as Markdown.".
-spec performance(Folder :: file:filename(), Out :: file:filename()) -> ok | {error, reason()}.
performance(Folder, Out) ->
    maybe
        {ok, Baselines} ?= baselines(Folder),
        written(Out, erlmcp_bench_performance:page(Baselines))
    end.

-doc """
Writes what a folder's baselines say of more nodes into a page that has a place for it: between
`<!-- model: generated -->` and `<!-- end of model -->`.
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
        Read = [{File, erlmcp_bench_baseline:read(File)} || File <- Files],
        [] ?= [Reason || {_, {error, Reason}} <- Read],
        {ok, [{name(filename:basename(File)), Baseline} || {File, {ok, Baseline}} <- Read]}
    else
        [Reason | _] -> {error, {baseline, Reason}};
        {error, _} = Error -> Error
    end.

%% A folder that is empty is one all the same.
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

%% A name that is not in UTF-8 is shown as what its bytes are.
name(File) ->
    case unicode:characters_to_binary(File) of
        Name when is_binary(Name) -> Name;
        _ -> unicode:characters_to_binary(io_lib:format("~0tp", [File]))
    end.

said(Violation) -> unicode:characters_to_binary(erlmcp_metrology_validator:format(Violation)).

-doc "A reason in one sentence, without what a hostile file could have put there.".
-spec format_error(reason()) -> unicode:chardata().
format_error({no_folder, Folder}) ->
    [Folder, ": there is no such folder"];
format_error({too_many_files, Folder, Most}) ->
    io_lib:format("~ts: more than ~b files; give a folder with fewer", [Folder, Most]);
format_error({no_model_block, Page}) ->
    [Page, ": it has no place for a model, between ", string:trim(?BEGIN), " and ",
     string:trim(?END)];
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
