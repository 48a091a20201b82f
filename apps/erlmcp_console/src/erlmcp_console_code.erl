-module(erlmcp_console_code).
-moduledoc """
Finds out whether code of the node was replaced, as by a deployment without a restart. The code of a
module has changed if its checksum has.
""".

-export([read/0, changes/1]).

-export_type([code/0]).

-opaque code() :: {Bytes :: non_neg_integer(), #{module() => Checksum :: binary()}}.

-doc "Returns the present code of the node, to compare it with later code (`changes/1`).".
-spec read() -> code().
read() ->
    {erlang:memory(code), checksums()}.

-doc """
Returns the modules whose code has changed since the given code was read, and the present code of
the node. A module that was not loaded then is not among them. A change that leaves the size of all
code in memory as it was is seen together with the next change.
""".
-spec changes(code()) -> {[module()], code()}.
changes({Bytes, Before} = Known) ->
    %% Checksums are read only after the size of all code in memory has changed.
    case erlang:memory(code) of
        Bytes ->
            {[], Known};
        Now ->
            Checksums = checksums(),
            {[Module || Module := Checksum <- maps:iterator(Checksums, ordered),
                        is_map_key(Module, Before), map_get(Module, Before) =/= Checksum],
             {Now, maps:merge(Before, Checksums)}}
    end.

checksums() ->
    #{Module => Module:module_info(md5) || {Module, _} <- code:all_loaded()}.
