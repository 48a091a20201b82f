-module(erlmcp_bench_room).
-moduledoc """
Computes how many connections this node can open to a server, and which limit of either side is
reached first. Pure.
""".

-export([for/3]).

-export_type([room/0]).

-doc """
The number of connections, at least 1 and at most the wanted one. If it is below the wanted one,
`bounded_by` names the limit, such as `~"descriptors of the server"`.
""".
-type room() :: #{connections := pos_integer(), bounded_by => binary()}.

-doc """
Returns the room for `Wanted` connections between this node and a server, from the facts of each
(`erlmcp_machine:facts/1`). `none` means that nothing is known of the server.

## Examples

```erlang
1> Facts = #{descriptors => 1_024, ports => 65_536, processes => 262_144, schedulers => 2}.
2> erlmcp_bench_room:for(100, Facts, none).
#{connections => 100}
3> erlmcp_bench_room:for(10_000, Facts#{descriptors := 20_000}, Facts).
#{connections => 768, bounded_by => ~"descriptors of the server"}
```
""".
-spec for(Wanted :: pos_integer(), erlmcp_machine:facts(), erlmcp_machine:facts() | none) -> room().
for(Wanted, Own, Servers) ->
    Bounds = carried(~" of the generator", Own) ++ carried(~" of the server", Servers),
    case lists:min([{Wanted, none} | Bounds]) of
        {Wanted, _} -> #{connections => Wanted};
        {Fewer, By} -> #{connections => max(1, Fewer), bounded_by => By}
    end.

carried(_, none) ->
    [];
carried(Whose, Facts) ->
    [{Count, <<(atom_to_binary(What))/binary, Whose/binary>>}
     || What := Count <- erlmcp_envelope:carried(Facts)].

