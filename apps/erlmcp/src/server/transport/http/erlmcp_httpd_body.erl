-module(erlmcp_httpd_body).
-moduledoc """
Collects the body of an HTTP request as it arrives, bounded in size and in time. The body is a value
that the request's stream keeps until the body is complete. The owner of the request is sent
`{Tag, receive_timeout}` if the body does not arrive in time.

The bytes of a body that is not complete are counted (`m:erlmcp_unfinished_messages`). While there
is no room for more, an HTTP/1.1 connection is not read. The window of an HTTP/2 client is not
opened again. All bodies of an HTTP/2 connection together have a bound, too
(`erlmcp_heap:bodies_of_connection/1`).

Internal.
""".

-export([read/3, refuse/5, room/1, closing/1, data/3, verdict/2, late/1, broken/1, forget/1]).

-export_type([body/0, progress/0]).

%% Bytes of a body that a client may send at first, and again when there is room.
-define(AHEAD, 65_535).
%% Bytes of a refused body that are read and dropped, so that the connection can stay open.
-define(FORGOTTEN, 1_000_000).

%% Milliseconds after which a client may try again whose connection has too many bodies.
-define(RETRY_MS, 1000).

%% Bytes of a part of a body. The part is a copy: the bytes that were read may belong to a much
%% larger binary.
-define(PART, 32_768).

-record(body, {
    owner :: erlmcp_call:owner(),
    version :: cowboy:http_version(),
    max :: pos_integer(),
    %% bytes that all bodies of the connection may have; `infinity` if it has one at a time
    together :: pos_integer() | infinity,
    %% milliseconds
    most :: pos_integer(),
    timer :: reference(),
    %% complete parts, the newest first, and the bytes of the next part
    parts = [] :: [binary()] | forgotten,
    last = <<>> :: binary(),
    size = 0 :: non_neg_integer(),
    %% whether the client has to wait for room before it may send more
    waits = false :: boolean()
}).

-opaque body() :: #body{}.
-doc """
The state of a body, with commands for Cowboy.

- `more`: bytes are still missing. They are dropped if the request was refused.
- `whole`: the body is complete.
- `ended`: no more of the body is read. The commands end the request, or answer it.
- `refused`: the caller has to refuse the request, with the headers `Extra`.
""".
-type progress() ::
    {more, cowboy_stream:commands(), body()}
    | {whole, binary()}
    | {ended, cowboy_stream:commands()}
    | {refused, erlmcp_refusal:refusal(), Extra :: #{binary() => binary()}}.
-type limits() :: #{message_bytes := pos_integer(), receive_timeout_ms := pos_integer(),
                    instance := erlmcp_instance:instance(), _ => _}.

-doc """
Begins to read the body of a request whose head was accepted, and starts its timer. Returns `whole`
at once if the request has no body, or came with all of it, as `body` (HTTP/1.1).
""".
-spec read(cowboy_req:req(), erlmcp_call:owner(), limits()) -> progress().
read(#{body := Body}, _, _) ->
    {whole, Body};
read(#{has_body := true} = Request, Owner, Limits) ->
    {more, continue(Request), started(Request, Owner, Limits)};
read(_, _, _) ->
    {whole, <<>>}.

started(#{version := Version}, {Pid, Tag} = Owner, #{message_bytes := Max} = Limits) ->
    #{receive_timeout_ms := Timeout, instance := #{limits := OfServer}} = Limits,
    Together = case Version of
        'HTTP/2' -> erlmcp_heap:bodies_of_connection(OfServer);
        _ -> infinity
    end,
    #body{owner = Owner, version = Version, max = Max, together = Together, most = Timeout,
          timer = erlang:send_after(Timeout, Pid, {Tag, receive_timeout})}.

continue(#{version := 'HTTP/1.1', headers := #{~"expect" := Expectation}}) ->
    case cowboy_bstr:to_lower(Expectation) of
        ~"100-continue" -> [{inform, 100, #{}}];
        _ -> []
    end;
%% Opens the window of the connection, which earlier requests have used up.
continue(#{version := 'HTTP/2', body_length := undefined}) ->
    [{flow, ?AHEAD}];
continue(#{version := 'HTTP/2', body_length := Length}) ->
    [{flow, min(Length, ?AHEAD)}];
continue(_) ->
    [].

-doc """
Answers a request with a refusal at once. On HTTP/1.1 the rest of its body is read and dropped, so
that the connection can stay open. There the connection ends if the body has more than 1,000,000
bytes or does not arrive in time. It also ends if the client waits for `100 Continue`. `Extra` are
headers of the response.
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
refuse(Refusal, Extra, Request, _, _) ->
    {ended, room(Request) ++ erlmcp_httpd_response:refuse(Refusal, undefined, Extra)}.

-doc """
Returns the commands for the body of a request that is answered without reading it. An HTTP/2 client
may send a body before it reads the answer, and use up the window of the connection, which other
bodies need. So such a body gets room of its own. There are no commands on HTTP/1.1.
""".
-spec room(cowboy_req:req()) -> cowboy_stream:commands().
room(#{has_body := true, version := 'HTTP/2'} = Request) -> continue(Request);
room(_) -> [].

-doc "Returns the headers of an answer that ends its connection. HTTP/2 resets the stream instead.".
-spec closing(cowboy:http_version()) -> #{binary() => binary()}.
closing('HTTP/2') -> #{};
closing(_) -> #{~"connection" => ~"close"}.

-doc """
Adds the next bytes of a body, or drops them if the request was refused before. Refuses a body with
more than `message_bytes` bytes. If the bodies of an HTTP/2 connection exceed their bound together,
the largest is refused. If that is the body of another request, its owner is sent the refusal, and
passes it to `verdict/2`.
""".
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
            {refused, Refusal, closing(Version)};
        _ when IsFin =:= fin, Size =:= 0 ->
            ok = forget(Body),
            {whole, Data};
        _ when IsFin =:= fin ->
            ok = forget(Body),
            #body{parts = Parts, last = Last} = Body,
            {whole, iolist_to_binary(lists:reverse(Parts, [Last, Data]))};
        Total ->
            Begun = kept(Data, Body#body{size = Total}),
            case count_together(Begun) of
                ok ->
                    more(Data, Begun, Size);
                {refuse, Refusal} ->
                    ok = forget(Begun),
                    {refused, Refusal, closing(Version)}
            end
    end.

count_together(#body{together = infinity}) ->
    ok;
count_together(#body{owner = Owner, size = Size, together = Most}) ->
    case erlmcp_httpd_http2:count_body(Owner, Size) of
        Bytes when Bytes =< Most ->
            ok;
        Bytes ->
            Refusal = erlmcp_refusal:new(queue_byte_cap_exceeded,
                                         ~"too many messages arrive on this connection at once",
                                         #{limit => Most, observed => Bytes, fault => false,
                                           retry_after_ms => ?RETRY_MS}),
            refuse_largest(Owner, Refusal)
    end.

%% A client with a few large bodies does not keep out those of others, which share its proxy.
refuse_largest(Owner, Refusal) ->
    case erlmcp_httpd_http2:refuse_largest_body() of
        Owner ->
            {refuse, Refusal};
        {Pid, Tag} ->
            %% The body may get more bytes before this arrives.
            Pid ! {Tag, {unfinished, {refused, Refusal}}},
            ok
    end.

%% Joins small pieces to one binary, since many small binaries take many times their bytes.
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

-doc """
Goes on with a body, or refuses it, by a verdict that its owner was sent. `{refused, Refusal}` comes
from another body of its connection (`data/3`), and any other verdict from
`m:erlmcp_unfinished_messages`.
""".
-spec verdict(erlmcp_unfinished_messages:verdict() | {refused, erlmcp_refusal:refusal()},
              body()) -> progress().
verdict(go_on, #body{waits = false} = Body) ->
    {more, [], Body};
verdict(go_on, Body) ->
    {more, [{flow, ?AHEAD}], Body#body{waits = false}};
verdict(refused, Body) ->
    verdict({refused, erlmcp_unfinished_messages:refusal()}, Body);
verdict({refused, Refusal}, #body{version = Version} = Body) ->
    ok = forget(Body),
    {refused, Refusal, closing(Version)}.

-doc """
Refuses a request whose body did not arrive in time. If the request was refused before, only ends
it.
""".
-spec late(body()) -> progress().
late(#body{parts = forgotten}) ->
    {ended, [stop]};
late(#body{version = Version, most = Most} = Body) ->
    ok = forget(Body),
    Refusal = erlmcp_refusal:new(timeout, ~"the message did not arrive in time",
                                 #{status => 408, limit => Most}),
    {refused, Refusal, closing(Version)}.

-doc """
Refuses a request whose body cannot be read, since its chunks are not framed correctly (RFC 9112,
section 7.1). If the request was refused before, only ends it.
""".
-spec broken(body()) -> progress().
broken(#body{parts = forgotten} = Body) ->
    ok = forget(Body),
    {ended, [stop]};
broken(#body{version = Version} = Body) ->
    ok = forget(Body),
    Refusal = erlmcp_refusal:new(protocol_error, ~"expected a body in valid chunks",
                                 #{status => 400}),
    {refused, Refusal, closing(Version)}.

-doc """
Drops a body, stops its timer, and no longer counts its bytes as unfinished
(`m:erlmcp_unfinished_messages`). Does nothing for `none`.
""".
-spec forget(body() | none) -> ok.
forget(none) ->
    ok;
forget(#body{timer = Timer, owner = Owner, parts = Parts, size = Size, together = Together}) ->
    _ = erlang:cancel_timer(Timer),
    _ = Together =:= infinity orelse erlmcp_httpd_http2:count_body(Owner, 0),
    _ = Parts =:= forgotten orelse erlmcp_unfinished_messages:count(Owner, Size, 0),
    ok.
