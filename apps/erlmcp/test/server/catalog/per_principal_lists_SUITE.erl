-module(per_principal_lists_SUITE).
-moduledoc """
Definitions that are `visible` to some principals only, over HTTP in both eras: for the others there
is no such thing. Specification 2026-07-28, "Resources": servers "MUST respond to resources/list
requests with the set of resources currently available to the requesting client".
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([lists_have_what_is_visible/1, lists_are_private/1, invisible_is_as_absent/1,
         visible_is_served/1, templates_match_for_whom_they_are/1]).
-export([walks_see_what_is_visible/1, cursors_are_their_principals/1, cursors_tell_nothing/1,
         cursors_are_of_one_scope/1]).
-export([changes_are_told_to_whom_they_are/1, updates_are_told_to_whom_they_are/1,
         what_is_not_visible_is_not_watched/1]).
-export([a_crash_hides/1, headers_tell_nothing/1, clients_of_tcp_listeners/1]).
-export([log/2]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_client, [ask/3, told/1]).

-define(TIMEOUT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, stateless}, {group, session}, headers_tell_nothing, clients_of_tcp_listeners].

groups() ->
    Cases = [lists_have_what_is_visible, lists_are_private, invisible_is_as_absent,
             visible_is_served, templates_match_for_whom_they_are, walks_see_what_is_visible,
             cursors_are_their_principals, cursors_tell_nothing, cursors_are_of_one_scope,
             changes_are_told_to_whom_they_are, updates_are_told_to_whom_they_are,
             what_is_not_visible_is_not_watched, a_crash_hides],
    [{stateless, Cases}, {session, Cases}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(stateless, Config) -> [{revision, ~"2026-07-28"} | Config];
init_per_group(session, Config) -> [{revision, ~"2025-11-25"} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(_, Config) ->
    [{server, start(#{})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_client:stop(server(Config)).

%% Who asks is who the token names. Of each kind there is one for all and one for ada alone.
start(Options) ->
    Two = #{Key => [definition(Kind, ~"secret", fun is_ada/1), definition(Kind, ~"shared", all)]
            || {Kind, Key, _, _} <- kinds()},
    erlmcp_test_http:start(maps:merge(Two#{
        listen => [{http, #{authenticate => fun authenticate/1}},
                   {tcp, #{principal => ~"ada"}}, {tcp, #{principal => ~"bob"}}]}, Options)).

authenticate(#{headers := #{~"authorization" := <<"Bearer ", Name/binary>>}}) -> {ok, Name};
authenticate(_) -> {error, ~"a bearer token is required"}.

is_ada(Principal) -> Principal =:= ~"ada".

kinds() ->
    [{tool, tools, ~"tools/list", ~"tools"}, {prompt, prompts, ~"prompts/list", ~"prompts"},
     {resource, resources, ~"resources/list", ~"resources"},
     {resource_template, resource_templates, ~"resources/templates/list", ~"resourceTemplates"}].

definition(Kind, Name, Visible) ->
    Seen = case Visible of
        all -> #{};
        _ -> #{visible => Visible}
    end,
    Own = case Kind of
        tool -> Seen;
        prompt -> Seen#{arguments => [#{name => ~"a"}], complete => #{~"a" => [~"value"]}};
        resource -> Seen#{uri => uri(Kind, Name)};
        resource_template -> Seen#{uri_template => <<(uri(Kind, Name))/binary, "/{a}">>,
                                   complete => #{~"a" => [~"value"]}}
    end,
    Own#{name => Name, handler => fun(_, _) -> Name end}.

uri(resource, Name) -> <<"r://", Name/binary>>;
uri(resource_template, Name) -> <<"t://", Name/binary>>.

client(Name, Config) ->
    client(Name, server(Config), Config).

client(Name, Server, Config) ->
    erlmcp_test_client:open_as(Server, proplists:get_value(revision, Config),
                               #{~"authorization" => <<"Bearer ", Name/binary>>}).

is_stateless(Config) ->
    proplists:get_value(revision, Config) =:= ~"2026-07-28".

names(Client, Method, Member) ->
    #{~"result" := #{Member := Items}} = ask(Client, Method, #{}),
    [Name || #{~"name" := Name} <- Items].

add(Kind, Definition, #{pid := Pid}) ->
    ok = erlmcp:add(Pid, Kind, Definition).

%% Lists.

lists_have_what_is_visible(Config) ->
    [Ada, Bob] = [client(Name, Config) || Name <- [~"ada", ~"bob"]],
    [begin
         [~"secret", ~"shared"] = names(Ada, Method, Member),
         [~"shared"] = names(Bob, Method, Member)
     end || {_, _, Method, Member} <- kinds()].

%% "private is appropriate for [...] filtered list results that vary per user."; "public is
%% appropriate for lists [...] when they are identical for all users." A list becomes the one or the
%% other as its definitions come and go.
lists_are_private(Config) ->
    #{pid := Pid} = server(Config),
    Bob = client(~"bob", Config),
    [begin
         ok = is_scoped(~"private", Bob, Method, Config),
         ok = erlmcp:remove(Pid, Kind, key(Kind, ~"secret")),
         ok = is_scoped(~"public", Bob, Method, Config),
         [~"shared"] = names(Bob, Method, Member),
         add(Kind, definition(Kind, ~"secret", fun is_ada/1), server(Config)),
         ok = is_scoped(~"private", Bob, Method, Config),
         [~"shared"] = names(Bob, Method, Member)
     end || {Kind, _, Method, Member} <- kinds()].

is_scoped(Scope, Client, Method, Config) ->
    #{~"result" := Result} = ask(Client, Method, #{}),
    case is_stateless(Config) of
        true -> #{~"cacheScope" := Scope, ~"ttlMs" := _} = Result;
        false -> false = is_map_key(~"cacheScope", Result)
    end,
    ok.

key(resource, Name) -> uri(resource, Name);
key(resource_template, Name) -> <<(uri(resource_template, Name))/binary, "/{a}">>;
key(_, Name) -> Name.

%% What asks for a definition, by its name.
requests(Name, Config) ->
    Argument = #{name => ~"a", value => ~""},
    Template = key(resource_template, Name),
    [{~"tools/call", #{name => Name}}, {~"prompts/get", #{name => Name}},
     {~"resources/read", #{uri => uri(resource, Name)}},
     {~"resources/read", #{uri => <<(uri(resource_template, Name))/binary, "/x">>}},
     {~"completion/complete", #{ref => #{type => ~"ref/prompt", name => Name},
                                argument => Argument}},
     {~"completion/complete", #{ref => #{type => ~"ref/resource", uri => Template},
                                argument => Argument}},
     {~"completion/complete", #{ref => #{type => ~"ref/resource", uri => uri(resource, Name)},
                                argument => Argument}}
     | [{~"resources/subscribe", #{uri => Uri}}
        || not is_stateless(Config),
           Uri <- [uri(resource, Name), <<(uri(resource_template, Name))/binary, "/x">>]]].

%% The same bytes as for a name that nobody has, but for the name.
invisible_is_as_absent(Config) ->
    Bob = client(~"bob", Config),
    [begin
         #{~"error" := _} = Invisible = ask(Bob, 1, Method, Params),
         Invisible = renamed(ask(Bob, 1, Method, Other))
     end || {{Method, Params}, {Method, Other}} <- lists:zip(requests(~"secret", Config),
                                                             requests(~"absent", Config))].

ask(Client, Id, Method, Params) ->
    erlmcp_test_client:ask(Client, Id, Method, Params).

renamed(Answer) ->
    json:decode(binary:replace(iolist_to_binary(json:encode(Answer)), ~"absent", ~"secret",
                               [global])).

visible_is_served(Config) ->
    [#{~"result" := _} = ask(client(Who, Config), Method, Params)
     || {Who, Name} <- [{~"ada", ~"secret"}, {~"ada", ~"shared"}, {~"bob", ~"shared"}],
        {Method, Params} <- requests(Name, Config)].

%% A URI is looked for among what its client sees: the resource, then the first template.
templates_match_for_whom_they_are(Config) ->
    Server = server(Config),
    Text = fun(Text) -> fun(_, _) -> Text end end,
    add(resource, #{uri => ~"m://x", name => ~"exact", visible => fun is_ada/1,
                    handler => Text(~"resource")}, Server),
    add(resource_template, #{uri_template => ~"m://{id}", name => ~"first",
                             visible => fun(Who) -> Who =:= ~"bob" end,
                             handler => Text(~"first")}, Server),
    add(resource_template, #{uri_template => ~"m://{+rest}", name => ~"second",
                             handler => Text(~"second")}, Server),
    [begin
         #{~"result" := #{~"contents" := [#{~"text" := Expected}]}} =
             ask(client(Who, Config), ~"resources/read", #{uri => Uri})
     end || {Who, Uri, Expected} <- [{~"ada", ~"m://x", ~"resource"}, {~"bob", ~"m://x", ~"first"},
                                     {~"eve", ~"m://x", ~"second"}, {~"ada", ~"m://y", ~"second"},
                                     {~"bob", ~"m://y", ~"first"},
                                     {~"bob", ~"m://y/z", ~"second"}]].

%% Pages.

%% Ten tools, of which bob sees every third.
ten(Size) ->
    Third = fun(N) -> fun(Who) -> Who =:= ~"ada" orelse N rem 3 =:= 0 end end,
    start(#{page_size => Size,
            tools => [definition(tool, integer_to_binary(N), Third(N)) || N <- lists:seq(1, 10)]}).

page(Client, Params) ->
    #{~"result" := #{~"tools" := Tools} = Result} = ask(Client, ~"tools/list", Params),
    {[binary_to_integer(Name) || #{~"name" := Name} <- Tools],
     maps:get(~"nextCursor", Result, none)}.

walk(Client, Params) ->
    case page(Client, Params) of
        {Names, none} -> [Names];
        {Names, Cursor} -> [Names | walk(Client, #{cursor => Cursor})]
    end.

%% Pages are full, and what comes after the last has nothing more to see: no cursor says otherwise.
walks_see_what_is_visible(Config) ->
    [begin
         Server = ten(Size),
         [Ada, Bob] = [client(Name, Server, Config) || Name <- [~"ada", ~"bob"]],
         Adas = walk(Ada, #{}),
         Bobs = walk(Bob, #{}),
         erlmcp_test_client:stop(Server)
     end || {Size, Adas, Bobs} <- [{2, [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]], [[3, 6], [9]]},
                                   {3, [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10]], [[3, 6, 9]]},
                                   {10, [lists:seq(1, 10)], [[3, 6, 9]]}]].

%% "Invalid cursors SHOULD result in an error": another's is one.
cursors_are_their_principals(Config) ->
    Server = ten(2),
    [Ada, Bob] = [client(Name, Server, Config) || Name <- [~"ada", ~"bob"]],
    {[1, 2], Adas} = page(Ada, #{}),
    {[3, 6], Bobs} = page(Bob, #{}),
    [#{~"error" := #{~"code" := -32602, ~"message" := <<"cursor", _/binary>>}} =
         ask(Client, ~"tools/list", #{cursor => Cursor})
     || {Client, Cursor} <- [{Ada, Bobs}, {Bob, Adas}]],
    %% One's own is good again and again, and while definitions come and go.
    {[1, 2], Adas} = page(Ada, #{}),
    {[3, 4], _} = page(Ada, #{cursor => Adas}),
    [ok = erlmcp:remove(maps:get(pid, Server), tool, Name) || Name <- [~"2", ~"3"]],
    {[4, 5], _} = page(Ada, #{cursor => Adas}),
    {[9], none} = page(Bob, #{cursor => Bobs}),
    erlmcp_test_client:stop(Server).

%% A cursor says which definition it comes after to the server alone: to its client that would be
%% how many he does not see. So does that of a list that all see: others may be in other lists.
cursors_tell_nothing(Config) ->
    Shared = [definition(tool, integer_to_binary(N), all) || N <- lists:seq(1, 7)],
    [begin
         {_, Cursor} = page(client(~"bob", Server, Config), #{}),
         Bytes = base64:decode(Cursor, #{mode => urlsafe, padding => false}),
         nomatch = binary:match(Bytes, <<5:32>>),
         erlmcp_test_client:stop(Server)
     end || Server <- [ten(2), start(#{page_size => 6, tools => Shared})]].

%% "Servers MUST apply the same cacheScope to all response pages for a given list request."
cursors_are_of_one_scope(Config) ->
    Server = start(#{page_size => 1, tools => [definition(tool, Name, all)
                                               || Name <- [~"1", ~"2", ~"3"]]}),
    #{pid := Pid} = Server,
    [Ada, Bob] = [client(Name, Server, Config) || Name <- [~"ada", ~"bob"]],
    {[1], Public} = page(Bob, #{}),
    {[2], _} = page(Ada, #{cursor => Public}),
    add(tool, definition(tool, ~"4", fun is_ada/1), Server),
    #{~"error" := #{~"code" := -32602}} = ask(Bob, ~"tools/list", #{cursor => Public}),
    {[1], Private} = page(Bob, #{}),
    ok = erlmcp:remove(Pid, tool, ~"4"),
    #{~"error" := #{~"code" := -32602}} = ask(Bob, ~"tools/list", #{cursor => Private}),
    {[2], _} = page(Bob, #{cursor => Public}),
    erlmcp_test_client:stop(Server).

%% Changes.

%% A stream of a client that hears of all changes of lists, and of a resource.
watching(Name, Uri, Config) ->
    Client = client(Name, Config),
    case is_stateless(Config) of
        true ->
            erlmcp_test_client:listen(Client, 1,
                                      #{toolsListChanged => true, promptsListChanged => true,
                                        resourcesListChanged => true,
                                        resourceSubscriptions => [Uri]});
        false ->
            Stream = erlmcp_test_client:stream(Client),
            #{~"result" := _} = ask(Client, ~"resources/subscribe", #{uri => Uri}),
            Stream
    end.

%% Who may not see a definition does not hear that it comes or goes.
changes_are_told_to_whom_they_are(Config) ->
    #{pid := Pid} = Server = server(Config),
    [Ada, Bob] = [watching(Name, ~"r://shared", Config) || Name <- [~"ada", ~"bob"]],
    [begin
         Changed = <<"notifications/", Topic/binary, "/list_changed">>,
         %% One that follows before the first was heard of is not told.
         add(Kind, definition(Kind, ~"hidden", fun is_ada/1), Server),
         {_, Changed, _} = told(Ada),
         ok = erlmcp:remove(Pid, Kind, key(Kind, ~"hidden")),
         {_, Changed, _} = told(Ada),
         %% The first that bob hears of comes after both.
         ok = erlmcp:resource_updated(Pid, ~"r://shared"),
         [{_, ~"notifications/resources/updated", _} = told(Stream) || Stream <- [Ada, Bob]],
         add(Kind, definition(Kind, ~"new", all), Server),
         [{_, Changed, _} = told(Stream) || Stream <- [Ada, Bob]],
         ok = erlmcp:remove(Pid, Kind, key(Kind, ~"new")),
         [{_, Changed, _} = told(Stream) || Stream <- [Ada, Bob]]
     end || {Kind, Topic} <- [{tool, ~"tools"}, {prompt, ~"prompts"}, {resource, ~"resources"},
                              {resource_template, ~"resources"}]].

%% Also when a client may not see any more what it began to watch.
updates_are_told_to_whom_they_are(Config) ->
    #{pid := Pid} = Server = server(Config),
    Allowed = atomics:new(1, []),
    ok = atomics:put(Allowed, 1, 1),
    add(resource, definition(resource, ~"now", fun(Who) ->
        Who =:= ~"ada" orelse atomics:get(Allowed, 1) =:= 1
    end), Server),
    [Ada, Bob] = [watching(Name, ~"r://now", Config) || Name <- [~"ada", ~"bob"]],
    Updated = ~"notifications/resources/updated",
    ok = erlmcp:resource_updated(Pid, ~"r://now"),
    [{_, Updated, #{~"uri" := ~"r://now"}} = told(Stream) || Stream <- [Ada, Bob]],
    ok = atomics:put(Allowed, 1, 0),
    ok = erlmcp:resource_updated(Pid, ~"r://now"),
    {_, Updated, #{~"uri" := ~"r://now"}} = told(Ada),
    add(tool, definition(tool, ~"new", all), Server),
    [{_, ~"notifications/tools/list_changed", _} = told(Stream) || Stream <- [Ada, Bob]].

%% "Resource not found: -32002"; "the subset the server agreed to honor".
what_is_not_visible_is_not_watched(Config) ->
    Bob = client(~"bob", Config),
    Asked = [~"r://secret", ~"r://shared", ~"t://secret/x", ~"t://shared/x", ~"r://absent"],
    case is_stateless(Config) of
        true ->
            erlmcp_test_client:listen(Bob, 1, #{resourceSubscriptions => Asked},
                                      #{~"resourceSubscriptions" => [~"r://shared",
                                                                     ~"t://shared/x"]});
        false ->
            Told = [{Uri, ask(Bob, ~"resources/subscribe", #{uri => Uri})} || Uri <- Asked],
            [~"r://secret", ~"t://secret/x", ~"r://absent"] =
                [Uri || {Uri, #{~"error" := #{~"code" := -32002, ~"data" := #{~"uri" := Uri}}}}
                            <- Told],
            [~"r://shared", ~"t://shared/x"] = [Uri || {Uri, #{~"result" := _}} <- Told],
            %% To end what never was is no error, and says nothing.
            [#{~"result" := _} = ask(Bob, ~"resources/unsubscribe", #{uri => Uri}) || Uri <- Asked]
    end.

%% A `visible` that crashes, or says neither true nor false, hides its definition; the log has it
%% once in a while, and the connection goes on.
a_crash_hides(Config) ->
    #{pid := Pid} = Server = server(Config),
    add(tool, definition(tool, ~"crashing", fun(_) -> error(on_purpose) end), Server),
    add(tool, definition(tool, ~"vague", fun(_) -> maybe_so end), Server),
    Ada = client(~"ada", Config),
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self()}),
    [[~"secret", ~"shared"] = names(Ada, ~"tools/list", ~"tools") || _ <- [1, 2, 3]],
    [#{~"error" := #{~"code" := -32602}} = ask(Ada, ~"tools/call", #{name => Name})
     || Name <- [~"crashing", ~"vague"]],
    %% Whoever mends one is told at once if another crash hides it.
    ok = erlmcp:remove(Pid, tool, ~"crashing"),
    add(tool, definition(tool, ~"crashing", fun(_) -> error(again) end), Server),
    [~"secret", ~"shared"] = names(Ada, ~"tools/list", ~"tools"),
    ok = logger:remove_handler(?MODULE),
    [{~"crashing", again}, {~"crashing", on_purpose},
     {~"vague", {bad_return, visible, maybe_so}}] = lists:sort(logged()).

logged() ->
    receive
        {logged, #{definition := #{name := Name}, reason := Reason}} -> [{Name, Reason} | logged()]
    after 0 ->
        []
    end.

-doc false.
log(#{msg := {report, #{what := visible_crashed, server := _} = Report}}, #{config := Test}) ->
    Test ! {logged, Report},
    ok;
log(_, _) ->
    ok.

%% The "Mcp-Param-*" headers of tools that one sees are checked. A refusal of those of another would
%% say that there is one.
headers_tell_nothing(_) ->
    Schema = #{type => object, properties => #{region => #{type => string,
                                                           'x-mcp-header' => ~"Region"}}},
    Server = start(#{tools => [(definition(tool, ~"secret", fun is_ada/1))
                                   #{input_schema => Schema}]}),
    Call = fun(Who) ->
        #{messages := [#{~"error" := #{~"code" := Code}}]} =
            erlmcp_test_http:call(Server, ~"tools/call",
                                  #{name => ~"secret", arguments => #{region => ~"eu"}},
                                  #{headers => #{~"authorization" => <<"Bearer ", Who/binary>>}}),
        Code
    end,
    {-32020, -32602} = {Call(~"ada"), Call(~"bob")},
    erlmcp_test_http:stop(Server).

clients_of_tcp_listeners(Config) ->
    #{pid := Pid} = server(Config),
    Ports = [Port || #{transport := tcp, port := Port} <- erlmcp:listeners(Pid)],
    [begin
         Socket = erlmcp_test_line:connect(Port),
         _ = erlmcp_test_line:initialize(Socket, ~"2025-11-25"),
         [begin
              #{~"result" := #{~"tools" := Tools}} = Ask(Socket, 1, ~"tools/list", #{}),
              Names = [Name || #{~"name" := Name} <- Tools]
          end || Ask <- [fun erlmcp_test_line:ask/4, fun erlmcp_test_line:ask_stateless/4]],
         ok = erlmcp_test_line:close(Socket)
     end || {Port, Names} <- lists:zip(Ports, [[~"secret", ~"shared"], [~"shared"]])].
