-module(erlmcp_httpd_body).
-moduledoc """
The body of an HTTP request as it arrives, bounded in size and in time: a value that the request's
stream keeps until the body is there. Its owner is sent `{Tag, receive_timeout}` when it is late.

What has come of it is counted (`m:erlmcp_unfinished_messages`). While there is no room for more,
its client is not told to send more, on HTTP/2, and nothing more is read, on HTTP/1.1.

Internal.
""".

-export([read/3, refuse/5, closing/1, data/3, told/2, late/1, broken/1, forget/1]).

-export_type([body/0, progress/0]).

%% Bytes of a body that a client may have on the way at first, and when there is room again.
-define(AHEAD, 65_535).
%% Bytes of a refused body that are read so that the connection can go on.
-define(FORGOTTEN, 1_000_000).

%% Bytes of which a part of a body is made: an own one, since what was read may be part of much
%% more, or have room for as much again.
-define(PART, 32_768).

-record(body, {
    owner :: erlmcp_call:owner(),
    version :: cowboy:http_version(),
    max :: pos_integer(),
    %% milliseconds
    most :: pos_integer(),
    timer :: reference(),
    %% the newest first, and what comes behind them
    parts = [] :: [binary()] | forgotten,
    last = <<>> :: binary(),
    size = 0 :: non_neg_integer(),
    %% whether its client may send more only when there is room
    waits = false :: boolean()
}).

-opaque body() :: #body{}.
-doc "The body goes on, is there as a whole, or nothing is done with it any more.".
-type progress() ::
    {more, cowboy_stream:commands(), body()}
    | {whole, binary()}
    | {ended, cowboy_stream:commands()}.
-type limits() :: #{message_bytes := pos_integer(), receive_timeout_ms := pos_integer(), _ => _}.

-doc """
Begins to read the body of a request whose head has been accepted. A plain request has it with its
head, as `body`.
""".
-spec read(cowboy_req:req(), erlmcp_call:owner(), limits()) -> progress().
read(#{body := Body}, _, _) ->
    {whole, Body};
read(#{has_body := true} = Request, Owner, Limits) ->
    {more, continue(Request), started(Request, Owner, Limits)};
read(_, _, _) ->
    {whole, <<>>}.

started(#{version := Version}, {Pid, Tag} = Owner, #{message_bytes := Max} = Limits) ->
    #{receive_timeout_ms := Timeout} = Limits,
    #body{owner = Owner, version = Version, max = Max, most = Timeout,
          timer = erlang:send_after(Timeout, Pid, {Tag, receive_timeout})}.

continue(#{version := 'HTTP/1.1', headers := #{~"expect" := Expectation}}) ->
    case cowboy_bstr:to_lower(Expectation) of
        ~"100-continue" -> [{inform, 100, #{}}];
        _ -> []
    end;
%% What came on the connection before has used up its window, and this is what opens it again.
continue(#{version := 'HTTP/2', body_length := undefined}) ->
    [{flow, ?AHEAD}];
continue(#{version := 'HTTP/2', body_length := Length}) ->
    [{flow, min(Length, ?AHEAD)}];
continue(_) ->
    [].

-doc """
Answers a request with a refusal at once. What may still come of a body is read and forgotten,
within bounds, so that the connection lives on; where nothing says that it comes, it does not.
`Extra` are headers of the response.
""".
-spec refuse(erlmcp_refusal:refusal(), Extra :: #{binary() => binary()}, cowboy_req:req(),
             erlmcp_call:owner(), limits()) -> progress().
refuse(Refusal, Extra, #{body := _}, _, _) ->
    {ended, erlmcp_httpd_response:refuse(Refusal, undefined, Extra)};
refuse(Refusal, Extra, #{has_body := true, version := 'HTTP/1.1' = Version, headers := Headers,
                         body_length := Length} = Request, Owner, Limits) ->
    Closing = maps:merge(Extra, closing(Version)),
    case Headers of
        #{~"expect" := _} ->
            {ended, erlmcp_httpd_response:refuse(Refusal, undefined, Closing)};
        #{} when is_integer(Length), Length > ?FORGOTTEN ->
            {ended, erlmcp_httpd_response:refuse(Refusal, undefined, Closing)};
        #{} ->
            [Response, stop] = erlmcp_httpd_response:refuse(Refusal, undefined, Extra),
            {more, [Response], (started(Request, Owner, Limits))#body{parts = forgotten}}
    end;
refuse(Refusal, Extra, _, _, _) ->
    {ended, erlmcp_httpd_response:refuse(Refusal, undefined, Extra)}.

-doc "The headers of an answer that ends the connection. HTTP/2 resets the stream, and has others.".
-spec closing(cowboy:http_version()) -> #{binary() => binary()}.
closing('HTTP/2') -> #{};
closing(_) -> #{~"connection" => ~"close"}.

-doc "What arrived of it.".
-spec data(cowboy_stream:fin(), binary(), body()) -> progress().
data(IsFin, Data, #body{parts = forgotten, size = Size} = Body) ->
    case Size + byte_size(Data) of
        Total when IsFin =:= fin; Total > ?FORGOTTEN ->
            ok = forget(Body),
            {ended, [stop]};
        Total ->
            {more, [{flow, byte_size(Data)}], Body#body{size = Total}}
    end;
data(IsFin, Data, #body{size = Size, max = Max, version = Version} = Body) ->
    case Size + byte_size(Data) of
        Total when Total > Max ->
            ok = forget(Body),
            Refusal = erlmcp_refusal:new(message_too_large, ~"the message is too large",
                                         #{limit => Max, observed => Total}),
            {ended, erlmcp_httpd_response:refuse(Refusal, undefined, closing(Version))};
        _ when IsFin =:= fin, Size =:= 0 ->
            ok = forget(Body),
            {whole, Data};
        _ when IsFin =:= fin ->
            ok = forget(Body),
            #body{parts = Parts, last = Last} = Body,
            {whole, iolist_to_binary(lists:reverse(Parts, [Last, Data]))};
        Total ->
            more(Data, kept(Data, Body#body{size = Total}), Size)
    end.

%% Many small pieces are one binary: as terms of their own they would take many times their bytes.
kept(Data, #body{last = Last, parts = Parts} = Body) ->
    case <<Last/binary, Data/binary>> of
        Part when byte_size(Part) >= ?PART ->
            Body#body{parts = [binary:copy(Part) | Parts], last = <<>>};
        Begun ->
            Body#body{last = Begun}
    end.

more(Data, #body{owner = Owner, size = Size, waits = Waits} = Body, Before) ->
    case erlmcp_unfinished_messages:count(Owner, Before, Size) of
        ok when Waits -> {more, [], Body};
        ok -> {more, [{flow, byte_size(Data)}], Body};
        wait -> {more, [], Body#body{waits = true}}
    end.

-doc "Its owner was told that there is room, or that there is none for this body.".
-spec told(erlmcp_unfinished_messages:verdict(), body()) -> progress().
told(go_on, #body{waits = false} = Body) ->
    {more, [], Body};
told(go_on, Body) ->
    {more, [{flow, ?AHEAD}], Body#body{waits = false}};
told(refused, #body{version = Version} = Body) ->
    ok = forget(Body),
    Refusal = erlmcp_unfinished_messages:refusal(),
    {ended, erlmcp_httpd_response:refuse(Refusal, undefined, closing(Version))}.

-doc "It did not arrive in time.".
-spec late(body()) -> cowboy_stream:commands().
late(#body{parts = forgotten}) ->
    [stop];
late(#body{version = Version, most = Most} = Body) ->
    ok = forget(Body),
    Refusal = erlmcp_refusal:new(timeout, ~"the message did not arrive in time",
                                 #{status => 408, limit => Most}),
    erlmcp_httpd_response:refuse(Refusal, undefined, closing(Version)).

-doc """
Answers a request whose body cannot be read: its chunks are not framed as RFC 9112, section 7.1, has
it.
""".
-spec broken(body()) -> cowboy_stream:commands().
broken(#body{version = Version} = Body) ->
    ok = forget(Body),
    Refusal = erlmcp_refusal:new(protocol_error, ~"expected a body in chunks, got a wrong one",
                                 #{status => 400}),
    erlmcp_httpd_response:refuse(Refusal, undefined, closing(Version)).

-doc "Forgets the body: nothing more is done with it.".
-spec forget(body() | none) -> ok.
forget(none) ->
    ok;
forget(#body{timer = Timer, owner = Owner, parts = Parts, size = Size}) ->
    _ = erlang:cancel_timer(Timer),
    _ = Parts =:= forgotten orelse erlmcp_unfinished_messages:count(Owner, Size, 0),
    ok.
