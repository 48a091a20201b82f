-module(erlmcp_cli_http).
-moduledoc """
One stateless MCP request over HTTP, with OTP's own client: the `_meta` and the `Mcp-*` headers of
2026-07-28 go out, and a JSON or an SSE answer comes back.
""".

-export([check_url/1, request/4]).

-export_type([reason/0]).

-type reason() ::
    {rpc, Error :: map()}
    | {http, Status :: pos_integer()}
    | {connect, inet:posix() | {tls_alert, atom()} | term()}
    | {answer, What :: binary()}
    | timeout.

-define(REVISION, ~"2026-07-28").

-doc "Whether `request/4` can take a URL.".
-spec check_url(string()) -> ok | error.
check_url(Url) ->
    case uri_string:parse(Url) of
        #{scheme := Scheme, host := [_ | _]} when Scheme =:= "http"; Scheme =:= "https" -> ok;
        _ -> error
    end.

-doc "The result of one request, waited for so many milliseconds.".
-spec request(Url :: string(), Method :: binary(), Params :: map(), Timeout :: pos_integer()) ->
    {ok, Result :: map()} | {error, reason()}.
request(Url, Method, Params, Timeout) ->
    {ok, _} = application:ensure_all_started([inets, ssl]),
    %% A host may have addresses of both families.
    ok = httpc:set_options([{ipfamily, inet6fb4}]),
    Body = json:encode(#{jsonrpc => ~"2.0", id => 1, method => Method,
                         params => Params#{~"_meta" => meta()}}),
    Headers = [host(Url) | headers(Method, Params)],
    Request = {Url, Headers, "application/json", iolist_to_binary(Body)},
    Options = [{timeout, Timeout}, {connect_timeout, Timeout}, {autoredirect, false} | tls(Url)],
    case httpc:request(post, Request, Options, [{body_format, binary}]) of
        {ok, {{_, Status, _}, Fields, Answer}} ->
            answer(Status, proplists:get_value("content-type", Fields, ""), Answer);
        {error, timeout} ->
            {error, timeout};
        {error, {failed_connect, Details}} ->
            {error, {connect, connect_reason(Details)}};
        {error, Reason} ->
            {error, {connect, Reason}}
    end.

meta() ->
    _ = application:load(erlmcp_cli),
    {ok, Version} = application:get_key(erlmcp_cli, vsn),
    #{~"io.modelcontextprotocol/protocolVersion" => ?REVISION,
      ~"io.modelcontextprotocol/clientInfo" =>
          #{name => ~"erlmcp", version => list_to_binary(Version)},
      ~"io.modelcontextprotocol/clientCapabilities" => #{}}.

%% httpc leaves the brackets of an IPv6 address out.
host(Url) ->
    #{host := Host} = Parts = uri_string:parse(Url),
    Name = case lists:member($:, Host) of
        true -> [$[, Host, $]];
        false -> Host
    end,
    Port = [[$:, integer_to_list(Port)] || #{port := Port} <- [Parts], is_integer(Port)],
    {"host", lists:flatten([Name | Port])}.

headers(Method, Params) ->
    [{"accept", "application/json, text/event-stream"},
     {"mcp-protocol-version", binary_to_list(?REVISION)},
     {"mcp-method", binary_to_list(Method)}
     | [{"mcp-name", header_value(Name)} || Name <- [maps:get(name, Params, none)],
                                            is_binary(Name)]].

%% What cannot stand in a header, or would be read as an encoded value there, goes in base64.
header_value(Value) ->
    Plain = re:run(Value, ~B"^(?!=\?base64\?)[!-~]([ -~]*[!-~])?$",
                   [{capture, none}, dollar_endonly]),
    case Plain of
        match -> binary_to_list(Value);
        nomatch -> "=?base64?" ++ base64:encode_to_string(Value) ++ "?="
    end.

tls("https" ++ _) -> [{ssl, [{log_level, none} | httpc:ssl_verify_host_options(true)]}];
tls(_) -> [].

%% Both families were tried; a name that one of them does not know says least.
connect_reason(Details) ->
    Reasons = [Reason || {Family, _, Reason} <- Details, Family =:= inet orelse Family =:= inet6],
    case {[Reason || Reason <- Reasons, Reason =/= nxdomain], Reasons} of
        {[Reason | _], _} -> without_details(Reason);
        {[], [Reason | _]} -> Reason;
        {[], []} -> Details
    end.

without_details({tls_alert, {Alert, _}}) -> {tls_alert, Alert};
without_details(Reason) -> Reason.

answer(Status, "application/json" ++ _, Body) -> response(Status, [Body]);
answer(Status, "text/event-stream" ++ _, Body) ->
    response(Status, [Data || #{data := Data} <- erlmcp_sse:parse(Body)]);
answer(Status, _, _) when Status >= 300 -> {error, {http, Status}};
answer(_, _, _) -> {error, {answer, ~"it is neither JSON nor an event stream"}}.

%% Notifications may come before the response.
response(Status, Texts) ->
    try [Message || Text <- Texts, Text =/= ~"",
                    Message <- [json:decode(Text)], is_response(Message)] of
        [#{~"result" := #{} = Result} | _] -> {ok, Result};
        [#{~"error" := #{} = Error} | _] -> {error, {rpc, Error}};
        _ when Status >= 300 -> {error, {http, Status}};
        _ -> {error, {answer, ~"the response is missing"}}
    catch
        error:_ when Status >= 300 -> {error, {http, Status}};
        error:_ -> {error, {answer, ~"it is not JSON"}}
    end.

is_response(#{~"result" := _, ~"id" := 1}) -> true;
%% The id of an error is unknown to a server that could not read the request.
is_response(#{~"error" := _} = Message) -> lists:member(maps:get(~"id", Message, null), [1, null]);
is_response(_) -> false.
