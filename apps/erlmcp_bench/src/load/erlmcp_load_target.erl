-module(erlmcp_load_target).
-moduledoc """
Finds the protocol of a load's target, and the addresses of each connection. A host name is resolved
once, to an IPv4 address.
""".

-export([new/2, endpoint/2]).

-export_type([target/0, way/0]).

-doc """
The server that a load is sent to.

- `http`: the URL of an MCP endpoint. It begins with `http://` or `https://`.
- `tcp`: the host and the port of a server that takes JSON-RPC in lines.
- `stdio`: a program and its arguments. The program is started once for each connection. It reads
  JSON-RPC in lines from its standard input, and writes the replies to its standard output.
""".
-type target() ::
    {http, Url :: binary() | string()}
    | {tcp, inet:ip_address() | binary() | string(), inet:port_number()}
    | {stdio, [Word :: binary() | string(), ...]}.

-doc "The protocol of a target, and the addresses of its connections.".
-type way() :: #{
    wire := module(),
    wire_options := erlmcp_load_wire:options(),
    connect := {tcp, inet:ip_address(), inet:port_number()}
             | {tls, inet:ip_address(), inet:port_number(), [ssl:tls_client_option()]}
             | {stdio, [binary() | string(), ...], erlmcp_load_program:environment()},
    sources := [inet:ip_address() | any, ...]
}.

%% Connections from one address to one port. The system has 28,000 ports for them, and searches half
%% of them first. When few of these are free, the search takes longer than everything else.
-define(PER_SOURCE, 5_000).
-define(LAST_PORT, 65_535).

-doc """
Returns the protocol and the addresses of a target, for a plan that has every option. The errors are
those of `erlmcp_load:run/1`. `{bad_option, tls}` may also mean that neither the plan nor the system
has trusted roots.
""".
-spec new(target(), Plan :: map()) ->
    {ok, way()} | {error, {bad_option, atom()} | {host, Reason :: term()}}.
new({http, Url}, Plan) ->
    case uri_string:parse(unicode:characters_to_binary(Url)) of
        #{port := Port} when is_integer(Port), Port =< 0 orelse Port > ?LAST_PORT ->
            {error, {bad_option, target}};
        #{scheme := Scheme, host := Host} = Parts
          when Host =/= ~"", not is_map_key(userinfo, Parts) ->
            endpoint_of(string:lowercase(Scheme), Host, Parts, Plan);
        _ ->
            {error, {bad_option, target}}
    end;
new(_, #{protocol := Protocol}) when Protocol =/= http1 ->
    {error, {bad_option, protocol}};
new(_, #{tls := [_ | _]}) ->
    {error, {bad_option, tls}};
new({tcp, Host, Port}, Plan) ->
    maybe
        {ok, Ip} ?= address(Host),
        {ok, #{wire => erlmcp_load_lines, wire_options => #{}, connect => {tcp, Ip, Port},
               sources => sources(Plan, Ip)}}
    end;
new({stdio, Words}, #{environment := Environment}) ->
    {ok, #{wire => erlmcp_load_lines, wire_options => #{},
           connect => {stdio, Words, Environment},
           sources => [any]}}.

endpoint_of(~"http", _, _, #{tls := [_ | _]}) ->
    {error, {bad_option, tls}};
endpoint_of(~"http", Host, Parts, Plan) ->
    maybe
        {ok, Ip} ?= address(Host),
        {ok, http(http, {tcp, Ip, port(Parts, 80)}, Ip, Parts, Plan)}
    end;
endpoint_of(~"https", Host, Parts, #{protocol := Protocol, tls := Own} = Plan) ->
    maybe
        {ok, Ip} ?= address(Host),
        {ok, Tls} ?= trusted(Host, Own),
        Options = [{alpn_advertised_protocols, [alpn(Protocol)]} | Tls],
        {ok, http(https, {tls, Ip, port(Parts, 443), Options}, Ip, Parts, Plan)}
    end;
endpoint_of(_, _, _, _) ->
    {error, {bad_option, target}}.

http(Scheme, Connect, Ip, Parts, #{protocol := Protocol, headers := Headers} = Plan) ->
    #{wire => wire(Protocol), connect => Connect, sources => sources(Plan, Ip),
      wire_options => #{scheme => Scheme, authority => authority(Parts), path => path(Parts),
                        headers => Headers}}.

wire(http1) -> erlmcp_load_http1;
wire(http2) -> erlmcp_load_http2.

alpn(http1) -> ~"http/1.1";
alpn(http2) -> ~"h2".

%% The certificate must belong to the host of the URL.
trusted(Host, Own) ->
    Text = binary_to_list(Host),
    Named = case inet:parse_address(Text) of
        {ok, Ip} -> Ip;
        {error, _} -> Text
    end,
    case erlmcp_tls:client_options(Named, Own) of
        {ok, _} = Trusted -> Trusted;
        {error, no_cacerts} -> {error, {bad_option, tls}}
    end.

port(#{port := Port}, _) when is_integer(Port) -> Port;
port(_, Default) -> Default.

authority(#{host := Host} = Parts) ->
    Name = case binary:match(Host, ~":") of
        nomatch -> Host;
        _ -> <<"[", Host/binary, "]">>
    end,
    case Parts of
        #{port := Port} when is_integer(Port) ->
            <<Name/binary, ":", (integer_to_binary(Port))/binary>>;
        #{} ->
            Name
    end.

path(#{path := Path} = Parts) ->
    Absolute = case Path of
        ~"" -> ~"/";
        _ -> Path
    end,
    case Parts of
        #{query := Query} -> <<Absolute/binary, "?", Query/binary>>;
        #{} -> Absolute
    end.

address(Host) when is_tuple(Host) ->
    {ok, Host};
address(Host) when is_binary(Host) ->
    address(binary_to_list(Host));
address(Host) ->
    maybe
        {error, _} ?= inet:parse_address(Host),
        {error, Reason} ?= inet:getaddr(Host, inet),
        {error, {host, Reason}}
    end.

sources(#{sources := default, connections := Connections}, {127, _, _, _})
  when Connections > ?PER_SOURCE ->
    [{127, 0, N div 250, N rem 250 + 1} || N <- lists:seq(1, Connections div ?PER_SOURCE + 1)];
sources(#{sources := default}, _) ->
    [any];
sources(#{sources := Sources}, _) ->
    Sources.

-doc """
Returns the addresses of the connection `Number`, or the program that this connection starts. The
first connection has the number 0.
""".
-spec endpoint(Number :: non_neg_integer(), way()) -> erlmcp_load_socket:endpoint().
endpoint(_, #{connect := {stdio, _, _} = Program}) ->
    Program;
endpoint(Number, #{connect := {tcp, Ip, Port}, sources := Sources}) ->
    {tcp, Ip, Port, source(Number, Sources)};
endpoint(Number, #{connect := {tls, Ip, Port, Options}, sources := Sources}) ->
    {tls, Ip, Port, source(Number, Sources), Options}.

source(Number, Sources) ->
    lists:nth(Number rem length(Sources) + 1, Sources).
