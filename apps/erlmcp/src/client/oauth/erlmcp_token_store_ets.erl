-module(erlmcp_token_store_ets).
-moduledoc """
A token store in memory, for at most 1000 entries. They are lost when the process that opened the
store ends. The store has no options.

Internal.
""".

-behaviour(erlmcp_token_store).

-export([open/1, get/2, put/3, delete/2]).

-define(MAX_VALUES, 1000).

-doc false.
open(Options) when map_size(Options) =:= 0 ->
    {ok, ets:new(erlmcp_tokens, [public, {read_concurrency, true}])};
open(Options) ->
    {error, {bad_option, hd(maps:keys(Options))}}.

-doc false.
get(Key, Table) ->
    in_table(fun() ->
                 case ets:lookup(Table, Key) of
                     [{_, Value}] -> {ok, Value};
                     [] -> none
                 end
             end).

-doc false.
put(Key, Value, Table) ->
    in_table(fun() ->
                 case ets:info(Table, size) < ?MAX_VALUES orelse ets:member(Table, Key) of
                     true ->
                         true = ets:insert(Table, {Key, Value}),
                         ok;
                     false ->
                         {error, {full, ?MAX_VALUES}}
                 end
             end).

-doc false.
delete(Key, Table) ->
    in_table(fun() ->
                 true = ets:delete(Table, Key),
                 ok
             end).

%% The stack of a `badarg` for a missing table would contain the arguments, which are secrets.
in_table(Access) ->
    try
        Access()
    catch
        error:badarg -> {error, closed}
    end.
