-module(erlmcp_test_cluster_watchers).
-moduledoc """
Clients that watch a resource in a session, on its GET stream through the proxy. If the stream ends,
a watcher opens it again, and goes on after the last event that it has.
""".

-compile(nowarn_missing_spec_documented).

-export([start/1, stop/1, without_news/1]).

-export_type([watchers/0]).

-type watchers() :: #{url := binary(), watchers := [pid()]}.

-define(WATCHERS, 10).
-define(URI, ~"cluster://ticks").
-define(AGAIN_MS, 100).
-define(NEWS_MS, 5_000).

start(Url) ->
    #{url => Url, watchers => [spawn_link(fun() -> watch(Url) end)
                               || _ <- lists:seq(1, ?WATCHERS)]}.

stop(#{watchers := Watchers}) ->
    lists:foreach(fun(Watcher) -> true = unlink(Watcher), true = exit(Watcher, kill) end, Watchers).

%% Changes the resource, and returns how many watchers do not hear of it.
without_news(#{url := Url, watchers := Watchers}) ->
    _ = [Watcher ! {news, self()} || Watcher <- Watchers],
    _ = erlmcp_test_cluster_client:close(ticked(erlmcp_test_cluster_client:new(Url))),
    Until = erlang:monotonic_time(millisecond) + ?NEWS_MS,
    length([deaf || Watcher <- Watchers, not is_heard(Watcher, Until)]).

is_heard(Watcher, Until) ->
    receive
        {news, Watcher} -> true
    after max(0, Until - erlang:monotonic_time(millisecond)) ->
        false
    end.

ticked(Client) ->
    case erlmcp_test_cluster_client:call(~"tick", #{}, stateless, Client) of
        {{ok, _, _}, Next} -> Next;
        {_, Next} -> ticked(Next)
    end.

%% One watcher.

watch(Url) ->
    {Id, Client} = subscribed(erlmcp_test_cluster_client:new(Url)),
    listen(Id, none, Client).

subscribed(Client) ->
    maybe
        {{ok, #{id := Id}, _}, Opened} ?= erlmcp_test_cluster_client:open(Client),
        {{ok, _, _}, Subscribed} ?= erlmcp_test_cluster_client:subscribe(?URI, {session, Id},
                                                                         Opened),
        {Id, Subscribed}
    else
        {_, Next} -> subscribed(Next)
    end.

%% `Last` is the id of the last event.
listen(Id, Last, Client) ->
    case erlmcp_test_cluster_client:stream(Id, Last, Client) of
        {{200, Stream}, Open} -> listen(Id, read(Stream, ~"", Last), Open);
        %% The event is not kept any more.
        {{400, _}, Open} -> again(Id, none, Open);
        {{404, _}, _} -> receive never -> ok end;
        {_, Other} -> again(Id, Last, Other)
    end.

again(Id, Last, Client) ->
    receive after ?AGAIN_MS -> listen(Id, Last, Client) end.

%% Until the end of the stream. Returns the id of its last event.
read(Stream, Buffer, Last) ->
    case erlmcp_test_cluster_client:more(Stream) of
        {ok, Data} ->
            [Rest | Lines] = lists:reverse(binary:split(<<Buffer/binary, Data/binary>>, ~"\n",
                                                        [global])),
            read(Stream, Rest, lists:foldl(fun line/2, Last, lists:reverse(Lines)));
        ended ->
            Last
    end.

line(<<"id: ", Id/binary>>, _) ->
    Id;
line(<<"data: {", _/binary>> = Line, Last) ->
    case binary:match(Line, ?URI) of
        nomatch -> ok;
        _ -> receive {news, From} -> From ! {news, self()} after 0 -> ok end
    end,
    Last;
line(_, Last) ->
    Last.
