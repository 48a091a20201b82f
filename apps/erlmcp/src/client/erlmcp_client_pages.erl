-module(erlmcp_client_pages).
-moduledoc """
The items of a list that comes in pages: all of them, within the limits. Runs in the call's process.

Source: specification 2026-07-28, "Pagination".
""".

-export([collect/3]).

-type fetch() :: fun(({Method :: binary(), Params :: map()}) -> {ok, map()} | {error, term()}).

-doc "Fetches page after page; `list_bytes` bounds what all of them have.".
-spec collect({Method :: binary(), Items :: binary()}, fetch(), erlmcp_client_options:limits()) ->
    {ok, [map()]} | {error, term()}.
collect({Method, Items}, Fetch, Limits) ->
    page({Method, #{}}, Items, Fetch, Limits, {#{}, [], 0}).

page({Method, _} = Request, Items, Fetch, Limits, {Seen, Pages, Bytes}) ->
    #{pages := Most, list_bytes := MostBytes} = Limits,
    case Fetch(Request) of
        {ok, #{~"nextCursor" := Cursor}} when is_map_key(Cursor, Seen) ->
            {error, {cursor_loop, Cursor}};
        {ok, #{~"nextCursor" := _}} when map_size(Seen) + 1 >= Most ->
            {error, {too_many_pages, Most}};
        {ok, #{Items := Page, ~"nextCursor" := Cursor}} ->
            case Bytes + erlang:external_size([Cursor | Page]) of
                More when More > MostBytes ->
                    {error, {too_large, MostBytes}};
                More ->
                    %% A page would keep the whole message alive that it came in.
                    [Next | Own] = erlmcp_client_mailbox:own([Cursor | Page]),
                    page({Method, #{~"cursor" => Next}}, Items, Fetch, Limits,
                         {Seen#{Next => []}, [Own | Pages], More})
            end;
        {ok, #{Items := Page}} ->
            {ok, lists:append(lists:reverse([Page | Pages]))};
        {error, _} = Error ->
            Error
    end.
