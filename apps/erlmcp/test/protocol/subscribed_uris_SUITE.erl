-module(subscribed_uris_SUITE).
-moduledoc """
The bounds of URIs that a client subscribes to, which the server keeps: each at its limit, and one
above, in both eras.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_uri_is_bounded/1, uris_of_a_filter_are_bounded/1]).

-define(LONGEST, 8192).
-define(MOST, 1000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_uri_is_bounded, uris_of_a_filter_are_bounded].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% A server with a resource of each URI.
start() ->
    erlmcp_test_http:start(#{resource_templates => [
        #{uri_template => ~"t://{+id}", name => ~"t", handler => fun(_, _) -> ~"" end}]}).

uri(Size) ->
    <<"t://", (binary:copy(~"u", Size - 4))/binary>>.

a_uri_is_bounded(_) ->
    Server = start(),
    Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    Subscribe = fun(Size) ->
        #{messages := [Answer]} = erlmcp_test_http:call(
            Server, ~"resources/subscribe", #{uri => uri(Size)}, #{session => Session}),
        Answer
    end,
    #{~"result" := #{}} = Subscribe(?LONGEST),
    refused(~"uri: a URI of too many bytes", ?LONGEST, Subscribe(?LONGEST + 1)),
    erlmcp_test_http:stop(Server).

%% The longest counts, wherever it is.
uris_of_a_filter_are_bounded(_) ->
    Server = start(),
    Listen = fun(Uris) ->
        Socket = erlmcp_test_http:connect(Server),
        {Headers, Body} = erlmcp_test_http:message(
            ~"subscriptions/listen", #{notifications => #{resourceSubscriptions => Uris}}, #{}),
        ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
        {Socket, erlmcp_test_http:head(Socket)}
    end,
    Accepted = fun(Uris) ->
        {Socket, {200, _}} = Listen(Uris),
        {event, #{~"params" := #{~"notifications" := #{~"resourceSubscriptions" := Honoured}}}} =
            erlmcp_test_http:event(Socket),
        true = Honoured =:= Uris,
        erlmcp_test_http:close(Socket)
    end,
    Refused = fun(Uris) ->
        {Socket, {400, #{~"content-length" := Length}}} = Listen(Uris),
        {ok, Body} = gen_tcp:recv(Socket, binary_to_integer(Length), 30_000),
        erlmcp_test_http:close(Socket),
        json:decode(Body)
    end,
    Few = [<<"t://", (integer_to_binary(N))/binary>> || N <- lists:seq(1, ?MOST - 1)],
    Accepted([uri(?LONGEST) | Few]),
    [refused(~"notifications.resourceSubscriptions: a URI of too many bytes", ?LONGEST,
             Refused(Uris))
     || Uris <- [[uri(?LONGEST + 1), ~"t://a"], [~"t://a", uri(?LONGEST + 1)]]],
    #{~"error" := #{~"code" := -32602, ~"data" := #{~"limit" := ?MOST, ~"observed" := 1001}}} =
        Refused([~"t://a", ~"t://b" | Few]),
    erlmcp_test_http:stop(Server).

refused(Message, Limit, Answer) ->
    Observed = Limit + 1,
    #{~"error" := #{~"code" := -32602, ~"message" := Message,
                    ~"data" := #{~"limit" := Limit, ~"observed" := Observed}}} = Answer.
