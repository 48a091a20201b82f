-module(erlmcp_cluster_session_id).
-moduledoc """
The id of a session, which is its birth certificate: any node of the cluster brings the session to
life from it. Pure.

An id is a version, a slot, a nonce and a seal (`m:erlmcp_sealed_state`). The slot says which key
opens the seal. The nonce, which is never used twice, is also the session's name in the cluster. The
seal has the session's revision and log level, and its client's declaration. It opens for the same
server and principal alone.

A declaration that needs more than 512 bytes does not fit. The id then says so, and the declaration
must be in the store before the client has the id.

Internal.
""".

-export([server/1, new/4, open/4, name/1, nonce/3, declaration/2, longest/0]).

-export_type([birth/0, server/0, nonce/0, keys/0]).

-define(VERSION, 1).
%% The most bytes under the seal.
-define(MOST, 512).
%% Characters of an id: its head, and the seal of these bytes with a nonce and a tag.
-define(HEAD, 4).
-define(NONCE, 16).
-define(LONGEST, (?HEAD + ((12 + 16 + ?MOST) * 4 + 2) div 3)).

%% The forms of a declaration.
-define(SHORT, 0).
-define(TERM, 1).
-define(KEPT, 2).

-define(REVISIONS, [{1, '2024-11-05'}, {2, '2025-03-26'}, {3, '2025-06-18'}, {4, '2025-11-25'}]).

%% The capabilities that clients of today declare, each with the names that lead to it, the last one
%% first. Each has the bit of its number.
-define(CAPABILITIES, #{{[~"roots"], #{}} => 0,
                        {[~"listChanged", ~"roots"], true} => 1,
                        {[~"listChanged", ~"roots"], false} => 2,
                        {[~"sampling"], #{}} => 3,
                        {[~"context", ~"sampling"], #{}} => 4,
                        {[~"tools", ~"sampling"], #{}} => 5,
                        {[~"elicitation"], #{}} => 6,
                        {[~"form", ~"elicitation"], #{}} => 7,
                        {[~"url", ~"elicitation"], #{}} => 8,
                        {[~"tasks"], #{}} => 9,
                        {[~"list", ~"tasks"], #{}} => 10,
                        {[~"cancel", ~"tasks"], #{}} => 11,
                        {[~"createMessage", ~"sampling", ~"requests", ~"tasks"], #{}} => 12,
                        {[~"create", ~"elicitation", ~"requests", ~"tasks"], #{}} => 13,
                        {[~"experimental"], #{}} => 14}).

-type nonce() :: <<_:96>>.
-doc "The bytes by which ids are bound to a server (`server/1`).".
-type server() :: binary().
-doc "A fun that returns the keys of a slot, see `erlmcp_cluster_secret:opening_keys/2`.".
-type keys() :: fun((erlmcp_cluster_secret:slot()) -> [<<_:256>>]).
-doc """
The content of an id. `nonce` is the name of the session, and `incarnation` the one that opened it.
`session` is `kept` if the store has the declaration.
""".
-type birth() :: #{
    nonce := nonce(),
    incarnation := erlmcp_cluster_deaths:incarnation(),
    session := erlmcp_engine:session() | kept
}.

-doc "Returns the bytes by which ids are bound to the server with the id `Id`.".
-spec server(Id :: term()) -> server().
server(Id) ->
    term_to_binary({?MODULE, Id}, [deterministic]).

-doc """
Returns the id of a session of the server `Server`. If the session's declaration is too large for
an id, returns `{keep, Id, Declaration}`: the store must have these bytes, which `declaration/2`
reads.
""".
-spec new(erlmcp_engine:session(), server(), nonce(),
          {erlmcp_cluster_secret:slot(), Key :: <<_:256>>}) ->
    {ok, Id :: binary()} | {keep, Id :: binary(), binary()}.
new(#{principal := Principal} = Session, Server, Nonce, Sealing) ->
    Bound = bound(Server, Principal),
    case declaration(Session) of
        Declaration when byte_size(Declaration) > ?MOST ->
            {keep, sealed(<<0:8, ?KEPT>>, Bound, Nonce, Sealing), Declaration};
        Declaration ->
            {ok, sealed(Declaration, Bound, Nonce, Sealing)}
    end.

sealed(Plain, Bound, Nonce, {Slot, Key}) ->
    %% Three bytes are four characters, so head and seal can be read apart.
    Seal = erlmcp_sealed_state:encrypt(Plain, Bound, Nonce, [Key]),
    erlmcp_base64url:encode(<<?VERSION, Slot:16, Seal/binary>>).

-doc """
Opens an id that a client sent. Returns `unknown` unless `new/4` returned the id for the same server
and principal, with one of the keys of its slot. Also returns `unknown` if this release does not
know the form of the declaration in the id.
""".
-spec open(Id :: binary(), server(), Principal :: term(), keys()) ->
    {ok, birth()} | unknown.
open(<<Head:?HEAD/binary, Nonce:?NONCE/binary, _/binary>> = Id, Server, Principal, Keys) when
    byte_size(Id) =< ?LONGEST
->
    Sealed = binary:part(Id, ?HEAD, byte_size(Id) - ?HEAD),
    maybe
        {ok, <<?VERSION, Slot:16>>} ?= erlmcp_base64url:decode(Head),
        [_ | _] = Ring ?= Keys(Slot),
        {ok, Declaration} ?= erlmcp_sealed_state:open(Sealed, bound(Server, Principal), Ring),
        {ok, Session} ?= declaration(Declaration, Principal),
        {ok, <<Incarnation:32, _:64>> = Name} ?= erlmcp_base64url:decode(Nonce),
        {ok, #{nonce => Name, incarnation => Incarnation, session => Session}}
    else
        _ -> unknown
    end;
open(_, _, _, _) ->
    unknown.

-doc "Returns the name of a session in the cluster, its nonce, from an id that `new/4` returned.".
-spec name(Id :: binary()) -> nonce().
name(<<_:?HEAD/binary, Nonce:?NONCE/binary, _/binary>>) ->
    {ok, <<_:96>> = Name} = erlmcp_base64url:decode(Nonce),
    Name.

-doc """
Returns the nonce of a session. `Count` is the number of the session among those of the incarnation.
`Boot` are random bits of the incarnation.
""".
-spec nonce(erlmcp_cluster_deaths:incarnation(), Boot :: 0..16#FFFFFF, Count :: pos_integer()) ->
    nonce().
nonce(Incarnation, Boot, Count) when Count < 1 bsl 40 ->
    %% A store that was restored from an old copy may give out the number of an incarnation again.
    <<Incarnation:32, Boot:24, Count:40>>.

-doc "Returns the most characters that an id has.".
-spec longest() -> pos_integer().
longest() ->
    ?LONGEST.

%% Either term says where it ends, so no two pairs have the same bytes.
bound(Server, anonymous) ->
    Server;
bound(Server, Principal) ->
    Size = byte_size(Server),
    <<Server:Size/binary, (term_to_binary(Principal, [deterministic]))/binary>>.

%% The declaration of a client, with what the session has of its own.

declaration(#{revision := Revision, log_level := Level, client_info := Info,
              client_capabilities := Capabilities}) ->
    {Code, Revision} = lists:keyfind(Revision, 2, ?REVISIONS),
    maybe
        {ok, Name, Version} ?= short_info(Info),
        {ok, Bits} ?= bits(Capabilities),
        <<Code:4, Level:4, ?SHORT, Bits:16, (byte_size(Name)), Name/binary, Version/binary>>
    else
        long ->
            Term = term_to_binary({Info, Capabilities}, [deterministic]),
            <<Code:4, Level:4, ?TERM, Term/binary>>
    end.

-doc """
Reads the declaration in an id, or one that was too large for its id. Returns the session that the
principal opened with it, or `error` if this release does not know its form. Returns `{ok, kept}`
for an id that only says that the store has the declaration.
""".
-spec declaration(binary(), Principal :: term()) -> {ok, erlmcp_engine:session() | kept} | error.
declaration(<<0:8, ?KEPT>>, _) ->
    {ok, kept};
declaration(<<Code:4, Level:4, Form, Declared/binary>>, Principal) ->
    maybe
        {Code, Revision} ?= lists:keyfind(Code, 1, ?REVISIONS),
        {ok, {Info, Capabilities}} ?= declared(Form, Declared),
        {ok, #{principal => Principal, scopes => all, revision => Revision, client_info => Info,
               client_capabilities => Capabilities, log_level => Level, initialized => true}}
    else
        _ -> error
    end;
declaration(_, _) ->
    error.

declared(?SHORT, <<Bits:16, Size, Name:Size/binary, Version/binary>>) ->
    {ok, {#{~"name" => Name, ~"version" => Version}, capabilities(Bits)}};
declared(?TERM, Term) ->
    %% It was sealed here, or comes from the store. A later release may have other atoms in it.
    try
        {_, _} = Declared = binary_to_term(Term, [safe]),
        {ok, Declared}
    catch
        error:_ -> error
    end;
declared(_, _) ->
    error.

short_info(#{~"name" := Name, ~"version" := Version} = Info) when
    map_size(Info) =:= 2, is_binary(Name), byte_size(Name) < 256, is_binary(Version)
->
    {ok, Name, Version};
short_info(_) ->
    long.

bits(#{} = Capabilities) ->
    bits(maps:to_list(Capabilities), [], 0);
bits(_) ->
    long.

bits([], _, Bits) ->
    {ok, Bits};
bits([{Name, Value} | Others], Path, Bits) ->
    case below(Value, [Name | Path], Bits) of
        {ok, More} -> bits(Others, Path, More);
        long -> long
    end.

below(#{} = Object, Path, Bits) when map_size(Object) > 0 ->
    bits(maps:to_list(Object), Path, Bits);
below(Value, Path, Bits) ->
    case ?CAPABILITIES of
        #{{Path, Value} := Number} -> {ok, Bits bor (1 bsl Number)};
        #{} -> long
    end.

capabilities(Bits) ->
    maps:fold(fun({Path, Value}, Number, Capabilities) when Bits band (1 bsl Number) =/= 0 ->
                      put(lists:reverse(Path), Value, Capabilities);
                 (_, _, Capabilities) ->
                      Capabilities
              end, #{}, ?CAPABILITIES).

put([Name], Value, Object) ->
    Object#{Name => Value};
put([Name | Path], Value, Object) ->
    Object#{Name => put(Path, Value, maps:get(Name, Object, #{}))}.
