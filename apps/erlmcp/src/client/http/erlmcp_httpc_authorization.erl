-module(erlmcp_httpc_authorization).
-moduledoc """
The authorization of a channel's requests on HTTP: the headers of a request, and whether a refused
request is worth sending again. It asks the channel's `m:erlmcp_authorizer`, if there is one, in the
process that sends the request.

Internal.
""".

-export([start_link/2, headers/4, after_refusal/4, notice/2]).

-export_type([authorizer/0]).

-type authorizer() :: none | erlmcp_authorizer:handle().

%% Refusals of a request that are answered with another try.
-define(CHALLENGES, 3).

-doc """
Starts an authorizer. Its options are secrets, and so come in a fun: child specifications are
logged.
""".
-spec start_link(fun(() -> erlmcp_oauth:options()), Url :: binary()) ->
    {ok, pid()} | {error, term()}.
start_link(Options, Url) ->
    erlmcp_authorizer:start_link(Options(), Url).

-doc "Returns the authorization headers of a request to a path of a URL's origin.".
-spec headers(authorizer(), post | get | delete, {Path :: binary(), uri_string:uri_map()},
              Deadline :: integer()) ->
    {ok, [{binary(), iodata()}]} | {error, erlmcp_channel:reason()}.
headers(none, _, _, _) ->
    {ok, []};
headers(Authorizer, Method, {Path, Url}, Deadline) ->
    Target = erlmcp_httpc_target:at(Path, Url),
    case erlmcp_authorizer:headers(Authorizer, Method, Target, Deadline) of
        {ok, Headers} -> {ok, Headers};
        {error, Why} -> {error, reason(Why)}
    end.

-doc """
Decides whether a refused request is sent again, and waits for a login if one is due. `Used` are the
request's authorization headers, and `Before` counts its earlier refusals. The depth is that of the
server's outermost address (`t:erlmcp_outbound_hosts:depth/0`).
""".
-spec after_refusal(authorizer(), Used :: [{binary(), iodata()}], Before :: non_neg_integer(),
                    {401 | 403, #{binary() => binary()}, erlmcp_outbound_hosts:depth() | none,
                     Deadline :: integer()}) ->
    retry | refused | {error, erlmcp_channel:reason()}.
after_refusal(Authorizer, _, Before, _) when Authorizer =:= none; Before >= ?CHALLENGES ->
    refused;
after_refusal(Authorizer, Used, _, {Status, Fields, Reached, Deadline}) ->
    case erlmcp_authorizer:challenged(Authorizer, Used, {Status, Fields}, Reached, Deadline) of
        retry -> retry;
        %% No token was asked for, so the server's own words say more.
        {error, {forbidden, _}} -> refused;
        {error, {browser, none}} -> refused;
        {error, Why} -> {error, reason(Why)}
    end.

reason(timeout) -> timeout;
reason(Why) -> {unauthorized, Why}.

-doc """
Passes the headers of a response to the authorizer, which may need them for the next request.
""".
-spec notice(authorizer(), #{binary() => binary()}) -> ok.
notice(none, _) -> ok;
notice(Authorizer, Fields) -> erlmcp_authorizer:notice(Authorizer, Fields).
