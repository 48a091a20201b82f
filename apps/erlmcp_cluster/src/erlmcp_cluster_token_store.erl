-module(erlmcp_cluster_token_store).
-moduledoc """
A token store (`m:erlmcp_token_store`) that all nodes of a cluster share: clients on all nodes use
the tokens that one of them has got. Set it as the option `store` of `t:erlmcp_oauth:options/0`:

```erlang
store => {erlmcp_cluster_token_store, #{name => ~"ada"}}
```

- `name`: whose tokens these are, such as a user of your application. Clients with the same name and
  server, and with the same options `grant`, `dpop` and `client_id`, share their tokens.
- `values`: the most values in the cluster, of all names (10,000). Processes that store new values
  at the same moment can exceed it, each by one value.

A value is sealed with a key of the cluster's secret, and has at most 32 KiB as JSON. Its name in
the cluster is a digest.

Let the node join before its clients start: while it is in no cluster, each callback fails with
`not_joined`. Reads and writes need a majority of the cluster. Without it they fail with
`unavailable`.
""".

-behaviour(erlmcp_token_store).

-export([open/1, get/2, put/3, delete/2]).

-record(store, {name :: binary(), values :: pos_integer()}).

-define(VALUES, 10_000).
-define(MAX_BYTES, 32_768).
-define(LIMITS, #{message_bytes => ?MAX_BYTES, depth => 32, members => 4096}).

-doc false.
open(Options) ->
    Wrong = [Key || Key := Value <- Options, not is_option(Key, Value)],
    case Wrong ++ [name || not is_map_key(name, Options)] of
        [] ->
            maybe
                {ok, _} ?= keys(),
                {ok, #store{name = map_get(name, Options),
                            values = maps:get(values, Options, ?VALUES)}}
            end;
        [First | _] ->
            {error, {bad_option, First}}
    end.

is_option(name, Name) -> is_binary(Name) andalso Name =/= ~"";
is_option(values, Most) -> is_integer(Most) andalso Most > 0;
is_option(_, _) -> false.

-doc false.
get(Key, Store) ->
    Digest = digest(Key, Store),
    maybe
        {ok, Keys} ?= keys(),
        {ok, Sealed} ?= erlmcp_cluster_store:token(Digest),
        {ok, Bytes} ?= erlmcp_sealed_state:open(Sealed, Digest, Keys),
        {ok, #{} = Value} ?= erlmcp_json:decode(Bytes, ?LIMITS),
        {ok, Value}
    else
        none -> none;
        {error, not_joined} -> {error, not_joined};
        {error, unavailable} -> {error, unavailable};
        _ -> {error, malformed}
    end.

-doc false.
put(Key, Value, #store{values = Most} = Store) ->
    Digest = digest(Key, Store),
    maybe
        {ok, Keys} ?= keys(),
        {ok, Bytes} ?= encode(Value),
        ok ?= room(Digest, Most),
        Nonce = crypto:strong_rand_bytes(12),
        erlmcp_cluster_store:put_token(Digest, erlmcp_sealed_state:seal(Bytes, Digest, Nonce, Keys))
    end.

encode(Value) ->
    case iolist_to_binary(json:encode(Value)) of
        Bytes when byte_size(Bytes) > ?MAX_BYTES -> {error, {too_large, ?MAX_BYTES}};
        Bytes -> {ok, Bytes}
    end.

room(Digest, Most) ->
    maybe
        none ?= erlmcp_cluster_store:token(Digest),
        {ok, Count} ?= erlmcp_cluster_store:tokens(),
        true ?= Count < Most,
        ok
    else
        {ok, _} -> ok;
        false -> {error, {full, Most}};
        {error, _} = Error -> Error
    end.

-doc false.
delete(Key, Store) ->
    maybe
        {ok, _} ?= keys(),
        erlmcp_cluster_store:delete_token(digest(Key, Store))
    end.

keys() ->
    case erlmcp_cluster_secret:lasting_keys(token) of
        none -> {error, not_joined};
        Keys -> {ok, Keys}
    end.

digest(Key, #store{name = Name}) ->
    crypto:hash(sha256, term_to_binary({Name, Key}, [deterministic])).
