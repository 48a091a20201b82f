-module(erlmcp_httpc_target).
-moduledoc """
Takes the URL of a server apart, into what connections and requests need. Pure.

Internal.
""".

-export([parse/1, origin/1, authority/1, path/1, at/2, resolve_redirect/3]).

-doc """
Parses an absolute `http` or `https` URL without a user, whose port, if it has one, is between 1 and
65,535. The scheme and the host become lower case, and the fragment is left out. Returns `error` for
any other term.
""".
-spec parse(term()) -> {ok, uri_string:uri_map()} | error.
parse(Url) when is_binary(Url) ->
    %% uri_string takes text.
    case unicode:characters_to_binary(Url) =:= Url andalso uri_string:parse(Url) of
        #{scheme := Scheme, host := Host} = Parts
          when Host =/= ~"", not is_map_key(userinfo, Parts) ->
            Port = port(Parts, 80),
            case string:lowercase(Scheme) of
                Lower when (Lower =:= ~"http" orelse Lower =:= ~"https"), Port > 0, Port < 65_536 ->
                    {ok, maps:remove(fragment, Parts#{scheme := Lower,
                                                      host := string:lowercase(Host)})};
                _ ->
                    error
            end;
        _ ->
            error
    end;
parse(_) ->
    error.

-doc "Returns the scheme, the host and the port to connect to.".
-spec origin(uri_string:uri_map()) -> {http | https, Host :: binary(), inet:port_number()}.
origin(#{scheme := ~"http", host := Host} = Url) -> {http, Host, port(Url, 80)};
origin(#{scheme := ~"https", host := Host} = Url) -> {https, Host, port(Url, 443)}.

port(#{port := Port}, _) when is_integer(Port) -> Port;
port(_, Default) -> Default.

-doc "Returns the value of the `host` header for requests to a URL.".
-spec authority(uri_string:uri_map()) -> binary().
authority(#{host := Host} = Url) ->
    Name = case binary:match(Host, ~":") of
        nomatch -> Host;
        _ -> <<"[", Host/binary, "]">>
    end,
    case origin(Url) of
        {http, _, 80} -> Name;
        {https, _, 443} -> Name;
        {_, _, Port} -> <<Name/binary, ":", (integer_to_binary(Port))/binary>>
    end.

-doc "Returns the path and the query of a URL, as the first line of a request has them.".
-spec path(uri_string:uri_map()) -> binary().
path(#{path := Path} = Url) ->
    Absolute = case Path of
        <<"/", _/binary>> -> Path;
        _ -> <<"/", Path/binary>>
    end,
    case Url of
        #{query := Query} -> <<Absolute/binary, "?", Query/binary>>;
        #{} -> Absolute
    end.

-doc "Returns the URL of `Path`, which may have a query, on the origin of `Url`.".
-spec at(Path :: binary(), uri_string:uri_map()) -> binary().
at(Path, Url) ->
    Root = uri_string:recompose((maps:without([query], Url))#{path => ~""}),
    <<Root/binary, Path/binary>>.

-doc """
Resolves a `location` header against the path of the request. Returns the path and the query that
the header redirects to. Returns `elsewhere` if the target is not of the origin of `Url`, and
`error` if the header is malformed.
""".
-spec resolve_redirect(Location :: binary(), Path :: binary(), Url :: uri_string:uri_map()) ->
    {ok, binary()} | elsewhere | error.
resolve_redirect(Location, Path, Url) ->
    %% uri_string takes text, and a header is bytes.
    case unicode:characters_to_binary(Location) =:= Location
             andalso uri_string:resolve(Location, at(Path, Url)) of
        Resolved when is_binary(Resolved) ->
            case parse(Resolved) of
                {ok, Next} ->
                    case origin(Next) =:= origin(Url) of
                        true -> {ok, path(Next)};
                        false -> elsewhere
                    end;
                error ->
                    elsewhere
            end;
        _ ->
            error
    end.
