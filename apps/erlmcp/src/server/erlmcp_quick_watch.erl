-module(erlmcp_quick_watch).
-moduledoc """
The process of the node that ends quick calls which are not (`m:erlmcp_quick`): such a call has no
process of its own, and who is in it looks at no clock. It is told by the timer of each, when its
time is over, and ends the process a moment later, unless that says first that the call is over
after all. Once the timer has gone off the process goes on only with this one's word, and so is
never ended for a call that it is done with.
""".

-behaviour(gen_server).

-export([start_link/0, watch/2, over/1, has_ended/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% Milliseconds that a process whose time is over may still say that it is done: it may have had no
%% processor, or the machine may have stood still.
-define(GRACE, 1_000).
%% Milliseconds after which no timer comes any more that has gone off.
-define(COMES, 10_000).
%% Processes that it is known of that they were ended here.
-define(ENDED, 100).

-type watched() :: {erlmcp_quick:mark(), erlmcp_quick:whose()}.

-record(state, {
    late = #{} :: #{reference() => {pid(), watched()}},
    %% over, before it was heard that they were late
    over = #{} :: #{reference() => true},
    ended = [] :: [pid()]
}).

-doc "Starts it.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], [{hibernate_after, 1000}]).

-doc "The calling process is in a quick call from now on, and for so many milliseconds at most.".
-spec watch(Milliseconds :: pos_integer(), watched()) -> reference().
watch(Milliseconds, Watched) ->
    erlang:start_timer(Milliseconds, ?MODULE, {self(), Watched}).

-doc "It is not any more.".
-spec over(reference()) -> ok.
over(Timer) ->
    case erlang:cancel_timer(Timer) of
        false -> settle(Timer);
        _ -> ok
    end.

settle(Timer) ->
    try
        gen_server:call(?MODULE, {over, Timer}, infinity)
    catch
        %% Nobody is there who could end it.
        exit:_ -> ok
    end.

-doc "Whether a process was ended here, of late.".
-spec has_ended(pid()) -> boolean().
has_ended(Pid) ->
    try
        gen_server:call(?MODULE, {has_ended, Pid}, infinity)
    catch
        exit:_ -> false
    end.

-doc false.
init([]) ->
    {ok, #state{}}.

-doc false.
handle_call({over, Timer}, _, #state{late = Late} = State) when
    is_map_key(Timer, Late)
->
    {reply, ok, State#state{late = maps:remove(Timer, Late)}};
handle_call({over, Timer}, _, #state{over = Over} = State) ->
    %% It has gone off, and what it says is on its way.
    _ = erlang:send_after(?COMES, self(), {forget, Timer}),
    {reply, ok, State#state{over = Over#{Timer => true}}};
handle_call({has_ended, Pid}, _, #state{ended = Ended} = State) ->
    {reply, lists:member(Pid, Ended), State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info({timeout, Timer, {Pid, {Mark, Whose} = Watched}}, #state{late = Late} = State) ->
    ok = erlmcp_quick:unmark(Mark, pause, {Whose, deadline}),
    case State#state.over of
        #{Timer := true} ->
            {noreply, State};
        #{} ->
            _ = erlang:send_after(?GRACE, self(), {overdue, Timer}),
            {noreply, State#state{late = Late#{Timer => {Pid, Watched}}}}
    end;
handle_info({overdue, Timer}, #state{late = Late, ended = Ended} = State) ->
    case maps:take(Timer, Late) of
        {{Pid, Watched}, Rest} ->
            ok = ended(Pid, Watched),
            {noreply, State#state{late = Rest, ended = lists:sublist([Pid | Ended], ?ENDED)}};
        error ->
            {noreply, State}
    end;
handle_info({forget, Timer}, #state{over = Over} = State) ->
    {noreply, State#state{over = maps:remove(Timer, Over)}};
handle_info(_, State) ->
    {noreply, State}.

%% One that is there no more passed its memory bound, or had another end in the middle of a call.
ended(Pid, {Mark, {Key, Method, Target} = Whose}) ->
    {What, Refusal} = case is_process_alive(Pid) of
        true -> {quick_call_late, erlmcp_refusal:new(timeout, ~"the call passed its deadline")};
        false -> {quick_call_died, erlmcp_refusal:new(internal_error, ~"the call was ended")}
    end,
    ok = erlmcp_quick:unmark(Mark, for_good, {Whose, deadline}),
    Incident = erlmcp_incident:log(#{what => What, method => Method, target => Target}),
    ok = erlmcp_event:emit(Key, incident, #{what => What, incident => Incident, method => Method,
                                            target => Target}),
    true = exit(Pid, kill),
    count(Refusal, erlmcp_shared:find(Key)).

count(Refusal, {ok, #{of_calls := Instance}}) ->
    {error, _} = erlmcp_answers:answered({error, Refusal}, Instance),
    ok;
count(_, gone) ->
    ok.
