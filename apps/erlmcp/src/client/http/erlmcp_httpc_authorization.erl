-module(erlmcp_httpc_authorization).
-moduledoc """
How the requests of a channel on HTTP are authorized: what their headers say, and whether one that
was refused is worth sending again. It asks the channel's `m:erlmcp_authorizer`, if there is one, in
the process that has the request.

Internal.
""".

-export([start_link/2, headers/4, refused/4, noticed/2]).

-export_type([authorizer/0]).

-type authorizer() :: none | erlmcp_authorizer:handle().

%% How often one request is sent again because it was refused.
-define(CHALLENGES, 3).

-doc "Starts an authorizer; its options come in a fun, for they have secrets and it is a child.".
-spec start_link(fun(() -> erlmcp_oauth:options()), Url :: binary()) ->
    {ok, pid()} | {error, term()}.
start_link(Options, Url) ->
    erlmcp_authorizer:start_link(Options(), Url).

-doc "The headers of a request to a path of a URL's origin.".
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
Whether a request that had the headers `Used` is sent again, now that it was refused for the time
after `Before`, by a server whose outermost address lies so far inside. Waits for a login where one
is due.
""".
-spec refused(authorizer(), Used :: [{binary(), iodata()}], Before :: non_neg_integer(),
              {401 | 403, #{binary() => binary()}, erlmcp_outbound_hosts:depth() | none,
               Deadline :: integer()}) ->
    retry | refused | {error, erlmcp_channel:reason()}.
refused(Authorizer, _, Before, _) when Authorizer =:= none; Before >= ?CHALLENGES ->
    refused;
refused(Authorizer, Used, _, {Status, Fields, Reached, Deadline}) ->
    case erlmcp_authorizer:challenged(Authorizer, Used, {Status, Fields}, Reached, Deadline) of
        retry -> retry;
        %% Nobody went for a token: the server's own words say more.
        {error, {forbidden, _}} -> refused;
        {error, {browser, none}} -> refused;
        {error, Why} -> {error, reason(Why)}
    end.

reason(timeout) -> timeout;
reason(Why) -> {unauthorized, Why}.

-doc "Tells of the headers of a response: the next request may need what they hold.".
-spec noticed(authorizer(), #{binary() => binary()}) -> ok.
noticed(none, _) -> ok;
noticed(Authorizer, Fields) -> erlmcp_authorizer:noticed(Authorizer, Fields).
