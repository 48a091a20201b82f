-module(erlmcp_listen_options).
-moduledoc "Checks the option `listen`: a server's listeners and their options. Internal.".

-export([check/1, sse/1, pages/1, has_endpoint/1]).

-doc """
Checks the option `listen`, and loads the modules of the listeners' pages. The error `bad_option`
names a wrong option of a listener and what is expected. `{expected, Text}` is about the option
`listen` itself. If the fun of a secret for JWTs raises an error, so does this function.
""".
-spec check(term()) ->
    ok | {expected, binary()} | {error, {bad_option, Option :: term(), Expected :: binary()}}.
check([]) ->
    ok;
check([{Transport, #{} = Options} | Listeners]) when
    Transport =:= http; Transport =:= tcp; Transport =:= stdio
->
    maybe
        ok ?= each(Transport, maps:to_list(Options)),
        ok ?= paths(Options),
        ok ?= said_once(Options),
        ok ?= path_in_url(Options),
        ok ?= proxies(Transport, Options),
        check(Listeners)
    end;
check([_ | _]) ->
    {expected, ~"{http | tcp | stdio, Options}"};
check(_) ->
    {expected, ~"a list of listeners"}.

each(_, []) ->
    ok;
each(Transport, [{Name, Value} | Options]) ->
    case lists:member(Name, names(Transport)) andalso expected(Name, Value) of
        ok -> each(Transport, Options);
        false -> {error, {bad_option, {Transport, Name}, ~"no such option of this listener"}};
        {Inner, Expected} -> {error, {bad_option, {Transport, Name, Inner}, Expected}};
        Expected -> {error, {bad_option, {Transport, Name}, Expected}}
    end.

names(http) ->
    [ip, port, path, tls, allowed_hosts, allowed_origins, authenticate, scopes, implied_scopes,
     protected_resource, sse, trusted_proxies, proxy_protocol, pages, health, metrics];
names(tcp) -> [ip, port, principal, trusted_proxies, proxy_protocol];
names(stdio) -> [output, principal].

expected(ip, Ip) -> ok_or(inet:is_ip_address(Ip), ~"an IP address, as a tuple");
expected(port, Port) ->
    ok_or(is_integer(Port) andalso Port >= 0 andalso Port =< 65535, ~"an integer of 0 to 65535");
expected(principal, _) -> ok;
expected(output, Output) ->
    ok_or(is_integer(Output) andalso Output > 0, ~"a file descriptor, 1 or more");
expected(path, none) -> ok;
expected(path, Path) -> ok_or(can_be_requested(Path), ~"a path: a slash, and no query; or none");
expected(tls, Tls) when length(Tls) >= 0 ->
    %% The options that are read before ssl checks them.
    case {[Versions || {versions, Versions} <- Tls, not erlmcp_user_term:is_proper_list(Versions)],
          [Pairs || {certs_keys, Pairs} <- Tls,
                    not erlmcp_user_term:is_list_of(fun is_map/1, Pairs)]} of
        {[], []} -> ok;
        {[_ | _], _} -> {versions, ~"a list of versions"};
        {[], _} -> {certs_keys, ~"a list of maps"}
    end;
expected(tls, _) -> ~"a list of options of ssl:listen/2";
expected(authenticate, {process, Fun}) when is_function(Fun, 1) -> ok;
expected(authenticate, {certificate, Options}) -> erlmcp_certificate:check(Options);
expected(authenticate, {bearer, Options}) ->
    case erlmcp_bearer_options:check(Options) of
        ok -> ok;
        {error, {bad_option, Option, Expected}} -> {Option, Expected}
    end;
expected(authenticate, Fun) ->
    ok_or(is_function(Fun, 1),
          ~"a fun of one argument, {process, Fun}, {bearer, Options} or {certificate, Options}");
expected(scopes, Scopes) -> ok_or(erlmcp_scope:are_scopes(Scopes), ~"a list of scopes");
expected(implied_scopes, Implied) ->
    ok_or(is_map(Implied)
          andalso lists:all(fun({Scope, Scopes}) -> erlmcp_scope:are_scopes([Scope | Scopes]) end,
                            maps:to_list(Implied)),
          ~"a map of scopes to lists of scopes");
expected(protected_resource, Fields) when is_map(Fields) -> fields(maps:to_list(Fields));
expected(protected_resource, _) -> ~"a map";
expected(trusted_proxies, [_ | _] = Networks) -> networks(Networks);
expected(trusted_proxies, _) -> ~"a list of addresses and networks, one at least";
expected(proxy_protocol, Value) -> ok_or(is_boolean(Value), ~"true or false");
expected(sse, Sse) when is_map(Sse) -> endpoints(maps:to_list(Sse));
expected(sse, _) -> ~"a map with path, message_path or neither";
expected(health, Value) -> ok_or(is_boolean(Value), ~"true or false");
expected(pages, Pages) when is_map(Pages) -> pages_of(maps:to_list(Pages));
expected(pages, _) -> ~"a map of paths to pages";
expected(metrics, true) ->
    %% Loaded here, since a release may lack an optional application.
    case code:ensure_loaded(prometheus_text_format) of
        {module, _} -> ok;
        {error, _} -> ~"the application prometheus among the project's dependencies"
    end;
expected(metrics, Value) -> ok_or(Value =:= false, ~"true or false");
expected(_, any) -> ok;
expected(_, Names) ->
    ok_or(erlmcp_user_term:is_list_of(fun erlmcp_user_term:is_utf8/1, Names),
          ~"any, or a list of binaries, UTF-8").

networks([]) ->
    ok;
networks([Text | Networks]) when is_binary(Text) ->
    case erlmcp_ip_network:read(Text) of
        {ok, _} -> networks(Networks);
        {error, Expected} -> {Text, Expected}
    end;
networks([Other | _]) ->
    {Other, ~"a binary: an IP address, or a network like 10.0.0.0/8"};
networks(_) ->
    ~"a list of addresses and networks, one at least".

ok_or(true, _) -> ok;
ok_or(false, Expected) -> Expected.

fields([]) ->
    ok;
fields([{Name, Value} | Fields]) ->
    case field(Name, Value) of
        {true, _} -> fields(Fields);
        {false, Expected} -> {Name, Expected}
    end.

field(resource, Value) -> {is_url(Value), ~"a URL without a fragment"};
field(authorization_servers, [_ | _] = Values) ->
    {erlmcp_user_term:is_list_of(fun is_url/1, Values), ~"a list of URLs"};
field(authorization_servers, _) -> {false, ~"a list of URLs"};
field(scopes_supported, Value) -> {erlmcp_scope:are_scopes(Value), ~"a list of scopes"};
field(resource_name, Value) -> {erlmcp_user_term:is_utf8(Value), ~"a binary, UTF-8"};
field(Name, Value) when
    Name =:= resource_documentation; Name =:= resource_policy_uri; Name =:= resource_tos_uri
->
    {is_url(Value), ~"a URL"};
field(_, _) ->
    {false, ~"no such field of a protected resource"}.

is_url(Value) ->
    case erlmcp_user_term:is_utf8(Value) andalso uri_string:parse(Value) of
        #{scheme := Scheme, host := Host} = Url when Host =/= ~"" ->
            (Scheme =:= ~"https" orelse Scheme =:= ~"http") andalso not is_map_key(fragment, Url);
        _ ->
            false
    end.

%% Clients get the path for messages with a query behind it.
endpoints([]) ->
    ok;
endpoints([{Name, Path} | Options]) when
    is_binary(Path), (Name =:= path orelse Name =:= message_path)
->
    case is_path(Path) of
        true -> endpoints(Options);
        false -> {Name, ~"a path: a slash, and no query"}
    end;
endpoints([{Name, _} | _]) ->
    {Name, ~"path or message_path, a binary"}.

%% Paths are compared as they come. HTTP/1.1 takes more bytes in them than a URL may have.
can_be_requested(Path) ->
    is_binary(Path)
        andalso re:run(Path, ~"^/[^\\x00-\\x20\\x7f?#]*$", [{capture, none}, dollar_endonly])
                =:= match.

%% Only bytes that stand in the path of a URL: the client is sent it.
is_path(Path) ->
    is_binary(Path)
        andalso re:run(Path, ~"^/[!$-;=@-Z_a-z~]*$", [{capture, none}, dollar_endonly]) =:= match.

pages_of([]) ->
    ok;
pages_of([{Path, Page} | Pages]) ->
    case {is_path_of_page(Path), Page} of
        {false, _} -> {Path, ~"a path: a slash first and none last, and no query"};
        {true, {Module, _}} when is_atom(Module) -> is_page(Module, #{}, Path, Pages);
        {true, {Module, _, Options}} when is_atom(Module) -> is_page(Module, Options, Path, Pages);
        {true, _} -> {Path, ~"{Module, State} or {Module, State, Options}"}
    end.

is_path_of_page(Path) ->
    is_binary(Path)
        andalso re:run(Path, ~"^/([!$-.0-;=@-Z_a-z~]+(/[!$-.0-;=@-Z_a-z~]+)*)?$",
                       [{capture, none}, dollar_endonly]) =:= match.

is_page(Module, Options, Path, Pages) ->
    _ = code:ensure_loaded(Module),
    case {erlang:function_exported(Module, handle, 2), Options} of
        {false, _} -> {Path, ~"a module with -behaviour(erlmcp_page)"};
        {true, #{authenticate := Value}} when is_boolean(Value), map_size(Options) =:= 1 ->
            pages_of(Pages);
        {true, #{}} when map_size(Options) =:= 0 -> pages_of(Pages);
        _ -> {Path, ~"authenticate, true or false, and no other option"}
    end.

%% A listener has a path at least, and no path is of two of its parts.
paths(Options) ->
    Pages = maps:keys(maps:get(pages, Options, #{})) ++ maps:keys(own_pages(Options))
        ++ [Path || #{health := true} <- [Options], Path <- [~"/health/live", ~"/health/ready"]],
    Paths = [Path || Path <- [maps:get(path, Options, ~"/mcp")], Path =/= none]
        ++ [map_get(Key, Sse) || #{} = Sse <- [sse(Options)], Key <- [path, message_path]]
        ++ Pages,
    case Paths -- lists:uniq(Paths) of
        [] when Paths =:= [] ->
            {error, {bad_option, {http, pages}, ~"one page at least, since path is none"}};
        [] ->
            ok;
        [Twice | _] ->
            Option = case lists:member(Twice, Pages) of
                true -> {http, pages, Twice};
                false -> {http, sse}
            end,
            {error, {bad_option, Option, ~"paths that differ, and from path"}}
    end.

%% Refuses an option that has no effect without another one.
proxies(Transport, #{proxy_protocol := true} = Options) when
    not is_map_key(trusted_proxies, Options)
->
    {error, {bad_option, {Transport, proxy_protocol},
             ~"trusted_proxies too: the header is read from these alone"}};
proxies(tcp, #{trusted_proxies := _, proxy_protocol := true}) ->
    ok;
proxies(tcp, #{trusted_proxies := _}) ->
    {error, {bad_option, {tcp, trusted_proxies}, ~"proxy_protocol => true, too"}};
proxies(_, _) ->
    ok.

%% The resource of tokens must be the same for those who check them and for clients.
said_once(#{authenticate := {bearer, _}, protected_resource := Fields}) ->
    case [Name || Name <- [resource, authorization_servers], is_map_key(Name, Fields)] of
        [] -> ok;
        [Name | _] -> {error, {bad_option, {http, protected_resource, Name},
                               ~"to be set among the options of bearer, not here"}}
    end;
said_once(_) ->
    ok.

%% Without the option `resource`, the URL of the endpoint is the resource of metadata and of tokens.
path_in_url(#{path := <<Path/binary>>} = Options) ->
    case is_path(Path) orelse not names_url(Options) of
        true -> ok;
        false -> {error, {bad_option, {http, path},
                          ~"a path as it stands in a URL, or the option resource"}}
    end;
path_in_url(_) ->
    ok.

names_url(#{authenticate := {bearer, Bearer}}) ->
    not is_map_key(resource, Bearer) andalso has_resource(Bearer);
names_url(#{protected_resource := #{authorization_servers := _} = Fields}) ->
    not is_map_key(resource, Fields);
names_url(_) -> false.

%% A listener whose tokens only a fun or a list knows has no metadata and compares no URL.
has_resource(#{tokens := Sources} = Bearer) ->
    maps:get(authorization_servers, Bearer, []) =/= []
        orelse maps:get(dpop, Bearer, off) =/= off
        orelse lists:any(fun({Kind, _}) -> Kind =:= jwt orelse Kind =:= introspection end, Sources).

-doc """
Returns the paths of HTTP+SSE from the options of a listener: `path` for GET, and `message_path` for
POST. Returns `none` if the options have no `sse`.
""".
-spec sse(map()) -> #{path := binary(), message_path := binary()} | none.
sse(#{sse := Given}) -> maps:merge(#{path => ~"/sse", message_path => ~"/messages"}, Given);
sse(_) -> none.

-doc """
Returns the pages of a listener with `Options`, by their paths: those of the option `pages`, and
those of `health` and `metrics`.
""".
-spec pages(Options :: map()) -> #{Path :: binary() => erlmcp_page:page()}.
pages(Options) -> maps:merge(own_pages(Options), maps:get(pages, Options, #{})).

own_pages(Options) ->
    #{Path => Page || {Option, Path, Page} <- [{health, ~"/health", {erlmcp_health, none}},
                                               {metrics, ~"/metrics", {erlmcp_prometheus, none}}],
                      #{Option := true} <- [Options]}.

-doc "Returns `true` if a listener with `Options` has an endpoint, and not only pages.".
-spec has_endpoint(Options :: map()) -> boolean().
has_endpoint(#{path := none} = Options) -> is_map_key(sse, Options);
has_endpoint(_) -> true.
