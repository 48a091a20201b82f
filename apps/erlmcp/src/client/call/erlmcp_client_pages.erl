-module(erlmcp_client_pages).
-moduledoc """
The pages of a list, collected within the limits of the client. Runs in the call's process.

Source: specification 2026-07-28, "Pagination", "Caching / Interaction with Pagination".

Internal.
""".

-export([collect/3]).

-doc """
A fun that returns the result of a request: `kept` may take it from the cache, `fresh` may not.
""".
-type fetch() :: fun(({Method :: binary(), Params :: map()}, kept | fresh) ->
                         {ok, map()} | {error, term()}).

-doc "Fetches page after page, and returns the items of all. `list_bytes` bounds their size.".
-spec collect({Method :: binary(), Items :: binary()}, fetch(), erlmcp_client_options:limits()) ->
    {ok, [map()]} | {error, term()}.
collect({Method, Items}, Fetch, Limits) ->
    Pages = fun(Which) ->
        page({Method, #{}}, Items, fun(Request) -> Fetch(Request, Which) end, Limits, {#{}, [], 0})
    end,
    case Pages(kept) of
        {unknown_cursor, _} ->
            %% A cached page may have a cursor that the server no longer knows.
            case Pages(fresh) of
                {unknown_cursor, Reason} -> {error, Reason};
                Outcome -> Outcome
            end;
        Outcome ->
            Outcome
    end.

page({Method, Params} = Request, Items, Fetch, Limits, {Seen, Pages, Bytes}) ->
    #{pages := Most, list_bytes := MostBytes} = Limits,
    case Fetch(Request) of
        {ok, #{~"nextCursor" := Cursor}} when is_map_key(Cursor, Seen) ->
            {error, {cursor_loop, Cursor}};
        {ok, #{~"nextCursor" := Cursor}} when Cursor =/= null, map_size(Seen) + 1 >= Most ->
            {error, {too_many_pages, Most}};
        {ok, #{Items := Page, ~"nextCursor" := Cursor}} when Cursor =/= null ->
            case Bytes + erlang:external_size([Cursor | Page]) of
                More when More > MostBytes ->
                    {error, {too_large, MostBytes}};
                More ->
                    %% Without a copy, a page would keep the whole received message alive.
                    [Next | Own] = erlmcp_client_mailbox:own([Cursor | Page]),
                    page({Method, #{~"cursor" => Next}}, Items, Fetch, Limits,
                         {Seen#{Next => []}, [Own | Pages], More})
            end;
        {ok, #{Items := Page}} ->
            {ok, lists:append(lists:reverse([Page | Pages]))};
        {error, {rpc, #{code := -32602}} = Reason} when is_map_key(~"cursor", Params) ->
            {unknown_cursor, Reason};
        {error, _} = Error ->
            Error
    end.
