-module(listener_tls_SUITE).
-moduledoc """
A listener's TLS: what it takes and refuses by itself, certificates that change on disk while it
runs, and certificates of clients as who asks.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("public_key/include/public_key.hrl").

-export([all/0, groups/0, suite/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([versions_and_ciphers/1, no_renegotiation/1, the_users_options_count/1]).
-export([new_files_are_shown/1, open_connections_stay/1, halves_are_not_shown/1,
         a_broken_file_is_not_shown/1, files_that_cannot_be_read/1, options_that_will_not_do/1,
         encrypted_keys/1, several_certificates/1]).
-export([subjects_are_principals/1, alternative_names_are_principals/1, funs_name_principals/1,
         strangers_do_not_get_in/1, authorities_change/1, scopes_of_certificates/1]).
-export([who_comes_back_resumes/1, new_files_end_no_tickets/1, tickets_are_of_a_listener/1,
         certificates_are_shown_each_time/1, resumption_is_the_users/1]).
-export([log/2]).

-define(TIMEOUT, 60_000).

all() ->
    [{group, defaults}, {group, files}, {group, clients}, {group, resumption}].

groups() ->
    [{defaults, [versions_and_ciphers, no_renegotiation, the_users_options_count]},
     {files, [new_files_are_shown, open_connections_stay, halves_are_not_shown,
              a_broken_file_is_not_shown, files_that_cannot_be_read, options_that_will_not_do,
              encrypted_keys, several_certificates]},
     {clients, [subjects_are_principals, alternative_names_are_principals, funs_name_principals,
                strangers_do_not_get_in, authorities_change, scopes_of_certificates]},
     {resumption, [who_comes_back_resumes, new_files_end_no_tickets, tickets_are_of_a_listener,
                   certificates_are_shown_each_time, resumption_is_the_users]}].

suite() ->
    [{timetrap, {minutes, 4}}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, ssl], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(Case, Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), atom_to_list(Case)),
    ok = filelib:ensure_path(Folder),
    [{folder, Folder} | Config].

end_per_testcase(_, _) ->
    ok.

%% Certificates. Each has an authority of its own, unless that is given.

made(Extensions) ->
    Made = [{digest, sha256}, {key, {namedCurve, secp256r1}}],
    #{server_config := Own} = public_key:pkix_test_data(
        #{server_chain => #{root => Made, intermediates => [],
                            peer => [{extensions, Extensions} | Made]},
          client_chain => #{root => Made, intermediates => [], peer => Made}}),
    #{cert => proplists:get_value(cert, Own), key => proplists:get_value(key, Own),
      authorities => issuers(Own)}.

%% A client and what its server trusts.
clients(Extensions) ->
    Made = [{digest, sha256}, {key, {namedCurve, secp256r1}}],
    #{server_config := Server, client_config := Client} = public_key:pkix_test_data(
        #{server_chain => #{root => Made, intermediates => [], peer => Made},
          client_chain => #{root => Made, intermediates => [],
                            peer => [{extensions, Extensions} | Made]}}),
    {[Option || {Name, _} = Option <- Client, Name =:= cert orelse Name =:= key],
     proplists:get_value(cacerts, Server)}.

issuers(Options) ->
    proplists:get_value(cacerts, Options).

file(Name, Config) ->
    filename:join(proplists:get_value(folder, Config), Name).

%% Renamed into place, as those do who mean well.
write(Name, Entries, Config) ->
    File = file(Name, Config),
    ok = file:write_file(File ++ ".new", public_key:pem_encode(
        [{Type, Der, not_encrypted} || {Type, Der} <- Entries])),
    ok = file:rename(File ++ ".new", File),
    File.

put_certificate(#{cert := Der}, Config) ->
    write("cert.pem", [{'Certificate', Der}], Config).

put_key(#{key := Key}, Config) ->
    write("key.pem", [Key], Config).

files(Made, Config) ->
    [{certfile, put_certificate(Made, Config)}, {keyfile, put_key(Made, Config)}].

%% The server and its clients.

with_server(Listener, Fun) ->
    Whoami = #{name => ~"whoami", handler => fun(_, #{principal := Principal}) ->
                   iolist_to_binary(io_lib:format("~0tp", [Principal]))
               end},
    Server = erlmcp_test_http:start(#{tools => [Whoami, Whoami#{name => ~"admin",
                                                                scopes => [~"admin"]}],
                                      listen => [{http, Listener}]}),
    try
        Fun(Server)
    after
        erlmcp_test_http:stop(Server)
    end.

connect(#{port := Port}, Options) ->
    ssl:connect("127.0.0.1", Port, [{verify, verify_none}, {active, false}, binary | Options],
                ?TIMEOUT).

shown(Server) ->
    {ok, Socket} = connect(Server, []),
    {ok, Der} = ssl:peercert(Socket),
    ok = ssl:close(Socket),
    Der.

%% Looked at again and again until it is so: the files are looked at once a second.
until(Condition) ->
    until(Condition, 100).

until(Condition, Left) ->
    case Condition() of
        true -> ok;
        false when Left > 0 ->
            receive after 100 -> until(Condition, Left - 1) end
    end.

post(Socket, Tool) ->
    {Headers, Body} = erlmcp_test_http:message(~"tools/call", #{name => Tool}, #{}),
    Head = [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Headers],
    Bytes = [~"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: ",
             integer_to_binary(byte_size(Body)), ~"\r\n", Head, ~"\r\n", Body],
    case ssl:send(Socket, Bytes) of
        ok -> answer(Socket, ~"");
        {error, _} = Error -> Error
    end.

answer(Socket, Read) ->
    maybe
        [Head, Body] ?= binary:split(Read, ~"\r\n\r\n"),
        {match, [Digits]} ?= re:run(Head, ~"content-length: ([0-9]+)",
                                    [{capture, all_but_first, binary}]),
        true ?= byte_size(Body) =:= binary_to_integer(Digits),
        <<"HTTP/1.1 ", Status:3/binary, _/binary>> = Head,
        {binary_to_integer(Status), json:decode(Body)}
    else
        _ ->
            case ssl:recv(Socket, 0, ?TIMEOUT) of
                {ok, More} -> answer(Socket, <<Read/binary, More/binary>>);
                {error, Reason} -> {error, Reason}
            end
    end.

whoami(Server, Options) ->
    {ok, Socket} = connect(Server, Options),
    {200, #{~"result" := #{~"content" := [#{~"text" := Text}]}}} = post(Socket, ~"whoami"),
    ok = ssl:close(Socket),
    Text.

%% By itself.

versions_and_ciphers(Config) ->
    with_server(#{tls => files(made([]), Config)}, fun(Server) ->
        [begin
             {ok, Socket} = connect(Server, [{versions, [Version]}]),
             {ok, [{protocol, Version}, {selected_cipher_suite, #{mac := aead}}]} =
                 ssl:connection_information(Socket, [protocol, selected_cipher_suite]),
             ok = ssl:close(Socket)
         end || Version <- ['tlsv1.2', 'tlsv1.3']],
        {error, {tls_alert, {protocol_version, _}}} =
            connect(Server, [{versions, ['tlsv1.1']}]),
        %% Without forward secrecy, or with CBC.
        Weak = [Suite || Suite <- ssl:cipher_suites(all, 'tlsv1.2'),
                         #{mac := Mac, key_exchange := Exchange} <- [Suite],
                         Mac =/= aead orelse Exchange =:= rsa],
        {error, {tls_alert, {Alert, _}}} =
            connect(Server, [{versions, ['tlsv1.2']}, {ciphers, Weak}]),
        true = lists:member(Alert, [insufficient_security, handshake_failure])
    end).

no_renegotiation(Config) ->
    with_server(#{tls => files(made([]), Config)}, fun(Server) ->
        {ok, Socket} = connect(Server, [{versions, ['tlsv1.2']}]),
        {error, _} = ssl:renegotiate(Socket),
        ok = ssl:close(Socket)
    end).

the_users_options_count(Config) ->
    with_server(#{tls => [{versions, ['tlsv1.2']} | files(made([]), Config)]}, fun(Server) ->
        {ok, Socket} = connect(Server, []),
        {ok, [{protocol, 'tlsv1.2'}]} = ssl:connection_information(Socket, [protocol]),
        ok = ssl:close(Socket)
    end).

%% Files.

new_files_are_shown(Config) ->
    #{cert := Old} = First = made([]),
    with_server(#{tls => files(First, Config)}, fun(Server) ->
        Old = shown(Server),
        #{cert := New} = Second = made([]),
        _ = files(Second, Config),
        ok = until(fun() -> shown(Server) =:= New end)
    end).

open_connections_stay(Config) ->
    First = made([]),
    with_server(#{tls => files(First, Config)}, fun(Server) ->
        {ok, Socket} = connect(Server, []),
        {200, _} = post(Socket, ~"whoami"),
        #{cert := New} = Second = made([]),
        _ = files(Second, Config),
        ok = until(fun() -> shown(Server) =:= New end),
        {200, _} = post(Socket, ~"whoami"),
        ok = ssl:close(Socket)
    end).

%% The new certificate with the old key: neither is shown until the other is there.
halves_are_not_shown(Config) ->
    #{cert := Old} = First = made([]),
    with_server(#{tls => files(First, Config)}, fun(Server) ->
        #{cert := New} = Second = made([]),
        kept(fun() -> put_certificate(Second, Config) end, key_of_another_certificate),
        Old = shown(Server),
        _ = put_key(Second, Config),
        ok = until(fun() -> shown(Server) =:= New end)
    end).

a_broken_file_is_not_shown(Config) ->
    #{cert := Old} = First = made([]),
    Files = files(First, Config),
    with_server(#{tls => Files}, fun(Server) ->
        kept(fun() -> ok = file:write_file(proplists:get_value(certfile, Files), ~"nothing") end,
             no_certificate),
        Old = shown(Server),
        kept(fun() -> ok = file:delete(proplists:get_value(keyfile, Files)),
                      _ = put_certificate(First, Config) end, enoent),
        Old = shown(Server),
        #{cert := New} = Second = made([]),
        _ = files(Second, Config),
        ok = until(fun() -> shown(Server) =:= New end)
    end).

%% What the log says of files that are not taken.
kept(Change, Reason) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self()}),
    _ = Change(),
    receive
        {kept, Reason} -> ok
    after ?TIMEOUT ->
        error({not_logged, Reason})
    end,
    ok = logger:remove_handler(?MODULE).

-doc false.
log(#{msg := {report, #{what := certificates_kept, reason := Reason, server := _}}},
    #{config := Test}) ->
    Test ! {kept, Reason},
    ok;
log(_, _) ->
    ok.

files_that_cannot_be_read(Config) ->
    process_flag(trap_exit, true),
    Made = made([]),
    [{certfile, Certificate}, {keyfile, Key}] = files(Made, Config),
    Other = write("other.pem", [maps:get(key, made([]))], Config),
    Empty = file("empty.pem", Config),
    ok = file:write_file(Empty, ~""),
    [begin
         Started = erlmcp:start_server(#{name => ~"test", version => ~"1",
                                         listen => [{http, #{tls => Tls}}]}),
         {File, Reason, {error, {listen, http, {file, File, Reason}}}} = {File, Reason, Started}
     end || {File, Reason, Tls} <- [
         {file("none.pem", Config), enoent, [{certfile, file("none.pem", Config)}]},
         {Empty, no_certificate, [{certfile, Empty}, {keyfile, Key}]},
         {Certificate, no_key, [{certfile, Certificate}]},
         {Other, key_of_another_certificate, [{certfile, Certificate}, {keyfile, Other}]},
         {Empty, no_certificate, [{certfile, Certificate}, {keyfile, Key}, {cacertfile, Empty}]},
         {Empty, no_key, [{certs_keys, [#{certfile => Certificate, keyfile => Empty}]}]}]].

%% The first that will not do is named: by ssl, which tells its value too, or else by erlmcp.
options_that_will_not_do(Config) ->
    process_flag(trap_exit, true),
    Shown = files(made([]), Config),
    Taken = ~"an option of ssl:listen/2 with a valid value",
    [{Wrong, {error, Told}} =
         {Wrong, erlmcp:start_server(#{name => ~"test", version => ~"1",
                                       listen => [{http, #{tls => Shown ++ Wrong}}]})}
     || {Wrong, Told} <- [
         {[{nonsense, 1}], {bad_option, {http, tls, nonsense}, Taken}},
         {[{backlog, 5}, {sndbuf, perhaps}, {depth, 1}],
          {bad_option, {http, tls, sndbuf}, Taken}},
         {[{versions, nonsense}], {bad_option, {http, tls, versions}, ~"a list of versions"}},
         {[{versions, ['tlsv1.3' | 'tlsv1.2']}],
          {bad_option, {http, tls, versions}, ~"a list of versions"}},
         {[{verify, nonsense}], {listen, http, {options, {verify, nonsense}}}},
         {[{1, 2}], {listen, http, {options, {option_not_a_key_value_tuple, {1, 2}}}}}]],
    [{error, {bad_option, {http, tls}, ~"a list of options of ssl:listen/2"}} =
         erlmcp:start_server(#{name => ~"test", version => ~"1",
                               listen => [{http, #{tls => Wrong}}]})
     || Wrong <- [none, [{depth, 1} | none]]],
    ok.

encrypted_keys(Config) ->
    #{cert := Der, key := {Type, Key}} = Made = made([]),
    Entry = public_key:pem_entry_encode(Type, public_key:der_decode(Type, Key),
                                        {{"DES-EDE3-CBC", crypto:strong_rand_bytes(8)}, "sesame"}),
    File = file("encrypted.pem", Config),
    ok = file:write_file(File, public_key:pem_encode([Entry])),
    Certificate = put_certificate(Made, Config),
    [with_server(#{tls => [{certfile, Certificate}, {keyfile, File}, {password, Password}]},
                 fun(Server) -> Der = shown(Server) end)
     || Password <- ["sesame", ~"sesame", fun() -> "sesame" end]],
    process_flag(trap_exit, true),
    {error, {listen, http, {file, File, wrong_password}}} =
        erlmcp:start_server(#{name => ~"test", version => ~"1", listen => [
            {http, #{tls => [{certfile, Certificate}, {keyfile, File}, {password, "open"}]}}]}).

several_certificates(Config) ->
    #{cert := Der} = Made = made([]),
    [{certfile, Certificate}, {keyfile, Key}] = files(Made, Config),
    with_server(#{tls => [{certs_keys, [#{certfile => Certificate, keyfile => Key}]}]},
                fun(Server) -> Der = shown(Server) end).

%% Clients.

mutual(Authorities, Options, Config) ->
    File = write("ca.pem", [{'Certificate', Der} || Der <- Authorities], Config),
    #{tls => [{cacertfile, File} | files(made([]), Config)],
      authenticate => {certificate, Options}}.

subjects_are_principals(Config) ->
    {Client, Authorities} = clients([]),
    with_server(mutual(Authorities, #{}, Config), fun(Server) ->
        Text = whoami(Server, Client),
        {match, _} = re:run(Text, ~"^\\{<<\".*CN=.*\">>,<<\".*CN=.*\">>\\}$"),
        Text = whoami(Server, Client)
    end).

alternative_names_are_principals(Config) ->
    Names = fun(List) -> [#'Extension'{extnID = ?'id-ce-subjectAltName', extnValue = List,
                                       critical = false}] end,
    [begin
         {Client, Authorities} = clients(Names(List)),
         with_server(mutual(Authorities, #{principal => san}, Config), fun(Server) ->
             Expected = whoami(Server, Client)
         end)
     end || {List, Expected} <- [
         {[{dNSName, "a.example"}, {uniformResourceIdentifier, "spiffe://example/ada"}],
          ~"{uri,<<\"spiffe://example/ada\">>}"},
         {[{dNSName, "a.example"}, {rfc822Name, "ada@a.example"}],
          ~"{email,<<\"ada@a.example\">>}"},
         {[{dNSName, "a.example"}], ~"{dns,<<\"a.example\">>}"}]].

funs_name_principals(Config) ->
    {Client, Authorities} = clients([]),
    Der = proplists:get_value(cert, Client),
    Ask = fun(Shown) when Shown =:= Der -> {ok, ada} end,
    with_server(mutual(Authorities, #{principal => Ask}, Config), fun(Server) ->
        ~"ada" = whoami(Server, Client)
    end),
    Nobody = fun(_) -> {error, ~"nobody that is known"} end,
    with_server(mutual(Authorities, #{principal => Nobody}, Config), fun(Server) ->
        {ok, Socket} = connect(Server, Client),
        {403, #{~"error" := #{~"code" := 1014, ~"message" := ~"nobody that is known"}}} =
            post(Socket, ~"whoami"),
        ok = ssl:close(Socket)
    end).

%% Without a certificate, and with one of another authority. TLS 1.3 says so after the handshake.
strangers_do_not_get_in(Config) ->
    {_, Authorities} = clients([]),
    {Stranger, _} = clients([]),
    with_server(mutual(Authorities, #{}, Config), fun(Server) ->
        [case connect(Server, [{versions, [Version]} | Options]) of
             {error, {tls_alert, _}} -> ok;
             {ok, Socket} -> {error, _} = post(Socket, ~"whoami")
         end || Version <- ['tlsv1.2', 'tlsv1.3'], Options <- [[], Stranger]]
    end),
    %% Where TLS lets them in, they are told.
    #{tls := Tls} = Listener = mutual(Authorities, #{}, Config),
    with_server(Listener#{tls := [{fail_if_no_peer_cert, false} | Tls]}, fun(Server) ->
        {ok, Socket} = connect(Server, []),
        {403, #{~"error" := #{~"code" := 1014}}} = post(Socket, ~"whoami"),
        ok = ssl:close(Socket)
    end).

authorities_change(Config) ->
    {Old, OldAuthorities} = clients([]),
    {New, NewAuthorities} = clients([]),
    with_server(mutual(OldAuthorities, #{}, Config), fun(Server) ->
        _ = whoami(Server, Old),
        _ = write("ca.pem", [{'Certificate', Der} || Der <- NewAuthorities], Config),
        ok = until(fun() ->
            {ok, Socket} = connect(Server, [{versions, ['tlsv1.3']} | New]),
            case post(Socket, ~"whoami") of
                {200, _} -> ok = ssl:close(Socket), true;
                {error, _} -> false
            end
        end)
    end).

scopes_of_certificates(Config) ->
    {Client, Authorities} = clients([]),
    [with_server(mutual(Authorities, Options, Config), fun(Server) ->
         {ok, Socket} = connect(Server, Client),
         {Status, _} = post(Socket, ~"admin"),
         ok = ssl:close(Socket)
     end) || {Options, Status} <- [{#{}, 200}, {#{scopes => [~"admin"]}, 200},
                                   {#{scopes => [~"read"]}, 403}]].

%% Resumption.

%% RFC 8446, 2.2; RFC 5246, 7.3. What the client was given, and a connection with that.
given(Server, 'tlsv1.3', Options) ->
    {ok, Socket} = connect(Server, [{versions, ['tlsv1.3']}, {session_tickets, manual} | Options]),
    {200, _} = post(Socket, ~"whoami"),
    %% Tickets are sent before what is answered.
    Tickets = tickets(),
    ok = ssl:close(Socket),
    [{session_tickets, manual}, {use_ticket, Tickets} | Options];
given(Server, 'tlsv1.2', Options) ->
    {ok, Socket} = connect(Server, [{versions, ['tlsv1.2']} | Options]),
    {200, _} = post(Socket, ~"whoami"),
    {ok, [{session_id, Id}, {session_data, Data}]} =
        ssl:connection_information(Socket, [session_id, session_data]),
    ok = ssl:close(Socket),
    [{reuse_session, {Id, Data}} | Options].

tickets() ->
    receive
        {ssl, session_ticket, Ticket} -> [Ticket | tickets()]
    after 0 ->
        []
    end.

resumes(Server, Version, Given) ->
    {ok, Socket} = connect(Server, [{versions, [Version]} | Given]),
    Resumed = is_resumed(Version, Given, Socket),
    {200, _} = post(Socket, ~"whoami"),
    _ = tickets(),
    ok = ssl:close(Socket),
    Resumed.

is_resumed('tlsv1.3', _, Socket) ->
    {ok, [{session_resumption, Resumed}]} =
        ssl:connection_information(Socket, [session_resumption]),
    Resumed;
%% For TLS 1.2, `session_resumption` of OTP 27 is always false. A new session has a new id.
is_resumed('tlsv1.2', Given, Socket) ->
    {Id, _} = proplists:get_value(reuse_session, Given),
    {ok, [{session_id, Chosen}]} = ssl:connection_information(Socket, [session_id]),
    Chosen =:= Id.

who_comes_back_resumes(Config) ->
    with_server(#{tls => files(made([]), Config)}, fun(Server) ->
        [begin
             Given = given(Server, Version, []),
             %% The session of TLS 1.2 is kept by another process than that of its connection.
             ok = until(fun() -> resumes(Server, Version, Given) end)
         end || Version <- ['tlsv1.3', 'tlsv1.2']]
    end).

%% What a client had it keeps, as open connections do.
new_files_end_no_tickets(Config) ->
    with_server(#{tls => files(made([]), Config)}, fun(Server) ->
        Given = given(Server, 'tlsv1.3', []),
        #{cert := New} = Second = made([]),
        _ = files(Second, Config),
        ok = until(fun() -> shown(Server) =:= New end),
        true = resumes(Server, 'tlsv1.3', Given)
    end).

%% With another's a client is as good as new.
tickets_are_of_a_listener(Config) ->
    Listener = #{tls => files(made([]), Config)},
    with_server(Listener, fun(Server) ->
        Given = given(Server, 'tlsv1.3', []),
        with_server(Listener, fun(Other) ->
            false = resumes(Other, 'tlsv1.3', Given),
            true = resumes(Server, 'tlsv1.3', Given)
        end)
    end).

certificates_are_shown_each_time(Config) ->
    {Client, Authorities} = clients([]),
    Listener = mutual(Authorities, #{}, Config),
    with_server(Listener, fun(Server) ->
        [{session_tickets, manual}, {use_ticket, []} | _] = given(Server, 'tlsv1.3', Client),
        Given = given(Server, 'tlsv1.2', Client),
        false = resumes(Server, 'tlsv1.2', Given)
    end).

resumption_is_the_users(Config) ->
    Tls = [{session_tickets, disabled} | files(made([]), Config)],
    with_server(#{tls => Tls}, fun(Server) ->
        [{session_tickets, manual}, {use_ticket, []}] = given(Server, 'tlsv1.3', [])
    end).
