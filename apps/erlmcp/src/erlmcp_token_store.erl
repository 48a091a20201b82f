-module(erlmcp_token_store).
-moduledoc """
The behaviour of a store for the tokens and registrations of a client, between logins. A client
keeps them in memory unless its option `store` (`t:erlmcp_oauth:options/0`) names another store,
such as `m:erlmcp_token_store_file`.

A value is a JSON object with binary keys, and contains secrets. If two processes write the same
key, the last value stays. Writing a key never changes the values of others. Several clients may
share a store: each reads it when it starts, and again before it gets another token. A callback may
wait for a disk or for other nodes, a few seconds at most; calls that need another token wait, too.
""".

-export_type([key/0, reason/0]).

-doc "The key of a value, such as the issuer and the server's URL.".
-type key() :: binary() | atom() | integer() | tuple() | [key()].
-doc """
The reason why a store failed.

- `closed`: the process that opened the store has ended.
- `{full, Max}`: the store has `Max` values already. `{too_large, Max}`: the value has more than
  `Max` bytes.
- `malformed`: the stored bytes are not a value that this store has written.
- `{unsafe, What, Why}`: other users could read the folder or the file, or replace it.
- `{file, Why}`: an error of the file system.
- `{bad_option, Name}`: an option is unknown, missing or wrong.
""".
-type reason() ::
    closed
    | {full, Max :: pos_integer()}
    | {too_large, Max :: pos_integer()}
    | malformed
    | {unsafe, folder | file, symlink | type | {mode, Bits :: non_neg_integer()} | owner}
    | {file, file:posix() | badarg}
    | {bad_option, atom()}
    | term().

-doc """
Opens the store when a client starts. Any process may use the result. ETS tables that the callback
creates are deleted when the client ends. Returns an error if an option is wrong, or if the store
cannot be used (`t:reason/0`). The client then does not start.
""".
-callback open(Options :: map()) -> {ok, Store :: term()} | {error, reason()}.
-doc """
Returns the value of a key, or `none` if the key has no value. The error says why the store cannot
be read.
""".
-callback get(key(), Store :: term()) ->
    {ok, #{binary() => json:encode_value()}} | none | {error, reason()}.
-doc """
Stores a value under a key, and replaces the value that the key had. After an error the key may have
its earlier value.
""".
-callback put(key(), #{binary() => json:encode_value()}, Store :: term()) ->
    ok | {error, reason()}.
-doc "Deletes the value of a key, if there is one. After an error the key may still have it.".
-callback delete(key(), Store :: term()) -> ok | {error, reason()}.
