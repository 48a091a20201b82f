-module(erlmcp_client_questions).
-moduledoc """
The requests that a server sends outside of calls, as state of the process that reads them. A few at
a time are put to the user's funs, others wait, and further ones are refused at once.

Requests without such a fun (`ping`, an unknown method, a refusal) are answered when they come. A
server that leaves a hundred of these answers unread gets no more.

Internal.
""".

-export([new/0, ask/3, ended/2]).

-export_type([questions/0]).

%% Requests that funs answer at the same time, and those that wait meanwhile, with their bytes. A
%% waiting request has its process already, which hears when the server withdraws it.
-define(AT_ONCE, 16).
-define(WAITING, 100).
-define(WAITING_BYTES, 1_000_000).
%% Answers without a fun that are being sent at the same time.
-define(ANSWERS, 100).

-type server() :: {erlmcp_client_connection:client(), erlmcp_client_connection:live()}.

-record(questions, {
    open = [] :: [reference()],
    waiting = [] :: [{reference(), pid(), Bytes :: pos_integer()}],
    bytes = 0 :: non_neg_integer(),
    answers = [] :: [reference()]
}).

-opaque questions() :: #questions{}.

-doc "Returns an empty set of questions.".
-spec new() -> questions().
new() ->
    #questions{}.

-doc """
Adds a request of the server. Its process is monitored: the caller passes the end to `ended/2`.
""".
-spec ask(erlmcp_message:message(), server(), questions()) -> questions().
ask({request, _, Method, _} = Request, {Client, Live} = Server, Questions) ->
    #questions{open = Open, waiting = Waiting, bytes = Bytes} = Questions,
    Size = erlang:external_size(Request),
    case erlmcp_client_inputs:is_asked(Method, Client) of
        true when length(Open) < ?AT_ONCE ->
            opened(Request, Server, Questions);
        true when length(Waiting) < ?WAITING, Bytes + Size =< ?WAITING_BYTES ->
            {Pid, Monitor} = erlmcp_client_question:wait(Request, Client, Live),
            Questions#questions{waiting = Waiting ++ [{Monitor, Pid, Size}],
                                bytes = Bytes + Size};
        true ->
            answer_at_once(fun refuse/2, Request, Server, Questions);
        false ->
            answer_at_once(fun start/2, Request, Server, Questions)
    end.

-doc "Removes the process with this monitor, if it is one of these, and begins the next question.".
-spec ended(reference(), questions()) -> {ok, questions()} | other.
ended(Monitor, #questions{open = Open, waiting = Waiting, answers = Answers} = Questions) ->
    case {lists:member(Monitor, Open), lists:keytake(Monitor, 1, Waiting),
          lists:member(Monitor, Answers)} of
        {true, _, _} ->
            {ok, next(Questions#questions{open = lists:delete(Monitor, Open)})};
        {_, {value, {_, _, Size}, Left}, _} ->
            #questions{bytes = Bytes} = Questions,
            {ok, Questions#questions{waiting = Left, bytes = Bytes - Size}};
        {_, _, true} ->
            {ok, Questions#questions{answers = lists:delete(Monitor, Answers)}};
        _ ->
            other
    end.

next(#questions{waiting = []} = Questions) ->
    Questions;
next(#questions{waiting = [{Monitor, Pid, Size} | Waiting]} = Questions) ->
    #questions{open = Open, bytes = Bytes} = Questions,
    ok = erlmcp_client_question:go(Pid),
    Questions#questions{open = [Monitor | Open], waiting = Waiting, bytes = Bytes - Size}.

opened(Request, Server, #questions{open = Open} = Questions) ->
    Questions#questions{open = [start(Request, Server) | Open]}.

answer_at_once(Answer, Request, Server, #questions{answers = Answers} = Questions) when
    length(Answers) < ?ANSWERS
->
    Questions#questions{answers = [Answer(Request, Server) | Answers]};
answer_at_once(_, _, _, Questions) ->
    Questions.

start(Request, {Client, Live}) ->
    erlmcp_client_question:start(Request, Client, Live).

refuse({request, Id, _, _}, {Client, Live}) ->
    Refusal = {error, -32603, ~"the client has as many of the server's requests as it can answer"},
    {_, Monitor} = spawn_monitor(fun() ->
        erlmcp_client_exchange:answer(Id, Refusal, Client, Live)
    end),
    Monitor.
