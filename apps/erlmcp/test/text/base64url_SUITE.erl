-module(base64url_SUITE).
-moduledoc "RFC 4648, \"Base 64 Encoding with URL and Filename Safe Alphabet\".".

-export([suite/0, all/0]).
-export([examples/1, every_length/1, every_digit/1, other_ways_to_write/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [examples, every_length, every_digit, other_ways_to_write].

examples(_Config) ->
    erlmcp_test_doctests:run([erlmcp_base64url]).

%% "Implementations MUST include appropriate pad characters at the end of encoded data unless the
%% specification referring to this document explicitly states otherwise."
every_length(_Config) ->
    [begin
         Bytes = rand:bytes(Length),
         Text = base64:encode(Bytes, #{mode => urlsafe, padding => false}),
         Text = erlmcp_base64url:encode(Bytes),
         {ok, Bytes} = erlmcp_base64url:decode(Text)
     end || Length <- lists:seq(0, 100)].

every_digit(_Config) ->
    ~"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" =
        erlmcp_base64url:encode(<< <<Digit:6>> || Digit <- lists:seq(0, 63) >>).

%% "Implementations MUST reject the encoded data if it contains characters outside the base alphabet
%% when interpreting base-encoded data, unless the specification referring to this document
%% explicitly states otherwise."
other_ways_to_write(_Config) ->
    [error = erlmcp_base64url:decode(Text)
     || Text <- [~"A", ~"AB", ~"AA==", ~"A+AA", ~"A/AA", ~"AA A", ~"AAA\n", ~"\x{e9}AAA"]].
