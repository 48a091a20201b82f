-module(erlmcp_load_tcp).
-moduledoc """
Connects a TCP socket to an IP address as `gen_tcp:connect/4` does, but does not check the options.
The generator, which opens many connections, saves processor time by that.
""".

-export([connect/5]).

-type option() :: {atom(), term()} | {raw, integer(), integer(), binary()}.

-doc """
Connects to a port of `Ip` within `Milliseconds`, from the address `From`. If `From` is `any`, the
system chooses the address. The options are those of `prim_inet:setopts/2`. The calling process owns
the socket.
""".
-spec connect(Ip :: inet:ip_address(), inet:port_number(), From :: inet:ip_address() | any,
              [option()], Milliseconds :: pos_integer()) ->
    {ok, gen_tcp:socket()} | {error, atom()}.
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
