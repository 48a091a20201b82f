-module(erlmcp_server).
-moduledoc """
The behaviour of a module that is a server: `server/0` says who it is, the other callbacks what it
offers. Give the module as `handler` to `erlmcp:start_server/1`.

A definition may leave `handler` out; the module's `call_tool/3`, `read_resource/3` or
`get_prompt/3` is called for it then.
""".

-export([options/1]).

-doc "The server's options: at least `name` and `version`.".
-callback server() -> erlmcp_options:options().
-callback tools() -> [erlmcp_definition:source()].
-callback resources() -> [erlmcp_definition:source()].
-callback resource_templates() -> [erlmcp_definition:source()].
-callback prompts() -> [erlmcp_definition:source()].
-callback skills() -> [erlmcp_skill:source()].
-doc "Runs the tool of this name.".
-callback call_tool(Name :: binary(), Arguments :: map(), erlmcp_engine:context()) -> term().
-doc "Reads the resource of this URI; `Variables` are its template's, empty for a plain one.".
-callback read_resource(Uri :: binary(), Variables :: map(), erlmcp_engine:context()) -> term().
-doc "Gives the prompt of this name.".
-callback get_prompt(Name :: binary(), Arguments :: map(), erlmcp_engine:context()) -> term().

-optional_callbacks([tools/0, resources/0, resource_templates/0, prompts/0, skills/0]).
-optional_callbacks([call_tool/3, read_resource/3, get_prompt/3]).

-doc "The options that a handler module amounts to, its definitions with their funs filled in.".
-spec options(module()) -> erlmcp_options:options().
options(Module) ->
    Options = Module:server(),
    lists:foldl(
        fun({Key, Handler}, Known) ->
            case erlang:function_exported(Module, Key, 0) of
                true ->
                    Sources = [with_handler(Source, Handler) || Source <- Module:Key()],
                    Known#{Key => maps:get(Key, Known, []) ++ Sources};
                false ->
                    Known
            end
        end, Options, [{skills, none} | handlers(Module)]).

handlers(Module) ->
    [{tools, fun(Arguments, #{name := Name} = Context) ->
        Module:call_tool(Name, Arguments, Context)
     end},
     {resources, reader(Module)},
     {resource_templates, reader(Module)},
     {prompts, fun(Arguments, #{name := Name} = Context) ->
        Module:get_prompt(Name, Arguments, Context)
     end}].

reader(Module) ->
    fun(Variables, #{uri := Uri} = Context) -> Module:read_resource(Uri, Variables, Context) end.

with_handler(Source, none) -> Source;
with_handler(#{handler := _} = Source, _) -> Source;
with_handler(Source, Handler) when is_map(Source) -> Source#{handler => Handler};
with_handler(Source, _) -> Source.
