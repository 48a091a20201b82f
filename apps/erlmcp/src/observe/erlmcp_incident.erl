-module(erlmcp_incident).
-moduledoc """
Logs incidents, which are internal errors. The log gets a report with an id, and the peer gets the
id alone.

`log/1` and `log/2` wait while the log handlers block, and `log_apart/2` does not. The caller
outlines exceptions (`outline/2`), since the arguments of a call are not for the log.

Internal.
""".

-export([open/0, log/1, log/2, log_apart/2, outline/1, outline/2]).

%% Reasons of the runtime that have a value of the program, and those of Elixir's compiler.
-define(WITH_VALUE, [badmatch, case_clause, try_clause, else_clause, bad_generator, bad_generators,
                     bad_filter, badarg, badmap, badkey, badrecord, badfun, badarity,
                     with_clause, badbool, badstruct]).
%% The most elements of a tuple that are shown.
-define(ELEMENTS, 8).

-doc "Creates the table with the count of waiting reports, owned by the calling process.".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, {read_concurrency, true}]),
    true = ets:insert(?MODULE, {backlog, erlmcp_drop_counter:new()}),
    ok.

-doc """
Logs a report of an error. Returns the id that the report has as `incident`: 16 hexadecimal digits.
""".
-spec log(#{what := atom(), atom() => term()}) -> Id :: binary().
log(Report) ->
    Id = id(),
    ok = erlmcp_log:report(error, Report#{incident => Id}),
    Id.

-doc "Logs a report of an error of the server with the key `Key`, and returns the report's id.".
-spec log(#{what := atom(), atom() => term()}, Key :: reference()) -> Id :: binary().
log(Report, Key) ->
    Id = id(),
    ok = erlmcp_log:report(error, Report#{incident => Id}, Key),
    Id.

-doc """
Logs a report as `log/2` does, but in another process. If 1,000 reports of the node wait already,
the report is dropped, and its id is returned all the same. The next logged report has the number of
dropped ones as `dropped`. After the application has stopped, the calling process logs the report.
""".
-spec log_apart(#{what := atom(), atom() => term()}, Key :: reference()) -> Id :: binary().
log_apart(Report, Key) ->
    Id = id(),
    ok = apart(Report#{incident => Id}, Key),
    Id.

apart(Report, Key) ->
    try ets:lookup_element(?MODULE, backlog, 2) of
        Backlog ->
            _ = erlmcp_drop_counter:enter(Backlog)
                andalso spawn(fun() -> waiting(Report, Key, Backlog) end),
            ok
    catch
        %% The application has stopped before the server.
        error:badarg -> erlmcp_log:report(error, Report, Key)
    end.

%% OTP's log handlers drop a report after five seconds if their output is not read, but other
%% handlers may wait forever. So the counter bounds the waiting processes.
waiting(Report, Key, Backlog) ->
    try
        ok = erlmcp_log:report(error, erlmcp_drop_counter:with_dropped(Report, Backlog), Key)
    after
        ok = erlmcp_drop_counter:leave(Backlog)
    end.

-doc """
Returns the reason and the stack of an exception for a report, with arities in place of arguments.
In reasons of the runtime, such as `badmatch`, values are replaced by their kinds, such as
`'a binary'`. Atoms and the shape of small tuples stay. The fields `key`, `term` and `args` of an
Elixir exception are replaced in the same way. Other reasons stay as they are.

## Examples

```erlang
1> erlmcp_incident:outline({badmatch, {error, ~"secret"}}, [{lists, last, [[]], []}]).
#{reason => {badmatch, {error, 'a binary'}}, stacktrace => [{lists, last, 1, []}]}
```
""".
-spec outline(Reason :: term(), Stack :: list()) -> #{reason := term(), stacktrace := list()}.
outline(Reason, Stack) ->
    #{reason => outline(Reason), stacktrace => lists:map(fun without_arguments/1, Stack)}.

-doc """
Returns the reason of an exception or an exit for a report, as it is in the map of `outline/2`.
""".
-spec outline(Reason :: term()) -> term().
outline({badarg, [{Module, _, _, Location} | _]} = Exit) when is_atom(Module), is_list(Location) ->
    exit_of(Exit);
outline(Reason) when is_tuple(Reason), is_atom(element(1, Reason)) ->
    case lists:member(element(1, Reason), ?WITH_VALUE) of
        true -> shape(Reason);
        false -> exit_of(Reason)
    end;
%% An exception of Elixir.
outline(#{'__exception__' := true} = Exception) ->
    maps:map(fun(Field, Value) when Field =:= key; Field =:= term; Field =:= args -> shape(Value);
                (_, Value) -> Value
             end, Exception);
outline(Reason) ->
    exit_of(Reason).

%% A process that was called has ended, or this one is linked to one that has crashed.
exit_of({Reason, {Module, Function, Arguments}}) when is_atom(Module), is_list(Arguments) ->
    {outline(Reason), {Module, Function, length(Arguments)}};
exit_of({Reason, [{_, _, _, _} | _] = Stack}) ->
    {outline(Reason), lists:map(fun without_arguments/1, Stack)};
exit_of(Reason) ->
    Reason.

without_arguments({Module, Function, Arguments, Location}) when is_list(Arguments) ->
    {Module, Function, length(Arguments), Location};
without_arguments(Entry) ->
    Entry.

shape(Value) when is_atom(Value); Value =:= [] -> Value;
shape(Value) when is_binary(Value) -> 'a binary';
shape(Value) when is_number(Value) -> 'a number';
shape(Value) when is_list(Value) -> 'a list';
shape(Value) when is_map(Value) -> 'a map';
shape(Value) when is_tuple(Value), tuple_size(Value) =< ?ELEMENTS ->
    list_to_tuple([shape(Element) || Element <- tuple_to_list(Value)]);
shape(_) -> 'a term'.

id() ->
    binary:encode_hex(rand:bytes(8), lowercase).
