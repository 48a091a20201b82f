-module(erlmcp_httpd_metadata).
-moduledoc """
Serves the metadata of a listener as a protected resource (RFC 9728): its URL, and the authorization
servers whose tokens it accepts. The metadata are public, and pages of any origin may read them.

Internal.
""".

-export([new/4, is_at/2, url/2, respond/3]).

-export_type([metadata/0]).

-define(WELL_KNOWN, "/.well-known/oauth-protected-resource").

-doc """
The paths of the metadata, a fun for the fields that depend on the endpoint, and the other fields.
""".
-opaque metadata() :: #{
    paths := [binary()],
    of_endpoint := fun((Endpoint :: binary()) -> document()),
    fields := document()
}.
-type document() :: #{binary() => json:encode_value()}.

-doc """
Returns the metadata of a listener, or `none` if no authorization server is known. `Endpoints` are
the paths of its endpoint, and of its HTTP+SSE stream. `Fields` is the option `protected_resource`,
which overrides other fields, such as `scopes_supported` from `Scopes`. The metadata have a path for
each endpoint, for the resource and for the root (RFC 9728, section 3).
""".
-spec new(erlmcp_httpd_auth:auth(), Fields :: #{atom() => term()}, [erlmcp:scope()],
          Endpoints :: [binary(), ...]) -> metadata() | none.
new(Auth, Fields, Scopes, Endpoints) ->
    OfEndpoint = case Auth of
        {bearer, Handle} -> fun(Endpoint) -> erlmcp_bearer:metadata(Handle, Endpoint) end;
        _ -> fun(Endpoint) -> #{~"resource" => Endpoint} end
    end,
    Supported = #{~"scopes_supported" => Scopes || Scopes =/= []},
    Given = #{atom_to_binary(Name) => Value || Name := Value <- Fields},
    Metadata = #{paths => [], of_endpoint => OfEndpoint, fields => maps:merge(Supported, Given)},
    case document(~"http://127.0.0.1/", Metadata) of
        #{~"authorization_servers" := [_ | _], ~"resource" := Resource} ->
            Paths = [inserted(Path) || Path <- [~"/", path_of(Resource) | Endpoints]],
            Metadata#{paths := lists:usort(Paths)};
        _ ->
            none
    end.

document(Endpoint, #{of_endpoint := OfEndpoint, fields := Fields}) ->
    maps:merge(OfEndpoint(Endpoint), Fields).

inserted(~"/") -> <<?WELL_KNOWN>>;
inserted(Path) -> <<?WELL_KNOWN, Path/binary>>.

path_of(Uri) ->
    case uri_string:parse(Uri) of
        #{path := <<"/", _/binary>> = Path} -> Path;
        #{} -> ~"/"
    end.

-doc "Returns `true` if `Path` is a path of the metadata.".
-spec is_at(Path :: binary(), metadata() | none) -> boolean().
is_at(<<?WELL_KNOWN, _/binary>> = Path, #{paths := Paths}) -> lists:member(Path, Paths);
is_at(_, _) -> false.

-doc "Returns the URL of the metadata for a client of the endpoint with the URL `Endpoint`.".
-spec url(Endpoint :: binary(), metadata()) -> binary().
url(Endpoint, Metadata) ->
    #{~"resource" := Resource} = document(Endpoint, Metadata),
    Parts = maps:remove(fragment, uri_string:parse(Resource)),
    iolist_to_binary(uri_string:recompose(Parts#{path => inserted(path_of(Resource))})).

-doc """
Returns the answer to a request for the metadata, for a client of the endpoint with the URL
`Endpoint`. It has the status 405 for a method other than GET, HEAD and OPTIONS.
""".
-spec respond(Method :: binary(), Endpoint :: binary(), metadata()) -> cowboy_stream:commands().
respond(Method, Endpoint, Metadata) when Method =:= ~"GET"; Method =:= ~"HEAD" ->
    Body = erlmcp_json:encode(document(Endpoint, Metadata)),
    Headers = (shared())#{~"content-type" => ~"application/json",
                          ~"content-length" => integer_to_binary(iolist_size(Body)),
                          ~"cache-control" => ~"public, max-age=300"},
    Sent = case Method of
        ~"GET" -> Body;
        ~"HEAD" -> <<>>
    end,
    [{response, 200, Headers, Sent}, stop];
respond(~"OPTIONS", _, _) ->
    [{response, 204, (shared())#{~"access-control-allow-methods" => ~"GET, HEAD, OPTIONS",
                                 ~"access-control-allow-headers" => ~"*",
                                 ~"access-control-max-age" => ~"86400"}, <<>>}, stop];
respond(_, _, _) ->
    [{response, 405, (shared())#{~"allow" => ~"GET, HEAD, OPTIONS", ~"content-length" => ~"0"},
      <<>>}, stop].

shared() ->
    #{~"access-control-allow-origin" => ~"*", ~"date" => cowboy_clock:rfc1123()}.
