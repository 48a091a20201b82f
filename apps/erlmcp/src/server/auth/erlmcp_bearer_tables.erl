-module(erlmcp_bearer_tables).
-moduledoc """
The tables of a listener: the keys of issuers, the identities of recently checked tokens, inactive
tokens, and used proofs. Tokens are stored as hashes with a secret. Times are in seconds of system
time, except those of keys, which are in monotonic milliseconds.

Internal.
""".

-export([new/1]).
-export([identity/3, remember/5, is_inactive/3, remember_inactive/3]).
-export([use_proof/3, proof_used/3]).
-export([keys/3, put_keys/4, may_fetch/2, fetch_again/3, begin_refresh/2, end_refresh/2]).
-export([keeper/1, set_keeper/2, enter/1, leave/2]).
-export([sweep/2]).

-export_type([tables/0, digest/0]).

-type digest() :: binary().
-type tables() :: #{identities := ets:table(), inactive := ets:table(), proofs := ets:table(),
                    provers := ets:table(), most_proofs := {pos_integer(), PerKey :: pos_integer()},
                    keys := ets:table(), words := atomics:atomics_ref()}.

-define(IDENTITIES, 10_000).
-define(INACTIVE, 10_000).
-define(INACTIVE_S, 10).
-define(WAITING, 1_000).
%% Old proofs that are removed in one step.
-define(AT_ONCE, 1_000).
%% Milliseconds that keys serve while their issuer gives no others.
-define(KEYS_MS, 6 * 3_600_000).

%% The first atomic counts waiting requests. Then each source has two: when its keys may be fetched
%% again, and whether a refresh was asked for.
-define(WAITERS, 1).
-define(NEXT(Index), (2 * Index)).
-define(REFRESHING(Index), (2 * Index + 1)).

-doc "Creates the tables, which belong to the calling process.".
-spec new(erlmcp_bearer_options:settings()) -> tables().
new(#{sources := Sources, dpop_proofs := Most, dpop_proofs_per_key := PerKey}) ->
    Options = [public, {read_concurrency, true}, {write_concurrency, auto}],
    Words = atomics:new(2 * length(Sources) + 1, []),
    Now = erlmcp_clock:now_ms(),
    lists:foreach(fun({Index, _}) -> atomics:put(Words, ?NEXT(Index), Now) end, Sources),
    #{identities => ets:new(erlmcp_tokens, Options), inactive => ets:new(erlmcp_tokens, Options),
      proofs => ets:new(erlmcp_proofs, Options), provers => ets:new(erlmcp_provers, Options),
      most_proofs => {Most, PerKey},
      keys => ets:new(erlmcp_keys, [public, {read_concurrency, true}]), words => Words}.

-doc """
Returns the identity and the bindings of a token that `remember/5` stored. Returns `unknown` if
nothing is stored, if the identity has expired at `Now`, or if the keys of the token's source have
changed.
""".
-spec identity(digest(), Now :: integer(), tables()) ->
    {ok, erlmcp_bearer:identity(), erlmcp_token_claims:confirmation()} | unknown.
identity(Digest, Now, #{identities := Identities} = Tables) ->
    case ets:lookup(Identities, Digest) of
        [{_, Until, Source, Identity, Confirmation}] when Now < Until ->
            case is_valid(Source, Tables) of
                true -> {ok, Identity, Confirmation};
                false -> unknown
            end;
        _ ->
            unknown
    end.

is_valid(lasting, _) ->
    true;
is_valid({Index, Generation}, #{keys := Keys}) ->
    ets:lookup_element(Keys, Index, 2, none) =:= Generation.

-doc """
Remembers the identity and the bindings of a token until `Until`, unless 10,000 identities are
remembered already. With `{Index, Generation}` as `Source`, the identity counts only while the keys
of the source `Index` are of that generation. With `lasting`, the identity does not depend on keys.
""".
-spec remember(digest(), Until :: integer(),
               Source :: lasting | {Index :: pos_integer(), Generation :: reference()},
               {erlmcp_bearer:identity(), erlmcp_token_claims:confirmation()}, tables()) -> ok.
remember(Digest, Until, Source, {Identity, Confirmation}, #{identities := Identities}) ->
    _ = ets:info(Identities, size) < ?IDENTITIES
        andalso ets:insert(Identities, {Digest, Until, Source, Identity, Confirmation}),
    ok.

-doc """
Returns `true` if `remember_inactive/3` stored the token for the source `Index` less than 10 seconds
before `Now`.
""".
-spec is_inactive({Index :: pos_integer(), digest()}, Now :: integer(), tables()) -> boolean().
is_inactive(Key, Now, #{inactive := Inactive}) ->
    Now < ets:lookup_element(Inactive, Key, 2, Now).

-doc """
Remembers from `Now` on for 10 seconds that the source `Index` reported a token as inactive. Does
nothing if 10,000 such tokens are remembered already.
""".
-spec remember_inactive({Index :: pos_integer(), digest()}, Now :: integer(), tables()) -> ok.
remember_inactive(Key, Now, #{inactive := Inactive}) ->
    _ = ets:info(Inactive, size) < ?INACTIVE
        andalso ets:insert(Inactive, {Key, Now + ?INACTIVE_S}),
    ok.

-doc """
Uses up a proof, given by the thumbprint of its key and its id, and remembers the proof until
`Until`. Returns `{full, key, Limit}` or `{full, all, Limit}` if the key, or all keys together, have
as many proofs in use as they may (`Limit`). The proof is not used up then. Otherwise returns `ok`
if the proof is new, and `used` if it was used before. The bound of a key is `dpop_proofs_per_key`,
and falls as the proofs of other keys fill the table.
""".
-spec use_proof({Thumbprint :: binary(), Id :: binary()}, Until :: integer(), tables()) ->
    ok | used | {full, key | all, pos_integer()}.
use_proof({Thumbprint, _} = Proof, Until, Tables) ->
    #{proofs := Proofs, provers := Provers, most_proofs := {Most, PerKey}} = Tables,
    Size = ets:info(Proofs, size),
    Count = ets:update_counter(Provers, Thumbprint, 1, {Thumbprint, 0}),
    Limit = most_of_key(max(0, Size - Count + 1), Most, PerKey),
    maybe
        true ?= Size < Most orelse {full, all, Most},
        true ?= Count =< Limit orelse {full, key, Limit},
        true ?= ets:insert_new(Proofs, row(Proof, Until)),
        ok
    else
        Refused ->
            ok = released(Thumbprint, Provers),
            case Refused of
                false -> used;
                _ -> Refused
            end
    end.

row({Thumbprint, _} = Proof, Until) ->
    {crypto:hash(sha256, term_to_binary(Proof)), Until, Thumbprint}.

-doc """
Records that another node has used up a proof, and remembers the proof until `Until`. The proof
counts in the bounds of `use_proof/3`, and is recorded even if they are reached.
""".
-spec proof_used({Thumbprint :: binary(), Id :: binary()}, Until :: integer(), tables()) -> ok.
proof_used({Thumbprint, _} = Proof, Until, #{proofs := Proofs, provers := Provers}) ->
    _ = ets:update_counter(Provers, Thumbprint, 1, {Thumbprint, 0}),
    case ets:insert_new(Proofs, row(Proof, Until)) of
        true -> ok;
        false -> released(Thumbprint, Provers)
    end.

%% The share of a key falls with the room that other keys leave. So the many keys of a flood cannot
%% take all of it from later ones.
most_of_key(Others, Most, PerKey) ->
    max(1, (PerKey * (Most - Others) + Most - 1) div Most).

%% A key without proofs has no row, so there are at most as many rows as proofs.
released(Thumbprint, Provers) ->
    _ = ets:update_counter(Provers, Thumbprint, -1),
    true = ets:delete_object(Provers, {Thumbprint, 0}),
    ok.

-doc """
Returns the keys of the source `Index` at `Now`, and their generation. Keys that are `stale` are
still valid, and should be fetched again. Returns `none` if there are no keys, or if keys that are
not fresh were fetched at least six hours ago.
""".
-spec keys(Index :: pos_integer(), Now :: integer(), tables()) ->
    {fresh | stale, [erlmcp_jwk:key()], Generation :: reference()} | none.
keys(Index, Now, #{keys := Keys}) ->
    case ets:lookup(Keys, Index) of
        [{_, Generation, Set, _, Until}] when Now < Until -> {fresh, Set, Generation};
        [{_, Generation, Set, At, _}] when Now < At + ?KEYS_MS -> {stale, Set, Generation};
        _ -> none
    end.

-doc """
Stores the keys of the source `Index`, which are fresh for `Milliseconds`. If the keys differ from
those stored before, they are a new generation.
""".
-spec put_keys(Index :: pos_integer(), [erlmcp_jwk:key()], Milliseconds :: pos_integer(),
               tables()) -> ok.
put_keys(Index, Set, Milliseconds, #{keys := Keys}) ->
    Now = erlmcp_clock:now_ms(),
    Generation = case ets:lookup(Keys, Index) of
        [{_, Same, Set, _, _}] -> Same;
        _ -> make_ref()
    end,
    true = ets:insert(Keys, {Index, Generation, Set, Now, Now + Milliseconds}),
    ok.

-doc "Returns `true` if the keys of a source may be fetched now.".
-spec may_fetch(Index :: pos_integer(), tables()) -> boolean().
may_fetch(Index, #{words := Words}) ->
    erlmcp_clock:now_ms() >= atomics:get(Words, ?NEXT(Index)).

-doc """
Allows the keys of the source `Index` to be fetched again after `Milliseconds`, and not before.
""".
-spec fetch_again(Index :: pos_integer(), Milliseconds :: pos_integer(), tables()) -> ok.
fetch_again(Index, Milliseconds, #{words := Words}) ->
    atomics:put(Words, ?NEXT(Index), erlmcp_clock:now_ms() + Milliseconds).

-doc """
Returns `true` to the first caller, which then asks for a refresh of the keys. Returns `false` to
all other callers until `end_refresh/2`, and to any caller while the keys may not be fetched
(`may_fetch/2`).
""".
-spec begin_refresh(Index :: pos_integer(), tables()) -> boolean().
begin_refresh(Index, #{words := Words} = Tables) ->
    may_fetch(Index, Tables) andalso
        atomics:compare_exchange(Words, ?REFRESHING(Index), 0, 1) =:= ok.

-doc """
Records that a refresh of the keys of the source `Index` has ended, successfully or not. Then
`begin_refresh/2` may return `true` again.
""".
-spec end_refresh(Index :: pos_integer(), tables()) -> ok.
end_refresh(Index, #{words := Words}) ->
    atomics:put(Words, ?REFRESHING(Index), 0).

-doc """
Returns the process that asks other machines (`m:erlmcp_bearer_keeper`), or `none` while it does not
run: before its first start, and until it is started again.
""".
-spec keeper(tables()) -> {ok, pid()} | none.
keeper(#{keys := Keys}) ->
    Pid = ets:lookup_element(Keys, keeper, 2, none),
    case is_pid(Pid) andalso is_process_alive(Pid) of
        true -> {ok, Pid};
        false -> none
    end.

-doc """
Sets the process that asks other machines, which has just started. Sets the number of waiting
requests to 0, and ends all refreshes, since they have ended with the previous process.
""".
-spec set_keeper(pid(), tables()) -> ok.
set_keeper(Pid, #{keys := Keys, words := Words}) ->
    true = ets:insert(Keys, {keeper, Pid}),
    ok = atomics:put(Words, ?WAITERS, 0),
    #{size := Size} = atomics:info(Words),
    lists:foreach(fun(Word) -> atomics:put(Words, Word, 0) end, lists:seq(3, Size, 2)).

-doc """
Adds 1 to the number of waiting requests, and returns `ok`. The caller must see to it that `leave/2`
subtracts the request later. Returns `{full, Limit}`, and adds nothing, if 1,000 requests (`Limit`)
wait already.
""".
-spec enter(tables()) -> ok | {full, Limit :: pos_integer()}.
enter(#{words := Words} = Tables) ->
    case atomics:add_get(Words, ?WAITERS, 1) =< ?WAITING of
        true ->
            ok;
        false ->
            ok = leave(1, Tables),
            {full, ?WAITING}
    end.

-doc "Subtracts `Count` from the number of waiting requests.".
-spec leave(Count :: non_neg_integer(), tables()) -> ok.
leave(Count, #{words := Words}) ->
    atomics:sub(Words, ?WAITERS, Count).

-doc """
Removes identities, inactive tokens and proofs that have expired at `Now`. Returns the number of
removed entries.
""".
-spec sweep(Now :: integer(), tables()) -> non_neg_integer().
sweep(Now, Tables) ->
    #{identities := Identities, inactive := Inactive, proofs := Proofs,
      provers := Provers} = Tables,
    ets:select_delete(Identities, [{{'_', '$1', '_', '_', '_'}, [{'=<', '$1', Now}], [true]}])
        + ets:select_delete(Inactive, [{{'_', '$1'}, [{'=<', '$1', Now}], [true]}])
        + forgotten(Now, Proofs, Provers).

%% Removes some proofs at a time, while others are used. Without fixing the table, a walk would miss
%% some when the table grows or shrinks in between.
forgotten(Now, Proofs, Provers) ->
    true = ets:safe_fixtable(Proofs, true),
    Old = [{{'$1', '$2', '$3'}, [{'=<', '$2', Now}], [{{'$1', '$3'}}]}],
    Count = forgotten(ets:select(Proofs, Old, ?AT_ONCE), Proofs, Provers, 0),
    true = ets:safe_fixtable(Proofs, false),
    Count.

forgotten('$end_of_table', _, _, Count) ->
    Count;
forgotten({Old, Next}, Proofs, Provers, Count) ->
    lists:foreach(fun({Key, Thumbprint}) ->
                      true = ets:delete(Proofs, Key),
                      ok = released(Thumbprint, Provers)
                  end, Old),
    forgotten(ets:select(Next), Proofs, Provers, Count + length(Old)).
