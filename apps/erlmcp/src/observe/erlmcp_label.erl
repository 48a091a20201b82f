-module(erlmcp_label).
-moduledoc """
Labels of long-lived processes, for observer, `i/0` and crash reports. A label is a tuple of the
kind of process and of what the process serves. Most labels of a server's processes end with the
server's `id`. An example is `{erlmcp_connection, tcp, {{127, 0, 0, 1}, 50132}, my_server}`.

A label is small, and has no secrets: no token, path, header or argument, and no id of a session or
of a task.

Internal.
""".

-export([set/1, set/2]).

%% The most bytes of a binary, and the most elements of a tuple, in a label.
-define(BYTES, 64).
-define(ELEMENTS, 8).

-doc """
Sets the label of the calling process to a tuple of `Parts`. Atoms, integers, pids and references
stay, and binaries are cut to 64 bytes. The elements of tuples are treated in the same way. Tuples
of more than 8 elements, and everything else, become `'...'`. So do tuples in tuples, except in a
pair, such as an address with its port.
""".
-spec set(Parts :: [term(), ...]) -> ok.
set(Parts) ->
    proc_lib:set_label(list_to_tuple([bounded(Part) || Part <- Parts])).

-doc """
Sets the label of the calling process, as `set/1` does, to a tuple of `Parts` and the `id` of the
server with the key `Key`. If no name is set for the server (`erlmcp_log:name/2`), the last element
is `Key`.
""".
-spec set(Parts :: [term(), ...], Key :: reference()) -> ok.
set(Parts, Key) ->
    set(Parts ++ [erlmcp_log:server(Key)]).

%% A pair, such as an address with its port, or a name of `global` or `via`.
bounded({One, Other}) ->
    {flat(One), flat(Other)};
bounded(Part) ->
    flat(Part).

flat(Part) when is_tuple(Part), tuple_size(Part) =< ?ELEMENTS ->
    list_to_tuple([single(Element) || Element <- tuple_to_list(Part)]);
flat(Part) ->
    single(Part).

single(Part) when is_atom(Part); is_integer(Part); is_pid(Part); is_reference(Part) ->
    Part;
single(Part) when is_binary(Part) ->
    binary:copy(binary:part(Part, 0, min(byte_size(Part), ?BYTES)));
single(_) ->
    '...'.

