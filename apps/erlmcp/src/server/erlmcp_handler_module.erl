-module(erlmcp_handler_module).
-moduledoc """
Makes the options of a server from the callbacks of a module with `-behaviour(erlmcp_server)`.

Internal.
""".

-export([options/1]).

-doc """
Returns the options that `server/0` of a handler module returns, with the definitions and skills of
its other callbacks, such as `tools/0`. Crashes if one of the callbacks crashes. If a definition of
these callbacks has no handler, it gets one that calls the callback of its kind, such as
`call_tool/3`. If the module does not export that callback, the definition stays as it is. If the
result of a callback such as `tools/0`, or the option of the same name, is not a list, that term
becomes the option. The check of the options refuses it then. The error means that `server/0`
returns no map.
""".
-spec options(module()) ->
    {ok, erlmcp:options()} | {error, {bad_option, handler, Expected :: binary()}}.
options(Module) ->
    case Module:server() of
        #{} = Options ->
            {ok, lists:foldl(fun(Kind, Known) -> with_definitions(Kind, Module, Known) end,
                             Options, [{skills, none} | handlers(Module)])};
        _ ->
            {error, {bad_option, handler, ~"a module whose server/0 returns a map"}}
    end.

with_definitions({Key, Handler}, Module, Known) ->
    case erlang:function_exported(Module, Key, 0) of
        true -> Known#{Key => joined(maps:get(Key, Known, []), Module:Key(), Handler)};
        false -> Known
    end.

joined(Own, Sources, Handler) ->
    case [Other || Other <- [Own, Sources], not erlmcp_user_term:is_proper_list(Other)] of
        [] -> Own ++ [with_handler(Source, Handler) || Source <- Sources];
        [Other | _] -> Other
    end.

handlers(Module) ->
    Reader = exported(Module, read_resource,
        fun(Variables, #{uri := Uri} = Context) ->
            Module:read_resource(Uri, Variables, Context)
        end),
    [{tools, exported(Module, call_tool, fun(Arguments, #{name := Name} = Context) ->
        Module:call_tool(Name, Arguments, Context)
     end)},
     {resources, Reader},
     {resource_templates, Reader},
     {prompts, exported(Module, get_prompt, fun(Arguments, #{name := Name} = Context) ->
        Module:get_prompt(Name, Arguments, Context)
     end)}].

%% If the module does not export the callback, the definition stays without a handler and is refused
%% now. It does not crash later, when it is called.
exported(Module, Callback, Handler) ->
    case erlang:function_exported(Module, Callback, 3) of
        true -> Handler;
        false -> none
    end.

with_handler(Source, none) -> Source;
with_handler(#{handler := _} = Source, _) -> Source;
with_handler(Source, Handler) when is_map(Source) -> Source#{handler => Handler};
with_handler(Source, _) -> Source.
