-module(erlmcp_stdio_environment).
-moduledoc """
The environment of a server that runs as a child process of the node. By default the server inherits
only a few variables of the node, such as `HOME`, `PATH` and those of the locale. Others may have
secrets, such as API keys. It also gets the variables that the client's user sets.

Internal.
""".

-export([changes/2, is_inherit/1, is_env/1]).

%% The variables that the official SDKs pass on, and those for temporary files, language and time
%% zone.
-define(INHERITED, ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER",
                    "LANG", "TMPDIR", "TZ"]).

-type text() :: binary() | string().

-doc """
Returns the value of the port option `env` for the server. The server inherits the `safe` variables
of the node, or `all` of them, and gets those of `Env`; `false` removes a variable.
""".
-spec changes(safe | all, Env :: #{text() => text() | false} | [{text(), text() | false}]) ->
    [{string(), string() | false}].
changes(Inherit, Env) when is_map(Env) ->
    changes(Inherit, maps:to_list(Env));
changes(Inherit, Env) ->
    Given = [{string(Name), Value =/= false andalso string(Value)} || {Name, Value} <- Env],
    [{Name, false} || {Name, _} <- os:env(), not inherited(Inherit, Name),
                      not lists:keymember(Name, 1, Given)] ++ Given.

inherited(all, _) -> true;
inherited(safe, "LC_" ++ _) -> true;
inherited(safe, Name) -> lists:member(Name, ?INHERITED).

%% In a locale without UTF-8 the runtime passes bytes, so a character may be several elements.
string(Text) ->
    case file:native_name_encoding() of
        utf8 -> unicode:characters_to_list(Text);
        latin1 -> binary_to_list(unicode:characters_to_binary(Text))
    end.

-doc "Returns `true` if `Value` is a valid value of the option `inherit`.".
-spec is_inherit(term()) -> boolean().
is_inherit(Value) -> Value =:= safe orelse Value =:= all.

-doc "Returns `true` if `Env` is a valid value of the option `env`.".
-spec is_env(term()) -> boolean().
is_env(Env) when is_map(Env) -> is_env(maps:to_list(Env));
is_env(Env) -> erlmcp_user_term:is_list_of(fun is_variable/1, Env).

is_variable({Name, Value}) ->
    case characters(Name) of
        [_ | _] = Characters ->
            not lists:member($=, Characters)
                andalso (Value =:= false orelse characters(Value) =/= none);
        _ ->
            false
    end;
is_variable(_) ->
    false.

%% Returns the characters of a text that a variable can have, or `none`.
characters(Text) when is_binary(Text) ->
    characters(unicode:characters_to_list(Text));
characters(Text) ->
    case io_lib:char_list(Text) andalso not lists:member(0, Text) of
        true -> Text;
        false -> none
    end.
