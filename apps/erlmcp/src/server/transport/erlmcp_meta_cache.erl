-module(erlmcp_meta_cache).
-moduledoc """
Decodes the messages of a connection, in its process. The `_meta` that a client sends in each of its
requests is read and checked once, and known by its text from then on. It is kept with what else the
process keeps between requests (`m:erlmcp_connection_cache`).

A client whose `_meta` differs from request to request is not learnt from for ever: at most three
times, and not after the client has sent one again. A connection of HTTP/1.1 or of lines has
forgotten it after it has hibernated.

Internal.
""".

-export([decode/2, known_meta/1, request/4]).

-export_type([learnt/0]).

-doc """
The number of times that a connection may learn still, the text of a `_meta`, and what that comes
to.
""".
-opaque learnt() ::
    {Times :: non_neg_integer(), erlmcp_json:known_object() | none,
     erlmcp_meta:validated() | none}.

%% Times that a connection learns.
-define(TIMES, 3).

-doc "Decodes a message of this process's connection (`erlmcp_json:decode/2`).".
-spec decode(binary(), erlmcp_json:limits()) ->
    {ok, erlmcp_json:json_term()} | {error, erlmcp_json:decode_error()}.
decode(Bytes, Limits) ->
    case erlmcp_connection_cache:meta() of
        {0, Known, _} ->
            erlmcp_json:decode(Bytes, Limits, Known);
        {Times, Known, Valid} ->
            learnt(Times, Known, Valid, Bytes, erlmcp_json:decode(Bytes, Limits, Known));
        none ->
            learnt(?TIMES, none, none, Bytes, erlmcp_json:decode(Bytes, Limits))
    end.

learnt(Times, Known, Valid, Bytes, {ok, #{~"params" := #{~"_meta" := #{} = Meta}}} = Decoded) ->
    _ = case erlmcp_json:is_known(Meta, Known) of
        true -> erlmcp_connection_cache:put_meta({0, Known, Valid});
        false -> erlmcp_connection_cache:put_meta(learn(Times - 1, {Known, Valid}, Bytes))
    end,
    Decoded;
learnt(_, _, _, _, Decoded) ->
    Decoded.

learn(Times, {Before, Valid}, Bytes) ->
    case erlmcp_json:known_meta(Bytes) of
        {ok, Known} -> {Times, Known, erlmcp_meta:reusable(erlmcp_json:known_object(Known))};
        none -> {Times, Before, Valid}
    end.

-doc """
Returns what the `_meta` of a decoded message comes to, if this process's connection knows it.
""".
-spec known_meta(erlmcp_json:json_term()) -> erlmcp_meta:validated() | none.
known_meta(#{~"params" := #{~"_meta" := Meta}}) ->
    case erlmcp_connection_cache:meta() of
        {_, Known, Valid} ->
            case erlmcp_json:is_known(Meta, Known) of
                true -> Valid;
                false -> none
            end;
        none ->
            none
    end;
known_meta(_) ->
    none.

-doc """
Reads a stateless request whose head has told its method, and whose text goes on behind its id as
that method's does. What its `_meta` comes to is in it if that is known. `other` where nothing is
known yet or the text is another: it is to be decoded.
""".
-spec request(binary(), Begun :: {erlmcp_message:id(), Bytes :: pos_integer()},
              erlmcp_admission:announced(), erlmcp_json:limits()) ->
    {ok, erlmcp_engine:request()} | other.
request(Bytes, {Id, At}, {announced, Method, Text}, Limits) ->
    maybe
        {0, Known, Valid} ?= erlmcp_connection_cache:meta(),
        {ok, #{~"_meta" := Meta} = Params} ?=
            erlmcp_json:params(Bytes, {At, Text}, Limits, Known),
        case erlmcp_json:is_known(Meta, Known) of
            true -> {ok, {Id, Method, Params, Valid}};
            false -> {ok, {Id, Method, Params, none}}
        end
    else
        _ -> other
    end.
