-module(erlmcp_test_dns).
-moduledoc """
A name server on 127.0.0.1: it answers questions for addresses (A and AAAA) of the names that it was
given, and knows no other name.
""".

-compile(nowarn_missing_spec_documented).

-export([start/1, stop/1]).

start(Names) ->
    Parent = self(),
    Server = spawn(fun() ->
                       {ok, Socket} = gen_udp:open(0, [binary, {ip, {127, 0, 0, 1}}]),
                       {ok, Port} = inet:port(Socket),
                       Parent ! {self(), Port},
                       serve(Socket, Names)
                   end),
    receive {Server, Port} -> {Server, Port} end.

stop(Server) ->
    exit(Server, kill).

serve(Socket, Names) ->
    receive
        {udp, Socket, Address, Port, Question} ->
            ok = gen_udp:send(Socket, Address, Port, answer(Question, Names)),
            serve(Socket, Names)
    end.

%% RFC 1035, section 4. The answers point to the name in the question.
answer(<<Id:16, _:16, 1:16, _:48, Rest/binary>>, Names) ->
    {Name, Type, Question} = question(Rest),
    {Code, Found} = case Names of
        #{Name := Addresses} -> {0, [Address || Address <- Addresses, type(Address) =:= Type]};
        #{} -> {3, []}
    end,
    [<<Id:16, (16#8180 bor Code):16, 1:16, (length(Found)):16, 0:32>>, Question
     | [begin
            Bytes = bytes(Address),
            <<16#C00C:16, Type:16, 1:16, 5:32, (byte_size(Bytes)):16, Bytes/binary>>
        end || Address <- Found]].

question(Bytes) ->
    {Labels, <<Type:16, _:16, _/binary>>} = labels(Bytes, []),
    Name = lists:flatten(lists:join($., [binary_to_list(Label) || Label <- Labels])),
    Size = lists:sum([byte_size(Label) + 1 || Label <- Labels]) + 5,
    {Name, Type, binary:part(Bytes, 0, Size)}.

labels(<<0, Rest/binary>>, Labels) ->
    {lists:reverse(Labels), Rest};
labels(<<Size, Label:Size/binary, Rest/binary>>, Labels) ->
    labels(Rest, [Label | Labels]).

type(Address) when tuple_size(Address) =:= 4 -> 1;
type(_) -> 28.

bytes({A, B, C, D}) -> <<A, B, C, D>>;
bytes(Address) -> << <<Group:16>> || Group <- tuple_to_list(Address) >>.
