-module(erlmcp_span_batch).
-moduledoc """
Encodes the spans of the library's own tracer for one request to a collector. Many are about the
same tool and the same client, whose names and attributes are encoded once.

Internal.
""".

-export([take/2]).

-doc """
Takes spans for one request out of a buffer. Returns how many they are, and the body of the request.
Returns `none` if no span waits.
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

add([{Ids, Parent, {Kind, Links, About, Began}, Last, Ended} | Spans], Part, Offset, Parts,
    Known) ->
    {Described, Next} = described(About, Known),
    {Status, Attributes} = erlmcp_span:ended(Last),
    Span = #{ids => Ids, parent => Parent, kind => Kind, links => Links, described => Described,
             last => Attributes, status => Status, began => Began, ended => Ended},
    add(Spans, erlmcp_otlp:add(Span, Offset, Part), Offset, Parts, Next);
add([], Part, _, Parts, Known) ->
    {[Part | Parts], Known}.

described(About, Known) ->
    case Known of
        #{About := Described} ->
            {Described, Known};
        #{} ->
            Described = erlmcp_otlp:described(erlmcp_span:name(About),
                                              erlmcp_span:attributes(About)),
            {Described, Known#{About => Described}}
    end.
