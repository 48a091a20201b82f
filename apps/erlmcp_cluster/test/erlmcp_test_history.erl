-module(erlmcp_test_history).
-moduledoc """
Judges a history of operations that clients have seen. A history is possible if there is one order
of its operations that a single machine could have shown, each at a time between its beginning and
its end. This is linearizability; the search is that of Wing and Gong with the memory of Lowe. Pure.

Each key is judged alone, since an operation concerns one key. An operation whose client has no
answer has the result `unknown` and no end: it may have had its effect at any time, or never. Leave
out operations that were refused before they could have an effect.
""".

-export([check/2, until_impossible/2, to_json/1]).

-export_type([operation/0, model/0]).

-type operation() :: #{
    key := term(), do := term(), result := term() | unknown,
    began := integer(), ended := integer() | infinity
}.
-doc """
The states of a key, and the operations that change them:

- `session`: none -> open -> deleted. Each operation may find the session or not (`ok`,
  `not_found`). An open session has a log level, which clients set and see.
- `task`: none -> running -> {ended, How}. A task ends once, whether it is finished or cancelled.
- `polled_task`: the same for clients, which do not see that a task is finished until they ask. A
  client may cancel a task that has ended, and is told so (`too_late`) or not (`ok`).
""".
-type model() :: session | task | polled_task.

-doc """
Returns `ok`, or the keys whose history no single machine could have shown, each with its history in
the order of the beginnings.
""".
-spec check(model(), [operation()]) -> ok | {error, [{Key :: term(), [operation(), ...]}]}.
check(Model, History) ->
    Keys = maps:groups_from_list(fun(#{key := Key}) -> Key end, History),
    case [{Key, Ordered} || Key := Operations <- Keys, Ordered <- [by_beginning(Operations)],
                            not linearizable(Model, Ordered)] of
        [] -> ok;
        Impossible -> {error, lists:sort(Impossible)}
    end.

-doc """
Returns the shortest part of an impossible history that is impossible, from its beginning until one
of its operations ended, in the order of the ends. An operation that had not ended then has no
result.
""".
-spec until_impossible(model(), [operation(), ...]) -> [operation(), ...].
until_impossible(Model, History) ->
    Ends = lists:usort([Ended || #{ended := Ended} <- History, is_integer(Ended)]),
    [Shortest | _] = [Part || End <- Ends, Part <- [until(End, History)],
                              not linearizable(Model, by_beginning(Part))],
    Shortest.

until(End, History) ->
    lists:sort(fun(#{ended := One}, #{ended := Other}) -> One =< Other end,
               [case Operation of
                    #{ended := Ended} when Ended > End -> Operation#{result := unknown,
                                                                     ended := infinity};
                    _ -> Operation
                end || #{began := Began} = Operation <- History, Began =< End]).

by_beginning(Operations) ->
    lists:sort(fun(#{began := One}, #{began := Other}) -> One =< Other end, Operations).

linearizable(Model, Operations) ->
    Numbered = lists:enumerate(Operations),
    {Found, _} = search(Numbered, 0, none, Model, #{}),
    Found.

%% `Rest` are the operations that are not in the order yet, and `Done` has a bit for each that is.
%% What was tried in vain from the same operations and state is not tried again.
search(Rest, Done, State, Model, Tried) ->
    case lists:all(fun({_, #{result := Result}}) -> Result =:= unknown end, Rest) of
        true -> {true, Tried};
        false when is_map_key({Done, State}, Tried) -> {false, Tried};
        false ->
            Next = next(Rest),
            Tries = case [One || One <- Next, changes_nothing(One, State, Model)] of
                [] -> Next;
                [One | _] -> [One]
            end,
            any(Tries, Rest, Done, State, Model, Tried#{{Done, State} => []})
    end.

%% An operation that fits the state and does not change it may come at once: if there is an order
%% with it in a later place, there is one with it here. This is not so of a level that is set, which
%% may fit another state too.
changes_nothing({_, #{result := unknown}}, _, _) -> false;
changes_nothing({_, #{do := {set, _}}}, _, _) -> false;
changes_nothing({_, Operation}, State, Model) -> after_it(Model, Operation, State) =:= [State].

any([], _, _, _, _, Tried) ->
    {false, Tried};
any([{Number, Operation} = First | Others], Rest, Done, State, Model, Tried) ->
    {Found, More} = any_state(after_it(Model, Operation, State), lists:delete(First, Rest),
                              Done bor (1 bsl Number), Model, Tried),
    case Found of
        true -> {true, More};
        false -> any(Others, Rest, Done, State, Model, More)
    end.

any_state([], _, _, _, Tried) ->
    {false, Tried};
any_state([State | States], Rest, Done, Model, Tried) ->
    case search(Rest, Done, State, Model, Tried) of
        {true, _} = Found -> Found;
        {false, More} -> any_state(States, Rest, Done, Model, More)
    end.

%% An operation may come next if it began before any of the others had ended.
next(Rest) ->
    FirstEnd = lists:min([Ended || {_, #{ended := Ended}} <- Rest]),
    [Numbered || {_, #{began := Began}} = Numbered <- Rest, Began =< FirstEnd].

%% The states that may follow. A result that the state does not give has none. An operation without
%% an answer that would change nothing here need not be here.
after_it(Model, #{do := Do, result := unknown}, State) ->
    [Next || {_, Next} <- outcomes(Model, Do, State), Next =/= State];
after_it(Model, #{do := Do, result := Result}, State) ->
    [Next || {Given, Next} <- outcomes(Model, Do, State), Given =:= Result].

outcomes(session, open, none) -> [{ok, {open, info}}];
outcomes(session, open, _) -> [];
outcomes(session, call, {open, _} = Open) -> [{ok, Open}];
outcomes(session, level, {open, Level} = Open) -> [{Level, Open}];
outcomes(session, {set, Level}, {open, _}) -> [{ok, {open, Level}}];
outcomes(session, delete, {open, _}) -> [{ok, deleted}];
outcomes(session, _, State) -> [{not_found, State}];
outcomes(task, create, none) -> [{ok, running}];
outcomes(task, create, _) -> [];
outcomes(task, get, State) -> [{State, State}];
outcomes(task, {finish, How}, running) -> [{ok, {ended, How}}];
outcomes(task, cancel, running) -> [{ok, {ended, cancelled}}];
outcomes(task, _, State) -> [{too_late, State}];
outcomes(polled_task, create, none) -> [{ok, running}];
outcomes(polled_task, create, _) -> [];
outcomes(polled_task, _, none) -> [{not_found, none}];
outcomes(polled_task, get, running) -> [{running, running} | finished()];
outcomes(polled_task, get, finished) -> finished();
outcomes(polled_task, get, {ended, How} = Ended) -> [{How, Ended}];
outcomes(polled_task, cancel, running) ->
    [{ok, {ended, cancelled}}, {ok, finished}, {too_late, finished}];
outcomes(polled_task, cancel, Ended) -> [{ok, Ended}, {too_late, Ended}].

finished() ->
    [{How, {ended, How}} || How <- [completed, failed]].

-doc """
Returns a history of one key as a JSON value, for other checkers. An operation without an end has no
`ended`.
""".
-spec to_json([operation()]) -> json:encode_value().
to_json(Operations) ->
    [maps:merge(#{do => text(Do), result => text(Result), began => Began},
                maps:from_list([{ended, Ended} || is_integer(Ended)]))
     || #{do := Do, result := Result, began := Began, ended := Ended} <- by_beginning(Operations)].

text({Word, Of}) -> <<(text(Word))/binary, $\s, (text(Of))/binary>>;
text(Word) -> atom_to_binary(Word).
