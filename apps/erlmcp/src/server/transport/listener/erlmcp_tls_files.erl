-module(erlmcp_tls_files).
-moduledoc """
Reads the certificates and keys that a listener's `tls` options name as files, and replaces the
names with them. A key must belong to its certificate. Impure: it reads files.

Internal.
""".

-include_lib("public_key/include/public_key.hrl").
-include_lib("kernel/include/file.hrl").

-export([names/1, stamps/1, read/1, without/1]).

-export_type([error/0]).

-type error() :: {file, file:filename_all(), Reason :: atom()}.
-type options() :: [ssl:tls_server_option()].

-doc """
Returns the files of certificates and keys that `read/1` reads, each once. Returns `[]` for options
with `sni_hosts` or `sni_fun`, which give each client other options: then `ssl` itself reads the
files.
""".
-spec names(options()) -> [file:filename_all()].
names(Options) ->
    %% `ssl` checks the files that it has read every two minutes.
    Named = [Option || {Name, _} = Option <- replaced(Options), Name =/= certs_keys],
    lists:usort([File || {Name, File} <- Named, is_file(Name)]
                ++ [File || {certs_keys, Pairs} <- replaced(Options), Pair <- Pairs,
                            Name := File <- Pair, is_file(Name)]).

is_file(Name) -> Name =:= certfile orelse Name =:= keyfile orelse Name =:= cacertfile.

%% Returns the options that `read/1` replaces. `verify` is one of them, since `ssl:listen/2` refuses
%% it without the authorities.
replaced(Options) ->
    Has = fun(Name) -> lists:keymember(Name, 1, Options) end,
    Names = case Has(sni_hosts) orelse Has(sni_fun) of
        true -> [];
        false -> lists:append([[certfile, keyfile, password] || Has(certfile)]
                              ++ [[certs_keys] || Has(certs_keys)]
                              ++ [[cacertfile, verify, fail_if_no_peer_cert] || Has(cacertfile)])
    end,
    [Option || {Name, _} = Option <- Options, lists:member(Name, Names)].

-doc """
Returns a term for each file: its size, the time of its last change in seconds, and its inode. For a
file that cannot be found, the term is the reason.
""".
-spec stamps([file:filename_all()]) -> [term()].
stamps(Names) ->
    [case file:read_file_info(Name, [raw, {time, posix}]) of
         {ok, #file_info{size = Size, mtime = Written, inode = Inode}} -> {Size, Written, Inode};
         {error, Reason} -> Reason
     end || Name <- Names].

-doc """
Reads the files of `names/1`, and returns the options that a handshake needs in addition to those of
`without/1`. The error names a file that cannot be used, and says why. A key that does not belong to
its certificate is such an error, too.
""".
-spec read(options()) -> {ok, options()} | {error, error()}.
read(Options) ->
    Replaced = replaced(Options),
    Named = maps:with([certfile, keyfile, password], maps:from_list(Replaced)),
    Pairs = [Named || is_map_key(certfile, Named)]
        ++ lists:append([Given || {certs_keys, Given} <- Replaced]),
    try
        {ok, [{certs_keys, [pair(Pair) || Pair <- Pairs]} || Pairs =/= []]
             ++ [{cacerts, certificates(File)} || {cacertfile, File} <- Replaced]
             ++ [Option || {Name, _} = Option <- Replaced,
                           Name =:= verify orelse Name =:= fail_if_no_peer_cert]}
    catch
        throw:{file, _, _} = Error -> {error, Error}
    end.

-doc """
Returns the options for the listening socket: those that `read/1` does not replace, and an empty
`certs_keys`.
""".
-spec without(options()) -> options().
without(Options) ->
    [{certs_keys, []} | Options -- [{certs_keys, []} | replaced(Options)]].

pair(#{certfile := File} = Pair) ->
    [Certificate | _] = Chain = certificates(File),
    KeyFile = maps:get(keyfile, Pair, File),
    Key = case Pair of
        #{key := Given} -> Given;
        #{} -> key(KeyFile, maps:get(password, Pair, ""))
    end,
    fits(Key, Certificate) orelse throw({file, KeyFile, key_of_another_certificate}),
    (maps:without([certfile, keyfile, password], Pair))#{cert => Chain, key => Key};
pair(#{keyfile := File} = Pair) ->
    (maps:without([keyfile, password], Pair))#{key => key(File, maps:get(password, Pair, ""))};
pair(Pair) ->
    Pair.

certificates(File) ->
    case [Der || {'Certificate', Der, not_encrypted} <- entries(File)] of
        [] -> throw({file, File, no_certificate});
        Chain -> Chain
    end.

key(File, Password) ->
    case [Entry || {Type, _, _} = Entry <- entries(File), is_key(Type)] of
        [Entry | _] -> decrypted(Entry, Password, File);
        [] -> throw({file, File, no_key})
    end.

is_key(Type) ->
    lists:member(Type, ['RSAPrivateKey', 'DSAPrivateKey', 'ECPrivateKey', 'PrivateKeyInfo']).

decrypted({Type, Der, not_encrypted}, _, _) ->
    {Type, Der};
decrypted({Type, _, _} = Entry, Password, File) ->
    try
        {Type, public_key:der_encode(Type, public_key:pem_entry_decode(Entry, revealed(Password)))}
    catch
        error:_ -> throw({file, File, wrong_password})
    end.

revealed(Password) when is_function(Password) -> revealed(Password());
revealed(Password) -> unicode:characters_to_list(Password).

entries(File) ->
    case file:read_file(File) of
        {ok, Bytes} ->
            try
                public_key:pem_decode(Bytes)
            catch
                error:_ -> throw({file, File, no_pem})
            end;
        {error, Reason} ->
            throw({file, File, Reason})
    end.

%% Returns `true` if a key belongs to a certificate. Files that are replaced one after the other do
%% not fit for a moment. Keys that cannot be checked here (in an engine, or of another algorithm)
%% are left to TLS.
fits({Type, Der}, Certificate) ->
    #'OTPCertificate'{tbsCertificate = #'OTPTBSCertificate'{subjectPublicKeyInfo = Info}} =
        public_key:pkix_decode_cert(Certificate, otp),
    #'OTPSubjectPublicKeyInfo'{algorithm = Algorithm, subjectPublicKey = Public} = Info,
    case {public_key:der_decode(Type, Der), Public} of
        {#'RSAPrivateKey'{modulus = Own}, #'RSAPublicKey'{modulus = Modulus}} ->
            Own =:= Modulus;
        {#'ECPrivateKey'{} = Key, #'ECPoint'{}} ->
            signs(Key, {Public, parameters(Algorithm)});
        {#'RSAPrivateKey'{}, #'ECPoint'{}} ->
            false;
        {#'ECPrivateKey'{}, #'RSAPublicKey'{}} ->
            false;
        _ ->
            true
    end;
fits(_, _) ->
    true.

parameters(#'PublicKeyAlgorithm'{algorithm = Curve, parameters = asn1_NOVALUE}) ->
    {namedCurve, Curve};
parameters(#'PublicKeyAlgorithm'{parameters = Parameters}) ->
    Parameters.

signs(#'ECPrivateKey'{parameters = Parameters} = Key, Public) ->
    Digest = case Parameters of
        {namedCurve, Curve} when Curve =:= ?'id-Ed25519'; Curve =:= ?'id-Ed448' -> none;
        _ -> sha256
    end,
    Signature = public_key:sign(~"fits", Digest, Key),
    try
        public_key:verify(~"fits", Digest, Signature, Public)
    catch
        %% The key is of another curve.
        error:_ -> false
    end.
