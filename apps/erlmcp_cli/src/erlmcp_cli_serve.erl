-module(erlmcp_cli_serve).
-moduledoc "`erlmcp serve`: a server module of the code path, on HTTP and TCP or on stdio.".

-export([command/0]).

-define(PORT, {integer, [{min, 0}, {max, 65535}]}).

-doc "The command for `argparse`.".
-spec command() -> argparse:command().
command() ->
    #{help => "serve a module that has -behaviour(erlmcp_server)",
      arguments => [
          #{name => module,
            help => "its name; it is looked for in the code path, which ERL_LIBS extends"},
          #{name => port, long => "-port", type => ?PORT, default => 8080,
            help => "HTTP port; 0 takes a free one"},
          #{name => host, long => "-host", default => "127.0.0.1",
            help => {"[--host <host>]", ["address to listen on, default: ", default]}},
          #{name => tcp, long => "-tcp", type => ?PORT,
            help => "listen on this TCP port too: one JSON-RPC message a line"},
          #{name => sse, long => "-sse", type => boolean,
            help => "serve HTTP+SSE of 2024-11-05 too, at /sse"},
          #{name => trusted_proxies, long => "-trusted-proxy", type => binary, action => append,
            help => {"[--trusted-proxy <address>]...",
                     ["an address of a proxy, or a network like 10.0.0.0/8: it says whose its "
                      "requests are, in Forwarded or X-Forwarded-For"]}},
          #{name => proxy_protocol, long => "-proxy-protocol", type => boolean,
            help => "those proxies begin each connection with the PROXY protocol's header"},
          #{name => page_size, long => "-page-size", type => {integer, [{min, 1}]},
            help => "definitions in one page of a list; without it what the server says"},
          #{name => drain, long => "-drain", type => {integer, [{min, 0}]},
            help => "seconds that SIGTERM gives to what runs; 8, on stdio none, unless given"},
          #{name => stdio, long => "-stdio", type => boolean,
            help => "speak on stdin and stdout, and not on HTTP"}],
      handler => fun run/1}.

run(#{module := Name, host := Host} = Arguments) ->
    maybe
        {ok, Module, Beam} ?= server_module(Name),
        {ok, Ip} ?= address(Host),
        ok ?= start_application(Beam),
        {ok, Server} ?= start_server(Module, Arguments, listen(Arguments, Ip)),
        ok = drain_at_sigterm(Server, Arguments),
        ok = announce(Module, Server, Arguments),
        serving
    else
        {error, Sentence} ->
            erlmcp_cli:complain(Sentence),
            failed
    end.

%% On stdio the client has waited for its answers before it sends SIGTERM, and reads no more.
drain_at_sigterm(Server, #{drain := Seconds}) -> erlmcp_cli_sigterm:drain(Server, Seconds * 1000);
drain_at_sigterm(_, #{stdio := true}) -> ok;
drain_at_sigterm(Server, _) -> erlmcp_cli_sigterm:drain(Server, 8_000).

%% The module's atom comes out of a file that stands in the code path, never out of the argument.
server_module(Name) ->
    maybe
        match ?= re:run(Name, "^[A-Za-z][A-Za-z0-9_.@]*$", [{capture, none}, dollar_endonly]),
        Beam = [_ | _] ?= code:where_is_file(Name ++ ".beam"),
        {ok, {Module, [{attributes, Attributes}]}} ?= beam_lib:chunks(Beam, [attributes]),
        case is_server(Attributes) of
            true -> {ok, Module, Beam};
            false -> {error, [Name, ": this module has no -behaviour(erlmcp_server): ", Beam]}
        end
    else
        _ -> {error, [Name, ": no compiled module of this name is in the code path, which ERL_LIBS "
                            "extends"]}
    end.

is_server(Attributes) ->
    lists:any(fun({Key, Values}) ->
                  (Key =:= behaviour orelse Key =:= behavior)
                      andalso lists:member(erlmcp_server, Values)
              end, Attributes).

address(Host) ->
    maybe
        {error, _} ?= inet:parse_address(Host),
        {error, Reason} ?= inet:getaddr(Host, inet),
        {error, ["--host ", Host, ": ", inet:format_error(Reason)]}
    end.

%% A server module may need the processes of the application that it belongs to.
start_application(Beam) ->
    Own = case filelib:wildcard(filename:join(filename:dirname(Beam), "*.app")) of
              [File] ->
                  {ok, [{application, Application, _}]} = file:consult(File),
                  [Application];
              _ ->
                  []
          end,
    case application:ensure_all_started([erlmcp_cli | Own], permanent) of
        {ok, _} -> ok;
        {error, Reason} -> {error, io_lib:format("cannot start: ~0tp", [Reason])}
    end.

listen(#{stdio := true} = Arguments, Ip) ->
    %% The launcher may have put stdout where nothing but MCP can find it.
    Output = application:get_env(erlmcp_cli, stdio_output, 1),
    [{stdio, #{output => Output}} | tcp(Arguments, Ip)];
listen(#{port := Port} = Arguments, Ip) ->
    Http = (maps:with([trusted_proxies, proxy_protocol], Arguments))#{port => Port, ip => Ip},
    case Arguments of
        #{sse := true} -> [{http, Http#{sse => #{}}} | tcp(Arguments, Ip)];
        #{} -> [{http, Http} | tcp(Arguments, Ip)]
    end.

%% Lines have no headers.
tcp(#{tcp := Port, proxy_protocol := true} = Arguments, Ip) ->
    Proxies = maps:with([trusted_proxies, proxy_protocol], Arguments),
    [{tcp, Proxies#{port => Port, ip => Ip}}];
tcp(#{tcp := Port}, Ip) -> [{tcp, #{port => Port, ip => Ip}}];
tcp(_, _) -> [].

start_server(Module, Arguments, Listeners) ->
    Options = maps:with([page_size], Arguments),
    maybe
        {error, Reason} ?=
            erlmcp_cli_sup:start_server(Options#{handler => Module, listen => Listeners}),
        {error, refused(Reason, Listeners)}
    end.

refused({listen, Transport, Reason}, Listeners) ->
    {Transport, #{ip := Ip, port := Port}} = lists:keyfind(Transport, 1, Listeners),
    Option = maps:get(Transport, #{http => "--port", tcp => "--tcp"}),
    io_lib:format("cannot listen on port ~b of ~ts: ~ts; ~ts takes another",
                  [Port, inet:ntoa(Ip), why(Reason), Option]);
refused({bad_option, {_, trusted_proxies, Text}, Expected}, _) ->
    io_lib:format("--trusted-proxy ~ts: expected ~ts", [Text, Expected]);
refused({bad_option, {_, proxy_protocol}, _}, _) ->
    "--proxy-protocol: expected --trusted-proxy beside it, for whose header is read";
refused({bad_option, Option, Expected}, _) ->
    io_lib:format("the option ~0tp of the server: expected ~ts", [Option, Expected]);
refused({bad_definition, Kind, Name, Field, Expected}, _) ->
    io_lib:format("the ~ts ~ts: ~0tp: expected ~ts", [Kind, Name, Field, Expected]);
refused(Reason, _) ->
    io_lib:format("cannot start the server: ~0tp", [Reason]).

why(eaddrinuse) -> "it is in use";
why(Posix) when is_atom(Posix) -> inet:format_error(Posix);
why(Reason) -> io_lib:format("~0tp", [Reason]).

%% Stdout is the peer's when the server speaks there.
announce(_, _, #{stdio := true}) ->
    ok;
announce(Module, Server, _) ->
    io:put_chars(erlmcp_cli_welcome:text(erlmcp_server:options(Module),
                                         erlmcp:listeners(Server))).
