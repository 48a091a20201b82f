-module(erlmcp_span_batch).
-moduledoc """
Encodes the spans of the library's own tracer for one request to a collector. Many spans are about
the same tool and the same client, whose names and attributes are encoded once.

Internal.
""".

-export([take/2]).

-doc """
Takes spans for one request out of a buffer. Returns the number of these spans, and the body of the
request, in which `Scope` describes the program that made them. The spans count as waiting until the
caller calls `erlmcp_span_buffer:done/3`. Returns `none` if the buffer is empty.
""".
-spec take(erlmcp_otlp:scope(), erlmcp_span_buffer:buffer()) ->
    {Spans :: pos_integer(), Body :: iodata()} | none.
take(Scope, Buffer) ->
    Offset = erlang:time_offset(microsecond),
    Add = fun(Spans, {Parts, Known}) -> add(Spans, <<>>, Offset, Parts, Known) end,
    case erlmcp_span_buffer:take(Add, {[], #{}}, Buffer) of
        {0, _} -> none;
        {Count, {Parts, _}} -> {Count, erlmcp_otlp:request(Scope, Parts)}
    end.

add([{Ids, Parent, Kind, Links, About, Began, Last, Ended} | Spans], Part, Offset, Parts,
    Known) ->
    {Request, Client, End, Port, Id} = erlmcp_span:common(About, Last),
    {Described, Then} = text({Request, End}, fun described/1, Known),
    {More, Next} = text(Client, fun client/1, Then),
    Span = #{ids => Ids, parent => Parent, kind => Kind, links => Links, described => Described,
             more => More, port => Port, request => Id, began => Began, ended => Ended},
    add(Spans, erlmcp_otlp:add(Span, Offset, Part), Offset, Parts, Next);
add([], Part, _, Parts, Known) ->
    {[Part | Parts], Known}.

%% The text of what many spans have in common, which is encoded once.
text(Common, Encode, Known) ->
    case Known of
        #{Common := Text} ->
            {Text, Known};
        #{} ->
            Text = Encode(Common),
            {Text, Known#{Common => Text}}
    end.

described({Request, End}) ->
    {Status, Attributes} = erlmcp_span:ended(End),
    erlmcp_otlp:described(erlmcp_span:name(Request), Status,
                          maps:merge(erlmcp_span:attributes(Request), Attributes)).

client(Client) ->
    erlmcp_otlp:attributes(erlmcp_span:client_attributes(Client)).
