-module(load_replies_SUITE).
-moduledoc """
Tests for what a load makes of each reply. A reply that is judged too kindly is one more answer in a
published rate, and one that is judged too hard is a fault that the server does not have.
""".

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([ids_are_found_wherever_they_stand/1, results_answer_their_request_only/1,
         refusals_have_their_code/1, what_is_no_reply_is_wrong/1, contents_are_those_asked_for/1,
         a_known_reply_differs_in_its_id_only/1, what_cannot_be_known_again_is_read/1]).

-define(ID, ~"1000000007").
-define(OTHER, ~"1000000008").

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [ids_are_found_wherever_they_stand, results_answer_their_request_only,
     refusals_have_their_code, what_is_no_reply_is_wrong, contents_are_those_asked_for,
     a_known_reply_differs_in_its_id_only, what_cannot_be_known_again_is_read].

%% On a line only the id says whose reply it is. Servers write it first or last.
ids_are_found_wherever_they_stand(_) ->
    [?assertEqual({Line, Found}, {Line, erlmcp_load_reply:id(Line)})
     || {Line, Found} <- [
            {~B'{"jsonrpc":"2.0","id":1000000007,"result":{"id":1000000001}}', {ok, 1000000007}},
            {~B'{"jsonrpc":"2.0","id":1000000007,"error":{"code":1}}', {ok, 1000000007}},
            {~B'{"result":{"id":1000000001},"id":1000000007}', {ok, 1000000007}},
            {~B'{"jsonrpc":"2.0","result":{},"id":1000000007}', {ok, 1000000007}},
            {~B'{"result":{},"id":12,"jsonrpc":"2.0"}', {ok, 12}},
            {~B'{"result":1,"id":12}', {ok, 12}},
            {~B'{"error":{},"id":12}', {ok, 12}},
            {~B'{"jsonrpc":"2.0","id":"12345678","result":{}}', unknown},
            {~B'{"jsonrpc":"2.0","id":1,"method":"roots/list"}', none},
            {~B'{"jsonrpc":"2.0","method":"notifications/progress"}', none},
            {~B'{"result":{"x":1,"id":1000000001}}', unknown},
            {~B'{"result":1}', unknown}, {~B'{"id":1000000007}', unknown},
            {~B'{"result":1,"id":1.5}', unknown}, {~"1000000007", unknown}, {~"{", unknown},
            {~"", unknown}]],
    [?assertEqual({Line, Is}, {Line, erlmcp_load_reply:is_reply(Line)})
     || {Line, Is} <- [{~B'{"id":1,"result":{}}', true}, {~"{", true},
                       {~B'{"method":"notifications/progress"}', false}]].

results_answer_their_request_only(_) ->
    [?assertEqual({Body, Status, Verdict}, {Body, Status, read(Body, Status, any)})
     || {Body, Status, Verdict} <- [
            {reply(?ID, ~"{}"), none, answered}, {reply(?ID, ~"{}"), 200, answered},
            {reply(?ID, ~"{}"), 201, {wrong, status}}, {reply(?ID, ~"{}"), 500, {wrong, status}},
            {reply(?OTHER, ~"{}"), 200, {wrong, id}},
            {reply(~B'"1000000007"', ~"{}"), 200, {wrong, id}},
            {reply(~"null", ~"{}"), 200, {wrong, id}},
            {reply(?ID, ~"[]"), 200, {wrong, content}}, {reply(?ID, ~"1"), none, {wrong, content}},
            {reply(?ID, ~B'{"isError":true,"content":[]}'), 200,
             {refused, tool_error, #{~"isError" => true, ~"content" => []}}},
            {reply(?ID, ~B'{"isError":false}'), 200, answered}]].

refusals_have_their_code(_) ->
    [?assertEqual({Id, Status, Error, Verdict}, {Id, Status, Error, read(refusal(Id, Error), Status,
                                                                   any)})
     || {Id, Status, Error, Verdict} <- [
            {?ID, none, ~B'{"code":-32603}', {refused, -32603, #{}}},
            {?ID, 429, ~B'{"code":-32603,"data":{"refusal":1056}}',
             {refused, 1056, #{~"refusal" => 1056}}},
            {?ID, 200, ~B'{"code":7,"data":{"refusal":"1056"}}',
             {refused, 7, #{~"refusal" => ~"1056"}}},
            {?ID, 200, ~B'{"code":7,"data":[1056]}', {refused, 7, #{}}},
            {?OTHER, 200, ~B'{"code":7}', {wrong, id}},
            {~B'"1000000007"', 200, ~B'{"code":7}', {wrong, id}},
            %% Only HTTP tells whose refusal it is that could not read the request.
            {~"null", 400, ~B'{"code":7}', {refused, 7, #{}}},
            {~"null", none, ~B'{"code":7}', {wrong, id}},
            {?ID, none, ~B'{"code":"7"}', {wrong, message}},
            {?ID, 503, ~B'{"code":"7"}', {refused, 503, #{}}}]],
    ?assertEqual({refused, 7, #{}}, read(~B'{"jsonrpc":"2.0","error":{"code":7}}', 400, any)).

what_is_no_reply_is_wrong(_) ->
    [?assertEqual({Body, Status, Verdict}, {Body, Status, read(Body, Status, any)})
     || {Body, Status, Verdict} <- [
            {~B'{"id":1000000007,"result":{}}', 200, {wrong, message}},
            {~B'{"jsonrpc":"1.0","id":1000000007,"result":{}}', none, {wrong, message}},
            {~B'[{"jsonrpc":"2.0","id":1000000007,"result":{}}]', none, {wrong, message}},
            {~"", none, {wrong, empty}}, {~"", 202, {wrong, empty}},
            {~"busy", none, {wrong, json}}, {~"busy", 399, {wrong, json}},
            {~"busy", 400, {refused, 400, #{}}}, {~"", 503, {refused, 503, #{}}},
            {~"[]", 500, {refused, 500, #{}}}]].

contents_are_those_asked_for(_) ->
    Text = fun(Words) -> content([#{type => text, text => Words}]) end,
    [?assertEqual({Expected, Result, Verdict},
                  {Expected, Result, read(reply(?ID, Result), 200, Expected)})
     || {Expected, Result, Verdict} <- [
            {{text, ~"abc"}, Text(~"abc"), answered},
            {{text, ~"abc"}, Text(~"<abc>"), answered},
            {{text, ~"abc"}, Text(~"ab c"), {wrong, content}},
            {{text, ~"abc"}, Text(1), {wrong, content}},
            {{text, ~""}, Text(~""), answered},
            {{text, ~""}, content([]), {wrong, content}},
            {{text, ~"abc"}, content([#{type => image, text => ~"abc"}]), {wrong, content}},
            {{text, ~"abc"}, content([#{type => text, text => ~"x"},
                                      #{type => text, text => ~"abc"}]), answered},
            {{text, ~"abc"}, ~B'{"content":"abc"}', {wrong, content}},
            {{text, ~"abc"}, ~B'{"text":"abc"}', {wrong, content}},
            {{bytes, 3}, Text(~"abc"), answered}, {{bytes, 3}, Text(~"ab"), {wrong, content}},
            {{bytes, 3}, Text(~"abcd"), {wrong, content}},
            {{number, 3}, Text(~"3"), answered}, {{number, 3}, Text(~"3.0"), answered},
            {{number, 3}, Text(~"4"), {wrong, content}},
            {{number, 3}, Text(~B'"3"'), {wrong, content}},
            {{number, 3}, Text(~"three"), {wrong, content}},
            {{member, ~"tools", list}, ~B'{"tools":[]}', answered},
            {{member, ~"tools", list}, ~B'{"tools":{}}', {wrong, content}},
            {{member, ~"tools", list}, ~B'{"prompts":[]}', {wrong, content}},
            {{member, ~"completion", object}, ~B'{"completion":{}}', answered},
            {{member, ~"completion", object}, ~B'{"completion":[]}', {wrong, content}}]].

%% To its last byte, and with its status. It has the verdict of the one that was read.
a_known_reply_differs_in_its_id_only(_) ->
    Body = fun(Id) -> reply(Id, content([#{type => text, text => ~"abc"}])) end,
    {ok, Pattern} = erlmcp_load_reply:pattern({Body(?ID), 200}, ?ID, answered),
    {ok, Refusal} = erlmcp_load_reply:pattern({refusal(?ID, ~B'{"code":7}'), 429}, ?ID,
                                              {refused, 7, #{}}),
    Known = [Refusal, Pattern],
    Check = fun(Reply, Status, Id) ->
        erlmcp_load_reply:check(Reply, Status, Id, {text, ~"abc"}, Known)
    end,
    ?assertEqual({known, answered}, Check(Body(?OTHER), 200, ?OTHER)),
    ?assertEqual({known, {refused, 7, #{}}}, Check(refusal(?OTHER, ~B'{"code":7}'), 429, ?OTHER)),
    ?assertEqual({read, {wrong, id}}, Check(Body(?ID), 200, ?OTHER)),
    ?assertEqual({read, {wrong, status}}, Check(Body(?OTHER), 202, ?OTHER)),
    Changed = binary:replace(Body(?OTHER), ~"abc", ~"abd"),
    ?assertEqual({read, {wrong, content}}, Check(Changed, 200, ?OTHER)),
    ?assertEqual({read, {wrong, json}}, Check(<<(Body(?OTHER))/binary, "}">>, 200, ?OTHER)),
    ?assertEqual({read, answered},
                 Check(binary:replace(Body(?OTHER), ~"\"2.0\"", ~"\"2.0\" "), 200, ?OTHER)).

what_cannot_be_known_again_is_read(_) ->
    Twice = reply(?ID, <<"{\"n\":", ?ID/binary, "}">>),
    [?assertEqual({Body, none}, {Body, erlmcp_load_reply:pattern({Body, 200}, ?ID, Verdict)})
     || {Body, Verdict} <- [{reply(?ID, ~"{}"), {wrong, content}}, {Twice, answered},
                            {reply(?OTHER, ~"{}"), answered}]].

read(Body, Status, Expected) ->
    {read, Verdict} = erlmcp_load_reply:check(Body, Status, ?ID, Expected, []),
    Verdict.

reply(Id, Result) ->
    <<"{\"jsonrpc\":\"2.0\",\"id\":", Id/binary, ",\"result\":", Result/binary, "}">>.

refusal(Id, Error) ->
    <<"{\"jsonrpc\":\"2.0\",\"id\":", Id/binary, ",\"error\":", Error/binary, "}">>.

content(Content) ->
    iolist_to_binary(json:encode(#{content => Content})).
