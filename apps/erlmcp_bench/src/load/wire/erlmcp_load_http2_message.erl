-module(erlmcp_load_http2_message).
-moduledoc """
A prepared message on HTTP/2: its headers for HPACK, the headers that contain the id, and its body
except for the ids. Pure.
""".

-export([template/2, encoded/3]).

-export_type([template/0]).

-record(template, {
    %% Identifies the headers.
    key :: binary(),
    headers :: cow_http:headers(),
    varying :: [{Name :: binary(), erlmcp_load_wire:pieces()}],
    body :: {Size :: non_neg_integer(), erlmcp_load_wire:pieces()} | none
}).

-opaque template() :: #template{}.

-doc "Returns the template of a message, for the target in `Options`.".
-spec template(erlmcp_load_wire:message(), erlmcp_load_wire:options()) -> template().
template(#{method := Method, headers := Own} = Message, Options) ->
    #{authority := Authority, path := Path} = Options,
    Given = one_of_each(content(Method) ++ maps:get(headers, Options, []) ++ Own),
    Allowed = lists:sort(maps:to_list(maps:without(forbidden(), Given))),
    {Varying, Fixed} = lists:partition(fun is_varying/1, Allowed),
    Body = body(Message),
    Headers = [{~":method", name(Method)},
               {~":scheme", atom_to_binary(maps:get(scheme, Options, http))},
               {~":authority", maps:get(~"host", Given, Authority)},
               {~":path", Path} | Fixed]
        ++ [{~"content-length", integer_to_binary(Size)} || {Size, _} <- [Body]],
    #template{key = erlang:md5(term_to_binary(Headers)), headers = Headers, body = Body,
              varying = [{Name, binary:split(Value, ~"{id}", [global])}
                         || {Name, Value} <- Varying]}.

name(post) -> ~"POST";
name(delete) -> ~"DELETE".

content(post) ->
    [{~"content-type", ~"application/json"}, {~"accept", ~"application/json, text/event-stream"}];
content(delete) ->
    [].

body(#{method := post, pieces := Pieces}) -> {erlmcp_load_wire:spliced_size(Pieces), Pieces};
body(#{method := delete}) -> none.

%% The last header of each name counts.
one_of_each(Headers) ->
    #{string:lowercase(Name) => Value || {Name, Value} <- Headers}.

%% HTTP/2 has no such headers (RFC 9113, 8.2.2), or expresses them in its own way.
forbidden() ->
    [~"host", ~"connection", ~"keep-alive", ~"proxy-connection", ~"transfer-encoding", ~"upgrade",
     ~"content-length"].

is_varying({_, Value}) ->
    binary:match(Value, ~"{id}") =/= nomatch.

-doc "Returns the header block and the body, each with its size. The body may be `none`.".
-spec encoded(erlmcp_load_wire:tag(), template(), erlmcp_load_hpack:state()) ->
    {Size, Block :: iodata(), {Size, iodata()} | none, erlmcp_load_hpack:state()}
      when Size :: non_neg_integer().
encoded(Tag, #template{key = Key, headers = Headers, varying = Varying, body = Body}, Hpack) ->
    Id = erlmcp_load_wire:id(Tag),
    {Size, Block, Encoded} = erlmcp_load_hpack:encode(Key, Headers, Hpack),
    Sent = case Body of
        {BodySize, Pieces} -> {BodySize, erlmcp_load_wire:spliced(Pieces, Id)};
        none -> none
    end,
    case Varying of
        [] ->
            {Size, Block, Sent, Encoded};
        _ ->
            More = [erlmcp_load_hpack:literal(Name, erlmcp_load_wire:spliced(Pieces, Id))
                    || {Name, Pieces} <- Varying],
            {Size + iolist_size(More), [Block | More], Sent, Encoded}
    end.
