-module(erlmcp_oauth_url).
-moduledoc """
Decides which URLs of OAuth may be called, which name the same resource, and where metadata is.
Pure.

A URL is valid here if its scheme is http or https, and it has a host, but neither user information
nor a fragment. It may have at most 4,096 bytes, all visible ASCII.

Internal.
""".

-export([canonical/1, origin/1, same_origin/2, within/2, same_resource/2]).
-export([plain_hosts/1, allowed/2, loopback/1]).
-export([resource_metadata/1, server_metadata/1, under_origin/2, with_host/2]).
-export([with_query/2, query/1, endpoint/1]).

-export_type([origin/0, plain/0]).

-type origin() :: {Scheme :: binary(), Host :: binary(), inet:port_number()}.
-doc "Hosts that may be called over plain http; `loopback` means those of the machine itself.".
-type plain() :: [loopback | binary()].

-define(QUERY_PAIRS, 64).

-doc """
Returns the canonical URI of an MCP server: scheme and host in lower case, and no path if it is only
a slash. Returns `{error, invalid_url}` if the URL is not valid.
""".
-spec canonical(binary()) -> {ok, binary()} | {error, invalid_url}.
canonical(Url) ->
    maybe
        {ok, #{path := Path} = Parts} ?= parse(Url),
        Kept = case Path of
                   ~"/" -> Parts#{path := ~""};
                   _ -> Parts
               end,
        {ok, recompose(Kept)}
    end.

-doc """
Returns the scheme and the host of a URL, in lower case, and its port. If the URL has no port,
returns the default port of its scheme. Returns `{error, invalid_url}` if the URL is not valid.
""".
-spec origin(binary()) -> {ok, origin()} | {error, invalid_url}.
origin(Url) ->
    maybe
        {ok, #{scheme := Scheme, host := Host} = Parts} ?= parse(Url),
        {ok, {Scheme, Host, maps:get(port, Parts, default_port(Scheme))}}
    end.

-doc "Returns `true` if two URLs are valid, and have the same scheme, host and port.".
-spec same_origin(binary(), binary()) -> boolean().
same_origin(One, Other) ->
    case {origin(One), origin(Other)} of
        {{ok, Origin}, {ok, Origin}} -> true;
        _ -> false
    end.

-doc """
Returns `true` if `Url` has the origin of the URL `Resource`, and the path of `Resource` or one
below that path. If `Resource` has a query, `Url` must have the same query. Returns `false` in any
other case, and if one of the two paths has a segment `..`.
""".
-spec within(Url :: binary(), Resource :: binary()) -> boolean().
within(Url, Resource) ->
    case {same_origin(Url, Resource), parse(Url), parse(Resource)} of
        {true, {ok, #{path := Path} = Parts}, {ok, #{path := Parent} = Above}} ->
            below(segments(Path), segments(Parent)) andalso
                (not is_map_key(query, Above) orelse
                     maps:get(query, Above) =:= maps:get(query, Parts, none));
        _ ->
            false
    end.

-doc """
Returns `true` if two texts name the same resource: they are equal, or valid URLs that differ only
in the case of scheme and host, a default port, or the slash of an empty path.
""".
-spec same_resource(binary(), binary()) -> boolean().
same_resource(Same, Same) ->
    true;
same_resource(One, Other) ->
    case {resource(One), resource(Other)} of
        {{ok, Resource}, {ok, Resource}} -> true;
        _ -> false
    end.

resource(Url) ->
    maybe
        {ok, Canonical} ?= canonical(Url),
        {ok, Origin} ?= origin(Canonical),
        {ok, Parts} ?= parse(Canonical),
        {ok, {Origin, maps:with([path, query], Parts)}}
    end.

segments(Path) ->
    [Segment || Segment <- binary:split(Path, ~"/", [global]), Segment =/= ~""].

%% A path with `..` counts as below no other, and no path as below it.
below(Path, Parent) ->
    lists:prefix(Parent, Path) andalso not lists:member(~"..", Path ++ Parent).

-doc """
Returns the hosts that may be called over plain http for the MCP server at `ServerUrl`. A valid URL
of plain http allows its own host, or `loopback` if this host is on the loopback. Any other URL
allows none.
""".
-spec plain_hosts(ServerUrl :: binary()) -> plain().
plain_hosts(ServerUrl) ->
    case origin(ServerUrl) of
        {ok, {~"http", Host, _}} ->
            case loopback(Host) of
                true -> [loopback];
                %% A distant server must not lead to programs that listen on this machine alone.
                false -> [Host]
            end;
        _ ->
            []
    end.

-doc """
Returns `true` if `Url` is valid and may be called: its scheme is https, or http to one of the hosts
`Plain`.
""".
-spec allowed(Url :: binary(), Plain :: plain()) -> boolean().
allowed(Url, Plain) ->
    case origin(Url) of
        {ok, {~"https", _, _}} -> true;
        {ok, {~"http", Host, _}} -> lists:any(fun(Allowed) -> is_host(Host, Allowed) end, Plain);
        {error, invalid_url} -> false
    end.

is_host(Host, loopback) -> loopback(Host);
is_host(Host, Allowed) -> Host =:= Allowed.

-doc """
Returns `true` if a host, in lower case, is `localhost`, an address in 127.0.0.0/8, or `::1`.
""".
-spec loopback(Host :: binary()) -> boolean().
loopback(~"localhost") ->
    true;
loopback(Host) ->
    case inet:parse_strict_address(binary_to_list(Host)) of
        {ok, {127, _, _, _}} -> true;
        {ok, {0, 0, 0, 0, 0, 0, 0, 1}} -> true;
        _ -> false
    end.

-doc """
Returns the URLs at which the protected resource metadata of an MCP server may be (RFC 9728), in the
order to try them. `ServerUrl` must be valid.
""".
-spec resource_metadata(ServerUrl :: binary()) -> [binary(), ...].
resource_metadata(ServerUrl) ->
    Name = ~"/.well-known/oauth-protected-resource",
    {ok, Parts} = parse(ServerUrl),
    Own = under_origin(ServerUrl, <<Name/binary, (path(ServerUrl))/binary>>),
    Query = << <<$?, Query/binary>> || #{query := Query} <- [Parts] >>,
    lists:uniq([<<Own/binary, Query/binary>>, under_origin(ServerUrl, Name)]).

-doc """
Returns the URLs at which an authorization server may have its metadata, in the order to try them.
`Issuer` must be a valid URL.
""".
-spec server_metadata(Issuer :: binary()) -> [binary(), ...].
server_metadata(Issuer) ->
    OAuth = ~"/.well-known/oauth-authorization-server",
    OpenId = ~"/.well-known/openid-configuration",
    Paths = case path(Issuer) of
                ~"" -> [OAuth, OpenId];
                Path -> [<<OAuth/binary, Path/binary>>, <<OpenId/binary, Path/binary>>,
                         <<Path/binary, OpenId/binary>>]
            end,
    [under_origin(Issuer, Path) || Path <- Paths].

-doc """
Returns the URL that has the origin of `Url`, the path `Path` and no query. `Url` must be valid.
`Path` may have any bytes: those that a URL cannot have are percent-encoded.
""".
-spec under_origin(Url :: binary(), Path :: binary()) -> binary().
under_origin(Url, Path) ->
    {ok, Parts} = parse(Url),
    recompose(maps:without([query], Parts#{path := ascii(Path)})).

%% uri_string encodes the other bytes that a URL cannot have, but takes only text.
ascii(Path) ->
    << <<(ascii_of(Byte))/binary>> || <<Byte>> <= Path >>.

ascii_of(Byte) when Byte < 128 -> <<Byte>>;
ascii_of(Byte) -> <<"%", (binary:encode_hex(<<Byte>>))/binary>>.

-doc "Returns `Url`, which must be valid, with `Host` in place of its host.".
-spec with_host(Url :: binary(), Host :: binary()) -> binary().
with_host(Url, Host) ->
    {ok, Parts} = parse(Url),
    recompose(Parts#{host := Host}).

%% The path without a slash at its end.
path(Url) ->
    {ok, #{path := Path}} = parse(Url),
    string:trim(Path, trailing, "/").

-doc "Encodes `Parameters` and adds them to the query of `Url`, which must have no fragment.".
-spec with_query(Url :: binary(), Parameters :: [{binary(), binary()}]) -> binary().
with_query(Url, Parameters) ->
    Added = uri_string:compose_query(Parameters),
    case binary:split(Url, ~"?") of
        [_] -> <<Url/binary, "?", Added/binary>>;
        [_, ~""] -> <<Url/binary, Added/binary>>;
        [_, _] -> <<Url/binary, "&", Added/binary>>
    end.

-doc """
Returns the parameters of a URL's query, decoded. Returns `{error, invalid_url}` if the URL is not
valid or its query is malformed. The error is the same if the query has more than 64 parameters, a
parameter without `=`, or two parameters of the same name.
""".
-spec query(binary()) -> {ok, #{binary() => binary()}} | {error, invalid_url}.
query(Url) ->
    maybe
        {ok, Parts} ?= parse(Url),
        {ok, Pairs} ?= erlmcp_query:parameters(maps:get(query, Parts, ~"")),
        true ?= length(Pairs) =< ?QUERY_PAIRS,
        true ?= lists:all(fun({_, Value}) -> is_binary(Value) end, Pairs),
        Parameters = maps:from_list(Pairs),
        true ?= map_size(Parameters) =:= length(Pairs),
        {ok, Parameters}
    else
        _ -> {error, invalid_url}
    end.

-doc "Returns a URL without its query and its fragment.".
-spec endpoint(binary()) -> binary().
endpoint(Url) ->
    hd(binary:split(Url, [~"?", ~"#"])).

%% User information could pass for a host, and a fragment is never sent: neither is accepted.
parse(Url) when byte_size(Url) =< 4096 ->
    %% uri_string takes text, and these may be any bytes.
    case visible(Url) andalso uri_string:parse(Url) of
        #{scheme := Scheme, host := Host} = Parts
          when Host =/= ~"", not is_map_key(userinfo, Parts), not is_map_key(fragment, Parts) ->
            Lower = Parts#{scheme := string:lowercase(Scheme), host := string:lowercase(Host)},
            case is_web(Lower) of
                true -> {ok, Lower};
                false -> {error, invalid_url}
            end;
        _ ->
            {error, invalid_url}
    end;
parse(_) ->
    {error, invalid_url}.

is_web(#{scheme := Scheme} = Parts) ->
    lists:member(Scheme, [~"http", ~"https"]) andalso
        case Parts of
            #{port := Port} -> is_integer(Port) andalso Port > 0 andalso Port < 65536;
            _ -> true
        end.

visible(Url) ->
    << <<Byte>> || <<Byte>> <= Url, Byte > 32, Byte < 127 >> =:= Url.

recompose(Parts) ->
    iolist_to_binary(uri_string:recompose(Parts)).

default_port(~"https") -> 443;
default_port(~"http") -> 80.
