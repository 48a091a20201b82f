-module(erlmcp_client_pages).
-moduledoc """
All pages of a list, one after the other, in the process of the call that asks for them.

Source: specification 2026-07-28, "Pagination", "Caching / Pagination".
""".

-export([all/3]).

-doc "Gives the result of a request: one that is kept will do, or it has to be fresh.".
-type fetch() :: fun((erlmcp_client_cache:key(), kept | fresh) -> {ok, map()} | {error, term()}).

-doc "The items of all pages of a list, of which there may be so many.".
-spec all({Method :: binary(), Items :: binary()}, Limit :: pos_integer(), fetch()) ->
    {ok, [map()]}
    | {error, {cursor_loop, binary()} | {too_many_pages, pos_integer()} | term()}.
all({Method, Items}, Limit, Fetch) ->
    case pages(none, {Method, Items, Limit}, fun(Request) -> Fetch(Request, kept) end, #{}, []) of
        {error, {page, {rpc, #{code := -32602}}}} ->
            %% A page that was kept may have a cursor that the server does not know any more.
            outcome(pages(none, {Method, Items, Limit},
                          fun(Request) -> Fetch(Request, fresh) end, #{}, []));
        Outcome ->
            outcome(Outcome)
    end.

outcome({error, {page, Reason}}) -> {error, Reason};
outcome(Outcome) -> Outcome.

pages(At, {Method, Items, Limit} = List, Fetch, Seen, Pages) ->
    case Fetch({Method, params(At)}) of
        {ok, #{Items := Page} = Result} ->
            case Result of
                #{~"nextCursor" := Cursor} when is_map_key(Cursor, Seen) ->
                    {error, {cursor_loop, Cursor}};
                #{~"nextCursor" := Cursor} when Cursor =/= null, length(Pages) + 1 >= Limit ->
                    {error, {too_many_pages, Limit}};
                #{~"nextCursor" := Cursor} when Cursor =/= null ->
                    pages(Cursor, List, Fetch, Seen#{Cursor => []}, [Page | Pages]);
                #{} ->
                    {ok, lists:append(lists:reverse([Page | Pages]))}
            end;
        {error, Reason} when At =/= none ->
            {error, {page, Reason}};
        {error, _} = Error ->
            Error
    end.

params(none) -> #{};
params(Cursor) -> #{~"cursor" => Cursor}.
