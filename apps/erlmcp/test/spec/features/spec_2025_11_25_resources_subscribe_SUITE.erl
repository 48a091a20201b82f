-module(spec_2025_11_25_resources_subscribe_SUITE).
-moduledoc "Specification 2025-11-25, \"Resources / Subscriptions\", and the revisions before it.".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([capability_is_declared/1, updates_are_told/1, subscribing_twice_is_once/1,
         unsubscribed_is_not_told/1, sessions_are_told_apart/1, wrong_uris_are_refused/1,
         batch_subscribes/1]).
-export([missed_updates_are_told_once/1, missed_updates_are_forgotten/1]).
-export([subscriptions_are_bounded/1, ended_sessions_leave_nothing/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [open/3, batch/2, next/1, over/1, ask/3, told/1, stream/1, counts/1]).

-define(UPDATED, ~"notifications/resources/updated").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp}, {group, sse}].

groups() ->
    Cases = erlmcp_test_suite:cases(?MODULE),
    Http = [missed_updates_are_told_once, missed_updates_are_forgotten],
    [{http, Cases}, {tcp, Cases -- Http}, {sse, Cases -- Http}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Transport, Config) -> [{transport, Transport} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(_, Config) ->
    [{server, start(#{})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_client:stop(server(Config)).

start(Limits) ->
    Resource = fun(Uri) -> #{uri => Uri, name => Uri, handler => fun(_, _) -> ~"text" end} end,
    erlmcp_test_client:start(#{limits => Limits,
                               resources => [Resource(Uri)
                                             || Uri <- [~"test://a", ~"test://b", ~"test://c"]]}).

client(Config) ->
    client(Config, ~"2025-11-25").

client(Config, Revision) ->
    open(server(Config), transport(Config), Revision).

revisions() ->
    [~"2024-11-05", ~"2025-03-26", ~"2025-06-18", ~"2025-11-25"].

subscribe(Client, Uri) ->
    done(ask(Client, ~"resources/subscribe", #{uri => Uri})).

unsubscribe(Client, Uri) ->
    done(ask(Client, ~"resources/unsubscribe", #{uri => Uri})).

done(#{~"result" := Result}) ->
    0 = map_size(Result),
    ok.

update(Config, Uri) ->
    #{pid := Pid} = server(Config),
    ok = erlmcp:resource_updated(Pid, Uri).

%% The next that a stream tells is an update of this resource.
updated(Stream) ->
    {none, ?UPDATED, #{~"uri" := Uri} = Params} = told(Stream),
    1 = map_size(Params),
    Uri.

%% "subscribe: whether the client can subscribe to be notified of changes to individual resources."
capability_is_declared(Config) ->
    [begin
         #{status := 200, messages := [#{~"result" := #{~"capabilities" := Offered}}]} =
             erlmcp_test_http:initialize(server(Config), Revision, #{}),
         #{~"resources" := #{~"subscribe" := true}} = Offered
     end || Revision <- revisions()].

%% "Clients can subscribe to specific resources and receive notifications when they change".
updates_are_told(Config) ->
    [begin
         Client = client(Config, Revision),
         Stream = stream(Client),
         ok = subscribe(Client, ~"test://a"),
         %% What changes again before it is told is told once.
         [update(Config, Uri) || Uri <- [~"test://b", ~"test://a", ~"test://"]],
         ~"test://a" = updated(Stream),
         update(Config, ~"test://a"),
         ~"test://a" = updated(Stream),
         ok = subscribe(Client, ~"test://b"),
         [update(Config, Uri) || Uri <- [~"test://b", ~"test://c", ~"test://a"]],
         [~"test://b", ~"test://a"] = [updated(Stream), updated(Stream)],
         erlmcp_test_client:close(Client, Stream)
     end || Revision <- revisions()].

subscribing_twice_is_once(Config) ->
    Client = client(Config),
    Stream = stream(Client),
    [ok = subscribe(Client, ~"test://a") || _ <- [1, 2, 3]],
    ok = subscribe(Client, ~"test://b"),
    [update(Config, Uri) || Uri <- [~"test://a", ~"test://b"]],
    [~"test://a", ~"test://b"] = [updated(Stream), updated(Stream)],
    ok = unsubscribe(Client, ~"test://a"),
    [update(Config, Uri) || Uri <- [~"test://a", ~"test://b"]],
    ~"test://b" = updated(Stream).

unsubscribed_is_not_told(Config) ->
    [begin
         Client = client(Config, Revision),
         Stream = stream(Client),
         %% Of what was never subscribed it says nothing either.
         ok = unsubscribe(Client, ~"test://a"),
         [ok = subscribe(Client, Uri) || Uri <- [~"test://a", ~"test://b"]],
         ok = unsubscribe(Client, ~"test://a"),
         [update(Config, Uri) || Uri <- [~"test://a", ~"test://b"]],
         ~"test://b" = updated(Stream),
         ok = unsubscribe(Client, ~"test://a"),
         ok = subscribe(Client, ~"test://a"),
         update(Config, ~"test://a"),
         ~"test://a" = updated(Stream),
         erlmcp_test_client:close(Client, Stream)
     end || Revision <- revisions()].

sessions_are_told_apart(Config) ->
    [First, Second] = [client(Config), client(Config, ~"2024-11-05")],
    [One, Two] = [stream(First), stream(Second)],
    ok = subscribe(First, ~"test://a"),
    ok = subscribe(Second, ~"test://b"),
    ok = subscribe(First, ~"test://c"),
    ok = subscribe(Second, ~"test://c"),
    [update(Config, Uri) || Uri <- [~"test://b", ~"test://a", ~"test://c"]],
    [~"test://a", ~"test://c"] = [updated(One), updated(One)],
    [~"test://b", ~"test://c"] = [updated(Two), updated(Two)],
    ok = unsubscribe(First, ~"test://c"),
    [update(Config, Uri) || Uri <- [~"test://c", ~"test://a", ~"test://b"]],
    ~"test://a" = updated(One),
    [~"test://c", ~"test://b"] = [updated(Two), updated(Two)].

%% "Servers MUST validate all resource URIs".
wrong_uris_are_refused(Config) ->
    Client = client(Config),
    [#{~"error" := #{~"code" := -32602}} = ask(Client, Method, Params)
     || Method <- [~"resources/subscribe", ~"resources/unsubscribe"],
        Params <- [#{}, #{uri => null}, #{uri => 1}, #{uri => []}, #{uri => #{}},
                   #{~"URI" => ~"test://a"}]],
    ok = subscribe(Client, ~"test://a").

%% 2025-03-26: "Implementations MUST support receiving JSON-RPC batches": of any requests.
batch_subscribes(Config) ->
    Client = client(Config, ~"2025-03-26"),
    Requests = [#{jsonrpc => ~"2.0", id => Id, method => Method, params => #{uri => Uri}}
                || {Id, Method, Uri} <- [{1, ~"resources/subscribe", ~"test://a"},
                                         {2, ~"resources/subscribe", ~"test://b"},
                                         {3, ~"resources/unsubscribe", ~"test://a"},
                                         {4, ~"resources/read", ~"test://a"}]],
    Exchange = batch(Client, Requests),
    Answers = next(Exchange),
    ok = over(Exchange),
    #{1 := One, 2 := Two, 3 := Three, 4 := #{~"contents" := [_]}} =
        #{Id => Result || #{~"id" := Id, ~"result" := Result} <- Answers},
    [0, 0, 0] = [map_size(Result) || Result <- [One, Two, Three]],
    Stream = stream(Client),
    [update(Config, Uri) || Uri <- [~"test://a", ~"test://b"]],
    ~"test://b" = updated(Stream).

%% What changes while no stream is open is told when one is; a resource that changed twice is read
%% once.
missed_updates_are_told_once(Config) ->
    Client = client(Config),
    [ok = subscribe(Client, Uri) || Uri <- [~"test://a", ~"test://b"]],
    [update(Config, Uri) || Uri <- [~"test://a", ~"test://b", ~"test://a", ~"test://c"]],
    Stream = stream(Client),
    [~"test://a", ~"test://b"] = lists:sort([updated(Stream), updated(Stream)]),
    update(Config, ~"test://b"),
    ~"test://b" = updated(Stream).

missed_updates_are_forgotten(Config) ->
    Client = client(Config),
    [ok = subscribe(Client, Uri) || Uri <- [~"test://a", ~"test://b"]],
    [update(Config, Uri) || Uri <- [~"test://a", ~"test://b"]],
    ok = unsubscribe(Client, ~"test://a"),
    Stream = stream(Client),
    ~"test://b" = updated(Stream),
    update(Config, ~"test://b"),
    ~"test://b" = updated(Stream).

%% At the limit, and one more; the lists that a session hears of anyway take nothing from it.
subscriptions_are_bounded(Config) ->
    Server = start(#{subscriptions => 2}),
    Within = [{server, Server} | Config],
    [begin
         Client = client(Within, Revision),
         Stream = stream(Client),
         [ok = subscribe(Client, Uri) || Uri <- [~"test://a", ~"test://b", ~"test://a"]],
         #{~"error" := #{~"code" := 1060, ~"data" := #{~"limit" := 2, ~"observed" := 3}}} =
             ask(Client, ~"resources/subscribe", #{uri => ~"test://c"}),
         [update(Within, Uri) || Uri <- [~"test://c", ~"test://b"]],
         ~"test://b" = updated(Stream),
         ok = unsubscribe(Client, ~"test://b"),
         ok = subscribe(Client, ~"test://c"),
         [update(Within, Uri) || Uri <- [~"test://b", ~"test://c"]],
         ~"test://c" = updated(Stream),
         %% Another session has its own.
         Other = client(Within, Revision),
         ok = subscribe(Other, ~"test://b"),
         [erlmcp_test_client:close(Each) || Each <- [Client, Other]],
         erlmcp_test_client:close(Client, Stream)
     end || Revision <- revisions()],
    erlmcp_test_client:stop(Server).

ended_sessions_leave_nothing(Config) ->
    Server = server(Config),
    Before = counts(Server),
    [begin
         Client = client(Config),
         [ok = subscribe(Client, Uri) || Uri <- [~"test://a", ~"test://b"]],
         ok = unsubscribe(Client, ~"test://b"),
         leave(Client, Server)
     end || _ <- lists:seq(1, 200)],
    settled(Before, Server, 3000),
    %% And not of themselves alone: what changes now is told to nobody.
    [update(Config, Uri) || Uri <- [~"test://a", ~"test://b"]],
    Before = counts(Server).

leave(#{transport := http, session := Session}, Server) ->
    #{status := 204} = erlmcp_test_http:delete(Server, Session);
leave(Client, _) ->
    erlmcp_test_client:close(Client).

%% Nothing tells when a server has seen that its client is gone, so it is looked up again.
settled(Counts, Server, Tries) when Tries > 0 ->
    case counts(Server) of
        Counts -> ok;
        _ -> receive after 10 -> settled(Counts, Server, Tries - 1) end
    end.
