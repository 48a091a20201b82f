-module(erlmcp_listen_options).
-moduledoc """
The option `listen`: the listeners of a server and their options. Pure.
""".

-export([check/1, sse/1]).

-export_type([listener/0, sse/0]).

-doc """
A listener. `ip` is the loopback address unless given; `port` 0 takes a free one.

- `http`: `path` (`/mcp`), `tls` (options of `ssl:listen/2`; without them plain text),
  `allowed_hosts` (names accepted in `Host` beside IP addresses, `localhost` and the machine's own,
  or `any`), `allowed_origins` (origins accepted beside those of the same host and loopback ones,
  or `any`), `authenticate` (says who asks, or refuses; see `t:erlmcp_auth:authenticate/0`. Without
  it all are `anonymous`), `sse` (serves HTTP+SSE of 2024-11-05 too: its `path`, `/sse`, and its
  `message_path`, `/messages`, are those unless given).
- `tcp`: newline-framed JSON-RPC. All its clients are the `principal` (`anonymous`).
- `stdio`: the same on standard input and output; the node stops when the input ends. `output` is
  the file descriptor that MCP is written to (1); see `m:erlmcp_stdio`.
""".
-type listener() ::
    {http, #{ip => inet:ip_address(), port => inet:port_number(), path => binary(),
             tls => [ssl:tls_server_option()], allowed_hosts => any | [binary()],
             allowed_origins => any | [binary()],
             authenticate => erlmcp_auth:authenticate(), sse => sse()}}
    | {tcp, #{ip => inet:ip_address(), port => inet:port_number(),
              principal => erlmcp_auth:principal()}}
    | {stdio, #{output => pos_integer(), principal => erlmcp_auth:principal()}}.
-type sse() :: #{path => binary(), message_path => binary()}.

-doc "Whether these are listeners, or the option that is wrong and what it must be.".
-spec check(term()) ->
    ok | {expected, binary()} | {error, {bad_option, Option :: term(), Expected :: binary()}}.
check([]) ->
    ok;
check([{Transport, #{} = Options} | Listeners]) when
    Transport =:= http; Transport =:= tcp; Transport =:= stdio
->
    maybe
        ok ?= each(Transport, maps:to_list(Options)),
        ok ?= paths(Options),
        check(Listeners)
    end;
check([_ | _]) ->
    {expected, ~"{http | tcp | stdio, Options}"};
check(_) ->
    {expected, ~"a list of listeners"}.

each(_, []) ->
    ok;
each(Transport, [{Name, Value} | Options]) ->
    case lists:member(Name, names(Transport)) andalso expected(Name, Value) of
        ok -> each(Transport, Options);
        false -> {error, {bad_option, {Transport, Name}, ~"no such option of this listener"}};
        {Inner, Expected} -> {error, {bad_option, {Transport, Name, Inner}, Expected}};
        Expected -> {error, {bad_option, {Transport, Name}, Expected}}
    end.

names(http) -> [ip, port, path, tls, allowed_hosts, allowed_origins, authenticate, sse];
names(tcp) -> [ip, port, principal];
names(stdio) -> [output, principal].

expected(ip, Ip) -> ok_or(inet:is_ip_address(Ip), ~"an IP address, as a tuple");
expected(port, Port) ->
    ok_or(is_integer(Port) andalso Port >= 0 andalso Port =< 65535, ~"an integer of 0 to 65535");
expected(principal, _) -> ok;
expected(output, Output) ->
    ok_or(is_integer(Output) andalso Output > 0, ~"a file descriptor, 1 or more");
expected(path, <<"/", _/binary>>) -> ok;
expected(path, _) -> ~"a binary that begins with a slash";
expected(tls, Tls) -> ok_or(is_list(Tls), ~"a list of options of ssl:listen/2");
expected(authenticate, Fun) -> ok_or(is_function(Fun, 1), ~"a fun of one argument");
expected(sse, Sse) when is_map(Sse) -> endpoints(maps:to_list(Sse));
expected(sse, _) -> ~"a map with path, message_path or neither";
expected(_, any) -> ok;
expected(_, Names) ->
    ok_or(is_list(Names) andalso lists:all(fun is_binary/1, Names), ~"any, or a list of binaries").

ok_or(true, _) -> ok;
ok_or(false, Expected) -> Expected.

%% Bytes that a URL has as they are; clients are told the one of them with a query behind it.
endpoints([]) ->
    ok;
endpoints([{Name, Path} | Options]) when
    is_binary(Path), (Name =:= path orelse Name =:= message_path)
->
    case re:run(Path, ~"^/[!$-;=@-Z_a-z~]*$", [{capture, none}, dollar_endonly]) of
        match -> endpoints(Options);
        nomatch -> {Name, ~"a path: a slash, and no query"}
    end;
endpoints([{Name, _} | _]) ->
    {Name, ~"path or message_path, a binary"}.

paths(Options) ->
    maybe
        #{path := Path, message_path := MessagePath} ?= sse(Options),
        Paths = [maps:get(path, Options, ~"/mcp"), Path, MessagePath],
        true ?= Paths =:= lists:uniq(Paths)
            orelse {error, {bad_option, {http, sse}, ~"paths that differ, and from path"}},
        ok
    else
        none -> ok;
        {error, _} = Error -> Error
    end.

-doc "The paths of HTTP+SSE, for GET and for POST, where a listener's options ask for it.".
-spec sse(map()) -> #{path := binary(), message_path := binary()} | none.
sse(#{sse := Given}) -> maps:merge(#{path => ~"/sse", message_path => ~"/messages"}, Given);
sse(_) -> none.
