-module(erlmcp_console_files).
-moduledoc """
The files of the page, in `priv/console`. A browser that has the same file already gets a 304.
""".

-export([find/2]).

-define(FILES, #{
    ~"/" => {~"index.html", ~"text/html; charset=utf-8"},
    ~"/style.css" => {~"style.css", ~"text/css; charset=utf-8"},
    ~"/app.js" => {~"app.js", ~"text/javascript; charset=utf-8"},
    ~"/dom.js" => {~"dom.js", ~"text/javascript; charset=utf-8"},
    ~"/charts.js" => {~"charts.js", ~"text/javascript; charset=utf-8"},
    ~"/text.js" => {~"text.js", ~"text/javascript; charset=utf-8"},
    ~"/refusals.js" => {~"refusals.js", ~"text/javascript; charset=utf-8"},
    ~"/server.js" => {~"server.js", ~"text/javascript; charset=utf-8"},
    ~"/try.js" => {~"try.js", ~"text/javascript; charset=utf-8"},
    ~"/login.html" => {~"login.html", ~"text/html; charset=utf-8"},
    ~"/icon.svg" => {~"icon.svg", ~"image/svg+xml"},
    ~"/uplot/uPlot.iife.min.js" => {~"uplot/uPlot.iife.min.js", ~"text/javascript; charset=utf-8"},
    ~"/uplot/uPlot.min.css" => {~"uplot/uPlot.min.css", ~"text/css; charset=utf-8"}}).

-doc """
Returns the response with the file at a path below the page: 200, or 304 if the browser has the same
file. Returns `none` if there is no such file, or the file cannot be read.
""".
-spec find(Below :: binary(), Headers :: #{binary() => binary()}) ->
    {200..599, #{binary() => iodata()}, binary()} | none.
find(Below, Headers) ->
    maybe
        #{Below := {Name, Type}} ?= ?FILES,
        {ok, Bytes} ?= file:read_file(filename:join([code:priv_dir(erlmcp_console), "console",
                                                     Name])),
        Tag = <<$", (binary:encode_hex(binary:part(crypto:hash(sha256, Bytes), 0, 12)))/binary,
                $">>,
        Of = #{~"etag" => Tag, ~"cache-control" => ~"no-cache", ~"content-type" => Type},
        case Headers of
            #{~"if-none-match" := Tag} -> {304, Of, <<>>};
            #{} -> {200, Of, Bytes}
        end
    else
        _ -> none
    end.
