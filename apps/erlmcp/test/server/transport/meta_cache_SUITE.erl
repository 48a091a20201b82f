-module(meta_cache_SUITE).
-moduledoc """
`m:erlmcp_meta_cache`: what is read of a request whose head has told its method is what the
whole of it says, whatever the bytes are; and what was learnt of a connection changes nothing.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([told_or_decoded/1, learnt_or_not/1, what_clients_write_is_told/1]).

-define(VERSION, ~"2026-07-28").
-define(META, (<<"{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\","
                 "\"io.modelcontextprotocol/clientCapabilities\":{}}">>)).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [told_or_decoded, learnt_or_not, what_clients_write_is_told].

limits() ->
    #{message_bytes => 200_000, depth => 6, members => 14}.

%% What is told of a text is what it is, read as a whole by `m:json` (a long text is): the request,
%% and what its `_meta` comes to.
told_or_decoded(_) ->
    Told = counters:new(1, []),
    holds(?FORALL({Learnt, Method, Text}, {metas(), methods(), texts()},
                  case request(Method, Text, Learnt) of
                      {ok, {Id, Method, Params, Valid}} ->
                          ok = counters:add(Told, 1, 1),
                          {ok, Json} = long(Text),
                          {request, Id, Method, Params} =:= erlmcp_message:parse(Json) andalso
                              erlmcp_meta:validate(Params, ?VERSION, Valid)
                                  =:= erlmcp_meta:validate(Params, ?VERSION);
                      other ->
                          true
                  end), cases()),
    %% Some are, or nothing was shown.
    ct:log("told of ~b: ~b", [cases(), counters:get(Told, 1)]),
    true = counters:get(Told, 1) > cases() div 100.

%% The three ways to read a text agree on what it is, and on whether it is anything.
learnt_or_not(_) ->
    holds(?FORALL({Learnt, Text}, {metas(), texts()},
                  case {on_connection(Learnt, fun() -> decoded(Text) end),
                        erlmcp_json:decode(Text, limits()), long(Text)} of
                      {{ok, Json}, {ok, Json}, {ok, Json}} -> true;
                      {{error, Reason}, {error, Reason}, {error, _}} -> true;
                      {_, _, _} -> false
                  end), cases()).

%% The environment may ask for more of them than each build needs (`CASES=100000`).
cases() ->
    list_to_integer(os:getenv("CASES", "1000")).

holds(Property, Cases) ->
    erlmcp_test_property:holds(Property, Cases).

decoded(Text) ->
    erlmcp_meta_cache:decode(Text, limits()).

%% In more bytes than `m:erlmcp_json_fast` reads, and no others.
long(Text) ->
    erlmcp_json:decode(<<Text/binary, (binary:copy(~" ", 65_537))/binary>>, limits()).

%% In a process that has heard one request with this `_meta` before, and again.
on_connection(Meta, Run) ->
    Test = self(),
    {Pid, Monitor} = spawn_monitor(fun() ->
        _ = [decoded(<<(before(~"a"))/binary, "{\"_meta\":", Meta/binary, "}}">>) || _ <- [1, 2]],
        Test ! {self(), Run()}
    end),
    receive
        {Pid, Result} ->
            true = demonitor(Monitor, [flush]),
            Result;
        {'DOWN', Monitor, process, Pid, Reason} ->
            error(Reason)
    end.

before(Method) ->
    <<"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"", Method/binary, "\",\"params\":">>.

request(Method, Text, Meta) ->
    Headers = #{~"mcp-protocol-version" => ?VERSION, ~"mcp-method" => Method},
    maybe
        {announced, _, _} = Announced ?= erlmcp_admission:announced(Headers, both),
        {ok, Id, At} ?= erlmcp_message:first_id(Text),
        on_connection(Meta, fun() ->
            erlmcp_meta_cache:request(Text, {Id, At}, Announced, limits())
        end)
    else
        _ -> other
    end.

what_clients_write_is_told(_) ->
    Text = <<(before(~"tools/call"))/binary, "{\"name\":\"echo\",\"_meta\":", ?META/binary, "}}">>,
    {ok, {7, ~"tools/call", #{~"name" := ~"echo"}, Known}} =
        request(~"tools/call", Text, ?META),
    true = Known =/= none,
    %% The head tells of another method, or the text of more than the head.
    other = request(~"tools/list", Text, ?META),
    other = request(~"tools/call", <<Text/binary, " ">>, ?META).

%% A head is right more often than not.
methods() ->
    frequency([{12, ~"tools/call"}, {1, ~"tools/list"}, {1, ~"tools/cal"}, {1, ~""},
               {1, ~"tools\\u002fcall"}, {1, ~B'tools/call","id":"8'}, {1, ~"tools/call "},
               {1, <<"tools/call", 0>>}, {1, ~"größe"}]).

metas() ->
    elements([?META, ?META, ~"{}", ~"[]", ~B'{"a":0.0}', ~B'{"a":1,"b":[{}]}',
              ~B'{"io.modelcontextprotocol/protocolVersion":"2025-11-25"}']).

texts() ->
    ?LET(Text, frequency([{6, message()}, {2, mutated(message())}, {1, binary()}]), Text).

%% As clients write it, but for one thing or the other.
message() ->
    ?LET(Parts,
         [usually(~B'{"jsonrpc":"2.0","id":', [~B'{"jsonrpc":"2.0", "id":', ~B'{"id":1,"id":',
                                                ~B'{"jsonrpc":"1.0","id":',
                                               ~B' {"jsonrpc":"2.0","id":',
                                               <<16#EF, 16#BB, 16#BF,
                                                 "{\"jsonrpc\":\"2.0\",\"id\":">>]),
          ids(),
          usually(~B',"method":"tools/call","params":',
                  [~B',"method":"tools/list","params":', ~B',"method": "tools/call","params":',
                   ~B',"m\u0065thod":"tools/call","params":', ~B',"method":"tools\/call","params":',
                   ~B',"method":"tools/call","method":"tools/call","params":',
                   ~B',"method":"tools/call","id":8,"params":',
                   ~B',"method":"tools/call","params":{},"params":']),
          params(),
          usually(~"}", [~"", ~" }", ~"}}", ~"} ", ~"}\n", <<"}", 0>>, ~B',"a":1}', ~B',"id":7}',
                         ~B',"params":{}}', ~",}", <<"}", 16#FF>>])],
         iolist_to_binary(Parts)).

usually(Text, Others) ->
    frequency([{20, Text}, {1, elements(Others)}]).

ids() ->
    frequency([{10, ~"7"}, {5, elements([~"0", ~"-0", ~"-1", ~"00", ~"07", ~"1.0", ~"1e2", ~"1e400",
                                         ~"999999999999999", ~"1234567890123456",
                                         ~"123456789012345678901234567890", ~B'"7"', ~B'"\u0037"',
                                         ~"null", ~"true", ~"[1]", ~"{}", ~"", ~" 7", ~"7 "])}]).

params() ->
    frequency([{8, usual_params()}, {8, object(3)}, {1, value(2)}]).

%% As a client has them, with whichever arguments.
usual_params() ->
    ?LET({Space, Arguments, Meta}, {space(), object(2), metas()},
         [~B'{"name":"echo","arguments":', Arguments, Space, ~B',"_meta":', Meta, Space, $}]).

object(Depth) ->
    ?LET(Members, resize(4, list({key(), space(), value(Depth - 1), space()})),
         [${, lists:join($,, [[K, S, $:, T, V, T] || {K, S, V, T} <- Members]), $}]).

key() ->
    frequency([{4, ~B'"_meta"'}, {4, elements([~B'"name"', ~B'"arguments"', ~B'"uri"', ~B'"id"'])},
               {1, elements([~B'"_m\u0065ta"', ~B'"\u0000"', ~B'""', ~B'"é"', ~B'"a\"b"', ~"_meta",
                             ~B'"jsonrpc"', ~B'"method"', ~B'"params"', ~B'"\ud800"',
                             <<"\"", 16#FF, "\"">>])}]).

space() ->
    frequency([{12, ~""}, {1, elements([~" ", ~"\n", ~"\r\t", ~"\v", <<16#A0>>, <<0>>])}]).

value(Depth) when Depth < 1 ->
    frequency([{4, ?META}, {2, metas()}, {4, plain()}, {2, odd()}]);
value(Depth) ->
    frequency([{4, ?META}, {2, metas()}, {4, plain()}, {1, odd()}, {2, ?LAZY(object(Depth))},
               {1, ?LAZY(?LET(Values, resize(3, list(value(Depth - 1))),
                              [$[, lists:join($,, Values), $]]))}]).

plain() ->
    elements([~"1", ~"-12", ~"0", ~"1.5", ~"true", ~"false", ~"null", ~B'"a"', ~B'"a longer text"',
              ~B'"é"', ~B'"\n\"\\\/"', ~"{}", ~"[]", ~B'"\ud83d\ude00"']).

odd() ->
    elements([~"-0", ~"-0.0", ~"0.0", ~"1e400", ~"-1e400", ~"1e-400", ~"1E5", ~"01", ~"1.",
              ~".5", ~"+1", ~"-", ~"1e", ~"123456789012345678", ~"1234567890123456789",
              ~B'"\u0000"',
              <<"\"", 0, "\"">>, ~B'"\ud800"', ~B'"\udc00"', ~B'"\x"', <<"\"", 16#C0, 16#AF, "\"">>,
              <<"\"", 16#ED, 16#A0, 16#80, "\"">>, <<"\"", 16#C3, "\"">>, ~"nul", ~"NaN",
              binary:copy(~"[", 40), binary:copy(~"1", 400), binary:copy(~"1", 401),
              <<"1e", (binary:copy(~"0", 396))/binary>>, <<"1e", (binary:copy(~"0", 397))/binary>>,
              <<"1e", (binary:copy(~"0", 398))/binary>>,
              <<"1.0e", (binary:copy(~"0", 396))/binary>>,
              ~B'{"a":1,"a":2}', ~B'{"a":1,"\u0061":2}', ~B'{"_meta":{},"_meta":{}}']).

%% A byte changed, put in, or left out.
mutated(Message) ->
    ?LET({Text, At, Byte, How}, {Message, non_neg_integer(),
                                 oneof([byte(), elements([$", $\\, ${, $}, $,, $\s, $_])]),
                                 elements([changed, inserted, removed, cut])},
         begin
             <<Head:(At * 7 rem byte_size(Text))/binary, C, Tail/binary>> = Text,
             case How of
                 changed -> <<Head/binary, Byte, Tail/binary>>;
                 inserted -> <<Head/binary, Byte, C, Tail/binary>>;
                 removed -> <<Head/binary, Tail/binary>>;
                 cut -> Head
             end
         end).
