-module(erlmcp_client_questions).
-moduledoc """
What a server asks its client by itself, on no call's stream: requests that somebody is asked about
are answered a few at a time, others wait, and for whom there is no room is refused at once. It is
part of the process that reads them.

What nobody is asked about (`ping`, an unknown method, a refusal) is answered when it comes. Only to
a server that has a hundred such answers under way, and does not take them, no more are sent.
""".

-export([new/0, ask/3, ended/2]).

-export_type([questions/0]).

%% Requests that somebody is asked about at once, and those that wait meanwhile, with their bytes.
-define(AT_ONCE, 16).
-define(WAITING, 100).
-define(WAITING_BYTES, 1_000_000).
%% Answers that are known, on their way at once.
-define(ANSWERS, 100).

-type server() :: {erlmcp_peer:client(), erlmcp_peer:live()}.

-record(questions, {
    open = [] :: [reference()],
    waiting = [] :: [{Bytes :: pos_integer(), erlmcp_message:message(), server()}],
    bytes = 0 :: non_neg_integer(),
    answers = [] :: [reference()]
}).

-opaque questions() :: #questions{}.

-doc "Nobody asks.".
-spec new() -> questions().
new() ->
    #questions{}.

-doc "A request of the server's. Processes begin of whose ends the caller hears: see `ended/2`.".
-spec ask(erlmcp_message:message(), server(), questions()) -> questions().
ask({request, _, Method, _} = Request, {Client, _} = Server, Questions) ->
    #questions{open = Open, waiting = Waiting, bytes = Bytes} = Questions,
    Size = erlang:external_size(Request),
    case erlmcp_client_inputs:is_asked(Method, Client) of
        true when length(Open) < ?AT_ONCE ->
            opened(Request, Server, Questions);
        true when length(Waiting) < ?WAITING, Bytes + Size =< ?WAITING_BYTES ->
            Questions#questions{waiting = Waiting ++ [{Size, Request, Server}],
                                bytes = Bytes + Size};
        true ->
            known(fun refuse/2, Request, Server, Questions);
        false ->
            known(fun start/2, Request, Server, Questions)
    end.

-doc "The end of a process that has this monitor, if it is one of these. Who waits is next.".
-spec ended(reference(), questions()) -> {ok, questions()} | other.
ended(Monitor, #questions{open = Open, answers = Answers} = Questions) ->
    case {lists:member(Monitor, Open), lists:member(Monitor, Answers)} of
        {true, false} -> {ok, next(Questions#questions{open = lists:delete(Monitor, Open)})};
        {false, true} -> {ok, Questions#questions{answers = lists:delete(Monitor, Answers)}};
        {false, false} -> other
    end.

next(#questions{waiting = []} = Questions) ->
    Questions;
next(#questions{waiting = [{Size, Request, Server} | Waiting], bytes = Bytes} = Questions) ->
    opened(Request, Server, Questions#questions{waiting = Waiting, bytes = Bytes - Size}).

opened(Request, Server, #questions{open = Open} = Questions) ->
    Questions#questions{open = [start(Request, Server) | Open]}.

known(Answer, Request, Server, #questions{answers = Answers} = Questions) when
    length(Answers) < ?ANSWERS
->
    Questions#questions{answers = [Answer(Request, Server) | Answers]};
known(_, _, _, Questions) ->
    Questions.

start(Request, {Client, Live}) ->
    erlmcp_client_inputs:start(Request, Client, Live).

refuse({request, Id, _, _}, {Client, Live}) ->
    Refusal = {error, -32603, ~"the client has as many of the server's requests as it can answer"},
    {_, Monitor} = spawn_monitor(fun() ->
        erlmcp_client_attempt:answer(Id, Refusal, Client, Live)
    end),
    Monitor.
