-module(erlmcp_gate_wants).
-moduledoc """
What a ticket of a gate is for beside a place: one of a tool's calls at once, or a call in a rate
(`erlmcp_gate:take/2`). All of it is taken, or nothing.

Internal.
""".

-export([take/3]).

-export_type([want/0]).

-type want() :: {erlmcp_gate_accounts:key(), {at_once, pos_integer()} | erlmcp_rate:rate()}.

-doc "What is written down under this is for more. What is refused leaves it as it was.".
-spec take(erlmcp_gate_permits:id(), [want()], erlmcp_gate_counters:books()) ->
    ok | {refuse, erlmcp_refusal:refusal()}.
take(_, [], _) ->
    ok;
take(Id, [{Key, {at_once, Most}} | More], Books) ->
    case erlmcp_gate_counters:take_all([{Key, 1, Most}], Books) of
        {ok, Held} ->
            case take(Id, More, Books) of
                ok ->
                    erlmcp_gate_counters:add(Id, Held, Books);
                Refused ->
                    ok = erlmcp_gate_counters:give(Held, Books),
                    Refused
            end;
        Full ->
            {refuse, erlmcp_gate_refusal:new(Full)}
    end;
take(Id, [{Key, Rate} | More], Books) ->
    case erlmcp_gate_counters:take_rates(Key, [Rate], erlmcp_gate_counters:now(Books), Books) of
        ok ->
            case take(Id, More, Books) of
                ok ->
                    ok;
                Refused ->
                    ok = erlmcp_gate_counters:give_rates(Key, [Rate], Books),
                    Refused
            end;
        Refused ->
            {refuse, erlmcp_gate_refusal:new(Refused)}
    end.
