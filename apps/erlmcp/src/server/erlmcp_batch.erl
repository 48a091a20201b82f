-module(erlmcp_batch).
-moduledoc """
A JSON-RPC batch of 2025-03-26: the calls of one message, run side by side by one process, and
their answers sent to the owner as one. To its owner it is a call.

Source: specification 2025-03-26, "Base protocol / Batching".
""".

-export([start/2, start/3]).

-doc """
Starts a batch that is linked to the calling process. `Items` are calls, and answers that are known
already.
""".
-spec start([erlmcp_engine:effect(), ...], erlmcp_options:limits()) -> pid().
start(Items, Limits) ->
    Owner = self(),
    spawn_link(fun() -> run(Items, {Owner, {erlmcp_call, self()}}, Limits) end).

-doc "The same with a tag of the owner's.".
-spec start([erlmcp_engine:effect(), ...], erlmcp_options:limits(), Tag :: term()) -> pid().
start(Items, Limits, Tag) ->
    Owner = {self(), Tag},
    spawn_link(fun() -> run(Items, Owner, Limits) end).

run(Items, {Pid, _} = Owner, Limits) ->
    process_flag(trap_exit, true),
    {Answers, Calls} = lists:foldl(fun item/2, {[], erlmcp_calls:new(Limits)}, Items),
    Bytes = iolist_to_binary(erlmcp_message:batch(gather(Answers, Calls, Owner))),
    exit(Pid, {erlmcp_answer, 200, Bytes}),
    unlink(Pid).

item({reply, _, Bytes}, {Answers, Calls}) ->
    {[Bytes | Answers], Calls};
item({call, Call}, {Answers, Calls}) ->
    case erlmcp_calls:start(Call, Calls) of
        {ok, Started} -> {Answers, Started};
        {reply, _, Bytes} -> {[Bytes | Answers], Calls}
    end.

gather(Answers, Calls, {Pid, Tag} = Owner) ->
    case erlmcp_calls:count(Calls) of
        0 ->
            lists:reverse(Answers);
        _ ->
            receive
                {{erlmcp_call, _}, {notification, _} = Notification} ->
                    Pid ! {Tag, Notification},
                    gather(Answers, Calls, Owner);
                {{erlmcp_call, Call}, Message} ->
                    answered(erlmcp_calls:message(Call, Message, Calls), Answers, Owner);
                {'EXIT', Pid, _} ->
                    erlmcp_calls:stop(Calls),
                    exit(shutdown);
                {'EXIT', Call, Reason} ->
                    answered(erlmcp_calls:exited(Call, Reason, Calls), Answers, Owner)
            end
    end.

answered({[], Calls}, Answers, Owner) -> gather(Answers, Calls, Owner);
answered({Bytes, Calls}, Answers, Owner) -> gather([Bytes | Answers], Calls, Owner).
