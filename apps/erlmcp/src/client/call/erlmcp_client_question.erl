-module(erlmcp_client_question).
-moduledoc """
The process of one request that a server sends outside of calls. A second process works the answer
out, and this one sends it and ends when the server has taken it. No answer is sent if the server
withdraws the request, or if the process that read it ends.

Source: specification 2025-11-25, "Cancellation".

Internal.
""".

-export([table/0, start/3, wait/3, go/1, take_back/2]).

-doc "Creates the table of a client's open questions, by the session's epoch and their ids.".
-spec table() -> ets:table().
table() ->
    ets:new(questions, [public]).

-doc "Answers a request in a process of its own, and returns a monitor of that process.".
-spec start(erlmcp_message:message(), erlmcp_client_connection:client(),
            erlmcp_client_connection:live()) -> reference().
start(Request, Client, Live) ->
    {Pid, Monitor} = wait(Request, Client, Live),
    ok = go(Pid),
    Monitor.

-doc "Starts the process of a request, which does not begin before `go/1`.".
-spec wait(erlmcp_message:message(), erlmcp_client_connection:client(),
           erlmcp_client_connection:live()) ->
    {pid(), reference()}.
wait({request, Id, _, _} = Request, #{questions := Table} = Client, #{epoch := Epoch} = Live) ->
    Reader = self(),
    Key = {Epoch, Id},
    {Pid, Monitor} = spawn_monitor(fun() ->
        Gone = monitor(process, Reader),
        try
            receive
                go -> serve(Request, {Client, Live}, Gone);
                taken_back -> true;
                {'DOWN', Gone, process, _, _} -> true
            end
        after
            in_table(fun() -> ets:delete_object(Table, {Key, self()}) end)
        end
    end),
    true = in_table(fun() -> ets:insert(Table, {Key, Pid}) end),
    {Pid, Monitor}.

%% The table ends with its client.
in_table(Change) ->
    try Change()
    catch
        error:badarg -> true
    end.

-doc "Lets a process that `wait/3` started begin.".
-spec go(pid()) -> ok.
go(Pid) ->
    Pid ! go,
    ok.

-doc "Withdraws the request with this id, if it is not answered yet.".
-spec take_back({Epoch :: non_neg_integer(), Id :: term()}, erlmcp_client_connection:client()) ->
    ok.
take_back(Key, #{questions := Table}) ->
    lists:foreach(fun({_, Pid}) -> Pid ! taken_back end, ets:lookup(Table, Key)).

serve({request, Id, Method, Params}, {#{settings := #{inputs := Inputs}} = Client, Live}, Gone) ->
    Request = #{~"method" => Method, ~"params" => Params},
    {Pid, Monitor} = erlmcp_one_shot:start(fun() ->
        erlmcp_client_inputs:respond(Request, Inputs)
    end, []),
    receive
        {'DOWN', Monitor, process, Pid, {outcome, Answer}} ->
            answer(Id, Answer, Client, Live);
        {'DOWN', Monitor, process, Pid, _} ->
            answer(Id, {error, -32603, ~"the client failed to answer"}, Client, Live);
        {'DOWN', Gone, process, _, _} ->
            exit(Pid, kill);
        taken_back ->
            exit(Pid, kill)
    after erlmcp_client_inputs:timeout(Client) ->
        exit(Pid, kill),
        answer(Id, {error, -32603, ~"the client had no answer in time"}, Client, Live)
    end.

answer(Id, Answer, Client, Live) ->
    _ = erlmcp_client_exchange:answer(Id, Answer, Client, Live),
    true.
