-module(public_face_SUITE).
-moduledoc """
The public face of erlmcp: the modules that stand in `src` itself, read from the compiled modules.
What they promise names types of public modules and of OTP only, every function, type and callback
has a `-doc`, and each other module says that it is internal.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([each_module_is_public_or_internal/1, the_map_has_each_public_module/1,
         public_types_are_public/1, public_docs_name_public_modules/1,
         pages_name_public_modules/1, examples_name_public_modules/1,
         each_function_is_documented/1, types_have_what_the_code_takes/1,
         a_handler_is_given_what_the_type_says/1]).
-export([a_private_type_is_found/1, a_private_module_in_a_doc_is_found/1]).

%% Pages about erlmcp itself.
-define(OF_MAINTAINERS, ["architecture.md", "benchmarks.md", "capacity.md", "glossary.md",
                         "interop.md", "performance.md", "scenarios.md", "upgrading.md"]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [each_module_is_public_or_internal, the_map_has_each_public_module, public_types_are_public,
     public_docs_name_public_modules, pages_name_public_modules, examples_name_public_modules,
     each_function_is_documented, types_have_what_the_code_takes,
     a_handler_is_given_what_the_type_says, a_private_type_is_found,
     a_private_module_in_a_doc_is_found].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

each_module_is_public_or_internal(_) ->
    Public = public(),
    %% A face that is empty would make the other cases say nothing.
    true = lists:member(erlmcp, Public),
    [] = [Module || Module <- modules(),
                    says_internal(Module) =:= lists:member(Module, Public)].

the_map_has_each_public_module(_) ->
    {ok, Map} = file:read_file(filename:join(erlmcp_test_page:root(), "docs/architecture.md")),
    [_, Rooms] = binary:split(Map, ~"\n## Rooms of `apps/erlmcp/src`\n"),
    [Public | _] = binary:split(Rooms, ~"\n```\n"),
    Names = [<<"`", (atom_to_binary(Module))/binary, "`">> || Module <- public()],
    [] = [Name || Name <- Names, binary:match(Public, Name) =:= nomatch].

public_types_are_public(_) ->
    Private = private(),
    [] = [{Module, Form, Type} || Module <- public(),
                                  {Form, Type} <- foreign(forms(Module), Private)].

public_docs_name_public_modules(_) ->
    Private = private(),
    [] = [{Module, Entry, Named} || Module <- public(),
                                    {Entry, Text} <- docs(Module),
                                    Named <- named(Text, Private)].

pages_name_public_modules(_) ->
    Root = erlmcp_test_page:root(),
    Pages = ["README.md" | [filename:join("docs", Page)
                            || Page <- filelib:wildcard("*.md", filename:join(Root, "docs")),
                               not lists:member(Page, ?OF_MAINTAINERS)]],
    Private = private(),
    true = length(Pages) > 10,
    [] = [{Page, Named} || Page <- Pages, {ok, Text} <- [file:read_file(filename:join(Root, Page))],
                           Named <- named(Text, Private)].

%% In calls and in types.
examples_name_public_modules(_) ->
    Private = private(),
    Files = filelib:wildcard("examples/*/src/**/*.erl", erlmcp_test_page:root()),
    true = length(Files) > 5,
    [] = [{File, Module} || File <- Files,
                            {ok, Text} <- [file:read_file(filename:join(erlmcp_test_page:root(),
                                                                        File))],
                            Module <- named(Text, Private)].

each_function_is_documented(_) ->
    [] = [{Module, Kind, Name, Arity}
          || Module <- public(),
             {{Kind, Name, Arity}, _, _, none, _} <- entries(Module),
             not is_callback_of_a_behaviour(Module, Kind, Name, Arity)],
    [] = [{Module, Function}
          || Module <- public(), Function <- Module:module_info(exports),
             not lists:member(Function, [{module_info, 0}, {module_info, 1}, {behaviour_info, 1}]),
             not lists:member(Function, specified(Module)),
             not is_hidden(Module, Function)].

%% Definitions, limits and the like are data of private modules, and types of the face.
types_have_what_the_code_takes(_) ->
    [Fields = lists:sort(keys(erlmcp, Kind))
     || Kind <- [tool, resource, resource_template, prompt],
        Fields <- [lists:sort([Name || {Name, _, _, _} <- erlmcp_definition:fields(Kind)])]],
    Limits = lists:sort([Name || {Name, _, _} <- erlmcp_server_options:limits()]),
    Limits = lists:sort(keys(erlmcp, limits)),
    ClientLimits = lists:sort([Name || {Name, _, _} <- erlmcp_client_options:limits()]),
    [] = ClientLimits -- atoms(type(erlmcp_client, options)),
    [] = [Name || {Name, _, _, _} <- erlmcp_event:table()] -- atoms(type(erlmcp, event)),
    [] = [Zone || {Zone, _} <- erlmcp_error_budget_window:zones()] -- atoms(type(erlmcp, zone)),
    [] = erlmcp_envelope:names() -- atoms(type(erlmcp, options)).

%% Every key of the context is in the type, and each key of the type in its -doc.
a_handler_is_given_what_the_type_says(_) ->
    Keys = keys(erlmcp, context),
    [Doc] = [Text || {{type, context, 0}, Text} <- docs(erlmcp)],
    [] = [Key || Key <- Keys,
                 binary:match(Doc, <<$`, (atom_to_binary(Key))/binary, $`>>) =:= nomatch],
    Test = self(),
    Given = fun(_, Context) -> Test ! {given, Context}, ~"" end,
    {ok, Server} = erlmcp:start_server(#{
        name => ~"face", version => ~"1", workers => #{one => #{size => 1, start => fun worker/0}},
        tools => [#{name => ~"tool", handler => Given, workers => one}],
        resources => [#{uri => ~"data://it", name => ~"it", handler => Given}]}),
    [begin
         {ok, Client} = erlmcp_client:start_link({server, Server, #{era => Era}}),
         {ok, _} = erlmcp_client:call_tool(Client, ~"tool", #{}, #{progress => fun(_) -> ok end}),
         {ok, _} = erlmcp_client:read_resource(Client, ~"data://it"),
         ok = erlmcp_client:stop(Client)
     end || Era <- [stateless, session]],
    [receive
         {given, Context} -> [] = maps:keys(Context) -- Keys
     after 5000 ->
         ct:fail(no_context)
     end || _ <- lists:seq(1, 4)],
    ok = erlmcp:stop_server(Server).

worker() ->
    {ok, one}.

a_private_type_is_found(_) ->
    Found = fun(Line) ->
        {ok, Tokens, _} = erl_scan:string(Line),
        {ok, Form} = erl_parse:parse_form(Tokens),
        [Type || {_, Type} <- foreign([Form], [hidden])]
    end,
    [{hidden, t, 0}] = Found("-spec f(term()) -> {ok, [hidden:t()]}."),
    [{hidden, t, 1}] = Found("-callback f(#{key => hidden:t(integer())}) -> ok."),
    [{hidden, t, 0}] = Found("-type t() :: fun((hidden:t()) -> term())."),
    %% What an opaque type is made of nobody is shown.
    [] = Found("-opaque t() :: hidden:t()."),
    [] = Found("-spec f(shown:t(), t()) -> file:name_all().").

a_private_module_in_a_doc_is_found(_) ->
    [hidden] = named(~"see `m:hidden`", [hidden]),
    [hidden] = named(~"see `t:hidden:t/0`, and `hidden:f/1`", [hidden]),
    [] = named(~"is hidden, `hidden_more:f/1`, `shown:hidden/1`", [hidden]).

%% Modules.

modules() ->
    _ = application:load(erlmcp),
    {ok, Modules} = application:get_key(erlmcp, modules),
    Modules.

public() ->
    [Module || Module <- modules(), folder(Module) =:= "src"].

private() ->
    modules() -- public().

folder(Module) ->
    {attribute, _, file, {Source, _}} = lists:keyfind(file, 3, forms(Module)),
    filename:basename(filename:dirname(Source)).

forms(Module) ->
    {ok, {_, [{abstract_code, {raw_abstract_v1, Forms}}]}} =
        beam_lib:chunks(code:which(Module), [abstract_code]),
    Forms.

%% Types.

foreign(Forms, Private) ->
    [{name(Form), Type} || {attribute, _, Kind, _} = Form <- Forms,
                           lists:member(Kind, [spec, callback, type]),
                           {Module, _, _} = Type <- lists:usort(types(Form)),
                           lists:member(Module, Private)].

name({attribute, _, type, {Name, _, Variables}}) -> {type, Name, length(Variables)};
name({attribute, _, Kind, {{Name, Arity}, _}}) -> {Kind, Name, Arity}.

types({remote_type, _, [{atom, _, Module}, {atom, _, Name}, Arguments]}) ->
    [{Module, Name, length(Arguments)} | types(Arguments)];
types(Tuple) when is_tuple(Tuple) ->
    types(tuple_to_list(Tuple));
types([Head | Tail]) ->
    types(Head) ++ types(Tail);
types(_) ->
    [].

type(Module, Type) ->
    [Form] = [Form || {attribute, _, type, {Name, Form, []}} <- forms(Module), Name =:= Type],
    Form.

keys(Module, Type) ->
    {type, _, map, Fields} = type(Module, Type),
    [Key || {type, _, _, [{atom, _, Key}, _]} <- Fields].

atoms({atom, _, Atom}) -> [Atom];
atoms(Tuple) when is_tuple(Tuple) -> atoms(tuple_to_list(Tuple));
atoms([Head | Tail]) -> atoms(Head) ++ atoms(Tail);
atoms(_) -> [].

%% Docs.

says_internal(Module) ->
    {ok, {docs_v1, _, _, _, #{~"en" := Text}, _, _}} = code:get_doc(Module),
    re:run(Text, ~"(^|\\s)Internal\\.\\s*$", [{capture, none}, dollar_endonly]) =:= match.

docs(Module) ->
    {ok, {docs_v1, _, _, _, #{~"en" := Text}, _, _}} = code:get_doc(Module),
    [{moduledoc, Text} | [{Entry, Doc} || {Entry, _, _, #{~"en" := Doc}, _} <- entries(Module)]].

entries(Module) ->
    {ok, {docs_v1, _, _, _, _, _, Entries}} = code:get_doc(Module),
    Entries.

is_hidden(Module, {Name, Arity}) ->
    [hidden] =:= [Doc || {{function, Of, In}, _, _, Doc, _} <- entries(Module),
                         Of =:= Name, In =:= Arity].

specified(Module) ->
    [Function || {attribute, _, spec, {Function, _}} <- forms(Module)].

%% Its behaviour's `-doc` is its own.
is_callback_of_a_behaviour(Module, function, Name, Arity) ->
    lists:member({Name, Arity},
                 lists:append([Behaviour:behaviour_info(callbacks)
                               || {attribute, _, behaviour, Behaviour} <- forms(Module)]));
is_callback_of_a_behaviour(_, _, _, _) ->
    false.

named(Text, Modules) ->
    {match, Found} = re:run([Text, " `m:erlmcp`"], ~"(?<![\\w:])(?:[mt]:)?([a-z]\\w*)(?=[:`])",
                            [global, {capture, [1], binary}]),
    Names = [Name || [Name] <- Found],
    [Module || Module <- Modules, lists:member(atom_to_binary(Module), Names)].
