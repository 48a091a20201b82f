-module(erlmcp_certificate).
-moduledoc """
The authentication of a request by the client's TLS certificate, which TLS has verified
(`verify_peer`). Pure, except that it calls the user's fun and logs incidents.

Source: RFC 5280, sections 4.1.2.6 (subject) and 4.2.1.6 (subject alternative names).

Internal.
""".

-include_lib("public_key/include/public_key.hrl").

-export([check/1, identity/3]).

-doc """
Checks the options of `authenticate => {certificate, Options}`. Returns `ok`, or a wrong option and
what was expected there. If the options are no map, returns only what was expected.
""".
-spec check(term()) -> ok | binary() | {Option :: term(), Expected :: binary()}.
check(#{} = Options) -> each(maps:to_list(Options));
check(_) -> ~"a map with principal, scopes or neither".

each([]) ->
    ok;
each([{principal, Principal} | Options]) when
    Principal =:= subject; Principal =:= san; is_function(Principal, 1)
->
    each(Options);
each([{principal, _} | _]) ->
    {principal, ~"subject, san, or a fun of one argument"};
each([{scopes, all} | Options]) ->
    each(Options);
each([{scopes, Scopes} | Options]) ->
    case erlmcp_scope:are_scopes(Scopes) of
        true -> each(Options);
        false -> {scopes, ~"all, or a list of scopes"}
    end;
each([{Name, _} | _]) ->
    {Name, ~"no such option of a certificate"}.

-doc """
Returns the identity of a request, or its refusal. The identity expires with the certificate. The
refusal is 403 without a certificate, or with one that is refused or has expired. It is 500 if the
certificate cannot be read, or if the fun of `principal` crashes or returns an invalid term. A 500
is logged as an incident. `Key` is the key of the server.
""".
-spec identity(erlmcp_listen:certificate(), erlmcp_listen:request(), Key :: reference()) ->
    {ok, erlmcp_auth:identity()} | {error, erlmcp_refusal:refusal()}.
identity(Options, #{certificate := Der} = Request, Key) ->
    Scopes = maps:get(scopes, Options, all),
    Ask = fun(_) ->
        case principal(maps:get(principal, Options, subject), Der) of
            {ok, Principal} -> {ok, Principal, #{scopes => Scopes, expires_at => expires_at(Der)}};
            Other -> Other
        end
    end,
    case erlmcp_auth:identity(Ask, Request, Key) of
        {error, Refusal} ->
            case erlmcp_refusal:status(Refusal) of
                401 -> {error, forbidden(erlmcp_refusal:message(Refusal))};
                _ -> {error, Refusal}
            end;
        Identified ->
            Identified
    end;
identity(_, _, _) ->
    {error, forbidden(~"a client certificate is needed")}.

%% A 401 must name an HTTP scheme, and there is none for certificates.
forbidden(Message) ->
    erlmcp_refusal:new(authz_forbidden, Message).

principal(Fun, Der) when is_function(Fun) ->
    case Fun(Der) of
        %% Only a fun of `authenticate` may say more of an identity.
        {ok, _, _} = Return -> {bad_return, Return};
        Return -> Return
    end;
principal(subject, Der) ->
    #'OTPTBSCertificate'{issuer = Issuer, subject = Subject} = decoded(Der),
    {ok, {text(Issuer), text(Subject)}};
principal(san, Der) ->
    #'OTPTBSCertificate'{extensions = Extensions} = decoded(Der),
    case names(Extensions) of
        [First | _] -> {ok, First};
        [] -> {error, ~"the certificate has no alternative name that is a URI, an email or a host"}
    end.

decoded(Der) ->
    #'OTPCertificate'{tbsCertificate = Certificate} = public_key:pkix_decode_cert(Der, otp),
    Certificate.

names(Extensions) when is_list(Extensions) ->
    Names = lists:append([Values || #'Extension'{extnID = ?'id-ce-subjectAltName',
                                                 extnValue = Values} <- Extensions]),
    [{Kind, list_to_binary(Value)}
     || {Asn1, Kind} <- [{uniformResourceIdentifier, uri}, {rfc822Name, email}, {dNSName, dns}],
        {Found, Value} <- Names, Found =:= Asn1];
names(_) ->
    [].

%% The most significant name comes last, as in RFC 4514. The values of one name are joined by `+`,
%% and names by commas.
text({rdnSequence, Sequence}) ->
    Parts = [lists:join($+, [attribute(Attribute) || Attribute <- Set])
             || Set <- lists:reverse(Sequence)],
    iolist_to_binary(lists:join($,, Parts)).

attribute(#'AttributeTypeAndValue'{type = Type, value = Value}) ->
    [short(Type), $=, escaped(value(Value))].

short(?'id-at-commonName') -> ~"CN";
short(?'id-at-organizationName') -> ~"O";
short(?'id-at-organizationalUnitName') -> ~"OU";
short(?'id-at-countryName') -> ~"C";
short(?'id-at-stateOrProvinceName') -> ~"ST";
short(?'id-at-localityName') -> ~"L";
short(?'id-at-serialNumber') -> ~"SERIALNUMBER";
short(?'id-emailAddress') -> ~"EMAIL";
short(Type) -> lists:join($., [integer_to_list(Number) || Number <- tuple_to_list(Type)]).

value({_, Value}) -> value(Value);
value(Value) when is_binary(Value) -> Value;
value(Value) when is_list(Value) -> unicode:characters_to_binary(Value).

%% Escaped, so that one name cannot look like two.
escaped(Value) ->
    << <<(escape(Byte))/binary>> || <<Byte>> <= Value >>.

escape(Byte) when Byte =:= $,; Byte =:= $+; Byte =:= $"; Byte =:= $\\; Byte =:= $<; Byte =:= $>;
                  Byte =:= $;; Byte =:= $=; Byte =:= $# ->
    <<$\\, Byte>>;
escape(Byte) ->
    <<Byte>>.

%% Years of two digits are 1950 to 2049 (RFC 5280, 4.1.2.5.1).
expires_at(Der) ->
    #'OTPTBSCertificate'{validity = #'Validity'{notAfter = NotAfter}} = decoded(Der),
    case NotAfter of
        {utcTime, [A, B | Rest]} when [A, B] < "50" -> seconds("20" ++ [A, B | Rest]);
        {utcTime, Rest} -> seconds("19" ++ Rest);
        {generalTime, All} -> seconds(All)
    end.

seconds(Text) ->
    {ok, [Year, Month, Day, Hour, Minute, Second], "Z"} =
        io_lib:fread("~4d~2d~2d~2d~2d~2d", Text),
    calendar:datetime_to_gregorian_seconds({{Year, Month, Day}, {Hour, Minute, Second}})
        - calendar:datetime_to_gregorian_seconds({{1970, 1, 1}, {0, 0, 0}}).
