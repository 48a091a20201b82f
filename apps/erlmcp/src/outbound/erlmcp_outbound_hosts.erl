-module(erlmcp_outbound_hosts).
-moduledoc """
Decides which hosts a login may be led to, and looks their names up in the calling process.

The user names the MCP server, and perhaps an issuer; their metadata names other hosts. The option
`allow_hosts` decides about two kinds of these, and all others are allowed. The first is an endpoint
of another origin than its issuer's. The second is a host with an address further inside
(`inwards/1`) than the MCP server's own, at an origin that the user has not named.

A server with several addresses counts as being at the outermost of them. So a name that gets a
private address later does not make a public server private. A server with a name other than
`localhost` never counts as one on this machine.

Internal.
""".

-export([new/4, addresses/2, endpoint/3, inwards/1]).

-export_type([hosts/0, depth/0, why/0, consent/0, reason/0]).

-doc "The hosts that a login may lead to.".
-opaque hosts() :: #{
    named := [erlmcp_oauth_url:origin()],
    allow := erlmcp_oauth:allow_hosts(),
    %% The consents, and the row `{outermost, depth() | none}` with the depth of the MCP server's
    %% outermost address.
    consents := ets:table(),
    learned := fun((consent()) -> ok)
}.
-type why() ::
    {other_origin, Issuer :: binary()} | {inner_address, Address :: binary()}.
-doc """
A host that `allow_hosts` has allowed, and the reason why `allow_hosts` was asked. A host that is
allowed for its inner address is also allowed as another origin.
""".
-type consent() :: {Host :: binary(), other_origin | inner_address}.
-type reason() :: {host_not_allowed, Host :: binary(), why()}.

-doc "The level of an address, from the internet inwards, as `inwards/1` returns it.".
-type depth() :: 0..2.

-define(PUBLIC, 0).
-define(PRIVATE, 1).
-define(HERE, 2).

-doc """
Creates the hosts for a login at the MCP server `ServerUrl`, in a table of the calling process,
which alone can use them. `Reached` is the depth of the outermost address that the server was
reached at, or `none` if it was not reached yet. `Consents` are those of earlier logins. Each new
consent is passed to `Learned`.
""".
-spec new({ServerUrl :: binary(), Reached :: depth() | none}, erlmcp_oauth_options:settings(),
          Consents :: [consent()], Learned :: fun((consent()) -> ok)) -> hosts().
new({ServerUrl, Reached}, #{allow_hosts := Allow} = Settings, Consents, Learned) ->
    Table = ets:new(?MODULE, [private]),
    true = ets:insert(Table, [{outermost, Reached} | [{Consent} || Consent <- Consents]]),
    Named = [ServerUrl | [Issuer || #{issuer := Issuer} <- [Settings]]],
    #{named => [Origin || Url <- Named, {ok, Origin} <- [erlmcp_oauth_url:origin(Url)]],
      allow => Allow, consents => Table, learned => Learned}.

-doc """
Returns the addresses at which `Url`, a valid URL, may be called. If `Hosts` is `any`, all addresses
are allowed. If the name of the host has no address, the error is `{connect, Posix}`. If the host is
not allowed, the error says why. If `allow_hosts` is a fun, the function may call it, and wait for
it.
""".
-spec addresses(Url :: binary(), hosts() | any) ->
    {ok, [inet:ip_address(), ...]} | {error, reason() | {connect, inet:posix()}}.
addresses(Url, Hosts) ->
    {ok, {_, Host, _} = Origin} = erlmcp_oauth_url:origin(Url),
    maybe
        {ok, Addresses} ?= looked_up(Host),
        _ = is_server(Origin, Hosts) andalso outermost(Addresses, Hosts),
        ok ?= outwards(Origin, Url, Addresses, Hosts),
        {ok, Addresses}
    else
        {error, Posix} when is_atom(Posix) -> {error, {connect, Posix}};
        {error, _} = Error -> Error
    end.

%% Looks up IPv4 addresses, and IPv6 addresses if there are none, as OTP does elsewhere.
looked_up(Host) ->
    Text = binary_to_list(Host),
    maybe
        {error, einval} ?= inet:parse_strict_address(Text),
        {error, _} ?= inet:getaddrs(Text, inet),
        inet:getaddrs(Text, inet6)
    else
        {ok, Address} when is_tuple(Address) -> {ok, [Address]};
        {ok, Addresses} -> {ok, Addresses}
    end.

outwards(_, _, _, any) ->
    ok;
outwards({_, Host, _} = Origin, Url, Addresses, #{named := [Server | _] = Named} = Hosts) ->
    [Innermost | _] = lists:sort(fun(A, B) -> inwards(A) >= inwards(B) end, Addresses),
    case inwards(Innermost) =:= ?PUBLIC orelse lists:member(Origin, Named)
         orelse inwards(Innermost) =< depth(Server, Hosts) of
        true -> ok;
        false ->
            Why = {inner_address, list_to_binary(inet:ntoa(Innermost))},
            ask_user(#{host => Host, url => Url, why => Why}, Hosts)
    end.

%% The owner of a name chooses its addresses. So a server with a name counts as private at most, and
%% never as one on this machine.
depth({_, Host, _}, Hosts) ->
    case {erlmcp_oauth_url:loopback(Host), inet:parse_strict_address(binary_to_list(Host))} of
        {true, _} -> ?HERE;
        {_, {ok, Address}} -> inwards(Address);
        _ ->
            case looked_up(Host) of
                {ok, Addresses} -> min(?PRIVATE, outermost(Addresses, Hosts));
                {error, _} -> ?PUBLIC
            end
    end.

is_server(_, any) -> false;
is_server(Origin, #{named := [Server | _]}) -> Origin =:= Server.

%% `none` is greater than any number.
outermost(Addresses, #{consents := Table}) ->
    Before = ets:lookup_element(Table, outermost, 2),
    Outermost = lists:min([Before | [inwards(One) || One <- Addresses]]),
    true = ets:insert(Table, {outermost, Outermost}),
    Outermost.

-doc """
Returns how far inside an address lies. 0 is the internet; 1 is a private network, or an address for
most other special uses; 2 is this machine and its link, where clouds serve the secrets of a
machine. An IPv6 address that contains an IPv4 address (mapped, translated or 6to4) counts as the
IPv4 address.

Sources: the registries of special-purpose addresses of RFC 6890; RFC 4291, 6052, 3056.
""".
-spec inwards(inet:ip_address()) -> depth().
inwards({0, _, _, _}) -> ?HERE;
inwards({127, _, _, _}) -> ?HERE;
inwards({169, 254, _, _}) -> ?HERE;
inwards({10, _, _, _}) -> ?PRIVATE;
inwards({172, B, _, _}) when B >= 16, B < 32 -> ?PRIVATE;
inwards({192, 168, _, _}) -> ?PRIVATE;
inwards({192, 0, 0, _}) -> ?PRIVATE;
inwards({100, B, _, _}) when B >= 64, B < 128 -> ?PRIVATE;
inwards({198, B, _, _}) when B =:= 18; B =:= 19 -> ?PRIVATE;
inwards({A, _, _, _}) when A >= 224 -> ?PRIVATE;
inwards({_, _, _, _}) -> ?PUBLIC;
inwards({0, 0, 0, 0, 0, 0, 0, Last}) when Last < 2 -> ?HERE;
inwards({0, 0, 0, 0, 0, Mapped, C, D}) when Mapped =:= 0; Mapped =:= 16#ffff -> embedded(C, D);
inwards({0, 0, 0, 0, 16#ffff, 0, C, D}) -> embedded(C, D);
inwards({16#64, 16#ff9b, 0, 0, 0, 0, C, D}) -> embedded(C, D);
inwards({16#2002, C, D, _, _, _, _, _}) -> embedded(C, D);
inwards({16#2001, Second, _, _, _, _, _, _}) when Second < 16#200 -> ?PRIVATE;
inwards({16#2001, 16#db8, _, _, _, _, _, _}) -> ?PRIVATE;
inwards({A, _, _, _, _, _, _, _}) when A >= 16#fe80, A < 16#fec0 -> ?HERE;
inwards({A, _, _, _, _, _, _, _}) when A >= 16#2000, A < 16#4000 -> ?PUBLIC;
inwards({_, _, _, _, _, _, _, _}) -> ?PRIVATE.

embedded(C, D) ->
    inwards({C bsr 8, C band 16#ff, D bsr 8, D band 16#ff}).

-doc """
Returns `ok` if the endpoint `Url` in the metadata of `Issuer` may be used. Otherwise the error says
why not, such as `{url_not_allowed, Url}`. The function may call `allow_hosts`, like `addresses/2`.
A name without an address is no error here. Without `hosts` in the settings, any URL may be used
that `erlmcp_oauth_url:allowed/2` allows.
""".
-spec endpoint(Url :: binary(), Issuer :: binary(), erlmcp_fetch:settings()) ->
    ok | {error, reason() | {url_not_allowed, binary()}}.
endpoint(Url, Issuer, #{plain := Plain} = Fetch) ->
    case {erlmcp_oauth_url:allowed(Url, Plain), Fetch} of
        {false, _} -> {error, {url_not_allowed, Url}};
        {true, #{hosts := Hosts}} -> outside(addresses(Url, Hosts), Url, Issuer, Hosts);
        {true, _} -> ok
    end.

outside({error, {host_not_allowed, _, _}} = Error, _, _, _) ->
    Error;
outside(_, Url, Issuer, Hosts) ->
    case erlmcp_oauth_url:same_origin(Url, Issuer) of
        true ->
            ok;
        false ->
            {ok, {_, Host, _}} = erlmcp_oauth_url:origin(Url),
            ask_user(#{host => Host, url => Url, why => {other_origin, Issuer}}, Hosts)
    end.

ask_user(#{host := Host, why := {Kind, _} = Why} = Question,
         #{allow := Allow, consents := Consents, learned := Learned}) ->
    HasConsent = lists:any(fun(Which) -> ets:member(Consents, {Host, Which}) end,
                           [inner_address, Kind]),
    case HasConsent orelse is_allowed(Question, Allow) of
        true when HasConsent ->
            ok;
        true ->
            true = ets:insert(Consents, {{Host, Kind}}),
            Learned({Host, Kind});
        false ->
            {error, {host_not_allowed, Host, Why}}
    end.

is_allowed(#{host := Host}, Allowed) when is_list(Allowed) -> lists:member(Host, Allowed);
is_allowed(Question, Allow) -> Allow(Question).
