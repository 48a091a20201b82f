-module(erlmcp_tls).
-moduledoc """
The TLS options with which a client verifies a server: its certificate must be valid for the host,
and signed by a trusted root. The roots are the system's, unless the user names others.

Internal.
""".

-export([client_options/2]).
-export_type([host/0]).

-type host() :: string() | inet:ip_address().

-doc """
Returns the options of `m:ssl` for a connection to a host. `Own`, the options of the user, override
those of the same name; `cacerts` or `cacertfile` replace the system's roots. The error is
`no_cacerts` if the system has no roots, and the user names none. With `{verify, verify_none}` no
roots are needed.

ALPN is not included: the HTTP client chooses the versions.

## Examples

```erlang
1> {ok, Options} = erlmcp_tls:client_options("example.com", [{cacertfile, "roots.pem"}]).
2> proplists:get_value(verify, Options).
verify_peer
```
""".
-spec client_options(host(), Own :: [ssl:tls_client_option()]) ->
    {ok, [ssl:tls_client_option()]} | {error, no_cacerts}.
client_options(Host, Own) ->
    maybe
        {ok, Roots} ?= roots(Own),
        Names = [{customize_hostname_check,
                  [{match_fun, public_key:pkix_verify_hostname_match_fun(https)}]}],
        Defaults = [{verify, verify_peer}, {depth, 10}] ++ Roots ++ Names ++ server_name(Host),
        {ok, Own ++ [Option || {Name, _} = Option <- Defaults,
                               not lists:keymember(Name, 1, Own)]}
    end.

%% The certificate is checked for this name. An address is not a name for the handshake (RFC 6066,
%% 3): ssl checks the certificate for the address that it is connected to.
server_name(Host) when is_list(Host) -> [{server_name_indication, Host}];
server_name(_) -> [].

roots(Own) ->
    case lists:keymember(cacerts, 1, Own) orelse lists:keymember(cacertfile, 1, Own)
         orelse lists:keyfind(verify, 1, Own) =:= {verify, verify_none} of
        true ->
            {ok, []};
        false ->
            try public_key:cacerts_get() of
                Roots -> {ok, [{cacerts, Roots}]}
            catch
                %% cacerts_get/0 has no error return: it crashes without roots.
                error:_ -> {error, no_cacerts}
            end
    end.
