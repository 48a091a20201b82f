-module(erlmcp_cli_target).
-moduledoc """
The server of a command: the command-line arguments that name it, and the target and options for
`m:erlmcp_client` that they mean.
""".

-export([arguments/1, target/2, check_roots/1, name/1]).

-export_type([parsed/0]).

-type parsed() :: argparse:arg_map().

-define(CONNECT_MS, 10_000).

-doc """
Returns the `argparse` arguments of a command that uses a server: those that name the server, and
options such as `--timeout` and `--json`. `Words` are the words of the command line. The first
argument is a URL, unless the words have `--stdio` or `--tcp`.
""".
-spec arguments(Words :: [string()]) -> [argparse:argument()].
arguments(Words) ->
    case lists:any(fun is_elsewhere/1, Words) of
        true -> options();
        false -> [#{name => url, help => "an MCP endpoint, such as http://127.0.0.1:8080/mcp; or "
                                         "--stdio or --tcp instead"} | options()]
    end.

is_elsewhere("--stdio" ++ Rest) -> is_whole(Rest);
is_elsewhere("--tcp" ++ Rest) -> is_whole(Rest);
is_elsewhere(_) -> false.

is_whole("") -> true;
is_whole([$= | _]) -> true;
is_whole(_) -> false.

options() ->
    [option(stdio, "-stdio", "start this program, with its arguments, and speak on its stdin and "
                             "stdout; no shell runs"),
     (option(env, "-env", {"[--env <name>[=<value>]]",
                           ["an environment variable for the program of --stdio, with this value "
                            "or its current one; may stand again"]}))
         #{action => append},
     option(tcp, "-tcp", "HOST:PORT, with one JSON-RPC message a line; IPv6 in brackets"),
     (option(era, "-era", {"[--era <era>]",
                           ["auto (the default), stateless, session or a revision, such as "
                           "2025-11-25"]}))
         #{type => {string, [atom_to_list(Era) || Era <- eras()]}},
     (option(header, "-header", "'Name: value', a header of every HTTP request; may stand again"))
         #{action => append},
     option(token, "-token", "a bearer token; other users do not see the variable ERLMCP_TOKEN"),
     option(cacert, "-cacert", {"[--cacert <file>]",
                                ["PEM with the roots to trust instead of the system's"]}),
     (option(root, "-root", {"[--root <folder>]",
                             ["a folder to name to the server as a root; may stand again"]}))
         #{action => append},
     (option(timeout, "-timeout", {"[--timeout <seconds>]",
                                   ["seconds to wait for an answer, or for progress; 60"]}))
         #{type => {integer, [{min, 1}, {max, 86400}]}, default => 60},
     (option(json, "-json", "print the result as JSON, and nothing else"))#{type => boolean},
     (option(verbose, "-verbose", "show progress and log messages on stderr"))#{type => boolean},
     (option(log_level, "-log-level", {"[--log-level <level>]",
                                       ["show the server's log messages from this level on: debug, "
                                       "info, notice, warning, error, ..."]}))
         #{type => {string, [atom_to_list(Level) || Level <- levels()]}}
     | erlmcp_cli_login:arguments()].

option(Name, Long, Help) ->
    #{name => Name, long => Long, required => false, help => Help}.

eras() -> [auto, stateless, session | erlmcp_revision:all()].

levels() -> [debug, info, notice, warning, error, critical, alert, emergency].

-doc "Returns the text by which messages name the server: its URL, address or program.".
-spec name(parsed()) -> unicode:chardata().
name(#{stdio := Command}) -> Command;
name(#{tcp := Address}) -> ["tcp://", Address];
name(#{url := Url}) -> Url.

-doc """
Returns the target that the parsed arguments name, with the client's options: those of the
arguments, and `Options`, which override the timeouts. With a URL, the token is that of the
environment variable `ERLMCP_TOKEN`, unless there is a `--token`, or an `auth` in `Options`. The
error is a sentence for the user.
""".
-spec target(parsed(), Options :: map()) ->
    {ok, erlmcp_client:target()} | {error, unicode:chardata()}.
target(#{stdio := _, tcp := _}, _) ->
    {error, "--stdio and --tcp: one of them was expected"};
target(#{stdio := Command} = Parsed, Options) ->
    maybe
        ok ?= without_http(Parsed),
        {ok, [_ | _] = Words} ?= erlmcp_cli_words:split(Command),
        {ok, Env} ?= environment(maps:get(env, Parsed, [])),
        {ok, {stdio, [unicode:characters_to_binary(Word) || Word <- Words],
              (common(Parsed, Options))#{env => Env}}}
    else
        {ok, []} -> {error, "--stdio: a program was expected"};
        {error, unfinished} -> {error, ["--stdio ", Command, ": a quote has no end"]};
        {error, _} = Error -> Error
    end;
target(#{tcp := Address} = Parsed, Options) ->
    maybe
        ok ?= without_http(Parsed),
        ok ?= without_program(Parsed),
        {ok, Host, Port} ?= host_and_port(Address),
        {ok, {tcp, Host, Port, common(Parsed, Options)}}
    else
        error -> {error, ["--tcp ", Address, ": HOST:PORT was expected"]};
        {error, _} = Error -> Error
    end;
target(#{url := Url} = Parsed, Options) ->
    maybe
        ok ?= without_program(Parsed),
        ok ?= check_url(Url),
        {ok, Headers} ?= headers(maps:get(header, Parsed, [])),
        Common = common(Parsed, Options),
        {ok, {http, unicode:characters_to_binary(Url),
              maps:merge(Common, maps:from_list([{headers, Headers} || Headers =/= []]
                                                ++ token(Parsed, Common) ++ tls(Parsed)))}}
    else
        error -> {error, [Url, ": a URL that starts with http:// or https:// was expected"]};
        {error, _} = Error -> Error
    end.

without_http(Parsed) ->
    case [Name || Name <- [header, token, cacert, login, client_id, allow_host],
                  is_map_key(Name, Parsed)] of
        [] -> ok;
        [Name | _] ->
            {error, ["--", string:replace(atom_to_list(Name), "_", "-"), ": only a URL has that"]}
    end.

without_program(#{env := _}) -> {error, "--env: only a program of --stdio has that"};
without_program(_) -> ok.

%% A program inherits only a few variables, since a downloaded one must not see keys and tokens of
%% the user.
environment(Words) ->
    environment(Words, #{}).

environment([], Env) ->
    {ok, Env};
environment([Word | Words], Env) ->
    case string:split(Word, "=") of
        ["" | _] ->
            {error, ["--env ", Word, ": NAME or NAME=VALUE was expected"]};
        [Name, Value] ->
            environment(Words, Env#{Name => Value});
        [Name] ->
            case os:getenv(Name) of
                false -> {error, ["--env ", Name, ": there is no such variable here"]};
                Value -> environment(Words, Env#{Name => Value})
            end
    end.

-doc """
Returns `ok` if there is no `--cacert`, or if its file has certificates in PEM and all of them can
be decoded. The error is a sentence for the user.
""".
-spec check_roots(parsed()) -> ok | {error, unicode:chardata()}.
check_roots(#{cacert := File}) ->
    maybe
        {ok, Pem} ?= file:read_file(File),
        [_ | _] ?= certificates(Pem),
        ok
    else
        {error, Why} -> {error, ["--cacert ", File, ": ", file:format_error(Why)]};
        [] -> {error, ["--cacert ", File, ": certificates in PEM were expected"]}
    end;
check_roots(_) ->
    ok.

certificates(Pem) ->
    try
        [public_key:pkix_decode_cert(Der, plain)
         || {'Certificate', Der, not_encrypted} <- public_key:pem_decode(Pem)]
    catch
        %% Both crash on a file that is not PEM.
        error:_ -> []
    end.

check_url(Url) ->
    case uri_string:parse(Url) of
        #{scheme := Scheme, host := [_ | _]} = Parts when not is_map_key(userinfo, Parts) ->
            case lists:member(string:lowercase(Scheme), ["http", "https"]) of
                true -> ok;
                false -> error
            end;
        _ -> error
    end.

host_and_port(Address) ->
    Patterns = ["^\\[([0-9a-fA-F:.]+)\\]:([0-9]{1,5})$", "^([^:\\[\\]]+):([0-9]{1,5})$"],
    case [Found || Pattern <- Patterns,
                   {match, Found} <- [re:run(Address, Pattern, [{capture, all_but_first, list},
                                                                dollar_endonly])]] of
        [[Host, Port]] ->
            case list_to_integer(Port) of
                Number when Number > 0, Number < 65536 -> {ok, address(Host), Number};
                _ -> error
            end;
        [] ->
            error
    end.

address(Host) ->
    case inet:parse_address(Host) of
        {ok, Address} -> Address;
        {error, _} -> unicode:characters_to_binary(Host)
    end.

headers(Lines) -> headers(Lines, []).

headers([], Headers) ->
    {ok, lists:reverse(Headers)};
headers([Line | Lines], Headers) ->
    case string:split(unicode:characters_to_binary(Line), ":") of
        [Name, Value] when Name =/= ~"" ->
            headers(Lines, [{string:trim(Name), string:trim(Value)} | Headers]);
        _ ->
            %% Only the header's name is shown: the rest may be a secret.
            {Shown, _} = string:take(Line, " =\t:", true),
            {error, ["--header ", Shown, ": 'Name: value' was expected"]}
    end.

%% A login has its own token, and that of the environment is not meant for every server.
token(#{token := Token}, _) ->
    [{token, unicode:characters_to_binary(Token)}];
token(_, #{auth := _}) ->
    [];
token(_, _) ->
    case os:getenv("ERLMCP_TOKEN", "") of
        "" -> [];
        Token -> [{token, unicode:characters_to_binary(Token)}]
    end.

tls(#{cacert := File}) -> [{tls, [{cacertfile, File}]}];
tls(_) -> [].

common(#{timeout := Seconds} = Parsed, Options) ->
    _ = application:load(erlmcp_cli),
    {ok, Version} = application:get_key(erlmcp_cli, vsn),
    Timeout = Seconds * 1000,
    Own = #{name => ~"erlmcp", version => list_to_binary(Version),
            timeout => Timeout, connect_timeout => min(Timeout, ?CONNECT_MS)},
    %% The atoms exist, since `arguments/1` allows only these words.
    Chosen = #{Name => list_to_existing_atom(Word)
               || Name := Word <- maps:with([era, log_level], Parsed)},
    maps:merge(maps:merge(Own, Options), Chosen).
