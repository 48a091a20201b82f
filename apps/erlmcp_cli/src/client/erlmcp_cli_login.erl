-module(erlmcp_cli_login).
-moduledoc """
Logs in at a server. With `--login` the user logs in with the browser if the server requires that.
The tokens are stored in a folder that only the user can read, and later commands with the same URL
use them. If the login leads to a host that the rules do not allow (`m:erlmcp_outbound_hosts`), the
user is asked on the terminal. A consent is stored, too.
""".

-export([arguments/0, options/1]).

%% Milliseconds that a user has for a login.
-define(LOGIN_MS, 300_000).

-doc "Returns the `argparse` arguments of a login.".
-spec arguments() -> [argparse:argument()].
arguments() ->
    [#{name => login, long => "-login", type => boolean,
       help => "log in with the browser if the server requires it; later commands use the login"},
     #{name => client_id, long => "-client-id", required => false,
       help => {"[--client-id <id>]", ["with --login: the id of a registered client"]}},
     #{name => allow_host, long => "-allow-host", required => false, action => append,
       help => {"[--allow-host <host>]",
                ["with --login: a host to which the login may lead without a question; may "
                 "stand again"]}}].

-doc """
Returns the client options for `--login`, or for the tokens of an earlier login at the same URL.
With `--login`, the client id and the allowed hosts are stored for later commands. Without a URL or
an earlier login, or with a token in `--token` or `ERLMCP_TOKEN`, the map is empty. The error is a
sentence for the user.
""".
-spec options(erlmcp_cli_target:parsed()) -> {ok, map()} | {error, unicode:chardata()}.
options(#{login := true, token := _}) ->
    {error, "--login and --token: one of them was expected"};
options(#{login := true, url := Url} = Parsed) ->
    Given = given(Parsed),
    Server = unicode:characters_to_binary(Url),
    maybe
        {ok, Consents} ?= consents(Server),
        ok ?= remember(Server, Given, maps:merge(Consents, consented(Parsed))),
        Say = fun(Login) ->
                  erlmcp_cli_terminal:say(["Open this to log in: ",
                                           erlmcp_cli_text:one_line(Login)])
              end,
        Open = fun(Login) ->
                   maybe
                       ok ?= erlmcp_browser:open(Login),
                       erlmcp_cli_terminal:say("The login is in the browser.")
                   end
               end,
        {ok, #{timeout => ?LOGIN_MS,
               auth => Given#{store => store(), allow_hosts => allow(Server, Given),
                              login_timeout => ?LOGIN_MS, browser => Open,
                              loopback => #{say => Say}}}}
    end;
options(#{client_id := _} = Parsed) when not is_map_key(login, Parsed) ->
    {error, "--client-id: only --login has that"};
options(#{allow_host := _} = Parsed) when not is_map_key(login, Parsed) ->
    {error, "--allow-host: only --login has that"};
options(#{url := Url} = Parsed) ->
    Own = is_map_key(token, Parsed) orelse os:getenv("ERLMCP_TOKEN", "") =/= "",
    case Own orelse not filelib:is_dir(folder()) of
        true -> {ok, #{}};
        false -> kept(unicode:characters_to_binary(Url))
    end;
options(_) ->
    {ok, #{}}.

given(#{client_id := Id}) -> #{client_id => unicode:characters_to_binary(Id)};
given(_) -> #{}.

%% A host that is named with `--allow-host` is allowed at any address.
consented(#{allow_host := Hosts}) ->
    #{string:lowercase(unicode:characters_to_binary(string:trim(Host, both, "[]"))) =>
          ~"inner_address" || Host <- Hosts};
consented(_) ->
    #{}.

consents(Url) ->
    {Module, Options} = store(),
    maybe
        {ok, Store} ?= opened(Module:open(Options)),
        {ok, Remembered} ?= opened(Module:get({login, Url}, Store)),
        {ok, maps:get(~"hosts", Remembered, #{})}
    else
        none -> {ok, #{}};
        {error, _} = Error -> Error
    end.

%% Tokens belong to one client id. A later command without `--client-id` uses the same one.
remember(Url, Given, Consents) ->
    {Module, Options} = store(),
    Value = #{atom_to_binary(Name) => Part || Name := Part <- Given},
    maybe
        {ok, Store} ?= opened(Module:open(Options)),
        opened(Module:put({login, Url}, Value#{~"hosts" => Consents}, Store))
    end.

%% Stores the answer for later commands. A host that was allowed as another origin is not allowed at
%% an inner address.
allow(Url, Given) ->
    fun(#{host := Host, why := {Kind, _}} = Question) ->
        Why = atom_to_binary(Kind),
        case consents(Url) of
            {ok, #{Host := ~"inner_address"}} -> true;
            {ok, #{Host := Why}} -> true;
            {ok, Consents} -> erlmcp_cli_ask:allows(Question)
                                  andalso remember(Url, Given, Consents#{Host => Why}) =:= ok;
            {error, _} -> false
        end
    end.

kept(Url) ->
    {Module, Options} = store(),
    maybe
        {ok, Store} ?= opened(Module:open(Options)),
        {ok, Remembered} ?= opened(Module:get({login, Url}, Store)),
        Given = #{client_id => Id || #{~"client_id" := Id} <- [Remembered]},
        {ok, Settings} = erlmcp_oauth_options:check(Given#{store => store()}),
        {ok, Kept} ?= opened(erlmcp_oauth_credentials:open(store(), Url, Settings)),
        {ok, _, _} ?= erlmcp_oauth_credentials:tokens(Kept),
        {ok, #{auth => Given#{store => store(), allow_hosts => allow(Url, Given),
                              browser => none}}}
    else
        none -> {ok, #{}};
        {error, _} = Error -> Error
    end.

opened({error, {store, Reason}}) -> opened({error, Reason});
opened({error, Reason}) ->
    {error, [folder(), ": the tokens in this folder cannot be used: ",
             io_lib:format("~0tp", [Reason])]};
opened(Opened) -> Opened.

store() -> {erlmcp_token_store_file, #{folder => folder()}}.

folder() -> erlmcp_cli_folders:state("tokens").
