-module(erlmcp_chaos_invalid_payload).
-moduledoc """
A fault: 10,000 malformed messages of many kinds, on TCP and HTTP, with good messages between them
on the same connections. Each malformed message is refused with 1066, and each good one is answered.
No connection is lost, and no text of a message becomes an atom.

The evidence: the refusals with 1066.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, run/1]).

-define(MESSAGES, 10_000).
-define(SHORT_MESSAGES, 1_000).
%% Every fifth message goes over HTTP. On TCP this many are written at once, followed by one good
%% message.
-define(BATCH, 20).
%% On HTTP a good message comes after this many.
-define(HTTP_BATCH, 10).
-define(WAIT_MS, 20_000).
%% Atoms that the node may have made for itself meanwhile.
-define(ATOMS, 200).

-doc false.
id() -> ~"chaos_invalid_payload".

-doc false.
title() -> ~"10,000 malformed messages of many kinds amid good ones".

-doc false.
needs() -> [].

-doc false.
bounds() -> #{code => 1066, detect_ms => 10, recover_ms => 0, load => undisturbed}.

-doc false.
harms() -> [malformed].

-doc false.
run(#{target := Target} = Context) ->
    All = case erlmcp_chaos_context:is_short(Context) of
        true -> ?SHORT_MESSAGES;
        false -> ?MESSAGES
    end,
    {ok, Tcp} = erlmcp_chaos_client:connect(tcp, Target),
    {ok, Http} = erlmcp_chaos_client:connect(http, Target),
    Good = erlmcp_chaos_client:call(0, ~"echo", #{text => ~"good"}),
    answered = erlmcp_chaos_client:ask(Tcp, Context, fault, Good, ?WAIT_MS),
    answered = erlmcp_chaos_client:ask(Http, Context, fault, Good, ?WAIT_MS),
    #{atoms := Before} = inside(Context),
    ByHttp = All div 5,
    _ = erlmcp_chaos_context:inject(Context),
    ok = erlmcp_chaos_context:harm(Context, malformed, ok, fun() ->
        ok = lines((All - ByHttp) div ?BATCH, Tcp, Context),
        posts(ByHttp, Http, Context)
    end),
    _ = erlmcp_chaos_context:heal(Context),
    #{atoms := After} = inside(Context),
    #{refused := Refused} = erlmcp_chaos_context:counts(Context, fault),
    Seen = erlmcp_chaos_context:seen(Context, malformed, refused_messages,
                                     maps:get(1066, Refused, 0), {at_least, All}),
    ok = erlmcp_chaos_context:fact(Context, kinds_count, length(kinds())),
    ok = erlmcp_chaos_client:close(Tcp),
    ok = erlmcp_chaos_client:close(Http),
    ok = erlmcp_chaos_context:await_recovered(Context),
    case After - Before of
        Made when Made > ?ATOMS -> {error, {atoms_made, Made}};
        _ -> Seen
    end.

inside(Context) ->
    erlmcp_chaos_context:call(Context, erlmcp_chaos_inside, state, []).

%% Each malformed message of a batch gets a refusal, and then the good message gets its answer.
lines(0, _, _) ->
    ok;
lines(Batches, Connection, Context) ->
    Good = erlmcp_chaos_client:call(Batches, ~"echo", #{text => ~"good"}),
    Bad = [[kind(Batches * ?BATCH + N, Batches), $\n] || N <- lists:seq(1, ?BATCH)],
    SentUs = erlmcp_chaos_context:now_us(),
    ok = erlmcp_chaos_client:send(Connection, [Bad, erlmcp_chaos_client:bytes(tcp, Good)]),
    ok = replies(?BATCH + 1, Batches, SentUs, Connection, Context),
    lines(Batches - 1, Connection, Context).

replies(0, _, _, _, _) ->
    ok;
replies(More, Id, SentUs, Connection, Context) ->
    {ok, Reply} = erlmcp_chaos_client:reply(Connection, ?WAIT_MS),
    Outcome = case Reply of
        #{~"id" := Id} -> good(Reply);
        _ -> bad(Reply)
    end,
    ok = erlmcp_chaos_context:outcome(Context, fault, Outcome, SentUs),
    replies(More - 1, Id, SentUs, Connection, Context).

good(Reply) ->
    case erlmcp_chaos_client:outcome(Reply) of
        answered -> answered;
        Other -> {wrong, {good_message, Other}}
    end.

bad(Reply) ->
    case erlmcp_chaos_client:outcome(Reply) of
        {refused, _, #{~"refusal" := 1066}} = Refused -> Refused;
        Other -> {wrong, {malformed_message, Other}}
    end.

posts(0, _, _) ->
    ok;
posts(More, Connection, Context) ->
    SentUs = erlmcp_chaos_context:now_us(),
    ok = erlmcp_chaos_client:send(Connection, erlmcp_chaos_client:posted([], kind(More, -1))),
    {ok, Reply} = erlmcp_chaos_client:reply(Connection, ?WAIT_MS),
    ok = erlmcp_chaos_context:outcome(Context, fault, bad(Reply), SentUs),
    case More rem ?HTTP_BATCH of
        0 ->
            Good = erlmcp_chaos_client:call(More, ~"echo", #{text => ~"good"}),
            answered = erlmcp_chaos_client:ask(Connection, Context, fault, Good, ?WAIT_MS);
        _ ->
            answered
    end,
    posts(More - 1, Connection, Context).

kind(Number, Id) ->
    Kinds = kinds(),
    (lists:nth(1 + Number rem length(Kinds), Kinds))(Number, Id).

%% A message with room for a number has one, so that few messages are the same.
kinds() ->
    [fun(N, _) -> [~"{\"jsonrpc\": \"2.0\", \"id\": ", digits(N)] end,
     fun(N, _) -> [~"nothing of JSON ", digits(N)] end,
     fun(N, _) -> [$", <<16#C3, 16#28, 16#FF>>, digits(N), $"] end,
     fun(N, _) -> [lists:duplicate(100, $[), digits(N), lists:duplicate(100, $])] end,
     fun(N, _) -> [~"{\"a\": 1, \"a\": ", digits(N), $}] end,
     fun(N, _) -> [~"{\"jsonrpc\": \"2.0\", \"method\": \"ping\", \"id\": ",
                   lists:duplicate(5_000, $9), digits(N), $}] end,
     fun(N, _) -> [~"{\"a\": 1e99999999", digits(N), $}] end,
     fun(N, _) -> [~"{\"a\": \"\\x", digits(N), ~"\"}"] end,
     fun(_, _) -> ~"[]" end,
     fun(_, _) -> ~"{}" end,
     fun(_, _) -> ~"null" end,
     fun(N, _) -> digits(N) end,
     fun(N, _) -> [~"\"text ", digits(N), $"] end,
     fun(N, _) -> [~"{\"jsonrpc\": \"1.0\", \"method\": \"m", digits(N), ~"\", \"id\": null}"] end,
     fun(N, _) -> [~"{\"jsonrpc\": \"2.0\", \"method\": ", digits(N), ~", \"id\": 1.5}"] end,
     fun(N, _) -> [~"{\"jsonrpc\": \"2.0\", \"method\": \"m\", \"id\": {\"n\": ", digits(N),
                   ~"}}"] end,
     fun(N, _) -> [~"{\"jsonrpc\": \"2.0\", \"method\": \"m\", \"id\": [", digits(N), ~"]}"] end,
     fun(N, _) -> [~"{\"jsonrpc\": \"2.0\", \"result\": {}, \"error\": {}, \"of\": ", digits(N),
                   $}] end,
     fun(N, _) -> [~"{\"jsonrpc\": \"2.0\", \"id\": -", digits(N), $}] end,
     fun(N, _) -> [~"{\"jsonrpc\": \"2.0\", \"id\": \"of a ", digits(N),
                   ~"\", \"method\": [\"tools/call\"]}"] end].

digits(N) -> integer_to_binary(N).
