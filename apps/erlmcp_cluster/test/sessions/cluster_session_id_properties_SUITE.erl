-module(cluster_session_id_properties_SUITE).
-moduledoc """
Properties of session ids as birth certificates: any node with the secret reads in them what the
session was at its birth, and nobody else makes or changes one.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_session_comes_to_life_from_its_id/1, an_altered_id_is_unknown/1,
         an_id_is_bound/1, other_slots_are_unknown/1, foreign_bytes_are_unknown/1,
         a_nonce_is_never_used_twice/1, the_bound_is_512_bytes/1,
         a_kept_declaration_is_read_again/1, an_engines_session_fits/1, few_steps_make_an_id/1,
         what_it_costs/1]).

-define(SLOT, 20_000).
-define(SERVER, (erlmcp_cluster_session_id:server(~"weather"))).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [a_session_comes_to_life_from_its_id, an_altered_id_is_unknown, an_id_is_bound,
     other_slots_are_unknown, foreign_bytes_are_unknown, a_nonce_is_never_used_twice,
     the_bound_is_512_bytes, a_kept_declaration_is_read_again, an_engines_session_fits,
     few_steps_make_an_id, what_it_costs].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

a_session_comes_to_life_from_its_id(_) ->
    ok = erlmcp_test_property:holds(
        ?FORALL({Session, Incarnation, Count}, {session(), range(1, 16#FFFFFFFF),
                                                range(1, 1 bsl 40 - 1)}, begin
            Nonce = erlmcp_cluster_session_id:nonce(Incarnation, 77, Count),
            #{principal := Principal} = Session,
            case erlmcp_cluster_session_id:new(Session, ?SERVER, Nonce, sealing()) of
                {ok, Id} ->
                    {ok, #{nonce := Nonce, incarnation := Incarnation, session := Session}} =
                        open(Id, Principal),
                    byte_size(Id) =< erlmcp_cluster_session_id:longest();
                {keep, Id, Declaration} ->
                    {ok, #{nonce := Nonce, session := kept}} = open(Id, Principal),
                    byte_size(Declaration) > 512 andalso byte_size(Id) < 80 andalso
                        {ok, Session} =:=
                            erlmcp_cluster_session_id:declaration(Declaration, Principal)
            end
        end), 1_000).

%% Each place of an id is changed, and some places are, and some are cut or added.
an_altered_id_is_unknown(_) ->
    Id = id(small()),
    {ok, _} = open(Id, ~"alice"),
    Altered = [with(Id, Place, other(binary:at(Id, Place)))
               || Place <- lists:seq(0, byte_size(Id) - 1), _ <- lists:seq(1, 60)]
        ++ [begin
                Place = rand:uniform(byte_size(Id)) - 1,
                Moved = with(Id, Place, other(binary:at(Id, Place))),
                Again = rand:uniform(byte_size(Id)) - 1,
                with(Moved, Again, other(binary:at(Moved, Again)))
            end || _ <- lists:seq(1, 6_000)]
        ++ [binary:part(Id, 0, Size) || Size <- lists:seq(0, byte_size(Id) - 1)]
        ++ [<<Id/binary, (other(0))>> || _ <- lists:seq(1, 60)],
    Different = [One || One <- Altered, One =/= Id],
    true = length(Different) >= 10_000,
    [] = [One || One <- Different, open(One, ~"alice") =/= unknown].

with(Id, Place, Character) ->
    <<Before:Place/binary, _, After/binary>> = Id,
    <<Before/binary, Character, After/binary>>.

other(Character) ->
    Alphabet = ~"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_",
    case binary:at(Alphabet, rand:uniform(64) - 1) of
        Character -> other(Character);
        Other -> Other
    end.

an_id_is_bound(_) ->
    Id = id(small()),
    {ok, _} = erlmcp_cluster_session_id:open(Id, ?SERVER, ~"alice", keys()),
    unknown = erlmcp_cluster_session_id:open(Id, ?SERVER, ~"bob", keys()),
    unknown = erlmcp_cluster_session_id:open(Id, ?SERVER, anonymous, keys()),
    Other = erlmcp_cluster_session_id:server(~"other"),
    unknown = erlmcp_cluster_session_id:open(Id, Other, ~"alice", keys()),
    unknown = erlmcp_cluster_session_id:open(Id, ?SERVER, ~"alice", fun(_) -> [key(9)] end),
    %% During a change of the secret, either opens.
    {ok, _} = erlmcp_cluster_session_id:open(Id, ?SERVER, ~"alice",
                                             fun(_) -> [key(9), key(1)] end).

other_slots_are_unknown(_) ->
    Id = id(small()),
    unknown = erlmcp_cluster_session_id:open(Id, ?SERVER, ~"alice", fun(_) -> [] end),
    %% The head says the slot: with another one, the key is another one.
    <<_:4/binary, Sealed/binary>> = Id,
    [unknown = open(<<(erlmcp_base64url:encode(<<1, Slot:16>>))/binary, Sealed/binary>>, ~"alice")
     || Slot <- [0, ?SLOT - 1, ?SLOT + 1, 65_535]],
    unknown = open(<<(erlmcp_base64url:encode(<<2, ?SLOT:16>>))/binary, Sealed/binary>>, ~"alice").

foreign_bytes_are_unknown(_) ->
    ok = erlmcp_test_property:holds(?FORALL(Bytes, oneof([binary(), binary(200)]),
        unknown =:= open(Bytes, ~"alice")
            andalso unknown =:= open(erlmcp_base64url:encode(Bytes), ~"alice")), 1_000),
    unknown = open(binary:copy(~"A", 100_000), ~"alice"),
    Longer = binary:copy(~"A", erlmcp_cluster_session_id:longest() + 1),
    unknown = open(Longer, ~"alice").

a_nonce_is_never_used_twice(_) ->
    Nonces = [erlmcp_cluster_session_id:nonce(Incarnation, Boot, Count)
              || Incarnation <- [1, 2, 16#FFFFFFFF], Boot <- [0, 1, 16#FFFFFF],
                 Count <- [1, 2, 1 bsl 40 - 1]],
    27 = length(lists:usort(Nonces)),
    [] = [Nonce || Nonce <- Nonces, byte_size(Nonce) =/= 12],
    %% A count that would be in the random bits gives no nonce.
    ok = try erlmcp_cluster_session_id:nonce(1, 1, 1 bsl 40) of
        Nonce -> {is_a_nonce, Nonce}
    catch
        error:function_clause -> ok
    end.

%% The last declaration that fits has 512 bytes.
the_bound_is_512_bytes(_) ->
    Of = fun(Size) -> (small())#{client_info => #{~"name" => ~"c",
                                                  ~"version" => binary:copy(~"1", Size)}} end,
    Fits = [Size || Size <- lists:seq(480, 520), {ok, _} <- [new(Of(Size))]],
    Kept = [Size || Size <- lists:seq(480, 520), {keep, _, _} <- [new(Of(Size))]],
    %% 2 of revision, level and form, 2 of capabilities, 2 of the name.
    506 = lists:last(Fits),
    507 = hd(Kept),
    {ok, Longest} = new(Of(506)),
    true = byte_size(Longest) =:= erlmcp_cluster_session_id:longest(),
    {ok, _} = open(Longest, ~"alice").

a_kept_declaration_is_read_again(_) ->
    Large = (small())#{client_capabilities => #{~"experimental" =>
                                                    #{~"x" => binary:copy(~"y", 10_000)}}},
    {keep, Id, Declaration} = new(Large),
    {ok, #{session := kept}} = open(Id, ~"alice"),
    {ok, Large} = erlmcp_cluster_session_id:declaration(Declaration, ~"alice"),
    error = erlmcp_cluster_session_id:declaration(~"", ~"alice"),
    error = erlmcp_cluster_session_id:declaration(<<1:4, 6:4, 1, "no term">>, ~"alice"),
    error = erlmcp_cluster_session_id:declaration(<<15:4, 6:4, 1>>, ~"alice").

%% What `initialize` gives is what the id gives back, but for the notification that follows.
an_engines_session_fits(_) ->
    {ok, Server} = erlmcp:start_server(#{name => ~"engine", version => ~"1"}),
    [begin
         Params = #{~"protocolVersion" => Revision, ~"capabilities" => Capabilities,
                    ~"clientInfo" => #{~"name" => ~"client", ~"version" => ~"1.0"}},
         Request = #{~"jsonrpc" => ~"2.0", ~"id" => 1, ~"method" => ~"initialize",
                     ~"params" => Params},
         Catalog = catalog(Server),
         {[_], #{} = Session} = erlmcp_engine:handle(Request, #{headers => none,
                                                                principal => ~"alice"},
                                                     Catalog, none),
         {ok, #{session := Again}} = open(id(Session), ~"alice"),
         Again = Session#{initialized := true}
     end || Revision <- erlmcp_revision:supported(session),
            Capabilities <- [#{}, #{~"roots" => #{~"listChanged" => true}, ~"sampling" => #{}}]],
    ok = erlmcp:stop_server(Server).

catalog(Server) ->
    {ok, _, Instance} = erlmcp_registry:whereis(Server),
    erlmcp_published_catalog:catalog(Instance).

%% Each session that is opened needs one. A busy machine changes nothing in the count.
few_steps_make_an_id(_) ->
    Session = (small())#{principal := anonymous},
    Nonce = erlmcp_cluster_session_id:nonce(1, 1, 1),
    Server = ?SERVER,
    Sealing = sealing(),
    New = fun() -> erlmcp_cluster_session_id:new(Session, Server, Nonce, Sealing) end,
    {ok, _} = New(),
    {_, Before} = process_info(self(), reductions),
    ok = repeat(1_000, New),
    {_, After} = process_info(self(), reductions),
    ct:pal("~b reductions for 1,000 ids", [After - Before]),
    true = After - Before < 65_000.

what_it_costs(_) ->
    Session = small(),
    Nonce = erlmcp_cluster_session_id:nonce(1, 1, 1),
    Id = id(Session),
    Sealing = sealing(),
    Keys = keys(),
    Times = #{new => cost(fun() -> erlmcp_cluster_session_id:new(Session, ?SERVER, Nonce, Sealing)
                          end),
              open => cost(fun() -> erlmcp_cluster_session_id:open(Id, ?SERVER, ~"alice", Keys)
                           end),
              random => cost(fun() -> erlmcp_base64url:encode(crypto:strong_rand_bytes(24)) end)},
    ct:pal("us for one, ~b characters: ~p", [byte_size(Id), Times]),
    [] = [Time || _ := Time <- Times, Time > 1_000].

cost(Work) ->
    Count = 20_000,
    _ = [Work() || _ <- lists:seq(1, 1_000)],
    {Time, _} = timer:tc(fun() -> repeat(Count, Work) end),
    Time / Count.

repeat(0, _) ->
    ok;
repeat(Count, Work) ->
    _ = Work(),
    repeat(Count - 1, Work).

%% Ids.

new(Session) ->
    erlmcp_cluster_session_id:new(Session, ?SERVER, erlmcp_cluster_session_id:nonce(3, 5, 7),
                                  sealing()).

id(Session) ->
    {ok, Id} = erlmcp_cluster_session_id:new(Session, ?SERVER,
                                             erlmcp_cluster_session_id:nonce(3, 5, 7), sealing()),
    Id.

open(Id, Principal) ->
    erlmcp_cluster_session_id:open(Id, ?SERVER, Principal, keys()).

%% Each slot has its own key, as the secret gives them.
keys() ->
    fun(?SLOT) -> [key(1)];
       (Slot) -> [key(Slot)]
    end.

sealing() ->
    {?SLOT, key(1)}.

key(Number) ->
    crypto:hash(sha256, <<Number:32>>).

small() ->
    #{principal => ~"alice", scopes => all, revision => '2025-06-18',
      client_info => #{~"name" => ~"claude-code", ~"version" => ~"2.0.1"},
      client_capabilities => #{~"roots" => #{~"listChanged" => true}, ~"sampling" => #{}},
      log_level => 6, initialized => true}.

session() ->
    ?LET({Principal, Revision, Info, Capabilities, Level},
         {oneof([anonymous, ~"alice", #{~"sub" => ~"bob"}, {certificate, ~"cn"}]),
          oneof(['2024-11-05', '2025-03-26', '2025-06-18', '2025-11-25']), info(), capabilities(),
          range(0, 7)},
         #{principal => Principal, scopes => all, revision => Revision, client_info => Info,
           client_capabilities => Capabilities, log_level => Level, initialized => true}).

info() ->
    frequency([{1, undefined},
               {4, ?LET({Name, Version}, {text(), text()},
                        #{~"name" => Name, ~"version" => Version})},
               {2, ?LET({Name, Title}, {text(), text()},
                        #{~"name" => Name, ~"version" => ~"1", ~"title" => Title})}]).

text() ->
    ?LET({Text, Times}, {binary(), oneof([1, 1, 1, 30])}, binary:copy(Text, Times)).

capabilities() ->
    ?SIZED(Size, object(min(Size, 6))).

object(0) ->
    #{};
object(Size) ->
    ?LET(Members, list({name(), frequency([{3, #{}}, {2, boolean()}, {1, null}, {1, binary()},
                                           {3, ?LAZY(object(Size div 2))}])}),
         maps:from_list(lists:sublist(Members, 5))).

name() ->
    oneof([~"roots", ~"listChanged", ~"sampling", ~"context", ~"tools", ~"elicitation", ~"form",
           ~"url", ~"tasks", ~"list", ~"cancel", ~"requests", ~"createMessage", ~"create",
           ~"experimental", binary()]).
