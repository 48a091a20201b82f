-module(spec_pagination_SUITE).
-moduledoc "\"Pagination\" of all revisions of the specification, over HTTP and TCP.".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([pages_have_all_in_order/1, last_page_has_no_cursor/1, page_size_is_a_hundred/1,
         cursors_are_stable/1, empty_rest_is_a_page/1, cursors_are_shared/1,
         cursors_are_of_one_server/1, cursors_are_of_one_list/1, cursors_survive_new_keys/1]).
-export([changed_cursors_are_refused/1, strange_cursors_are_refused/1]).
-export([walks_miss_nothing_that_stays/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [open/3, ask/3]).

-define(INVALID, -32602).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp}, {group, sse}, walks_miss_nothing_that_stays].

groups() ->
    Cases = erlmcp_test_suite:cases(?MODULE) -- [walks_miss_nothing_that_stays],
    [{Transport, Cases} || Transport <- [http, tcp, sse]].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Transport, Config) -> [{transport, Transport} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(_, Config) ->
    [{server, start(#{page_size => 3})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_client:stop(server(Config)).

start(Options) ->
    start(10, Options).

start(Count, Options) ->
    erlmcp_test_client:start(maps:merge(#{Key => [definition(Kind, N) || N <- lists:seq(1, Count)]
                                          || {Kind, Key} <- keys()}, Options)).

keys() ->
    [{tool, tools}, {prompt, prompts}, {resource, resources},
     {resource_template, resource_templates}].

definition(Kind, N) ->
    Common = #{name => name(N), handler => fun(_, _) -> ~"text" end},
    case Kind of
        resource -> Common#{uri => <<"test://", (name(N))/binary>>};
        resource_template -> Common#{uri_template => <<"test://", (name(N))/binary, "/{id}">>};
        _ -> Common
    end.

%% Names are in another order than the definitions.
name(N) ->
    iolist_to_binary([integer_to_binary((N * 7) rem 101), $-, integer_to_binary(N)]).

key(Kind, N) when Kind =:= tool; Kind =:= prompt -> name(N);
key(resource, N) -> <<"test://", (name(N))/binary>>;
key(resource_template, N) -> <<"test://", (name(N))/binary, "/{id}">>.

names(From, To) ->
    [name(N) || N <- lists:seq(From, To)].

lists_of() ->
    [{tool, ~"tools/list", ~"tools"}, {prompt, ~"prompts/list", ~"prompts"},
     {resource, ~"resources/list", ~"resources"},
     {resource_template, ~"resources/templates/list", ~"resourceTemplates"}].

revisions() ->
    [~"2024-11-05", ~"2025-03-26", ~"2025-06-18", ~"2025-11-25", ~"2026-07-28"].

client(Config) ->
    client(server(Config), Config).

client(Server, Config) ->
    client(Server, ~"2026-07-28", Config).

client(Server, Revision, Config) ->
    open(Server, transport(Config), Revision).

%% A page: its names, and the cursor of the next.
page(Client, Method, Cursor) ->
    Params = case Cursor of
        none -> #{};
        _ -> #{cursor => Cursor}
    end,
    #{~"result" := Result} = ask(Client, Method, Params),
    {_, _, Member} = lists:keyfind(Method, 2, lists_of()),
    #{Member := Items} = Result,
    {[Name || #{~"name" := Name} <- Items], maps:get(~"nextCursor", Result, none)}.

walk(Client, Method, Cursor) ->
    case page(Client, Method, Cursor) of
        {Names, none} -> [Names];
        {Names, Next} when is_binary(Next) -> [Names | walk(Client, Method, Next)]
    end.

refused(Client, Method, Cursor) ->
    #{~"error" := #{~"code" := ?INVALID, ~"message" := <<"cursor", _/binary>>}} =
        ask(Client, Method, #{cursor => Cursor}),
    ok.

%% "resources/list, resources/templates/list, prompts/list, tools/list"; "The current page of
%% results"; "An optional nextCursor field if more results exist".
pages_have_all_in_order(Config) ->
    Pages = [names(1, 3), names(4, 6), names(7, 9), names(10, 10)],
    [begin
         Client = client(server(Config), Revision, Config),
         [Pages = walk(Client, Method, none) || {_, Method, _} <- lists_of()],
         erlmcp_test_client:close(Client)
     end || Revision <- revisions()].

%% "Treat a missing nextCursor as the end of results": it is missing, also where the last page is a
%% full one, and where there is nothing.
last_page_has_no_cursor(Config) ->
    [begin
         Server = start(Count, #{page_size => 3}),
         [begin
              Client = client(Server, Revision, Config),
              [Pages = [length(Page) || Page <- walk(Client, Method, none)]
               || {_, Method, _} <- lists_of()],
              erlmcp_test_client:close(Client)
          end || Revision <- [~"2025-11-25", ~"2026-07-28"]],
         erlmcp_test_client:stop(Server)
     end || {Count, Pages} <- [{0, [0]}, {1, [1]}, {3, [3]}, {4, [3, 1]}, {6, [3, 3]}]].

page_size_is_a_hundred(Config) ->
    Server = start(201, #{}),
    Client = client(Server, Config),
    Names = names(1, 201),
    Pages = walk(Client, ~"tools/list", none),
    [100, 100, 1] = [length(Page) || Page <- Pages],
    Names = lists:append(Pages),
    erlmcp_test_client:stop(Server).

%% "Servers SHOULD: Provide stable cursors".
cursors_are_stable(Config) ->
    #{pid := Pid} = server(Config),
    Client = client(Config),
    [begin
         {First, Cursor} = page(Client, Method, none),
         First = names(1, 3),
         %% What a page ended with may go; so may others, before and after, while new ones come.
         [ok = erlmcp:remove(Pid, Kind, key(Kind, N)) || N <- [1, 3, 5]],
         ok = erlmcp:add(Pid, Kind, definition(Kind, 11)),
         Rest = [[name(N) || N <- [4, 6, 7]], [name(N) || N <- [8, 9, 10]], [name(11)]],
         Rest = walk(Client, Method, Cursor),
         %% One that comes back is new, and last.
         ok = erlmcp:add(Pid, Kind, definition(Kind, 5)),
         Back = [[name(N) || N <- [4, 6, 7]], [name(N) || N <- [8, 9, 10]], [name(11), name(5)]],
         Back = walk(Client, Method, Cursor)
     end || {Kind, Method, _} <- lists_of()].

%% All that a cursor stands before may be gone.
empty_rest_is_a_page(Config) ->
    #{pid := Pid} = server(Config),
    Client = client(Config),
    {_, Cursor} = page(Client, ~"tools/list", none),
    [ok = erlmcp:remove(Pid, tool, key(tool, N)) || N <- lists:seq(1, 10)],
    {[], none} = page(Client, ~"tools/list", Cursor),
    {[], none} = page(Client, ~"tools/list", none),
    ok = erlmcp:add(Pid, tool, definition(tool, 20)),
    [Twenty] = names(20, 20),
    {[Twenty], none} = page(Client, ~"tools/list", Cursor).

%% A client's next request may reach another node.
cursors_are_shared(Config) ->
    Keys = [crypto:strong_rand_bytes(32)],
    [One, Two] = [start(#{page_size => 3, keys => Keys}) || _ <- [1, 2]],
    [First, Second] = [client(Server, Config) || Server <- [One, Two]],
    [begin
         {_, Cursor} = page(First, Method, none),
         {Names, Next} = page(Second, Method, Cursor),
         Names = names(4, 6),
         [SevenToNine, Ten] = walk(First, Method, Next),
         {SevenToNine, Ten} = {names(7, 9), names(10, 10)}
     end || {_, Method, _} <- lists_of()],
    [erlmcp_test_client:stop(Server) || Server <- [One, Two]].

%% "Invalid cursors SHOULD result in an error with code -32602 (Invalid params)."
cursors_are_of_one_server(Config) ->
    Other = start(#{page_size => 3}),
    {_, Cursor} = page(client(Other, Config), ~"tools/list", none),
    refused(client(Config), ~"tools/list", Cursor),
    erlmcp_test_client:stop(Other).

cursors_are_of_one_list(Config) ->
    [begin
         Client = client(server(Config), Revision, Config),
         Cursors = [{Method, element(2, page(Client, Method, none))}
                    || {_, Method, _} <- lists_of()],
         [refused(Client, Method, Cursor)
          || {Own, Cursor} <- Cursors, {_, Method, _} <- lists_of(), Method =/= Own],
         [begin
              Names = names(4, 6),
              {Names, _} = page(Client, Method, Cursor)
          end || {Method, Cursor} <- Cursors],
         erlmcp_test_client:close(Client)
     end || Revision <- revisions()].

cursors_survive_new_keys(Config) ->
    [Old, New] = [crypto:strong_rand_bytes(32) || _ <- [1, 2]],
    Servers = [Before, Rotated, After] =
        [start(#{page_size => 3, keys => Keys}) || Keys <- [[Old], [New, Old], [New]]],
    {_, First} = page(client(Before, Config), ~"tools/list", none),
    {_, Second} = page(client(Rotated, Config), ~"tools/list", First),
    refused(client(After, Config), ~"tools/list", First),
    Names = names(7, 9),
    {Names, _} = page(client(After, Config), ~"tools/list", Second),
    refused(client(Before, Config), ~"tools/list", Second),
    [erlmcp_test_client:stop(Server) || Server <- Servers].

changed_cursors_are_refused(Config) ->
    Client = client(Config),
    {_, Cursor} = page(Client, ~"tools/list", none),
    Size = byte_size(Cursor),
    [begin
         <<Before:At/binary, Byte, After/binary>> = Cursor,
         refused(Client, ~"tools/list", <<Before/binary, (other(Byte)), After/binary>>)
     end || At <- lists:seq(0, Size - 1)],
    [refused(Client, ~"tools/list", Bad)
     || Bad <- [<<Cursor/binary, "A">>, <<Cursor/binary, "=">>, <<Cursor/binary, "\n">>,
                <<" ", Cursor/binary>>, binary:part(Cursor, 0, Size - 1),
                binary:part(Cursor, 1, Size - 1), <<Cursor/binary, Cursor/binary>>]],
    {[_, _, _], _} = page(Client, ~"tools/list", Cursor).

%% Another character of the same alphabet.
other($A) -> $B;
other(_) -> $A.

%% "Handle invalid cursors gracefully".
strange_cursors_are_refused(Config) ->
    [begin
         Client = client(server(Config), Revision, Config),
         [refused(Client, Method, Cursor)
          || {_, Method, _} <- lists_of(),
             Cursor <- [~"", ~"0", ~"3", ~"eyJwYWdlIjogM30=", ~"\x{20ac}", ~"\0",
                        binary:copy(~"A", 32), binary:copy(~"A", 10000), null, 3, -1, 1.5, true,
                        [], [~"A"], #{}]],
         erlmcp_test_client:close(Client)
     end || Revision <- revisions()].

%% While definitions come and go between the pages, a walk gives each that stays once, none twice,
%% and all in their order.
walks_miss_nothing_that_stays(_) ->
    Server = start(0, #{page_size => 3}),
    Client = open(Server, tcp, ~"2026-07-28"),
    erlmcp_test_property:holds(
        ?FORALL(Rounds, list(list({oneof([add, remove, remove]), range(1, 12)})),
                walks_well(Rounds, Client, Server)), 40),
    erlmcp_test_client:stop(Server).

walks_well(Rounds, Client, #{pid := Pid}) ->
    [ok = erlmcp:add(Pid, tool, definition(tool, N)) || N <- lists:seq(1, 12)],
    Stays = names(1, 12),
    {Seen, Here} = walked(Rounds, none, Client, Pid, Stays),
    [ok = erlmcp:remove(Pid, tool, Name) || #{~"name" := Name} <- tools(Client)],
    Kept = [Name || Name <- Stays, lists:member(Name, Here)],
    length(Seen) =:= length(lists:usort(Seen))
        andalso Kept =:= [Name || Name <- Seen, lists:member(Name, Kept)].

%% What was seen, and what was there all the time. What is added is new each time.
walked(Rounds, Cursor, Client, Pid, Here) ->
    {Names, Next} = page(Client, ~"tools/list", Cursor),
    {Changes, Left} = case Rounds of
        [First | Rest] -> {First, Rest};
        [] -> {[], []}
    end,
    Stay = lists:foldl(fun
        ({add, _}, Known) ->
            New = 1000 + erlang:unique_integer([positive]),
            ok = erlmcp:add(Pid, tool, definition(tool, New)),
            Known;
        ({remove, N}, Known) ->
            _ = erlmcp:remove(Pid, tool, name(N)),
            lists:delete(name(N), Known)
    end, Here, Changes),
    case Next of
        none ->
            {Names, Stay};
        _ ->
            {More, Last} = walked(Left, Next, Client, Pid, Stay),
            {Names ++ More, Last}
    end.

tools(Client) ->
    tools(Client, #{}).

tools(Client, Params) ->
    #{~"result" := #{~"tools" := Tools} = Result} = ask(Client, ~"tools/list", Params),
    case Result of
        #{~"nextCursor" := Cursor} -> Tools ++ tools(Client, #{cursor => Cursor});
        #{} -> Tools
    end.
