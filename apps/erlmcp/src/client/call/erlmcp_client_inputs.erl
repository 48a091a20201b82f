-module(erlmcp_client_inputs).
-moduledoc """
Answers a server's requests for input (elicitation, sampling, roots) from the client's option
`inputs`. It serves the requests of a session, and the `inputRequests` of 2026-07-28.

An answer to a form gets the defaults of the form's schema for members that the fun leaves out. It
is validated before it is sent.

Sources: specification, "Elicitation", "Sampling", "Roots"; 2026-07-28, "Multi Round-Trip Requests".

Internal.
""".

-export([capabilities/1, timeout/1, is_for_user/2, gather/3, respond/2]).

%% The most requests in one result, which are all answered at the same time.
-define(AT_ONCE, 16).

-doc "Returns the client capabilities that the members of the option `inputs` provide.".
-spec capabilities(erlmcp_client:inputs()) -> map().
capabilities(Inputs) ->
    Modes = #{Mode => #{} || {Key, Mode} <- [{elicit, ~"form"}, {elicit_url, ~"url"}],
                             is_map_key(Key, Inputs)},
    maps:from_list([{~"elicitation", Modes} || map_size(Modes) > 0]
                   ++ [{~"sampling", #{}} || is_map_key(sample, Inputs)]
                   ++ [{~"roots", #{}} || is_map_key(roots, Inputs)]).

-doc "Returns the milliseconds that an answer of a fun may take (`input_timeout`).".
-spec timeout(erlmcp_client_connection:client()) -> pos_integer().
timeout(#{settings := #{input_timeout := Timeout}}) ->
    Timeout.

-doc """
Returns `true` if a fun of the client's options may answer requests of `Method`, so that an answer
may take long.
""".
-spec is_for_user(Method :: binary(), erlmcp_client_connection:client()) -> boolean().
is_for_user(~"elicitation/create", #{settings := #{inputs := Inputs}}) ->
    is_map_key(elicit, Inputs) orelse is_map_key(elicit_url, Inputs);
is_for_user(~"sampling/createMessage", #{settings := #{inputs := Inputs}}) ->
    is_map_key(sample, Inputs);
is_for_user(~"roots/list", #{settings := #{inputs := #{roots := Roots}}}) ->
    is_function(Roots);
is_for_user(_, _) ->
    false.

-doc """
Returns the answers to the `inputRequests` of a result, by the requests' names. All are answered at
the same time, within `timeout/1`. The error has the name of a request without an answer, and `Why`
is a text, `timeout` or `crashed`. With more than 16 requests the name is empty, and `Why` is
`{too_many, 16}`. Throws `cancelled` if the call is cancelled, as `caller` and `cancel` of the
`t:erlmcp_client_exchange:watch/0` tell.
""".
-spec gather(Requests :: #{binary() => term()}, erlmcp_client_exchange:watch(),
             erlmcp_client_connection:client()) ->
    {ok, #{binary() => map()}} | {error, {input, Name :: binary(), Why :: term()}}.
gather(Requests, Watch, #{settings := #{inputs := Inputs}} = Client) when
    map_size(Requests) =< ?AT_ONCE
->
    Deadline = erlmcp_clock:now_ms() + timeout(Client),
    Questions = [{Name, erlmcp_one_shot:start(fun() -> respond(Request, Inputs) end, [])}
                 || Name := Request <- Requests],
    Call = self(),
    Guard = spawn(fun() ->
        Gone = monitor(process, Call),
        receive {'DOWN', Gone, process, Call, _} -> ok end,
        lists:foreach(fun({_, {Pid, _}}) -> exit(Pid, kill) end, Questions)
    end),
    Ends = {Deadline, maps:get(caller, Watch, none), maps:get(cancel, Watch, none)},
    Outcome = collect(Questions, Ends, #{}),
    exit(Guard, kill),
    case Outcome of
        cancelled -> throw(cancelled);
        _ -> Outcome
    end;
gather(_, _, _) ->
    {error, {input, ~"", {too_many, ?AT_ONCE}}}.

collect([], _, Answers) ->
    {ok, Answers};
collect([{Name, {Pid, Monitor}} | Questions], {Deadline, Caller, Cancel} = Ends, Answers) ->
    receive
        {'DOWN', Caller, process, _, _} ->
            end_all([{Name, {Pid, Monitor}} | Questions], cancelled);
        {erlmcp_cancel, Cancel} ->
            end_all([{Name, {Pid, Monitor}} | Questions], cancelled);
        {'DOWN', Monitor, process, Pid, {outcome, {ok, Answer}}} ->
            collect(Questions, Ends, Answers#{Name => Answer});
        {'DOWN', Monitor, process, Pid, {outcome, {error, _, Why}}} ->
            end_all(Questions, {error, {input, Name, Why}});
        {'DOWN', Monitor, process, Pid, _} ->
            end_all(Questions, {error, {input, Name, crashed}})
    after max(0, Deadline - erlmcp_clock:now_ms()) ->
        end_all([{Name, {Pid, Monitor}} | Questions], {error, {input, Name, timeout}})
    end.

end_all(Questions, Outcome) ->
    lists:foreach(fun({_, {Pid, Monitor}}) ->
                      _ = demonitor(Monitor, [flush]),
                      exit(Pid, kill)
                  end, Questions),
    Outcome.

-doc """
Answers one request, with a result, or with the code and the message of a JSON-RPC error. The caller
runs this in a process of its own, since a fun may take long, crash, or return what is not JSON.
""".
-spec respond(Request :: map() | term(), erlmcp_client:inputs()) ->
    {ok, map()} | {error, integer(), binary()}.
respond(#{~"method" := Method, ~"params" := null}, Inputs) ->
    respond(#{~"method" => Method}, Inputs);
respond(#{~"method" := _, ~"params" := Params}, _) when not is_map(Params) ->
    {error, -32602, ~"params: expected an object"};
respond(#{~"method" := Method} = Request, Inputs) when is_binary(Method) ->
    Params = maps:get(~"params", Request, #{}),
    Answer = answer(Method, Params, Inputs),
    %% An answer that is not JSON crashes this process, and not the one that sends it.
    _ = erlmcp_json:encode(element(tuple_size(Answer), Answer)),
    Answer;
respond(_, _) ->
    {error, -32600, ~"expected a request with a method"}.

answer(~"ping", _, _) ->
    {ok, #{}};
answer(~"elicitation/create", #{~"mode" := ~"url"} = Params, #{elicit_url := Fun}) ->
    case Fun(Params) of
        accept -> {ok, #{~"action" => ~"accept"}};
        Action -> refused(Action)
    end;
answer(~"elicitation/create", #{~"mode" := Mode}, _) when Mode =/= ~"form" ->
    undeclared(~"elicitation/create");
answer(~"elicitation/create", Params, #{elicit := Fun}) ->
    case Fun(Params) of
        {accept, Content} -> filled(Content, maps:get(~"requestedSchema", Params, #{}));
        Action -> refused(Action)
    end;
answer(~"sampling/createMessage", Params, #{sample := Fun}) ->
    case Fun(Params) of
        {ok, #{} = Result} -> {ok, Result};
        {error, Why} when is_binary(Why) -> {error, -1, Why}
    end;
answer(~"roots/list", _, #{roots := Fun}) when is_function(Fun) ->
    {ok, #{~"roots" => Fun()}};
answer(~"roots/list", _, #{roots := Roots}) ->
    {ok, #{~"roots" => Roots}};
answer(Method, _, _) ->
    undeclared(Method).

refused(decline) -> {ok, #{~"action" => ~"decline"}};
refused(cancel) -> {ok, #{~"action" => ~"cancel"}}.

undeclared(Method) ->
    {error, -32601, <<Method/binary, ": the client has not declared that it can">>}.

filled(Content, Schema) ->
    %% The content as it will be on the wire, where atoms are strings.
    Given = json:decode(iolist_to_binary(erlmcp_json:encode(Content))),
    Full = maps:merge(defaults(Schema), Given),
    case erlmcp_schema:compile(Schema, #{formats => assert}) of
        {ok, Compiled} ->
            case erlmcp_schema:validate(Full, Compiled) of
                ok ->
                    {ok, #{~"action" => ~"accept", ~"content" => Full}};
                {error, Found} ->
                    Sentences = lists:join($\s, erlmcp_schema:explain(Found)),
                    {error, -32603, iolist_to_binary([~"the answer does not fit: " | Sentences])}
            end;
        {error, _} ->
            {error, -32602, ~"requestedSchema: expected a JSON Schema"}
    end.

defaults(#{~"properties" := #{} = Properties}) ->
    #{Name => Default || Name := #{~"default" := Default} <- Properties};
defaults(_) ->
    #{}.
