-module(erlmcp_stdio_environment).
-moduledoc """
The environment of a server that the client starts. A node's own has secrets in it, its cookie and
the keys of its services, that are no concern of a program which somebody else wrote. So a server
gets the few variables that say who the user is and how things are done here, and what it is given.

Internal.
""".

-export([changes/2, is_inherit/1, is_env/1]).

%% Those of the official SDKs, and what says where temporary files, languages and hours are from.
-define(INHERITED, ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER",
                    "LANG", "TMPDIR", "TZ"]).

-type text() :: binary() | string().

-doc """
What a port's `env` has to be for a server that inherits `safe` variables of the node's or `all` of
them, and is given `Env`; `false` is none.
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

%% In a locale without UTF-8 the runtime hands on bytes, of which a character may be several.
string(Text) ->
    case file:native_name_encoding() of
        utf8 -> unicode:characters_to_list(Text);
        latin1 -> binary_to_list(unicode:characters_to_binary(Text))
    end.

-doc "Whether this is a right value of the option `inherit`.".
-spec is_inherit(term()) -> boolean().
is_inherit(Value) -> Value =:= safe orelse Value =:= all.

-doc "Whether this is a right value of the option `env`.".
-spec is_env(term()) -> boolean().
is_env(Env) when is_map(Env) -> is_env(maps:to_list(Env));
is_env(Env) -> is_list(Env) andalso lists:all(fun is_variable/1, Env).

is_variable({Name, Value}) -> is_text(Name) andalso (Value =:= false orelse is_text(Value));
is_variable(_) -> false.

is_text(Text) when is_binary(Text) -> true;
is_text(Text) -> io_lib:char_list(Text).
