-module(erlmcp_load_lines).
-moduledoc """
The wire of JSON-RPC in lines, for TCP and the standard streams of a program. Replies come in any
order, and their ids tell which request they answer. Pure.
""".

-behaviour(erlmcp_load_wire).

-export([new/1, opened/1, template/2, request/3, abandoned/2, received/2, ended/1, traits/0]).

-define(MAX_BYTES, 256 * 1024 * 1024).

-doc false.
traits() -> #{answers_notifications => false, ordered => false, in_flight => 32, sessions => false}.

-doc false.
new(Options) ->
    erlmcp_line:new(maps:get(max_bytes, Options, ?MAX_BYTES)).

-doc false.
opened(Line) -> {~"", Line}.

-doc false.
template(#{method := post, pieces := Pieces}, _) ->
    {Before, [Last]} = lists:split(length(Pieces) - 1, Pieces),
    Before ++ [<<Last/binary, "\n">>].

-doc false.
request(Tag, Template, Line) ->
    {erlmcp_load_wire:spliced(Template, erlmcp_load_wire:id(Tag)), Line}.

-doc false.
abandoned(_, Line) -> {~"", Line}.

-doc false.
received(Bytes, Line) ->
    {Lines, Next} = erlmcp_line:push(Bytes, Line),
    case lists:splitwith(fun is_binary/1, Lines) of
        {Whole, []} -> {ok, [event(One) || One <- Whole], ~"", Next};
        {Whole, [{too_large, _} | _]} -> {error, too_large, [event(One) || One <- Whole]}
    end.

event(Line) ->
    case erlmcp_load_reply:id(Line) of
        {ok, Id} -> {reply, erlmcp_load_wire:tag(Id), none, Line};
        unknown -> {stray, Line};
        none -> {message, Line}
    end.

-doc false.
ended(_) -> [].
