-module(erlmcp_connection_reader).
-moduledoc """
Decodes the messages of a connection, in its process. What its client says in each of its requests,
its `_meta`, is read once and known by its text from then on. That is kept in the dictionary of the
process, since every transport's connection has one, and it is nobody's business but this module's.

A client whose `_meta` differs from request to request is not learnt from for ever: a few times, and
not after one was said again.
""".

-export([decode/2]).

-define(KEPT, ?MODULE).
%% Times that a connection learns.
-define(TIMES, 3).

-doc "The JSON value of a message of this process's connection (`erlmcp_json:decode/2`).".
-spec decode(binary(), erlmcp_json:limits()) ->
    {ok, erlmcp_json:json_term()} | {error, erlmcp_json:decode_error()}.
decode(Bytes, Limits) ->
    case get(?KEPT) of
        {0, Known} -> erlmcp_json:decode(Bytes, Limits, Known);
        {Times, Known} -> learnt(Times, Known, Bytes, erlmcp_json:decode(Bytes, Limits, Known));
        undefined -> learnt(?TIMES, none, Bytes, erlmcp_json:decode(Bytes, Limits))
    end.

learnt(Times, Known, Bytes, {ok, #{~"params" := #{~"_meta" := #{} = Meta}}} = Decoded) ->
    _ = case erlmcp_json:is_known(Meta, Known) of
        true -> put(?KEPT, {0, Known});
        false -> learn(Times, Known, Bytes)
    end,
    Decoded;
learnt(_, _, _, Decoded) ->
    Decoded.

learn(Times, Before, Bytes) ->
    case erlmcp_json:known(Bytes) of
        {ok, Known} -> put(?KEPT, {Times - 1, Known});
        none -> put(?KEPT, {Times - 1, Before})
    end.
