-module(spec_client_declarations_SUITE).
-moduledoc """
What a client declares of itself, in `initialize` and, in 2026-07-28, in the `_meta` of each
request, has the types of its revision's official schema. Which members there are is read from
`schema.json` (`test/data/mcp`), and nothing of it from the code that is judged.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([whole_declarations_are_taken/1, members_of_another_type_are_refused_by_name/1,
         required_members_are_asked_for_by_name/1, unknown_members_are_let_through/1,
         declarations_themselves_are_required/1, refusals_say_what_came/1,
         wrong_ones_are_never_learnt/1, sessions_begin_after_a_refusal/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [connect/1, call/4, message/3, send/4, response/1, close/1]).
-import(erlmcp_test_property, [holds/2]).

-define(CASES, 500).
-define(META, "io.modelcontextprotocol/").
-define(REVISIONS, [~"2024-11-05", ~"2025-03-26", ~"2025-06-18", ~"2025-11-25", ~"2026-07-28"]).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [whole_declarations_are_taken, members_of_another_type_are_refused_by_name,
     required_members_are_asked_for_by_name, unknown_members_are_let_through,
     declarations_themselves_are_required, refusals_say_what_came, wrong_ones_are_never_learnt,
     sessions_begin_after_a_refusal].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{server, erlmcp_test_http:start(#{listen => [{http, #{}}, {tcp, #{}}]})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

%% Every member that the schema has, at once.
whole_declarations_are_taken(_) ->
    [{Revision, taken} = {Revision, handled(Revision, whole(Revision))} || Revision <- ?REVISIONS],
    %% The walk through the schemas has missed none.
    [9, 9, 11, 32, 25] = [length(places(Revision)) || Revision <- ?REVISIONS].

members_of_another_type_are_refused_by_name(_) ->
    holds(?FORALL({Revision, {Path, Schema}}, place(),
                  ?FORALL(Wrong, of_another_type(Schema),
                          handled(Revision, put_in(Path, Wrong, whole(Revision)))
                              =:= {refused, field(Revision, Path), ~"expected"})),
          ?CASES).

%% An Icon without `src`, an Implementation without `version`.
required_members_are_asked_for_by_name(_) ->
    Members = [{Revision, Path ++ [Name]}
               || Revision <- ?REVISIONS,
                  {Path, #{~"required" := Names}} <- places(Revision), Name <- Names],
    [{Revision, Path, Refused} = {Revision, Path, handled(Revision, without(Path, whole(Revision)))}
     || {Revision, Path} <- Members, Refused <- [{refused, field(Revision, Path), ~"missing"}]],
    %% A name and a version of each, and the `src` of an icon of the newest two.
    12 = length(Members).

unknown_members_are_let_through(_) ->
    holds(?FORALL({{Revision, {Path, _}}, Name, Value},
                  {?SUCHTHAT({_, {_, Schema}}, place(), is_open(Schema)),
                   erlmcp_test_json:text(), erlmcp_test_json:json()},
                  handled(Revision, put_in(Path ++ [<<"x-", Name/binary>>], Value,
                                           whole(Revision)))
                      =:= taken),
          ?CASES).

is_open(#{~"additionalProperties" := #{}}) -> false;
is_open(Schema) -> maps:get(~"type", Schema) =:= ~"object".

%% In 2026-07-28 the identity is none of the required fields of `_meta`.
declarations_themselves_are_required(_) ->
    [{Revision, Name, {refused, Name, ~"missing"}} =
         {Revision, Name, handled(Revision, maps:remove(Name, whole(Revision)))}
     || Revision <- ?REVISIONS -- [~"2026-07-28"],
        Name <- [~"clientInfo", ~"capabilities"]],
    taken = handled(~"2026-07-28", maps:remove(<<?META"clientInfo">>, whole(~"2026-07-28"))).

%% On HTTP, in the words that a developer reads.
refusals_say_what_came(Config) ->
    [{Told, {400, -32602, Told}} = {Told, refused(call(server(Config), ~"tools/list", #{},
                                                       #{meta => #{<<?META, Name/binary>> => Is}}))}
     || {Name, Is, Told} <- [
         {~"clientInfo", #{name => 5, version => ~"1"},
          ~"_meta.io.modelcontextprotocol/clientInfo.name: expected a string, got the number 5"},
         {~"clientInfo", #{name => ~"me"},
          ~"_meta.io.modelcontextprotocol/clientInfo.version: missing"},
         {~"clientInfo", #{name => ~"me", version => ~"1",
                           icons => [#{src => ~"https://a.example/i.png"}, #{}]},
          ~"_meta.io.modelcontextprotocol/clientInfo.icons[1].src: missing"},
         {~"clientCapabilities", #{roots => ~""},
          <<"_meta.io.modelcontextprotocol/clientCapabilities.roots: expected an object, "
            "got the string \"\"">>},
         {~"clientCapabilities", #{extensions => #{~"a/b" => true}},
          <<"_meta.io.modelcontextprotocol/clientCapabilities.extensions.a/b: "
            "expected an object, got true">>}]],
    [{Told, {400, -32602, Told}} = {Told, refused(initialize(Config, Declared))}
     || {Declared, Told} <- [
         {#{}, ~"clientInfo: missing"},
         {#{clientInfo => #{name => ~"me", version => 1.5}},
          ~"clientInfo.version: expected a string, got the number 1.5"},
         {#{clientInfo => #{name => ~"me", version => ~"1", icons => #{}}},
          ~"clientInfo.icons: expected an array, got an empty object"},
         {#{clientInfo => #{name => ~"me", version => ~"1"}}, ~"capabilities: missing"},
         {#{clientInfo => #{name => ~"me", version => ~"1"},
            capabilities => #{roots => #{listChanged => ~"yes"}}},
          ~B'capabilities.roots.listChanged: expected a boolean, got the string "yes"'}]].

initialize(Config, Declared) ->
    call(server(Config), ~"initialize", Declared#{protocolVersion => ~"2025-11-25"},
         #{session => {~"", ~"2025-11-25"},
           headers => #{~"mcp-session-id" => none, ~"mcp-protocol-version" => none}}).

%% A connection keeps what its client says in each request; what is wrong is refused each time.
wrong_ones_are_never_learnt(Config) ->
    Wrong = #{meta => #{<<?META"clientCapabilities">> => #{roots => ~""}}},
    [begin
         Socket = connect(server(Config)),
         Statuses = [begin
                         {Headers, Body} = message(~"tools/list", #{}, Options),
                         ok = send(Socket, ~"POST", Headers, Body),
                         #{status := Status} = response(Socket),
                         Status
                     end || Options <- Sent],
         Expected = Statuses,
         ok = close(Socket)
     end || {Sent, Expected} <- [{[Wrong || _ <- lists:seq(1, 6)], [400 || _ <- lists:seq(1, 6)]},
                                 {[#{}, #{}, #{}, #{}, Wrong, #{}, Wrong],
                                  [200, 200, 200, 200, 400, 200, 400]}]],
    #{meta := Meta} = Wrong,
    Line = erlmcp_test_line:connect(maps:get(pid, server(Config))),
    [{Id, Expected} = {Id, maps:is_key(~"result", erlmcp_test_line:ask_stateless(
                               Line, Id, ~"tools/list", Params))}
     || {Id, {Params, Expected}} <- lists:enumerate(
            [{#{~"_meta" => Meta}, false}, {#{~"_meta" => Meta}, false}, {#{}, true}, {#{}, true},
             {#{}, true}, {#{}, true}, {#{~"_meta" => Meta}, false}, {#{}, true}])].

sessions_begin_after_a_refusal(Config) ->
    #{status := 400, headers := Headers} = initialize(Config, #{}),
    false = is_map_key(~"mcp-session-id", Headers),
    {_, _} = erlmcp_test_http:initialize(server(Config), ~"2025-11-25").

refused(#{status := Status, messages := [#{~"error" := #{~"code" := Code, ~"message" := Said}}]}) ->
    {Status, Code, Said}.

%% What the engine answers to a request with these declarations.

handled(Revision, Declared) ->
    Request = #{~"jsonrpc" => ~"2.0", ~"id" => 1, ~"method" => method(Revision),
                ~"params" => params(Revision, Declared)},
    RequestContext = #{headers => none, principal => anonymous},
    {[{answer, _, _, {reply, _, Bytes}}], _} =
        erlmcp_engine:handle(Request, RequestContext, erlmcp_test_json:catalog(), none),
    case json:decode(iolist_to_binary(Bytes)) of
        #{~"result" := _} ->
            taken;
        #{~"error" := #{~"code" := -32602, ~"message" := Message}} ->
            [Field, Told] = string:split(Message, ~": ", trailing),
            [First | _] = string:split(Told, ~" "),
            {refused, Field, First}
    end.

method(~"2026-07-28") -> ~"tools/list";
method(_) -> ~"initialize".

params(~"2026-07-28" = Revision, Declared) ->
    #{~"_meta" => Declared#{<<?META"protocolVersion">> => Revision}};
params(Revision, Declared) ->
    Declared#{~"protocolVersion" => Revision}.

field(~"2026-07-28", Path) -> iolist_to_binary([~"_meta.", path(Path)]);
field(_, Path) -> iolist_to_binary(path(Path)).

path([First | Path]) -> [First | [step(Step) || Step <- Path]].

step(Index) when is_integer(Index) -> [$[, integer_to_binary(Index), $]];
step(Name) -> [$., Name].

%% The schema: its places, and a value with all of them.

place() ->
    ?LET(Revision, elements(?REVISIONS), {exactly(Revision), elements(places(Revision))}).

declarations(~"2026-07-28") ->
    [{<<?META"clientInfo">>, ~"Implementation"},
     {<<?META"clientCapabilities">>, ~"ClientCapabilities"}];
declarations(_) ->
    [{~"clientInfo", ~"Implementation"}, {~"capabilities", ~"ClientCapabilities"}].

whole(Revision) ->
    #{Name => value(resolved(Definition, Revision), Revision)
      || {Name, Definition} <- declarations(Revision)}.

places(Revision) ->
    lists:append([places([Name], resolved(Definition, Revision), Revision)
                  || {Name, Definition} <- declarations(Revision)]).

places(Path, Schema, Revision) ->
    [{Path, Schema}
     | lists:append([places(Path ++ [Step], Inner, Revision)
                     || {Step, Inner} <- inside(Schema, Revision)])].

inside(#{~"items" := Items}, Revision) ->
    [{0, resolved(Items, Revision)}];
inside(#{~"additionalProperties" := #{} = Each}, Revision) ->
    %% Of what is any JSON no part has a type.
    case resolved(Each, Revision) of
        #{~"type" := ~"object"} = Schema -> [{~"x", Schema}];
        #{} -> []
    end;
inside(Schema, Revision) ->
    [{Name, resolved(Inner, Revision)}
     || Name := Inner <- maps:get(~"properties", Schema, #{})].

value(Schema, Revision) ->
    case {Schema, inside(Schema, Revision)} of
        {#{~"enum" := [First | _]}, _} -> First;
        {#{~"type" := ~"string"}, _} -> ~"https://a.example";
        {#{~"type" := ~"boolean"}, _} -> true;
        {#{~"type" := ~"array"}, [{0, Item}]} -> [value(Item, Revision)];
        {#{~"type" := ~"object"}, Members} ->
            #{Name => value(Inner, Revision) || {Name, Inner} <- Members}
    end.

resolved(#{~"$ref" := Reference}, Revision) ->
    resolved(lists:last(binary:split(Reference, ~"/", [global])), Revision);
resolved(Name, Revision) when is_binary(Name) ->
    maps:get(Name, erlmcp_test_schema:definitions(Revision));
resolved(Schema, _) ->
    Schema.

of_another_type(#{~"enum" := Values}) ->
    ?SUCHTHAT(Value, erlmcp_test_json:json(), not lists:member(Value, Values));
of_another_type(#{~"type" := Type}) ->
    ?SUCHTHAT(Value, erlmcp_test_json:json(), type(Value) =/= Type).

type(Value) when is_binary(Value) -> ~"string";
type(Value) when is_boolean(Value) -> ~"boolean";
type(Value) when is_list(Value) -> ~"array";
type(Value) when is_map(Value) -> ~"object";
type(_) -> ~"another".

put_in([], Value, _) ->
    Value;
put_in([0 | Path], Value, [Item | Items]) ->
    [put_in(Path, Value, Item) | Items];
put_in([Name | Path], Value, Object) ->
    Object#{Name => put_in(Path, Value, maps:get(Name, Object, none))}.

without([Name], Object) ->
    maps:remove(Name, Object);
without([0 | Path], [Item | Items]) ->
    [without(Path, Item) | Items];
without([Name | Path], Object) ->
    Object#{Name := without(Path, map_get(Name, Object))}.
