-module(erlmcp_token_store).
-moduledoc """
The behaviour of what keeps tokens, and what a client registered, between its logins.
`m:erlmcp_token_store_ets` keeps them in memory, `m:erlmcp_token_store_file` in a folder.

A value is a JSON object (binary keys), and what is in it is secret. One key has one writer at a
time, or the last one counts; values of different keys never disturb each other. The callbacks may
wait for a disk, not longer.
""".

-export_type([key/0, reason/0]).

-doc "What a value is kept under, such as the issuer and the server's URL.".
-type key() :: binary() | atom() | integer() | tuple() | [key()].
-doc """
- `closed`: the process that opened the store has ended.
- `{full, Max}`, `{too_large, Max}`: more values, or more bytes of one, than the store keeps.
- `malformed`: what is kept under the key was not written by the store.
- `{unsafe, What, Why}`: others than the owner of this process could read the folder or the file, or
  put another in its place.
- `{file, Why}`: the file system's error.
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
Opens the store. What belongs to the calling process ends with it; every process may use the store.
""".
-callback open(Options :: map()) -> {ok, Store :: term()} | {error, reason()}.
-callback get(key(), Store :: term()) ->
    {ok, #{binary() => json:encode_value()}} | none | {error, reason()}.
-doc "Keeps a value, in place of the one of this key.".
-callback put(key(), #{binary() => json:encode_value()}, Store :: term()) ->
    ok | {error, reason()}.
-doc "Deletes what is kept under a key, if there is anything.".
-callback delete(key(), Store :: term()) -> ok | {error, reason()}.
