-module(erlmcp_cluster_secret).
-moduledoc """
The keys of a cluster. Each node derives them from one secret, a use and a slot (HKDF with SHA-256,
RFC 5869). A slot is a day, as the number of days since 1970. There are keys for the next day, this
one and the 30 days before. A use whose seals must open for longer has one lasting key of each
secret. During a change of the secret there are two: the keys of the first one seal, and those of
both open.

The process reads the secret from a file or the environment when it starts. A crash dump has neither
the secret nor the keys.

Internal.
""".

-behaviour(gen_server).

-export([start_link/1, refresh/0]).
-export([sealing_key/1, opening_keys/2, ring/2, lasting_keys/1]).
-export([master/1, rows/2, extract/2, expand/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, format_status/1]).

-export_type([source/0, use/0, lasting/0, slot/0, master/0]).

-define(USES, [session, state, dpop]).
-define(LASTING, [token]).
%% Days for which there are keys, before this one.
-define(DAYS, 30).
%% Bytes of a secret. A key of 32 bytes in hexadecimal or Base64 is longer than the least.
-define(LEAST, 32).
-define(MOST, 4096).
%% Bytes of a file that are read: the longest secret, and spaces around it.
-define(MOST_READ, 8192).
-define(SECONDS_OF_DAY, 86_400).
%% A new day is noticed after this time.
-define(REFRESH_MS, 60_000).

-doc "The place of a secret: a file, or a variable of the environment.".
-type source() :: {file, file:name_all()} | {env, string()}.
-type use() :: session | state | dpop.
-type lasting() :: token.
-type slot() :: 0..65_535.
-doc """
A fun that derives a key from a secret. Its argument is the use of the key and, if the key has one,
the slot, as bytes.
""".
-type master() :: fun((Info :: binary()) -> <<_:256>>).

-doc """
Starts the process that has the keys of the secrets at `Sources`, the newest first. A secret has 32
to 4,096 bytes; white space around it does not count. The error is `{bad_secret, Source, Reason}`.
`Reason` is `missing` if a secret is not there or cannot be read, or else `too_short` or `too_long`.
""".
-spec start_link([source(), ...]) -> gen_server:start_ret().
start_link(Sources) ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, Sources, []).

-doc """
Replaces the keys by those of today, as the nodes agree on the time (`m:erlmcp_cluster_time`). The
process does so itself every minute. Exits if the process does not run.
""".
-spec refresh() -> ok.
refresh() ->
    gen_server:call(?MODULE, refresh).

-doc """
Returns the slot of today, and the key with which a use seals in this slot. Raises `badarg` while
this node is in no cluster.
""".
-spec sealing_key(use()) -> {slot(), <<_:256>>}.
sealing_key(Use) ->
    ets:lookup_element(?MODULE, {sealing, Use}, 2).

-doc """
Returns the keys of a use for a slot, one for each secret. Returns `[]` if the slot is too old or
too new. Raises `badarg` while this node is in no cluster.
""".
-spec opening_keys(use(), slot()) -> [<<_:256>>].
opening_keys(Use, Slot) ->
    ets:lookup_element(?MODULE, {Use, Slot}, 2, []).

-doc """
Returns the key ring of a server: the keys of today, of which the first one seals, and those of
yesterday and tomorrow. Servers of other ids have other keys. Returns `none` while this node is in
no cluster.
""".
-spec ring(use(), Server :: term()) -> {ok, erlmcp:key_ring()} | none.
ring(Use, Server) ->
    Info = term_to_binary(Server, [deterministic]),
    try ets:lookup_element(?MODULE, {ring, Use}, 2) of
        Keys -> {ok, [expand(Key, Info) || Key <- Keys]}
    catch
        error:badarg -> none
    end.

-doc """
Returns the lasting keys of a use, one for each secret: the first one seals. Returns `none` while
this node is in no cluster.
""".
-spec lasting_keys(lasting()) -> [<<_:256>>, ...] | none.
lasting_keys(Use) ->
    try
        ets:lookup_element(?MODULE, {lasting, Use}, 2)
    catch
        error:badarg -> none
    end.

-doc false.
init(Sources) ->
    %% A crash dump leaves out the memory of such a process, as it does the rows of all tables.
    _ = process_flag(sensitive, true),
    maybe
        {ok, Masters} ?= masters(Sources, []),
        ?MODULE = ets:new(?MODULE, [named_table, {read_concurrency, true}]),
        ok = erlmcp_label:set([?MODULE]),
        ok = refresh(Masters),
        _ = erlang:send_after(?REFRESH_MS, self(), refresh),
        {ok, Masters}
    end.

masters([], Masters) ->
    {ok, lists:reverse(Masters)};
masters([Source | Sources], Masters) ->
    case read(Source) of
        {ok, Secret} -> masters(Sources, [master(Secret) | Masters]);
        {error, Reason} -> {error, {bad_secret, Source, Reason}}
    end.

read({file, Path}) ->
    maybe
        {ok, File} ?= file:open(Path, [read, raw, binary]),
        Read = file:read(File, ?MOST_READ),
        ok = file:close(File),
        {ok, Bytes} ?= Read,
        bounded(Bytes)
    else
        eof -> {error, too_short};
        {error, _} -> {error, missing}
    end;
read({env, Name}) ->
    case os:getenv(Name) of
        false -> {error, missing};
        Value -> bounded(unicode:characters_to_binary(Value))
    end.

bounded(Bytes) ->
    %% It need not be text.
    case re:replace(Bytes, ~"^\\s+|\\s+$", ~"", [global, {return, binary}]) of
        Secret when byte_size(Secret) < ?LEAST -> {error, too_short};
        Secret when byte_size(Secret) > ?MOST -> {error, too_long};
        Secret -> {ok, Secret}
    end.

refresh(Masters) ->
    Rows = rows(Masters, erlmcp_cluster_time:now(second)),
    true = ets:insert(?MODULE, Rows),
    Current = #{Key => [] || {Key, _} <- Rows},
    lists:foreach(fun(Key) -> ets:delete(?MODULE, Key) end,
                  [Key || {Key, _} <- ets:tab2list(?MODULE), not is_map_key(Key, Current)]).

-doc false.
handle_call(refresh, _, Masters) ->
    {reply, refresh(Masters), Masters};
handle_call(_, _, Masters) ->
    {noreply, Masters}.

-doc false.
handle_cast(_, Masters) ->
    {noreply, Masters}.

-doc false.
handle_info(refresh, Masters) ->
    ok = refresh(Masters),
    _ = erlang:send_after(?REFRESH_MS, self(), refresh),
    {noreply, Masters};
handle_info(_, Masters) ->
    {noreply, Masters}.

-doc false.
format_status(Status) ->
    Status#{state => hidden}.

%% Pure.

-doc "Returns the fun that derives keys from a secret.".
-spec master(Secret :: binary()) -> master().
master(Secret) ->
    Extracted = extract(~"erlmcp_cluster", Secret),
    fun(Info) -> expand(Extracted, Info) end.

-doc """
Returns the rows of the process's table, which are keys by their use and slot, at the time `Second`,
in seconds since 1970.
""".
-spec rows([master(), ...], Second :: non_neg_integer()) -> [{Key :: term(), Value :: term()}].
rows(Masters, Second) ->
    Today = Second div ?SECONDS_OF_DAY,
    [{{lasting, Use}, [Master(<<(atom_to_binary(Use))/binary, 0>>) || Master <- Masters]}
     || Use <- ?LASTING]
        ++ lists:append([rows(Use, Today, Masters) || Use <- ?USES]).

rows(Use, Today, Masters) ->
    Keys = fun(Slot) -> [Master(<<(atom_to_binary(Use))/binary, 0, Slot:16>>)
                         || Master <- Masters]
           end,
    [Sealing | _] = Keys(Today),
    [{{sealing, Use}, {Today, Sealing}},
     {{ring, Use}, lists:append([Keys(Slot) || Slot <- [Today, Today - 1, Today + 1]])}
     | [{{Use, Slot}, Keys(Slot)} || Slot <- lists:seq(Today - ?DAYS, Today + 1)]].

-doc "Extracts a pseudorandom key (RFC 5869, section 2.2).".
-spec extract(Salt :: binary(), Secret :: binary()) -> <<_:256>>.
extract(Salt, Secret) ->
    crypto:mac(hmac, sha256, Salt, Secret).

-doc "Expands a pseudorandom key to 32 bytes, which are one block (RFC 5869, section 2.3).".
-spec expand(Extracted :: <<_:256>>, Info :: binary()) -> <<_:256>>.
expand(Extracted, Info) ->
    crypto:mac(hmac, sha256, Extracted, <<Info/binary, 1>>).
