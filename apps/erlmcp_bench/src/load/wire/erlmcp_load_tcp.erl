-module(erlmcp_load_tcp).
-moduledoc """
Connects a socket in the clear as `gen_tcp:connect/4` does, whose options are known already. To find
out for each socket what all of them have in common, and to let it read in a call of its own, was a
fifth of what a connection took of the generator's processor.
""".

-export([connect/5]).

-type option() :: {atom(), term()} | {raw, integer(), integer(), binary()}.

-doc """
Connects, from an address where it is not `any`, within so many milliseconds. The options are those
that a port takes, with the values that it has for them. The calling process has the socket then.
""".
-spec connect(inet:ip_address(), inet:port_number(), From :: inet:ip_address() | any, [option()],
              Milliseconds :: pos_integer()) -> {ok, gen_tcp:socket()} | {error, atom()}.
connect(Ip, Port, From, Options, Milliseconds) ->
    {Family, Module} = family(Ip),
    maybe
        {ok, Socket} ?= prim_inet:open(tcp, Family, stream, []),
        true = inet_db:register_socket(Socket, Module),
        case connected(Socket, Ip, Port, From, Options, Milliseconds) of
            ok ->
                {ok, Socket};
            {error, _} = Error ->
                ok = prim_inet:close(Socket),
                Error
        end
    end.

family(Ip) when tuple_size(Ip) =:= 4 -> {inet, inet_tcp};
family(Ip) when tuple_size(Ip) =:= 8 -> {inet6, inet6_tcp}.

connected(Socket, Ip, Port, From, Options, Milliseconds) ->
    maybe
        ok ?= prim_inet:setopts(Socket, Options),
        ok ?= bound(Socket, From),
        prim_inet:connect(Socket, Ip, Port, Milliseconds)
    end.

bound(_, any) ->
    ok;
bound(Socket, Ip) ->
    maybe
        {ok, _} ?= prim_inet:bind(Socket, Ip, 0),
        ok
    end.
