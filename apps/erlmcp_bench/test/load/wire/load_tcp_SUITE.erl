-module(load_tcp_SUITE).
-moduledoc "Sockets that `erlmcp_load_tcp` connects are as those of `gen_tcp`, and lose nothing.".

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0, groups/0, init_per_group/2, end_per_group/2]).
-export([it_has_its_options/1, it_comes_from_its_address/1, what_comes_at_once_is_there/1,
         nobody_there_is_an_error/1, an_address_of_others_is_an_error/1,
         what_cannot_be_is_an_error/1]).

-define(OPTIONS, [{send_timeout, 12_345}, {send_timeout_close, true}, {nodelay, true},
                  {buffer, 54_321}, {show_econnreset, true}, {high_watermark, 65_432},
                  {low_watermark, 32_100}]).
-define(ASKED, [Name || {Name, _} <- ?OPTIONS] ++ [mode, packet, priority, delay_send, keepalive,
                                                   exit_on_close, linger, tos]).
-define(WAIT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, ipv4}, {group, ipv6}, what_cannot_be_is_an_error].

groups() ->
    Cases = [it_has_its_options, it_comes_from_its_address, what_comes_at_once_is_there,
             nobody_there_is_an_error, an_address_of_others_is_an_error],
    [{ipv4, Cases}, {ipv6, Cases}].

init_per_group(ipv4, Config) ->
    [{family, inet}, {here, {127, 0, 0, 1}}, {elsewhere, {192, 0, 2, 1}} | Config];
init_per_group(ipv6, Config) ->
    Here = {0, 0, 0, 0, 0, 0, 0, 1},
    case gen_tcp:listen(0, [inet6, {ip, Here}]) of
        {ok, Socket} ->
            ok = gen_tcp:close(Socket),
            [{family, inet6}, {here, Here}, {elsewhere, {16#2001, 16#db8, 0, 0, 0, 0, 0, 1}}
             | Config];
        {error, _} ->
            {skip, "needs IPv6"}
    end.

end_per_group(_, _) ->
    ok.

it_has_its_options(Config) ->
    {_, Ip, Port} = listening(Config),
    {ok, Ours} = connected(Ip, Port, any, [{mode, binary} | ?OPTIONS]),
    {ok, Theirs} = gen_tcp:connect(Ip, Port, [family(Config), binary | ?OPTIONS], ?WAIT),
    {ok, Expected} = inet:getopts(Theirs, ?ASKED),
    ?assertEqual({ok, Expected}, inet:getopts(Ours, ?ASKED)),
    ?assertEqual([], [Option || Option <- ?OPTIONS, not lists:member(Option, Expected)]),
    ?assertEqual(inet_db:lookup_socket(Theirs), inet_db:lookup_socket(Ours)).

it_comes_from_its_address(Config) ->
    {Listening, Ip, Port} = listening(Config),
    From = case family(Config) of
        inet -> {127, 0, 5, 6};
        inet6 -> Ip
    end,
    {ok, Socket} = connected(Ip, Port, From, []),
    {ok, Accepted} = gen_tcp:accept(Listening, ?WAIT),
    ?assertMatch({ok, {From, _}}, inet:peername(Accepted)),
    ?assertEqual(inet:peername(Accepted), inet:sockname(Socket)),
    ?assertEqual({connected, self()}, erlang:port_info(Socket, connected)).

what_comes_at_once_is_there(Config) ->
    {Listening, Ip, Port} = listening(Config),
    {ok, Socket} = connected(Ip, Port, any, [{mode, binary}, {active, 2}]),
    {ok, Accepted} = gen_tcp:accept(Listening, ?WAIT),
    ok = gen_tcp:send(Accepted, ~"one"),
    receive {tcp, Socket, ~"one"} -> ok after ?WAIT -> ct:fail(one) end,
    ok = gen_tcp:send(Accepted, ~"two"),
    receive {tcp, Socket, ~"two"} -> ok after ?WAIT -> ct:fail(two) end,
    receive {tcp_passive, Socket} -> ok after ?WAIT -> ct:fail(passive) end.

%% None of these leaves a port behind.
nobody_there_is_an_error(Config) ->
    {Ip, Port} = taken(Config),
    Before = ports(),
    ?assertEqual({error, econnrefused}, connected(Ip, Port, any, [])),
    ?assertEqual(Before, ports()).

%% Nobody listens there, or can come to listen there.
taken(Config) ->
    Here = proplists:get_value(here, Config),
    {ok, Socket} = socket:open(family(Config), stream, tcp),
    ok = socket:bind(Socket, #{family => family(Config), addr => Here, port => 0}),
    {ok, #{port := Port}} = socket:sockname(Socket),
    {Here, Port}.

an_address_of_others_is_an_error(Config) ->
    {_, Ip, Port} = listening(Config),
    Before = ports(),
    ?assertEqual({error, eaddrnotavail},
                 connected(Ip, Port, proplists:get_value(elsewhere, Config), [])),
    ?assertEqual(Before, ports()).

what_cannot_be_is_an_error(_) ->
    Before = ports(),
    ?assertEqual({error, einval}, connected({127, 0, 0, 1}, 9, any, [{nodelay, often}])),
    ?assertEqual(Before, ports()).

connected(Ip, Port, From, Options) ->
    erlmcp_load_tcp:connect(Ip, Port, From, Options, ?WAIT).

listening(Config) ->
    Here = proplists:get_value(here, Config),
    {ok, Listening} = gen_tcp:listen(0, [family(Config), binary, {ip, Here}, {active, false}]),
    {ok, Port} = inet:port(Listening),
    {Listening, Here, Port}.

family(Config) ->
    proplists:get_value(family, Config).

ports() ->
    {links, Links} = process_info(self(), links),
    [Link || Link <- Links, is_port(Link)].
