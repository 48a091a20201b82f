-module(bench_peers_http).
-moduledoc "Sends single requests over HTTP/1.1, and checks their answers.".

-export([request/2, verified/3, sessions/2, close/2, answers/1, nginx/1]).

-export_type([request/0, era/0]).

-type request() :: {echo, Bytes :: pos_integer()} | {sleep, Milliseconds :: pos_integer()} | list.
-type era() :: stateless | session.
-type headers() :: #{binary() => iodata()}.

-define(ID, 1_000_000_000).
-define(MODERN, ~"2026-07-28").
-define(SESSIONS, ~"2025-11-25").

-doc """
Returns the headers and the body of a request. Its id has the most digits that any server needs.
""".
-spec request(request(), era()) -> {headers(), binary()}.
request(Request, Era) ->
    {Method, Params, Name} = case Request of
        {echo, Bytes} -> call(~"echo", #{text => text(Bytes)});
        {sleep, Milliseconds} -> call(~"sleep", #{ms => Milliseconds});
        list -> {~"tools/list", #{}, #{}}
    end,
    case Era of
        stateless ->
            {maps:merge(Name, #{~"MCP-Protocol-Version" => ?MODERN, ~"Mcp-Method" => Method}),
             message(#{id => ?ID, method => Method, params => Params#{'_meta' => meta()}})};
        session ->
            {#{~"MCP-Protocol-Version" => ?SESSIONS},
             message(#{id => ?ID, method => Method, params => Params})}
    end.

call(Name, Arguments) ->
    {~"tools/call", #{name => Name, arguments => Arguments}, #{~"Mcp-Name" => Name}}.

meta() ->
    #{~"io.modelcontextprotocol/protocolVersion" => ?MODERN,
      ~"io.modelcontextprotocol/clientInfo" => client(),
      ~"io.modelcontextprotocol/clientCapabilities" => #{}}.

client() -> #{name => ~"peers", version => ~"1.0.0"}.

message(Message) -> iolist_to_binary(json:encode(Message#{jsonrpc => ~"2.0"})).

%% A usual text, which occurs in no other member of an answer.
text(5) -> ~"hello";
text(Bytes) -> binary:copy(~"x", Bytes).

-doc "Sends a request once, and fails if the answer is wrong. Returns the size of the answer.".
-spec verified(Url :: string(), request(), {era(), Session :: binary() | none}) -> pos_integer().
verified(Url, Request, {Era, Session}) ->
    {Headers, Body} = request(Request, Era),
    {200, _, Answer, All} = exchange(Url, with_session(Headers, Session), Body),
    #{~"jsonrpc" := ~"2.0", ~"id" := ?ID, ~"result" := Result} = message_of(Answer),
    Complete = maps:get(~"resultType", Result, none),
    true = Era =:= session orelse Complete =:= ~"complete",
    ok = right(Request, Result),
    byte_size(All).

right({echo, Bytes}, Result) -> has_text(text(Bytes), Result);
right({sleep, _}, Result) -> has_text(~"done", Result);
right(list, #{~"tools" := Tools}) ->
    {ok, File} = file:read_file(os:getenv("TOOLS")),
    Wanted = json:decode(File),
    Wanted = [maps:with([~"name", ~"description", ~"inputSchema"], plain(Tool)) || Tool <- Tools],
    ok.

%% A schema may name its dialect, which is the same.
plain(#{~"inputSchema" := Schema} = Tool) ->
    Tool#{~"inputSchema" := maps:without([~"$schema"], Schema)}.

has_text(Text, #{~"content" := [#{~"type" := ~"text", ~"text" := Text}]} = Result) ->
    false = maps:get(~"isError", Result, false),
    ok.

%% An answer may be an event of a stream.
message_of(<<"{", _/binary>> = Json) ->
    json:decode(Json);
message_of(Stream) ->
    [Message] = [Decoded || <<"data:", Data/binary>> <- binary:split(Stream, [~"\r\n", ~"\n"],
                                                                     [global]),
                            string:trim(Data) =/= ~"",
                            Decoded <- [json:decode(Data)]],
    Message.

-doc "Opens sessions and returns their ids.".
-spec sessions(Url :: string(), Count :: non_neg_integer()) -> [binary()].
sessions(Url, Count) ->
    [session(Url) || _ <- lists:seq(1, Count)].

session(Url) ->
    Initialize = message(#{id => 0, method => ~"initialize",
                           params => #{protocolVersion => ?SESSIONS, capabilities => #{},
                                       clientInfo => client()}}),
    {200, #{~"mcp-session-id" := Session}, Answer, _} = exchange(Url, #{}, Initialize),
    #{~"result" := #{~"protocolVersion" := ?SESSIONS}} = message_of(Answer),
    {202, _, _, _} = exchange(Url, with_session(#{~"MCP-Protocol-Version" => ?SESSIONS}, Session),
                              message(#{method => ~"notifications/initialized"})),
    Session.

-doc "Ends sessions. A server may refuse that.".
-spec close(Url :: string(), [binary()]) -> ok.
close(Url, Sessions) ->
    Headers = #{~"MCP-Protocol-Version" => ?SESSIONS},
    lists:foreach(fun(Session) ->
                      {_, _, _, _} = exchange(~"DELETE", Url, with_session(Headers, Session), ~"")
                  end, Sessions).

with_session(Headers, none) -> Headers;
with_session(Headers, Session) -> Headers#{~"Mcp-Session-Id" => Session}.

exchange(Url, Headers, Body) ->
    exchange(~"POST", Url, Headers#{~"Content-Type" => ~"application/json",
                                    ~"Accept" => ~"application/json, text/event-stream"}, Body).

exchange(Method, Url, Headers, Body) ->
    #{scheme := Scheme, host := Host, port := Port, path := Path} = uri_string:parse(Url),
    Options = [binary, {active, false}, {packet, raw}],
    {Module, {ok, Socket}} = case Scheme of
        "http" -> {gen_tcp, gen_tcp:connect(Host, Port, Options)};
        "https" -> {ssl, ssl:connect(Host, Port, [{verify, verify_none} | Options])}
    end,
    ok = Module:send(Socket, [Method, $\s, Path, ~" HTTP/1.1\r\n",
                              [[Name, ~": ", Value, ~"\r\n"]
                               || Name := Value <- Headers#{
                                      ~"Host" => [Host, $:, integer_to_list(Port)],
                                      ~"Content-Length" => integer_to_list(byte_size(Body))}],
                              ~"\r\n", Body]),
    Answer = received(Module, Socket, <<>>),
    ok = Module:close(Socket),
    Answer.

received(Module, Socket, Before) ->
    {ok, Bytes} = Module:recv(Socket, 0, 10_000),
    Received = <<Before/binary, Bytes/binary>>,
    maybe
        [Head, Rest] ?= binary:split(Received, ~"\r\n\r\n"),
        [<<"HTTP/1.1 ", Status:3/binary, _/binary>> | Lines] =
            binary:split(Head, ~"\r\n", [global]),
        Headers = #{string:lowercase(Name) => string:trim(Value)
                    || Line <- Lines, [Name, Value] <- [binary:split(Line, ~":")]},
        {ok, Body} ?= body(Headers, Rest),
        {binary_to_integer(Status), Headers, Body, Received}
    else
        _ -> received(Module, Socket, Received)
    end.

body(#{~"content-length" := Length}, Rest) ->
    case byte_size(Rest) =:= binary_to_integer(Length) of
        true -> {ok, Rest};
        false -> more
    end;
body(#{~"transfer-encoding" := ~"chunked"}, Rest) ->
    chunks(Rest, <<>>);
body(#{}, _) ->
    {ok, <<>>}.

chunks(Rest, Before) ->
    maybe
        [Size, After] ?= binary:split(Rest, ~"\r\n"),
        Bytes = binary_to_integer(Size, 16),
        <<Chunk:Bytes/binary, "\r\n", More/binary>> ?= After,
        case Bytes of
            0 -> {ok, Before};
            _ -> chunks(More, <<Before/binary, Chunk/binary>>)
        end
    else
        _ -> more
    end.

-doc """
What the server of a URL answers, for those that only say so: as a whole and its body, by where it
is asked for. That is `N`, the number of bytes that are echoed, and `list`.
""".
-spec answers(Url :: string()) -> [{Path :: binary(), All :: binary(), Answer :: binary()}].
answers(Url) ->
    [{Path, All, Answer}
     || {Path, Request} <- [{~"5", {echo, 5}}, {~"1024", {echo, 1_024}}, {~"list", list}],
        {Headers, Body} <- [request(Request, stateless)],
        {200, _, Answer, All} <- [exchange(Url, Headers, Body)]].

-doc """
Writes the configuration of an nginx on a port that sends the answers of the server at a URL.
""".
-spec nginx([string()]) -> ok.
nginx([Url, Port, Folder]) ->
    Answers = [{Path, Answer} || {Path, _, Answer} <- answers(Url)],
    nomatch = binary:match(iolist_to_binary([Answer || {_, Answer} <- Answers]), [~"'", ~"$"]),
    Temporary = [[Of, ~"_temp_path ", Folder, ~";\n"]
                 || Of <- [~"client_body", ~"proxy", ~"fastcgi", ~"uwsgi", ~"scgi"]],
    ok = file:write_file(filename:join(Folder, "nginx.conf"),
        [~"daemon off; worker_processes auto; error_log stderr crit;\n",
         ~"pid ", Folder, ~"/nginx.pid;\nevents { worker_connections 4096; }\n",
         ~"http { access_log off; keepalive_requests 1000000000;\n",
         ~"default_type application/json; http2 on;\n", Temporary,
         ~"server { listen 127.0.0.1:", Port, ~";\n",
         [[~"location = /", Path, ~" {", returned(Answer), ~" }\n"] || {Path, Answer} <- Answers],
         ~"} }\n"]).

%% A word of nginx's configuration has at most 4,096 bytes.
returned(Answer) ->
    Parts = lists:enumerate(parts(Answer)),
    [[[~" set $part", integer_to_list(N), ~" '", Part, ~"';"] || {N, Part} <- Parts],
     ~" return 200 ", [[~"$part", integer_to_list(N)] || {N, _} <- Parts], $;].

parts(<<Part:2048/binary, Rest/binary>>) when Rest =/= <<>> -> [Part | parts(Rest)];
parts(Part) -> [Part].
