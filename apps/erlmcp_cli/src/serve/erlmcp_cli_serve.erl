-module(erlmcp_cli_serve).
-moduledoc """
`erlmcp serve`: serves a module of the code path, or of a file, on HTTP or on stdio, and with
`--tcp` also on TCP. The application that the module belongs to is started first, since handlers may
need its processes. On stdio, that application's listeners stay closed without `--listen`.
""".

-export([command/0]).

-define(PORT, {integer, [{min, 0}, {max, 65535}]}).

-doc "Returns the command `serve` for `argparse`, with its arguments and its handler.".
-spec command() -> argparse:command().
command() ->
    #{help => "serve a module that has -behaviour(erlmcp_server)",
      arguments => [
          #{name => module,
            help => "its name, found in the code path, which ERL_LIBS extends; or its file: "
                    "./my_server.beam"},
          #{name => port, long => "-port", type => ?PORT, default => 8080,
            help => "HTTP port; 0 takes a free one"},
          #{name => host, long => "-host", default => "127.0.0.1",
            help => {"[--host <host>]", ["address to listen on, default: ", default]}},
          #{name => tcp, long => "-tcp", type => ?PORT,
            help => "listen on this TCP port too: one JSON-RPC message a line"},
          #{name => sse, long => "-sse", type => boolean,
            help => "serve HTTP+SSE of 2024-11-05 too, at /sse"},
          #{name => allowed_host, long => "-allowed-host", action => append, required => false,
            help => "a further name by which clients may call the server, as behind a proxy; may "
                    "stand again"},
          #{name => allowed_origin, long => "-allowed-origin", action => append, required => false,
            help => "an origin, such as https://example.com, whose pages may call the server; may "
                    "stand again"},
          #{name => trusted_proxies, long => "-trusted-proxy", type => binary, action => append,
            help => {"[--trusted-proxy <address>]...",
                     ["an address of a proxy, or a network like 10.0.0.0/8: it names the "
                      "clients of its requests, in Forwarded or X-Forwarded-For"]}},
          #{name => proxy_protocol, long => "-proxy-protocol", type => boolean,
            help => "those proxies begin each connection with the PROXY protocol's header"},
          #{name => page_size, long => "-page-size", type => {integer, [{min, 1}]},
            help => "definitions in one page of a list; by default as in the server's options"},
          #{name => console, long => "-console", type => boolean,
            help => "serve the console at /console: is the server well, since when, and why not; "
                    "with another --host than this machine's it demands a token, which is shown"},
          #{name => console_payloads, long => "-console-payloads", type => boolean,
            help => "with --console: show the arguments and results of recent requests, without "
                    "what looks like a secret"},
          #{name => console_redact, long => "-console-redact", type => binary, action => append,
            required => false,
            help => {"[--console-redact <name>]...",
                     ["with --console-payloads: take this out as well, the name of a member or a "
                      "JSON pointer"]}},
          #{name => log_format, long => "-log-format", type => {atom, [json, text]},
            help => "log the server's start and end too, as lines of json or of text"},
          #{name => access_log, long => "-access-log", type => {integer, [{min, 1}]},
            help => "log the end of one in so many requests; 1 for each"},
          #{name => otlp, long => "-otlp", type => binary,
            help => "send traces by OTLP/HTTP to the collector at this URL, such as "
                    "http://localhost:4318; by default to that of OTEL_EXPORTER_OTLP_ENDPOINT"},
          #{name => drain, long => "-drain", type => {integer, [{min, 0}]},
            help => "seconds that SIGTERM gives to running calls; 8 by default, none on stdio"},
          #{name => lame, long => "-lame", type => {integer, [{min, 0}, {max, 86_400}]},
            help => "seconds for which the server still serves before that, and is not ready, so "
                    "that a load balancer notices; 0 by default, 2 with --cluster"},
          #{name => cluster, long => "-cluster", required => false,
            help => {"[--cluster <folder>]",
                     ["be a node of a cluster; the folder has this node's part of its store"]}},
          #{name => name, long => "-name", required => false,
            help => {"[--name <name@host>]",
                     ["with --cluster: this node's name, with an address or a full name as its "
                      "host"]}}]
          ++ erlmcp_cli_cluster:arguments()
          ++ [
          #{name => stdio, long => "-stdio", type => boolean,
            help => "speak on stdin and stdout, and not on HTTP"},
          #{name => listen, long => "-listen", type => boolean,
            help => "with --stdio: open the listeners of the module's application too"},
          #{name => control, long => "-control", required => false,
            help => {"[--control <file>]",
                     ["the socket for `erlmcp calls` and the like; by default one of its own, or "
                      "none with --stdio"]}},
          #{name => verbose, long => "-verbose", type => boolean,
            help => "show all log reports of a failed start"}],
      handler => fun run/1}.

run(#{module := Name, host := Host} = Arguments) ->
    maybe
        ok ?= together(Arguments),
        {ok, Cluster} ?= cluster(Arguments),
        {ok, Module, Beam} ?= server_module(Name),
        {ok, Ip} ?= address(Host),
        {ok, Own} ?= application_of(Beam),
        {ok, Trace} ?= trace(Arguments),
        ok = keep_closed(Arguments),
        ok = log(Arguments),
        {ok, _} = application:ensure_all_started(erlmcp_cli, permanent),
        ok ?= join(Cluster, Arguments),
        ok ?= start_applications(Own, Arguments),
        Pages = pages(Arguments, Ip),
        {ok, Server} ?= start_server(Module, maps:merge(Arguments, Trace),
                                      listen(Arguments, Ip, Pages)),
        ok = drain_at_sigterm(Server, Arguments),
        ok ?= control(Arguments),
        ok = warn_of_listeners(Ip, erlmcp:listeners(Server), Arguments),
        ok = announce(Module, Server, Pages, Arguments),
        serving
    else
        {usage, Sentence} ->
            erlmcp_cli_output:complain(Sentence),
            usage;
        {error, Sentence} ->
            erlmcp_cli_output:complain(Sentence),
            failed
    end.

%% The welcome tells a person where the server listens.
log(#{log_format := Format}) -> erlmcp_cli_log:show_servers(Format);
log(#{access_log := _}) -> erlmcp_cli_log:show_servers(text);
log(_) -> erlmcp_cli_log:hide_servers().

together(#{stdio := true} = Arguments) ->
    Http = [{allowed_host, "--allowed-host"}, {allowed_origin, "--allowed-origin"}, {sse, "--sse"},
            {console, "--console"}, {console_payloads, "--console-payloads"},
            {console_redact, "--console-redact"}, {cluster, "--cluster"}, {name, "--name"},
            {seed, "--seed"}, {dns, "--dns"}, {secret, "--secret"}, {size, "--cluster-size"}],
    Sockets = [{trusted_proxies, "--trusted-proxy"}, {proxy_protocol, "--proxy-protocol"}],
    case [[Option, ": only ", Have, " that option, not --stdio"]
          || {Options, Have} <- [{Http, "HTTP has"}
                                 | [{Sockets, "HTTP and TCP have"}
                                    || not is_map_key(tcp, Arguments)]],
             {Name, Option} <- Options, is_map_key(Name, Arguments)] of
        [] -> ok;
        [Sentence | _] -> {usage, Sentence}
    end;
%% No atom is longer.
together(#{name := Name}) when length(Name) > 255 ->
    {usage, "--name: a name of 255 characters at most was expected"};
together(#{cluster := _} = Arguments) when not is_map_key(name, Arguments) ->
    {usage, "--cluster: --name was expected too, the name by which other nodes reach this one"};
together(Arguments) when
    not is_map_key(cluster, Arguments),
    is_map_key(name, Arguments) orelse is_map_key(seed, Arguments)
        orelse is_map_key(dns, Arguments) orelse is_map_key(secret, Arguments)
        orelse is_map_key(size, Arguments)
->
    {usage, "--name, --seed, --dns, --secret and --cluster-size: they were expected with "
            "--cluster"};
together(#{console_payloads := true} = Arguments) when not is_map_key(console, Arguments) ->
    {usage, "--console-payloads: it was expected with --console"};
together(#{console_redact := _} = Arguments) when not is_map_key(console_payloads, Arguments) ->
    {usage, "--console-redact: it was expected with --console-payloads"};
together(#{console_redact := Rules} = Arguments) ->
    case [Rule || Rule <- Rules, not erlmcp_redaction:is_rule(Rule)] of
        [] -> together(maps:remove(console_redact, Arguments));
        [Rule | _] -> {usage, ["--console-redact ", Rule, ": expected a name or a JSON pointer"]}
    end;
together(#{listen := true}) ->
    {usage, "--listen: it was expected with --stdio; without it the module's application listens "
            "as it always does"};
together(_) ->
    ok.

%% On stdio the server is not drained: a client that sends SIGTERM has waited for its answers
%% already, and does not read any more.
drain_at_sigterm(_, #{stdio := true} = Arguments) when not is_map_key(drain, Arguments) ->
    ok;
drain_at_sigterm(Server, Arguments) ->
    Lame = case Arguments of
        #{cluster := _} -> 2;
        #{} -> 0
    end,
    erlmcp_cli_sigterm:drain(Server, #{timeout_ms => 1000 * maps:get(drain, Arguments, 8),
                                       lame_ms => 1000 * maps:get(lame, Arguments, Lame)}).

cluster(#{cluster := Folder} = Arguments) -> erlmcp_cli_cluster:options(Folder, Arguments);
cluster(_) -> {ok, none}.

join(none, _) ->
    ok;
join(Options, #{name := Name} = Arguments) ->
    ok = say(notice, "waits for its cluster", Arguments),
    erlmcp_cli_cluster:join(Options, Name).

%% A server does without the default socket, and not without one that its user names.
control(#{control := File}) ->
    case erlmcp_cli_sup:start_control(File) of
        {ok, _} -> judged();
        {error, Why} -> {error, ["--control ", File, ": ", why(Why)]}
    end;
control(#{stdio := true}) ->
    ok;
control(Arguments) ->
    File = erlmcp_cli_control:file(),
    case erlmcp_cli_sup:start_control(File) of
        {ok, _} -> judged();
        {error, Why} ->
            say(warning, ["no control socket ", File, ": ", why(Why)], Arguments)
    end.

%% `erlmcp top` says whether the servers are well, also where no page of the console is served.
judged() ->
    {ok, _} = application:ensure_all_started(erlmcp_console),
    ok.

%% The atom of the module comes from a compiled file, and never from the argument.
server_module(Name) ->
    maybe
        {ok, Beam} ?= erlmcp_cli_code_path:file(Name),
        {ok, {Module, [{attributes, Attributes}]}} ?= beam_lib:chunks(Beam, [attributes]),
        true ?= is_server(Attributes)
            orelse {error, [Name, ": this module has no -behaviour(erlmcp_server): ", Beam]},
        %% Loads this file, even if the code path has another one of the same name.
        {module, Module} ?= code:load_abs(filename:rootname(Beam)),
        {ok, Module, Beam}
    else
        {error, beam_lib, _} -> {error, [Name, ": this file is no compiled module"]};
        {error, Why} when is_atom(Why) ->
            {error, [Name, ": this file cannot be loaded: ", atom_to_list(Why)]};
        {error, Sentence} ->
            {error, Sentence}
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

%% Returns the name of the application in the folder of a module, which has its .app file.
application_of(Beam) ->
    Folder = filename:dirname(Beam),
    maybe
        {ok, Files} ?= file:list_dir(Folder),
        case [File || File <- Files, filename:extension(File) =:= ".app"] of
            [File] -> {ok, [list_to_atom(filename:rootname(File))]};
            _ -> {ok, []}
        end
    else
        {error, Why} ->
            {error, [Folder, ": this folder cannot be listed: ", file:format_error(Why)]}
    end.

%% A wrong value in the environment is no reason not to serve.
trace(#{otlp := Url}) ->
    maybe
        {error, Sentence} ?= traced(erlmcp_cli_otlp:given(Url)),
        {usage, Sentence}
    end;
trace(_) ->
    maybe
        {error, Sentence} ?= traced(erlmcp_cli_otlp:environment()),
        erlmcp_cli_output:complain(["Warning: no traces are sent: ", Sentence]),
        {ok, #{}}
    end.

%% What starts before `erlmcp` stops after it, so the last spans can still be sent.
traced({ok, Trace}) ->
    {ok, _} = application:ensure_all_started(gun),
    {ok, #{trace => Trace}};
traced(none) ->
    {ok, #{}};
traced({error, Sentence}) ->
    {error, Sentence}.

%% A host may start such a server in each of its windows, and only one could listen on a port. The
%% setting is persistent, since the application may be loaded later.
keep_closed(#{stdio := true} = Arguments) when not is_map_key(listen, Arguments) ->
    application:set_env(erlmcp, listening_applications, [erlmcp_cli], [{persistent, true}]);
keep_closed(_) ->
    ok.

%% A permanent application that cannot be started would end the node without a reason for the user.
start_applications(Applications, Arguments) ->
    Start = fun() -> application:ensure_all_started(Applications) end,
    Started = case Arguments of
        #{verbose := true} -> Start();
        #{} -> erlmcp_cli_log:without_reports(applications, Start)
    end,
    case Started of
        {ok, Names} ->
            _ = spawn(fun() -> end_with(Names, Arguments) end),
            ok;
        {error, {Application, Reason}} ->
            {error, [atom_to_list(Application), " cannot be started: ", reason(Reason)
                     | ["; --verbose says more" || not is_map_key(verbose, Arguments)]]}
    end.

end_with(Applications, Arguments) ->
    Monitors = #{monitor(process, Supervisor) => Application
                 || Application <- Applications,
                    {ok, Supervisor} <- [application:get_supervisor(Application)]},
    receive
        {'DOWN', Monitor, process, _, Reason} when is_map_key(Monitor, Monitors) ->
            %% The application may have ended because the node does.
            ended(init:get_status(), maps:get(Monitor, Monitors), Reason, Arguments)
    end.

ended({stopping, _}, _, _, _) ->
    ok;
ended(_, Application, Reason, Arguments) ->
    ok = say(error, [atom_to_list(Application), " has ended: ", reason(Reason)], Arguments),
    init:stop(erlmcp_cli_exit:code(failed)).

%% Removes the terms in which supervisors and the application master wrap a reason.
reason({shutdown, Reason}) -> reason(Reason);
reason({failed_to_start_child, _, Reason}) -> reason(Reason);
reason({Reason, {Module, start, [_, _]}}) when is_atom(Module) -> reason(Reason);
reason({bad_return, {_, Reason}}) -> reason(Reason);
reason({error, Reason}) -> reason(Reason);
reason({'EXIT', Reason}) -> reason(Reason);
reason({Reason, [{Module, _, _, _} | _]}) when is_atom(Module) -> reason(Reason);
reason({listen, Transport, Reason}) when is_atom(Transport) ->
    [string:uppercase(atom_to_list(Transport)), ": ", why(Reason)];
reason({"no such file or directory", File}) -> ["there is no ", File];
reason(Reason) -> io_lib:format("~0tP", [Reason, 20]).

pages(#{console := true} = Arguments, Ip) ->
    {ok, _} = application:ensure_all_started(erlmcp_console),
    Token = case erlmcp_listener:is_loopback(Ip) of
        true -> #{};
        false -> #{token => erlmcp_console:token()}
    end,
    #{~"/console" => erlmcp_console:page(Token#{
        payloads => maps:get(console_payloads, Arguments, false),
        redact => maps:get(console_redact, Arguments, [])})};
pages(_, _) ->
    #{}.

listen(#{stdio := true} = Arguments, Ip, _) ->
    %% The launcher may have moved stdout to a descriptor that only MCP uses.
    Output = application:get_env(erlmcp_cli, stdio_output, 1),
    [{stdio, #{output => Output}} | tcp(Arguments, Ip)];
listen(#{port := Port} = Arguments, Ip, Pages) ->
    Names = #{Option => [unicode:characters_to_binary(Name) || Name <- Given]
              || {Option, Argument} <- [{allowed_hosts, allowed_host},
                                        {allowed_origins, allowed_origin}],
                 {ok, Given} <- [maps:find(Argument, Arguments)]},
    Proxies = maps:with([trusted_proxies, proxy_protocol], Arguments),
    Http = (maps:merge(Names, Proxies))#{port => Port, ip => Ip, pages => Pages,
                                                health => true},
    case Arguments of
        #{sse := true} -> [{http, Http#{sse => #{}}} | tcp(Arguments, Ip)];
        #{} -> [{http, Http} | tcp(Arguments, Ip)]
    end.

%% On TCP lines have no headers, so only the PROXY protocol can name the clients.
tcp(#{tcp := Port, proxy_protocol := true} = Arguments, Ip) ->
    Proxies = maps:with([trusted_proxies, proxy_protocol], Arguments),
    [{tcp, Proxies#{port => Port, ip => Ip}}];
tcp(#{tcp := Port}, Ip) -> [{tcp, #{port => Port, ip => Ip}}];
tcp(_, _) -> [].

start_server(Module, Arguments, Listeners) ->
    %% The node stops when the input on stdio ends, and then starts no application. That must not
    %% happen while the server waits for one.
    _ = [{ok, _} = application:ensure_all_started(cowboy) || {tcp, _} <- Listeners],
    Options = maps:merge(maps:with([page_size, trace], Arguments),
                         #{access_log => #{sample => Sample}
                           || #{access_log := Sample} <- [Arguments]}),
    maybe
        {error, Reason} ?=
            erlmcp_cli_sup:start_server(maps:merge(Options#{handler => Module, listen => Listeners},
                                                   in_cluster(Module, Arguments))),
        {error, refused(Reason, Listeners)}
    end.

%% The nodes know the server by its id. A module without options is refused when the server starts.
in_cluster(Module, #{cluster := _}) ->
    Id = case erlmcp_handler_module:options(Module) of
        {ok, #{id := Given}} -> Given;
        _ -> Module
    end,
    #{cluster => erlmcp_cluster, id => Id};
in_cluster(_, _) ->
    #{}.

refused({listen, Transport, Reason}, Listeners) ->
    {Transport, #{ip := Ip, port := Port}} = lists:keyfind(Transport, 1, Listeners),
    Option = maps:get(Transport, #{http => "--port", tcp => "--tcp"}),
    io_lib:format("cannot listen on port ~b of ~ts: ~ts; ~ts takes another",
                  [Port, inet:ntoa(Ip), why(Reason), Option]);
refused({bad_option, {_, trusted_proxies, Text}, Expected}, _) ->
    io_lib:format("--trusted-proxy ~ts: expected ~ts", [Text, Expected]);
refused({bad_option, {_, proxy_protocol}, _}, _) ->
    "--proxy-protocol: expected --trusted-proxy too, the proxies whose header is read";
refused(Reason, _) when element(1, Reason) =:= bad_option; element(1, Reason) =:= bad_definition ->
    erlmcp_reload:sentence(Reason);
refused(Reason, _) ->
    io_lib:format("cannot start the server: ~0tp", [Reason]).

why(eaddrinuse) -> "it is in use";
why(Posix) when is_atom(Posix) -> inet:format_error(Posix);
why(Reason) -> io_lib:format("~0tp", [Reason]).

warn_of_listeners(Ip, Listeners, Arguments) ->
    case erlmcp_listener:is_loopback(Ip) orelse [Url || #{url := Url} <- Listeners] of
        [Url | _] ->
            say(warning,
                [Url, " authenticates no client: all that can reach it may call the tools. Listen "
                 "on 127.0.0.1 (--host) behind a proxy that authenticates, or start the server in "
                 "an application, with the option authenticate"], Arguments);
        _ ->
            ok
    end.

%% With a format the log is for programs, and each line on standard error is an entry of it.
say(Level, Sentence, #{log_format := _}) -> logger:log(Level, "~ts", [Sentence]);
say(notice, Sentence, _) -> erlmcp_cli_output:note([Sentence, $\n]);
say(warning, Sentence, _) -> erlmcp_cli_output:complain(["Warning: ", Sentence]);
say(error, Sentence, _) -> erlmcp_cli_output:complain(Sentence).

%% On stdio nothing is printed, since stdout belongs to the client.
announce(_, _, _, #{stdio := true}) ->
    ok;
announce(Module, Server, Pages, _) ->
    {ok, Options} = erlmcp_handler_module:options(Module),
    erlmcp_cli_output:print(erlmcp_cli_welcome:text(Options, erlmcp:listeners(Server), Pages)).
