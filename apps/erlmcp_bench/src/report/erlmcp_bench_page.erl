-module(erlmcp_bench_page).
-moduledoc """
Turns a report into one HTML page that loads nothing. Styles, scripts and figures are in the page,
and its content security policy forbids everything else. All content of result files is escaped
text. Without scripts the figures are tables. Pure.
""".

-export([html/2]).

-export_type([report/0, assets/0]).

-doc "The contents of a report. `refused` lists files that are not valid results, and why.".
-type report() :: #{
    folder := binary(), results := [erlmcp_bench_figures:result()],
    figures := [erlmcp_bench_figures:figure()], refused := [{File :: binary(), Why :: [binary()]}]}.

-doc "The page's own style and script, and the plot library.".
-type assets() :: #{style := binary(), script := binary(),
                    library := erlmcp_bench_uplot:library()}.

-define(COLORS, 8).

-doc "Returns a report as an HTML page.".
-spec html(report(), assets()) -> iodata().
html(#{folder := Folder, results := Results, figures := Figures, refused := Refused},
     #{style := OwnStyle, script := Script, library := Library}) ->
    #{script := Uplot, style := UplotStyle, version := Version, licence := Licence} = Library,
    Style = <<UplotStyle/binary, "\n", OwnStyle/binary>>,
    [~"<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
     [~"<meta http-equiv=\"Content-Security-Policy\" content=\"", policy([Uplot, Script], Style),
      ~"\">\n"],
     ~"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
     ~"<meta name=\"color-scheme\" content=\"light dark\">\n",
     ~"<link rel=\"icon\" href=\"data:,\">\n",
     ~"<title>erlmcp: measurements</title>\n",
     [~"<style>", Style, ~"</style>\n</head>\n<body>\n"],
     header(Folder, Results, Figures),
     refused(Refused),
     ~"<main>\n",
     overview(Results),
     [figure(Figure) || Figure <- Figures],
     files(Results),
     ~"</main>\n",
     [~"<footer class=\"faint\"><details><summary>Drawn with uPlot ", text(Version),
      ~"</summary><pre>", text(Licence), ~"</pre></details></footer>\n"],
     [~"<script type=\"application/json\" id=\"figures\">",
      erlmcp_bench_text:json([drawn(Figure) || Figure <- Figures]), ~"</script>\n"],
     [~"<script>", Uplot, ~"</script>\n<script>", Script, ~"</script>\n</body>\n</html>\n"]].

%% Only the scripts of this page run, and nothing is fetched.
policy(Scripts, Style) ->
    [~"default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; script-src",
     [[" 'sha256-", hash(Script), "'"] || Script <- Scripts],
     ~"; style-src 'sha256-", hash(Style), "'"].

hash(Text) -> base64:encode(crypto:hash(sha256, Text)).

header(Folder, Results, Figures) ->
    [~"<header>\n<h1>Measurements</h1>\n",
     [~"<p>", number(length(Results)), ~" results from <code>", text(Folder), ~"</code>.</p>\n"],
     [[~"<p class=\"faint\">", Machine, ~"</p>\n"] || Machine <- machines(Results)],
     ~"</header>\n",
     [[~"<nav><ul>\n",
       [[~"<li><a href=\"#", text(Id), ~"\">", text(Title), ~"</a></li>\n"]
        || #{id := Id, title := Title} <- Figures],
       ~"</ul></nav>\n"] || Figures =/= []]].

refused([]) ->
    [];
refused(Files) ->
    [~"<section><h2 class=\"warn\">Not in this report</h2>\n",
     ~"<p>These files are not valid results, and are not shown.</p>\n<ul>\n",
     [[~"<li><code>", text(File), ~"</code><ul>",
       [[~"<li>", text(Reason), ~"</li>"] || Reason <- Why], ~"</ul></li>\n"]
      || {File, Why} <- Files],
     ~"</ul></section>\n"].

%% All results, with their most common fields.

-define(OVERVIEW, [{~"workload", ~"workload_id", fun text/1},
                   {~"transport", ~"transport", fun text/1},
                   {~"connections", ~"connections", fun cell/1},
                   {~"seconds", ~"duration_s", fun cell/1},
                   {~"answered a second", ~"throughput_msg_per_s", fun cell/1},
                   {~"workflows a second", ~"throughput_workflows_per_s", fun cell/1},
                   {~"p50 µs", ~"latency_p50_us", fun cell/1},
                   {~"p99 µs", ~"latency_p99_us", fun cell/1},
                   {~"p99.9 µs", ~"latency_p999_us", fun cell/1},
                   {~"max µs", ~"latency_max_us", fun cell/1},
                   {~"deviation µs", ~"latency_deviation_us", fun cell/1},
                   {~"CPU µs a request", ~"cpu_us_per_msg", fun cell/1},
                   {~"file", file, fun text/1}]).

overview([]) ->
    ~"<p>No result file was found, so there is nothing to show.</p>\n";
overview(Results) ->
    Columns = [Column || {_, Field, _} = Column <- ?OVERVIEW,
                         Field =:= file orelse
                             lists:any(fun({_, Fields}) -> is_map_key(Field, Fields) end, Results)],
    [~"<section><h2>All results</h2>\n<div class=\"scroll\"><table>\n<thead><tr>",
     [[~"<th", kind(Field), ~">", Title, ~"</th>"] || {Title, Field, _} <- Columns],
     ~"</tr></thead>\n<tbody>\n",
     [[~"<tr>",
       [[~"<td", kind(Field), ~">", Shown(value(Field, File, Fields)), ~"</td>"]
        || {_, Field, Shown} <- Columns], ~"</tr>\n"]
      || {File, Fields} <- Results],
     ~"</tbody></table></div></section>\n"].

kind(Field) when Field =:= file; Field =:= ~"workload_id"; Field =:= ~"transport" ->
    ~" class=\"text\"";
kind(_) ->
    [].

value(file, File, _) -> File;
value(Field, _, Fields) -> maps:get(Field, Fields, ~"").

%% Figures.

figure(#{id := Id, title := Title, caption := Caption, model := Model} = Figure) ->
    [~"<figure id=\"", text(Id), ~"\">\n<figcaption><h3", [~" class=\"model\"" || Model], ~">",
     text(Title), ~"</h3>\n<p>", text(Caption), ~"</p></figcaption>\n",
     [~"<div class=\"plot\" id=\"plot-", text(Id), ~"\" role=\"img\" aria-label=\"", text(Title),
      ~"; the table has the same\"></div>\n"],
     legend(Figure), table(Figure), sources(Figure), ~"</figure>\n"].

legend(#{x := #{label := Label}, series := Series}) ->
    [~"<ul class=\"legend\"><li>", text(Label), ~"<output></output></li>\n",
     [[~"<li><span class=\"swatch s", integer_to_binary((Nth - 1) rem ?COLORS + 1),
       [~" dashed" || Dashed], ~"\"></span>", text(Name), ~"<output></output></li>\n"]
      || {Nth, #{label := Name, dashed := Dashed}} <- lists:enumerate(Series)],
     ~"</ul>\n"].

table(#{table := {Head, Rows}}) ->
    [~"<details><summary>As a table</summary><div class=\"scroll\"><table>\n<thead><tr>",
     [[~"<th>", text(Title), ~"</th>"] || Title <- Head], ~"</tr></thead>\n<tbody>\n",
     [[~"<tr>", [[~"<td>", cell(Value), ~"</td>"] || Value <- Row], ~"</tr>\n"] || Row <- Rows],
     ~"</tbody></table></div></details>\n"].

cell(null) -> ~"";
cell(Value) when is_number(Value) -> number(Value);
cell(Value) -> text(plain(Value)).

%% The machine is always visible. The commands are long, and folded.
sources(#{sources := Sources}) ->
    [~"<div class=\"sources\">\n",
     [[~"<p>", Machine, ~"</p>\n"] || Machine <- machines(Sources)],
     ~"<details><summary>", number(length(Sources)), ~" files, and the commands</summary><ul>\n",
     [[~"<li><code>", text(File), ~"</code><br><code>", text(command(Fields)),
       ~"</code></li>\n"] || {File, Fields} <- Sources],
     ~"</ul></details></div>\n"].

command(#{~"environment" := #{~"command_line" := Command}}) when is_binary(Command) -> Command;
command(#{}) -> ~"the file has no command".

machines(Results) ->
    lists:usort([text(erlmcp_bench_machine:describe(maps:get(~"environment", Fields, #{})))
                 || {_, Fields} <- Results]).

%% The full contents of every file.

files([]) ->
    [];
files(Results) ->
    [~"<section><h2>The files</h2>\n",
     [[~"<details><summary>", text(File), ~"</summary><div class=\"scroll\"><table><tbody>\n",
       [[~"<tr><td class=\"text\"><code>", text(Name), ~"</code></td><td class=\"text\">",
         text(plain(Value)), ~"</td></tr>\n"] || {Name, Value} <- flat(<<>>, Fields)],
       ~"</tbody></table></div></details>\n"] || {File, Fields} <- Results],
     ~"</section>\n"].

%% Lists of samples and of buckets are in the figures.
flat(Path, #{} = Fields) ->
    lists:append([flat(joined(Path, Name), Value)
                  || {Name, Value} <- lists:sort(maps:to_list(Fields))]);
flat(Path, [Item | _] = Items) when is_map(Item); is_list(Item) ->
    [{Path, <<(integer_to_binary(length(Items)))/binary, " entries">>}];
flat(Path, Value) -> [{Path, Value}].

joined(<<>>, Name) -> Name;
joined(Path, Name) -> <<Path/binary, ".", Name/binary>>.

plain(Value) when is_binary(Value) -> Value;
plain(Value) when is_integer(Value) -> integer_to_binary(Value);
plain(Value) when is_float(Value) -> float_to_binary(Value, [short]);
plain(Value) -> json:encode(Value).

%% The data that the script draws.
drawn(#{id := Id, x := X, y := Y, xs := Xs, series := Series, columns := Columns}) ->
    #{id => Id, x => X, y => Y, series => Series, data => [Xs | Columns]}.

text(Text) -> erlmcp_bench_text:html(Text).

number(Number) -> erlmcp_bench_text:number(Number).
