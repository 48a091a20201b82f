-module(line_exchanges_SUITE).
-moduledoc """
Whose a line of a server is: the open exchanges of one connection, by their ids, tokens and
processes. An answer that goes to the wrong call is worse than none.
""".

-export([suite/0, all/0]).
-export([each_id_and_token_is_one_exchanges/1, ids_of_the_server_are_not_the_clients/1,
         what_is_removed_is_free_again/1, notifications_find_their_exchange/1,
         an_error_without_an_id_is_of_the_only_request/1, dead_processes_are_found/1]).

-define(SUBSCRIPTION, ~"io.modelcontextprotocol/subscriptionId").

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [each_id_and_token_is_one_exchanges, ids_of_the_server_are_not_the_clients,
     what_is_removed_is_free_again, notifications_find_their_exchange,
     an_error_without_an_id_is_of_the_only_request, dead_processes_are_found].

exchange(Kind, Id, Token) ->
    #{pid => self(), kind => Kind, id => Id, token => Token, deadline => 0}.

open(Opened) ->
    lists:foldl(fun({Ref, Kind, Id, Token}, Exchanges) ->
                    {ok, Next} = erlmcp_line_exchanges:add(Ref, exchange(Kind, Id, Token),
                                                           Exchanges),
                    Next
                end, erlmcp_line_exchanges:new(), Opened).

each_id_and_token_is_one_exchanges(_) ->
    [A, B, C] = [make_ref() || _ <- [a, b, c]],
    Open = open([{A, request, 1, 11}, {B, stream, 2, none}]),
    2 = erlmcp_line_exchanges:count(Open),
    true = lists:sort([A, B]) =:= lists:sort(erlmcp_line_exchanges:all(Open)),
    [{{ok, A}, {ok, B}}, none, none] =
        [{erlmcp_line_exchanges:by_id(1, Open), erlmcp_line_exchanges:by_id(2, Open)},
         erlmcp_line_exchanges:by_id(~"1", Open), erlmcp_line_exchanges:by_id(11, Open)],
    [taken = erlmcp_line_exchanges:add(C, exchange(Kind, Id, Token), Open)
     || {Kind, Id, Token} <- [{request, 1, none}, {stream, 2, none}, {request, 3, 11},
                              {notification, none, 11}]],
    {ok, #{kind := stream, id := 2}} = erlmcp_line_exchanges:find(B, Open),
    none = erlmcp_line_exchanges:find(C, Open),
    {ok, Three} = erlmcp_line_exchanges:add(C, exchange(request, ~"1", ~"11"), Open),
    {ok, C} = erlmcp_line_exchanges:by_id(~"1", Three).

%% A server may give its requests the ids that the client's have.
ids_of_the_server_are_not_the_clients(_) ->
    [A, B] = [make_ref() || _ <- [a, b]],
    Open = open([{A, request, 1, none}, {B, response, 1, none}]),
    {ok, A} = erlmcp_line_exchanges:by_id(1, Open),
    {#{kind := response}, Left} = erlmcp_line_exchanges:remove(B, Open),
    {ok, A} = erlmcp_line_exchanges:by_id(1, Left),
    Only = open([{B, response, 1, none}]),
    none = erlmcp_line_exchanges:by_id(1, Only),
    {ok, _} = erlmcp_line_exchanges:add(A, exchange(request, 1, none), Only).

what_is_removed_is_free_again(_) ->
    [A, B] = [make_ref() || _ <- [a, b]],
    Open = open([{A, request, 1, 11}]),
    {#{id := 1, token := 11}, None} = erlmcp_line_exchanges:remove(A, Open),
    none = erlmcp_line_exchanges:remove(A, None),
    {0, []} = {erlmcp_line_exchanges:count(None), erlmcp_line_exchanges:all(None)},
    [none, none, none] = [erlmcp_line_exchanges:by_id(1, None),
                          erlmcp_line_exchanges:by_params(#{~"progressToken" => 11}, None),
                          erlmcp_line_exchanges:find(A, None)],
    {ok, Again} = erlmcp_line_exchanges:add(B, exchange(request, 1, 11), None),
    {ok, B} = erlmcp_line_exchanges:by_id(1, Again),
    %% Notifications have no id, and any number of them may be on their way.
    Both = open([{A, notification, none, none}, {B, notification, none, none}]),
    {_, One} = erlmcp_line_exchanges:remove(A, Both),
    1 = erlmcp_line_exchanges:count(One).

notifications_find_their_exchange(_) ->
    [A, B] = [make_ref() || _ <- [a, b]],
    Open = open([{A, request, 1, 11}, {B, stream, ~"s", none}]),
    Self = self(),
    Of = fun(Params) -> erlmcp_line_exchanges:by_params(Params, Open) end,
    {ok, A, Self} = Of(#{~"progressToken" => 11}),
    {ok, B, Self} = Of(#{~"_meta" => #{?SUBSCRIPTION => ~"s"}}),
    [none = Of(Params) || Params <- [#{}, #{~"progressToken" => 1}, #{~"progressToken" => ~"11"},
                                     #{~"_meta" => #{}}, #{~"_meta" => #{?SUBSCRIPTION => s}},
                                     #{~"_meta" => #{?SUBSCRIPTION => ~"t"}},
                                     #{~"progressToken" => none}]].

%% With several nobody knows whose it is.
an_error_without_an_id_is_of_the_only_request(_) ->
    [A, B] = [make_ref() || _ <- [a, b]],
    [{Opened, Expected} = {Opened, erlmcp_line_exchanges:only_request(open(Opened))}
     || {Opened, Expected} <- [
            {[], none}, {[{A, request, 1, none}], {ok, A, 1}}, {[{A, stream, 1, none}], none},
            {[{A, request, 1, none}, {B, notification, none, none}], {ok, A, 1}},
            {[{A, request, 1, none}, {B, response, 2, none}], {ok, A, 1}},
            {[{A, request, 1, none}, {B, request, 2, none}], none},
            {[{A, request, 1, none}, {B, stream, 2, none}], none}]].

dead_processes_are_found(_) ->
    A = make_ref(),
    Pid = spawn(fun() -> receive stop -> ok end end),
    {ok, Open} = erlmcp_line_exchanges:add(A, (exchange(request, 1, none))#{pid := Pid},
                                           erlmcp_line_exchanges:new()),
    exit(Pid, kill),
    Monitor = receive {'DOWN', Down, process, Pid, killed} -> Down end,
    {ok, A} = erlmcp_line_exchanges:by_monitor(Monitor, Open),
    none = erlmcp_line_exchanges:by_monitor(make_ref(), Open),
    {_, None} = erlmcp_line_exchanges:remove(A, Open),
    none = erlmcp_line_exchanges:by_monitor(Monitor, None),
    %% One that has ended well is not told of.
    Other = spawn(fun() -> receive stop -> ok end end),
    {ok, Again} = erlmcp_line_exchanges:add(A, (exchange(request, 1, none))#{pid := Other}, None),
    {_, _} = erlmcp_line_exchanges:remove(A, Again),
    Watch = monitor(process, Other),
    exit(Other, kill),
    receive {'DOWN', Watch, process, Other, killed} -> ok end,
    receive {'DOWN', _, process, Other, _} -> error(told) after 0 -> ok end.
