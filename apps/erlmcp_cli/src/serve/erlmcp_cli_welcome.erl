-module(erlmcp_cli_welcome).
-moduledoc """
Makes the text that `erlmcp serve` prints: the server's URL, commands that call it when pasted into
a shell, and how to stop it. Pure, except that the name of the program comes from the environment.
""".

-export([text/3]).

-define(REVISION, ~"2026-07-28").

-doc """
Returns the text that `serve` shows for a server with `Options` and `Listeners`. Exactly one of the
listeners is for HTTP, and `Pages` are its pages. The text has the tokens of the pages.
""".
-spec text(Options :: map(), Listeners :: [map()], Pages :: #{binary() => erlmcp_page:page()}) ->
    iodata().
text(#{name := Name, version := Version} = Options, Listeners, Pages) ->
    [Url] = [Url || #{transport := http, url := Url} <- Listeners],
    [lists:join($\s, [Name | [Version || Version =/= ~""]]), " is served on\n  ", Url, "\n",
     [besides(Listener) || Listener <- Listeners],
     [["  ", uri_string:resolve(Path, Url), token(Page), " (console)\n"] || Path := Page <- Pages],
     "\nCall it:\n", example(maps:get(tools, Options, []), Url),
     "\nStop it: Ctrl-C\n"].

%% A browser exchanges the token for a cookie, and does not keep it in its history.
token({_, #{token := none}}) -> [];
token({_, #{token := Token}}) -> ["?token=", Token].

besides(#{transport := tcp, url := Url}) -> ["  ", Url, " (one JSON-RPC message a line)\n"];
besides(#{sse_url := Url}) -> ["  ", Url, " (HTTP+SSE of 2024-11-05)\n"];
besides(_) -> [].

%% Returns a command that calls the first tool, with arguments that its schema allows.
example([#{name := Tool} = Definition | _], Url) ->
    Arguments = arguments(Definition),
    [curl(Url, ~"tools/call", [{~"Mcp-Name", Tool}],
          [~'"name":', json:encode(Tool), ~',"arguments":', Arguments, $,]),
     "\n  ", program(), " call ", Url, " ", quoted(Tool), " ", quoted(Arguments),
     "\n  ", program(), " list ", Url, "\n"];
example([], Url) ->
    [curl(Url, ~"server/discover", [], []),
     "\n  ", program(), " list ", Url, "\n"].

curl(Url, Method, Headers, Parameters) ->
    Body = [~'{"jsonrpc":"2.0","id":1,"method":"', Method, ~'","params":{', Parameters,
            ~'"_meta":{"io.modelcontextprotocol/protocolVersion":"', ?REVISION,
            ~'","io.modelcontextprotocol/clientCapabilities":{}}}}'],
    ["  curl -sS ", Url,
     [[" \\\n    -H ", quoted([Header, ": ", Value])]
      || {Header, Value} <- [{~"Content-Type", ~"application/json"},
                             {~"Accept", ~"application/json, text/event-stream"},
                             {~"MCP-Protocol-Version", ?REVISION},
                             {~"Mcp-Method", Method} | Headers]],
     " \\\n    -d ", quoted(Body), "\n"].

arguments(#{input_schema := Schema}) ->
    case erlmcp_schema:expand(Schema) of
        {ok, #{~"properties" := Properties}} -> json:encode(maps:map(fun sample/2, Properties));
        {ok, _} -> ~"{}"
    end;
arguments(_) ->
    ~"{}".

sample(_, #{~"enum" := [Value | _]}) -> Value;
sample(_, #{~"type" := ~"string"}) -> ~"hello";
sample(_, #{~"type" := ~"integer", ~"minimum" := Minimum}) -> Minimum;
sample(_, #{~"type" := ~"integer"}) -> 1;
sample(_, #{~"type" := ~"number"}) -> 1;
sample(_, #{~"type" := ~"boolean"}) -> true;
sample(_, #{~"type" := ~"array"}) -> [];
sample(_, _) -> #{}.

%% Returns the name of the program as the user typed it, which `bin/erlmcp` passes on.
program() -> os:getenv("ERLMCP_COMMAND", "erlmcp").

%% Quotes a text as a word for a POSIX shell.
quoted(Text) ->
    Word = unicode:characters_to_binary(Text),
    case re:run(Word, "^[A-Za-z0-9_./:-]+$", [{capture, none}, dollar_endonly]) of
        match -> Word;
        nomatch -> [$', string:replace(Word, "'", ~B"'\''", all), $']
    end.
