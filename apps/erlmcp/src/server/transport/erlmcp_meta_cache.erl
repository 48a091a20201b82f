-module(erlmcp_meta_cache).
-moduledoc """
Decodes the messages of a connection, in its process. What its client says in each of its requests,
its `_meta`, is read and checked once, and known by its text from then on. That is kept in the
dictionary of the process, since every transport's connection has one, and it is nobody's business
but this module's.

A client whose `_meta` differs from request to request is not learnt from for ever: a few times, and
not after one was said again. A connection of HTTP/1.1 or of lines knows nothing of it any more when
it rests.
""".

-export([decode/2, known/1, request/4, forget/0]).

-define(KEPT, ?MODULE).
%% Times that a connection learns.
-define(TIMES, 3).

-doc "The JSON value of a message of this process's connection (`erlmcp_json:decode/2`).".
-spec decode(binary(), erlmcp_json:limits()) ->
    {ok, erlmcp_json:json_term()} | {error, erlmcp_json:decode_error()}.
decode(Bytes, Limits) ->
    case get(?KEPT) of
        {0, Known, _} ->
            erlmcp_json:decode(Bytes, Limits, Known);
        {Times, Known, Valid} ->
            learnt(Times, Known, Valid, Bytes, erlmcp_json:decode(Bytes, Limits, Known));
        undefined ->
            learnt(?TIMES, none, none, Bytes, erlmcp_json:decode(Bytes, Limits))
    end.

learnt(Times, Known, Valid, Bytes, {ok, #{~"params" := #{~"_meta" := #{} = Meta}}} = Decoded) ->
    _ = case erlmcp_json:is_known(Meta, Known) of
        true -> put(?KEPT, {0, Known, Valid});
        false -> put(?KEPT, learn(Times - 1, {Known, Valid}, Bytes))
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
-spec known(erlmcp_json:json_term()) -> erlmcp_meta:validated() | none.
known(#{~"params" := #{~"_meta" := Meta}}) ->
    case get(?KEPT) of
        {_, Known, Valid} ->
            case erlmcp_json:is_known(Meta, Known) of
                true -> Valid;
                false -> none
            end;
        undefined ->
            none
    end;
known(_) ->
    none.

-doc """
A stateless request whose head has told its method, and whose text goes on behind its id as that
method's does; what its `_meta` comes to is known if that is. `other` where nothing is known yet or
the text is another: it is to be decoded.
""".
-spec request(binary(), Begun :: {erlmcp_message:id(), Bytes :: pos_integer()},
              erlmcp_httpd_admission:told(), erlmcp_json:limits()) ->
    {ok, erlmcp_engine:request()} | other.
request(Bytes, {Id, At}, {told, Method, Text}, Limits) ->
    maybe
        {0, Known, Valid} ?= get(?KEPT),
        {ok, #{~"_meta" := Meta} = Params} ?=
            erlmcp_json:params(Bytes, {At, Text}, Limits, Known),
        case erlmcp_json:is_known(Meta, Known) of
            true -> {ok, {Id, Method, Params, Valid}};
            false -> {ok, {Id, Method, Params, none}}
        end
    else
        _ -> other
    end.

-doc """
Keeps nothing of the calling process's connection, which is not asked for a while: it learns anew
when it is.
""".
-spec forget() -> ok.
forget() ->
    _ = erase(?KEPT),
    ok.
