-module(wire_forwarded_SUITE).
-moduledoc """
The client that `Forwarded` (RFC 7239) and `X-Forwarded-For` name: the last hop that no trusted
proxy is, and never what that client wrote in front of it.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0]).
-export([examples/1, networks/1, no_networks/1, addresses_of_hops/1, elements_of_rfc7239/1,
         last_hop_that_is_not_trusted/1, hop_without_an_address/1, headers_that_differ/1,
         no_more_hops_than_a_bound/1, bytes_of_a_hop_are_bounded/1, work_is_bounded/1,
         bytes_of_a_client_never_crash/1, what_a_client_wrote_is_not_read/1,
         any_chain_of_proxies/1]).

-define(PROXY, {10, 0, 0, 1}).

all() ->
    [examples, networks, no_networks, addresses_of_hops, elements_of_rfc7239,
     last_hop_that_is_not_trusted, hop_without_an_address, headers_that_differ,
     no_more_hops_than_a_bound, bytes_of_a_hop_are_bounded, work_is_bounded,
     bytes_of_a_client_never_crash, what_a_client_wrote_is_not_read, any_chain_of_proxies].

suite() ->
    [{timetrap, {minutes, 2}}].

examples(_Config) ->
    erlmcp_test_doctests:run([erlmcp_forwarded, erlmcp_ip_network]).

networks(_Config) ->
    [?assertEqual(Has, erlmcp_ip_network:has(Ip, [network(Text)]), {Text, Ip})
     || {Text, Ip, Has} <- [
            {~"10.0.0.1", {10, 0, 0, 1}, true},
            {~"10.0.0.1", {10, 0, 0, 2}, false},
            {~"10.0.0.1/32", {10, 0, 0, 1}, true},
            {~"10.0.0.0/8", {10, 255, 255, 255}, true},
            {~"10.0.0.0/8", {11, 0, 0, 0}, false},
            {~"128.0.0.0/1", {200, 1, 1, 1}, true},
            {~"10.0.0.0/8", {0, 0, 0, 0, 0, 16#ffff, 16#0a00, 1}, true},
            {~"10.0.0.0/8", {16#0a00, 0, 0, 0, 0, 0, 0, 1}, false},
            {~"::ffff:10.0.0.1", {10, 0, 0, 1}, true},
            {~"2001:db8::/32", {16#2001, 16#db8, 1, 2, 3, 4, 5, 6}, true},
            {~"2001:db8::/32", {16#2001, 16#db9, 0, 0, 0, 0, 0, 0}, false},
            {~"::1", {0, 0, 0, 0, 0, 0, 0, 1}, true},
            {~"::1", {0, 0, 0, 1}, false}]],
    ?assert(erlmcp_ip_network:has({127, 0, 0, 1}, [network(~"::1"), network(~"127.0.0.0/8")])),
    ?assertNot(erlmcp_ip_network:has({127, 0, 0, 1}, [])).

no_networks(_Config) ->
    [?assertMatch({{error, <<_/binary>>}, _}, {erlmcp_ip_network:read(Text), Text})
     || Text <- [~"", ~"localhost", ~"10.0.0", ~"10.0.0.256", ~"010.0.0.1", ~"10.0.0.0/0",
                 ~"10.0.0.0/33", ~"10.0.0.0/08", ~"10.0.0.0/", ~"10.0.0.0/8/8", ~"10.0.0.1/8",
                 ~"::/0", ~"::/129", ~"fe80::1%eth0", ~"0x7f.0.0.1", ~"2130706433", <<255>>]].

addresses_of_hops(_Config) ->
    [?assertEqual(Ip, by_addresses(Text), Text)
     || {Text, Ip} <- [
            {~"192.0.2.1", {192, 0, 2, 1}},
            {~" 192.0.2.1\t", {192, 0, 2, 1}},
            {~"192.0.2.1:4711", {192, 0, 2, 1}},
            {~"2001:db8::1", {16#2001, 16#db8, 0, 0, 0, 0, 0, 1}},
            {~"[2001:db8::1]", {16#2001, 16#db8, 0, 0, 0, 0, 0, 1}},
            {~"[2001:db8::1]:4711", {16#2001, 16#db8, 0, 0, 0, 0, 0, 1}},
            {~"::ffff:192.0.2.1", {192, 0, 2, 1}}]].

%% The examples of its sections 4 and 6.
elements_of_rfc7239(_Config) ->
    Client = {16#2001, 16#db8, 16#cafe, 0, 0, 0, 0, 16#17},
    [?assertEqual(Ip, by_forwarded(Text), Text)
     || {Text, Ip} <- [
            {~"For=\"[2001:db8:cafe::17]:4711\"", Client},
            {~"for=192.0.2.60;proto=http;by=203.0.113.43", {192, 0, 2, 60}},
            {~"by=203.0.113.43; host=\"a,b;c\\\"d\" ;for=192.0.2.60", {192, 0, 2, 60}},
            {~"for=192.0.2.43, for=198.51.100.17", {198, 51, 100, 17}},
            {~"for=\"_gazonk\"", ?PROXY},
            {~"for=unknown", ?PROXY},
            {~"for=192.0.2.43,for=\"[2001:db8:cafe::17]\",for=unknown", ?PROXY},
            {~"for=192.0.2.43, for=_hidden;by=_x", ?PROXY}]].

last_hop_that_is_not_trusted(_Config) ->
    [?assertEqual(Ip, by_addresses(Text), Text)
     || {Text, Ip} <- [
            {~"6.6.6.6, 203.0.113.9", {203, 0, 113, 9}},
            {~"6.6.6.6, 203.0.113.9, 10.0.0.2, 10.9.9.9", {203, 0, 113, 9}},
            %% All are trusted: it comes from the first.
            {~"10.0.0.3, 10.0.0.2", {10, 0, 0, 3}}]],
    ?assertEqual({203, 0, 113, 9},
                 by_forwarded(~"for=6.6.6.6, for=203.0.113.9;by=10.0.0.2, for=\"10.0.0.2:8080\"")).

%% Then it is the proxy that wrote it.
hop_without_an_address(_Config) ->
    [?assertEqual(Ip, by_addresses(Text), Text)
     || {Text, Ip} <- [
            {~"", ?PROXY}, {~",", ?PROXY}, {~"6.6.6.6,", ?PROXY},
            {~"6.6.6.6, ,10.0.0.2", {10, 0, 0, 2}},
            {~"unknown", ?PROXY}, {~"6.6.6.6, x, 10.0.0.2", {10, 0, 0, 2}},
            {~"6.6.6.6 203.0.113.9", ?PROXY}, {~"1.2.3.4:", ?PROXY}, {~"[::1", ?PROXY},
            {~"fe80::1%1", ?PROXY}, {~"01.2.3.4", ?PROXY}, {<<255, 254>>, ?PROXY}]],
    [?assertEqual(?PROXY, by_forwarded(Text), Text)
     || Text <- [~"for", ~"for=", ~"by=1.2.3.4", ~"for=1.2.3.4;for=1.2.3.4", ~"for=\"1.2.3.4",
                 ~"for=1.2.3.4\"", ~"for=\"1.2.3.4\"x", ~"for=1.2.3.4;", ~"=1.2.3.4",
                 ~"for=\"1.2.3.4\\\""]].

%% One of them may be the client's own, which the proxy hands on.
headers_that_differ(_Config) ->
    Both = fun(Forwarded, Addresses) ->
        erlmcp_forwarded:client(#{~"forwarded" => Forwarded, ~"x-forwarded-for" => Addresses},
                                ?PROXY, trusted())
    end,
    ?assertEqual({203, 0, 113, 9}, Both(~"for=203.0.113.9", ~"6.6.6.6, 203.0.113.9")),
    ?assertEqual(?PROXY, Both(~"for=6.6.6.6", ~"203.0.113.9")),
    ?assertEqual(?PROXY, Both(~"for=203.0.113.9", ~"6.6.6.6")),
    ?assertEqual(?PROXY, Both(~"", ~"203.0.113.9")),
    ?assertEqual(?PROXY, erlmcp_forwarded:client(#{}, ?PROXY, trusted())).

no_more_hops_than_a_bound(_Config) ->
    Through = fun(Hops) ->
        by_addresses(iolist_to_binary([~"203.0.113.9", lists:duplicate(Hops, ~", 10.0.0.2")]))
    end,
    ?assertEqual({203, 0, 113, 9}, Through(31)),
    ?assertEqual({10, 0, 0, 2}, Through(32)).

%% Wherever the hop stands in its list.
bytes_of_a_hop_are_bounded(_Config) ->
    [begin
         Hop = iolist_to_binary([Filled(Size - byte_size(Address)), Address]),
         ?assertEqual({Size, Expected}, {Size, Read(iolist_to_binary([Before, Hop, Behind]))})
     end || {Read, Address, Proxy, Filled} <- [
                {fun by_addresses/1, ~"203.0.113.9", ~"10.0.0.2",
                 fun(Size) -> binary:copy(~" ", Size) end},
                {fun by_forwarded/1, ~"for=203.0.113.9", ~"for=10.0.0.2",
                 fun(Size) -> [~"by=\"", binary:copy(~",", Size - 6), ~"\";"] end}],
            Before <- [~"", ~",", [Proxy, ~","]], {Behind, Nearest} <- [{~"", ?PROXY},
                                                     {[~",", Proxy], {10, 0, 0, 2}}],
            {Size, Expected} <- [{1024, {203, 0, 113, 9}}, {1025, Nearest}]].

%% As much as there may be of a header is not looked at.
work_is_bounded(_Config) ->
    [begin
         Header = binary:copy(Part, 1 bsl 20),
         {reductions, Before} = process_info(self(), reductions),
         ?PROXY = Read(Header),
         {reductions, Behind} = process_info(self(), reductions),
         ?assert(Behind - Before < 20_000)
     end || Read <- [fun by_addresses/1, fun by_forwarded/1], Part <- [~"x", ~" ", ~"\"", ~"\\"]].

bytes_of_a_client_never_crash(_Config) ->
    holds(?FORALL({Forwarded, Addresses}, {text(), text()},
                  lists:all(fun(Headers) ->
                                inet:is_ip_address(erlmcp_forwarded:client(Headers, ?PROXY,
                                                                           trusted()))
                            end, [#{~"forwarded" => Forwarded},
                                  #{~"x-forwarded-for" => Addresses},
                                  #{~"forwarded" => Forwarded,
                                    ~"x-forwarded-for" => Addresses}]))).

%% Whatever stands in front of what the trusted proxies wrote.
what_a_client_wrote_is_not_read(_Config) ->
    holds(?FORALL({Spoofed, Client, Proxies}, {text(), untrusted(), list(proxy())},
                  begin
                      Hops = [Client | Proxies],
                      Behind = fun(Chain) -> <<Spoofed/binary, ", ", Chain/binary>> end,
                      Client =:= by_addresses(Behind(chain(fun plain/1, Hops)))
                          andalso Client =:= by_forwarded(Behind(chain(fun element/1, Hops)))
                  end)).

any_chain_of_proxies(_Config) ->
    holds(?FORALL(Hops, non_empty(list(oneof([untrusted(), proxy()]))),
                  begin
                      Client = lists:foldl(fun(Hop, Seen) -> last_untrusted(Hop, Seen) end,
                                           none, Hops),
                      Expected = case Client of
                          none -> hd(Hops);
                          _ -> Client
                      end,
                      Expected =:= by_addresses(chain(fun plain/1, Hops))
                          andalso Expected =:= by_forwarded(chain(fun element/1, Hops))
                  end)).

last_untrusted(Hop, Seen) ->
    case erlmcp_ip_network:has(Hop, trusted()) of
        true -> Seen;
        false -> Hop
    end.

holds(Property) ->
    erlmcp_test_property:holds(Property, 500).

%% What breaks readers of these headers, and addresses that would be taken.
text() ->
    ?LET(Parts, list(oneof([binary(), ~"for=", ~"6.6.6.6", ~"10.0.0.7", ~"\"", ~"\\", ~",", ~";",
                            ~" ", ~"=", ~"[", ~"]", ~":", ~"unknown", ~"_x", ~"for=\"",
                            ~"::1"])),
         iolist_to_binary(Parts)).

untrusted() ->
    oneof([{range(11, 223), byte(), byte(), byte()},
           {16#2001, 16#db8, word(), word(), word(), word(), word(), word()}]).

proxy() ->
    {10, byte(), byte(), byte()}.

word() -> range(0, 16#ffff).

chain(Form, Hops) ->
    iolist_to_binary(lists:join(~", ", [Form(Hop) || Hop <- Hops])).

plain(Ip) -> inet:ntoa(Ip).

element({_, _, _, _} = Ip) ->
    [~"for=", inet:ntoa(Ip), ~";host=\"a,\\\"b\\\\\";by=\"_p\""];
element(Ip) ->
    [~"proto=https;For=\"[", inet:ntoa(Ip), ~"]:4711\""].

by_addresses(Text) ->
    erlmcp_forwarded:client(#{~"x-forwarded-for" => Text}, ?PROXY, trusted()).

by_forwarded(Text) ->
    erlmcp_forwarded:client(#{~"forwarded" => Text}, ?PROXY, trusted()).

trusted() -> [network(~"10.0.0.0/8")].

network(Text) ->
    {ok, Network} = erlmcp_ip_network:read(Text),
    Network.
