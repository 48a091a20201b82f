-module(erlmcp_event_sup).
-moduledoc """
Supervises the processes that call the handlers of a server's events (`m:erlmcp_event_handler`). At
first there is a handler if the server has the option `on_event`, and one for the application
telemetry (`m:erlmcp_telemetry`) if the node has it. Users attach others (`attach/4`).

Internal.
""".

-behaviour(supervisor).

-export([start_link/2, attach/4, detach/2]).
-export([init/1]).

-export_type([id/0]).

-doc """
The id of a handler: that of the option `on_event`, that of the application telemetry, or one that a
user has given to `erlmcp_event:attach/3`.
""".
-type id() :: on_event | telemetry | {attached, term()}.

%% The most handlers that users may attach to a server.
-define(MOST, 100).

-doc """
Starts the supervisor for the server with the key `Key`, whose option `on_event` is `OnEvent`.
""".
-spec start_link(Key :: reference(), erlmcp_event_handler:handler() | none) ->
    supervisor:startlink_ret().
start_link(Key, OnEvent) ->
    supervisor:start_link(?MODULE, {Key, OnEvent}).

-doc """
Starts a process for a handler of the server with the key `Key`. `already_attached` means that
another handler has the id. `too_many` means that users have attached 100 handlers already. Exits if
the supervisor does not run.
""".
-spec attach(Supervisor :: pid(), id(), erlmcp_event_handler:handler(), Key :: reference()) ->
    ok | {error, already_attached | {too_many, pos_integer()}}.
attach(Supervisor, Id, Handler, Key) ->
    Attached = [Other || {{attached, Other}, _, _, _} <- supervisor:which_children(Supervisor)],
    case length(Attached) < ?MOST of
        true ->
            case supervisor:start_child(Supervisor, handler(Id, Handler, Key)) of
                {ok, _} -> ok;
                {error, {already_started, _}} -> {error, already_attached};
                {error, already_present} ->
                    %% A caller of detach/2 has terminated the handler before, and has not deleted
                    %% its id yet, or was killed.
                    _ = supervisor:delete_child(Supervisor, Id),
                    attach(Supervisor, Id, Handler, Key)
            end;
        false ->
            {error, {too_many, ?MOST}}
    end.

-doc """
Ends the process of a handler, after it has handled the events that wait, or after five seconds.
`not_found` means that no handler has the id. Exits if the supervisor does not run.
""".
-spec detach(Supervisor :: pid(), id()) -> ok | {error, not_found}.
detach(Supervisor, Id) ->
    maybe
        ok ?= supervisor:terminate_child(Supervisor, Id),
        %% Another caller may have deleted the id, and attached a handler that runs.
        _ = supervisor:delete_child(Supervisor, Id),
        ok
    end.

handler(Id, Handler, Key) ->
    #{id => Id, start => {erlmcp_event_handler, start_link, [Key, Handler]}}.

-doc false.
init({Key, OnEvent}) ->
    ok = erlmcp_label:set([?MODULE], Key),
    Handlers = [{on_event, OnEvent}, {telemetry, erlmcp_telemetry:handler()}],
    {ok, {#{strategy => one_for_one, intensity => 10, period => 10},
          [handler(Id, Handler, Key) || {Id, Handler} <- Handlers, Handler =/= none]}}.
