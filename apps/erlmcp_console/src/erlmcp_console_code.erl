-module(erlmcp_console_code).
-moduledoc """
Finds out that code of the node was replaced, as by a deployment without a restart. The code of a
module is its checksum. Checksums are read only after the memory of code has changed, since modules
that are loaded for the first time change it as well.
""".

-export([read/0, changes/1]).

-export_type([code/0]).

-opaque code() :: {Bytes :: non_neg_integer(), #{module() => Checksum :: binary()}}.

-doc "Reads the code of the node.".
-spec read() -> code().
read() ->
    {erlang:memory(code), checksums()}.

-doc "Returns the modules whose code is another one than it was, and the code of the node now.".
-spec changes(code()) -> {[module()], code()}.
changes({Bytes, Before} = Known) ->
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
