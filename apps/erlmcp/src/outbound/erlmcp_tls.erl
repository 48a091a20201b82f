-module(erlmcp_tls).
-moduledoc """
What a client of TLS asks of its server: a certificate that a root it trusts has signed, for the
host that was meant. The roots are the system's, unless the user names others.

Internal.
""".

-export([client_options/2]).
-export_type([host/0]).

-type host() :: string() | inet:ip_address().

-doc """
The options for a connection to this host. The user's take the place of those of the same name, and
say with `cacerts` or `cacertfile` whom to trust instead of the system's roots. `no_cacerts` is the
error of a system without any.

ALPN is not among them: who speaks HTTP says which versions.

## Examples

```erlang
1> {ok, Options} = erlmcp_tls:client_options("example.com", [{cacertfile, "roots.pem"}]).
2> proplists:get_value(verify, Options).
verify_peer
```
""".
-spec client_options(host(), [ssl:tls_client_option()]) ->
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

%% What is asked of the certificate is asked of this name; an address is no name for the handshake
%% (RFC 6066, 3), and ssl asks the certificate for the address that it is connected to.
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
                %% It finds the system's roots or fails; there is no return for that.
                error:_ -> {error, no_cacerts}
            end
    end.
