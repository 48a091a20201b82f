-module(erlmcp_forecaster).
-moduledoc """
A process that forecasts when the bounds of the node, and of 100 servers at most, will be met
(`m:erlmcp_forecast`). It reads once a minute how much of each bound is used, and keeps the values
of the last hour. The forecasts are in a table.

Internal.
""".

-behaviour(gen_server).

-export([open/0, start_link/0, add_forecasts/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([owner/0]).

-doc "The owner of bounds: the server with the key `Key`, or the node.".
-type owner() :: Key :: reference() | node.

-define(MINUTE_MS, 60_000).
-define(MINUTES, 60).
%% The most servers that are read. Each costs some kilobytes.
-define(SERVERS, 100).

%% The values of one owner's bounds, the newest first.
-type history() :: [{AtMs :: integer(), #{atom() => non_neg_integer()}}].

-doc "Makes the table of the forecasts, which belongs to the calling process.".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {read_concurrency, true}]),
    ok.

-doc "Starts the process that makes the forecasts.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], [{hibernate_after, 1_000}]).

-doc """
Returns `Bounds`, the bounds of `Owner`, with the forecast of each bound added. A bound without a
forecast stays as it is.
""".
-spec add_forecasts(owner(), #{Name => erlmcp_bounds:bound()}) ->
    #{Name => #{used := non_neg_integer(), limit := non_neg_integer() | infinity,
                forecast => erlmcp:forecast()}}
    when Name :: atom().
add_forecasts(Owner, Bounds) ->
    Forecasts = forecasts(Owner),
    maps:map(fun(Name, Bound) ->
        case Forecasts of
            #{Name := Forecast} -> Bound#{forecast => Forecast};
            #{} -> Bound
        end
    end, Bounds).

forecasts(Owner) ->
    try
        ets:lookup_element(?MODULE, Owner, 2, #{})
    catch
        %% There is no table: the application does not run.
        error:badarg -> #{}
    end.

-doc false.
init([]) ->
    ok = erlmcp_label:set([?MODULE]),
    self() ! read,
    {ok, #{}}.

-doc false.
handle_call(_, _, Histories) ->
    {reply, {error, unknown}, Histories}.

-doc false.
handle_cast(_, Histories) ->
    {noreply, Histories}.

-doc false.
handle_info(read, Histories) ->
    _ = erlang:send_after(?MINUTE_MS, self(), read),
    At = erlang:system_time(millisecond),
    Now = maps:from_list([{node, erlmcp_bounds:of_node()} | servers()]),
    Next = maps:map(fun(Owner, Bounds) ->
        History = [{At, #{Name => Used || Name := #{used := Used} <- Bounds}}
                   | lists:sublist(maps:get(Owner, Histories, []), ?MINUTES - 1)],
        true = ets:insert(?MODULE, {Owner, forecasts(Bounds, History)}),
        History
    end, Now),
    _ = [true = ets:delete(?MODULE, Ended)
         || {Ended, _} <- ets:tab2list(?MODULE), not is_map_key(Ended, Next)],
    {noreply, Next};
handle_info(_, Histories) ->
    {noreply, Histories}.

servers() ->
    Running = lists:sublist(erlmcp_registry:servers(), ?SERVERS),
    [{Key, erlmcp_bounds:of_server(Instance)} || {_, _, #{key := Key} = Instance} <- Running].

-spec forecasts(#{atom() => erlmcp_bounds:bound()}, history()) -> #{atom() => erlmcp:forecast()}.
forecasts(Bounds, History) ->
    #{Name => Forecast
      || Name := #{limit := Limit} <- Bounds,
         #{} = Forecast <- [erlmcp_forecast:forecast(points(Name, History), Limit)]}.

%% The oldest first.
points(Name, History) ->
    lists:reverse([{At, Used} || {At, #{Name := Used}} <- History]).
