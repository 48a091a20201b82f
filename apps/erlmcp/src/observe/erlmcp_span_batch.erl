-module(erlmcp_span_batch).
-moduledoc """
Encodes the spans of the library's own tracer, when many of them are sent together. Many are about
the same tool and the same client, whose names and attributes are encoded once.

Internal.
""".

-export([encode/2]).

-doc "Returns the body of a request to a collector.".
-spec encode([erlmcp_otlp_tracer:ended(), ...], erlmcp_otlp:scope()) -> binary().
encode(Spans, Scope) ->
    {Encodable, _} = lists:mapfoldl(fun encodable/2, #{}, Spans),
    erlmcp_otlp:request(Scope, Encodable, erlang:time_offset(microsecond)).

encodable({Ids, Parent, {Kind, Links, About, Began}, Last, Ended}, Known) ->
    {Described, Next} = described(About, Known),
    {Status, Attributes} = erlmcp_span:ended(Last),
    {#{ids => Ids, parent => Parent, kind => Kind, links => Links, described => Described,
       last => Attributes, status => Status, began => Began, ended => Ended}, Next}.

described(About, Known) ->
    case Known of
        #{About := Described} ->
            {Described, Known};
        #{} ->
            Described = erlmcp_otlp:described(erlmcp_span:name(About),
                                              erlmcp_span:attributes(About)),
            {Described, Known#{About => Described}}
    end.
