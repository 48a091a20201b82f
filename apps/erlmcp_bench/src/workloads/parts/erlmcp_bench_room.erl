-module(erlmcp_bench_room).
-moduledoc """
How many connections there can be between this node, which opens them, and a server: the fewest that
anything on either side carries, and what that is. Pure.
""".

-export([for/3]).

-export_type([room/0]).

-doc """
So many of those that were wanted; where they are fewer, `bounded_by` says what of whom is why, as
`~"descriptors of the server"`.
""".
-type room() :: #{connections := pos_integer(), bounded_by => binary()}.

-doc """
The room for so many connections, between this node and a server, with what is known of each
(`erlmcp_machine:facts/1`); `none` where nothing is known of the server.

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

