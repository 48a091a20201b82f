-module(erlmcp_cli_login).
-moduledoc """
Logins: `--login` sends the user to the browser where the server wants that, and keeps the tokens in
a folder of the user's alone; what was kept for a URL serves the commands that come after.
""".

-export([arguments/0, options/1]).

%% Milliseconds that a user has for a login.
-define(LOGIN_MS, 300_000).

-doc "The arguments for `argparse`.".
-spec arguments() -> [argparse:argument()].
arguments() ->
    [#{name => login, long => "-login", type => boolean,
       help => "log in with the browser where the server wants that; later commands use it"},
     #{name => client_id, long => "-client-id", required => false,
       help => {"[--client-id <id>]", ["with --login: of a client that is registered already"]}}].

-doc "The options of a client that is to log in, or has.".
-spec options(erlmcp_cli_target:parsed()) -> {ok, map()} | {error, term()}.
options(#{login := true, token := _}) ->
    {error, "--login and --token: one of them was expected"};
options(#{login := true, url := Url} = Parsed) ->
    Given = given(Parsed),
    maybe
        ok ?= remember(unicode:characters_to_binary(Url), Given),
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
               auth => Given#{store => store(), login_timeout => ?LOGIN_MS, browser => Open,
                              loopback => #{say => Say}}}}
    end;
options(#{client_id := _}) ->
    {error, "--client-id: only --login has that"};
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

%% Tokens belong to a client, and who comes without `--client-id` later means the same one.
remember(Url, Given) ->
    {Module, Options} = store(),
    maybe
        {ok, Store} ?= opened(Module:open(Options)),
        opened(Module:put({login, Url}, #{atom_to_binary(Name) => Value || Name := Value <- Given},
                          Store))
    end.

kept(Url) ->
    {Module, Options} = store(),
    maybe
        {ok, Store} ?= opened(Module:open(Options)),
        {ok, Remembered} ?= Module:get({login, Url}, Store),
        Given = #{client_id => Id || #{~"client_id" := Id} <- [Remembered]},
        {ok, Settings} = erlmcp_oauth_options:check(Given#{store => store()}),
        {ok, Kept} ?= opened(erlmcp_oauth_kept:open(store(), Url, Settings)),
        {ok, _, _} ?= erlmcp_oauth_kept:tokens(Kept),
        {ok, #{auth => Given#{store => store(), browser => none}}}
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

folder() ->
    State = case os:getenv("XDG_STATE_HOME", "") of
        "/" ++ _ = Set -> Set;
        _ -> filename:join([os:getenv("HOME", "/"), ".local", "state"])
    end,
    filename:join([State, "erlmcp", "tokens"]).
