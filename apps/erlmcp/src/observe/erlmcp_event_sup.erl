-module(erlmcp_event_sup).
-moduledoc """
Supervises the processes that call the handlers of a server's events (`m:erlmcp_event_handler`).
It starts the one of the option `on_event`, and the one for the application telemetry
(`m:erlmcp_telemetry`), where that is loaded. Users attach at most 100 others.

Internal.
""".

-behaviour(supervisor).

-export([start_link/2, attach/4, detach/2]).
-export([init/1]).

-export_type([id/0]).

-doc "A handler: of the options, of the library or, by `erlmcp_event:attach/3`, of a user.".
-type id() :: on_event | telemetry | {attached, term()}.

%% The most handlers that users may attach to a server.
-define(MOST, 100).

-doc "Starts the supervisor for the server with the key `Key` and the option `on_event`.".
-spec start_link(Key :: reference(), erlmcp_event_handler:handler() | none) ->
    supervisor:startlink_ret().
start_link(Key, OnEvent) ->
    supervisor:start_link(?MODULE, {Key, OnEvent}).

-doc """
Starts a process for a handler of the server with the key `Key`. Exits if the supervisor does not
run. The errors are those of `erlmcp_event:attach/3`. Processes that do this at the same moment may
each attach a handler above the bound.
""".
-spec attach(Supervisor :: pid(), id(), erlmcp_event_handler:handler(), Key :: reference()) ->
    ok | {error, already_attached | {too_many, pos_integer()}}.
attach(Supervisor, Id, Handler, Key) ->
    Attached = [Other || {{attached, Other}, _, _, _} <- supervisor:which_children(Supervisor)],
    case length(Attached) < ?MOST of
        true ->
            case supervisor:start_child(Supervisor, handler(Id, Handler, Key)) of
                {ok, _} -> ok;
                {error, {already_started, _}} -> {error, already_attached}
            end;
        false ->
            {error, {too_many, ?MOST}}
    end.

-doc "Ends the process of a handler, after it has handled the events that wait.".
-spec detach(Supervisor :: pid(), id()) -> ok | {error, not_found}.
detach(Supervisor, Id) ->
    maybe
        ok ?= supervisor:terminate_child(Supervisor, Id),
        supervisor:delete_child(Supervisor, Id)
    end.

handler(Id, Handler, Key) ->
    #{id => Id, start => {erlmcp_event_handler, start_link, [Key, Handler]}}.

-doc false.
init({Key, OnEvent}) ->
    ok = erlmcp_label:set([?MODULE], Key),
    Handlers = [{on_event, OnEvent}, {telemetry, erlmcp_telemetry:handler()}],
    {ok, {#{strategy => one_for_one, intensity => 10, period => 10},
          [handler(Id, Handler, Key) || {Id, Handler} <- Handlers, Handler =/= none]}}.
