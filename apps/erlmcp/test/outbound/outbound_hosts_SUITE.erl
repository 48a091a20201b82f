-module(outbound_hosts_SUITE).
-moduledoc """
Where the servers of a login may lead: an endpoint of another origin than its issuer's, and an
address further inside than the MCP server's, are followed when they were allowed, and never in
silence. Servers are on real sockets; names of the suite's own are this machine's.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([an_endpoint_of_another_origin_is_refused/1, a_host_that_is_named_is_allowed/1,
         a_fun_is_asked_once_for_a_host/1, a_fun_that_says_no_is_asked_again/1,
         only_what_is_used_is_asked_about/1]).
-export([a_distant_server_names_this_machine/1,
         an_answer_about_an_origin_is_none_about_an_address/1,
         what_the_user_named_is_not_asked_about/1, a_server_whose_name_turns_private/1]).
-export([how_far_inside_addresses_lie/1, ways_to_write_an_address/1, hosts_that_are_none/1]).

-import(erlmcp_test_suite, [peer/1]).

-define(ENDPOINTS, [~"token_endpoint", ~"registration_endpoint", ~"authorization_endpoint"]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([gun, jose, cowboy, inets], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{peer, erlmcp_test_oauth:start()} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_oauth:stop(peer(Config)).

started(Options, Peer) ->
    {ok, Pid} = erlmcp_authorizer:start_link(Options, erlmcp_test_oauth:url(Peer)),
    erlmcp_authorizer:handle(Pid).

outcome(More, Peer) ->
    erlmcp_test_oauth:call(started(erlmcp_test_oauth:logged_in(More), Peer), Peer).

%% Another server, whose answers are those of the first.
elsewhere(Peer) ->
    Other = erlmcp_test_oauth:start(),
    erlmcp_test_oauth:change(Other, ~"/token", fun(_) ->
        erlmcp_test_oauth:json(200, erlmcp_test_oauth:token_answer(Peer))
    end),
    erlmcp_test_oauth:change(Other, ~"/authorize", fun(#{query := Query}) ->
        #{~"redirect_uri" := RedirectUri, ~"state" := State} = Query,
        Answer = uri_string:compose_query([{~"code", ~"a-code"}, {~"state", State},
                                           {~"iss", erlmcp_test_oauth:url(Peer, ~"")}]),
        {302, #{~"location" => <<RedirectUri/binary, "?", Answer/binary>>}, ~""}
    end),
    Other.

path(~"token_endpoint") -> ~"/token";
path(~"registration_endpoint") -> ~"/register";
path(~"authorization_endpoint") -> ~"/authorize".

an_endpoint_of_another_origin_is_refused(Config) ->
    Peer = peer(Config),
    Other = elsewhere(Peer),
    Issuer = erlmcp_test_oauth:url(Peer, ~""),
    [begin
         erlmcp_test_oauth:metadata(Peer, #{Name => erlmcp_test_oauth:url(Other, path(Name))}),
         {Name, {error, {host_not_allowed, ~"localhost", {other_origin, Issuer}} = Why}} =
             {Name, outcome(#{}, Peer)},
         <<"the server requires authorization: the login leads to the host localhost, which is "
           "not of the origin of its issuer ", Issuer:(byte_size(Issuer))/binary,
           "; `allow_hosts` allows it">> = erlmcp_client:format_error({unauthorized, Why})
     end || Name <- ?ENDPOINTS],
    [] = erlmcp_test_oauth:asked(Other),
    %% Nobody was sent anywhere before.
    [] = erlmcp_test_oauth:asked(Peer, ~"/authorize"),
    erlmcp_test_oauth:stop(Other).

a_host_that_is_named_is_allowed(Config) ->
    Peer = peer(Config),
    Other = elsewhere(Peer),
    erlmcp_test_oauth:metadata(Peer, #{Name => erlmcp_test_oauth:url(Other, path(Name))
                                       || Name <- ?ENDPOINTS}),
    {error, {host_not_allowed, ~"localhost", _}} =
        outcome(#{allow_hosts => [~"elsewhere.example", ~"127.0.0.1"]}, Peer),
    {ok, 200} = outcome(#{allow_hosts => [~"elsewhere.example", ~"localhost"]}, Peer),
    [~"/register", ~"/authorize", ~"/token"] = erlmcp_test_oauth:asked(Other),
    erlmcp_test_oauth:stop(Other).

%% Of one client, in this login and in those that come after.
a_fun_is_asked_once_for_a_host(Config) ->
    Peer = peer(Config),
    Other = elsewhere(Peer),
    erlmcp_test_oauth:metadata(Peer, #{Name => erlmcp_test_oauth:url(Other, path(Name))
                                       || Name <- ?ENDPOINTS}),
    Test = self(),
    Allow = fun(Question) -> Test ! {question, Question}, true end,
    Handle = started(erlmcp_test_oauth:logged_in(#{allow_hosts => Allow}), Peer),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    #{table := Table} = Peer,
    true = ets:match_delete(Table, {{token, '_'}}),
    erlmcp_test_oauth:change(Other, ~"/token", fun(#{form := Form}) ->
        case Form of
            #{~"grant_type" := ~"refresh_token"} ->
                erlmcp_test_oauth:json(400, #{~"error" => ~"invalid_grant"});
            #{} ->
                erlmcp_test_oauth:json(200, erlmcp_test_oauth:token_answer(Peer))
        end
    end),
    {ok, 200} = erlmcp_test_oauth:call(Handle, Peer),
    2 = length(erlmcp_test_oauth:asked(Other, ~"/authorize")),
    [Question] = questions(),
    {Url, Issuer} = {erlmcp_test_oauth:url(Other, ~"/token"), erlmcp_test_oauth:url(Peer, ~"")},
    #{host := ~"localhost", url := Url, why := {other_origin, Issuer}} = Question,
    erlmcp_test_oauth:stop(Other).

a_fun_that_says_no_is_asked_again(Config) ->
    Peer = peer(Config),
    Other = elsewhere(Peer),
    erlmcp_test_oauth:metadata(Peer,
                               #{~"token_endpoint" => erlmcp_test_oauth:url(Other, ~"/token")}),
    Test = self(),
    Allow = fun(Question) -> Test ! {question, Question}, false end,
    Handle = started(erlmcp_test_oauth:logged_in(#{allow_hosts => Allow}), Peer),
    [{error, {host_not_allowed, ~"localhost", _}} =
         erlmcp_test_oauth:call(Handle, Peer) || _ <- [1, 2]],
    [_, _] = questions(),
    erlmcp_test_oauth:stop(Other).

questions() ->
    receive
        {question, Question} -> [Question | questions()]
    after 0 ->
        []
    end.

%% A client that is registered asks for no registration, and one without a user for no login.
only_what_is_used_is_asked_about(Config) ->
    Peer = peer(Config),
    Other = elsewhere(Peer),
    erlmcp_test_oauth:metadata(Peer, #{~"registration_endpoint" =>
                                           erlmcp_test_oauth:url(Other, ~"/register"),
                                       ~"token_endpoint_auth_methods_supported" =>
                                           [~"none", ~"client_secret_basic"]}),
    {ok, 200} = outcome(#{client_id => ~"mine"}, Peer),
    erlmcp_test_oauth:metadata(Peer, #{~"authorization_endpoint" =>
                                           erlmcp_test_oauth:url(Other, ~"/authorize"),
                                       ~"token_endpoint_auth_methods_supported" =>
                                           [~"client_secret_basic"]}),
    Own = #{grant => client_credentials, client_id => ~"mine", client_secret => ~"s"},
    {ok, 200} = erlmcp_test_oauth:call(started(Own, Peer), Peer),
    [] = erlmcp_test_oauth:asked(Other),
    erlmcp_test_oauth:stop(Other).

%% Servers of the names `mcp.test` and `other.test`, which look them up here.
with_names(Fun) ->
    Lookup = inet_db:res_option(lookup),
    ok = inet_db:set_lookup([file | Lookup -- [file]]),
    named({127, 0, 0, 1}, ["mcp.test", "other.test"]),
    try
        Fun()
    after
        [inet_db:del_host(Address) || Address <- [{127, 0, 0, 1}, {93, 184, 216, 34}]],
        ok = inet_db:set_lookup(Lookup)
    end.

named(Address, Names) ->
    ok = inet_db:add_host(Address, Names).

certificate() ->
    Key = [{digest, sha256}, {key, {namedCurve, secp256r1}}],
    Names = [{dNSName, Name} || Name <- ["localhost", "mcp.test", "other.test"]],
    Extension = {extensions, [{'Extension', {2, 5, 29, 17}, false, Names}]},
    #{server_config := Server, client_config := Client} = public_key:pkix_test_data(#{
        server_chain => #{root => Key, intermediates => [], peer => [Extension | Key]},
        client_chain => #{root => Key, intermediates => [], peer => Key}}),
    {Server, [lists:keyfind(cacerts, 1, Client)]}.

secure(Host, Certificate) ->
    #{table := Table, base := Base} = Peer = erlmcp_test_oauth:start(#{ssl => Certificate}),
    Named = binary:replace(Base, ~"localhost", Host),
    true = ets:insert(Table, {base, Named}),
    Peer#{base := Named}.

%% The user agrees, and goes nowhere.
agreed(Peer) ->
    fun(Url) ->
        {ok, #{~"redirect_uri" := RedirectUri, ~"state" := State}} = erlmcp_oauth_url:query(Url),
        {ok, erlmcp_oauth_url:with_query(RedirectUri, [{~"code", ~"a-code"}, {~"state", State},
                                                       {~"iss", erlmcp_test_oauth:url(Peer, ~"")}])}
    end.

challenged(Options, Challenge, Peer) ->
    challenged(Options, Challenge, none, Peer).

challenged(Options, Challenge, Reached, Peer) ->
    erlmcp_authorizer:challenged(started(Options, Peer), [],
                                 {401, #{~"www-authenticate" => iolist_to_binary(Challenge)}},
                                 Reached, erlmcp_test_oauth:deadline()).

%% The attack: whatever a server of a name names, it is not what listens on this machine alone.
a_distant_server_names_this_machine(_) ->
    with_names(fun() ->
        {Certificate, Roots} = certificate(),
        Peer = secure(~"mcp.test", Certificate),
        Inside = secure(~"localhost", Certificate),
        Options = erlmcp_test_oauth:logged_in(#{tls => Roots, browser => agreed(Peer)}),
        Refused = {error, {host_not_allowed, ~"localhost", {inner_address, ~"127.0.0.1"}}},
        Url = erlmcp_test_oauth:url(Inside, ~""),
        Refused = challenged(Options, [~"Bearer resource_metadata=\"", Url, $"], Peer),
        erlmcp_test_oauth:resource(Peer, #{~"authorization_servers" => [Url]}),
        Refused = challenged(Options, ~"Bearer", Peer),
        erlmcp_test_oauth:resource(Peer, #{}),
        [begin
             erlmcp_test_oauth:metadata(Peer, #{Name => erlmcp_test_oauth:url(Inside, path(Name))}),
             {Name, Refused} = {Name, challenged(Options, ~"Bearer", Peer)}
         end || Name <- ?ENDPOINTS],
        [] = erlmcp_test_oauth:asked(Inside),
        erlmcp_test_oauth:change(Peer, ~"/token", fun(_) ->
            erlmcp_test_oauth:json(200, erlmcp_test_oauth:token_answer(Peer))
        end),
        retry = challenged(Options#{allow_hosts => [~"localhost"]}, ~"Bearer", Peer),
        erlmcp_test_oauth:stop(Inside),
        erlmcp_test_oauth:stop(Peer)
    end).

%% A name that means an address of the internet while it is asked about, and this machine after.
an_answer_about_an_origin_is_none_about_an_address(_) ->
    with_names(fun() ->
        {Certificate, Roots} = certificate(),
        Peer = secure(~"mcp.test", Certificate),
        Inside = secure(~"other.test", Certificate),
        erlmcp_test_oauth:metadata(Peer, #{~"token_endpoint" =>
                                               erlmcp_test_oauth:url(Inside, ~"/token")}),
        named({127, 0, 0, 1}, ["mcp.test"]),
        named({93, 184, 216, 34}, ["other.test"]),
        Test = self(),
        Allow = fun(#{why := {Kind, _}} = Question) ->
            Test ! {question, Question},
            Kind =:= other_origin
        end,
        Agreed = agreed(Peer),
        Browser = fun(Url) ->
            ok = inet_db:del_host({93, 184, 216, 34}),
            named({127, 0, 0, 1}, ["mcp.test", "other.test"]),
            Agreed(Url)
        end,
        %% The name stands for this machine, and the server's says that it is in a network.
        {error, {host_not_allowed, ~"other.test", {inner_address, ~"127.0.0.1"}}} =
            challenged(erlmcp_test_oauth:logged_in(#{tls => Roots, browser => Browser,
                                                     allow_hosts => Allow}), ~"Bearer", Peer),
        [#{why := {other_origin, _}}, #{why := {inner_address, _}}] = questions(),
        [] = erlmcp_test_oauth:asked(Inside),
        erlmcp_test_oauth:stop(Inside),
        erlmcp_test_oauth:stop(Peer)
    end).

%% What the server was reached at counts, and what its name meant before, in the login too.
a_server_whose_name_turns_private(_) ->
    with_names(fun() ->
        Url = ~"https://mcp.test/mcp",
        Private = ~"https://10.0.0.2/",
        Refused = {error, {host_not_allowed, ~"10.0.0.2", {inner_address, ~"10.0.0.2"}}},
        New = fun(Reached) -> hosts(Url, Reached) end,
        named({127, 0, 0, 1}, ["other.test"]),
        named({10, 0, 0, 1}, ["mcp.test"]),
        {ok, [{10, 0, 0, 1}]} = inet:getaddrs("mcp.test", inet),
        [{ok, _} = erlmcp_outbound_hosts:addresses(Private, New(Reached))
         || Reached <- [none, 1, 2]],
        Refused = erlmcp_outbound_hosts:addresses(Private, New(0)),
        Turned = New(none),
        ok = inet_db:del_host({10, 0, 0, 1}),
        named({93, 184, 216, 34}, ["mcp.test"]),
        {ok, _} = erlmcp_outbound_hosts:addresses(Url, Turned),
        ok = inet_db:del_host({93, 184, 216, 34}),
        named({10, 0, 0, 1}, ["mcp.test"]),
        {ok, [{10, 0, 0, 1}]} = erlmcp_outbound_hosts:addresses(Url, Turned),
        Refused = erlmcp_outbound_hosts:addresses(Private, Turned),
        %% A whole login.
        {Certificate, _} = certificate(),
        Peer = secure(~"mcp.test", Certificate),
        Refused = challenged(erlmcp_test_oauth:logged_in(#{}),
                             [~"Bearer resource_metadata=\"", Private, $"], 0, Peer),
        erlmcp_test_oauth:stop(Peer),
        ok = inet_db:del_host({10, 0, 0, 1})
    end).

%% The MCP server's own origin, and the issuer of the options.
what_the_user_named_is_not_asked_about(_) ->
    with_names(fun() ->
        {Certificate, Roots} = certificate(),
        Peer = secure(~"mcp.test", Certificate),
        Issuer = secure(~"localhost", Certificate),
        erlmcp_test_oauth:resource(Peer, #{~"authorization_servers" =>
                                               [erlmcp_test_oauth:url(Issuer, ~"")]}),
        Options = erlmcp_test_oauth:logged_in(#{tls => Roots, browser => agreed(Issuer),
                                                client_id => ~"mine"}),
        erlmcp_test_oauth:change(Issuer, ~"/token", fun(_) ->
            erlmcp_test_oauth:json(200, erlmcp_test_oauth:token_answer(Peer))
        end),
        {error, {host_not_allowed, ~"localhost", _}} = challenged(Options, ~"Bearer", Peer),
        retry = challenged(Options#{issuer => erlmcp_test_oauth:url(Issuer, ~"")}, ~"Bearer", Peer),
        erlmcp_test_oauth:stop(Issuer),
        erlmcp_test_oauth:stop(Peer)
    end).

how_far_inside_addresses_lie(_) ->
    [{Text, Depth} = {Text, erlmcp_outbound_hosts:inwards(element(2, inet:parse_address(Text)))}
     || {Depth, Texts} <- [
            {0, ["1.1.1.1", "9.255.255.255", "11.0.0.0", "172.15.255.255", "172.32.0.0",
                 "100.63.255.255", "100.128.0.0", "169.253.0.1", "192.167.0.1", "223.255.255.255",
                 "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1", "2002:0101:0101::"]},
            {1, ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1", "100.64.0.1",
                 "192.0.0.1", "198.18.0.1", "198.19.255.255", "224.0.0.1", "255.255.255.255",
                 "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001::1", "2001:db8::1",
                 "4000::1", "100::1", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1", "2002:0a00:0001::",
                 "::10.0.0.1", "::ffff:0:10.0.0.1", "64:ff9b:1::1"]},
            {2, ["127.0.0.1", "127.255.255.255", "0.0.0.0", "0.1.2.3", "169.254.169.254", "::1",
                 "::", "fe80::1", "febf::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
                 "64:ff9b::169.254.169.254", "2002:7f00:0001::", "::127.0.0.1"]}],
        Text <- Texts].

%% However it is written, it is the address that counts.
ways_to_write_an_address(_) ->
    Hosts = hosts(~"https://93.184.216.34/mcp", none),
    [{Url, {error, {host_not_allowed, _, {inner_address, _}}}} =
         {Url, erlmcp_outbound_hosts:addresses(Url, Hosts)}
     || Url <- [~"https://169.254.169.254/latest", ~"https://[::ffff:169.254.169.254]/",
                ~"https://[::ffff:a9fe:a9fe]/", ~"https://127.0.0.1/", ~"https://[::1]/",
                ~"https://10.1.2.3/", ~"https://[fd00::1]/", ~"https://localhost/",
                ~"https://LOCALHOST:8443/"]],
    %% Some systems take these for addresses.
    [{Url, error} = {Url, element(1, erlmcp_outbound_hosts:addresses(Url, Hosts))}
     || Url <- [~"https://127.1/", ~"https://2130706433/", ~"https://0x7f000001/", ~"https://0/"]],
    {ok, [{1, 1, 1, 1}]} = erlmcp_outbound_hosts:addresses(~"https://1.1.1.1/", Hosts),
    {ok, [{93, 184, 216, 34}]} = erlmcp_outbound_hosts:addresses(~"https://93.184.216.34/", Hosts),
    %% From inside outwards nothing is asked.
    Private = hosts(~"https://10.0.0.1/mcp", none),
    [{ok, _} = erlmcp_outbound_hosts:addresses(Url, Private)
     || Url <- [~"https://192.168.1.1/", ~"https://1.1.1.1/"]],
    {error, {host_not_allowed, ~"169.254.169.254", _}} =
        erlmcp_outbound_hosts:addresses(~"https://169.254.169.254/", Private),
    Here = hosts(~"http://localhost:1/mcp", none),
    {ok, _} = erlmcp_outbound_hosts:addresses(~"http://127.0.0.1:2/", Here).

hosts(Url, Reached) ->
    erlmcp_outbound_hosts:new({Url, Reached}, #{allow_hosts => []}, [], fun(_) -> ok end).

hosts_that_are_none(_) ->
    [{Hosts, {error, {bad_option, allow_hosts, _}}} =
         {Hosts, erlmcp_oauth_options:check(#{allow_hosts => Hosts})}
     || Hosts <- [all, ~"a.example", [~""], [~"A.example"], [~"a.example:443"],
                  [~"https://a.example"], ["a.example"], fun() -> true end]],
    [{ok, _} = erlmcp_oauth_options:check(#{allow_hosts => Hosts})
     || Hosts <- [[], [~"a.example", ~"10.0.0.1", ~"::1"], fun(_) -> true end]].
