-module(catalog_properties_SUITE).
-moduledoc """
The compiled catalog as a function, by properties: what definitions are taken, and what the lists
have of them, in every revision and for every principal.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([definitions_are_checked_without_a_crash/1, lists_keep_their_order/1,
         pages_miss_nothing_that_stays/1, pages_go_on_at_another_server/1,
         strange_cursors_are_refused/1, changes_have_their_order/1, what_may_be_a_view/1]).

-import(erlmcp_test_property, [holds/2]).

-define(CASES, 1000).
-define(REVISIONS, ['2024-11-05', '2025-03-26', '2025-06-18', '2025-11-25', '2026-07-28']).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [definitions_are_checked_without_a_crash, lists_keep_their_order,
     pages_miss_nothing_that_stays, pages_go_on_at_another_server, strange_cursors_are_refused,
     changes_have_their_order,
     what_may_be_a_view].

holds(Property) ->
    holds(Property, ?CASES).

%% Definitions that came since a position are in the order in which they came, whatever their keys.
changes_have_their_order(_) ->
    Add = fun(Name, Before) ->
        {ok, Tool} = erlmcp_definition:compile(
            tool, #{name => Name, handler => fun(_, _) -> ~"" end}, erlmcp_metaschemas:compiled()),
        {ok, After} = erlmcp_catalog_entries:add(tool, Tool, Before),
        After
    end,
    Many = [integer_to_binary(N) || N <- lists:seq(1, 1_000)],
    Entries = lists:foldl(Add, erlmcp_catalog_entries:new(), Many),
    Names = [~"z", ~"b", ~"y", ~"a", ~"x"],
    Next = erlmcp_catalog_entries:next(Entries),
    Later = lists:foldl(Add, Entries, Names),
    {ok, Changes} = erlmcp_catalog_entries:since(Next, Later),
    Names = [Key || {tool, Key, #{}} <- Changes].

what_may_be_a_view(_) ->
    [{Uri, May} = {Uri, erlmcp_ui:may_be_view(Uri)}
     || {Uri, May} <- [{~"ui://a", true}, {~"ui://a/{b}", true}, {~"ui:{a}", true}, {~"u{a}", true},
                       {~"{a}", true}, {~"i{a}", false}, {~"ui:/a", false}, {~"uj{a}", false},
                       {~"https://a", false}]].

decoded(Bytes) -> json:decode(iolist_to_binary(Bytes)).

%% "A field that is unknown, missing or of the wrong type is refused by name", whatever is in it.
definitions_are_checked_without_a_crash(_) ->
    holds(?FORALL({Kind, Key}, {kind(), range(1, 5)},
                  ?FORALL({Source, Changes}, {source(Kind, Key), resize(2, list(change(Kind)))},
                          begin
                              Changed = maps:merge(Source, maps:from_list(Changes)),
                              Fields = field_names(Kind),
                              case erlmcp_definition:compile(Kind, Changed,
                                                             erlmcp_metaschemas:compiled()) of
                                  {ok, #{key := _, wire := _, handler := _}} ->
                                      maps:keys(Changed) -- Fields =:= [];
                                  {error, {bad_definition, Kind, _, Field, Expected}} ->
                                      is_map_key(Field, Changed) andalso is_binary(Expected)
                              end
                          end)), 2 * ?CASES).

change(Kind) ->
    ?LET(Field, oneof([elements(field_names(Kind)), elements([unknown, nname, ~"name", 1])]),
         {Field, oneof([undefined, self(), -1, 1.5, ~"", <<255>>, [], [1], {a, b}, #{{a, b} => 1},
                        #{a => self()}, #{a => <<255>>}, [#{a => fun() -> ok end}], [#{} | x],
                        fun() -> ok end, private, ~"{unclosed", ~"text", any()])}).

field_names(Kind) ->
    [Field || {Field, _, _, _} <- erlmcp_definition:fields(Kind)].

kind() ->
    elements([tool, resource, resource_template, prompt]).

key(tool, N) -> <<"tool", (integer_to_binary(N))/binary>>;
key(prompt, N) -> <<"prompt", (integer_to_binary(N))/binary>>;
key(resource, N) -> <<"r://", (integer_to_binary(N))/binary>>;
key(resource_template, N) -> <<"t://", (integer_to_binary(N))/binary, "/{id}">>.

%% A valid definition, with some of the fields that it may have.
source(Kind, N) ->
    %% A resource has `ui` where its URI has that scheme: mcp_apps_SUITE.
    Fields = [{Field, Type} || {Field, _, Type, optional} <- erlmcp_definition:fields(Kind),
                               Type =/= ui orelse Kind =:= tool],
    Optional = [oneof([[], ?LET(Value, value(Field, Type), exactly([{Field, Value}]))])
                || {Field, Type} <- Fields],
    Key = key(Kind, N),
    Required = case Kind of
        resource -> #{uri => Key, name => ~"n"};
        resource_template -> #{uri_template => Key, name => ~"n"};
        _ -> #{name => Key}
    end,
    ?LET(Given, Optional,
         exactly(declared(maps:merge(maps:from_list(lists:append(Given)),
                                       Required#{handler => fun(_, _) -> ~"" end})))).

%% What only some may see is in no shared cache; what is said of tasks is said of a tool that has
%% them; what waits for others is not quick; only arguments that there are have values.
declared(#{complete := #{~"id" := _}} = Source) when not is_map_key(uri_template, Source) ->
    consistent(Source#{arguments => [#{name => ~"id"} | maps:get(arguments, Source, [])]});
declared(Source) ->
    consistent(Source).

consistent(#{quick := true} = Source) when
    is_map_key(workers, Source); is_map_key(breaker, Source); is_map_key(cache, Source);
    is_map_key(task, Source)
->
    consistent(maps:without([workers, breaker, cache, task], Source));
consistent(#{visible := _, cache_scope := public} = Source) ->
    consistent(Source#{cache_scope := private});
consistent(#{task := _, task_starts := on_return} = Source) ->
    maps:remove(repeatable, Source);
consistent(#{task := _} = Source) ->
    Source;
consistent(Source) ->
    maps:without([task_starts, task_timeout_ms, repeatable], Source).

value(input_schema, _) ->
    oneof([exactly(#{}), exactly(#{type => object}), exactly(#{~"type" => ~"object"})]);
value(output_schema, _) ->
    oneof([exactly(#{type => object}), exactly(#{type => array}), exactly(#{'$comment' => ~"x"})]);
value(arguments, _) ->
    list(?LET(Name, non_empty_text(),
              exactly(#{name => Name, title => ~"t", description => ~"d", required => true})));
value(_, name) -> non_empty_text();
value(_, completions) ->
    oneof([exactly(#{}), exactly(#{~"id" => fun(_, _) -> [] end}),
           ?LET(Texts, list(erlmcp_test_json:text()), exactly(#{~"id" => Texts}))]);
value(_, text) -> erlmcp_test_json:text();
value(_, object) -> erlmcp_test_json:object();
value(_, objects) -> resize(3, list(erlmcp_test_json:object()));
value(_, milliseconds) -> non_neg_integer();
value(_, wait) -> range(0, 16#FFFFFFFF);
value(_, size) -> non_neg_integer();
value(_, flag) -> boolean();
value(_, scope) -> oneof([public, private]);
value(_, middleware) ->
    list(exactly(fun(Arguments, Context, Next) -> Next(Arguments, Context) end));
value(_, count) -> range(1, 10);
value(_, rates) -> elements([#{}, #{second => 1, day => 100}]);
value(_, scopes) -> elements([[], [~"read"], [~"read", ~"write"]]);
value(_, breaker) -> elements([billing, #{}]);
value(_, label) -> elements([images, sounds]);
value(_, cache) -> elements([#{ttl_ms => 1}, #{ttl_ms => 1000, scope => public}]);
value(_, task_support) -> oneof([forbidden, optional, required]);
value(_, task_start) -> oneof([at_once, on_return]);
value(_, visibility) -> elements([fun is_ada/1, fun is_not_ada/1, fun is_nobody/1]);
value(_, ui) -> exactly(#{}).

is_ada(Principal) -> Principal =:= ada.
is_not_ada(Principal) -> Principal =/= ada.
is_nobody(_) -> false.

sees(Principal, #{visible := Visible}) -> Visible(Principal);
sees(_, _) -> true.

non_empty_text() ->
    ?LET(Text, erlmcp_test_json:text(), <<"x", Text/binary>>).

%% A list has the order in which its definitions were added, through every change, in pages as in
%% one; each revision is shown the fields that its schema has, and of them all that were given; and
%% each principal the definitions that are visible to it.
lists_keep_their_order(_) ->
    holds(?FORALL({Commands, Size}, {resize(15, list(command())), range(1, 7)},
                  begin
                      {Catalog, Model} = changed(Commands, empty(Size)),
                      lists:all(fun({Kind, Revision, Principal}) ->
                                    is_listed(Kind, Revision, Principal, Size, Catalog, Model)
                                end, [{Kind, Revision, Principal}
                                      || {Kind, _, _} <- lists(), Revision <- ?REVISIONS,
                                         Principal <- [anonymous, ada]])
                          andalso lists:all(fun({{_, _, Source} = Entry, Principal}) ->
                                                sees(Principal, Source)
                                                    =:= is_found(Entry, Principal, Catalog)
                                            end, [{Entry, Principal}
                                                  || Entry <- Model,
                                                     Principal <- [anonymous, ada]])
                  end)).

%% What was there all the time is on exactly one page, in its order, whatever came and went while
%% the client was paging; unless the list became one that is not the same for all, or ceased to be:
%% its cursors are refused then, since all pages of a walk have one scope.
pages_miss_nothing_that_stays(_) ->
    holds(?FORALL({Kind, Before, Between, Size},
                  {kind(), resize(12, list(command())), resize(6, list(command())), range(1, 3)},
                  begin
                      {Kind, Method, Member} = lists:keyfind(Kind, 1, lists()),
                      {First, Model} = changed(Before, empty(Size)),
                      {Second, Changed} = changed(Between, {First, Model}),
                      Page = decoded(erlmcp_catalog:first_page(Method, '2026-07-28', ada, First)),
                      Stayed = [shown(Kind, '2026-07-28', Source)
                                || {K, _, Source} = Entry <- Model, K =:= Kind,
                                   lists:member(Entry, Changed), sees(ada, Source)],
                      case {is_shared(Kind, Model) =:= is_shared(Kind, Changed), Page} of
                          {false, #{~"nextCursor" := Cursor}} ->
                              error =:= erlmcp_catalog:page(Method, Cursor, '2026-07-28', ada,
                                                            Second);
                          _ ->
                              Seen = maps:get(Member, Page)
                                  ++ following(Page, Method, Member, '2026-07-28', ada, Second),
                              Stayed =:= [Item || Item <- Seen, lists:member(Item, Stayed)]
                      end
                  end)).

%% Two servers with the same keys and definitions, of which the other one has had more changes: each
%% page is of the server that has not given the cursor.
pages_go_on_at_another_server(_) ->
    Passing = #{name => ~"passing", handler => fun(_, _) -> ~"" end},
    holds(?FORALL({Kind, Commands, Detours, Size},
                  {kind(), resize(15, list(command())), vector(24, range(0, 3)), range(1, 3)},
                  begin
                      {Kind, Method, Member} = lists:keyfind(Kind, 1, lists()),
                      {One, Model} = changed(Commands, empty(Size)),
                      Detour = [{add, tool, Passing, ~"passing"}, {remove, tool, ~"passing"}],
                      Longer = lists:append([lists:append(lists:duplicate(Times, Detour))
                                                 ++ [{add, K, Source, Key}]
                                             || {Times, {K, Key, Source}}
                                                    <- lists:zip(Detours, Model, trim)]),
                      {Other, Model} = changed(Longer, empty(Size, <<1:64>>)),
                      Expected = [shown(Kind, '2026-07-28', Source)
                                  || {K, _, Source} <- Model, K =:= Kind, sees(ada, Source)],
                      lists:all(fun({First, Next}) ->
                                    Page = decoded(erlmcp_catalog:first_page(
                                        Method, '2026-07-28', ada, First)),
                                    Expected =:= map_get(Member, Page)
                                        ++ in_turn(Page, Method, Member, [Next, First])
                                end, [{One, Other}, {Other, One}])
                  end)).

in_turn(#{~"nextCursor" := Cursor}, Method, Member, [Catalog, Other]) ->
    {ok, Bytes} = erlmcp_catalog:page(Method, Cursor, '2026-07-28', ada, Catalog),
    #{Member := Items} = Page = decoded(Bytes),
    Items ++ in_turn(Page, Method, Member, [Other, Catalog]);
in_turn(#{}, _, _, _) ->
    [].

is_shared(Kind, Model) ->
    [] =:= [Source || {K, _, #{visible := _} = Source} <- Model, K =:= Kind].

%% Pagination: "Invalid cursors SHOULD result in an error": those that this server did not give for
%% this list.
strange_cursors_are_refused(_) ->
    {Catalog, _} = changed([{add, Kind, #{name => Name, handler => fun(_, _) -> ~"" end}, Name}
                            || {Kind, Name} <- [{tool, ~"a"}, {tool, ~"b"}, {prompt, ~"c"},
                                                {prompt, ~"d"}]], empty(1)),
    #{~"nextCursor" := Good} =
        decoded(erlmcp_catalog:first_page(~"tools/list", '2025-11-25', anonymous, Catalog)),
    {ok, _} = erlmcp_catalog:page(~"tools/list", Good, '2025-11-25', anonymous, Catalog),
    error = erlmcp_catalog:page(~"prompts/list", Good, '2025-11-25', anonymous, Catalog),
    holds(?FORALL(Cursor, oneof([binary(), erlmcp_test_json:text(), near_cursor(Good)]),
                  Cursor =:= Good orelse error =:=
                      erlmcp_catalog:page(~"tools/list", Cursor, '2025-11-25', anonymous,
                                          Catalog))).

near_cursor(Cursor) ->
    ?LET({Place, Byte}, {range(0, byte_size(Cursor) - 1), range(0, 255)},
         begin
             <<Head:Place/binary, _, Tail/binary>> = Cursor,
             exactly(<<Head/binary, Byte, Tail/binary>>)
         end).

empty(Size) ->
    empty(Size, <<0:64>>).

empty(Size, Numbering) ->
    {ok, Empty} = erlmcp_catalog:new(#{name => ~"n", version => ~"v"}, [],
                                     (erlmcp_test_json:lists())#{page_size := Size,
                                                                 numbering := Numbering},
                                     erlmcp_metaschemas:compiled()),
    {Empty, []}.

changed(Commands, State) ->
    lists:foldl(fun apply_command/2, State, Commands).

command() ->
    ?LET({Kind, N}, {kind(), range(1, 6)},
         frequency([{3, {add, Kind, source(Kind, N), key(Kind, N)}},
                    {1, {remove, Kind, key(Kind, N)}}])).

apply_command({add, Kind, Source, Key}, {Catalog, Model}) ->
    Added = erlmcp_catalog:add(Kind, Source, erlmcp_metaschemas:compiled(), Catalog),
    case {Added, lists:keymember(Key, 2, Model)} of
        {{ok, Next}, false} -> {Next, Model ++ [{Kind, Key, Source}]};
        {{error, {duplicate, Kind, Key}}, true} -> {Catalog, Model}
    end;
apply_command({remove, Kind, Key}, {Catalog, Model}) ->
    case {erlmcp_catalog:remove(Kind, Key, Catalog), lists:keymember(Key, 2, Model)} of
        {{ok, Next}, true} -> {Next, lists:keydelete(Key, 2, Model)};
        {{error, not_found}, false} -> {Catalog, Model}
    end.

lists() ->
    [{tool, ~"tools/list", ~"tools"}, {resource, ~"resources/list", ~"resources"},
     {resource_template, ~"resources/templates/list", ~"resourceTemplates"},
     {prompt, ~"prompts/list", ~"prompts"}].

is_listed(Kind, Revision, Principal, Size, Catalog, Model) ->
    {Kind, Method, Member} = lists:keyfind(Kind, 1, lists()),
    Page = decoded(erlmcp_catalog:first_page(Method, Revision, Principal, Catalog)),
    First = maps:get(Member, Page),
    Expected = [shown(Kind, Revision, Source) || {K, _, Source} <- Model, K =:= Kind,
                                                 sees(Principal, Source)],
    length(First) =:= min(Size, length(Expected))
        andalso is_scoped(Revision, is_shared(Kind, Model), Page)
        andalso First ++ following(Page, Method, Member, Revision, Principal, Catalog)
                    =:= Expected.

is_scoped('2026-07-28', true, #{~"cacheScope" := Scope}) -> Scope =:= ~"public";
is_scoped('2026-07-28', false, #{~"cacheScope" := Scope}) -> Scope =:= ~"private";
is_scoped(_, _, Page) -> not is_map_key(~"cacheScope", Page).

%% The definitions on the pages after this one, which is of the same scope.
following(#{~"nextCursor" := Cursor} = Page, Method, Member, Revision, Principal, Catalog) ->
    {ok, Bytes} = erlmcp_catalog:page(Method, Cursor, Revision, Principal, Catalog),
    #{Member := Items} = Next = decoded(Bytes),
    true = maps:get(~"cacheScope", Page, none) =:= maps:get(~"cacheScope", Next, none),
    Items ++ following(Next, Method, Member, Revision, Principal, Catalog);
following(#{}, _, _, _, _, _) ->
    [].

%% A definition as a revision's schema has it.
shown(Kind, Revision, Source) ->
    Known = schema_fields(Kind, Revision),
    Wire = #{Name => decoded(json:encode(maps:get(Field, Source)))
             || {Field, Name, _, _} <- erlmcp_definition:fields(Kind), is_map_key(Field, Source),
                lists:member(Name, Known)},
    maps:merge(shown_parts(Kind, Revision, Wire), execution(Revision, Source)).

%% What 2025-11-25 alone has.
execution('2025-11-25', #{task := Support}) ->
    #{~"execution" => #{~"taskSupport" => atom_to_binary(Support)}};
execution(_, _) ->
    #{}.

shown_parts(tool, Revision, Wire) ->
    Whole = Wire#{~"inputSchema" => case maps:get(~"inputSchema", Wire, #{}) of
        Any when Any =:= #{}; Any =:= #{~"type" => ~"object"} ->
            #{~"type" => ~"object", ~"properties" => #{}};
        Schema ->
            Schema#{~"type" => ~"object"}
    end},
    case Whole of
        #{~"outputSchema" := #{~"type" := ~"object"}} -> Whole;
        #{~"outputSchema" := _} when Revision < '2026-07-28' -> maps:remove(~"outputSchema", Whole);
        #{} -> Whole
    end;
shown_parts(prompt, Revision, #{~"arguments" := Arguments} = Wire) when Revision < '2025-06-18' ->
    Wire#{~"arguments" := [maps:remove(~"title", Argument) || Argument <- Arguments]};
shown_parts(_, _, Wire) ->
    Wire.

%% The properties of schema.json in each revision.
schema_fields(Kind, Revision) ->
    schema_fields(Kind) ++ [~"name", ~"description"]
        ++ [Field || {Field, Since} <- [{~"title", '2025-06-18'}, {~"_meta", '2025-06-18'},
                                        {~"icons", '2025-11-25'}], Revision >= Since]
        ++ [Field || Kind =:= tool, {Field, Since} <- [{~"annotations", '2025-03-26'},
                                                       {~"outputSchema", '2025-06-18'}],
                     Revision >= Since].

schema_fields(tool) -> [~"inputSchema"];
schema_fields(resource) -> [~"uri", ~"mimeType", ~"size", ~"annotations"];
schema_fields(resource_template) -> [~"uriTemplate", ~"mimeType", ~"annotations"];
schema_fields(prompt) -> [~"arguments"].

is_found({tool, Key, _}, Principal, Catalog) ->
    is_of(Key, erlmcp_catalog:tool(Key, Principal, Catalog));
is_found({prompt, Key, _}, Principal, Catalog) ->
    is_of(Key, erlmcp_catalog:prompt(Key, Principal, Catalog));
is_found({resource, Key, _}, Principal, Catalog) ->
    case erlmcp_catalog:resource(Key, Principal, Catalog) of
        {ok, resource, Found, #{} = Variables} when map_size(Variables) =:= 0 ->
            is_of(Key, {ok, Found});
        error ->
            false
    end;
is_found({resource_template, Key, _}, Principal, Catalog) ->
    Uri = binary:replace(Key, ~"{id}", ~"7"),
    Known = is_of(Key, erlmcp_catalog:resource_template(Key, Principal, Catalog)),
    case erlmcp_catalog:resource(Uri, Principal, Catalog) of
        {ok, resource_template, Found, #{~"id" := ~"7"}} -> Known andalso is_of(Key, {ok, Found});
        error -> Known
    end.

is_of(Key, {ok, #{key := Found}}) -> Found =:= Key;
is_of(_, error) -> false.
